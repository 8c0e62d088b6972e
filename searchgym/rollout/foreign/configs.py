"""Checks of the configurations of models, tokenizers and adapters before transformers and peft read them.

These files are data, but for some entries the libraries fetch and import modules, match regular expressions, or build
as many parts as a number says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from annotated_types import Interval, MaxLen, Predicate

from searchgym.corpora.files import read_json
from searchgym.errors import DataError

MOST_MODULES: Final = 10_000
"""Maximum number of names, layers or patterns in an adapter's configuration."""
MOST_RANK: Final = 4096
"""Maximum rank of an adapter."""
MOST_SCALE: Final = 1e6
"""Maximum ``lora_alpha`` of an adapter."""
LONGEST_PATTERN: Final = 1000
"""Maximum number of characters of a regular expression in ``target_modules``."""
MOST_PARTS: Final = 2**20
"""Maximum number of layers, experts, blocks or labels in a configuration."""
OFF: Final[tuple[Any, ...]] = (None, False, {}, [], "")
"""Values that switch off an entry."""
_NAME: Final = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
_PATTERN: Final = re.compile(r"(?:[\w.*+|()\[\]\\^$-]|(?<!\()\?|\(\?[:!=]|\{1,\})*", re.ASCII)
"""Allowed syntax of regular expressions; without counts and recursion, which can take minutes before any match."""
_COUNT: Final = re.compile(r"(num|n)_|.*(layer|expert|block)")
_TOKENIZER: Final = re.compile(r"(?!Auto)\w*(Token|Backend)\w*", re.ASCII)


def read_object(file: Path) -> dict[str, Any]:
    """Reads a JSON file that contains one object.

    Raises:
        DataError: The file cannot be read, or is not one object.
    """
    content = read_json(file)
    if not isinstance(content, dict):
        raise DataError(f"expected one JSON object, got {type(content).__name__}", file)
    return content


def read_adapter_config(file: Path) -> dict[str, Any]:
    """Reads an adapter's ``adapter_config.json``, and checks that it is a plain LoRA adapter's.

    Scales of single matrices (``rank_pattern``, ``alpha_pattern``, ``use_rslora``, ``use_dora``) are allowed. All other
    entries must be switched off: some make peft import a module or build layers, and the trainer writes none of them.

    Raises:
        DataError: The file cannot be read, or an entry has another value.
    """
    config = read_object(file)
    for name, value in config.items():
        if not _fits(name, value):
            raise DataError(
                f"{name} is {value!r:.80}, which no plain LoRA adapter has; if you trust who made it, merge it into "
                "its base with peft and use the merged model",
                file,
            )
    return config


def check_model_config(file: Path) -> None:
    """Checks a model's ``config.json`` before transformers reads it.

    Raises:
        DataError: The file cannot be read, names code to fetch, or has larger numbers of parts than any model.
    """
    for name, value in _entries(read_object(file)):
        if "implementation" in name and isinstance(value, str) and not value.replace("|", "_").isidentifier():
            raise DataError(f"{name} is {value!r:.80}: kernels are code, and none is fetched for a model", file)
        if isinstance(value, int) and value > MOST_PARTS and _COUNT.match(name):
            raise DataError(f"{name} is {value:.3g}, at most {MOST_PARTS:,} are read", file)
    check_tokenizer_config(file)


def check_tokenizer_config(file: Path) -> None:
    """Checks a ``tokenizer_config.json`` before transformers reads it.

    Raises:
        DataError: The file cannot be read, or names a class that is no tokenizer: transformers would load that class
            even if remote code is turned off.
    """
    named = read_object(file).get("tokenizer_class")
    if named is not None and not (isinstance(named, str) and _TOKENIZER.fullmatch(named)):
        raise DataError(f"tokenizer_class is {named!r:.80}, which names no tokenizer", file)


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the name and value of every entry at any depth; entries below ``x_implementation`` get that name."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _entries(below, name if "implementation" in name else key)
    elif isinstance(value, list):
        for below in value:
            yield from _entries(below, name)
    else:
        yield name, value


# -- values of an adapter's entries --------------------------------------------------------------------------------

_Name = Annotated[str, Predicate(lambda text: _NAME.fullmatch(text) is not None)]  # in which nothing is a pattern
_Rank = Annotated[int, Interval(ge=1, le=MOST_RANK)]
_Scale = Annotated[float, Interval(ge=-MOST_SCALE, le=MOST_SCALE)]
_Layer = Annotated[int, Interval(ge=0, le=MOST_MODULES)]
_Pattern = Annotated[str, MaxLen(LONGEST_PATTERN), Predicate(lambda text: _PATTERN.fullmatch(text) is not None)]
_Most = MaxLen(MOST_MODULES)
_ADAPTER: Final[dict[str, Any]] = {
    "peft_type": Literal["LORA"],
    "task_type": Literal["CAUSAL_LM"] | None,
    "base_model_name_or_path": str | None,
    "revision": str | None,
    "peft_version": str | None,
    "r": _Rank,
    "lora_alpha": _Scale,
    "rank_pattern": Annotated[dict[_Name, _Rank], _Most] | None,  # pyright: ignore[reportOperatorIssue]
    "alpha_pattern": Annotated[dict[_Name, _Scale], _Most] | None,  # pyright: ignore[reportOperatorIssue]
    "target_modules": Annotated[list[_Name], _Most] | _Pattern,
    "layers_to_transform": Annotated[list[_Layer], _Most] | _Layer | None,  # pyright: ignore[reportOperatorIssue]
    "use_rslora": bool,
    "use_dora": bool,
    "fan_in_fan_out": bool,
    "inference_mode": bool,
    "init_lora_weights": bool | Literal["gaussian"],
    "lora_dropout": Annotated[float, Interval(ge=-1, le=1)],
    "bias": Literal["none"],
    "megatron_core": Literal["megatron.core"] | None,
    "qalora_group_size": Annotated[int, Interval(ge=0, le=MOST_RANK)],
}
"""Type of each allowed entry's value; all other entries must be in `OFF`. Purely textual entries are not passed to
peft."""


def _fits(name: str, value: Any) -> bool:
    """Returns True if an entry of an adapter's configuration has a value allowed for a plain LoRA adapter."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    if name not in _ADAPTER:
        return value in OFF
    try:
        TypeAdapter(_ADAPTER[name], config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(value)
    except ValidationError:
        return False
    return True
