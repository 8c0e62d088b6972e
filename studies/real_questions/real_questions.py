"""What a small model gains on questions by practice and by searching: base and warm model, and the controls.

    python studies/real_questions/real_questions.py --warm smollm2-searcher [--limit 20] [--out runs/real] [--json]
    python studies/real_questions/real_questions.py --warm M --questions test.jsonl --corpus corpus.json \
        --rows "agent,gold pages"

Without --questions: those of HotpotQA's training set and 2WikiMultihopQA's dev set below SEARCHGYM_DATA. Each row is a
run of its own, greedy; with --out a stopped table is gone on with. The gain of the agent over the same agent with hits
of another question is what the pages are worth to it; it is paired by question, over all sets together.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from searchgym.agents import load_agent
from searchgym.cli.output import emit, emit_rows, say
from searchgym.envs import Task, load_task
from searchgym.envs.registration import own_card
from searchgym.eval import EvalOptions, evaluate
from searchgym.eval.ceilings import with_gold_pages, with_other_hits
from searchgym.eval.compare import difference
from searchgym.eval.run_folder import QuestionRows, read_finished
from searchgym.eval.suites import load_suite, load_suite_tasks
from searchgym.rollout import Model
from searchgym.rollout.models import Loading, load_models


class Row(NamedTuple):
    """A row of the table: who answers, with whose pages."""

    model: str
    """``base`` or ``warm``."""
    agent: str
    hits: Callable[[Task], Task] | None = None
    """Changes the pages that searches return; None: their own."""
    chat: bool = True
    """Whether prompts are chat messages; worked examples serve a small model better as plain text."""
    limit: int | None = None
    """Most questions of a set; None: all."""


MAX_TOKENS = 64
"""Most tokens of an output."""
AGENT, FLOOR, BOOK = "agent", "agent, hits of another question", "base, closed book, few-shot"
ROWS = {
    "base, closed book": Row("base", "direct"),
    BOOK: Row("base", "direct-few-shot", chat=False),
    "base, gold pages": Row("base", "reader", with_gold_pages),
    "base, gold pages, few-shot": Row("base", "reader-few-shot", with_gold_pages, chat=False),
    "base, agent": Row("base", "search-r1", limit=20),  # it makes hardly a legal action, and takes long over it
    "closed book": Row("warm", "direct"),
    "gold pages": Row("warm", "reader", with_gold_pages),
    "gold pages, few-shot": Row("warm", "reader-few-shot", with_gold_pages, chat=False),
    "oracle queries": Row("warm", "oracle-queries"),
    AGENT: Row("warm", "search-r1"),
    FLOOR: Row("warm", "search-r1", with_other_hits),
}


def tasks_of(given: argparse.Namespace) -> dict[str, Task]:
    """Returns the question sets by name, under the limits that the warm model was trained with."""
    rules: dict[str, Any] = {"top_k": 3, "max_turns": 6, "max_observation_words": given.max_observation_words}
    if given.questions is not None:
        tasks = {"own": load_task(own_card("own/questions"), questions=given.questions, corpus=given.corpus, **rules)}
    else:
        if not os.environ.get("SEARCHGYM_DATA"):
            raise SystemExit("set SEARCHGYM_DATA to a folder with hotpotqa/ and 2wikimultihopqa/, or give --questions")
        tasks = load_suite_tasks(load_suite("wiki-real"), rules)  # type: ignore[arg-type]  # names of its options
    return {name: task.subset(given.limit) for name, task in tasks.items()}


def folder_of(name: str, out: Path) -> Path:
    """Returns the folder of a row's runs."""
    return out / name.replace(", ", "_").replace(" ", "-")


