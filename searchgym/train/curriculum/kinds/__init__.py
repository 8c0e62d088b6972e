"""The curricula, one class in one file each; the name of a curriculum is the name of its module."""
