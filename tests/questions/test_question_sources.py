"""Question sources: fields that are merged, sources of users, and what is refused."""

from __future__ import annotations

import sys

import gymnasium
import pytest
from support import command_line, json_of

from searchgym.corpora.folders import bundled_file
from searchgym.envs.options import merge_options, merged
from searchgym.envs.registration import env_options, find_env, register
from searchgym.envs.task import load_task
from searchgym.errors import CardError, UsageError
from searchgym.eval.report.questions import of_training
from searchgym.eval.suites.cards import load_suite
from searchgym.eval.viewing.rewards import searchless_task
from searchgym.named import code_refused
from searchgym.retrieval.retriever import NullRetriever
from searchgym.train.loop.assembly import load_tasks
from searchgym.train.recipe.load import load_recipe
from searchgym.train.recipe.preflight import missing_data

SOURCE = """
import pathlib
from dataclasses import dataclass
from searchgym import Question
from searchgym.questions import QuestionSource

pathlib.Path("imported").touch()

@dataclass(frozen=True, slots=True, kw_only=True)
class Ask(QuestionSource):
    n: int = 1

    def load(self, context):
        return [Question(str(number), "Which?", ("Ada",)) for number in range(self.n)]

    def check_environment(self, context):
        if self.n > 5:
            yield "n is more than 5"
        1 / (self.n - 5)
"""


@pytest.fixture
def ask(tmp_path, monkeypatch):
    (tmp_path / "my_source.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_source", None)


def world(**questions):
    return load_task(find_env("World"), questions=questions, retriever=NullRetriever())


def test_fields_are_merged_and_another_kind_replaces_all():
    base = {"kind": "open", "n": 3, "world": {"size": 60, "seed": 3}}
    assert merged(base, {"world": {"seed": 4}}) == {"kind": "open", "n": 3, "world": {"size": 60, "seed": 4}}
    assert merged(base, {"kind": "open", "n": 4})["world"] == {"size": 60, "seed": 3}
    assert merged(base, {"kind": "world"}) == {"kind": "world"}
    assert base == {"kind": "open", "n": 3, "world": {"size": 60, "seed": 3}}
    card = find_env("World")
    layers = [{"top_k": 2, "questions": {"seed": 7, "size": 9}}, {"questions": {"kind": "world", "seed": 8}}]
    assert merge_options(card, *layers) == {"top_k": 2, "questions": {"kind": "world", "seed": 8, "size": 9}}
    files = merge_options(card, *layers, {"questions": ["a.jsonl"]})
    assert files["questions"] == ["a.jsonl"]
    assert merge_options(card, files, {"questions": {"size": 9}})["questions"] == {"kind": "world", "size": 9}
    assert merge_options(card, *layers, {"questions": None})["questions"] is None


def test_the_options_of_an_id_and_of_validation_are_merged_field_by_field(tmp_path, monkeypatch):
    """What decides the splits of a corpus, ``hold_out`` above all, holds in validation too."""
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    card = tmp_path / "mine.yaml"
    card.write_text("id: Sources/MergedFields-v0\nsummary: s\nquestions: {kind: world, size: 20, hops: [1]}\n")
    name = register(card, questions={"seed": 5})
    assert env_options(name, {"questions": {"size": 30}})["questions"] == {"kind": "world", "seed": 5, "size": 30}
    env = gymnasium.make(name, questions={"split": "test", "size": 10})
    made = env.unwrapped.task.card.questions
    assert (made.seed, made.size, made.split, made.hops) == (5, 10, "test", (1,))
    assert gymnasium.make(name).unwrapped.task.card.questions.size == 20
    together = gymnasium.make_vec(name, num_envs=2, questions={"size": 10, "split": "test"})
    assert together.reset(seed=[1, 2])[0][0] == env.reset(seed=1)[0]
    options = [f"env={name}", "env_options={questions: {size: 12}}", "validation.every=1"]
    recipe = load_recipe("tiny-grpo", [*options, "validation.env_options={questions: {split: validation}}"])
    train, validation = load_tasks(recipe)
    assert (train.split, validation.split) == ("train", "validation")
    for task in (train, validation):
        source = task.card.questions
        assert (source.seed, source.size, source.hops, len(task.questions)) == (5, 12, (1,), 12)


