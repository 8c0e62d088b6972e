"""Merging of checkpoints: weighted and scheduled averages of whole models or of adapters."""
