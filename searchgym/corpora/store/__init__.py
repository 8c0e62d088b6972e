"""Passages on disk, written once and read one by one."""
