"""Training: samples from episodes, advantages, losses, the learner and the loop around them."""
