"""Arguments of chat templates and the date that they show: parsing, checks, and a run's record of them."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from searchgym.errors import UnknownNameError, UsageError
from searchgym.options.yaml import parse_yaml, read_yaml
from searchgym.protocol import Protocol
from searchgym.rollout.folders import recipe_of
from searchgym.rollout.foreign.template_names import TemplateNames, template_names
from searchgym.rollout.foreign.templates import TODAY
from searchgym.rollout.tokens import TokenFormat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DATE: Final = "date"
"""Key of the day that a template shows, ``YYYY-MM-DD``; all other keys are variables of the template."""


def parse_template(specs: Sequence[str]) -> dict[str, Any]:
    """Parses ``NAME=VALUE`` arguments of the command line, the values as YAML.

    Raises:
        UsageError: An argument is malformed or repeated.
        CardError: A value is not YAML.
    """
    arguments: dict[str, Any] = {}
    for spec in specs:
        name, equals, text = spec.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--template {spec}: expected NAME=VALUE, such as enable_thinking=false")
        if name in arguments:
            raise UsageError(f"--template {name} is given twice: {arguments[name]} and {text}")
        arguments[name] = parse_yaml(text, f"--template {spec}: the value")
    return arguments


def fitted(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any], chat: bool = True) -> dict[str, Any]:
    """Returns the arguments that a tokenizer's template uses, and, if it shows a date, the given date or `TODAY`.

    Args:
        tokenizer: Tokenizer, with or without a template.
        arguments: Arguments by name, and `DATE`.
        chat: True if the template is used.

    Raises:
        UsageError: The date is not valid.
    """
    names = (template_names(tokenizer) if chat else None) or TemplateNames()
    used = {name: value for name, value in arguments.items() if name in names.arguments}
    if names.clock:
        used[DATE] = arguments.get(DATE, TODAY)
    # days as texts, since templates get JSON values
    used = {name: value.isoformat() if isinstance(value, datetime.date) else value for name, value in used.items()}
    if names.clock and not _is_day(used[DATE]):
        raise UsageError(f"template argument date: expected a day as YYYY-MM-DD, got {used[DATE]!r:.40}")
    return used


def check_template(tokenizers: Iterable[PreTrainedTokenizerBase], arguments: Mapping[str, Any]) -> None:
    """Raises an error for arguments that none of the models' templates uses.

    Args:
        tokenizers: Tokenizers of the models that the arguments are for.
        arguments: Arguments by name, and `DATE`.

    Raises:
        UnknownNameError: No template uses an argument; the nearest name is suggested.
        UsageError: A date is given, and no template shows one.
    """
    used = {str(tokenizer.name_or_path): template_names(tokenizer) for tokenizer in tokenizers if arguments}
    read = [names for names in used.values() if names is not None]
    if len(read) < len(used):  # invalid templates are refused when they are rendered
        return
    models = ", ".join(used)
    usable = frozenset[str]().union(*(names.arguments for names in read))
    for name in arguments:
        if name == DATE and not any(names.clock for names in read):
            raise UsageError(f"template argument date: the chat template of {models} shows none: leave it out")
        if name not in {DATE, *usable}:
            raise UnknownNameError("template argument", name, usable, f": the chat template of {models} never names it")


def template_format(
    tokenizer: PreTrainedTokenizerBase, protocol: Protocol, template: Mapping[str, Any] = {}, chat: bool = True
) -> TokenFormat:
    """Returns the token format of a model, as a chat if its tokenizer has a chat template.

    Args:
        tokenizer: The model's tokenizer.
        protocol: Action grammar.
        template: Arguments for the template; unused ones are dropped, see `check_template`.
        chat: True if a chat template is used, if there is one.

    Raises:
        UsageError: See `TokenFormat`.
    """
    chat = chat and bool(tokenizer.chat_template)
    arguments = fitted(tokenizer, template, chat)
    day = arguments.pop(DATE, None)
    return TokenFormat(tokenizer, protocol, chat, template_args=arguments, date=day)


def trained_template(folder: Path) -> dict[str, Any]:
    """Returns the template arguments that a checkpoint was trained with, without the date; else none.

    Args:
        folder: A model's folder; in a run with several model keys, the key's folder in the checkpoint.

    Raises:
        CardError: The run's ``recipe.yaml`` cannot be read.
    """
    for checkpoint, key in ((folder, ""), (folder.parent, folder.name)):
        record = recipe_of(checkpoint)
        if (checkpoint / "trainer.json").is_file() and record.is_file():
            recipe: Any = read_yaml(record)
            with contextlib.suppress(AttributeError):  # the file is not a recipe
                key_arguments = (recipe.get("models") or {}).get(key, {}).get("template")
                arguments = recipe.get("template") if key_arguments is None else key_arguments
                return {name: value for name, value in (arguments or {}).items() if name != DATE}
    return {}


def _is_day(value: object) -> bool:
    """Returns True if a value is a day as ``YYYY-MM-DD``."""
    try:
        return datetime.date.fromisoformat(str(value)).isoformat() == value
    except ValueError:
        return False
