"""Imports of what a user names as ``module:attribute``: an agent, a reward, a credit term, a tool."""

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
"""What to do instead, of every `code_refused` block that runs; not of this thread alone, as loaders may start some."""


@contextmanager
def code_refused(remedy: str = "", *, unless: bool = False) -> Iterator[None]:
    """Makes `load_object` refuse while the block runs, whatever names the code: for files of somebody else's.

    Args:
        remedy: What the user can do, for the error.
        unless: Whether the user allowed it: then nothing is refused.
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
    """Imports the object named ``"module:attribute"``: the only place that imports what a file or a user names.

    A module that is not installed is looked for in the working folder.

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
            if here in sys.path or not f"{module}.".startswith(f"{error.name}."):  # a module that this one imports
                raise
            sys.path.append(here)  # searched last; nothing else is imported from it: it may be somebody else's
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
    """Checks that a user's function can be called as this project calls it, before the first call.

    Args:
        what: What the function is, for the message.
        function: The function; one whose signature Python does not know passes.
        *parameters: Names of the arguments, which are given by position.

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
        wanted = ", ".join(parameters)
        raise UsageError(f"{what} is called with ({wanted}), but {name} takes {signature}: {error}") from None
