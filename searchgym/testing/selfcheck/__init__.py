"""Self-check of recipes: a few real steps, recomputed with formulas that share no code with the trainer."""
