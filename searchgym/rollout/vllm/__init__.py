"""The sampler on vLLM: engines in processes or behind servers, replicas and their weights."""
