"""Self-play: proposers, which generate the questions that a solver learns from."""
