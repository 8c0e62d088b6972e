"""Suites: fixed lists of environments, splits and questions that are scored together."""
