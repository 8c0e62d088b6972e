"""Scores of a run: means over its questions, with bootstrap intervals, and figures that explain them.

With several attempts at each question, every number is first averaged over the attempts (Avg@k); intervals are always
over questions. ``docs/reference/scores.md`` describes each metric.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, cast

import numpy as np
import numpy.typing as npt

from searchgym import scoring
from searchgym.envs.reward import wordless_gold
from searchgym.envs.task import Task
from searchgym.errors import ScoringError
from searchgym.eval import evidence
from searchgym.eval.efficiency import BY, areas_of, curves_of, row_of
from searchgym.protocol import markers_in_pages
from searchgym.records import Call, Episode, hops_of, simulated_share
from searchgym.rollout.chat import thought_counts
from searchgym.scoring import Scores as Row
from searchgym.scoring.citations import gold_spans_of, score_citations
from searchgym.scoring.confidence import abstains, candidate_scores, check_confidence, expected_calibration_error
from searchgym.scoring.efficiency import LIMITS, Pages, spent_for
from searchgym.scoring.selection import Sampled, selected

OFFICIAL: Final = ("em", "f1")
"""Official scores that have a value for every question and an interval."""
BLOCK: Final = 1 << 22
"""Maximum number of values that are resampled at once, to limit memory."""


class Scores(TypedDict, total=False):
    """Scores by metric name: these keys, metrics of the official scorer, means over episodes, and intervals."""

    n: int
    answerable: int
    em: float | None
    f1: float | None
    judged: float
    retriever_errors: int
    unreachable_golds: dict[str, Any]
    on_answerable: dict[str, Any]
    ceilings: dict[str, Any]
    contamination: dict[str, Any]


@dataclass(frozen=True)
class Scored:
    """Episodes of a task with their official scores, before averaging."""

    task: Task
    samples: int
    """Number of attempts at each question."""
    episodes: Sequence[Episode]
    """Episodes, sorted by question id, then by attempt."""
    rows: Mapping[tuple[str, int], Row]
    """Official scores by (question id, attempt)."""
    golds: evidence.Golds
    """Gold pages by question id."""
    gold_turns: Mapping[tuple[str, int], Sequence[int | None]]
    """Turns in which the gold pages were found, by (question id, attempt), for questions that name gold pages."""

    @functools.cached_property
    def spent(self) -> dict[tuple[str, int], Pages]:
        """What was spent for each gold page, by (question id, attempt), for questions that name gold pages."""
        keyed = ((episode, (episode.question_id, episode.attempt)) for episode in self.episodes)
        return {key: spent_for(e, self.gold_turns[key]) for e, key in keyed if self.golds.get(e.question_id)}

    def means(self, values: Sequence[float]) -> list[float]:
        """Averages values of episodes over the attempts at each question; returns them in the order of question ids."""
        return [float(mean) for mean in np.asarray(values, np.float64).reshape(-1, self.samples).mean(axis=1)]

    def official(self, name: str) -> list[float] | None:
        """Returns an official score of each question, averaged over attempts; None if no question has it."""
        rows = [self.rows[e.question_id, e.attempt] for e in self.episodes]
        values = [row[name] or 0.0 for row in rows if name in row]  # MuSiQue's unanswerable questions have none
        return self.means(values) if values else None


def score_episodes(task: Task, episodes: Sequence[Episode], samples: int = 1) -> Scores:
    """Scores the episodes of a task, with one or more attempts at each of its questions.

    Args:
        task: Environment and questions.
        episodes: One episode per question and attempt, in any order.
        samples: Number of attempts at each question.

    Returns:
        ``n``, the official scorer's metrics (``em``, ``f1``, ...; None if the agent produced nothing to score), means
        over episodes such as ``searches``, and figures that explain the scores, such as ``splits``. ``NAME_ci95`` is
        the 95 % bootstrap interval of a mean.

    Raises:
        ScoringError: Missing, duplicate or unknown question ids, or attempts other than 0 to `samples` - 1.
    """
    return summarise(score_each(task, episodes, samples))


def score_each(task: Task, episodes: Sequence[Episode], samples: int = 1) -> Scored:
    """Scores each episode of a task, with the arguments and errors of `score_episodes`."""
    if strange := next((e for e in episodes if not 0 <= e.attempt < samples), None):
        raise ScoringError(f"question {strange.question_id!r}: attempt {strange.attempt} of {samples} (from 0)")
    for attempt in range(samples):
        scoring.check_ids([e.question_id for e in episodes if e.attempt == attempt], task.questions)
    ordered = sorted(episodes, key=lambda episode: (episode.question_id, episode.attempt))
    golds = evidence.find_golds(task.questions, ordered)
    rows: dict[tuple[str, int], Row] = {}
    gold_turns: dict[tuple[str, int], list[int | None]] = {}
    for e in ordered:
        question, key = task.by_id[e.question_id], (e.question_id, e.attempt)
        rows[key] = scoring.score_question(question, e.answer, task.card.scorer, task.aliases)
        if e.question_id in golds:
            gold_turns[key] = evidence.turns_of_golds(e, golds[e.question_id])
    return Scored(task, samples, ordered, rows, golds, gold_turns)


def summarise(scored: Scored) -> Scores:
    """Averages the scores of episodes to the result of `score_episodes`.

    Raises:
        ScoringError: A mean is not finite, as for rewards of 1e308 in a foreign file: JSON cannot represent it.
    """
    task, ordered = scored.task, scored.episodes
    scores: dict[str, Any] = {"n": len(task.questions), **_official(scored)}
    if twins := sum(question.answerable is False for question in task.questions):
        scores["answerable"] = scores["n"] - twins
    if wordless := sum(wordless_gold(question) is not None for question in task.questions):
        scores["golds_without_words"] = wordless
    for name in OFFICIAL:
        if (values := scored.official(name)) is not None:
            scores[f"{name}_ci95"] = bootstrap_ci(values)
    for name, by_question in _columns(scored).items():
        scores[name] = None
        if by_question is not None:
            with np.errstate(over="ignore"):
                scores[name] = mean = float(np.mean(by_question))
            if not math.isfinite(mean):
                reason = f"the mean over {len(by_question)} questions is {mean}: a value is too large"
                raise ScoringError(f"{name}: {reason}")
            scores[f"{name}_ci95"] = bootstrap_ci(by_question)
    scores |= evidence.trial_scores(ordered, task.by_id)
    scores["retriever_errors"] = sum(e.stop_reason == "retriever_error" for e in ordered)
    scores["full_contexts"] = sum(e.stop_reason == "context" for e in ordered)
    by_title = {
        id: tuple(map(evidence.Gold, dict.fromkeys(g.title for g in golds))) for id, golds in scored.golds.items()
    }
    by_passage = scored.golds if any(g.text is not None for golds in scored.golds.values() for g in golds) else {}
    for name, golds in (("title_recall", by_title), ("passage_recall", by_passage)):
        curves = evidence.recall_by_turn(ordered, golds, task.rules.max_turns)
        scores[name] = None
        if curves is not None:
            curves = curves.reshape(-1, scored.samples, curves.shape[1]).mean(axis=1)
            scores[name] = [float(value) for value in curves.mean(axis=0)]
            scores[f"{name}_ci95"] = [bootstrap_ci(column) for column in curves.T]
    right = [key for key, row in scored.rows.items() if row.get("em") and key in scored.gold_turns]
    unfounded = sum(evidence.evidence_of(scored.gold_turns[key]) == "none" for key in right)
    scores["right_without_evidence"] = unfounded / len(right) if right else None
    if spent_curves := curves_of(list(scored.spent.values())):
        scores["evidence_curve"] = spent_curves
    scores |= confidence_scores(ordered, {key: bool(row["em"]) for key, row in scored.rows.items() if "em" in row})
    scores |= _stated(scored)
    return cast("Scores", scores | _explained(scored))


def _stated(scored: Scored) -> dict[str, Any]:
    """Returns ``candidates``, the scores of answers that state several candidates with confidences, if some do."""
    questions = [scored.task.by_id[e.question_id] for e in scored.episodes]
    pairs = [(e, q) for e, q in zip(scored.episodes, questions, strict=True) if q.answerable is not False]
    answers = ["" if e.answer is None else e.answer.text for e, _ in pairs]
    candidates = candidate_scores(answers, [scoring.golds_with_words(question.golds) for _, question in pairs])
    return {} if candidates is None else {"candidates": candidates}


def confidence_scores(episodes: Sequence[Episode], right: Mapping[tuple[str, int], bool]) -> dict[str, float]:
    """Returns ``confident`` and ``expected_calibration_error``; nothing where no answer states a confidence.

    Args:
        episodes: Episodes of a run; those without an answer state no confidence.
        right: Whether the answer is right, by (question id, attempt). Answers that it lacks are left out; an abstention
            is not right.

    Raises:
        ScoringError: A confidence is no number in [0, 1].
    """
    answers = [(e, e.answer) for e in episodes if e.answer is not None and (e.question_id, e.attempt) in right]
    for episode, answer in answers:
        check_confidence(answer.confidence, f"episode {episode.id!r:.60}")
    stated = [
        (answer.confidence, right[e.question_id, e.attempt] and not abstains(answer.text))
        for e, answer in answers
        if answer.confidence is not None
    ]
    if not stated:
        return {}
    error = expected_calibration_error(*zip(*stated, strict=True))
    return {"confident": len(stated) / len(answers), "expected_calibration_error": error}


def bootstrap_ci(values: npt.ArrayLike, seed: int = 0, resamples: int = 1000) -> list[float]:
    """Returns the 95 % percentile bootstrap interval [low, high] of a mean (Efron and Tibshirani 1993, chapter 13).

    Args:
        values: (n,) values of questions in a fixed order (sorted by id), so that the interval is deterministic.
        seed: Seed of the resampling.
        resamples: Number of resamples.
    """
    low, high = np.quantile(resampled_means(values, seed, resamples), (0.025, 0.975))
    return [float(low), float(high)]


def resampled_means(values: npt.ArrayLike, seed: int = 0, resamples: int = 1000) -> npt.NDArray[np.float64]:
    """Returns (resamples,) means of resamples of values, drawn with replacement; arguments as of `bootstrap_ci`.

    Other seeds give independent resamples.
    """
    data = np.asarray(values, np.float64)
    rng = np.random.default_rng(seed)
    rows = max(1, BLOCK // len(data))  # the size of a block does not change the random numbers
    sizes = [min(rows, resamples - at) for at in range(0, resamples, rows)]
    return np.concatenate([data[rng.integers(len(data), size=(size, len(data)))].mean(axis=1) for size in sizes])


def wilson_ci(count: int, n: int) -> list[float]:
    """Returns the 95 % interval [low, high] of a share, given `count` of `n` > 0 (Wilson, 1927)."""
    z, share = 1.959964, count / n
    centre, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return [max((centre - half) / (1 + z * z / n), 0.0), min((centre + half) / (1 + z * z / n), 1.0)]


def _official(scored: Scored) -> Row:
    """Returns the official scorer's metrics, computed for each attempt and averaged over the attempts."""
    sets: list[Row] = []
    for attempt in range(scored.samples):
        rows = {id: row for (id, number), row in scored.rows.items() if number == attempt}
        sets.append(scoring.aggregate(rows, scored.task.card.scorer))
    means: Row = {}
    for name in sets[0]:
        values = [metrics[name] for metrics in sets if metrics[name] is not None]
        means[name] = math.fsum(v or 0.0 for v in values) / len(sets) if values else None
    return means if scored.samples > 1 else sets[0]


