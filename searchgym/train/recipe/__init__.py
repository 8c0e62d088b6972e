"""Recipes of training runs: their options, reading, and checks."""
