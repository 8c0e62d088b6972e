"""Judges that ask a language model, and how a judge is chosen by its name."""
