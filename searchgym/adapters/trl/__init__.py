"""Bridge to TRL, whose trainers can train in SearchGym environments."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.adapters.trl.trl import EnvironmentFactory, outcome
    from searchgym.adapters.trl.trl_tags import use_tags

__all__ = ["EnvironmentFactory", "outcome", "use_tags"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "trl": "EnvironmentFactory outcome",
        "trl_tags": "use_tags",
    },
)
