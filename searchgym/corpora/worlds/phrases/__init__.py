"""Phrasings of every relation of a generated world."""
