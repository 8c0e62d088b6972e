"""Environments: the text space, the environment core and the Gymnasium classes around it."""
