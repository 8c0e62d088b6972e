"""Judge ``model``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Gt
from typing_extensions import override

from searchgym.protocol import get_protocol
from searchgym.scoring.judges.judge import Checked, Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJudge(Judge):
    """Judge by a language model, which answers one closed question at a time; see `PromptedJudge`."""

    model: str
    """Judging model: a frozen model key of the recipe, a folder, a name, or ``URL#NAME`` of a model on an
    OpenAI-compatible server."""
    seconds: Annotated[float, Gt(0)] = 60.0
    """Time limit of one verdict, in seconds."""
    template: dict[str, Any] = field(default_factory=dict)
    """Chat-template arguments, including the ``date`` in its text, for a model that is not a key of the recipe."""

    @property
    @override
    def asks(self) -> str:
        return self.model

    @override
    def open(self, models: Mapping[str, Any]) -> Checked:
        # # imported by name, since the package of rollouts comes after this one in the order of packages
        prompted = importlib.import_module("searchgym.rollout.judge").PromptedJudge
        if self.model in models:
            return Checked(prompted(models[self.model]), self.seconds)
        rollout = importlib.import_module("searchgym.rollout.models")
        how = rollout.Loading(template=self.template)
        model = rollout.load_models({"judge": self.model}, get_protocol("tags"), how)["judge"]
        return Checked(prompted(model), self.seconds, model.sampler.close)
