"""The ``demonstrate`` command: writes demonstrations for supervised training from any question set."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from searchgym.cli.options import AgentName, Seed, TaskChoice, Template, takes_records
from searchgym.cli.output import Json, emit, say, say_next
from searchgym.cli.run import OwnEnv, chosen_task

WARM: Final = {"tiny": "tiny-warm", "qwen": "qwen-warm"}
"""Recipe that learns from demonstrations, by the beginning of the model's name; ``smol-search`` for others."""


@takes_records
def demonstrate(
    *,
    env: OwnEnv = None,
    model: Annotated[str, typer.Option(help="Model that will learn from them: its tokenizer writes the tokens.")],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    n: Annotated[int, typer.Option("--n", min=1, help="Number of demonstrations.")] = 400,
    agent: AgentName = "search-r1",
    attempts: Annotated[
        Path | None, typer.Option(help="With search-r2: episodes.jsonl of a run of search-r1 on these questions.")
    ] = None,
    reading: Annotated[
        bool, typer.Option("--reading", help="Practice in reading alone: pages, questions and short answers.")
    ] = False,
    early: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of questions of several hops answered after one search.")
    ] = 0.0,
    behaviour: Annotated[
        list[str] | None,
        typer.Option(help="Behaviour to show: verification, authority, adaptation or recovery; repeatable."),
    ] = None,
    seed: Seed = 0,
    hold_out: Annotated[
        list[Path] | None,
        typer.Option(help="Question file whose gold pages and entities are in no demonstration; repeatable."),
    ] = None,
    max_context: Annotated[int, typer.Option(min=64, help="Longest context that is kept, in tokens.")] = 2048,
    template: Template = None,
    choice: TaskChoice,
    json: Json = False,
) -> None:
    """Write demonstrations for supervised training.

    They are made from questions that name their gold pages: searches and an answer, reading practice, or with
    --attempts the first flawed turns of a model's own attempts.
    """
    from searchgym.corpora.folders import check_free
    from searchgym.errors import UsageError
    from searchgym.eval.runner import questions_sha256
    from searchgym.train.demonstrations.held_out import without_held_out

    check_free(out)
    if reading and early:
        raise UsageError("--early is about searches: leave it out with --reading")
    if reading and behaviour:
        raise UsageError("--behaviour is about searches: leave it out with --reading")
    if (attempts is not None) != (agent == "search-r2"):
        raise UsageError("--attempts and --agent search-r2 go together: its refiner is shown where attempts went wrong")
    if attempts is not None and (reading or early or behaviour):
        raise UsageError("--reading, --early and --behaviour write episodes: leave them out with --attempts")
    task = chosen_task(env, choice)
    task, held_out = without_held_out(task, hold_out or ())
    with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
        from searchgym.rollout.foreign.template_options import check_template, fitted, parse_template, template_format
        from searchgym.rollout.loading import load_tokenizer
        from searchgym.rollout.storage import read_episodes
        from searchgym.train.demonstrations.oracle import demonstrate_search
        from searchgym.train.demonstrations.reading import demonstrate_reading
        from searchgym.train.demonstrations.refiner import demonstrate_refiner
        from searchgym.train.demonstrations.write import write_demonstrations

        tokenizer = load_tokenizer(model)
        arguments = parse_template(template or ())
        check_template([tokenizer], arguments)
        form = template_format(tokenizer, task.rules.protocol, arguments)
        if attempts is not None:
            demonstrations = demonstrate_refiner(task, form, read_episodes(attempts), n, seed, max_context)
        elif reading:
            demonstrations = demonstrate_reading(task, form, n, seed, max_context)
        else:
            behaviours = tuple(behaviour or ())
            demonstrations = demonstrate_search(
                task, form, n, agent=agent, early=early, behaviours=behaviours, seed=seed, max_tokens=max_context
            )
    record = {
        "kind": "reading" if reading else agent,
        "model": model,
        "template": fitted(tokenizer, arguments),
        "questions_sha256": questions_sha256(task.questions),
        "corpus_sha256": getattr(task.retriever, "corpus_sha256", None),
        "held_out_pages": held_out,
        "early": early,
        "behaviours": behaviour or [],
        "seed": seed,
        "top_k": task.rules.top_k,
        "max_observation_words": task.rules.max_observation_words,
    }
    card = write_demonstrations(demonstrations, out, record)
    if len(demonstrations.episodes) < n:
        say(f"{len(demonstrations.episodes)} of {n} demonstrations: the questions give no more (see outcomes)")
    summary = {name: card[name] for name in ("kind", "episodes", "tokens", "tokens_learnt", "longest", "outcomes")}
    emit(summary | {"out": str(out)}, json, "demonstrations")
    if not json:
        family = next((name for name in WARM if model.startswith(name)), "")
        recipe, values = "smol-read" if reading else WARM.get(family, "smol-search"), [f"model={model}"]
        values += [f"agent={agent}"] if agent != "search-r1" else []
        say_next("train", recipe, f"method.demonstrations={out / 'episodes.jsonl'}", *values)
