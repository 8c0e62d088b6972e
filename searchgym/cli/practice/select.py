"""The ``questions select`` command: chooses training questions by how often a model answers them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
import yaml

from searchgym.cli.options import AgentName, LoadOptions, TaskChoice, takes_records
from searchgym.cli.output import Json, emit, emit_rows, say, say_next, stages
from searchgym.cli.pipeline.selection_options import Selection
from searchgym.cli.run import OwnEnv, chosen_task

if TYPE_CHECKING:
    from searchgym.envs.task import Task

CORPUS: Final = "corpus.jsonl"
"""File of the pages that are left when some are held out."""


def practice_task(env: str | None, choice: TaskChoice, hold_out: Sequence[Path] | None, out: Path) -> Task:
    """Returns the task without what is held out, whose corpus is then written to ``corpus.jsonl`` in the folder."""
    from searchgym.corpora.passages import write_corpus
    from searchgym.retrieval.index.distractors import passages_of
    from searchgym.train.demonstrations.held_out import without_held_out

    out.mkdir(parents=True, exist_ok=True)
    task, pages = without_held_out(chosen_task(env, choice), hold_out or ())
    if hold_out:
        write_corpus(out / CORPUS, passages_of(task.retriever) or ())
        say(f"{pages} pages held out: train with corpus={out / CORPUS}")
    return task


@takes_records
def select_questions(
    *,
    env: OwnEnv = None,
    out: Annotated[Path, typer.Option(help="Output folder; the same command goes on where it was stopped.")],
    model: Annotated[
        str | None,
        typer.Option(help="Model that will be trained: its attempts are counted. Without one, the pool is taken."),
    ] = None,
    agent: AgentName = "search-r1",
    how: Selection,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of one output; default: the agent's card.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes that run at once.")] = 64,
    apart_from: Annotated[
        list[Path] | None, typer.Option(help="Question file with which no gold page is shared; repeatable.")
    ] = None,
    hold_out: Annotated[
        list[Path] | None,
        typer.Option(help="Question file whose gold pages and entities are left out, of the corpus too; repeatable."),
    ] = None,
    choice: TaskChoice,
    loading: LoadOptions,
    json: Json = False,
) -> None:
    """Select questions that a model sometimes answers.

    Its attempts at them differ in reward.
    """
    from searchgym.agents.base import load_agent, with_max_tokens
    from searchgym.cli.evaluation.evaluate import named_models, open_models
    from searchgym.cli.pipeline.selection import ROUNDS, SELECTED, select, write_pool
    from searchgym.corpora.folders import check_free
    from searchgym.corpora.questions import read_questions
    from searchgym.eval.runner import recorded_date

    if model is None or not (out / ROUNDS[0]).is_dir():  # else it goes on with a measured selection
        check_free(out)
    apart = [question for file in apart_from or () for question in read_questions(file)]
    if model is None:
        report = write_pool(practice_task(env, choice, hold_out, out), out, how, apart)
    else:
        loaded = with_max_tokens(load_agent(agent), max_tokens)
        load = loading.how(concurrency, recorded_date(out))
        named = named_models([model], loaded, load)
        task = practice_task(env, choice, hold_out, out)
        try:
            with open_models(named, task, load) as models, stages() as progress:
                report = select(task, loaded, models, out, how, progress, concurrency, apart)
        except KeyboardInterrupt:
            say(f"interrupted: the same command goes on with what is in {out}")
            raise typer.Exit(130) from None
    if json:
        emit(report | {"out": str(out)}, True)
        return
    emit_rows([{"hops": hops} | row for hops, row in report["by_hops"].items()], False, "selection")
    left = ", ".join(f"{number} {reason}" for reason, number in report["left_out"].items())
    say(f"{report['questions']} questions in {out / SELECTED}" + (f"; left out: {left}" if left else ""))
    corpus = out / CORPUS if hold_out else choice.corpus
    if model is not None and corpus is not None:
        rules = {"top_k": report["top_k"], "max_turns": report["max_turns"]}
        rules["max_observation_words"] = report["max_observation_words"]
        env_options = {"questions": str(out / SELECTED), "corpus": str(corpus), "reward": "em", **rules}
        written = yaml.safe_dump(env_options, default_flow_style=True, width=10**6).strip()
        limit = [] if max_tokens is None else [f"rollout.max_tokens={max_tokens}"]
        say_next("train", "smol-grpo", f"env_options={written}", *limit, "validation.every=0")
