"""Shipped rewards: one module with one class for each; `searchgym.options.kinds` lists them."""
