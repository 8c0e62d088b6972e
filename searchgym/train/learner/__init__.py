"""The learner: computes log-probs and updates weights from samples, in one process."""
