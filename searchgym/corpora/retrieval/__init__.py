"""Retrievers: BM25, Lucene and FAISS over index folders, wrappers of retrievers, and clients of servers and tools."""
