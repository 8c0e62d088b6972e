"""Names that a package hands on from its modules, imported when they are first asked for.

A package imports its public names under ``TYPE_CHECKING``, for type checkers, lists them in ``__all__``, and ends with
``__getattr__, __dir__ = lazy(__name__, {...})``: importing the package loads nothing heavy.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: Its name.
        modules: Module below the package to the names that it defines, separated by spaces.
    """
    where = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(where[name]), name)
        setattr(sys.modules[package], name, value)  # the next time this function is not asked
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *where})
