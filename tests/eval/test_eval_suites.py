"""Suites: their cards, the rule of a fixed subset, runs over several parts, and what is refused."""

import hashlib
import json
import random
from collections import Counter

import pytest

from searchgym.agents.base import load_agent
from searchgym.corpora.folders import bundled_file
from searchgym.corpora.questions import write_questions
from searchgym.envs.registration import find_env, registered
from searchgym.errors import CardError, DataError, DataMissingError, RunExistsError, UnknownNameError
from searchgym.eval.runner import EvalOptions
from searchgym.eval.suites.cards import Subset, find_suite, ids_sha256, load_suite
from searchgym.eval.suites.run import check_suite_out, evaluate_suite, suite_means
from searchgym.eval.suites.tasks import load_suite_tasks, subset
from searchgym.options.cards import list_cards
from searchgym.records import Question

SIZES = {"multihop": 7405 + 12576 + 2417 + 125, "seven": 51713, "worlds": 1000, "wiki-real": 188, "wiki-questions": 400}


def suite(tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\nsummary: my own\nparts:\n" + text)
    return str(file)


DEMO = "  - env: Demo\n    n: 12\n"


def questions(count, kinds=("bridge", "comparison", "bridge"), hops=(2, 2, 4)):
    return [
        Question(f"id-{n}", f"question {n}", ("x",), kind=kinds[n % 3], metadata={"hops": hops[n % 3]})
        for n in range(count)
    ]


# -- the cards that ship -------------------------------------------------------------------------------------------


def test_every_suite_that_ships_is_read_and_has_its_size():
    suites = {name: load_suite(name) for name in list_cards("suites")}
    assert {*SIZES, "fast"} == set(suites)
    for name, size in SIZES.items():
        assert sum(part.n for part in suites[name].parts) == size
    fast = {part.name: part for part in suites["fast"].parts}
    assert fast.keys() == {part.name for part in suites["seven"].parts}
    assert sum(part.subset.n if part.subset else part.n for part in fast.values()) == 1025
    for card in suites.values():
        for part in card.parts:
            assert part.env in registered()


def test_sizes_are_those_of_the_environments():
    for part in load_suite("seven").parts:
        assert part.n == find_env(part.env).questions.size


def test_no_suite_has_the_name_of_an_environment():
    names = {name.lower() for env in registered() for name in (env, env.split("/")[1], env.split("/")[1][:-3])}
    assert not names & {name.lower() for name in list_cards("suites")}
    assert find_suite("World") is None


@pytest.mark.slow
def test_worlds_are_always_there():
    tasks = load_suite_tasks(load_suite("worlds"))
    assert {name: len(task.questions) for name, task in tasks.items()} == {"World": 500, "WorldFull": 500}


def test_the_real_suites_where_the_data_are(real_data):
    tasks = load_suite_tasks(load_suite("wiki-real"))
    assert {name: len(task.questions) for name, task in tasks.items()} == {"HotpotQA": 100, "2WikiMultihopQA": 88}
    assert tasks["2WikiMultihopQA"].aliases


def test_without_the_data_the_suite_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.delenv("SEARCHGYM_DATA", raising=False)
    expected = "suite wiki-real, part HotpotQA: needs evaluation data: set SEARCHGYM_DATA to the folder with hotpotqa"
    with pytest.raises(DataMissingError, match=expected):
        load_suite_tasks(load_suite("wiki-real"))
    monkeypatch.setenv("SEARCHGYM_DATA", str(tmp_path))
    with pytest.raises(DataMissingError, match="no such evaluation data in the folder that SEARCHGYM_DATA names"):
        load_suite_tasks(load_suite("wiki-real"))


# -- bad cards -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  - env: Demo\n    n: 12\n    ids: [demo-01, demo-99]\n", "1 ids are not in the data set, such as 'demo-99'"),
        ("  - env: Demo\n    n: 13\n", "expected 13 questions, got 12: another split or file"),
        ("  - env: Demo\n    n: 12\n    sha256: abc\n", "sha256 .* expected abc.*another version of this split"),
        ("  - env: Dema\n    n: 12\n", "unknown environment 'Dema'; did you mean 'Demo'"),
        ("  - env: mine.yaml\n    n: 12\n", "env 'mine.yaml' is a file; name a registered environment"),
        ("  - env: Demo\n    n: 12\n    options: {retriever: {kind: tool}}\n", "is no card that ships"),
        ("  - env: Demo\n    n: 12\n    size: 3\n", r"mine\.yaml:6: parts\[0\]\.size: unknown key"),
        ("  - env: Demo\n", r"mine\.yaml:4: parts\[0\]\.n: missing key"),
        ("  - env: Demo\n    n: 12\n    options: {topk: 3}\n", "unknown option 'topk'; did you mean 'top_k'"),
        ("  - env: Demo\n    n: 12\n    options: {reward: os:getcwd}\n", "unknown option 'reward'"),
        ("  - env: Demo\n    n: 12\n    ids: [demo-01]\n    subset: {n: 2}\n", "has both ids and a subset"),
        ("  - env: Demo\n    n: 12\n    subset: {n: 2, strata: [colour]}\n", "got 'colour'"),
        ("  - env: Demo\n    n: 12\n    name: ../up\n", "the name becomes that of a folder"),
        (DEMO + DEMO, "two parts have the same name"),
    ],
)
def test_bad_cards_are_refused(tmp_path, text, message):
    with pytest.raises((CardError, DataError), match=message):
        load_suite_tasks(load_suite(suite(tmp_path, text)))


