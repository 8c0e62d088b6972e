"""Retrievers without a corpus here: clients of servers, tools and recorded hits."""
