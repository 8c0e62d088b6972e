"""From the name of a judge to the judge."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from searchgym.errors import UsageError
from searchgym.judging.judge import Checked, Judge
from searchgym.judging.models.judge import ModelJudge
from searchgym.judging.rules import RuleJudge
from searchgym.named import load_function
from searchgym.protocol import get_protocol
from searchgym.rollout.models import Model, load_models

RULES: Final = "rules"
"""Name of the judge by rules."""
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def load_judge(
    name: str, seconds: float = 60.0, keys: Mapping[str, Model] | None = None
) -> tuple[Checked, Callable[[], None]]:
    """Loads a judge.

    Args:
        name: ``rules``; a model key of the run; a model as `searchgym.rollout.models.load_models` takes it: a folder, a
            name, or ``URL#NAME`` behind an OpenAI-compatible server; or ``module:function``, which returns a judge.
        seconds: Seconds that one verdict may take.
        keys: Models of the run, by key.

    Returns:
        The judge, and the function that closes what was loaded for it.

    Raises:
        UsageError: The function returns no judge, or a URL lacks the model's name.
        DataMissingError: There is no such model.
    """
    if name == RULES:
        return Checked(RuleJudge(), seconds), _nothing
    if name in (keys or {}):
        return Checked(ModelJudge((keys or {})[name]), seconds), _nothing
    if _FUNCTION.fullmatch(name):
        judge: Judge = load_function("judge", name)()
        lacking = [method for method in ("verify", "meets", "better") if not callable(getattr(judge, method, None))]
        if lacking:
            raise UsageError(f"judge {name} returned {type(judge).__name__}, which has no {', '.join(lacking)}()")
        return Checked(judge, seconds), _nothing
    model = load_models({"judge": name}, get_protocol("tags"))["judge"]
    return Checked(ModelJudge(model), seconds), model.sampler.close


def _nothing() -> None:
    """Closes nothing."""
