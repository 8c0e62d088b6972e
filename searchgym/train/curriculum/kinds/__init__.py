"""Curricula that ship: one module for each, with one class; modules have the curricula's names."""
