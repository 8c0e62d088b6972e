"""Shipped formats of dumps: one module with one class each; `searchgym.options.kinds` lists them."""
