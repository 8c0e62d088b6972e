"""The training run: the loop, what each step draws, checkpoints, guards and metrics."""
