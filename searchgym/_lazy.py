"""Lazy re-exports: public names of a package that are imported from its modules at first use.

A package imports its public names under ``TYPE_CHECKING``, for type checkers, lists them in ``__all__``, and ends with
``__getattr__, __dir__ = lazy(__name__, {...})``: importing the package loads nothing heavy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns ``__getattr__`` and ``__dir__`` functions that import a package's public names at first use.

    Args:
        package: Name of the package.
        modules: Names to re-export, separated by spaces, by module below the package.
    """
    origins = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(origins[name]), name)
        setattr(sys.modules[package], name, value)  # later lookups find the attribute directly
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *origins})
