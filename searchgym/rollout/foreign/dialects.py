"""Detection of the tool-call dialect of models (``dialect: auto``) from their files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from searchgym.corpora.files import read_json
from searchgym.errors import UsageError
from searchgym.options.yaml import read_small
from searchgym.protocol import AUTO, check, detect
from searchgym.rollout.folders import adapter_base, has_tokenizer, is_adapter, model_folder


def saved_template(folder: Path) -> str:
    """Returns the chat templates in a model's files as text; empty if there is none.

    Raises:
        DataError: A file cannot be read.
    """
    if is_adapter(folder) and not has_tokenizer(folder):
        return saved_template(model_folder(adapter_base(folder)))
    if (file := folder / "chat_template.jinja").is_file():
        return read_small(file)
    config = read_json(file) if (file := folder / "tokenizer_config.json").is_file() else {}
    saved = config.get("chat_template") if isinstance(config, dict) else None
    named = saved if isinstance(saved, list) else [{"template": saved}]
    return "\n".join(str(one["template"]) for one in named if isinstance(one, dict) and one.get("template"))


def chosen_dialect(dialect: str, models: Iterable[str | Path]) -> tuple[str, list[str]]:
    """Returns the dialect of a run, detected from its models if it is ``auto``, and notes for the user.

    Args:
        dialect: Name of the dialect, or ``auto``, from the user or the environment.
        models: Models that write the actions; only folders have templates, models behind servers are ignored.

    Returns:
        (dialect, notes): the name, and notes on why it was chosen or which models it contradicts.

    Raises:
        UsageError: The dialect is ``auto``, and no model has files here or their templates have different dialects.
    """
    folders = list(dict.fromkeys(model for model in models if isinstance(model, Path)))
    templates = {folder: saved_template(folder) for folder in folders}
    if dialect != AUTO:
        reasons = [(folder, check(dialect, template)) for folder, template in templates.items()]
        return dialect, [f"{folder.name}: {reason}" for folder, reason in reasons if reason]
    detected = {folder: detect(template) for folder, template in templates.items()}
    names = {name for name, _ in detected.values()}
    if len(names) != 1:
        which = ", ".join(f"{folder.name}: {name}" for folder, (name, _) in detected.items())
        raise UsageError(f"dialect {AUTO!r} needs model files with one dialect, got {which or 'none'}: name it")
    return names.pop(), [f"{folder.name}: dialect {name!r}: {why}" for folder, (name, why) in detected.items()]