def test_a_hold_out_reaches_validation_and_the_proposer():
    layers = [{"questions": {"hold_out": ["e.jsonl"]}}, {"questions": {"split": "validation"}}]
    for name in ("Corpus", "MaskedSpan"):
        merged_options = merge_options(find_env(name), *layers)["questions"]
        assert (merged_options["hold_out"], merged_options["split"]) == (["e.jsonl"], "validation")
    from searchgym.questions.sources.generated import GeneratedQuestions
    from searchgym.questions.sources.masked import MaskedQuestions

    for cls in (GeneratedQuestions, MaskedQuestions):
        pages = cls(hold_out=["e.jsonl"], split="test").corpus_pages()
        assert (pages.hold_out, pages.split, pages.pack) == (["e.jsonl"], "test", "people-and-works")


def test_a_source_of_a_user_is_asked_checked_and_named(ask):
    task = world(kind="my_source:Ask", n=3)
    assert (len(task.questions), task.split, task.card.questions.title) == (3, "all", "my_source:Ask")
    for n, message in ((7, "n is more than 5"), (5, "check of its question source failed: ZeroDivisionError")):
        with pytest.raises(UsageError, match=f"World-v0: .*{message}"):
            world(kind="my_source:Ask", n=n)
    from my_source import Ask

    assert len(load_task(find_env("World"), questions=Ask(n=2), retriever=NullRetriever()).questions) == 2


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("worlds", "unknown question source 'worlds'; did you mean 'world'"),
        ("my_source:Gone", "has no attribute 'Gone'"),
        ("nowhere:Ask", "nowhere"),
        ("json:JSONDecoder", "must be one class, a frozen dataclass that inherits QuestionSource"),
        (3, "missing key kind, one of dataset, documents, generated, masked, open, world"),
    ],
)
def test_a_kind_that_is_none(ask, kind, message):
    with pytest.raises(UsageError, match=message):
        world(kind=kind)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": "60"}, r"questions\.size: expected an integer, got '60'"),
        ({"size": float("nan")}, r"questions\.size: expected an integer, got nan"),
        ({"masks": [1]}, r"questions\.masks: unknown key"),
        ({"hops": [5]}, "hops must be one or more of 1, 2, 3, 4"),
    ],
)
def test_fields_that_do_not_fit(fields, message):
    with pytest.raises(UsageError, match=message):
        world(**fields)


def test_code_of_others_is_not_imported(ask):
    """Neither by a suite, nor by a report or the view of a run of somebody else's."""
    (ask / "suite.yaml").write_text(
        "name: s\nsummary: s\nparts:\n  - env: searchgym/World-v0\n    n: 1\n"
        "    options: {questions: {kind: 'my_source:Ask'}}\n"
    )
    with pytest.raises(CardError, match="a kind of questions is code"):
        load_suite(str(ask / "suite.yaml"))
    options = {"questions": {"kind": "my_source:Ask"}}
    assert of_training({"env": "searchgym/World-v0", "env_options": options}, []) == {}
    with code_refused("see --run-code"), pytest.raises(UsageError, match="see --run-code"):
        searchless_task("searchgym/World-v0", options)
    assert not (ask / "imported").exists()


def test_a_bundled_file_is_one_of_the_package():
    for name in ("../pyproject.toml", "demo/../../setup.cfg", "/etc/passwd"):
        with pytest.raises(UsageError, match="is not a file of the package"):
            bundled_file(name)


def test_what_is_missing_is_said_by_the_source():
    line, *_ = missing_data(load_recipe("tiny-grpo", ["env=searchgym/NQ-v0", "env_options={}", "validation.every=0"]))
    assert line.startswith("questions nq_test.jsonl: get them from the FlashRAG datasets")
    assert missing_data(load_recipe("tiny-grpo")) == []


def test_the_command_line_takes_fields(tmp_path, monkeypatch, capsys):
    run = command_line(monkeypatch, capsys)
    result = json_of(run("eval", "World", "--questions", "{size: 12}", "--agent", "closed-book", "--json"))
    assert result["n"] == 12
    status, _, err = run("eval", "World", "--questions", "{sise: 12}", "--agent", "closed-book")
    assert (status, "questions.sise: unknown key; did you mean 'size'?" in err) == (2, True)
    status, _, err = run("eval", "--questions", "{size: 12}", "--corpus", "demo", "--agent", "closed-book")
    assert (status, "give its ID" in err) == (2, True)


def test_a_source_without_a_question_is_named(ask):
    with pytest.raises(UsageError, match="the question source my_source:Ask returned no questions"):
        world(kind="my_source:Ask", n=0)
