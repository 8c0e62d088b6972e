"""Curricula: which questions a training asks, and how much of what it finds is noise, by step or by pass rate."""
