"""Lookup of classes by name: shipped modules of a kind's package, entry points, and ``module:Class``."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib import metadata, util
from typing import Any, TypeVar

from searchgym.errors import CardError, UnknownNameError
from searchgym.named import load_object

T = TypeVar("T")


def kinds(base: Any) -> dict[str, list[str]]:
    """Returns each kind's name with the modules or ``module:Class`` that define it, without importing them.

    Args:
        base: Base class of the kinds; its `kinds_in` names both the package to list and the group of entry points.
    """
    return _listed(base.kinds_in)


def shipped(package: str) -> dict[str, str]:
    """Returns each shipped kind's name with its module; only lists files, so that ``--help`` stays fast."""
    spec = util.find_spec(package)
    names = [module.name for module in pkgutil.iter_modules(spec.submodule_search_locations if spec else [])]
    return {name.replace("_", "-"): f"{package}.{name}" for name in names if not name.startswith("_")}


@cache
def _listed(package: str) -> dict[str, list[str]]:
    modules = {name: [module] for name, module in shipped(package).items()}
    for point in metadata.entry_points(group=package):
        modules.setdefault(point.name, []).append(point.value)
    return modules


def find_kind(base: type[T], name: str) -> type[T]:
    """Imports the class of a kind, given its name or ``module:Class``.

    Raises:
        UnknownNameError: No kind has this name; the nearest is suggested.
        CardError: Several kinds have this name, its module cannot be imported, or the class does not exist.
    """
    noun: str = base.noun  # type: ignore[attr-defined]
    if ":" in name:
        return _kind(base, name, [load_object(name)])
    modules = kinds(base).get(name, [])
    if not modules:
        raise UnknownNameError(noun, name, [*kinds(base), "module:Class"])
    if len(modules) > 1:
        raise CardError(f"{noun} {name!r} is in {' and in '.join(modules)}: write module:Class, or uninstall one")
    path, _, attribute = modules[0].partition(":")
    try:
        module = importlib.import_module(path)
    except Exception as error:  # a file of another package may raise anything
        raise CardError(f"{noun} {name!r}: {path} cannot be imported: {type(error).__name__}: {error}") from error
    candidates = [getattr(module, attribute, None)] if attribute else vars(module).values()
    return _kind(base, name, [c for c in candidates if getattr(c, "__module__", None) == path or attribute])


def _kind(base: type[T], name: str, objects: list[Any]) -> type[T]:
    """Returns the only class among `objects` that inherits from `base`."""
    classes = [c for c in objects if isinstance(c, type) and issubclass(c, base)]
    if len(classes) != 1 or "__dataclass_params__" not in vars(classes[0]):
        noun: str = base.noun  # type: ignore[attr-defined]
        raise CardError(f"{noun} {name!r} must be one class, a frozen dataclass that inherits {base.__name__}")
    return classes[0]


def name_of(value: Any) -> str:
    """Returns the name under which `find_kind` finds the class of an object."""
    cls = type(value)
    package, _, module = cls.__module__.rpartition(".")
    return module.replace("_", "-") if package == value.kinds_in else f"{cls.__module__}:{cls.__qualname__}"
