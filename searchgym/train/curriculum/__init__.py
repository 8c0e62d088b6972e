"""Curricula: the mix of training questions, and the noise in search results, by step or by pass rate."""
