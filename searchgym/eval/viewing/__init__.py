"""Runs to look at: episodes in Inspect's log format for its viewer, and one episode's tokens as a page."""
