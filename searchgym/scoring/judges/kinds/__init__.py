"""Judges that ship: one module for each, with one class; users list them by `searchgym.options.kinds`."""
