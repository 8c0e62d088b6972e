"""Training and evaluation of the shipped tiny models."""
