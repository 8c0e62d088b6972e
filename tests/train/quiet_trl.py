"""TRL, without the warnings of what it imports: vLLM, where that is installed, and it has opinions on its version."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from trl import GRPOConfig, GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer"]
