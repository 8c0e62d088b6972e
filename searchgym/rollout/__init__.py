"""Rollout: the episode engine and what it writes to disk."""
