"""Judges the answers of a finished run and the calibration sample, and adds the scores to the run folder.

Every verdict is on disk before the next one is asked for, so that an interrupted judging is continued, not repeated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import dump_line, read_json, write_jsonl
from searchgym.corpora.folders import lock_folder
from searchgym.errors import NoVerdictError, SwayedError, UsageError
from searchgym.eval.judged.identity import identify
from searchgym.eval.judged.sample import CalibrationItem, sample_sha256
from searchgym.eval.judged.verdicts import (
    JudgeRecord,
    Key,
    SampleVerdict,
    Verdict,
    judged_by_question,
    judged_scores,
    judged_sha256,
    read_record,
    read_verdicts,
)
from searchgym.eval.run_folder import JUDGE, QUESTIONS, SCORES, VERDICTS, RunReader
from searchgym.eval.runner import write_json
from searchgym.options import plain
from searchgym.records import Episode, Question
from searchgym.rollout.storage import read_episodes
from searchgym.scoring.confidence import abstains
from searchgym.scoring.judges.judge import Checked, Judge, unfit
from searchgym.scoring.judges.rubric import rubric_of

Progress = Callable[[str, int, int], None]
"""Function that is called with (what is judged, number done, number in all)."""
MAX_REASON: Final = 200
"""Maximum number of characters of a stored reason."""


def judge_run(
    folder: Path,
    questions: Sequence[Question],
    judge: Judge,
    sample: Sequence[CalibrationItem],
    *,
    overwrite: bool = False,
    progress: Progress = lambda *done: None,
) -> dict[str, Any]:
    """Judges the answers of a finished run, and the calibration sample with the same judge.

    Verdicts that the folder holds already are kept, unless they are on another answer.

    Args:
        folder: Run folder.
        questions: Questions of the run.
        judge: The judge, as `find_judge` returns it.
        sample: The calibration sample.
        overwrite: Whether verdicts of an earlier judging are replaced.
        progress: Called after each verdict.

    Returns:
        The scores of the run with those of the judge, as in ``scores.json``.

    Raises:
        UsageError: The folder holds verdicts of another judge or on another sample, or is no finished run.
        DataError: The folder is damaged.
    """
    if not RunReader(folder).is_finished:
        raise UsageError(f"{folder} holds no finished run: end it with `searchgym eval --resume` first")
    checked = judge.open({})
    try:
        with lock_folder(folder):
            record = JudgeRecord(judge=identify(judge, checked.judge), sample=sample_sha256(sample), items=len(sample))
            if overwrite:
                for name in (VERDICTS, JUDGE):
                    (folder / name).unlink(missing_ok=True)
            record = _continued(folder, record)
            _judge_sample(folder, record, checked, sample, progress)
            episodes = list(read_episodes(RunReader(folder).path, tokens=False))
            verdicts = _judge_answers(folder, episodes, {q.id: q for q in questions}, checked, progress)
            return _add_scores(folder, episodes, verdicts)
    finally:
        checked.close()


def verdict_on(judge: Checked, question: Question, answer: str | None) -> tuple[bool | None, str | None]:
    """Returns a judge's verdict on an answer, None if it gave none, and the reason where no verdict of a judge counts.

    No answer (None), one without words, an abstention and one that is too long are never right, without a call of the
    judge; an answer that sways the judge is not right either.
    """
    reason = needs_no_judge(answer)
    if answer is None or reason is not None:
        return False, reason
    criteria = rubric_of(question)
    try:
        met = judge.meets(question.text, answer, criteria)
    except SwayedError:
        return False, "the answer sways the judge"
    except NoVerdictError as error:
        return None, str(error)[:MAX_REASON]
    return all(true != criterion.negated for true, criterion in zip(met, criteria, strict=True)), None


def needs_no_judge(answer: str | None) -> str | None:
    """Returns why an answer is not right without a call of the judge; None if the judge decides."""
    if answer is None:
        return "no answer"
    if abstains(answer):
        return "an abstention"
    return "an answer that is too long, or without words" if unfit(answer) else None


def _continued(folder: Path, record: JudgeRecord) -> JudgeRecord:
    """Returns the record of an earlier judging by the same judge on the same sample, or a new one."""
    there = read_record(folder)
    if there is None:
        (folder / VERDICTS).unlink(missing_ok=True)  # of an unknown judge
        return record
    differing = there.judge.differences(record.judge)
    if there.sample != record.sample:
        differing.append("calibration sample")
    if differing:
        reason = f"{folder} holds verdicts of {there.judge.name}, this is {record.judge.name} with another "
        again = "`searchgym judge` with --overwrite replaces the verdicts"
        raise UsageError(f"{reason}{' and '.join(differing)}: {again}")
    return there


def _judge_sample(
    folder: Path, record: JudgeRecord, judge: Checked, sample: Sequence[CalibrationItem], progress: Progress
) -> None:
    """Judges what is left of the calibration sample, and writes ``judge.json`` even if that is interrupted."""
    verdicts = {verdict.id: verdict for verdict in record.verdicts}
    try:
        for number, item in enumerate(sample, start=1):
            if item.id not in verdicts:
                verdict, _ = verdict_on(judge, item.as_question(), item.answer)
                verdicts[item.id] = SampleVerdict(id=item.id, right=item.right, verdict=verdict)
                progress("calibration sample", number, len(sample))
    finally:
        ordered = tuple(verdicts[item.id] for item in sample if item.id in verdicts)
        write_json(folder / JUDGE, plain(dataclasses.replace(record, verdicts=ordered)))


def _judge_answers(
    folder: Path, episodes: Sequence[Episode], by_id: Mapping[str, Question], judge: Checked, progress: Progress
) -> dict[Key, Verdict]:
    """Judges the answers of a run that have no verdict yet; returns all verdicts by question id and attempt."""
    answers = {key: answer for key, answer in sorted(answers_of(episodes).items()) if is_judged(by_id[key[0]])}
    digests = {key: None if answer is None else judged_sha256(by_id[key[0]], answer) for key, answer in answers.items()}
    earlier = {(v.id, v.attempt): v for v in _whole_verdicts(folder / VERDICTS)}
    verdicts = {key: v for key, v in earlier.items() if key in digests and digests[key] == v.sha256}
    write_jsonl(folder / VERDICTS, map(plain, verdicts.values()))  # without a cut line, and verdicts on other answers
    with (folder / VERDICTS).open("ab") as file:
        for number, (key, answer) in enumerate(answers.items(), start=1):
            if key not in verdicts:
                verdict, reason = verdict_on(judge, by_id[key[0]], answer)
                verdicts[key] = Verdict(id=key[0], attempt=key[1], verdict=verdict, reason=reason, sha256=digests[key])
                file.write(dump_line(plain(verdicts[key])))
                file.flush()
                progress("answers", number, len(answers))
    ordered = {key: verdicts[key] for key in answers}
    write_jsonl(folder / VERDICTS, map(plain, ordered.values()))
    return ordered


def answers_of(episodes: Sequence[Episode]) -> dict[Key, str | None]:
    """Returns the answer of each episode by question id and attempt; None if it ended otherwise than by an answer."""
    return {
        (e.question_id, e.attempt): e.answer.text if e.answer is not None and e.stop_reason == "answer" else None
        for e in episodes
    }


def is_judged(question: Question) -> bool:
    """Returns whether answers to a question are judged: all but those to questions that have no answer."""
    return question.answerable is not False


def _whole_verdicts(path: Path) -> Iterator[Verdict]:
    """Yields the verdicts of a file up to its last line break: a later line was cut by an interruption."""
    if not path.is_file():
        return
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with path.open("r+b") as file:
            file.truncate(end)
    if end:
        yield from (verdict for _, verdict in read_verdicts(path))


def _add_scores(folder: Path, episodes: Sequence[Episode], verdicts: Mapping[Key, Verdict]) -> dict[str, Any]:
    """Adds the scores of a judge to ``questions.jsonl`` and ``scores.json``; returns the scores."""
    judged = judged_by_question(verdicts.values())
    rows = []
    for row in RunReader(folder).question_rows().values():
        rest = {name: value for name, value in row.items() if name != "judged"}
        rows.append(rest | ({"judged": judged[row["id"]]} if row["id"] in judged else {}))
    write_jsonl(folder / QUESTIONS, rows)
    scores: dict[str, Any] = read_json(folder / SCORES) | judged_scores(episodes, verdicts)
    write_json(folder / SCORES, scores)
    return scores
