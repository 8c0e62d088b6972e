"""Synthetic corpora: figures of real passages, prefixes, links, and questions that the corpus can answer."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from statistics import mean

import pytest
from support import command_line

from searchgym.corpora.passages import read_passages
from searchgym.corpora.questions import read_questions
from searchgym.errors import UsageError
from searchgym.eval.audit import audit_corpus
from searchgym.questions.worlds.synthetic import BLOCK, SyntheticText, title_of, word_of

REAL = {"words": 71.0, "types": 36_118, "hapax": 0.506, "bracketed": 0.145, "the": 0.0591, "1000th": 1.19e-4}
"""Measured on 6,119 passages of 2WikiMultihopQA, 438,335 words."""
DISTINCT = {(30, 50): 0.812, (60, 80): 0.722, (90, 110): 0.679, (150, 200): 0.611}
"""Mean share of distinct words in passages of a length, measured likewise."""


@pytest.fixture(scope="module")
def passages():
    return list(SyntheticText(0).passages(6119))


def test_the_statistics_are_those_of_real_text(passages):
    texts = [re.findall(r"\w+", passage.text.lower()) for passage in passages]
    counts = Counter(itertools.chain.from_iterable(texts))
    total, ranked = sum(counts.values()), [count for _, count in counts.most_common()]
    assert mean(len(p.text.split()) for p in passages) == pytest.approx(REAL["words"], rel=0.05)
    assert len(counts) == pytest.approx(REAL["types"], rel=0.15)
    assert sum(count == 1 for count in ranked) / len(ranked) == pytest.approx(REAL["hapax"], abs=0.04)
    assert counts["the"] / total == pytest.approx(REAL["the"], rel=0.2)
    assert ranked[999] / total == pytest.approx(REAL["1000th"], rel=0.2)
    assert mean("(" in passage.title for passage in passages) == pytest.approx(REAL["bracketed"], abs=0.02)
    for (least, most), share in DISTINCT.items():
        chosen = [len(set(words)) / len(words) for words in texts if least <= len(words) < most]
        assert mean(chosen) == pytest.approx(share, abs=0.03)


def test_a_smaller_corpus_is_the_beginning_of_a_larger_one(passages):
    count = BLOCK + 3
    again = list(SyntheticText(0).passages(count))
    assert again == passages[:count] and [p.links for p in again] == [p.links for p in passages[:count]]
    assert SyntheticText(0).passage(count) == passages[count]
    assert list(SyntheticText(1).passages(3)) != passages[:3]


def test_titles_and_words_differ_and_links_lead_to_pages(passages):
    assert len({title.split(" (")[0] for title in map(title_of, range(200_000))}) == 200_000
    assert len(set(map(word_of, range(50_000)))) == 50_000
    links = [(p, link) for p in passages for link in p.links]
    assert len(links) / len(passages) == pytest.approx(2, abs=0.1)
    for passage, (start, end, other) in links:
        assert int(other) < int(passage.id)
        assert passage.text[start:end] == passages[int(other)].title.split(" (")[0]


def test_its_questions_can_be_answered_from_it(passages):
    questions = list(SyntheticText(0).questions(60, len(passages)))
    assert len({question.id for question in questions}) == 60
    rows = list(audit_corpus(questions, lambda: passages))
    assert all(row.answerable and row.answer == "in corpus" and not row.faults for row in rows)
    assert not any(row.answerable for row in audit_corpus(questions, lambda: passages[-2:]))


def test_the_command_writes_both(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = command_line(monkeypatch, capsys)
    status, _, err = run("corpus", "synthesize", "--out", "c.jsonl.gz", "--n", "300", "--questions", "20")
    assert status == 0, err
    assert list(read_passages("c.jsonl.gz")) == list(SyntheticText(0).passages(300))
    assert len(read_questions("c-questions.jsonl")) == 20
    assert run("corpus", "synthesize", "--out", "c.jsonl.gz")[0] == 2
    status, _, err = run("corpus", "synthesize", "--out", "d.jsonl", "--n", "30", "--questions", "20")
    assert status == 2 and "at least 100 passages" in err
    with pytest.raises(UsageError, match="at least one"):
        list(SyntheticText(0).passages(0))
