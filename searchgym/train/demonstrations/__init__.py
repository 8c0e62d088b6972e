"""Demonstrations from any question set that knows its path or its gold pages, for supervised training."""
