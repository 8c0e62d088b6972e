"""Agents: workflows that search and answer."""
