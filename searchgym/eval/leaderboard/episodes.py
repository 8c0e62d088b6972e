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
"""Decimals of the scores of hits; more would double the file without being useful."""


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
    ids = {hit.passage.id for hit in hits}
    corpus = {p.id: p for p in passages or () if p.id in ids}
    for line, episode in enumerate(episodes, start=1):
        for number, searched in enumerate(episode.searches):
            whole = tuple(_filled(hit, corpus, path, line) for hit in searched.hits)
            episode.searches[number] = dataclasses.replace(searched, hits=whole)
    return episodes


def _filled(hit: Hit, corpus: dict[str, Passage], path: Path, line: int) -> Hit:
    """Returns a hit with the text of its passage from the corpus; a text in the hit must be the same."""
    recorded = hit.passage
    if recorded.id.startswith(SIMULATED) and recorded.text:  # refused by what it is, once the episodes are looked at
        return hit
    if recorded.id not in corpus:
        raise SubmissionError(
            EPISODES, f"hit {recorded.id!r:.60} is no passage of the corpus of this track", path, line
        )
    passage = corpus[recorded.id]
    if passage.title != recorded.title:
        reason = (
            f"passage {recorded.id!r:.60} is called {passage.title!r:.60} in the corpus, not {recorded.title!r:.60}"
        )
        raise SubmissionError(EPISODES, reason, path, line)
    if recorded.text not in ("", passage.text):
        raise SubmissionError(EPISODES, f"passage {recorded.id!r:.60} has another text in the corpus", path, line)
    return Hit(passage, hit.score)


# -- predictions ---------------------------------------------------------------------------------------------------


def prediction(episode: Episode, question: Question) -> dict[str, Any]:
    """Returns the row of an episode in ``predictions.jsonl``: its answer in the fields of the official formats.

    Fields that the agent did not produce are left out; ``answer`` is null if it gave none.
    """
    row: dict[str, Any] = {"id": question.id, "attempt": episode.attempt, "answer": None}
    if (answer := episode.answer) is not None:
        facts, triples = answer.supporting_facts, answer.evidences
        fields = {
            "answer": answer.text,
            "sp": None if facts is None else [[fact.title, fact.sentence] for fact in facts],
            "evidence": None if triples is None else [[t.subject, t.relation, t.object] for t in triples],
            "support_idxs": None if answer.paragraphs is None else list(answer.paragraphs),
            "answerable": answer.answerable,
        }
        row |= {name: value for name, value in fields.items() if value is not None}
    return row | {
        "trajectory_ref": episode.id,
        "n_turns": episode.turns,
        "n_search": len(episode.searches),
        "n_tokens": sum(call.end - call.start for call in episode.calls),
        "stop_reason": episode.stop_reason,
    }


def check_predictions(folder: Path, episodes: Sequence[Episode], task: Task) -> None:
    """Checks that the predictions of a submission agree with its episodes.

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
                reason = f"answer: expected text, or null for no answer, got {answer!r:.60}"
                raise SubmissionError(PREDICTIONS, reason, path, line)
            key = str(row.get("id")), row.get("attempt", 0)
            if key not in expected:
                raise SubmissionError(PREDICTIONS, f"id {key[0]!r:.60}: no episode of this question", path, line)
            if key in seen:
                raise SubmissionError(PREDICTIONS, f"id {key[0]!r:.60} stands twice", path, line)
            seen.add(key)
            fields = expected[key]
            for name in fields.keys() | row.keys():
                if name not in fields or row.get(name) != fields[name]:
                    reason = f"{name}: {row.get(name)!r:.60}, its episode has {fields.get(name)!r:.60}"
                    raise SubmissionError(PREDICTIONS, reason, path, line)
    except SubmissionError:
        raise
    except DataError as error:
        raise SubmissionError(PREDICTIONS, error.reason, path, error.line) from error
    if missing := sorted(expected.keys() - seen):
        raise SubmissionError(PREDICTIONS, f"id {missing[0][0]!r:.60} is missing, of {len(missing)}", path)
