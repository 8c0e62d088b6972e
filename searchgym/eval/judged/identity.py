"""Identity of a judge: its name with options, a digest of its prompts, and that of its model's weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from searchgym.errors import CardError, UsageError
from searchgym.options import Options, kind_name, loaded, plain, read
from searchgym.options.yaml import parse_yaml
from searchgym.rollout.models import find_models, is_url
from searchgym.scoring.judges.judge import Judge

PARTS: Final = ("name", "prompt", "weights")
"""Parts of an identity by which two judges can differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeIdentity(Options):
    """Identity of a judge, as stored with its verdicts."""

    name: str
    """Kind of judge, and the name of its model if it has one: ``rules``, ``model tiny``, ``module:Class``."""
    options: dict[str, Any]
    """Its further options."""
    prompt: str | None
    """SHA-256 of its prompts; None without a prompt."""
    weights: str | None
    """SHA-256 of its model's weights; None without a model, or behind a server."""

    def differences(self, other: JudgeIdentity) -> list[str]:
        """Returns the names in `PARTS` by which two judges differ; options count as part of the name."""
        pairs = {part: (getattr(self, part), getattr(other, part)) for part in PARTS}
        pairs["name"] = ((self.name, self.options), (other.name, other.options))
        return [part for part, (one, two) in pairs.items() if one != two]


def find_judge(text: str) -> Judge:
    """Returns the judge that a command names, before any model is loaded.

    Args:
        text: ``rules``, a model folder or name, ``URL#NAME``, ``module:Class``, or YAML of a judge with its options:
            ``{kind: model, model: tiny, seconds: 20}``.

    Raises:
        CardError: The YAML is damaged, or an option is unknown.
        UsageError: The class cannot be imported.
        DataMissingError: There is no such model.
    """
    value = parse_yaml(text, "--judge") if text.lstrip().startswith("{") else text
    if not value:
        raise UsageError("--judge is empty: give rules, a model, URL#NAME or module:Class")
    try:
        judge = loaded(read(Judge, value, "--judge"))
    except CardError as error:
        raise CardError(str(error).replace("--judge: kind: ", "--judge: ")) from None
    if judge.asks is not None:
        find_models({"judge": judge.asks})  # a wrong name is refused before the first episode
    return judge


def identify(kind: Judge, opened: Judge) -> JudgeIdentity:
    """Returns the identity of a judge.

    Args:
        kind: The judge as a command or recipe names it.
        opened: The judge in the `Checked` that `kind` opens, which may be another object, with a loaded model.
    """
    options = plain(kind)
    name, model = kind_name(kind), kind.asks
    del options["kind"]
    if model is not None:
        options.pop("model", None)  # the path of a folder and the address of a server do not identify the weights
        short = model.rpartition("#")[2].partition("?")[0] if is_url(model) else Path(model).name
        name = f"{name} {short}"
    prompts: Mapping[str, str] = getattr(opened, "prompts", {})
    digest = hashlib.sha256(json.dumps(dict(prompts), sort_keys=True).encode()).hexdigest() if prompts else None
    return JudgeIdentity(name=name, options=options, prompt=digest, weights=getattr(opened, "weights", None))
