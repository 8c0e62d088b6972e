"""Options that commands share, in records: a command takes the record, and typer sees one parameter per field."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

TopK = Annotated[int | None, typer.Option(help="Passages per query.")]
MaxTurns = Annotated[int | None, typer.Option(help="Actions per episode, the answer included.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random in the run.")]


@dataclass(frozen=True, slots=True)
class Source:
    """Questions, and where their passages are searched."""

    questions: Annotated[str | None, typer.Option(help="Question file or hf:OWNER/NAME:CONFIG/SPLIT.")] = None
    corpus: Annotated[str | None, typer.Option(help="Corpus file, index folder or corpus card.")] = None
    retriever: Annotated[str | None, typer.Option(help="Retriever card, or the URL of a server.")] = None
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait until the retrieval server is ready.")] = 0.0
    distractors: Annotated[bool, typer.Option("--distractors", help="Search only each question's own paragraphs.")] = (
        False
    )


@dataclass(frozen=True, slots=True)
class TaskChoice(Source):
    """An environment's options, and how many of its questions are asked."""

    aliases: Annotated[Path | None, typer.Option(help="2WikiMultihopQA's id_aliases.json.")] = None
    reward: Annotated[str | None, typer.Option(help="em, f1 or module:function.")] = None
    protocol: Annotated[str | None, typer.Option(help="tags or tool_calls.")] = None
    top_k: TopK = None
    max_turns: MaxTurns = None
    skip_bad: Annotated[int, typer.Option(help="Bad rows of --questions to leave out and report at most.")] = 0
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N questions.")] = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A run of an evaluation: its folder and its numbers."""

    out: Annotated[Path | None, typer.Option(help="Run folder; a new one under runs/eval/ otherwise.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the models' sampling; 0 is greedy.")] = 0.0
    seed: Seed = 0
    concurrency: Annotated[int, typer.Option(help="Episodes under way at once; changes no score.")] = 64


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How models are loaded."""

    sampler: Annotated[str, typer.Option(help="transformers, vllm, or auto: vllm where it is installed.")] = (
        "transformers"
    )
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16: what the models compute in.")] = "float32"
    max_context: Annotated[
        int | None, typer.Option(help="With vLLM: tokens of the longest request and response; the model's own limit.")
    ] = None


def takes_records(command: Callable[..., None]) -> Callable[..., None]:
    """Makes a command of a function whose parameters include records: typer sees their fields in their order."""
    hints = typing.get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}

    def run(**given: Any) -> None:
        built = {
            name: record(**{field.name: given.pop(field.name) for field in dataclasses.fields(record)})
            for name, record in records.items()
        }
        command(**given, **built)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {}
    parameters = list(_expanded(command, hints))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _expanded(command: Callable[..., None], hints: dict[str, Any]) -> Iterator[inspect.Parameter]:
    """Yields a command's parameters, with the fields of a record instead of the record."""
    for name, parameter in inspect.signature(command).parameters.items():
        if not dataclasses.is_dataclass(hints[name]):
            yield parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name])
            continue
        fields = typing.get_type_hints(hints[name], include_extras=True)
        for field in dataclasses.fields(hints[name]):
            default = field.default
            yield inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=default, annotation=fields[field.name])
