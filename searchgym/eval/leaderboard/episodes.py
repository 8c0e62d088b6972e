"""Episodes of a submission: without tokens, and without the texts of passages that the corpus of the track holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import dump_line, iter_jsonl, write_atomic
from searchgym.envs.task import Task
from searchgym.errors import DataError, SubmissionError
from searchgym.eval.leaderboard.manifest import EPISODES, PREDICTIONS
from searchgym.records import SIMULATED, Episode, Hit, Passage, Question
from searchgym.retrieval.index.distractors import passages_of
from searchgym.rollout.storage import read_episodes, without_links

MAX_TEXT: Final = 10_000
"""Maximum number of characters of an answer."""


DIGITS: Final = 4
"""Decimals of the scores of hits: more would be half of the file and tell nothing."""


def write_episodes(path: Path, episodes: Iterable[Episode], whole: bool) -> None:
    """Writes episodes in the format of a run, compressed.

    Args:
        path: The file; its name ends in ``.gz``.
        episodes: The episodes.
        whole: Whether the texts of passages are kept; else the reader takes them from the corpus.
    """
    with write_atomic(path) as file:
        for episode in episodes:
            row = without_links(dataclasses.asdict(dataclasses.replace(episode, contexts=[])))
            for hit in (hit for search in row["searches"] for hit in search["hits"]):
                hit["score"] = round(hit["score"], DIGITS)
                if not whole:
                    hit["passage"]["text"] = ""
            file.write(dump_line(row))


def load_episodes(folder: Path, task: Task) -> list[Episode]:
    """Reads the episodes of a submission, and fills in the texts of their passages from the corpus of a task.

    Where the corpus is on this machine, every hit is looked up, with a text or without.

    Raises:
        SubmissionError: The file cannot be read, or a passage is not in the corpus, has another title or text there, or
            has no text where no corpus is here.
    """
    path = folder / EPISODES
    try:
        episodes = list(read_episodes(path))
    except DataError as error:
        raise SubmissionError(EPISODES, error.reason, path, error.line) from error
    passages = passages_of(task.retriever)
    hits = [hit for episode in episodes for searched in episode.searches for hit in searched.hits]
    if passages is None and all(hit.passage.text for hit in hits):
        return episodes
    wanted = {hit.passage.id for hit in hits}
    known = {p.id: p for p in passages or () if p.id in wanted}
    for line, episode in enumerate(episodes, start=1):
        for number, searched in enumerate(episode.searches):
            whole = tuple(_filled(hit, known, path, line) for hit in searched.hits)
            episode.searches[number] = dataclasses.replace(searched, hits=whole)
    return episodes


def _filled(hit: Hit, known: dict[str, Passage], path: Path, line: int) -> Hit:
    """Returns a hit with the text that its passage has in the corpus, which is the one that it gives, if any."""
    own = hit.passage
    if own.id.startswith(SIMULATED) and own.text:  # refused by what it is, once the episodes are looked at
        return hit
    if own.id not in known:
        raise SubmissionError(EPISODES, f"hit {own.id!r:.60} is no passage of the corpus of this track", path, line)
    passage = known[own.id]
    if passage.title != own.title:
        reason = f"passage {own.id!r:.60} is called {passage.title!r:.60} in the corpus, not {own.title!r:.60}"
        raise SubmissionError(EPISODES, reason, path, line)
    if own.text not in ("", passage.text):
        raise SubmissionError(EPISODES, f"passage {own.id!r:.60} has another text in the corpus", path, line)
    return Hit(passage, hit.score)


# -- predictions ---------------------------------------------------------------------------------------------------


def prediction(episode: Episode, question: Question) -> dict[str, Any]:
    """Returns the row of an episode in ``predictions.jsonl``: its answer in the fields of the official formats.

    Fields that the agent did not produce are left out; ``answer`` is null where none was given.
    """
    row: dict[str, Any] = {"id": question.id, "attempt": episode.attempt, "answer": None}
    if (answer := episode.answer) is not None:
        facts, triples = answer.supporting_facts, answer.evidences
        given = {
            "answer": answer.text,
            "sp": None if facts is None else [[fact.title, fact.sentence] for fact in facts],
            "evidence": None if triples is None else [[t.subject, t.relation, t.object] for t in triples],
            "support_idxs": None if answer.paragraphs is None else list(answer.paragraphs),
            "answerable": answer.answerable,
        }
        row |= {name: value for name, value in given.items() if value is not None}
    return row | {
        "trajectory_ref": episode.id,
        "n_turns": episode.turns,
        "n_search": len(episode.searches),
        "n_tokens": sum(call.end - call.start for call in episode.calls),
        "stop_reason": episode.stop_reason,
    }


def check_predictions(folder: Path, episodes: Sequence[Episode], task: Task) -> None:
    """Checks that the predictions of a submission are those of its episodes.

    Raises:
        SubmissionError: A row is not what its episode says; the error names file, line and field.
    """
    path = folder / PREDICTIONS
    expected = {(e.question_id, e.attempt): prediction(e, task.by_id[e.question_id]) for e in episodes}
    seen: set[tuple[str, int]] = set()
    try:
        for line, row in iter_jsonl(path):
            answer = row.get("answer")
            if "answer" not in row or not isinstance(answer, str | None):
                reason = f"answer: expected text, or null where none was given, got {answer!r:.60}"
                raise SubmissionError(PREDICTIONS, reason, path, line)
            key = str(row.get("id")), row.get("attempt", 0)
            if key not in expected:
                raise SubmissionError(PREDICTIONS, f"id {key[0]!r:.60}: no episode of this question", path, line)
            if key in seen:
                raise SubmissionError(PREDICTIONS, f"id {key[0]!r:.60} stands twice", path, line)
            seen.add(key)
            own = expected[key]
            for name in own.keys() | row.keys():
                if name not in own or row.get(name) != own[name]:
                    reason = f"{name}: {row.get(name)!r:.60}, its episode has {own.get(name)!r:.60}"
                    raise SubmissionError(PREDICTIONS, reason, path, line)
    except SubmissionError:
        raise
    except DataError as error:
        raise SubmissionError(PREDICTIONS, error.reason, path, error.line) from error
    if missing := sorted(expected.keys() - seen):
        raise SubmissionError(PREDICTIONS, f"id {missing[0][0]!r:.60} is missing, of {len(missing)}", path)
