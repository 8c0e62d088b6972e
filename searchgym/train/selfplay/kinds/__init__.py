"""Proposers that ship: one module for each, with one class; modules have the proposers' names."""
