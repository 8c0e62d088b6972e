"""A subset of questions has each kind in its proportion, wherever fewer are asked than there are."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from linked_pages import linked_pages
from made_pages import PAGES
from support import command_line

from searchgym.agents.base import load_agent
from searchgym.cli.pipeline.selection import pool_of
from searchgym.cli.pipeline.selection_options import Selection
from searchgym.corpora.files import iter_jsonl
from searchgym.corpora.passages import write_corpus
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.eval.runner import evaluate
from searchgym.eval.viewing.saved import open_run
from searchgym.questions.masked.generate import SearchLimits
from searchgym.questions.masked.generate import generate as generate_masks
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.questions.spec import GeneratedSpec
from searchgym.questions.storage import write_set
from searchgym.questions.subset import by_hash, draw_subset, mixture_lines
from searchgym.records import Question
from searchgym.retrieval.index.index import build_in_memory
from searchgym.scoring import UNANSWERABLE_SUFFIX


def kinds(questions):
    return Counter(question.kind for question in questions)


def cells(questions):
    return Counter((question.kind, question.metadata.get("hops")) for question in questions)


def within_one(part, whole):
    """Whether each stratum of a part has its share of the whole, but for less than one question."""
    n, total = sum(part.values()), sum(whole.values())
    return all(abs(part[name] - n * count / total) < 1 for name, count in whole.items())


def ordered(**counts):
    """Questions written kind by kind, those of the most hops first."""
    hops = {"chain": (4, 3, 2), "cloze": (2, 1)}
    return [
        Question(f"{kind}-{number}", "Who?", ("x",), kind=kind, metadata={"hops": of})
        for kind, count in counts.items()
        for number in range(count)
        for of in [hops.get(kind, (1,))[number * len(hops.get(kind, (1,))) // count]]
    ]


@pytest.mark.parametrize("n", [1, 2, 7, 60, 61, 199, 498])
def test_every_kind_and_its_hops_have_their_share(n):
    whole = ordered(chain=237, comparison=31, cloze=101, sentence=130)
    part = draw_subset(whole, n)
    assert len(part) == len({question.id for question in part}) == n
    assert within_one(kinds(part), kinds(whole)) and within_one(cells(part), cells(whole))


def test_shares_by_hand():
    """6 of 12, 6, 2 are 3.6, 1.8, 0.6: 3, 1, 0 and the largest remainders, of the second and of the first (tie, but
    larger); of the 4 of the first, whose hops are 4, 4 and 4, one each and the first name."""
    part = draw_subset(ordered(chain=12, sentence=6, cloze=2), 6)
    assert kinds(part) == {"chain": 4, "sentence": 2}
    assert cells(part) == {("chain", 2): 2, ("chain", 3): 1, ("chain", 4): 1, ("sentence", 1): 2}


def test_hops_are_the_strata_where_no_kind_is_given():
    whole = [Question(f"q{n}", "Who?", ("x",), metadata={"hops": 2 + n // 40}) for n in range(100)]
    assert cells(draw_subset(whole, 10)) == {(None, 2): 4, (None, 3): 4, (None, 4): 2}


def test_the_smallest_hashes_are_drawn_in_their_order():
    whole = ordered(sentence=50)
    ranked = sorted(whole, key=lambda q: hashlib.sha256(f"3:{q.id}".encode()).hexdigest())
    assert draw_subset(whole, 7, seed=3) == ranked[:7]
    assert draw_subset(random.Random(0).sample(whole, 50), 7, seed=3) == ranked[:7]
    assert draw_subset(whole, 7) != ranked[:7]
    assert draw_subset(whole, 50) == whole == draw_subset(whole, 99)  # all: as they are


def musique(pairs, single=0):
    """Questions of 2 to 4 hops; the pairs have an unanswerable twin, far from them in the file."""
    own = [Question(f"m{n}", "Who?", ("x",), metadata={"hops": 2 + n % 3}) for n in range(pairs + single)]
    twins = [
        Question(f"m{n}{UNANSWERABLE_SUFFIX}", "Who?", ("x",), answerable=False, metadata={"hops": 2 + n % 3})
        for n in range(pairs)
    ]
    return own + twins


@pytest.mark.parametrize(
    ("pairs", "single", "n", "expected"),
    [(50, 0, 20, 20), (50, 0, 21, 20), (50, 0, 1, 2), (50, 50, 30, 30), (10, 30, 25, 25), (3, 90, 7, 7), (1, 1, 2, 2)],
)
def test_twins_stay_together(pairs, single, n, expected):
    """An odd number of twins alone is one less; the least is one pair."""
    whole = musique(pairs, single)
    part = [question.id for question in draw_subset(whole, n)]
    assert len(part) == len(set(part)) == expected
    bases = Counter(id.removesuffix(UNANSWERABLE_SUFFIX) for id in part)
    assert all(bases[f"m{number}"] in (0, 2) for number in range(pairs))
    assert all(part[part.index(id) + 1] == id + UNANSWERABLE_SUFFIX for id, count in bases.items() if count == 2)
    twins = sum(count == 2 for count in bases.values())
    assert abs(2 * twins - n * 2 * pairs / (2 * pairs + single)) <= 1 or not single


# -- the commands --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated")
    write_corpus(folder / "corpus.jsonl", PAGES)
    write_set(PAGES, GeneratedSpec(n=200, shares=(0.75, 0.25, 0.0)), folder / "set")
    return folder


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return command_line(monkeypatch, capsys)


@pytest.mark.slow
def test_generated_files_are_not_ordered_by_shape(generated):
    for name in ("questions", "flashrag"):
        written = read_questions(generated / "set" / name / "train.jsonl")
        ids = [question.id for question in written]
        assert ids == sorted(ids, key=lambda id: hashlib.sha256(f"0:{id}".encode()).hexdigest())
    changes = sum(a.kind != b.kind for a, b in itertools.pairwise(written))
    assert changes > len(kinds(written)) + 20  # one less than the kinds if they stood shape by shape


@pytest.mark.slow
def test_eval_asks_a_limited_number_in_proportion_and_the_same_again(generated, cli):
    file = generated / "set" / "questions" / "train.jsonl"
    command = ["eval", "--questions", file, "--corpus", generated / "corpus.jsonl", "--agent", "closed-book"]
    whole = {question.id: question for question in read_questions(file)}
    for out in ("first", "second"):
        assert cli(*command, "--limit", 60, "--out", out)[0] == 0
    first, second = ({row["id"] for _, row in iter_jsonl(f"{out}/questions.jsonl")} for out in ("first", "second"))
    assert first == second and len(first) == 60
    assert within_one(kinds(whole[id] for id in first), kinds(whole.values()))
    record = json.loads(Path("first/run.json").read_text())
    assert record["drawn"] == {"n": 60, "of": len(whole), "seed": 0}
    assert cli("compare", "first", "second")[0] == 0


@pytest.mark.slow
def test_another_draw_is_not_resumed_and_not_compared(cli):
    command = ["eval", "Demo", "--agent", "single-search"]
    assert cli(*command, "--limit", 5, "--out", "run")[0] == 0
    assert cli(*command, "--limit", 5, "--out", "run", "--resume")[0] == 0
    status, _, err = cli(*command, "--limit", 5, "--draw-seed", 1, "--out", "run", "--resume")
    assert status == 2 and "drawn: {'n': 5, 'of': 12, 'seed': 0} then, {'n': 5, 'of': 12, 'seed': 1} now" in err
    assert cli(*command, "--limit", 5, "--draw-seed", 1, "--out", "other")[0] == 0
    status, _, err = cli("compare", "run", "other")
    assert status == 2 and "(5 of 12, drawn by seed 0 and 5 of 12, drawn by seed 1)" in err
    assert cli(*command, "--out", "whole")[0] == 0
    assert json.loads(Path("whole/run.json").read_text())["drawn"] is None
    status, _, err = cli("compare", "run", "whole")
    assert status == 2 and "(5 of 12, drawn by seed 0 and 12)" in err


def test_the_questions_of_a_drawn_run_are_known_again(cli):
    """Where a run did not record its texts."""
    demo = load_task(find_env("Demo"))
    evaluate(demo.subset(5), load_agent("single-search"), Path("drawn"))
    Path("drawn/questions.jsonl").unlink()
    run = open_run(Path("drawn"))
    assert run.notes == [] and run.questions.keys() == demo.by_id.keys()
    record = json.loads(Path("drawn/run.json").read_text())
    Path("drawn/run.json").write_text(json.dumps(record | {"drawn": {"n": 5, "of": 12, "seed": 1}}))
    assert any("are not those that were asked" in note for note in open_run(Path("drawn")).notes)


def test_parts_of_suites_are_drawn_in_proportion(cli, tmp_path):
    whole = ordered(chain=60, cloze=30, sentence=10)
    write_questions(tmp_path / "q.jsonl", whole)
    write_corpus(tmp_path / "c.jsonl", PAGES[:2])
    options = f"    options: {{questions: {tmp_path / 'q.jsonl'}, corpus: {tmp_path / 'c.jsonl'}}}\n"
    head = "name: own\nsummary: s\nparts:\n  - env: Demo\n    n: 100\n"
    Path("own.yaml").write_text(head + options)
    assert cli("eval", "own.yaml", "--agent", "closed-book", "--limit", 10, "--out", "run")[0] == 0
    by_id = {question.id: question for question in whole}
    asked = [by_id[row["id"]] for _, row in iter_jsonl("run/Demo/questions.jsonl")]
    assert kinds(asked) == {"chain": 6, "cloze": 3, "sentence": 1}


def test_selected_questions_keep_their_kinds():
    """Of 40 questions of several hops, 24 are chains and 16 comparisons, as 3 to 2 there are."""
    several = [Question(f"m{n}", "Who?", ("x",), kind="chain" if n < 60 else "comparison") for n in range(100)]
    several = [dataclasses.replace(question, metadata={"hops": 2}) for question in several]
    single = [Question(f"s{n}", "Who?", ("x",), kind="chain", metadata={"hops": 1}) for n in range(50)]
    pool = pool_of(several + single, Selection(pool=50, multi_hop=0.8))
    assert cells(pool) == {("chain", 2): 24, ("comparison", 2): 16, ("chain", 1): 10}


def test_masked_spans_are_not_ordered_by_their_number():
    spec = MaskedSpec(n=30, source="kept", split="all", masks=[1, 2])
    pages = linked_pages(10)
    made = generate_masks(pages, spec, SearchLimits(), build_in_memory(pages)).questions["train"]
    assert made == by_hash(made) and len(kinds(made)) == 2
    assert sum(a.kind != b.kind for a, b in itertools.pairwise(made)) > 1


# -- mixtures ------------------------------------------------------------------------------------------------------


def test_the_mixture_is_told_in_short_lines():
    training, validation = ordered(chain=60, cloze=30, sentence=10), ordered(chain=12, cloze=6, sentence=2)
    assert list(mixture_lines(training, validation)) == [
        "training: 100 questions: chain 60, cloze 30, sentence 10",
        "validation: 20 questions: chain 12, cloze 6, sentence 2",
    ]
    assert list(mixture_lines([], validation)) == ["validation: 20 questions: chain 12, cloze 6, sentence 2"]
    assert list(mixture_lines(training, [])) == ["training: 100 questions: chain 60, cloze 30, sentence 10"]
    many = ordered(**{f"kind{n}": 2 for n in range(40)}) + ordered(**{"\x1b[31m" + "x" * 90: 1})
    for line in mixture_lines(many, many):
        assert len(line) <= 80 and line.endswith(" more") and line.isprintable()


def test_another_mixture_in_validation_is_warned_about():
    training, validation = ordered(chain=60, cloze=40), ordered(chain=19, cloze=1)
    head = "warning: differs from training: "
    assert list(mixture_lines(training, validation))[2] == f"{head}chain 95% (60%), cloze 5% (40%), 1 hop 0% (20%)"
    of_four = [question for question in ordered(chain=60) if question.metadata["hops"] == 4]
    told = list(mixture_lines(ordered(chain=60), of_four))[2]
    assert told == f"{head}4 hops 100% (33%), 3 hops 0% (33%), and 1 more"
    assert len(list(mixture_lines(training, draw_subset(training, 3)))) == 2  # as near as three can be
