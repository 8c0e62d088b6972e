"""Self-check of recipes: a few real steps, recomputed by formulas that share no code with the trainer."""
