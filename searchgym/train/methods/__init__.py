"""Training methods that ship: one module for each, with one class; modules have the methods' names."""
