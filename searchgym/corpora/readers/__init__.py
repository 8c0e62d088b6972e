"""Readers of single documents, which return the title, text and links of a file."""
