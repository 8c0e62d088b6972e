"""Self-play: proposers that make the questions which a solver learns from."""
