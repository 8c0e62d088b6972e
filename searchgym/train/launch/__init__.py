"""Starts the programs of a training on the machines of a cluster."""
