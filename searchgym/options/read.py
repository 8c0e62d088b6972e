"""Options: frozen dataclasses that pydantic reads strictly from YAML; pydantic is imported at the first `read`."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import yaml

from searchgym.errors import CardError, SearchGymError
from searchgym.options.kinds import find_kind, kinds, name_of
from searchgym.options.problems import problem, refuse_logins, reworded, sentences
from searchgym.options.setting import Setting
from searchgym.options.yaml import Source

T = TypeVar("T")


class Options:
    """Base class of dataclasses that are read from YAML: values keep their type, unknown keys are refused."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Any] = {"strict": True, "extra": "forbid", "allow_inf_nan": False}

    def problems(self) -> Iterable[str]:
        """Yields a sentence for each contradiction between fields."""
        return ()

    @classmethod
    def short(cls, value: object) -> object:
        """Expands a short form, a text or a number, to keys and values or to an object; others are unchanged."""
        return value

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        schema = _as_in_yaml(handler(source))
        # moved to the outer schema; otherwise the second use of a class would skip `_section`
        name = schema.pop("ref", None)
        return _core().core_schema.no_info_wrap_validator_function(functools.partial(_section, cls), schema, ref=name)


class Kind(Options):
    """Base class of options with several implementations, one chosen by name; each family's base sets `kinds_in`."""

    __slots__ = ()
    kinds_in: ClassVar[str]
    """Package with one module per shipped kind, named like the kind; entry points of the same group add more."""
    noun: ClassVar[str]
    """Noun for the kind in messages, such as ``judge``."""
    loads_code: ClassVar[bool] = False
    """Whether a user's ``module:Class`` is imported as soon as it is read, instead of becoming `Unloaded`."""

    @classmethod
    def short(cls, value: object) -> object:
        """Expands a text to the kind of that name."""
        return {"kind": value} if isinstance(value, str) else value

    def check(self, setting: Setting) -> Iterable[str]:
        """Yields a sentence for each setting of the run that conflicts with this kind."""
        return ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        if "kinds_in" in vars(cls):  # a base: any of its kinds is accepted
            return _core().core_schema.no_info_plain_validator_function(functools.partial(_pick, cls))
        return super().__get_pydantic_core_schema__(source, handler)


@dataclasses.dataclass(frozen=True)  # with slots, mypy would conclude that nothing declared as a kind can be Unloaded
class Unloaded:
    """Options of a user's ``module:Class`` before its import: reading a file imports no code, `loaded` does.

    Until then, attributes have the values that they have in an instance of the base.
    """

    base: type[Kind]
    name: str
    values: Any
    """Plain data: keys and values, or a short form that `Kind.short` expands."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look these up before `base` is set
            raise AttributeError(name)
        return getattr(self.base(), name)


class Named(dict[str, T]):
    """Mapping of kind names to kinds, as in ``credit: {outcome: 1, waypoint: {share: 0.3}}``.

    The key chooses the kind. A user's ``module:Class`` is an `Unloaded` until `loaded` is called.
    """

    def loaded(self) -> dict[str, T]:
        """Returns the kinds by name after importing those of users; see `searchgym.options.loaded`."""
        return {name: loaded(value) for name, value in self.items()}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        (base,) = typing.get_args(source)
        mapping = _core().core_schema.dict_schema(_core().core_schema.str_schema(), handler.generate_schema(base))
        return _core().core_schema.no_info_before_validator_function(
            lambda value: {key: (key, inner) for key, inner in value.items()} if isinstance(value, dict) else value,
            _core().core_schema.no_info_after_validator_function(cls, mapping),
        )


def read(cls: type[T], data: object, source: Source | str) -> T:
    """Converts plain data, as read from YAML, to an object of a class.

    Raises:
        CardError: The data do not fit; the message lists every problem with file, line, key and allowed values.
    """
    from pydantic import ValidationError

    source = Source(source) if isinstance(source, str) else source
    refuse_logins(data, source)
    try:
        return typing.cast(T, _adapter(typing.cast(Any, cls)).validate_python(data))
    except ValidationError as error:
        raise CardError("\n".join(sentences(error.errors(), data, source))) from None


def loaded(value: T) -> T:
    """Returns a kind unchanged; for an `Unloaded` one, imports the user's class and returns an object of it.

    Raises:
        UsageError: The module cannot be imported, or code is refused here; see `searchgym.named.load_object`.
        CardError: The class does not exist, or its options do not fit.
    """
    if not isinstance(value, Unloaded):
        return value
    try:
        return typing.cast(T, _of_kind(value.base, find_kind(value.base, value.name), value.values))
    except _core().ValidationError as error:
        where = f"{value.base.noun} {value.name}"
        raise CardError("\n".join(sentences(error.errors(), value.values, Source(where)))) from None


def check_kind(kind: Kind | Unloaded, setting: Setting) -> list[str]:
    """Returns a kind's objections to the settings of a run; none for a kind that is not imported yet."""
    try:
        return [] if isinstance(kind, Unloaded) else list(kind.check(setting))
    except Exception as error:  # a class of another package may raise anything
        return [f"its check failed: {type(error).__name__}: {error}"]


