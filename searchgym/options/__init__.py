"""Options: frozen dataclasses that are read from YAML, with bounds at their fields, and kinds chosen by name."""

from searchgym.options.kinds import find_kind, kinds, name_of
from searchgym.options.read import Kind, Named, Options, Unloaded, check_kind, dump, kind_name, loaded, plain, read
from searchgym.options.setting import Setting
from searchgym.options.yaml import Source

__all__ = [
    "Kind",
    "Named",
    "Options",
    "Setting",
    "Source",
    "Unloaded",
    "check_kind",
    "dump",
    "find_kind",
    "kind_name",
    "kinds",
    "loaded",
    "name_of",
    "plain",
    "read",
]
