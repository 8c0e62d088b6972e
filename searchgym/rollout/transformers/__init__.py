"""The transformers sampler: a running batch with a key-value cache."""
