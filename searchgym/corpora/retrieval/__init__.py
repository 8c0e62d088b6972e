"""Retrievers: BM25, Lucene and FAISS in index folders; hybrid, reranked, noisy, cached, recorded, served."""
