"""The proposers, one class in one file each; the name of a proposer is the name of its module."""
