"""Search without a search engine: pages are written by a language model, or by the policy itself."""
