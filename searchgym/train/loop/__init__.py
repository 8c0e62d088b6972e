"""The training run: its loop, collection of each step's data, checkpoints, guards and metrics."""
