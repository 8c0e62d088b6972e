"""Masked spans: search and reading practice on any text, made by hiding parts of its passages."""
