"""Evaluation: agents on questions, retrievers on qrels."""