def run_row(name: str, row: Row, tasks: Mapping[str, Task], model: Model, out: Path) -> Iterator[dict[str, Any]]:
    """Yields the cells of a row, one dictionary for each question set."""
    agent = load_agent(row.agent)
    roles = {r: dataclasses.replace(own, max_tokens=min(own.max_tokens, MAX_TOKENS)) for r, own in agent.roles.items()}
    agent = dataclasses.replace(agent, roles=roles, source=f"{agent.source}, at most {MAX_TOKENS} tokens")
    for set_name, whole in tasks.items():
        task = whole.subset(row.limit)
        folder = folder_of(name, out) / set_name
        options = EvalOptions(resume=(folder / "run.json").exists())
        started = time.perf_counter()
        scores: dict[str, Any] = {
            **evaluate(row.hits(task) if row.hits else task, agent, folder, dict.fromkeys(agent.roles, model), options)
        }
        recall = scores["title_recall"]
        yield {
            "row": name,
            "set": set_name,
            "n": scores["n"],
            "em": round(scores["em"], 3),
            "em_low": round(scores["em_ci95"][0], 3),
            "em_high": round(scores["em_ci95"][1], 3),
            "f1": round(scores["f1"], 3),
            "gold_titles": None if recall is None else round(recall[-1], 3),
            "searches": round(scores["searches"], 2),
            "legal": None if scores["legal"] is None else round(scores["legal"], 3),
            "by_hops": {hops: round(own["em"], 3) for hops, own in scores["splits"]["hops"].items()},
            "seconds": round(time.perf_counter() - started, 1),
        }


def gain(first: str, second: str, sets: Sequence[str], out: Path) -> dict[str, Any]:
    """Returns the paired difference of two rows in EM over all questions."""

    def rows_of(name: str) -> QuestionRows:
        folder = folder_of(name, out)
        return {f"{own}/{id}": row for own in sets for id, row in read_finished(folder / own).rows.items()}

    found = difference(rows_of(first), rows_of(second))
    return {
        "row": f"{first} less {second}",
        "set": "all",
        "n": found.wins + found.losses + found.ties,
        "em": round(found.mean, 3),
        "em_low": round(found.low, 3),
        "em_high": round(found.high, 3),
        "wins": found.wins,
        "losses": found.losses,
    }


def run_rows(
    rows: Mapping[str, Row], tasks: Mapping[str, Task], given: argparse.Namespace, opened: contextlib.ExitStack
) -> list[dict[str, Any]]:
    """Runs the rows one after the other; models are loaded when they are first needed."""
    found, models = list[dict[str, Any]](), dict[tuple[str, bool], Model]()
    for number, (name, row) in enumerate(rows.items(), start=1):
        say(f"{number} of {len(rows)}: {name} ...")
        key = row.model, row.chat
        if key not in models:
            how = Loading(given.sampler, given.dtype, chat=row.chat)
            rules = next(iter(tasks.values())).rules
            models[key] = load_models({"model": getattr(given, row.model)}, rules.protocol, how)["model"]
            opened.callback(models[key].sampler.close)
        for cells in run_row(name, row, tasks, models[key], given.out):
            found.append(cells)
            say(f"  {cells['set']}: EM {cells['em']:.3f} in {cells['seconds']:.0f} s")
    return found


def asked(row: str, wanted: str) -> bool:
    """Returns whether --rows asks for a row: by its name, or by the first words of no row's whole name."""
    return row == wanted if wanted in ROWS else row.startswith(wanted)


def main() -> None:
    """Runs the rows and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="smollm2")
    parser.add_argument("--warm", default="smollm2-searcher")
    parser.add_argument("--questions", help="your own question file, with --corpus")
    parser.add_argument("--corpus")
    parser.add_argument("--rows", help="rows to run, by name or first words, such as agent,oracle,base; default: all")
    parser.add_argument("--limit", type=int, help="questions of each set; default: all")
    parser.add_argument("--max-observation-words", type=int, default=250)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sampler", default="transformers")
    parser.add_argument("--out", type=Path, help="folder of the runs, which a later call goes on with; default: none")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wanted = given.rows.split(",") if given.rows else [""]
    rows = {name: row for name, row in ROWS.items() if any(asked(name, own) for own in wanted)}
    tasks = tasks_of(given)
    pairs = [(a, b) for a, b in ((AGENT, FLOOR), (AGENT, BOOK)) if {a, b} <= rows.keys()]
    with contextlib.ExitStack() as opened:
        if given.out is None:
            given.out = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        found = run_rows(rows, tasks, given, opened)
        gains = [gain(a, b, list(tasks), given.out) for a, b in pairs]
    if given.json:
        emit({"results": found + gains}, True)
    else:
        emit_rows([{k: v for k, v in row.items() if k != "by_hops"} for row in found], False, "results")
        emit_rows(gains, False, "gains, paired by question")


if __name__ == "__main__":
    main()
