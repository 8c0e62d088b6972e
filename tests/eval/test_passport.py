"""Passports of question sets: each measure on planted questions by hand, and on worlds."""

from __future__ import annotations

import dataclasses
import json

import pytest
from support import command_line
from test_audit import OTHER, asked, page

from searchgym.corpora.passages import write_corpus
from searchgym.corpora.questions import write_questions
from searchgym.eval.contamination import find_copies
from searchgym.eval.passport import MEASURES, passport_of
from searchgym.eval.scores import wilson_ci
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Paragraph, Passage, Question, title_key
from searchgym.retrieval import build_in_memory

PASSAGES = [
    page(),
    Passage("t", "Tern", OTHER),
    Passage(
        "c", "Cliff", "A steep cliff is where every herring gull and any tern nests beside a tern or two of its kind."
    ),
    Passage("s", "Sea", "The sea is salt."),
]


def two_pages(id, text, answer, first="Herring gull", second="Tern"):
    texts = {passage.title: passage.text for passage in PASSAGES}
    golds = tuple(Paragraph(title, (texts[title],), True) for title in (first, second))
    return Question(id, text, (answer,), paragraphs=golds)


QUESTIONS = [
    asked(id="plain"),
    asked(id="named", text="Does it lay three eggs, and where?"),
    asked(0, id="gone", title="Albatross", sentences=("It glides over the whole ocean for years.",), answer="ocean"),
    asked(id="faulty", text="What else is known?", answer="nothing at all"),
    asked(id="again", text="how many does it LAY"),
    asked(id="against", text="How many, does it lay?", answer="both parents"),
    two_pages("both", "Which herring gull and tern walk along the shore?", "low tide"),
    two_pages("guess", "Is the herring gull larger than the tern?", "yes"),
    two_pages("apart", "What is as salt as they are?", "low tide"),
    two_pages("together", "What nests with terns?", "a tern", "Herring gull", "Cliff"),
]


def flagged(passport):
    return {name: {id for id, flag in flags.items() if flag} for name, flags in passport.flags.items()}


def test_each_measure_names_the_planted_questions():
    passport = passport_of(
        QUESTIONS, build_in_memory(PASSAGES), 3, ["What ELSE is known", "Who?"], {"plain": 1.0, "gone": 0.0}
    )
    assert flagged(passport) == {
        "one search": {"both", "guess", "together"},
        "one page": {"together"},
        "answer named": {"named"},
        "guessable": {"plain", "again", "guess"},  # the commonest answer of the other questions
        "first hit": set(),
        "closed book": {"plain"},
        "unanswerable": {"gone"},
        "faulty": {"faulty"},
        "duplicated": {"plain", "gone", "again", "against"},  # asked() has one text
        "conflicting": {"plain", "gone", "again", "against"},
        "contaminated": {"faulty"},
    }
    assert list(passport.flags) == list(MEASURES) and not passport.unmeasured
    row = next(row for row in passport.rows() if row["measure"] == "duplicated")
    low, high = wilson_ci(4, 10)
    assert row == {
        "measure": "duplicated", "n": 10, "count": 4, "share": 0.4, "95 %": f"{low:.3f} – {high:.3f}",
        "example": "plain",
    }  # fmt: skip


def test_what_cannot_be_measured_is_named():
    passport = passport_of([Question("n", "Who?", ("x",))], build_in_memory(PASSAGES))
    assert set(passport.unmeasured) == {
        "closed book", "contaminated", "one search", "one page", "unanswerable", "faulty",
    }  # fmt: skip
    assert [row["measure"] for row in passport.rows()] == [
        "answer named", "guessable", "first hit", "duplicated", "conflicting",
    ]  # fmt: skip


def test_a_question_is_no_duplicate_of_itself():
    first, second = asked(id="a"), asked(id="b", text="Where does the herring gull find its food in winter?")
    assert find_copies(None, [first, second]) == []
    near = dataclasses.replace(second, id="c", text="Where does the herring gull find its food in a winter?")
    assert [(copy.id, copy.kind) for copy in find_copies(None, [first, second, near])] == [
        ("b", "exact"),
        ("c", "exact"),
    ]
    near = dataclasses.replace(second, id="c", text="Where does a herring gull often find its food in winter?")
    copies = find_copies(None, [first, second, near])
    assert [(copy.id, copy.kind) for copy in copies] == [("b", "near"), ("c", "near")]


def test_a_near_copy_with_another_answer_asks_something_else():
    first = asked(
        id="a",
        text="When was the director of the film The Winter Harbour Behind Seven Golden Mountains Near Amber Lake born?",
        answer="1901",
    )
    other = dataclasses.replace(first, id="b", text=first.text.replace("director", "writer"), answers=("1905",))
    assert [copy.kind for copy in find_copies(None, [first, other])] == ["near", "near"]
    for answers, duplicated in (("1905",), set()), (("1901",), {"a", "b"}):
        questions = [first, dataclasses.replace(other, answers=answers)]
        assert flagged(passport_of(questions, build_in_memory(PASSAGES)))["duplicated"] == duplicated


@pytest.mark.parametrize("level", ["simple", "full"])
def test_worlds_are_sound(level):
    world = build_world(WorldSpec(level, 80, 3, "test"))
    passport = passport_of(world.questions, build_in_memory(world.passages))
    shares = {row["measure"]: row["share"] for row in passport.rows()}
    assert {shares[name] for name in ("unanswerable", "faulty", "conflicting", "answer named")} == {0.0}
    flagged = {"unanswerable": world.questions[5].id, "duplicated": world.questions[7].id}
    golds = {title_key(title) for title in world.questions[5].gold_titles or ()}
    passages = [passage for passage in world.passages if title_key(passage.title) not in golds]
    again = dataclasses.replace(world.questions[7], id="again", answers=("another",))
    passport = passport_of([*world.questions, again], build_in_memory(passages))
    for name, id in flagged.items():
        assert passport.flags[name][id]
    assert passport.flags["conflicting"]["again"] and sum(passport.flags["conflicting"].values()) == 2


def test_the_command_prints_and_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    write_questions("q.jsonl", QUESTIONS)
    write_corpus("c.jsonl", PASSAGES)
    run = command_line(monkeypatch, capsys)
    given = ["questions", "passport", "--questions", "q.jsonl", "--corpus", "c.jsonl", "--top-k", "3"]
    status, out, err = run(*given, "--out", "rows.jsonl", "--trained-on", "q.jsonl")
    assert status == 0, err
    assert "not measured: closed book (give a model)" in err and max(map(len, out.splitlines())) <= 80
    rows = {row["id"]: row for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())}
    assert rows["gone"]["unanswerable"] and rows["both"]["one search"] and rows["plain"]["contaminated"]
    assert run(*given, "--out", "rows.jsonl")[0] == 2
    assert run(*given, "--distractors")[0] == 2


@pytest.mark.slow
def test_closed_book_asks_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    write_questions("q.jsonl", QUESTIONS[:2])
    write_corpus("c.jsonl", PASSAGES)
    run = command_line(monkeypatch, capsys)
    status, out, err = run(
        "questions", "passport", "--questions", "q.jsonl", "--corpus", "c.jsonl", "--model", "tiny", "--json"
    )
    assert status == 0, err
    row = next(row for row in json.loads(out)["measures"] if row["measure"] == "closed book")
    assert (row["n"], row["count"]) == (2, 0)
