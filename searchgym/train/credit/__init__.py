"""Credit assignment: rewards of the calls of an episode, computed by the terms of a recipe."""
