"""The methods of training, one class in one file each; the name of a method is the name of its module."""
