"""Builds, checks and opens index folders."""
