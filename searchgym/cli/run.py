"""Commands that run environments: list, play, eval."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from searchgym.cards import AgentCard, CorpusCard, EncoderCard, load_card
from searchgym.cards import list_cards as cards_of
from searchgym.cli.output import Json, emit, emit_rows, progress, say, show, table
from searchgym.errors import SearchGymError, UnknownNameError, UsageError
from searchgym.records import Question

EnvName = Annotated[str, typer.Argument(metavar="ID", help="Environment id, short name (HotpotQA) or YAML card.")]
Questions = Annotated[str | None, typer.Option(help="Question file or hf:OWNER/NAME:CONFIG/SPLIT.")]
Corpus = Annotated[str | None, typer.Option(help="Corpus file, index folder or corpus card.")]
Server = Annotated[str | None, typer.Option("--retriever", help="Retriever card, or the URL of a server.")]
Wait = Annotated[float, typer.Option(min=0.0, help="Seconds to wait until the retrieval server is ready.")]
Distractors = Annotated[bool, typer.Option("--distractors", help="Search only each question's own paragraphs.")]
Aliases = Annotated[Path | None, typer.Option(help="2WikiMultihopQA's id_aliases.json.")]
Reward = Annotated[str | None, typer.Option(help="em, f1 or module:function.")]
Protocol = Annotated[str | None, typer.Option(help="tags or tool_calls.")]
TopK = Annotated[int | None, typer.Option(help="Passages per query.")]
MaxTurns = Annotated[int | None, typer.Option(help="Actions per episode, the answer included.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random in the run.")]


def task_options(**given: Any) -> dict[str, Any]:
    """Returns the options that were given, ready for `load_task`."""
    return {name: value for name, value in given.items() if value is not None and value is not False}


def load(name: str, options: dict[str, Any], wait: float = 0.0) -> Any:
    """Returns the task of an environment id with a user's options over the id's own.

    Args:
        name: The id.
        options: `TaskOptions`.
        wait: Seconds to wait for a retrieval server.
    """
    from searchgym.corpora.retrieval.remote.client import HttpRetriever
    from searchgym.envs.registration import env_options, find_env
    from searchgym.envs.task import load_task

    task = load_task(find_env(name), **{**env_options(name), **options})
    if wait:
        if not isinstance(task.retriever, HttpRetriever):
            raise UsageError("--wait is for a retrieval server: give its --retriever URL")
        task.retriever.wait(wait)
    return task


def list_cards(
    kind: Annotated[str, typer.Argument(help="envs, agents, corpora, retrievers or encoders.")] = "envs",
    json: Json = False,
) -> None:
    """List what there is: environments, agents, corpora, retrievers or encoders."""
    from searchgym.envs.registration import registered

    rows: list[dict[str, Any]]
    if kind == "envs":
        rows = [
            {
                "id": c.id,
                "data": f"{c.questions.dataset}, {c.questions.split}",
                "n": c.questions.size,
                "summary": c.summary,
            }
            for c in registered().values()
        ]
    elif kind == "agents":
        agents = [load_card(AgentCard, path) for path in cards_of("agents").values()]
        rows = [{"name": c.name, "summary": c.summary} for c in agents]
    elif kind == "corpora":
        corpora = [load_card(CorpusCard, path) for path in cards_of("corpora").values()]
        rows = [{"name": c.name, "passages": c.passages, "licence": c.licence, "summary": c.summary} for c in corpora]
    elif kind == "retrievers":
        from searchgym.corpora.retrieval.cards import find_retriever

        found = {name: find_retriever(name) for name in cards_of("retrievers")}
        rows = [{"name": n, "kind": c.kind, "summary": c.summary} for n, c in found.items()]
    elif kind == "encoders":
        encoders = [load_card(EncoderCard, path) for path in cards_of("encoders").values()]
        rows = [{"name": c.name, "dimension": c.dimension, "licence": c.licence, "model": c.model} for c in encoders]
    else:
        raise UnknownNameError("kind", kind, ("envs", "agents", "corpora", "retrievers", "encoders"))
    emit_rows(rows, json, kind)


def play(
    env: EnvName,
    questions: Questions = None,
    corpus: Corpus = None,
    retriever: Server = None,
    wait: Wait = 0.0,
    distractors: Distractors = False,
    question: Annotated[str | None, typer.Option(help="Question id; one is drawn otherwise.")] = None,
    top_k: TopK = None,
    max_turns: MaxTurns = None,
    seed: Annotated[int | None, typer.Option(help="Seed that draws the question.")] = None,
    json: Json = False,
) -> None:
    """Play an episode yourself in the terminal."""
    from searchgym.cli.play import play_episode
    from searchgym.envs.single import SearchEnv

    options = task_options(
        questions=questions,
        corpus=corpus,
        retriever=retriever,
        distractors=distractors,
        top_k=top_k,
        max_turns=max_turns,
    )
    outcome = play_episode(SearchEnv(load(env, options, wait)), question, seed)
    if outcome is None:
        say("left before the end")
        raise typer.Exit(130)
    emit(outcome, json, "outcome")


def evaluate(
    env: EnvName,
    agent: Annotated[str, typer.Option(help="Agent card (searchgym list agents), folder of one, or module:Class.")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="[ROLE=]MODEL behind roles: a folder, a run's checkpoint, a name, or URL#NAME."),
    ] = None,
    questions: Questions = None,
    corpus: Corpus = None,
    retriever: Server = None,
    wait: Wait = 0.0,
    distractors: Distractors = False,
    aliases: Aliases = None,
    reward: Reward = None,
    protocol: Protocol = None,
    top_k: TopK = None,
    max_turns: MaxTurns = None,
    skip_bad: Annotated[int, typer.Option(help="Bad rows of --questions to leave out and report at most.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N questions.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; a new one under runs/eval/ otherwise.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the models' sampling; 0 is greedy.")] = 0.0,
    seed: Seed = 0,
    concurrency: Annotated[int, typer.Option(help="Episodes under way at once; changes no score.")] = 64,
    sampler: Annotated[
        str, typer.Option(help="transformers, vllm, or auto: vllm where it is installed.")
    ] = "transformers",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16: what the models compute in.")] = "float32",
    max_context: Annotated[
        int | None, typer.Option(help="With vLLM: tokens of the longest request and response; the model's own limit.")
    ] = None,
    json: Json = False,
) -> None:
    """Evaluate an agent on an environment's questions."""
    from searchgym.agents.base import load_agent
    from searchgym.rollout.models import Loading, load_models, parse_models
    from searchgym.train.recipe.keys import in_checkpoints

    loaded = load_agent(agent)
    if model and not loaded.roles:
        raise UsageError(f"agent {loaded.name} has no roles that ask a model: leave out --model")
    if (resume or overwrite) and out is None:
        raise UsageError("--resume and --overwrite need --out: the folder of the run")
    options = task_options(
        questions=questions,
        corpus=corpus,
        retriever=retriever,
        distractors=distractors,
        aliases=aliases,
        reward=reward,
        protocol=protocol,
        top_k=top_k,
        max_turns=max_turns,
    )
    if skip_bad and questions is not None:
        options["questions"] = read_given_questions(questions, skip_bad, aliases)
    task = first_questions(load(env, options, wait), limit)
    folder = out or new_folder(task, loaded.name)
    if resume and not (folder / "run.json").exists():
        say(f"nothing to resume in {folder}: a new run")
    settings = {"temperature": temperature, "seed": seed, "concurrency": concurrency}
    with contextlib.ExitStack() as opened:
        with contextlib.redirect_stdout(sys.stderr):  # libraries that print when they are imported
            named = in_checkpoints(parse_models(model or [], loaded.roles), loaded)
            models = load_models(named, task.rules.protocol, Loading(sampler, dtype, concurrency, max_context))
        for own in {id(own): own for own in models.values()}.values():
            opened.callback(own.sampler.close)
        scores = run_evaluation(task, loaded, folder, models, resume=resume, overwrite=overwrite, **settings)
    if json:
        emit({"env": task.card.id, "agent": loaded.name, "out": str(folder)} | scores, True)
    else:
        print_scores(f"{task.card.id} · {loaded.name}", scores)


