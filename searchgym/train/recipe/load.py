"""Reading recipes: YAML files, ``key=value`` overrides, and checks.

Recipes are checked as strictly as cards: unknown keys, wrong types and impossible combinations are refused before
anything runs. An override names a value by its dotted path (``optimizer.lr=1e-4``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from searchgym.errors import CardError, UnknownNameError
from searchgym.options import Kind, Named, Options, Unloaded, loaded, plain, read
from searchgym.options.cards import find_card
from searchgym.options.yaml import Source, parse_yaml, read_source
from searchgym.train.recipe.combinations import combination_problems
from searchgym.train.recipe.recipe import KindField, Recipe, recipe_keys, recipe_kinds
from searchgym.train.recipe.renamed import refuse_old

T = TypeVar("T")
Say = Callable[[str], None]
"""Function that prints one line of text for the user."""


def load_recipe(name: str, overrides: Iterable[str] = (), say: Say = lambda text: None) -> Recipe:
    """Reads a recipe and its overrides.

    Args:
        name: Name of a shipped recipe, or a path to a YAML file.
        overrides: ``key=value`` with a dotted key and a YAML value; the last one for a key wins. If they lower the
            number of steps, warm-ups that are too long are shortened.
        say: Called with a line of text for each warm-up that was shortened.

    Raises:
        UnknownNameError: There is no such recipe or no such key; the nearest name is suggested.
        CardError: The file or a value is not valid, or the combination is impossible.
    """
    try:
        path = find_card("train", name)
    except UnknownNameError as error:
        raise UnknownNameError("recipe", name, error.accepted, error.hint) from None
    return read_recipe(path, overrides, say)


def read_recipe(path: Path, overrides: Iterable[str] = (), say: Say = lambda text: None) -> Recipe:
    """Reads the recipe of a file; see `load_recipe`."""
    overrides = list(overrides)
    data, source = read_source(path)
    refuse_old(data, overrides, source)
    source = override_values(data, overrides, recipe_keys(), source)
    recipe, overridden = read(Recipe, data, source), {override.partition("=")[0] for override in overrides}
    steps = max(recipe.steps, 1)
    for section, most in (("optimizer", steps), ("critic", steps - 1)):  # the policy learns in at least one step
        key, warmup = f"{section}.warmup_steps", getattr(recipe, section).warmup_steps
        if "steps" in overridden and key not in overridden and warmup > most:
            recipe = _with_warmup(recipe, section, most)
            say(f"{key}: {most} instead of the recipe's {warmup}, because steps is {steps}")
    _check_combinations(recipe, " ".join([str(path), *overrides]))
    return recipe


def override_values(data: object, overrides: Iterable[str], keys: Collection[str], source: Source) -> Source:
    """Writes ``key=value`` pairs into a recipe's plain data, in place; returns the source of each value.

    Raises:
        UnknownNameError: There is no such key; the nearest name is suggested.
        CardError: A pair is malformed.
    """
    lines = dict(source.lines)
    if isinstance(data, dict):
        for override in overrides:
            _override(data, override, keys)
            path = tuple(override.partition("=")[0].split("."))
            lines = {key: line for key, line in lines.items() if key[: len(path)] != path}
            lines[path] = f"override {override}"
    return source._replace(lines=lines)


def _override(data: dict[str, Any], override: str, keys: Collection[str]) -> None:
    """Writes one ``key=value`` into the plain data of a recipe."""
    key, equals, text = override.partition("=")
    if not equals:
        example = "optimizer.lr=1e-4" if "optimizer.lr" in keys else f"{min(keys, key=len)}=VALUE"
        raise CardError(f"override {override!r}: expected key=value, for example {example}")
    whole = next((name for name in keys if key.startswith(f"{name}.")), None)
    if whole in (kinds := recipe_kinds()):
        value = parse_yaml(text, f"override {override!r}: the value")
        _override_kind(data, whole, kinds[whole], key.removeprefix(f"{whole}.").split("."), value)
        return
    if whole:
        inside = key.removeprefix(f"{whole}.")
        raise CardError(
            f"override {override!r}: {whole} is one value, give the whole value: {whole}='{{{inside}: ...}}'"
        )
    if values := [name for name in keys if name.startswith(f"{key}.")]:
        raise CardError(f"override {override!r}: {key} is a section: give its values one by one, as {values[0]}=VALUE")
    if key not in keys:
        raise UnknownNameError("recipe key", key, keys)
    *parents, last = key.split(".")
    for parent in parents:
        inner = data.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise CardError(f"override {override!r}: {parent} is {inner!r} in the recipe, expected keys and values")
        data = inner
    data[last] = parse_yaml(text, f"override {override!r}: the value")


def _override_kind(data: dict[str, Any], whole: str, kind: KindField, path: list[str], value: object) -> None:
    """Writes one option of a kind (``advantage.estimator.lam``, ``credit.waypoint.share``) into a recipe's data.

    A short form such as ``estimator: gae`` or ``outcome: 1`` is expanded first.
    """
    *parents, last = whole.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
    inner = data[last] = _written_out(data.get(last, kind.default), kind)
    if path == ["kind"] and inner.get("kind") != value:  # another kind has other options
        inner.clear()
    for name in path[:-1]:
        inner[name] = inner = _written_out(inner.get(name, {}), kind)
    inner[path[-1]] = value


def _written_out(value: object, kind: KindField) -> Any:
    """Returns a recipe value, which may be in short form, as a new dictionary of keys and values."""
    keys = {} if value is None else value if isinstance(value, dict) else kind.base.short(value)
    if not isinstance(keys, dict):
        raise CardError(f"{kind.base.noun} {value!r}: expected keys and values")
    return dict(keys)


def _with_warmup(recipe: Recipe, section: str, steps: int) -> Recipe:
    """Returns the recipe with the warm-up of a section, ``optimizer`` or ``critic``, set to a number of steps."""
    options = dataclasses.replace(getattr(recipe, section), warmup_steps=steps)
    return dataclasses.replace(recipe, **{section: options})


def with_warmups_of(recipe: Recipe, before: Recipe, overrides: Collection[str]) -> Recipe:
    """Returns a recipe with the warm-ups of the run that it resumes, except those that the user overrides.

    A run with few steps may have started with a shorter warm-up than the recipe's, which must not change on resuming.
    """
    overridden = {override.partition("=")[0] for override in overrides}
    for section in ("optimizer", "critic"):
        if f"{section}.warmup_steps" not in overridden:
            recipe = _with_warmup(recipe, section, getattr(before, section).warmup_steps)
    return recipe


def with_code(recipe: Recipe) -> Recipe:
    """Returns a recipe with its user-defined kinds (``module:Class``) imported, and checks the combination again.

    Raises:
        UsageError: A module cannot be imported, or user code is not allowed here; see `searchgym.named.load_object`.
        CardError: The class is of another kind, or its options or the combination are not valid.
    """
    recipe = imported(recipe)
    _check_combinations(recipe, recipe.name)
    return recipe


def imported(value: T) -> T:
    """Returns options with their user-defined kinds imported; the same object if they have none."""
    if isinstance(value, Named):
        return cast(T, Named(value.loaded()))
    if isinstance(value, Kind) or not isinstance(value, Options):
        return loaded(value)
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(cast(Any, value))}
    new = {name: imported(inner) for name, inner in fields.items()}
    changed = {name: inner for name, inner in new.items() if inner is not fields[name]}
    return cast(T, dataclasses.replace(cast(Any, value), **changed)) if changed else value


def users_code(value: Any) -> Iterator[str]:
    """Yields the names of a recipe's user-defined kinds that are not imported yet."""
    if isinstance(value, Unloaded):
        yield value.name
    elif isinstance(value, Options):
        for field in dataclasses.fields(cast(Any, value)):
            yield from users_code(getattr(value, field.name))
    elif isinstance(value, dict):
        for inner in value.values():
            yield from users_code(inner)


def check_recipe(recipe: Recipe, where: str) -> None:
    """Checks a recipe that was changed by a program: ranges of values and combinations of options.

    Raises:
        CardError: Names every problem found.
    """
    read(Recipe, plain(recipe), where)
    _check_combinations(recipe, where)


def _check_combinations(recipe: Recipe, where: str) -> None:
    if problems := combination_problems(recipe):
        raise CardError(f"{where}: " + "; ".join(problems))
