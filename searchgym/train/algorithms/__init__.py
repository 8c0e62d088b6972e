"""The mathematics of a training step: samples, estimators, advantages, GAE and losses."""