def _columns(scored: Scored) -> dict[str, list[float] | None]:
    """Returns one value per question for each metric of this project; None if the metric applies to no episode.

    With n > 1 attempts this includes pass@k for k = 2, 4, ... and n: the probability that at least one of k attempts is
    right, by the unbiased estimate of Chen et al. 2021 (arXiv 2107.03374, equation 1): 1 - C(n - c, k) / C(n, k). It
    also includes the EM of one attempt that is selected without the gold answer; see `searchgym.scoring.selection`.
    """
    task, episodes = scored.task, scored.episodes
    covers = [
        0.0 if e.answer is None else scoring.cover_match(e.answer.text, scoring.golds_with_words(question.golds))
        for e in episodes
        if (question := task.by_id[e.question_id]).answerable is not False
    ]
    with_golds = [(e, scored.gold_turns[e.question_id, e.attempt]) for e in episodes if scored.golds.get(e.question_id)]
    columns: dict[str, list[float]] = {
        "cover_em": covers,
        "reward": [e.reward for e in episodes],
        "answered": [float(e.stop_reason == "answer") for e in episodes],
        "turns": [float(e.turns) for e in episodes],
        "searches": [float(len(e.searches)) for e in episodes],
        "invalid_actions": [float(evidence.invalid_actions(e)) for e in episodes],
        "observation_words": [float(e.observation_words) for e in episodes],
        "opens": [float(len(e.opens)) for e in episodes],
        "simulated": [simulated_share(e.searches) for e in episodes],
        "markers_in_pages": [float(markers_in_pages(e.searches, e.opens)) for e in episodes],
        "response_tokens": [float(e.generated_tokens()) for e in episodes],
        "read_tokens": [float(sum(call.start for call in e.calls)) for e in episodes],
        "gold_found": [float(evidence.evidence_of(turns) == "all") for _, turns in with_golds],
        "over_search": [float(evidence.searched_on(e, turns)) for e, turns in with_golds],
        "under_search": [float(evidence.stopped_early(e, turns, task.rules.max_turns)) for e, turns in with_golds],
        **thought_counts(episodes),
        **{f"{BY}{unit}": [] for unit in LIMITS},
        **{f"{BY}{unit}": areas for unit, areas in areas_of(list(scored.spent.values())).items()},
    }
    if task.rules.pages is None:
        del columns["opens"]
    if task.rules.protocol.cite:
        columns |= _cited(scored)
    for name in ("simulated", "markers_in_pages"):
        if not any(columns[name]):
            del columns[name]
    if not any(e.calls for e in episodes):
        for name in ("response_tokens", "read_tokens"):
            columns[name] = []
            if scored.golds:  # moved to the end, as in files of earlier runs
                columns[name] = columns.pop(name)
    by_question = {name: scored.means(values) if values else None for name, values in columns.items()}
    n, right = scored.samples, scored.official("em")
    if n > 1 and right is not None:
        counts = [round(mean * n) for mean in right]
        for k in sorted({2**power for power in range(1, n.bit_length())} | {n}):
            by_question[f"pass@{k}"] = [1.0 - math.comb(n - c, k) / math.comb(n, k) for c in counts]
        by_question |= _selected(scored)
    return by_question


