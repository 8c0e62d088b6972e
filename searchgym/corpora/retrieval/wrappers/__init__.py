"""Retrievers that wrap other retrievers: caches, hybrids, rerankers and noise."""
