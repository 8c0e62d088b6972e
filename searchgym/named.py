"""Imports of what a user names as ``module:attribute``: an agent, a reward, a credit term, a tool."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
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


def load_function(what: str, spec: str) -> Any:
    """Imports the function named ``"module:function"``; `what` names its purpose in error messages.

    Raises:
        UsageError: The function cannot be imported, or the name is not a function.
    """
    loaded = load_object(spec)
    if not callable(loaded):
        raise UsageError(f"{what} {spec!r} is a {type(loaded).__name__}, not a function")
    return loaded


def find_function(what: str, name: str, known: Mapping[str, Any]) -> Any:
    """Returns the known function of a name, or imports the one named ``"module:function"``.

    Raises:
        UnknownNameError: The name is neither; the nearest one is suggested.
        UsageError: The function cannot be imported, or the name is not a function.
    """
    if name in known:
        return known[name]
    if ":" not in name:
        raise UnknownNameError(what, name, [*known, "module:function"])
    return load_function(what, name)