def _selected(scored: Scored) -> dict[str, list[float]]:
    """Returns the EM of the sample that each selection takes, ``select@vote`` and others, one value per question."""
    columns: dict[str, list[float]] = {}
    for at in range(0, len(scored.episodes), scored.samples):
        attempts = scored.episodes[at : at + scored.samples]
        rows = [scored.rows[e.question_id, e.attempt] for e in attempts]
        for name, index in selected([Sampled.of(episode) for episode in attempts]).items() if "em" in rows[0] else ():
            columns.setdefault(f"select@{name}", []).append(rows[index]["em"] or 0.0)
    whole = max(map(len, columns.values()), default=0)
    return {name: column for name, column in columns.items() if len(column) == whole}


def _cited(scored: Scored) -> dict[str, list[float]]:
    """Returns the number of citations of each episode, and their scores where the question has gold evidence."""
    golds = {question.id: gold_spans_of(question) for question in scored.task.questions}
    pairs = [score_citations(e.cites, golds[e.question_id]) for e in scored.episodes if golds[e.question_id]]
    return {
        "citations": [float(len(e.cites)) for e in scored.episodes],
        "citation_precision": [scores.precision for scores in pairs],
        "citation_recall": [scores.recall for scores in pairs],
    }


def recovery(scored: Scored) -> dict[str, dict[str, Any]]:
    """Returns, by kind of fault, how often episodes end right although a search of theirs was spoilt.

    Returns:
        For each kind: ``n`` questions with such episodes, ``em``, the mean over these questions, and ``em_ci95``.
    """
    right: dict[str, dict[str, list[float]]] = {}
    for e in scored.episodes:
        for kind in {search.fault for search in e.searches if search.fault}:
            em = scored.rows[e.question_id, e.attempt].get("em")
            if em is not None:
                right.setdefault(kind, {}).setdefault(e.question_id, []).append(em)
    by_kind: dict[str, dict[str, Any]] = {}
    for kind, by_question in sorted(right.items()):
        means = [math.fsum(values) / len(values) for values in by_question.values()]
        by_kind[kind] = {"n": len(means), "em": float(np.mean(means)), "em_ci95": bootstrap_ci(means)}
    return by_kind


