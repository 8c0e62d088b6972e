"""Corpora, questions, generated worlds and retrievers."""
