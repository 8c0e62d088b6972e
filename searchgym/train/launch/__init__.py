"""Launching of a training's programs on the machines of a cluster."""