def question_rows(scored: Scored) -> Iterator[dict[str, Any]]:
    """Yields the scores of each question, in the order of ids, as rows of ``questions.jsonl``.

    A row lacks the key of a score that does not apply to its question, as for unanswerable questions.
    """
    for at in range(0, len(scored.episodes), scored.samples):
        attempts = scored.episodes[at : at + scored.samples]
        question = scored.task.by_id[attempts[0].question_id]
        keys = [(question.id, e.attempt) for e in attempts]
        rows = [scored.rows[key] for key in keys]
        yield {
            "id": question.id,
            "question": question.text,
            "golds": question.golds,
            "hops": hops_of(question),
            "type": question.kind,
            **{name: math.fsum(row[name] or 0.0 for row in rows) / len(rows) for name in OFFICIAL if name in rows[0]},
            "searches": sum(len(e.searches) for e in attempts) / len(attempts),
            **row_of([scored.spent.get(key, ()) for key in keys]),
            "answers": [None if e.answer is None else e.answer.text for e in attempts],
            **({"exact": [bool(row["em"]) for row in rows]} if "em" in rows[0] else {}),
            "evidence": [evidence.evidence_of(scored.gold_turns[key]) for key in keys]
            if scored.golds.get(question.id)
            else None,
        }


def _explained(scored: Scored) -> dict[str, Any]:
    """Returns figures that explain scores: legal outputs, reasons of refusals, notes of workflows, endings, splits."""
    episodes, by_id = scored.episodes, scored.task.by_id
    calls = [call for episode in episodes for call in evidence.outputs(episode)]
    by_role = {role: [call for call in calls if call.role == role] for role in sorted({c.role for c in calls})}
    noted: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.notes.items():
            noted.setdefault(name, []).append(value)
    most_first = sorted(noted.items(), key=lambda item: (-len(item[1]), item[0]))
    gold_turns = [scored.gold_turns.get((e.question_id, e.attempt)) for e in episodes]
    return {
        "legal": legal_share(calls),
        "legal_by_role": {
            role: {"calls": len(values), "legal": legal_share(values)} for role, values in by_role.items()
        },
        "refused": evidence.refused(episodes, scored.task.rules.protocol),
        "notes": {name: {"episodes": len(values), "mean": sum(values) / len(values)} for name, values in most_first},
        **({"recovery": recovery(scored)} if scored.task.rules.faults else {}),
        "endings": dict(sorted(Counter(str(e.stop_reason or "unfinished") for e in episodes).items())),
        "splits": {
            "hops": _split(scored, [hops_of(by_id[e.question_id]) for e in episodes]),
            "type": _split(scored, [by_id[e.question_id].kind for e in episodes]),
            "evidence": _split(
                scored, [None if values is None else evidence.evidence_of(values) for values in gold_turns]
            ),
        },
    }


def legal_share(calls: Sequence[Call]) -> float | None:
    """Returns the share of calls whose output was legal; None without calls."""
    return sum(call.legal for call in calls) / len(calls) if calls else None


def _split(scored: Scored, values: Sequence[str | None]) -> dict[str, dict[str, Any]]:
    """Returns scores of groups of episodes with equal values; episodes with the value None are left out."""
    members: dict[str, list[Episode]] = {}
    for episode, value in zip(scored.episodes, values, strict=True):
        if value is not None:
            members.setdefault(value, []).append(episode)
    split: dict[str, dict[str, Any]] = {}
    for value, episodes in sorted(members.items()):
        rows = [scored.rows[e.question_id, e.attempt] for e in episodes]
        split[value] = {"n": len(episodes)}
        for name in OFFICIAL:
            scores = [row[name] or 0.0 for row in rows if name in row]
            split[value][name] = sum(scores) / len(scores) if scores else None
        split[value]["legal"] = legal_share([call for episode in episodes for call in evidence.outputs(episode)])
        split[value]["searches"] = sum(len(episode.searches) for episode in episodes) / len(episodes)
    return split
