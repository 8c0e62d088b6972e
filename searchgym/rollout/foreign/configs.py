"""Configurations of models, tokenizers and adapters: which of their entries may reach transformers and peft.

These files are data, but the libraries do more with some entries than read them: they fetch and import modules, match
regular expressions, and build as much as a number says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import read_json
from searchgym.errors import DataError

MOST_MODULES: Final = 10_000
"""Largest number of names, layers or patterns that an adapter may list."""
MOST_RANK: Final = 4096
"""Largest rank of an adapter."""
MOST_SCALE: Final = 1e6
"""Largest ``lora_alpha`` of an adapter."""
LONGEST_PATTERN: Final = 1000
"""Maximum characters of a regular expression in ``target_modules``."""
MOST_PARTS: Final = 2**20
"""Largest number of layers, experts, blocks or labels that a configuration may ask for."""
OFF: Final[tuple[Any, ...]] = (None, False, {}, [], "")
"""Values of an entry that switch off what it is for."""
_NAME: Final = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
_PATTERN: Final = re.compile(r"(?:[\w.*+|()\[\]\\^$-]|(?<!\()\?|\(\?[:!=]|\{1,\})*", re.ASCII)
"""What a regular expression may be made of: counts, recursion and the like can take minutes before any match."""
_COUNT: Final = re.compile(r"(num|n)_|.*(layer|expert|block)")
_TOKENIZER: Final = re.compile(r"(?!Auto)\w*(Token|Backend)\w*", re.ASCII)


def read_object(file: Path) -> dict[str, Any]:
    """Reads a JSON file that holds one object.

    Raises:
        DataError: It cannot be read, or holds something else.
    """
    found = read_json(file)
    if not isinstance(found, dict):
        raise DataError(f"expected one JSON object, got {type(found).__name__}", file)
    return found


def read_adapter_config(file: Path) -> dict[str, Any]:
    """Reads an adapter's ``adapter_config.json``, of which all entries are those of a plain LoRA adapter.

    Scales of each matrix (``rank_pattern``, ``alpha_pattern``, ``use_rslora``, ``use_dora``) count as plain. Every
    other entry must be switched off: some make peft import a module or build layers, none is what the trainer writes.

    Raises:
        DataError: It cannot be read, or an entry has another value.
    """
    config = read_object(file)
    for name, value in config.items():
        fits = _ADAPTER.get(name, lambda value: value in OFF)
        if not fits(value):
            raise DataError(
                f"{name} is {value!r:.80}, which no plain LoRA adapter has; if you trust who made it, merge it into "
                "its base with peft and use the merged model",
                file,
            )
    return config


def check_model_config(file: Path) -> None:
    """Checks a model's ``config.json`` before transformers reads it.

    Raises:
        DataError: It cannot be read, names code to fetch, or asks for more parts than any model has.
    """
    for name, value in _entries(read_object(file)):
        if "implementation" in name and isinstance(value, str) and not value.replace("|", "_").isidentifier():
            raise DataError(f"{name} is {value!r:.80}: kernels are code, and none is fetched for a model", file)
        if isinstance(value, int) and value > MOST_PARTS and _COUNT.match(name):
            raise DataError(f"{name} is {value:.3g}, at most {MOST_PARTS:,} are read", file)
    _check_tokenizer_class(file)


def check_tokenizer_config(file: Path) -> None:
    """Checks a ``tokenizer_config.json`` before transformers reads it.

    Raises:
        DataError: It cannot be read, or names another class than one of a tokenizer: transformers would load that class
            without the order to run no code.
    """
    _check_tokenizer_class(file)


def _check_tokenizer_class(file: Path) -> None:
    named = read_object(file).get("tokenizer_class")
    if named is not None and not (isinstance(named, str) and _TOKENIZER.fullmatch(named)):
        raise DataError(f"tokenizer_class is {named!r:.80}, which names no tokenizer", file)


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the name and value of every entry, at any depth; all below ``x_implementation`` has that name."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from _entries(below, name if "implementation" in name else key)
    elif isinstance(value, list):
        for below in value:
            yield from _entries(below, name)
    else:
        yield name, value


# -- values of an adapter's entries --------------------------------------------------------------------------------


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _number(value: Any, most: float) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= most


def _names(value: Any) -> bool:
    """Tells whether a value is a list of names of modules, in which nothing is a pattern."""
    return (
        isinstance(value, list)
        and len(value) <= MOST_MODULES
        and all(isinstance(name, str) and _NAME.fullmatch(name) for name in value)
    )


def _targets(value: Any) -> bool:
    short = isinstance(value, str) and len(value) <= LONGEST_PATTERN
    return _names(value) or (short and _PATTERN.fullmatch(value) is not None)


def _layers(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= MOST_MODULES and all(_whole(layer, 0, MOST_MODULES) for layer in value)
    return value is None or _whole(value, 0, MOST_MODULES)


def _by_name(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns a check of an object from names of modules to values that fit."""
    return lambda value: (
        value is None or (isinstance(value, dict) and _names(list(value)) and all(map(fits, value.values())))
    )


def _rank(value: Any) -> bool:
    return _whole(value, 1, MOST_RANK)


def _scale(value: Any) -> bool:
    return _number(value, MOST_SCALE)


def _switch(value: Any) -> bool:
    return isinstance(value, bool)


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


_ADAPTER: Final[dict[str, Callable[[Any], bool]]] = {
    "peft_type": lambda value: value == "LORA",
    "task_type": lambda value: value in (None, "CAUSAL_LM"),
    "base_model_name_or_path": _text,
    "revision": _text,
    "peft_version": _text,
    "r": _rank,
    "lora_alpha": _scale,
    "rank_pattern": _by_name(_rank),
    "alpha_pattern": _by_name(_scale),
    "target_modules": _targets,
    "layers_to_transform": _layers,
    "use_rslora": _switch,
    "use_dora": _switch,
    "fan_in_fan_out": _switch,
    "inference_mode": _switch,
    "init_lora_weights": lambda value: isinstance(value, bool) or value == "gaussian",
    "lora_dropout": lambda value: _number(value, 1),
    "bias": lambda value: value == "none",
    "megatron_core": lambda value: value in (None, "megatron.core"),
    "qalora_group_size": lambda value: _whole(value, 0, MOST_RANK),
}
"""What the value of an entry must be; of all others see `OFF`. Those that are read for their text alone are not passed
on to peft."""
