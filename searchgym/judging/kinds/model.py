"""Judge ``model``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Gt

from searchgym.judging.judge import Checked, Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJudge(Judge):
    """Asks a language model one closed question at a time, to which prose is no reply; see `PromptedJudge`."""

    model: str
    """A frozen model key of the recipe, or a model: a folder, a name, or ``URL#NAME`` behind an OpenAI-compatible
    server."""
    seconds: Annotated[float, Gt(0)] = 60.0
    """Seconds that one verdict may take."""

    @property
    def asks(self) -> str:
        """See `Judge.asks`."""
        return self.model

    def open(self, models: Mapping[str, Any]) -> Checked:
        """See `Judge.open`; what asks a model is imported by name, as it stands above the judges."""
        judge = importlib.import_module("searchgym.rollout.judge")
        if self.model in models:
            return Checked(judge.PromptedJudge(models[self.model]), self.seconds)
        model = judge.load_model(self.model)
        return Checked(judge.PromptedJudge(model), self.seconds, model.sampler.close)