def read_given_questions(source: str, skip_bad: int, aliases: Path | None) -> list[Question]:
    """Reads questions, leaving out bad rows and reporting them."""
    from searchgym.cli.data import report
    from searchgym.corpora.files import BadLines
    from searchgym.corpora.hub import open_questions

    bad = BadLines(skip_bad)
    found = open_questions(source, bad, aliases)
    report(bad)
    return found


def first_questions(task: Any, limit: int | None) -> Any:
    """Returns the task with its first `limit` questions."""
    return task if limit is None else dataclasses.replace(task, questions=task.questions[:limit])


def new_folder(task: Any, agent: str) -> Path:
    """Returns a run folder that does not exist yet, named after what is run and when."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / "eval" / f"{task.card.id.split('/')[-1]}_{agent.replace(':', '.')}_{stamp}"
    folder, n = base, 1
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}_{n}")
    return folder


def run_evaluation(task: Any, agent: Any, out: Path, models: Any, **options: Any) -> dict[str, Any]:
    """Evaluates with a bar on standard error; whatever stops it, what was done is kept and the way on is said."""
    from searchgym.eval import runner

    say(f"run folder: {out}")
    try:
        with progress(f"{task.card.id} {agent.name}") as advance:
            scores = runner.evaluate(task, agent, out, models, progress=advance, **options)
    except KeyboardInterrupt:
        say(f"interrupted: finished episodes are kept in {out}; go on with the same command and --out {out} --resume")
        raise typer.Exit(130) from None
    except SearchGymError:
        raise
    except Exception:
        say(f"stopped by the error below: finished episodes are kept in {out}; --out {out} --resume goes on")
        raise
    if scores["retriever_errors"]:
        say(
            f"warning: {scores['retriever_errors']} episodes ended in a retriever error (score 0); --resume tries again"
        )
    return scores


def print_scores(title: str, scores: dict[str, Any]) -> None:
    """Prints scores with their intervals beside them."""
    rows = []
    for name, value in scores.items():
        interval = scores.get(f"{name}_ci95")
        if name == "title_recall" and value is not None:
            rows += [
                (f"title_recall by turn {turn}", show(mean), " – ".join(map(show, own)))
                for turn, (mean, own) in enumerate(zip(value, interval or [], strict=True), start=1)
            ]
        elif not name.endswith("_ci95"):
            rows.append((name, show(value), "" if interval is None else " – ".join(map(show, interval))))
    table(("metric", "value", "95 % interval"), rows, title)
