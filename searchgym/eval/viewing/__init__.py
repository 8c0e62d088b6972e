"""Viewers of runs: episodes in Inspect's log format, and an HTML page with the tokens of one episode."""
