"""Summary of a demonstration: scores before and after, by number of hops, and one question as an example."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.eval.scores import bootstrap_ci
from searchgym.records import Episode, Question, title_key
from searchgym.rollout.storage import read_episodes

SCRIPTED: Final = ("closed-book", "single-search", "evidence-oracle")
"""Agents without a model that answer the same questions: two lower bounds and the upper bound of the retriever."""
COMPARISONS: Final = "comparisons"
OTHERS: Final = "others"
"""Suffixes of groups of questions: those that compare two things, which can be guessed, and all others."""


def em_by_question(out: Path) -> dict[str, float]:
    """Returns the EM of an evaluation's episodes, by question id."""
    return {episode.question_id: episode.scores["em"] for episode in read_episodes(out / "episodes.jsonl")}


def summarise(
    questions: Sequence[Question], out: Path, scores: Mapping[str, Any], reading: Mapping[str, float]
) -> dict[str, Any]:
    """Returns the evaluations side by side, with the 95 % interval of the paired gain in EM, and an example.

    Args:
        questions: Held-out questions.
        out: Folder of the demonstration.
        scores: Scores of each evaluation, by its name.
        reading: EM of the untrained model with the gold pages in its context, by question id.
    """
    em = {name: em_by_question(out / name) for name in (*SCRIPTED, "before", "after")}
    before, after = em["before"], em["after"]
    summary: dict[str, Any] = {"n": len(before)}
    for name in ("before", "after"):
        result = scores[name]
        summary |= {f"em_{name}": result["em"], f"f1_{name}": result["f1"]}
        summary |= {f"title_recall_{name}": result["title_recall"][-1]}
        summary |= {f"searches_{name}": result["searches"], f"answered_{name}": result["answered"]}
    summary["gain"] = summary["em_after"] - summary["em_before"]
    summary["gain_ci95"] = bootstrap_ci([after[key] - before[key] for key in sorted(before)])
    summary["em"] = em_by_group(questions, em | {"gold pages": reading})
    episodes = [read_episodes(out / name / "episodes.jsonl", tokens=False) for name in ("before", "after")]
    summary["example"] = example_of(questions, *episodes)
    return summary


def example_of(
    questions: Iterable[Question], before: Iterable[Episode], after: Iterable[Episode]
) -> dict[str, Any] | None:
    """Returns the first question, in the order of ids, that was wrong before training and right after it.

    Args:
        questions: Held-out questions.
        before: Episodes before training, one for each question.
        after: Episodes after training.

    Returns:
        ``id``, ``question``, ``golds``, ``turned_right`` and ``turned_wrong`` (numbers of such questions), and
        ``before`` and ``after``: ``searches`` (``query``, and ``hits`` as pairs of title and whether the page is gold),
        ``answer`` and ``right``. None if no question turned right.
    """
    first, second = ({episode.question_id: episode for episode in episodes} for episodes in (before, after))
    right = {id: (first[id].scores["em"] == 1, second[id].scores["em"] == 1) for id in first.keys() & second.keys()}
    turned = sorted(id for id, pair in right.items() if pair == (False, True))
    if not turned:
        return None
    question = next(question for question in questions if question.id == turned[0])
    gold = {title_key(title) for title in question.gold_titles or ()}

    def outcome(episode: Episode) -> dict[str, Any]:
        searches = [
            {
                "query": search.query,
                "hits": [(hit.passage.title, title_key(hit.passage.title) in gold) for hit in search.hits],
            }
            for search in episode.searches
        ]
        answer = None if episode.answer is None else episode.answer.text
        return {"searches": searches, "answer": answer, "right": episode.scores["em"] == 1}

    return {
        "id": question.id,
        "question": question.text,
        "golds": list(question.golds),
        "turned_right": len(turned),
        "turned_wrong": sum(pair == (True, False) for pair in right.values()),
        "before": outcome(first[question.id]),
        "after": outcome(second[question.id]),
    }


def em_by_group(
    questions: Iterable[Question], em: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float | None]]:
    """Returns the mean EM of each evaluation by group of questions, with the number of ``questions``.

    The groups are numbers of hops and, where only some questions of a number compare, ``"4 comparisons"`` and
    ``"4 others"``; the last group is ``"all"``.

    Args:
        questions: Questions of a generated world.
        em: EM by question id, by name of the evaluation; one may leave questions out.
    """
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for question in questions:
        hops, compares = str(question.metadata["hops"]), (question.kind or "").endswith("comparison")
        for name in (hops, f"{hops} {COMPARISONS if compares else OTHERS}", "all"):
            groups[name].append(question.id)
    mixed = {name.split()[0] for name in groups if name.endswith(COMPARISONS)}
    mixed &= {name.split()[0] for name in groups if name.endswith(OTHERS)}
    means: dict[str, dict[str, float | None]] = {}
    for group in sorted(name for name in groups if " " not in name or name.split()[0] in mixed):
        means[group] = {"questions": len(groups[group])}
        for name, values in em.items():
            scores = [values[id] for id in groups[group] if id in values]
            means[group][name] = round(sum(scores) / len(scores), 6) if scores else None
    return means
