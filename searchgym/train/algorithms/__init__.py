"""The mathematics of a training step: samples, credit, estimators, advantages, GAE and losses."""
