"""BM25 retrieval by Lucene, in a Java virtual machine."""
