"""Rollout: the episode engine, its samplers, and episode files."""
