"""Choosing what a model practises on."""
