"""Run folders written by hand, for tests of reports, and a reader of the pages that come of them."""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser

import yaml

from searchgym.records import Answer, Call, Episode, Hit, Passage, Searched
from searchgym.rollout.storage import EpisodeWriter

RECORD = {
    "env": "test/Tiny-v0",
    "dataset": "tiny",
    "split": "all",
    "agent": "searcher",
    "models": {"searcher": ["model-a", "0" * 64]},
    "samples": 1,
    "questions": 4,
    "questions_sha256": "1" * 64,
    "scorer": "hotpotqa",
    "top_k": 3,
}


def episode(id, em, *, queries=("a query",), written=5, read=100, text="an output", attempt=0, **changes):
    """Returns an episode that searches once a turn for each query, then answers."""
    hits = (Hit(Passage("p1", f"Page of {id}", f"The text for {id}."), 2.5),)
    made = Episode(
        id=f"{id}#{attempt}",
        question_id=id,
        agent="searcher",
        env="test/Tiny-v0",
        attempt=attempt,
        calls=[Call(0, read, read + written, "searcher", "model-a", len(queries) + 1, text=text)],
        searches=[Searched(turn, query, hits) for turn, query in enumerate(queries, start=1)],
        turns=len(queries) + 1,
        answer=Answer(f"the answer to {id}"),
        stop_reason="answer",
        reward=em,
        scores={"em": em, "f1": em},
    )
    return dataclasses.replace(made, **changes)


def write_episodes(path, episodes):
    """Writes an episode file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with EpisodeWriter(path) as writer:
        for one in episodes:
            writer.write(one)


def evaluation(folder, em, *, hops=("1", "1", "2", "2"), finished=True, record=None, scores=None, rows=None, **of_each):
    """Writes an evaluation whose questions q0, q1, ... have the EMs that are given; returns its folder."""
    write_episodes(folder / "episodes.jsonl", [episode(f"q{n}", value, **of_each) for n, value in enumerate(em)])
    (folder / "run.json").write_text(json.dumps(RECORD | (record or {})))
    if finished:
        mean = sum(em) / len(em)
        told = {"n": len(em), "em": mean, "em_ci95": [0.1, 0.9], "f1": mean, "f1_ci95": [0.2, 0.8]}
        told |= {"searches": 1.0, "response_tokens": 5.0, "read_tokens": 100.0, "gold_found": 0.5, "legal": 1.0}
        told |= {"title_recall": [0.25, 0.5], "title_recall_ci95": [[0.0, 0.5], [0.25, 0.75]]}
        (folder / "scores.json").write_text(json.dumps(told | (scores or {})))
        made = [
            {"id": f"q{n}", "question": f"Which is {n}?", "golds": ["gold"], "hops": hops[n], "type": "bridge",
             "em": value, "f1": value, "searches": 1.0, "answers": ["x"], "evidence": None}
            for n, value in enumerate(em)
        ]  # fmt: skip
        lines = made if rows is None else rows
        (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


def training(folder, seed, rewards, validations=None, name="tiny-grpo", **recipe):
    """Writes a training with the rewards of steps 1, 2, ... and EMs of the validation by step; returns its folder."""
    folder.mkdir(parents=True)
    known = {"name": name, "seed": seed, "env": "test/Tiny-v0", "validation": {"metric": "em", "every": 10}}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(known | recipe))
    rows = [{"step": 0, "generated_tokens": 0.0}]
    rows += [
        {"step": n, "rollout/reward": reward, "generated_tokens": 100.0 * n}
        for n, reward in enumerate(rewards, start=1)
    ]
    for row in rows:
        if validations and row["step"] in validations:
            row["validation/em"] = validations[row["step"]]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class Parsed(HTMLParser):
    """What a page consists of: its tags with their attributes, its tables, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.tables, self.texts = [], [], []
        self._open = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append(data)
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data.replace("\u00a0", " ")  # which keep an interval on one line

    @property
    def text(self):
        """All text of the page."""
        return "".join(self.texts)
