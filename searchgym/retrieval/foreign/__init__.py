"""Indexes made by other tools, which are searched in place or converted to index folders."""
