"""Retrievers outside this process: servers, tools and recorded answers."""
