"""Pretrained models from packages: their parts are found and joined, and their weights converted."""
