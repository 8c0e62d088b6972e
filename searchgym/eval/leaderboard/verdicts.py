"""Verdicts of a judge in a submission: written, checked against the episodes, and given again by judges by rules."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from searchgym.corpora.files import write_jsonl
from searchgym.errors import CardError, DataError, SearchGymError, SubmissionError
from searchgym.eval.judged.identity import identify
from searchgym.eval.judged.judging import answers_of, is_judged, needs_no_judge, verdict_on
from searchgym.eval.judged.sample import read_sample, sample_sha256
from searchgym.eval.judged.verdicts import (
    Judgement,
    Key,
    Verdict,
    judged_scores,
    judged_sha256,
    read_judgement,
    read_record,
    read_verdicts,
)
from searchgym.eval.run_folder import JUDGE, VERDICTS
from searchgym.eval.runner import write_json
from searchgym.eval.scores import Scored
from searchgym.options import find_kind, plain, read
from searchgym.options.cards import list_cards
from searchgym.options.kinds import shipped
from searchgym.rollout.models import weights_sha256
from searchgym.scoring.judges.judge import Checked, Judge


def write_verdicts(run: Path, folder: Path, scored: Scored) -> dict[str, Any]:
    """Copies the verdicts of a run, if it was judged, into a submission; returns the scores of the judge.

    Raises:
        DataError: They are incomplete, or on other answers.
    """
    if read_record(run) is None:
        return {}
    try:
        judgement = check_verdicts(run, scored)
    except SubmissionError as error:
        raise DataError(f"{error.reason}: judge it again with `searchgym judge`", error.path, error.line) from error
    write_jsonl(folder / VERDICTS, map(plain, judgement.verdicts.values()))
    write_json(folder / JUDGE, plain(judgement.record))
    return judged_scores(scored.episodes, judgement.verdicts)


def check_verdicts(folder: Path, scored: Scored) -> Judgement:
    """Checks the verdicts in a folder against the episodes, and those of a shipped judge by rules against the judge.

    No code that the folder names is imported: verdicts of a user's class are taken as they are, like those of a model.

    Raises:
        SubmissionError: They are damaged, incomplete, on other answers, impossible, or not those of the judge.
    """
    path = folder / VERDICTS
    answers = {
        key: answer for key, answer in answers_of(scored.episodes).items() if is_judged(scored.task.by_id[key[0]])
    }
    try:
        judgement = read_judgement(folder)
        lines = list(read_verdicts(path))
    except DataError as error:
        field = JUDGE if str(error.path).endswith(JUDGE) else VERDICTS
        raise SubmissionError(field, error.reason, error.path, error.line) from error
    for line, verdict in lines:
        if (reason := _fault(verdict, answers, scored)) is not None:
            raise SubmissionError(VERDICTS, reason, path, line)
    if missing := sorted(answers.keys() - judgement.verdicts.keys()):
        reason = f"lacks the verdict on attempt {missing[0][1]} at question {missing[0][0]!r:.60}, of {len(missing)}"
        raise SubmissionError(VERDICTS, reason, path)
    _check_judge(judgement, folder / JUDGE)
    _judge_again(judgement, answers, scored, folder)
    return judgement


def _fault(verdict: Verdict, answers: Mapping[Key, str | None], scored: Scored) -> str | None:
    """Returns what is wrong with a verdict, None if it can be one on the answer of its episode."""
    key = (verdict.id, verdict.attempt)
    which = f"attempt {key[1]} at question {key[0]!r:.60}"
    if key not in answers:
        return f"{which}: no episode with a question to be judged"
    answer = answers[key]
    if verdict.sha256 != (None if answer is None else judged_sha256(scored.task.by_id[key[0]], answer)):
        return f"{which}: the verdict is on another answer, question or rubric"
    if needs_no_judge(answer) is not None and verdict.verdict is not False:
        return f"{which}: {verdict.verdict}, but {needs_no_judge(answer)} is never right"
    return None


def _check_judge(judgement: Judgement, path: Path) -> None:
    """Checks the identity of a judge with a shipped model, and the labels of the shipped calibration sample."""
    record = judgement.record
    kind, _, model = record.judge.name.partition(" ")
    card = list_cards("models").get(model) if kind == "model" else None
    if card is not None and record.judge.weights not in (None, weights_sha256(card.parent)):
        reason = f"{record.judge.name} has other weights than the model of that name that ships here"
        raise SubmissionError(JUDGE, reason, path)
    sample = read_sample()
    if record.sample == sample_sha256(sample):
        expected = [(item.id, item.right) for item in sample]
        if [(verdict.id, verdict.right) for verdict in record.verdicts] != expected:
            raise SubmissionError(JUDGE, "its items and labels are not those of the sample that it names", path)


def _judge_again(judgement: Judgement, answers: Mapping[Key, str | None], scored: Scored, folder: Path) -> None:
    """Repeats the verdicts of a judge that ships and runs in this process; see `check_verdicts`."""
    record = judgement.record
    if record.judge.name not in shipped(Judge.kinds_in) or not find_kind(Judge, record.judge.name).in_process:
        return
    try:
        kind = read(Judge, {"kind": record.judge.name, **record.judge.options}, "judge")
    except CardError as error:
        raise SubmissionError(JUDGE, str(error), folder / JUDGE) from error
    with contextlib.closing(kind.open({})) as judge:
        if identify(kind, judge.judge) != record.judge:
            raise SubmissionError(JUDGE, f"{record.judge.name} has no such prompt or weights", folder / JUDGE)
        for line, (key, verdict) in enumerate(judgement.verdicts.items(), start=1):
            now = _verdict_now(judge, scored, key, answers[key], folder)
            if now is not verdict.verdict:
                reason = f"question {key[0]!r:.60}: {verdict.verdict}, judge {record.judge.name} says {now}"
                raise SubmissionError(VERDICTS, reason, folder / VERDICTS, line)
        sample = read_sample()
        verdicts = {v.id: v.verdict for v in record.verdicts} if record.sample == sample_sha256(sample) else {}
        for item in sample if verdicts else ():
            now, _ = verdict_on(judge, item.as_question(), item.answer)
            if now is not verdicts[item.id]:
                reason = f"item {item.id!r}: {verdicts[item.id]}, judge {record.judge.name} says {now}"
                raise SubmissionError(JUDGE, reason, folder / JUDGE)


def _verdict_now(judge: Checked, scored: Scored, key: Key, answer: str | None, folder: Path) -> bool | None:
    try:
        return verdict_on(judge, scored.task.by_id[key[0]], answer)[0]
    except SearchGymError as error:  # a rubric that rules cannot judge
        raise SubmissionError(JUDGE, str(error), folder / JUDGE) from error
