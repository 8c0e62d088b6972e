"""Selection of training questions: candidates, proportions, two measurements, and what is written."""

import dataclasses
import json
from collections import Counter

import pytest
from support import command_line

from searchgym.agents.base import LoadedAgent
from searchgym.cli.pipeline.selection import candidates, pool_of, select, write_pool
from searchgym.cli.pipeline.selection_options import Selection
from searchgym.corpora.files import sha256_file
from searchgym.corpora.passages import read_passages, write_corpus
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.envs.registration import own_card
from searchgym.envs.task import load_task
from searchgym.errors import UsageError
from searchgym.questions.shortcuts import hops_of
from searchgym.records import Answer, Passage, Question, SupportingFact
from searchgym.retrieval.index.index import build_in_memory


def question(id, text, answer, titles):
    facts = tuple(SupportingFact(title, 0) for title in titles)
    return Question(id, text, (answer,), supporting_facts=facts, metadata={"hops": len(titles)})


PAGES = [
    ("Anna Reed", "Anna Reed wrote The Long Road."),
    ("The Long Road", "The Long Road came out in 1931 at Kestrel House."),
    ("Kestrel House", "Kestrel House is a publisher in Bergen."),
    ("Bergen", "Bergen is a port."),
]


def task(questions):
    passages = [Passage(str(number), title, text) for number, (title, text) in enumerate(PAGES)]
    return load_task(own_card("own/q"), questions=questions, retriever=build_in_memory(passages), top_k=1)


def test_questions_that_teach_no_searching_are_left_out_and_counted():
    asked = [
        question("bridge", "Where is the publisher of Anna Reed's book?", "Bergen", ["Anna Reed", "Kestrel House"]),
        question("given", "In which city is Kestrel House publisher?", "Norway", ["The Long Road", "Kestrel House"]),
        question("choice", "Which is older, Bergen or Oslo?", "Bergen", ["Bergen", "Oslo"]),
        question("yes", "Is Bergen a port?", "yes", ["Bergen"]),
        question("single", "When did The Long Road come out?", "1931", ["The Long Road"]),
        Question("bare", "Who wrote it?", ("Anna Reed",)),
    ]
    asked.append(dataclasses.replace(asked[0], id="twin", answerable=False))
    kept, left = candidates(task(asked))
    assert [q.id for q in kept] == ["bridge", "single"]
    assert left == {"its text finds the second page": 1, "offers its answer": 2, "names no gold pages": 1,
                    "has no answer": 1}  # fmt: skip


def test_no_page_is_shared_with_questions_that_are_kept_apart(tmp_path):
    asked = [
        question("bridge", "Where is the publisher of Anna Reed's book?", "Bergen", ["Anna Reed", "Kestrel House"]),
        question("single", "When did The Long Road come out?", "1931", ["The Long Road"]),
    ]
    taken = [question("other", "Where is Kestrel House?", "Bergen", ["Kestrel House"])]
    kept, left = candidates(task(asked), taken)
    assert [q.id for q in kept] == ["single"] and left == {"its pages are taken": 1}
    report = write_pool(task(asked), tmp_path / "new", Selection(multi_hop=0), taken)
    assert [q.id for q in read_questions(tmp_path / "new" / "questions.jsonl")] == ["single"]
    assert report["by_hops"] == {"1": {"selected": 1}} and report["left_out"] == left


def made(several, single):
    titles = ["Anna Reed", "Bergen"]
    both = [question(f"m{i}", f"Anna Reed {i}?", "x", titles) for i in range(several)]
    return both + [question(f"s{i}", f"Bergen {i}?", "x", titles[1:]) for i in range(single)]


@pytest.mark.parametrize(
    "several, single, expected",
    [(500, 1, (49, 1)), (1, 500, (1, 49)), (4, 500, (4, 46)), (30, 20, (30, 20)), (100, 100, (40, 10)), (0, 9, (0, 9))],
)
def test_the_other_kind_may_take_the_place_of_one_that_is_too_few(several, single, expected):
    pool = pool_of(made(several, single), Selection(multi_hop=0.8, pool=50, fill=True))
    hops = Counter(hops_of(q) > 1 for q in pool)
    assert (hops[True], hops[False]) == expected


@pytest.mark.parametrize(
    "several, single, share, most, expected",
    [
        (100, 100, 0.8, 50, (40, 10)),
        (8, 100, 0.8, 50, (8, 2)),  # few of several hops: the pool is smaller, not their share
        (100, 3, 0.8, 50, (12, 3)),
        (100, 100, 1.0, 50, (50, 0)),
        (100, 100, 0.0, 50, (0, 50)),
        (10, 0, 0.8, 50, (10, 0)),  # none of one kind: the other alone
        (0, 10, 0.8, 50, (0, 10)),
        (100, 0, 0.8, 50, (50, 0)),
    ],
)
def test_the_pool_has_the_share_of_several_hops(several, single, share, most, expected):
    pool = pool_of(made(several, single), Selection(multi_hop=share, pool=most))
    hops = Counter(hops_of(q) > 1 for q in pool)
    assert (hops[True], hops[False]) == expected
    again = pool_of(made(several, single), Selection(multi_hop=share, pool=most))
    assert [q.id for q in again] == [q.id for q in pool]


class Sometimes:
    """Agent that answers right as often as it is told, measurement by measurement."""

    def __init__(self, passes, attempts):
        self.left = {id: [n < number for number in numbers for n in range(attempts)] for id, numbers in passes.items()}

    async def run(self, question, io):
        right = self.left[question.id].pop(0)
        await io.step(Answer(question.answers[0] if right else "wrong"))


