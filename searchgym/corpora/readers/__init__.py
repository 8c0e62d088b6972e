"""Readers of single documents: what a file holds becomes a title, a text and the links in it."""
