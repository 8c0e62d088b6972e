"""Checks of training batches that other trainers wrote: masks, advantages, groups, log-probs and tokens."""
