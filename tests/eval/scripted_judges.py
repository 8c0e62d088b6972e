"""Runs whose answers are given, and scripted judges with a known rule, for tests of judged evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from made_runs import RECORD, episode, write_episodes

from searchgym.errors import NoVerdictError
from searchgym.eval.judged.judging import judge_run
from searchgym.eval.judged.sample import CalibrationItem
from searchgym.eval.run_folder import read_finished
from searchgym.records import Answer, Question
from searchgym.scoring.judges.judge import Judge

CALLS = []
"""Answers that a scripted judge was asked about, in order."""


def share_of(text):
    """A number in [0, 1) that depends on a text only."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) / 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted(Judge):
    """Affirms answers that begin with ``right``, and a share of the others, chosen by their hash."""

    in_process: ClassVar = True
    lenient: float = 0.0
    prompt: str = "Is it right?"
    sha256: str | None = None
    silent: float = 0.0
    """Share of the answers, by another hash, on which it gives no verdict."""

    @property
    def prompts(self) -> Mapping[str, str]:
        return {"meets": self.prompt}

    @property
    def weights(self) -> str | None:
        return self.sha256

    def meets(self, question, answer, criteria):
        CALLS.append(answer)
        if share_of(f"silent {answer}") < self.silent:
            raise NoVerdictError("it is silent")
        return [answer.startswith("right") or share_of(answer) < self.lenient for _ in criteria]

    def verify(self, question, answer, pages):
        return False

    def better(self, question, answers, criteria):
        return None


def swapped(lenient):
    """A judge under the name, options, prompt and weights of the plain `Scripted`, which is lenient nonetheless."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Swapped(Scripted):
        def meets(self, question, answer, criteria):
            return [answer.startswith("right") or share_of(answer) < lenient for _ in criteria]

    Swapped.__qualname__, Swapped.__module__ = Scripted.__qualname__, Scripted.__module__
    return Swapped()


def items(n, wrong=0.5, prefix=""):
    """A calibration sample of which a share is wrong."""
    texts = [f"{'wrong' if k < wrong * n else 'right'} {prefix}{k}" for k in range(n)]
    return [
        CalibrationItem(id=f"i{k}", question=f"Which is {k}?", golds=("gold",), answer=text, right=text[0] == "r")
        for k, text in enumerate(texts)
    ]


def questions(n):
    """Questions q000, q001, ..."""
    return [Question(f"q{k:03}", f"Which is {k}?", ("gold",)) for k in range(n)]


def run_with(folder, answers, confidences=None, samples=1):
    """Writes a finished run whose episodes end with the given answers; None stands for an episode without one."""
    episodes = []
    for k, answer in enumerate(answers):
        id, attempt = f"q{k // samples:03}", k % samples
        given = None if answer is None else Answer(answer, confidence=(confidences or {}).get(k))
        stop = "turns" if answer is None else "answer"
        episodes.append(episode(id, 0.0, attempt=attempt, answer=given, stop_reason=stop))
    write_episodes(folder / "episodes.jsonl", episodes)
    n = len(answers) // samples
    (folder / "run.json").write_text(json.dumps(RECORD | {"questions": n, "samples": samples}))
    (folder / "scores.json").write_text(json.dumps({"n": n, "em": 0.0}))
    given = [list(answers[k * samples : (k + 1) * samples]) for k in range(n)]
    rows = [
        {"id": f"q{k:03}", "em": 0.0, "f1": 0.0, "searches": 1.0, "answers": texts} for k, texts in enumerate(given)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def judged(folder, answers, judge, sample, **options):
    """Writes a run and judges it; returns its folder, and the run as `compare` reads it."""
    run_with(folder, answers)
    judge_run(folder, questions(len(answers)), judge, sample, **options)
    return folder, read_finished(folder)
