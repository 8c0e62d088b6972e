"""Credit: which reward each call of an episode gets, by terms that a recipe names."""
