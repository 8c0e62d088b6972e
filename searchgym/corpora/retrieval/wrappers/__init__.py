"""Retrievers that stand on other retrievers: caches, hybrids, rerankers, noise."""
