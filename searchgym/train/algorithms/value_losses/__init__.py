"""Losses of the critic, one class in each module, named in a recipe as ``critic.loss``."""
