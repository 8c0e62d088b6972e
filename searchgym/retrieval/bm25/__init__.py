"""BM25 retrieval: text analysis, index and search."""
