"""Indexes that other tools made: searched where they are, or turned into index folders."""
