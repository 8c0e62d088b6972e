"""Masked spans: practice in searching and reading, made from any text by hiding parts of its passages."""