PASSES = {
    "m0": (1, 6), "m1": (6, 1), "m2": (0,), "m3": (7,), "m4": (3, 0), "m5": (3, 7), "m6": (2, 2), "m7": (4, 4),
    "s0": (4, 4), "s1": (1, 1), "s2": (8,),
}  # fmt: skip
"""Right answers of 8 in each measurement; the second is made only if the first is in 1 to 6."""


def agent():
    return LoadedAgent("sometimes", Sometimes(PASSES, 8), source="sometimes")


def asked():
    return [q for q in made(8, 3) if q.id in PASSES]


def test_both_measurements_must_lie_in_the_window(tmp_path):
    how = Selection(pool=20, multi_hop=8 / 11)
    report = select(task(asked()), agent(), {}, tmp_path, how)
    chosen = read_questions(tmp_path / "questions.jsonl")
    rates = {q.id: q.metadata["pass_rates"] for q in chosen}
    # m0, m1, m6, m7 and s0, s1 pass both; 8/11 of several hops leaves 4 of these and 1 (4 / (8/11) is 5.5)
    assert {id for id in rates if id[0] == "m"} == {"m0", "m1", "m6", "m7"}
    assert len(rates) == 5 and rates.keys() & {"s0", "s1"}
    assert all(rates[id] == [first / 8, second / 8] for id in rates for first, second in [PASSES[id]])
    several = report["by_hops"]["2"]
    assert several == {
        "measured": 8, "pass_rate": round((1 + 6 + 0 + 7 + 3 + 3 + 2 + 4) / 64, 4), "never": 1, "always": 0,
        "in_window": 6, "in_window_again": 4, "selected": 4,
    }  # fmt: skip
    assert report["pass_rate_again"] == round((6 + 1 + 0 + 7 + 2 + 4 + 4 + 1) / 64, 4)
    assert report["questions"] == 5
    assert json.loads((tmp_path / "selection.json").read_text()) == report
    assert report["sha256"] == sha256_file(tmp_path / "questions.jsonl")


@pytest.mark.slow
def test_a_stopped_selection_goes_on_and_ends_the_same(tmp_path):
    class Stopped(Sometimes):
        async def run(self, question, io):
            if sum(map(len, self.left.values())) < 90:
                raise KeyboardInterrupt
            await super().run(question, io)

    how = Selection(pool=20, multi_hop=8 / 11)
    whole = select(task(asked()), agent(), {}, tmp_path / "whole", how)
    first = Stopped(PASSES, 8)
    with pytest.raises(KeyboardInterrupt):
        select(
            task(asked()), LoadedAgent("sometimes", first, source="sometimes"), {}, tmp_path / "cut", how, concurrency=1
        )
    assert not (tmp_path / "cut" / "questions.jsonl").exists()
    rest = LoadedAgent("sometimes", Sometimes(PASSES, 8), source="sometimes")
    rest.workflow.left = first.left
    again = select(task(asked()), rest, {}, tmp_path / "cut", how, concurrency=1)
    assert again == whole


def test_an_empty_selection_says_what_to_do(tmp_path):
    with pytest.raises(UsageError, match=r"no question's pass rate is in 0.95 to 0.99; their mean is 0.44"):
        select(task(asked()), agent(), {}, tmp_path / "a", Selection(low=0.95, high=0.99, multi_hop=8 / 11))
    with pytest.raises(UsageError, match="none of 1 questions can be taken"):
        select(task([Question("bare", "Who?", ("x",))]), agent(), {}, tmp_path / "b", Selection())
    for wrong in ({"low": 0.8, "high": 0.2}, {"multi_hop": 1.2}, {"temperature": 0}, {"attempts": 0}):
        with pytest.raises(UsageError):
            Selection(**wrong)


@pytest.mark.slow
def test_the_command_takes_a_pool_without_a_model_and_leaves_pages_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    cli = command_line(monkeypatch, capsys)
    write_corpus(tmp_path / "corpus.jsonl", [Passage(title, title, text) for title, text in PAGES])
    asked = [
        question("bridge", "Where is the publisher of Anna Reed's book?", "Bergen", ["Anna Reed", "Kestrel House"]),
        question("single", "When did The Long Road come out?", "1931", ["The Long Road"]),
        question("held", "In which city is Kestrel House?", "Bergen", ["Kestrel House"]),
    ]
    write_questions(tmp_path / "questions.jsonl", asked)
    write_questions(tmp_path / "eval.jsonl", [question("e", "What is Bergen?", "port", ["Bergen"])])
    given = ("questions", "select", "--questions", "questions.jsonl", "--corpus", "corpus.jsonl", "--top-k", 1)
    status, out, err = cli(*given, "--hold-out", "eval.jsonl", "--out", "chosen", "--json")
    assert status == 0, err
    report = json.loads(out)
    # both questions whose answer is Bergen are about a page that is held out
    assert [q.id for q in read_questions(tmp_path / "chosen" / "questions.jsonl")] == ["single"]
    assert report["questions"] == 1 and report["by_hops"] == {"1": {"selected": 1}}
    titles = [passage.title for passage in read_passages(tmp_path / "chosen" / "corpus.jsonl")]
    assert titles == ["Anna Reed", "The Long Road", "Kestrel House"]
    assert "train with corpus=chosen/corpus.jsonl" in err
    for folder in ("chosen", "."):  # a finished selection, and the folder of the questions
        status, out, err = cli(*given, "--out", folder)
        assert status == 2 and "exists already: choose another --out" in err
    assert [q.id for q in read_questions("questions.jsonl")] == ["bridge", "single", "held"]
    status, out, err = cli(*given, "--low", 0.9, "--high", 0.1, "--out", "other")
    assert status == 2 and "0 <= low <= high <= 1" in err
