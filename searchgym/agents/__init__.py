"""Agents: workflows that search for evidence and answer questions."""
