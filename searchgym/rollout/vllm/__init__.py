"""The vLLM sampler: engines in child processes or behind servers, replicas, and loading of their weights."""
