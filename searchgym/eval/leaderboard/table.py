"""Rows of a leaderboard by track, and the differences to the best row of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from searchgym.errors import DataMissingError, SubmissionError, UsageError
from searchgym.eval.audit.answerable import answerable_questions, on_answerable
from searchgym.eval.compare import PairedDifference, difference, t_interval
from searchgym.eval.judged.drift import compare_judges
from searchgym.eval.judged.identity import JudgeIdentity
from searchgym.eval.judged.verdicts import Judgement, judged_by_question
from searchgym.eval.leaderboard.check import CheckedSubmission, check_submission
from searchgym.eval.leaderboard.manifest import MANIFEST, SubmissionManifest
from searchgym.eval.leaderboard.replay import was_rerun
from searchgym.eval.leaderboard.submission import REPORTED, Reported, read_reported
from searchgym.eval.leaderboard.tasks import BUDGETS, Tasks
from searchgym.eval.run_folder import JUDGE
from searchgym.eval.scores import OFFICIAL, bootstrap_ci, question_rows

ORACLES: Final = ("oracle", "evidence-oracle", "oracle-queries", "span-oracle")
"""Agents that read the gold titles or answers: their rows are upper bounds and are not ranked."""
COMPARED_FIELDS: Final = (
    "agent",
    "workflow",
    "prompts",
    "temperature",
    "samples",
    "env",
    "scorer",
    "reward",
    "protocol",
)
"""Fields of the manifest that are equal for all training seeds of one row."""
COSTS: Final = ("searches", "response_tokens", "read_tokens", "gold_found", "legal")
"""Scores of a row in addition to EM and F1, means over its seeds."""


@dataclass(frozen=True)
class BoardRow:
    """One row: a method on a track, with one or several training seeds."""

    members: Sequence[CheckedSubmission]
    questions: Mapping[str, dict[str, float]]
    """Question id to EM, F1 and, if the row was judged, ``judged``: means over the seeds."""
    rerun: bool
    """Whether every member was run again."""
    on_answerable: Mapping[str, Any] | None = None
    """EM on the questions that the corpus can answer, as `on_answerable` returns it; None if it can answer all."""

    @property
    def manifest(self) -> SubmissionManifest:
        """Manifest of the first seed."""
        return self.members[0].manifest

    @property
    def is_oracle(self) -> bool:
        """Whether the agent reads the gold titles or answers."""
        return self.manifest.agent in ORACLES

    @property
    def judgement(self) -> Judgement | None:
        """Verdicts on the first seed; None if the row was not judged."""
        return self.members[0].judgement

    def mean(self, name: str) -> float | None:
        """Returns the mean of a score over the seeds that have it, None if it was not measured."""
        values = [member.scores.get(name) for member in self.members]
        numbers = [value for value in values if isinstance(value, (int, float))]
        return sum(numbers) / len(numbers) if numbers else None

    def costs(self) -> dict[str, Any]:
        """Returns EM with its interval, and the costs, under the keys of the scores of a run."""
        return {"em_ci95": self.interval("em"), **{name: self.mean(name) for name in ("em", *COSTS)}}

    def interval(self, name: str) -> list[float]:
        """Returns the 95 % bootstrap interval over questions of the mean over the seeds, empty without a score."""
        values = [row[name] for _, row in sorted(self.questions.items()) if name in row]
        return bootstrap_ci(values) if values else []

    def over_seeds(self, name: str) -> tuple[float, float] | None:
        """Returns the 95 % t-interval over the seeds, None with fewer than two that have the score."""
        values: list[Any] = [value for member in self.members if (value := member.scores.get(name)) is not None]
        return t_interval(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Track:
    """Rows that can be compared: one data set, corpus, retriever and set of budgets."""

    suite: str
    part: str
    label: str
    """Corpus, retriever and budgets in words."""
    rows: Sequence[BoardRow]
    """Rows by EM, the best first; oracles come last."""
    to_best: Mapping[str, PairedDifference] = field(default_factory=dict)
    """Difference of each row to the best row, by name; oracles have none and are never the best."""
    judges: Mapping[str, str] = field(default_factory=dict)
    """Judge of each judged row by name, and how it compares with that of the first judged row."""


@dataclass(frozen=True)
class Board:
    """A leaderboard: its tracks, its reported rows, and the submissions that were left out."""

    tracks: Sequence[Track]
    reported: Sequence[Reported]
    refused: Sequence[SubmissionError]
    """Why submissions were refused, in order of their folders."""
    absent: Sequence[str]
    """Messages about missing data, without which some submissions could not be checked."""


def find_submissions(folders: Iterable[Path]) -> list[Path]:
    """Returns the folders of submissions and reported rows below `folders`, sorted."""
    files = [p for folder in folders for name in (MANIFEST, REPORTED) for p in folder.rglob(name)]
    return sorted({path.parent for path in files if not any(part.startswith(".") for part in path.parts[1:])})


def build_board(
    folders: Sequence[Path], tasks: Tasks | None = None, progress: Callable[[str, int, int], None] | None = None
) -> Board:
    """Checks every submission in folders, and makes the rows and tracks of a leaderboard.

    Args:
        folders: Folders of submissions.
        tasks: Tasks that are loaded already.
        progress: Called with ("submissions", number done, number in all).

    Returns:
        The board. Refused submissions are in none of its rows, but in `refused` with the reason.
    """
    tasks, submissions = tasks or Tasks(), find_submissions(folders)
    checked: list[CheckedSubmission] = []
    reported: list[Reported] = []
    refused: list[SubmissionError] = []
    absent: dict[str, None] = {}
    for number, submission in enumerate(submissions, start=1):
        try:
            if (submission / REPORTED).is_file():
                reported.append(read_reported(submission))
            else:
                checked.append(check_submission(submission, tasks))
        except SubmissionError as error:
            refused.append(error)
        except DataMissingError as error:
            absent.setdefault(str(error))
        if progress is not None:
            progress("submissions", number, len(submissions))
    groups: dict[str, list[CheckedSubmission]] = {}
    for one in checked:
        manifest = one.manifest
        name, seed = manifest.name, manifest.training_seed
        budgets = [getattr(manifest, budget) for budget in BUDGETS]
        key = json.dumps([manifest.suite, manifest.part, manifest.corpus_sha256, manifest.retriever, budgets])
        group = groups.setdefault(key, [])  # what two rows must have in common to be compared, as a text to sort by
        same = next((o for o in group if (o.manifest.name, o.manifest.training_seed) == (name, seed)), None)
        if same is None:
            group.append(one)
        else:
            reason = f"two submissions of one name: {name!r} with training seed {seed} is also {same.folder}"
            refused.append(SubmissionError("name", reason, one.folder / MANIFEST))
    tracks = [_track(group, refused, answerable_questions(group[0].task)) for _, group in sorted(groups.items())]
    return Board([track for track in tracks if track.rows], reported, refused, list(absent))


def _track(
    checked: Sequence[CheckedSubmission], refused: list[SubmissionError], answerable: frozenset[str] | None = None
) -> Track:
    """Returns the track of submissions that can be compared."""
    by_name: dict[str, list[CheckedSubmission]] = {}
    for one in checked:
        seeds = by_name.setdefault(one.manifest.name, [])
        first = (seeds or [one])[0].manifest
        names = [name for name in COMPARED_FIELDS if getattr(first, name) != getattr(one.manifest, name)]
        if (first.training_seed is None) != (one.manifest.training_seed is None):
            names.insert(0, "training_seed")
        if judge_of(one) != judge_of((seeds or [one])[0]):
            names.append(JUDGE)
        if names:
            reason = f"differs from {seeds[0].folder}, which has the same name: choose another name"
            refused.append(SubmissionError(names[0], reason, one.folder / MANIFEST))
        else:
            seeds.append(one)
    rows = [
        _row(sorted(seeds, key=lambda one: one.manifest.training_seed or 0), answerable) for seeds in by_name.values()
    ]
    rows.sort(key=lambda row: (row.is_oracle, 1.0 if (em := row.mean("em")) is None else -em, row.manifest.name))
    first = checked[0].manifest
    best = next((row for row in rows if not row.is_oracle), None)
    scored = best is not None and any("em" in scores for scores in best.questions.values())
    others = [row for row in rows if scored and row is not best and not row.is_oracle]
    gaps = {row.manifest.name: difference(row.questions, best.questions) for row in others} if best else {}
    return Track(first.suite, first.part, label_of(first), rows, gaps, judges_of(rows))


def judge_of(member: CheckedSubmission) -> JudgeIdentity | None:
    """Returns the judge of a submission; None if it was not judged."""
    return None if member.judgement is None else member.judgement.record.judge


def judges_of(rows: Sequence[BoardRow]) -> dict[str, str]:
    """Returns the judge of each judged row by name, with how it compares with the judge of the first judged row."""
    judged = [(row.manifest.name, row.judgement) for row in rows if row.judgement is not None]
    judges = {}
    for name, judgement in judged:
        first, reference = judged[0]
        text = ""
        try:
            drift = compare_judges(judgement, reference)
        except UsageError:  # of other calibration samples: nothing tells how the judges differ
            text = f"; not comparable with the judge of “{first}”"
        else:
            if drift.by:
                _, low, high = drift.disagreement
                text = f"; disagrees with the judge of “{first}” on {drift.unlike} of {drift.items} items of the sample"
                text += f" ({low:.3f} to {high:.3f})"
        judges[name] = judgement.record.judge.name + text
    return judges


def _row(members: Sequence[CheckedSubmission], answerable: frozenset[str] | None) -> BoardRow:
    """Returns the row of the training seeds of one method."""
    each = [{row["id"]: row for row in question_rows(member.scored)} for member in members]
    questions: dict[str, dict[str, float]] = {
        id: {name: sum(rows[id][name] for rows in each) / len(each) for name in OFFICIAL if name in each[0][id]}
        for id in each[0]
    }
    judged = [judged_by_question(m.judgement.verdicts.values()) for m in members if m.judgement is not None]
    for id in judged[0] if judged else ():
        questions[id]["judged"] = sum(shares[id] for shares in judged) / len(judged)
    em = {id: scores["em"] for id, scores in questions.items() if "em" in scores}
    part = None if answerable is None else on_answerable(em, answerable)
    return BoardRow(members, questions, all(was_rerun(member.folder, member.manifest) for member in members), part)


def label_of(manifest: SubmissionManifest) -> str:
    """Returns corpus, retriever and budgets of a track in words."""
    retriever = manifest.retriever
    settings = [f"{k} {v}" for k, v in retriever.items() if k not in ("retriever", "kind", "passages", "corpus")]
    kind = str(retriever.get("kind", retriever.get("retriever")))
    corpus = (
        f"{retriever['passages']:,} passages" if isinstance(retriever.get("passages"), int) else "an unnamed corpus"
    )
    sha256 = f" ({manifest.corpus_sha256[:12]})" if manifest.corpus_sha256 else ""
    budgets = (
        f"{manifest.top_k} hits, {manifest.max_turns} turns, {manifest.max_queries} "
        f"quer{'y' if manifest.max_queries == 1 else 'ies'} a turn, {manifest.max_observation_words} words"
    )
    return f"{corpus}{sha256}; {kind} ({', '.join(settings)}); {budgets}"
