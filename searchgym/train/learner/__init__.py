"""The learner: one process that holds the weights and updates them from samples."""
