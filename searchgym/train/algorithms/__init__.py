"""Mathematics of a training step: samples, advantage estimators and losses."""
