"""The sampler on transformers: a running batch with a cache of keys and values."""
