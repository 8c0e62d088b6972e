"""Demonstrations for supervised training, from any question set with gold pages or decompositions."""
