"""Tests of studies import the scripts by their bare names, and helpers of the other tests."""

import sys
from pathlib import Path

import pytest

from searchgym.corpora.passages import write_corpus
from searchgym.corpora.questions import write_questions
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests"), *map(str, sorted(path for path in (ROOT / "studies").iterdir() if path.is_dir()))]


@pytest.fixture
def practised(tmp_path):
    """A folder as `questions select` leaves it, with questions of a world, and the world's corpus."""
    world = build_world(WorldSpec("simple", size=40, seed=5, split="train"))
    corpus = tmp_path / "corpus.jsonl"
    write_corpus(corpus, world.passages)
    for name, questions in (("practice", world.questions[:16]), ("validation", world.questions[16:20]),
                            ("test", world.questions[20:26])):  # fmt: skip
        (tmp_path / name).mkdir()
        write_questions(tmp_path / name / "questions.jsonl", questions)
        write_corpus(tmp_path / name / "corpus.jsonl", world.passages)
    return tmp_path