def test_an_unknown_suite():
    with pytest.raises(UnknownNameError, match="unknown suite card 'world'; did you mean 'worlds'"):
        load_suite("world")


def test_ids_choose_questions_in_their_order(tmp_path):
    card = load_suite(suite(tmp_path, DEMO + "    ids: [demo-05, demo-02]\n"))
    (task,) = load_suite_tasks(card).values()
    assert [question.id for question in task.questions] == ["demo-05", "demo-02"]
    assert set(task.by_id) == {"demo-05", "demo-02"}


# -- subsets -------------------------------------------------------------------------------------------------------


def test_a_subset_is_the_smallest_hashes_of_each_stratum():
    """By hand: strata bridge/2 and bridge/4 and comparison/2 hold a third each; 10 of 30 are 4, 3 and 3."""
    data, rule = questions(30), Subset(n=10, seed=3)
    chosen = subset(data, rule)
    strata = Counter((q.kind, q.metadata["hops"]) for q in chosen)
    assert strata == {("bridge", 2): 4, ("bridge", 4): 3, ("comparison", 2): 3}  # the name breaks the tie

    def rank(question):
        return hashlib.sha256(f"3:{question.id}".encode()).hexdigest()

    for (kind, hops), count in strata.items():
        own = sorted((q for q in data if (q.kind, q.metadata["hops"]) == (kind, hops)), key=rank)
        assert {q.id for q in own[:count]} <= {q.id for q in chosen}


def test_a_subset_does_not_depend_on_the_order_and_does_on_the_seed():
    data = questions(300)
    shuffled = random.Random(0).sample(data, len(data))
    first = subset(data, Subset(n=40))
    assert [q.id for q in subset(shuffled, Subset(n=40))] == [q.id for q in first]
    assert {q.id for q in subset(data, Subset(n=40, seed=1))} != {q.id for q in first}
    assert {q.id for q in subset(data, Subset(n=20))} < {q.id for q in first}
    assert len(subset(data, Subset(n=1000))) == 300
    assert len({q.id for q in first}) == 40


def test_strata_keep_their_shares():
    rng = random.Random(5)
    data = [Question(f"q{n}", "t", ("x",), kind=rng.choice("aaaaaab"), level=rng.choice("ef")) for n in range(997)]
    chosen = subset(data, Subset(n=100, strata=["type", "level"]))
    whole, part = (Counter((q.kind, q.level) for q in own) for own in (data, chosen))
    assert len(chosen) == 100
    assert all(abs(part[name] - 100 * count / 997) < 1 for name, count in whole.items())


def test_the_first_use_fixes_the_ids(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    corpus, file = bundled_file("demo/corpus.jsonl"), tmp_path / "q.jsonl"
    write_questions(file, questions(12))
    text = f"{DEMO}    subset: {{n: 5}}\n    options: {{questions: {file}, corpus: {corpus}}}\n"
    card = load_suite(suite(tmp_path, text))
    (task,) = load_suite_tasks(card).values()
    (seen,) = (tmp_path / "home" / "suites").iterdir()
    assert json.loads(seen.read_text())["sha256"] == ids_sha256(q.id for q in task.questions)
    load_suite_tasks(card)
    write_questions(file, [Question(f"new-{q.id}", q.text, q.answers) for q in questions(12)])
    with pytest.raises(DataError, match="suite mine, part Demo: the ids of the questions have the sha256"):
        load_suite_tasks(card)


def test_ids_have_one_digest_in_any_order():
    assert ids_sha256(["b", "a"]) == ids_sha256(["a", "b"]) == hashlib.sha256(b"a\nb").hexdigest()


# -- runs ----------------------------------------------------------------------------------------------------------

TWO = "  - env: Demo\n    n: 12\n    name: A\n  - env: Demo\n    n: 12\n    name: B\n    ids: [demo-01, demo-02]\n"


def test_a_suite_is_run_part_by_part_and_resumed(tmp_path):
    tasks, agent, out = (
        load_suite_tasks(load_suite(suite(tmp_path, TWO))),
        load_agent("single-search"),
        tmp_path / "run",
    )
    scores = evaluate_suite("mine", tasks, agent, out)
    assert (scores["n"], list(scores["parts"])) == (14, ["A", "B"])
    a, b = (scores["parts"][name]["em"] for name in "AB")
    assert scores["em_parts"] == pytest.approx((a + b) / 2)
    assert scores["em_questions"] == pytest.approx((12 * a + 2 * b) / 14)
    (out / "B" / "scores.json").unlink()  # killed in the second part
    lines = (out / "B" / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (out / "B" / "episodes.jsonl").write_bytes(lines[0])
    with pytest.raises(RunExistsError, match="holds a run of suite mine: --resume continues it"):
        evaluate_suite("mine", tasks, agent, out)
    assert evaluate_suite("mine", tasks, agent, out, options=EvalOptions(resume=True)) == scores
    with pytest.raises(RunExistsError, match="holds a run of suite mine: choose another"):
        check_suite_out(out, "worlds", resume=True, overwrite=False)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(RunExistsError, match="holds files but not a run of suite mine"):
        check_suite_out(tmp_path / "other", "mine", resume=False, overwrite=True)


def test_a_mean_of_parts_is_not_the_mean_of_questions():
    """The published error: 35 of 124 and 1 of 1 averaged as batches are 0.641, as questions 0.288."""
    means = suite_means({"batch": {"n": 124, "em": 35 / 124, "f1": 0.0}, "rest": {"n": 1, "em": 1.0, "f1": 0.0}})
    assert means["em_parts"] == pytest.approx((35 / 124 + 1) / 2)
    assert means["em_questions"] == pytest.approx(36 / 125)
