"""The ``doctor`` command: what is installed, what works with it and what is missing."""
