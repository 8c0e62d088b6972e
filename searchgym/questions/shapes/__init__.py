"""Shapes of generated questions: chains, comparisons, clues, and veiled chains."""
