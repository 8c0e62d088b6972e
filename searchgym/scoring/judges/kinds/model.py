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
    """Asks a language model one closed question at a time, to which prose is no reply; see `PromptedJudge`."""

    model: str
    """A frozen model key of the recipe, or a model: a folder, a name, or ``URL#NAME`` behind an OpenAI-compatible
    server."""
    seconds: Annotated[float, Gt(0)] = 60.0
    """Seconds that one verdict may take."""
    template: dict[str, Any] = field(default_factory=dict)
    """Arguments of the chat template of a model that is no key of the recipe, and the ``date`` that it shows."""

    @property
    @override
    def asks(self) -> str:
        return self.model

    @override
    def open(self, models: Mapping[str, Any]) -> Checked:
        # what asks a model is imported by name, as it stands above the judges
        prompted = importlib.import_module("searchgym.rollout.judge").PromptedJudge
        if self.model in models:
            return Checked(prompted(models[self.model]), self.seconds)
        rollout = importlib.import_module("searchgym.rollout.models")
        how = rollout.Loading(template=self.template)
        model = rollout.load_models({"judge": self.model}, get_protocol("tags"), how)["judge"]
        return Checked(prompted(model), self.seconds, model.sampler.close)
