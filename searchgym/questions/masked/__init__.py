"""Masked spans: practice in searching and reading that any text gives, by hiding parts of its passages."""