def kind_name(value: Any) -> str:
    """Returns the name that selects a kind in YAML, whether the kind is imported or not."""
    return value.name if isinstance(value, Unloaded) else name_of(value)


def plain(value: Any, named: bool = False) -> Any:
    """Converts options to plain data, from which `read` creates an equal object."""
    if isinstance(value, Unloaded):
        return value.values if named else {"kind": value.name, **value.values}
    if isinstance(value, Options):
        names = [field.name for field in dataclasses.fields(typing.cast(Any, value))]
        kind = {"kind": name_of(value)} if isinstance(value, Kind) and not named else {}
        return kind | {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {key: plain(inner, isinstance(value, Named)) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def dump(value: Options) -> str:
    """Returns options as YAML with every value."""
    return yaml.safe_dump(plain(value), sort_keys=False, allow_unicode=True)


def _core() -> Any:
    import pydantic_core

    return pydantic_core


@functools.cache
def _adapter(cls: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _as_in_yaml(schema: Any) -> Any:
    """Makes a strict schema accept lists for tuples and mappings for dataclasses, which YAML cannot express."""
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _as_in_yaml(inner)
    if isinstance(schema, dict) and schema.get("type") in ("tuple", "dataclass"):
        schema["strict"] = False
    return schema


def _pick(base: type[Kind], value: Any) -> Any:
    """Creates the kind that plain data select."""
    try:
        name, value = value if isinstance(value, tuple) else (None, value)  # a pair: see `Named`
        if name is None:
            value = value if isinstance(value, (dict, base)) else base.short(value)
        if isinstance(value, (base, Unloaded)):
            return value
        if name is None:
            if not isinstance(value, dict):
                raise CardError("expected keys and values")
            name, value = value.get("kind"), {key: inner for key, inner in value.items() if key != "kind"}
        if not isinstance(name, str):
            raise CardError(f"missing key kind, one of {', '.join(sorted(kinds(base)))}")
        return (
            Unloaded(base, name, value)
            if ":" in name and not base.loads_code
            else _of_kind(base, find_kind(base, name), value)
        )
    except SearchGymError as error:
        raise problem("kind", str(error)) from error


def _of_kind(base: type[Kind], cls: type[Kind], value: Any) -> Any:
    value = value if isinstance(value, dict) else base.short(value)
    if not isinstance(value, dict):
        raise CardError("expected keys and values")
    return _adapter(typing.cast(Any, cls)).validate_python(value)


def _section(cls: Any, value: Any, handler: Any) -> Any:
    """Reads an object of one class and rewords validation errors with its field names."""
    from pydantic_core import ValidationError

    try:
        options = handler(value if isinstance(value, (dict, cls)) else cls.short(value))
    except SearchGymError as error:
        raise problem("short", str(error)) from error
    except ValidationError as error:
        raise reworded(error, cls) from None
    try:
        texts = "; ".join(options.problems())
    except Exception as error:  # a class of another package may raise anything
        raise problem("problem", f"its check failed: {type(error).__name__}: {error}") from error
    if texts:
        raise problem("problem", texts)
    return options
