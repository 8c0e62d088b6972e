"""Generated questions against a brute force with its own formulas, planted faults, and awkward corpora."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
from pathlib import Path

import pytest
from brute_force import plain, problems
from linked_pages import wiki_pages
from made_pages import PAGES
from typer.testing import CliRunner

from searchgym.cli import app
from searchgym.corpora.passages import write_corpus
from searchgym.corpora.questions import read_questions
from searchgym.errors import DataError, RunExistsError, UnknownNameError, UsageError
from searchgym.questions import storage
from searchgym.questions.filters import Balance
from searchgym.questions.generate import generate
from searchgym.questions.graphs.facts import find_facts
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.source import HeldOut, components, hold_out, pages_of_splits, split_pages
from searchgym.questions.spec import GeneratedSpec
from searchgym.questions.storage import read_card, read_split, write_set
from searchgym.records import Passage

DATA = os.environ.get("SEARCHGYM_DATA", "")
PACK = load_pack("people-and-works")
TEXTS = {page.title: page.text for page in PAGES}


@pytest.fixture(scope="module")
def made():
    return generate(PAGES, PACK, GeneratedSpec(n=300, seed=2))


def triples_of(pages):
    found = find_facts(pages, PACK)
    return [
        (pages[f.subject].title, f.relation, f.text if f.target is None else pages[f.target].title) for f in found.facts
    ]


def every(made):
    return [question for split in ("train", "validation", "test") for question in made.split(split)]


@pytest.mark.slow
def test_every_question_stands_against_a_brute_force(made):
    triples, questions = triples_of(PAGES), every(made)
    assert {q.kind for q in questions} >= {"chain", "comparison", "bridge-comparison", "intersection", "cloze"}
    assert len(questions) > 150
    assert [(q.text, problems(q, triples, TEXTS)) for q in questions if problems(q, triples, TEXTS)] == []


FAULTS = {
    "answer": lambda q, rng: dataclasses.replace(
        q,
        answers=(
            rng.choice(["no", "yes"])
            if q.answers[0] not in ("yes", "no")
            else {"yes": "no", "no": "yes"}[q.answers[0]],
        ),
    ),
    "leak": lambda q, rng: dataclasses.replace(q, text=f"{q.text[:-1]}, or {q.answers[0].upper()}?"),
    "waypoint": lambda q, rng: dataclasses.replace(q, text=f"{q.text} ({q.metadata['waypoints'][0].lower()})"),
    "page": lambda q, rng: dataclasses.replace(
        q, supporting_facts=(dataclasses.replace(q.supporting_facts[0], title="Nowhere"),)
    ),
    "evidence": lambda q, rng: dataclasses.replace(q, supporting_facts=q.supporting_facts[:1]),
}


def test_the_brute_force_finds_planted_faults(made):
    """Ten of each kind, fifty in all."""
    rng, triples = random.Random(5), triples_of(PAGES)
    fit = {
        "answer": lambda q: "form" in q.metadata,
        "leak": lambda q: q.kind in ("chain", "cloze", "intersection"),
        "waypoint": lambda q: q.metadata["waypoints"],
        "page": lambda q: True,
        "evidence": lambda q: q.kind == "chain" and q.metadata["hops"] > 1,
    }
    for kind, plant in FAULTS.items():
        chosen = rng.sample([q for q in every(made) if fit[kind](q)], 10)
        missed = [q.text for q in chosen if kind not in problems(plant(q, rng), triples, TEXTS)]
        assert not missed, (kind, missed)


def test_multi_hop_questions_do_not_find_their_own_pages(made):
    from searchgym.retrieval.index.index import build_in_memory

    retriever = build_in_memory(PAGES)
    for question in every(made):
        gold = set(question.gold_titles)
        if len(gold) > 1:
            assert not gold <= {hit.passage.title for hit in retriever.search([question.text], 3)[0]}
        for query, title in zip(question.metadata["queries"], question.metadata["queries"], strict=True):
            assert title in {hit.passage.title for hit in retriever.search([query], 3)[0]}


def test_splits_share_no_page(made):
    gold = [{title for q in made.split(split) for title in q.gold_titles} for split in ("train", "validation", "test")]
    assert all(gold)
    assert not gold[0] & gold[1] and not gold[0] & gold[2] and not gold[1] & gold[2]


def test_comparisons_are_balanced(made):
    """Yes and no, first and second: no side is more than one question ahead in any stratum."""
    for stratum in made.strata:
        if stratum.shape == "comparison":
            same = [q.answers[0] for q in stratum.questions if q.metadata["form"]["op"] == "same"]
            assert abs(same.count("yes") - same.count("no")) <= 1


def test_frequent_answers_are_limited():
    from searchgym.questions.shapes.draft import Draft

    balance = Balance(150)  # 2 % are three
    reasons = [balance.refusal(Draft("chain", f"q{n}?", "Swedish", (0,))) for n in range(5)]
    assert reasons == [None, None, None, "answer is frequent already", "answer is frequent already"]


@pytest.mark.slow
def test_the_same_plan_gives_the_same_questions(made):
    again = generate(PAGES, PACK, GeneratedSpec(n=300, seed=2))
    assert [q.text for q in every(again)] == [q.text for q in every(made)]
    assert [q.text for q in every(generate(PAGES, PACK, GeneratedSpec(n=300, seed=3)))] != [q.text for q in every(made)]


# -- what is held out ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_held_out_pages_and_names_are_in_no_question():
    titles = [page.title for page in PAGES[:12]]
    out = hold_out(PAGES, titles, ["yes", "1 May 1900"])
    questions = every(generate(PAGES, PACK, GeneratedSpec(n=300), out))
    forbidden = {plain(title) for title in titles}
    assert len(questions) > 50
    for question in questions:
        assert not forbidden & {plain(title) for title in question.gold_titles}
        assert not any(name in plain(question.text + " | " + question.answers[0]) for name in forbidden)


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="SEARCHGYM_DATA is not set")
def test_evaluation_questions_are_held_out_of_real_pages():
    root = Path(DATA)
    kept = [q for name in ("hotpotqa", "2wikimultihopqa") for q in read_questions(root / name / "questions.json")]
    rows = json.loads((root / "2wikimultihopqa" / "corpus.json").read_text())
    pages = [Passage(str(number), row["title"], row["text"]) for number, row in enumerate(rows)][:2500]
    gold = {title for q in kept for title in q.gold_titles}
    out = hold_out(pages, gold, [answer for q in kept for answer in q.golds])
    made = generate(pages, PACK, GeneratedSpec(n=400), out)
    names = {plain(title) for title in gold} | {plain(a) for q in kept for a in q.golds if len(a.split()) > 1}
    for question in every(made):
        assert not gold & set(question.gold_titles)
        assert not names & {plain(question.answers[0]), *map(plain, question.metadata["waypoints"])}


def test_components_and_splits():
    assert components(6, [(0, 1), (1, 2), (4, 5)]) == [[0, 1, 2], [4, 5], [3]]
    rng = random.Random(1)
    edges = [(rng.randrange(500), rng.randrange(500)) for _ in range(200)]
    split = split_pages(500, edges)
    of = {page: name for name, pages in split.items() for page in pages}
    assert all(of[a] == of[b] for a, b in edges)
    assert sorted(of) == list(range(500))
    assert [len(split[name]) for name in ("train", "validation", "test")] == pytest.approx([400, 50, 50], abs=30)


def test_edges_of_well_linked_pages_are_cut_until_each_split_has_its_share():
    """A ring with chords is one component; a random split of these shares would cut 55 % of it."""
    rng = random.Random(4)
    edges = [(n, (n + step) % 200) for n in range(200) for step in (1, 2, 3)] + [(0, n) for n in range(2, 200)]
    split = split_pages(200, rng.sample(edges, len(edges)), (0.6, 0.15, 0.25))
    of = {page: name for name, pages in split.items() for page in pages}
    assert sorted(of) == list(range(200))
    assert [len(split[name]) for name in ("train", "validation", "test")] == [120, 30, 50]
    assert of[0] == "train"  # the hub, of which each other page has an edge
    ring = [edge for edge in edges if 0 not in edge]
    assert sum(of[a] != of[b] for a, b in ring) < 0.1 * len(ring)
    assert split == split_pages(200, edges, (0.6, 0.15, 0.25))


def test_a_list_of_all_pages_stays_in_training():
    """Twenty chains of five pages and a page that names all: whole chains are moved, and only their edges to it cut."""
    chains = [(5 * chain + n, 5 * chain + n + 1) for chain in range(20) for n in range(4)]
    split = split_pages(101, [*chains, *((100, page) for page in range(100))], (0.8, 0.1, 0.1))
    of = {page: name for name, pages in split.items() for page in pages}
    assert of[100] == "train" and len(split["test"]) == len(split["validation"]) == 10
    assert all(of[a] == of[b] for a, b in chains)


def test_pages_that_belong_together_are_in_one_split_however_well_linked():
    edges = [(n, (n + step) % 120) for n in range(120) for step in (1, 2)]
    together = [(n, n + 60) for n in range(60)]
    split = split_pages(120, edges, (0.8, 0.1, 0.1), together)
    of = {page: name for name, pages in split.items() for page in pages}
    assert all(of[a] == of[b] for a, b in together)
    assert [len(split[name]) for name in ("train", "validation", "test")] == pytest.approx([96, 12, 12], abs=2)


def test_few_linked_pages_are_not_cut():
    assert split_pages(9, [(n, n + 1) for n in range(8)])["train"] == frozenset(range(9))


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, 300])
def test_a_wiki_in_one_piece_has_test_pages_not_in_training(count):
    pages = wiki_pages(count)
    plan = GeneratedSpec(n=400, shapes=("cloze-chain", "cloze"), shares=(0.6, 0.15, 0.25))
    facts = find_facts(pages, PACK)
    assert len(components(count, [(link.source, link.target) for link in facts.links])) == 1
    made = generate(pages, PACK, plan)
    gold = {s: {t for q in made.split(s) for t in q.gold_titles} for s in ("train", "validation", "test")}
    assert len(made.split("test")) > 10 and len(made.split("validation")) > 5 and len(made.split("train")) > 60
    assert not gold["train"] & gold["test"] and not gold["train"] & gold["validation"]
    assert not gold["validation"] & gold["test"]
    assert made.pages == {"train": 0.6 * count, "validation": 0.15 * count, "test": 0.25 * count}


def test_questions_that_cross_are_counted():
    """A cloze is asked of each link, so that as many cross as links do."""
    pages = wiki_pages(40)
    plan = GeneratedSpec(n=100, shapes=("cloze",))
    facts = find_facts(pages, PACK)
    splits = pages_of_splits(40, facts, plan, HeldOut())
    of = {page: name for name, own in splits.items() for page in own}
    crossing = [link for link in facts.links if of[link.source] != of[link.target]]
    made = generate(pages, PACK, plan)
    assert made.crossing == len(crossing) > 0
    assert made.cut == len({frozenset((link.source, link.target)) for link in crossing})
    assert sum(stratum.drawn for stratum in made.strata) <= len(facts.links) - len(crossing)


def test_pages_that_are_not_cut_count_no_crossing(made):
    assert (made.cut, made.crossing) == (0, 0)


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        (
            [("A", "The A is 1."), ("1", "The A 1."), ("The", "The 1.")],
            r"3 passages, 0 links and 0 facts; links refused: one word",
        ),
        ([("River One", "Water flows."), ("Hill Two", "Stones lie.")], r"gives no questions: 2 passages, 0 links"),
        ([("東京", "東京は日本の首都である。"), ("大阪", "大阪は大きい。")], r"gives no questions"),
        ([("Ann Lee", "Ann Lee is a poet."), ("Ann Lee", "Ann Lee is a river.")], r"gives no questions"),
    ],
)
def test_a_corpus_that_yields_nothing_says_what_took_it(pages, message):
    with pytest.raises(DataError, match=message):
        generate([Passage(str(n), *page) for n, page in enumerate(pages)], PACK, GeneratedSpec(n=10))


def test_a_plan_with_an_error():
    with pytest.raises(UnknownNameError, match="chain"):
        GeneratedSpec(shapes=("chian",))
    with pytest.raises(UsageError, match="at least 1"):
        GeneratedSpec(n=0)
    with pytest.raises(UsageError, match="add up to 1"):
        GeneratedSpec(shares=(0.5, 0.1, 0.1))


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_set_is_written_read_and_checked(tmp_path):
    report = write_set(PAGES, GeneratedSpec(n=100), tmp_path / "set")
    assert sorted(p.name for p in (tmp_path / "set").iterdir()) == [
        "card.yaml",
        "flashrag",
        "questions",
        "report.json",
        "report.md",
        "report.png",
    ]
    assert not [p for p in tmp_path.iterdir() if p.name != "set"]
    card = read_card(tmp_path / "set")
    assert card["questions"] == report["questions"]
    train = read_split(tmp_path / "set", "train")
    assert len(train) == report["questions"]["train"]
    flashrag = read_questions(tmp_path / "set" / "flashrag" / "train.jsonl")
    assert [(q.id, q.text, q.golds) for q in flashrag] == [(q.id, q.text, q.golds) for q in train]
    with pytest.raises(RunExistsError):
        write_set(PAGES, GeneratedSpec(n=100), tmp_path / "set")
    file = tmp_path / "set" / "questions" / "train.jsonl"
    file.write_bytes(file.read_bytes().replace(b"director", b"dirigent", 1))
    with pytest.raises(DataError, match="not the file that the card describes"):
        read_split(tmp_path / "set", "train")


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    whole = write_set(PAGES, GeneratedSpec(n=100), tmp_path / "whole")
    from searchgym.questions import generate as module

    real, calls = module._Maker.fill, []

    def stopped(self, stratum):
        calls.append((stratum.split, stratum.shape, stratum.hops))
        if len(calls) == 9:
            raise KeyboardInterrupt
        return real(self, stratum)

    monkeypatch.setattr(module._Maker, "fill", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_set(PAGES, GeneratedSpec(n=100), tmp_path / "again")
    assert not (tmp_path / "again").exists()
    assert write_set(PAGES, GeneratedSpec(n=100), tmp_path / "again") == whole
    assert len(calls) == 27 + 1  # 9 strata of 3 splits, one of them begun twice
    names = [f"questions/{split}.jsonl" for split in ("train", "validation", "test")]
    assert all((tmp_path / "again" / n).read_bytes() == (tmp_path / "whole" / n).read_bytes() for n in names)


def test_the_commands(tmp_path):
    write_corpus(tmp_path / "corpus.jsonl", PAGES)
    run = CliRunner()
    told = run.invoke(
        app,
        [
            "questions",
            "generate",
            str(tmp_path / "corpus.jsonl"),
            "--n",
            "60",
            "--out",
            str(tmp_path / "set"),
            "--json",
        ],
    )
    assert told.exit_code == 0, told.output
    assert 50 < sum(json.loads(told.stdout)["questions"].values()) <= 60
    shown = run.invoke(app, ["questions", "inspect", str(tmp_path / "set"), "--json"])
    assert {row["shape"] for row in json.loads(shown.stdout)["shortcuts"]} >= {"chain", "comparison"}
    assert "-> " in run.invoke(app, ["questions", "inspect", str(tmp_path / "set"), "--examples", "9"]).output


@pytest.mark.slow
def test_the_command_tells_cuts_and_fails_on_an_empty_split(tmp_path):
    write_corpus(tmp_path / "corpus.jsonl", wiki_pages(40))
    command = ["questions", "generate", str(tmp_path / "corpus.jsonl"), "--out", str(tmp_path / "set"), "--n", "60"]
    failed = CliRunner().invoke(app, [*command, "--shapes", "chain,cloze-chain", "--shares", "0.9,0.05,0.05"])
    assert isinstance(failed.exception, DataError)
    assert re.search(r"no questions for validation and test \(train \d+, validation 0, test 0\)", str(failed.exception))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]  # so that --out can be used again
    told = CliRunner().invoke(app, [*command, "--json"])
    assert told.exit_code == 0, told.output
    report = json.loads(told.stdout)
    assert all(report["questions"].values()) and report["crossing"] > report["cut_links"] > 0
    said = f"{report['cut_links']} pairs of linked pages are in two splits: {report['crossing']} questions that cross"
    assert said in told.output and said in (tmp_path / "set" / "report.md").read_text()
    alone = CliRunner().invoke(
        app, [*command[:-3], str(tmp_path / "alone"), "--n", "20", "--shares", "1,0,0", "--json"]
    )
    assert json.loads(alone.stdout)["questions"]["test"] == 0  # nobody asked for any


@pytest.mark.slow
def test_what_a_killed_run_had_half_written_is_not_in_the_set(tmp_path, monkeypatch):
    def killed(folder, *rest):
        (folder / "questions").mkdir()
        (folder / "questions" / ".validation.jsonl.x1y2.part").write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(storage, "_write", killed)
        write_set(PAGES[:40], GeneratedSpec(n=30), tmp_path / "set")
    write_set(PAGES[:40], GeneratedSpec(n=30), tmp_path / "set")
    assert not list(tmp_path.rglob("*.part"))


def test_an_interrupted_command_tells_how_to_go_on(tmp_path, monkeypatch):
    def stopped(*given):
        raise KeyboardInterrupt

    write_corpus(tmp_path / "corpus.jsonl", PAGES)
    monkeypatch.setattr(storage, "write_set", stopped)
    told = CliRunner().invoke(
        app, ["questions", "generate", str(tmp_path / "corpus.jsonl"), "--out", str(tmp_path / "set")]
    )
    assert told.exit_code == 130
    assert "interrupted: the same command goes on" in told.output


def test_what_was_never_a_set(tmp_path):
    with pytest.raises(DataError, match=r"has no card\.yaml"):
        read_card(tmp_path)
    (tmp_path / storage.CARD).write_text("format: other\n")
    with pytest.raises(DataError, match="not the card of a question set"):
        read_card(tmp_path)
    (tmp_path / storage.CARD).write_text("format: searchgym questions\nsha256: {}\nquestions: many\n")
    with pytest.raises(DataError, match="not the card of a question set"):
        read_split(tmp_path, "train")
    (tmp_path / storage.CARD).write_text(
        "format: searchgym questions\nquestions: {train: 1}\nsha256: {../../etc/passwd: x}\n"
    )
    with pytest.raises(DataError, match="not the file that the card describes"):
        read_card(tmp_path)
