"""BM25: analysis, index and search."""
