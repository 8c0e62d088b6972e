"""Options that several commands share, as dataclasses: typer sees each field as a parameter of the command."""

from __future__ import annotations

import dataclasses
import inspect
import math
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from searchgym.errors import UsageError
from searchgym.options.cards import list_cards
from searchgym.options.kinds import shipped

if TYPE_CHECKING:
    from searchgym.rollout.models import Loading

TopK = Annotated[int | None, typer.Option(help="Passages per query.")]
MaxTurns = Annotated[int | None, typer.Option(help="Maximum actions per episode, including the answer.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random in the run.")]
Calibration = Annotated[
    Path | None,
    typer.Option(help="JSON lines of question, golds, answer, right: the judge's calibration sample."),
]
Template = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Argument of the chat template, such as enable_thinking=false, or date=YYYY-MM-DD; repeatable.",
    ),
]


def completed(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Returns a function with which a shell completes one of some names; they are listed when a user asks for it."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def env_names() -> list[str]:
    """Returns the short names of environments and the names of suites."""
    from searchgym.envs.registration import registered

    return [*(id.rpartition("/")[2].rpartition("-v")[0] for id in registered()), *list_cards("suites")]


def recipe_names() -> list[str]:
    """Returns the names of recipes and of pipelines."""
    return [*list_cards("train"), *list_cards("pipelines")]


AgentName = Annotated[
    str,
    typer.Option(
        help="Agent card (searchgym list agents), agent folder, or module:Class.",
        autocompletion=completed(lambda: list_cards("agents")),
    ),
]
RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="Recipe name or YAML file.", autocompletion=completed(recipe_names))
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values to override.")]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Command-line options that select the questions and the corpus to search."""

    questions: Annotated[
        str | None,
        typer.Option(help="Question file, hf:OWNER/NAME:CONFIG/SPLIT, or fields of the question source: '{seed: 7}'."),
    ] = None
    corpus: Annotated[
        str | None, typer.Option(help="Corpus file, folder of documents, index folder or corpus card.")
    ] = None
    retriever: Annotated[str | None, typer.Option(help="Retriever card, or URL of a retrieval server.")] = None
    wait: Annotated[float, typer.Option(min=0.0, help="Seconds to wait for the retrieval server to be ready.")] = 0.0
    distractors: Annotated[bool, typer.Option("--distractors", help="Search only each question's own paragraphs.")] = (
        False
    )


