"""Tools to inspect a recipe or run: memory plan, self-check, reward explanation, token view of an episode."""
