"""Phrases of level `full` for every relation of a generated world."""