@dataclass(frozen=True, slots=True)
class TaskChoice(SourceOptions):
    """Command-line options of an environment, and the number of questions to ask."""

    retrievers: Annotated[
        str | None, typer.Option(help="Further retrievers by name, as YAML: '{web: bm25}' or '{web: {corpus: PATH}}'.")
    ] = None
    aliases: Annotated[Path | None, typer.Option(help="2WikiMultihopQA's id_aliases.json.")] = None
    qrels: Annotated[
        Path | None, typer.Option(help="TREC or BEIR qrels: the titles of the relevant passages become the gold pages.")
    ] = None
    reward: Annotated[
        str | None, typer.Option(help=f"Reward: {', '.join(shipped('searchgym.envs.rewards'))} or module:function.")
    ] = None
    protocol: Annotated[str | None, typer.Option(help="Form of actions: tags or tool_calls.")] = None
    dialect: Annotated[
        str | None,
        typer.Option(help="Form of tool calls: hermes, qwen3_coder, llama3, mistral, gemma, gpt_oss or auto."),
    ] = None
    several_calls: Annotated[
        str | None, typer.Option(help="Several tool calls in one response: take the first, all, or refuse.")
    ] = None
    top_k: TopK = None
    max_turns: MaxTurns = None
    max_queries: Annotated[int | None, typer.Option(help="Maximum queries per search action.")] = None
    max_observation_words: Annotated[int | None, typer.Option(help="Maximum words of retrieved text per turn.")] = None
    browse: Annotated[bool, typer.Option("--browse", help="Searches show snippets, and pages can be opened.")] = False
    snippet_words: Annotated[int | None, typer.Option(help="Maximum words of a hit shown with --browse.")] = None
    find: Annotated[bool, typer.Option("--find", help="With --browse: texts can be found in the open page.")] = False
    cite: Annotated[bool, typer.Option("--cite", help="With --browse: pages can be cited by a quote.")] = False
    token_budget: Annotated[int | None, typer.Option(help="Tokens after which an episode reads no more.")] = None
    faults: Annotated[
        str | None, typer.Option(help="Faults of the search engine, as YAML: '[{kind: rate-limit, rate: 0.2}]'.")
    ] = None
    retriever_deadline: Annotated[float | None, typer.Option(help="Seconds that one retrieval may take.")] = None
    skip_bad: Annotated[int, typer.Option(help="Skip and report at most this many bad rows of --questions.")] = 0
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask this many questions, drawn in proportion to their kinds.")
    ] = None
    draw_seed: Annotated[int, typer.Option(min=0, help="Seed of the draw of --limit.")] = 0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Command-line options of an evaluation run: its folder, sampling and concurrency."""

    out: Annotated[Path | None, typer.Option(help="Run folder; by default a new one under runs/eval/.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Resume the unfinished run in --out.")] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy decoding.")] = 0.0
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of one output of a model; default: the agent's card.")
    ] = None
    max_thought_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one output after which an open thought is closed.")
    ] = None
    seed: Seed = 0
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes that run at once; does not affect scores.")] = 64
    samples: Annotated[int, typer.Option(min=1, help="Episodes per question: scores are means, and pass@k.")] = 1
    critic: Annotated[
        Path | None, typer.Option(help="Checkpoint with a critic, which values each sample: select@value.")
    ] = None
    guided: Annotated[
        bool, typer.Option("--guided", help="Begin samples at promising turns of earlier ones, by --critic.")
    ] = False
    ceilings: Annotated[
        bool, typer.Option("--ceilings", help="Also run with the gold pages given, and with another question's hits.")
    ] = False
    trained_on: Annotated[
        list[str] | None, typer.Option(help="Question file that the model was trained on: copies are counted.")
    ] = None
    audit: Annotated[
        Path | None, typer.Option(help="Folder of `corpus audit --out`: EM on answerable questions, too.")
    ] = None
    judge: Annotated[
        str | None, typer.Option(help="Judge the answers as well: rules, a model, URL#NAME or module:Class.")
    ] = None
    calibration: Calibration = None


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Command-line options of the plan of a training, and of the machine that it is made for."""

    plan: Annotated[
        bool, typer.Option("--plan", help="Only print memory, hours and programs; status 2 if it does not fit.")
    ] = False
    config: Annotated[
        Path | None, typer.Option(help="Plan with the sizes in this config.json instead of the model's.")
    ] = None
    gpus: Annotated[int | None, typer.Option(min=0, help="Plan for this many GPUs instead of this machine's.")] = None
    gpu_gib: Annotated[
        float | None, typer.Option(help="GiB of memory of each of --gpus; default: 79, as 80 GB cards report.")
    ] = None
    cpu_gib: Annotated[
        float | None, typer.Option(help="GiB of main memory to plan for instead of what is free here.")
    ] = None
    step_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds per step, for the plan's hours; by default those of the run in --out."),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="Device to predict hours for: cpu, h200, h100 or a100; default: this machine's.")
    ] = None
    episode_tokens: Annotated[
        tuple[int, int] | None, typer.Option(help="Tokens that an episode generates and reads, for the hours.")
    ] = None

    @property
    def gib_of_each(self) -> float:
        """GiB of memory of each GPU that is planned for."""
        return 79.0 if self.gpu_gib is None else self.gpu_gib

    def check(self) -> None:
        """Raises a UsageError if options of the plan contradict each other, or a number makes no sense."""
        for name in ("config", "gpus", "gpu_gib", "cpu_gib", "step_seconds", "device", "episode_tokens"):
            if not self.plan and getattr(self, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} is for --plan")
        for name in ("gpu_gib", "cpu_gib", "step_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"--{name.replace('_', '-')} must be a number above 0, got {value:g}")
        if self.gpu_gib is not None and not self.gpus:
            raise UsageError("--gpu-gib is the memory of each of --gpus: give their number too")
        if self.step_seconds is not None and (self.device is not None or self.episode_tokens is not None):
            raise UsageError("--step-seconds replaces the prediction: leave out --device and --episode-tokens")
        if self.episode_tokens is not None and min(self.episode_tokens) < 1:
            generated, read = self.episode_tokens
            raise UsageError(f"--episode-tokens takes two numbers above 0, got {generated} and {read}")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Command-line options for loading models."""

    sampler: Annotated[str, typer.Option(help="transformers, vllm, or auto (vllm if installed).")] = "transformers"
    dtype: Annotated[str, typer.Option(help="Data type of the models: float32 or bfloat16.")] = "float32"
    max_context: Annotated[
        int | None, typer.Option(help="With vLLM: maximum tokens of request and response; default: the model's limit.")
    ] = None
    chat: Annotated[
        bool, typer.Option("--chat/--no-chat", help="Whether prompts use the model's chat template, if it has one.")
    ] = True
    template: Template = None

    def how(self, requests: int, date: str | None = None) -> Loading:
        """Returns the settings of loaded models.

        Args:
            requests: Maximum number of concurrent requests.
            date: Day that templates show, unless the command line gives one. Default: today.
        """
        from searchgym.rollout.foreign.template_options import DATE, parse_template
        from searchgym.rollout.models import Loading

        arguments = ({} if date is None else {DATE: date}) | parse_template(self.template or ())
        return Loading(self.sampler, self.dtype, requests, self.max_context, self.chat, arguments)


def takes_records(command: Callable[..., None]) -> Callable[..., None]:
    """Decorates a command that takes option records, so that typer sees one parameter per field of each record."""
    hints = typing.get_type_hints(command, include_extras=True)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}

    def run(**values: Any) -> None:
        built = {
            name: record(**{field.name: values.pop(field.name) for field in dataclasses.fields(record)})
            for name, record in records.items()
        }
        command(**values, **built)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in records:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        types = typing.get_type_hints(records[name], include_extras=True)
        for field in dataclasses.fields(records[name]):
            parameters.append(
                parameter.replace(
                    name=field.name, kind=parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
                )
            )
    run.__name__, run.__doc__, run.__annotations__ = command.__name__, command.__doc__, {}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
