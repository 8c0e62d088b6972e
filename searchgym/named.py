"""Imports objects that users name as ``module:attribute``: agents, rewards, credit terms, tools."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from searchgym.errors import UsageError

_refusing: Final[list[str]] = []
"""Remedies of the active `code_refused` blocks, of all threads, since loaders may start threads."""


@contextmanager
def code_refused(remedy: str = "", *, unless: bool = False) -> Iterator[None]:
    """Makes `load_object` refuse every import while the block runs, to read files from other people safely.

    Args:
        remedy: Advice to the user, appended to the error message.
        unless: True if the user allowed such imports; nothing is refused then.
    """
    if unless:
        yield
        return
    _refusing.append(remedy)
    try:
        yield
    finally:
        _refusing.remove(remedy)


def names_code(text: str) -> bool:
    """Returns whether a text has the form ``module:attribute``."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text) is not None


def load_object(spec: str) -> Any:
    """Imports the object named ``"module:attribute"``. Every import that a file or a user requests happens here.

    A module that is not installed is searched for in the working folder.

    Raises:
        UsageError: The module cannot be imported, has no such attribute or ends the program, or code is refused here
            (`code_refused`).
    """
    if _refusing:
        raise UsageError(f"{spec!r:.120} names code, which is not imported from files of others{_refusing[-1]}")
    module, _, attribute = spec.partition(":")
    try:
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as error:
            here = str(Path.cwd())
            if here in sys.path or not f"{module}.".startswith(f"{error.name}."):  # it is missing inside that module
                raise
            sys.path.append(here)  # last in the search order, since the folder may be somebody else's
            loaded = importlib.import_module(module)
        return getattr(loaded, attribute)
    except (ImportError, AttributeError, TypeError, ValueError, SystemExit) as error:
        raise UsageError(f"cannot load {spec!r} (expected module:name): {error}") from error


def load_function(what: str, spec: str, *parameters: str) -> Any:
    """Imports the function named ``"module:function"``.

    Args:
        what: Purpose of the function, for error messages.
        spec: Name of the function.
        *parameters: Names of the arguments that it will be called with, by position.

    Raises:
        UsageError: The function cannot be imported, the name is not a function, or it takes other arguments.
    """
    loaded = load_object(spec)
    if not callable(loaded):
        raise UsageError(f"{what} {spec!r} is a {type(loaded).__name__}, not a function")
    check_call(f"{what} {spec!r}", loaded, *parameters)
    return loaded


def check_call(what: str, function: Callable[..., Any], *parameters: str) -> None:
    """Checks that a user's function accepts the arguments that SearchGym will pass, before the first call.

    Args:
        what: Description of the function, for the message.
        function: The function; one without an inspectable signature passes.
        *parameters: Names of the arguments, which are passed by position.

    Raises:
        UsageError: The function takes other arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*parameters)
    except TypeError as error:
        name = getattr(function, "__qualname__", type(function).__name__)
        arguments = ", ".join(parameters)
        raise UsageError(f"{what} is called with ({arguments}), but {name} takes {signature}: {error}") from None
