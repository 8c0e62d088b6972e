"""BM25 by Lucene, in a Java virtual machine."""
