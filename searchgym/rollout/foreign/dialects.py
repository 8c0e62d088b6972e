"""Which dialect of tool calls a model's files show: ``dialect: auto``, read before the task is made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from searchgym.corpora.files import read_json
from searchgym.errors import UsageError
from searchgym.options.yaml import read_small
from searchgym.protocol import AUTO, check, detect
from searchgym.rollout.folders import adapter_base, has_tokenizer, is_adapter, model_folder


def saved_template(folder: Path) -> str:
    """Returns the chat templates in the files of a model; empty without one.

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
    """Returns the dialect of a run, ``auto`` read off its models, and what to tell the user about it.

    Args:
        dialect: As the user or the environment names it.
        models: Folders of the models that write the actions; models behind a server show no template.

    Returns:
        (dialect, notes): its name, and why it was chosen or contradicts a model.

    Raises:
        UsageError: The dialect is ``auto``, and no model has files here or their templates show different ones.
    """
    folders = list(dict.fromkeys(model for model in models if isinstance(model, Path)))
    templates = {folder: saved_template(folder) for folder in folders}
    if dialect != AUTO:
        reasons = [(folder, check(dialect, template)) for folder, template in templates.items()]
        return dialect, [f"{folder.name}: {reason}" for folder, reason in reasons if reason]
    shown = {folder: detect(template) for folder, template in templates.items()}
    names = {name for name, _ in shown.values()}
    if len(names) != 1:
        which = ", ".join(f"{folder.name}: {name}" for folder, (name, _) in shown.items())
        raise UsageError(f"dialect {AUTO!r} takes one dialect of the models' files, got {which or 'none'}: name it")
    return names.pop(), [f"{folder.name}: dialect {name!r}: {why}" for folder, (name, why) in shown.items()]
