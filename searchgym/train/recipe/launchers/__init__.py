"""Launchers that ship: one module for each, with one class."""
