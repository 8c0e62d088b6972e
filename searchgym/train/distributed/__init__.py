"""The learner over several processes: ranks under DeepSpeed and the connection to them."""
