"""Judges of answers that no short gold answer can match, rubrics, and the rewards that are made of verdicts."""
