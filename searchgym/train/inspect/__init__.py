"""What a person asks of a recipe or a run: a plan, a self-check, an explanation, an episode token by token."""
