"""Responses that were sampled before: after a crash, and in episodes that begin as an earlier one did."""
