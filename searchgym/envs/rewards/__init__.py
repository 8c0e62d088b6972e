"""Shipped rewards, one class per module; `searchgym.options.kinds` lists them."""
