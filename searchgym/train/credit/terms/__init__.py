"""Credit terms that ship: one module for each, with one class; users list it by `searchgym.options.kinds`."""
