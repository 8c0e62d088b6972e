"""The ``demo`` command: train a small model to search, and tell what changed."""
