"""Research on long documents: floors and ceilings, recovery from each kind of fault, and small real models.

    python studies/deep_research/deep_research.py [documents | tokens | agents | faults | models] [--json]

``documents``: size, variety and retrieval of the generated documents. ``tokens``: estimated tokens against those of
--model on --corpus. ``agents``: scripted agents on the documents. ``faults``: agents under each kind of fault, paired
with the same questions without faults. ``models``: models (--model) as agents (--agents), with and without faults. What
a model has answered is not asked again: runs are in --out. README.md has the protocol.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.cli.output import emit, emit_rows, say
from searchgym.corpora.documents import open_corpus
from searchgym.corpora.files import iter_jsonl, read_json
from searchgym.corpora.folders import EPISODES
from searchgym.envs import Task, find_env, load_task
from searchgym.envs.faults.fault import Fault
from searchgym.eval import EvalOptions, evaluate
from searchgym.eval.run_folder import QUESTIONS, SCORES
from searchgym.eval.scores import bootstrap_ci
from searchgym.options import kinds
from searchgym.retrieval.retriever import corpus_of
from searchgym.rollout.models import Loading, opened_models
from searchgym.rollout.storage import read_episodes
from searchgym.text import count_words, estimate_tokens, sentences

ENV: Final = "searchgym/DeepResearch-v0"
RATE: Final = 0.4
"""Probability that a search is spoilt."""
AGENTS: Final = ("oracle", "evidence-oracle", "research-oracle", "research-snippets", "single-search", "closed-book")
SCORE_NAMES: Final = (
    "em", "em_ci95", "gold_found", "citation_precision", "citation_recall", "turns", "invalid_actions",
    "observation_words",
)  # fmt: skip
RESEARCHERS: Final = ("research-oracle", "research-once", "research-snippets")


def task_with(faults: Sequence[Mapping[str, Any]], **options: Any) -> Task:
    """Returns the environment's test questions, or those of a file over its corpus, with faults."""
    card = find_env("searchgym/Corpus-v0" if "corpus" in options else ENV)
    chosen: Any = {"questions": {"split": "test"}, "faults": list(faults)} | options
    return load_task(card, **chosen)


def run(task: Task, agent: str, out: Path, model: str | None = None, given: argparse.Namespace | None = None) -> None:
    """Evaluates an agent into a folder, unless it has been."""
    loaded = load_agent(agent)
    options = EvalOptions(resume=(out / "run.json").exists())
    if model is None or given is None:
        evaluate(task, loaded, out, options=options)
        return
    loaded = with_max_tokens(loaded, given.max_tokens)
    loading = Loading("transformers", "bfloat16", max_context=given.max_context)
    with opened_models({"model": model}, task.rules.protocol, loading) as models:
        evaluate(task, loaded, out, dict.fromkeys(loaded.roles, models["model"]), options)


def rows_of(out: Path) -> dict[str, float]:
    """Returns the EM of each question of a run."""
    return {row["id"]: row["em"] for _, row in iter_jsonl(out / QUESTIONS)}


def spoilt_of(out: Path) -> set[str]:
    """Returns the questions of a run in which a search was spoilt."""
    return {e.question_id for e in read_episodes(out / EPISODES, tokens=False) if any(s.fault for s in e.searches)}


def scores_of(out: Path) -> dict[str, Any]:
    """Returns the scores of a run that a table shows."""
    scores = read_json(out / SCORES)
    return {name: scores.get(name) for name in SCORE_NAMES}


