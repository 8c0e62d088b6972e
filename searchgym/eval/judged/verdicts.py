"""Verdicts of a judge on the answers of a run, their files, and the scores computed from them.

``verdicts.jsonl`` has one line per question id and attempt; ``judge.json`` has the judge's identity and its verdicts on
the calibration sample. Questions without an answer (MuSiQue's unanswerable twins) have no verdict.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchgym.corpora.files import dump_line, iter_jsonl, read_json
from searchgym.errors import CardError, DataError, DataMissingError
from searchgym.eval.judged.identity import JudgeIdentity
from searchgym.eval.run_folder import JUDGE, VERDICTS, QuestionRows
from searchgym.eval.scores import bootstrap_ci, confidence_scores, wilson_ci
from searchgym.options import Options, read
from searchgym.records import Episode, Question
from searchgym.scoring.judges.rubric import rubric_of

Key = tuple[str, int]
"""(Question id, attempt)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Options):
    """A judge's verdict on one answer."""

    id: str
    """Id of the question."""
    attempt: int
    verdict: bool | None
    """Whether the answer meets the whole rubric; None if the judge gave no verdict."""
    reason: str | None = None
    """Why there is no verdict, or why no judge was needed; None for the verdict of a judge."""
    sha256: str | None = None
    """Digest of question, rubric and answer, by which a verdict on another answer is detected; None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleVerdict(Options):
    """A judge's verdict on one item of the calibration sample."""

    id: str
    right: bool
    """Label of the item."""
    verdict: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRecord(Options):
    """Content of ``judge.json``."""

    judge: JudgeIdentity
    sample: str
    """SHA-256 of the calibration sample."""
    items: int
    """Number of its items."""
    verdicts: tuple[SampleVerdict, ...] = ()
    """Verdicts on the items, in their order; fewer than `items` if the judging was interrupted."""

    def agreement(self) -> tuple[int, list[float]]:
        """Returns the number of verdicts that equal the label, and the 95 % interval of their share; none counts."""
        count = sum(v.verdict is v.right for v in self.verdicts)
        return count, wilson_ci(count, len(self.verdicts))


@dataclass(frozen=True)
class Judgement:
    """All verdicts of a judge on one run."""

    name: str
    """Name of the run in messages."""
    record: JudgeRecord
    verdicts: Mapping[Key, Verdict]


def judged_sha256(question: Question, answer: str) -> str:
    """Returns the digest of what a judge is asked: question, rubric and answer."""
    rubric = [dataclasses.asdict(criterion) for criterion in rubric_of(question)]
    return hashlib.sha256(dump_line([question.text, rubric, answer])).hexdigest()


def read_record(folder: Path) -> JudgeRecord | None:
    """Reads ``judge.json`` of a folder, complete or not; None if there is none.

    Raises:
        DataError: It is damaged.
    """
    path = folder / JUDGE
    if not path.is_file():
        return None
    try:
        record = read(JudgeRecord, read_json(path), "judge")
    except CardError as error:
        raise DataError(f"damaged: {error}", path) from None
    ids = {verdict.id for verdict in record.verdicts}
    if len(ids) < len(record.verdicts) or len(ids) > record.items:
        raise DataError("damaged: an item of the calibration sample stands twice", path)
    return record


def read_verdicts(path: Path) -> Iterable[tuple[int, Verdict]]:
    """Yields (line, verdict) of ``verdicts.jsonl``.

    Raises:
        DataError: A line is no verdict or has the question id and attempt of an earlier one; see `iter_jsonl` as well.
    """
    seen: set[Key] = set()
    for line, row in iter_jsonl(path):
        try:
            verdict = read(Verdict, row, "verdict")
        except CardError as error:
            raise DataError(f"damaged: {error}", path, line) from None
        key = (verdict.id, verdict.attempt)
        if key in seen:
            raise DataError(f"a second verdict on attempt {key[1]} at question {key[0]!r:.60}", path, line)
        seen.add(key)
        yield line, verdict


def read_judgement(folder: Path, name: str = "") -> Judgement:
    """Reads the verdicts of a finished judging.

    Args:
        folder: Folder of a run or submission.
        name: Name of the run in messages. Default: the path of the folder.

    Raises:
        DataMissingError: The folder holds no verdicts.
        DataError: They are damaged, or the judging was interrupted.
    """
    record = read_record(folder)
    if record is None or not (folder / VERDICTS).is_file():
        raise DataMissingError("no verdicts: judge the run with `searchgym judge` first", folder)
    if len(record.verdicts) < record.items:
        reason = f"{len(record.verdicts)} of {record.items} items of the calibration sample are judged"
        raise DataError(f"{reason}: end it with `searchgym judge`", folder / JUDGE)
    verdicts = {(v.id, v.attempt): v for _, v in read_verdicts(folder / VERDICTS)}
    return Judgement(name or str(folder), record, verdicts)


def check_rows(judgement: Judgement, rows: QuestionRows, folder: Path) -> None:
    """Checks that the key ``judged`` of a run's rows agrees with its verdicts.

    Raises:
        DataError: Verdicts are missing, or say something else; the message names the question.
    """
    for id, row in rows.items():
        verdicts = [judgement.verdicts.get((id, attempt)) for attempt in range(len(row.get("answers") or ()))]
        if "judged" not in row:
            continue
        if not verdicts or None in verdicts:
            reason = f"lacks the verdict on question {id!r:.60}: it was cut, `searchgym judge` judges what is missing"
            raise DataError(reason, folder / VERDICTS)
        mean = sum(v is not None and v.verdict is True for v in verdicts) / len(verdicts)
        if abs(mean - row["judged"]) > 1e-9:
            reason = f"question {id!r:.60}: judged is {row['judged']!r:.20} in its row, {mean} by its verdicts"
            raise DataError(reason, folder / VERDICTS)


def judged_by_question(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """Returns each question's share of attempts that were judged right, by id in sorted order."""
    right: dict[str, list[bool]] = {}
    for verdict in verdicts:
        right.setdefault(verdict.id, []).append(verdict.verdict is True)
    return {id: sum(values) / len(values) for id, values in sorted(right.items())}


def judged_scores(episodes: Sequence[Episode], verdicts: Mapping[Key, Verdict]) -> dict[str, Any]:
    """Returns ``judged`` with its interval, ``unjudged``, and the calibration error of stated confidences.

    Args:
        episodes: Episodes of the run, for the confidences.
        verdicts: Verdicts by question id and attempt; answers without a verdict count as not right.
    """
    values = list(judged_by_question(verdicts.values()).values())
    if not values:
        return {}
    scores: dict[str, Any] = {"judged": sum(values) / len(values), "judged_ci95": bootstrap_ci(values)}
    scores["unjudged"] = sum(verdict.verdict is None for verdict in verdicts.values())
    return scores | confidence_scores(episodes, {key: v.verdict is True for key, v in verdicts.items()})
