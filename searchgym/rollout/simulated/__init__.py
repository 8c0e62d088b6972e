"""Search without a search engine: a language model writes the pages, or the policy itself does."""
