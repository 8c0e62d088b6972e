"""Agents from other papers: planners, parallel queries, long horizons, two sources, and search only when needed."""
