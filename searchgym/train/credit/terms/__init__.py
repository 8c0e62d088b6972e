"""Credit terms that ship: one module for each, with one class; `searchgym.options.kinds` lists them."""
