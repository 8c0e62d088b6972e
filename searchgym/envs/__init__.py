"""Environments: the text space, the environment core and its gym shells."""
