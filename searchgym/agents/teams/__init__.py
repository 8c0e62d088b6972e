"""Agents of other papers: planners, parallel queries, long horizons, two sources, and knowing when to search."""
