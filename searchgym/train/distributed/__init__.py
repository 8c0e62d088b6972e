"""The learner in several processes: ranks under DeepSpeed, and the connection to them."""
