"""The shipped tiny models: how they are trained and examined."""