def compared(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Returns EM without and with faults on the same questions, and their difference with its interval over questions.

    Args:
        pairs: For each question, EM without and with faults, for each seed in which a search of it was spoilt.
    """
    if not pairs:
        return {"questions": 0}
    means = np.array([np.mean(values, axis=0) for _, values in sorted(pairs.items())])
    low, high = bootstrap_ci(means[:, 1] - means[:, 0])
    clean, faulty = means.mean(axis=0)
    row = {"clean": clean, "faulty": faulty, "difference": faulty - clean, "low": low, "high": high}
    return {"questions": len(means), "runs": sum(map(len, pairs.values()))} | {
        key: round(float(value), 3) for key, value in row.items()
    }


def under_faults(agent: str, seeds: Sequence[int], folder: Path, model: str | None, given: Any) -> list[dict[str, Any]]:
    """Returns a row for each kind of fault."""
    run(task_with([], **given.rules).subset(given.limit), agent, folder / "clean", model, given)
    before = rows_of(folder / "clean")
    rows: list[dict[str, Any]] = [
        {"agent": agent, "fault": "none", "questions": len(before)} | scores_of(folder / "clean")
    ]
    for kind in given.kinds:
        pairs: dict[str, list[tuple[float, float]]] = {}
        for seed in seeds:
            say(f"{agent}, {kind}, seed {seed} ...")
            out = folder / f"{kind}-{seed}"
            faults = [{"kind": kind, "rate": RATE, "seed": seed}]
            run(task_with(faults, **given.rules).subset(given.limit), agent, out, model, given)
            after = rows_of(out)
            for id in spoilt_of(out):
                pairs.setdefault(id, []).append((before[id], after[id]))
        rows.append({"agent": agent, "fault": kind} | compared(pairs))
    return rows


def of_documents() -> list[dict[str, Any]]:
    """Returns size, variety and retrieval of the generated documents by split."""
    rows = []
    for split in ("train", "validation", "test"):
        task = task_with([], questions={"split": split})
        corpus = corpus_of(task.retriever)
        assert corpus is not None, "the documents are on this machine"
        texts: dict[str, str] = {}
        for passage in corpus.passages():
            texts[passage.title] = f"{texts.get(passage.title, '')} {passage.text}"
        counts = [count_words(text) for text in texts.values()]
        parts = [text[slice(*span)].strip() for text in texts.values() for span in sentences(text)]
        recalls = []
        for question, hits in zip(task.questions, corpus.search([q.text for q in task.questions], 5), strict=True):
            titles = {hit.passage.title for hit in hits}
            recalls.append(sum(title in titles for title in question.gold_titles or ()) / 3)
        rows.append(
            {
                "split": split,
                "documents": len(texts),
                "words": f"{min(counts):,} to {max(counts):,}",
                "passages": len(corpus),
                "different sentences": round(len(set(parts)) / len(parts), 3),
                "recall@5": round(float(np.mean(recalls)), 3),
                "all three": sum(recall == 1 for recall in recalls) / len(recalls),
            }
        )
    return rows


def of_tokens(model: str, corpus: str, passages: int = 1500) -> list[dict[str, Any]]:
    """Returns how many tokens `estimate_tokens` counts in a corpus's first passages, for each token of a model."""
    from searchgym.rollout.loading import load_tokenizer

    tokenizer, counts = load_tokenizer(model), np.zeros(2)
    for passage in itertools.islice(open_corpus(corpus), passages):
        counts += estimate_tokens(passage.text), len(tokenizer.encode(passage.text))
    return [{"model": model, "estimated": int(counts[0]), "tokens": int(counts[1]), "ratio": counts[0] / counts[1]}]


def of_agents(agents: Sequence[str], folder: Path, limit: int | None) -> list[dict[str, Any]]:
    """Returns the scores of scripted agents."""
    rows = []
    for agent in agents:
        task = task_with([]).subset(limit)
        evaluate(task, load_agent(agent), folder / agent)
        rows.append({"agent": agent} | scores_of(folder / agent))
    return rows


def main() -> None:
    """Prints the rows of a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="?", choices=("documents", "tokens", "agents", "faults", "models"), default="agents"
    )
    parser.add_argument("--agents", nargs="+", help="default: the scripted agents; of models, search-r1")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--kinds", nargs="*", default=sorted(kinds(Fault)), help="kinds of faults; default: all")
    parser.add_argument("--model", help="model of `models`")
    parser.add_argument("--limit", type=int, help="questions; default: all")
    parser.add_argument("--max-turns", type=int, help="turns of `models`; default: the environment's")
    parser.add_argument("--questions", help="question file of `models`, over --corpus, instead of long documents")
    parser.add_argument("--corpus")
    parser.add_argument("--max-words", type=int, help="words of an observation of `models`; default: the environment's")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of a response of `models`")
    parser.add_argument("--max-context", type=int, default=8192)
    parser.add_argument("--out", type=Path, help="folder of the runs of `models`; default: a temporary one")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rules = {
        "max_turns": given.max_turns,
        "max_observation_words": given.max_words,
        "questions": given.questions,
        "corpus": given.corpus,
    }
    given.rules = {name: value for name, value in rules.items() if value is not None}
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.out or Path(scratch)
        if given.what == "documents":
            rows = of_documents()
        elif given.what == "tokens":
            rows = of_tokens(given.model, given.corpus)
        elif given.what == "agents":
            rows = of_agents(given.agents or AGENTS, folder, given.limit)
        else:
            default = RESEARCHERS if given.what == "faults" else ("search-r1",)
            rows = []
            for agent in given.agents or default:
                rows += under_faults(agent, given.seeds, folder / agent, given.model, given)
    if given.json:
        emit({"results": rows}, True)
    else:
        emit_rows(rows, False, "results")


if __name__ == "__main__":
    main()
