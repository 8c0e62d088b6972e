"""Evidence against what was spent for it: cases worked by hand, stated costs, and the cheaper agent ranks first."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import PASSAGES, command_line

from searchgym.errors import CardError, UsageError
from searchgym.eval.efficiency import areas_of, curves_of, pages_in, read_costs, row_of, with_costs
from searchgym.records import Call, Context, Episode, Hit, Opened, Question, Searched, Span, SupportingFact
from searchgym.scoring.efficiency import LIMITS, Rates, Spent, amounts, area, budgets, recall_at, spent_at, spent_for
from searchgym.train.credit.terms.efficiency import Efficiency

HITS = tuple(Hit(passage, 1.0) for passage in PASSAGES[:1])


def tokens(kind, count):
    return Span(kind, np.zeros(count, np.int32), np.zeros(count, np.float32) if kind == "model" else None)


def episode(calls, contexts, searches=(1, 2), **more):
    """Calls as (context, start, end, turn), contexts as (parent, fork, lengths of spans)."""
    return Episode(
        "q#0", "q", "agent", "env",
        contexts=[Context(parent, fork, [tokens("prompt", n) for n in lengths]) for parent, fork, lengths in contexts],
        calls=[Call(context, start, end, "searcher", "model", turn) for context, start, end, turn in calls],
        searches=[Searched(turn, "query", HITS) for turn in searches], **more,
    )  # fmt: skip


CHAIN = episode([(0, 100, 110, 1), (0, 300, 320, 2), (0, 500, 505, 3)], [(None, 0, (505,))])
"""One conversation: prompt 100, search 10, hits 190, search 20, hits 180, answer 5."""
TEAM = episode(
    [(0, 50, 60, 1), (1, 80, 90, 1), (2, 200, 210, 2), (2, 200, 205, 3)],
    [(None, 0, (60,)), (None, 0, (90,)), (None, 0, (210,)), (2, 200, (5,))],
)


def test_a_conversation_by_hand():
    assert spent_at(CHAIN, 1) == Spent(300, 1, 100 + 300, 10)  # the second call reads the hits of turn 1
    assert spent_at(CHAIN, 2) == Spent(500, 2, 100 + 300 + 500, 30)
    assert spent_at(CHAIN, 3) == Spent(505, 2, 900, 35)  # nobody reads what comes after the last call
    short = episode([(0, 100, 110, 1)], [(None, 0, (110, 190))], searches=(1,))
    assert spent_at(short, 1) == Spent(300, 1, 100, 10)  # the turns ended: the hits stand in the context


def test_a_team_counts_different_tokens_once():
    assert spent_at(TEAM, 1) == Spent(60 + 90 + 200, 1, 50 + 80 + 200, 20)
    forked = dataclasses.replace(TEAM, calls=[*TEAM.calls[:3], dataclasses.replace(TEAM.calls[3], context=3)])
    assert spent_at(forked, 2) == Spent(60 + 90 + 210, 2, 50 + 80 + 200 + 200, 30)  # the fork's 200 are those of 2
    trial = dataclasses.replace(CHAIN, calls=[CHAIN.calls[0], dataclasses.replace(CHAIN.calls[1], prefix=True)])
    assert spent_at(trial, 1).written == 10  # a trial answer does not count


def test_an_opened_page_and_an_agent_without_a_model():
    scripted = episode([], [], searches=(1, 1, 2), opens=[Opened(3, "Alpha", "Alpha", 0, 1, 1)])
    assert spent_at(scripted, 1) == Spent(None, 2, 0, 0)
    assert spent_at(scripted, 3).searches == 3
    assert amounts(spent_for(scripted, [1, None]), "tokens") == [math.inf, math.inf]
    assert list(areas_of([spent_for(scripted, [1, 2])])) == ["searches"]


AREAS = {
    "at the lower limit": ([256], 1.0),
    "below it": ([10], 1.0),
    "one doubling": ([512], 7 / 8),
    "at the upper limit": ([65_536], 0.0),
    "never": ([math.inf], 0.0),
    "two pages": ([1024, math.inf], 6 / 16),
    "no pages": ([], 0.0),
}


@pytest.mark.parametrize("spent, expected", AREAS.values(), ids=AREAS)
def test_areas_by_hand(spent, expected):
    assert area(spent, LIMITS["tokens"]) == pytest.approx(expected)


def test_an_area_is_that_under_the_curve():
    """Another way to the same number: the mean recall over many budgets that are even in their logarithm."""
    rng = np.random.default_rng(0)
    spent = [float(value) for value in np.exp(rng.uniform(np.log(100), np.log(100_000), 7))] + [math.inf]
    low, high = LIMITS["tokens"]
    middles = low * (high / low) ** ((np.arange(100_000) + 0.5) / 100_000)
    assert area(spent, (low, high)) == pytest.approx(np.mean([recall_at(spent, b) for b in middles[::50]]), abs=1e-3)
    assert budgets((low, high)) == [256.0 * 2**power for power in range(9)]


def test_half_the_tokens_gain_the_same_at_every_size():
    for size in (600, 3_000, 30_000):
        gain = area([size / 2], LIMITS["tokens"]) - area([size], LIMITS["tokens"])
        assert gain == pytest.approx(1 / 8)


def test_stated_costs_by_hand():
    rates = Rates(read=0.001, written=0.01, search=0.5)
    assert amounts(spent_for(CHAIN, [1, 2]), "price", rates) == pytest.approx([0.4 + 0.1 + 0.5, 0.9 + 0.3 + 1.0])
    assert rates.limits() == pytest.approx((0.756, 0.756 * 256))
    costs = read_costs("{price: {read: 0.001, written: 0.01, search: 0.5}, seconds: {search: 2}}")
    assert costs == {"price": rates, "seconds": Rates(search=2.0)}
    rows = {"q": row_of([spent_for(CHAIN, [1, 2])]), "unnamed": {"em": 1.0}}
    priced = with_costs(json.loads(json.dumps(rows)), costs)
    expected = [1 - math.log2(value / 0.756) / 8 for value in (1.0, 2.2)]
    assert priced["q"]["evidence_by_price"] == pytest.approx(sum(expected) / 2)
    assert priced["q"]["evidence_by_seconds"] == pytest.approx((1 + 7 / 8) / 2)
    assert priced["unnamed"] == {"em": 1.0}
    assert pages_in(rows["q"]) == [spent_for(CHAIN, [1, 2])]
    with pytest.raises(UsageError, match="evaluate a model again"):
        with_costs({"q": {"em": 1.0}}, costs)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{price: {reed: 1}}", "did you mean 'read'"),
        ("{price: {read: -1}}", "at least 0"),
        ("{price: {}}", "are all 0"),
        ("{tokens: {read: 1}}", "the name is taken"),
        ("{}", "is empty"),
        ("[1, 2]", "--cost"),
        ("{price", "--cost"),
    ],
)
def test_wrong_costs_are_refused(text, message):
    with pytest.raises((CardError, UsageError), match=message):
        read_costs(text)


def test_curves_show_recall_at_doubling_budgets():
    curves = curves_of([spent_for(CHAIN, [1, None]), spent_for(CHAIN, [1, 2])])
    assert curves["searches"] == [[1.0, 0.5], [2.0, 0.75], [4.0, 0.75], [8.0, 0.75], [16.0, 0.75]]
    assert curves["tokens"][:3] == [[256.0, 0.0], [512.0, 0.75], [1024.0, 0.75]]


def run_folder(folder, scale):
    """Evaluates an agent whose context before its hits is `scale` times as long; returns the folder."""
    rng = np.random.default_rng(1)
    rows = []
    for number in range(40):
        read = float(rng.integers(1_000, 4_000)) * scale
        pages = [Spent(read, 1, read, 20), None if number % 4 == 0 else Spent(1.5 * read, 2, 3 * read, 40)]
        rows.append({"id": f"q{number:02}", "question": "?", "em": 1.0, "f1": 1.0, "answers": ["x"], **row_of([pages])})
    folder.mkdir()
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = {"env": "e", "agent": folder.name, "questions": 40, "questions_sha256": "0" * 64}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "scores.json").write_text(json.dumps({"n": 40, "em": 1.0}))
    return folder


def test_an_agent_that_reads_half_as_much_ranks_first_with_an_interval(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs = [run_folder(Path(name), scale) for name, scale in (("wordy", 1.0), ("terse", 0.5))]
    run = command_line(monkeypatch, capsys)
    status, out, err = run("compare", *map(str, runs), "--json", "--cost", "{price: {read: 1.0e-6, search: 0.0001}}")
    assert status == 0, err
    rows = {(row["evidence by"], row["run"]): row for row in json.loads(out)["parts"][0]["evidence"]}
    assert {unit for unit, _ in rows} == {"tokens", "searches", "price"}
    read = json.loads((runs[0] / "questions.jsonl").read_text().splitlines()[1])
    assert read["evidence_spent"][0][0][0] / 2 == pytest.approx(
        json.loads((runs[1] / "questions.jsonl").read_text().splitlines()[1])["evidence_spent"][0][0][0]
    )
    # Half the tokens gain 1/8 for a page that was read: 7 of 8 pages were.
    assert rows["tokens", "terse"]["less the first (95 %)"].startswith("+0.109")
    assert "not distinguishable" not in rows["tokens", "terse"]["less the first (95 %)"]
    assert "not distinguishable" in rows["searches", "terse"]["less the first (95 %)"]
    assert float(rows["price", "terse"]["less the first (95 %)"].split()[0]) > 0
    status, out, err = run("compare", *map(str, runs))
    assert status == 0 and "the larger the area, the cheaper" in out, err
    assert max(map(len, out.splitlines())) <= 80


def test_the_credit_term_pays_the_right_or_the_answered_alone():
    gold = Question("q", "?", ("x",), supporting_facts=(SupportingFact(PASSAGES[0].title),))
    context = SimpleNamespace(question=lambda episode: gold)
    ends = [dataclasses.replace(CHAIN, stop_reason=reason, reward=reward) for reason, reward in
            (("answer", 1.0), ("answer", 0.0), ("turns", 0.0))]  # fmt: skip
    for options, paid in ({}, [1, 1, 1]), ({"answered": True}, [1, 1, 0]), ({"right": True}, [1, 0, 0]):
        term = Efficiency(unit="searches", **options)
        assert [term.value(end, context) for end in ends] == paid
