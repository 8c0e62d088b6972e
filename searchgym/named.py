"""Imports of what a user names as ``module:attribute``: an agent, a reward, a credit term, a tool."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from searchgym.errors import UnknownNameError, UsageError


def load_object(spec: str) -> Any:
    """Imports the object named ``"module:attribute"``, from the working folder too, which is searched last.

    Nothing else is imported from the working folder: it may be somebody else's.

    Raises:
        UsageError: The module cannot be imported or has no such attribute.
    """
    module, _, attribute = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
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


def find_function(what: str, name: str, known: Mapping[str, Any], *parameters: str) -> Any:
    """Returns the known function of a name, or imports the one named ``"module:function"``; see `load_function`.

    Raises:
        UnknownNameError: The name is neither; the nearest one is suggested.
        UsageError: The function cannot be imported, the name is not a function, or it takes other arguments.
    """
    if name in known:
        return known[name]
    if ":" not in name:
        raise UnknownNameError(what, name, [*known, "module:function"])
    return load_function(what, name, *parameters)


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
