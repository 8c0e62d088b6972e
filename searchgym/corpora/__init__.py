"""Corpora, questions and retrievers: everything that reads data or finds it."""
