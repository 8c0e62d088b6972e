"""Arguments of chat templates, and the date that they show: checked, and as they stand in the record of a run."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from searchgym.errors import UnknownNameError, UsageError
from searchgym.options.yaml import parse_yaml, read_yaml
from searchgym.protocol import Protocol
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
        UsageError: An argument is malformed, or stands twice.
        CardError: A value is not YAML.
    """
    given: dict[str, Any] = {}
    for spec in specs:
        name, equals, text = spec.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--template {spec}: expected NAME=VALUE, such as enable_thinking=false")
        if name in given:
            raise UsageError(f"--template {name} stands twice: {given[name]} and {text}")
        given[name] = parse_yaml(text, f"--template {spec}: the value")
    return given


def fitted(tokenizer: PreTrainedTokenizerBase, given: Mapping[str, Any], chat: bool = True) -> dict[str, Any]:
    """Returns the arguments that a tokenizer's template uses, and the date if it shows one: the given, or `TODAY`.

    Args:
        tokenizer: Has the template, or none.
        given: Arguments by name, and `DATE`.
        chat: Whether the template is used.

    Raises:
        UsageError: The date is none.
    """
    names = (template_names(tokenizer) if chat else None) or TemplateNames()
    own = {name: value for name, value in given.items() if name in names.arguments}
    if names.clock:
        own[DATE] = given.get(DATE, TODAY)
    # days as texts, since a template gets what JSON has
    own = {name: value.isoformat() if isinstance(value, datetime.date) else value for name, value in own.items()}
    if names.clock and not _is_day(own[DATE]):
        raise UsageError(f"template argument date: expected a day as YYYY-MM-DD, got {own[DATE]!r:.40}")
    return own


def check_template(tokenizers: Iterable[PreTrainedTokenizerBase], given: Mapping[str, Any]) -> None:
    """Refuses arguments that no template of some models uses.

    Args:
        tokenizers: Tokenizers of the models that the arguments are for.
        given: Arguments by name, and `DATE`.

    Raises:
        UnknownNameError: No template names an argument; the nearest that one uses is suggested.
        UsageError: A date is given, and no template shows one.
    """
    used = {str(tokenizer.name_or_path): template_names(tokenizer) for tokenizer in tokenizers if given}
    read = [names for names in used.values() if names is not None]
    if len(read) < len(used):  # a template that is none is refused where it is rendered
        return
    models = ", ".join(used)
    known = frozenset[str]().union(*(names.arguments for names in read))
    for name in given:
        if name == DATE and not any(names.clock for names in read):
            raise UsageError(f"template argument date: the chat template of {models} shows none: leave it out")
        if name not in {DATE, *known}:
            raise UnknownNameError("template argument", name, known, f": the chat template of {models} never names it")


def template_format(
    tokenizer: PreTrainedTokenizerBase, protocol: Protocol, template: Mapping[str, Any] = {}, chat: bool = True
) -> TokenFormat:
    """Returns the token format of a model, as a chat if its tokenizer has a chat template.

    Args:
        tokenizer: The model's tokenizer.
        protocol: Action grammar.
        template: Arguments for the template; those that it does not use are left out, see `check_template`.
        chat: Whether a chat template is used if there is one.

    Raises:
        UsageError: See `TokenFormat`.
    """
    chat = chat and bool(tokenizer.chat_template)
    own = fitted(tokenizer, template, chat)
    day = own.pop(DATE, None)
    return TokenFormat(tokenizer, protocol, chat, template_args=own, date=day)


def trained_template(folder: Path) -> dict[str, Any]:
    """Returns the template arguments that a checkpoint was trained with, without the date; none of any other folder.

    Args:
        folder: A model's folder: in a run of several model keys, that of its key in the checkpoint.

    Raises:
        CardError: The run's ``recipe.yaml`` cannot be read.
    """
    for checkpoint, key in ((folder, ""), (folder.parent, folder.name)):
        record = checkpoint.parent.parent / "recipe.yaml"
        if (checkpoint / "trainer.json").is_file() and record.is_file():
            recipe: Any = read_yaml(record)
            with contextlib.suppress(AttributeError):  # a file of that name that is no recipe
                own = (recipe.get("models") or {}).get(key, {}).get("template")
                given = recipe.get("template") if own is None else own
                return {name: value for name, value in (given or {}).items() if name != DATE}
    return {}


def _is_day(value: object) -> bool:
    """Returns whether a value is a day as ``YYYY-MM-DD``."""
    try:
        return datetime.date.fromisoformat(str(value)).isoformat() == value
    except ValueError:
        return False
