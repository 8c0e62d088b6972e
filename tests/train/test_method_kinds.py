"""Methods, proposers and curricula of a user's file: read, imported when they are used, checked, and refused."""

import sys

import pytest

from searchgym.errors import CardError
from searchgym.options import Unloaded, find_kind, kind_name, kinds
from searchgym.testing.bandit import QUESTIONS
from searchgym.train.curriculum.kinds.steps import Steps
from searchgym.train.curriculum.source import Curriculum
from searchgym.train.recipe.load import load_recipe, read_recipe, with_code
from searchgym.train.recipe.method import Method
from searchgym.train.recipe.recipe import dump_recipe
from searchgym.train.selfplay.kind import Proposer

OWN = """
from dataclasses import dataclass
from typing import Annotated
from annotated_types import Ge
from searchgym.train.curriculum.stages import Schedule
from searchgym.train.selfplay.kind import Proposer
from searchgym.train.recipe.method import Likelihood

@dataclass(frozen=True, slots=True, kw_only=True)
class Upwards(Schedule):
    after: Annotated[int, Ge(1)] = 2
    def planned(self, step, steps):
        return min(step // self.after, len(self.stages) - 1)

@dataclass(frozen=True, slots=True, kw_only=True)
class Better(Likelihood):
    than: float = 0.5
    @property
    def least_reward(self):
        return self.than

@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted(Proposer):
    text: str = "Which?"
    def check(self, setting):
        if self.text == "raise":
            return self.nothing
        return [f"{setting.attempts} attempts"] if not self.text else []
    def source(self, task, env_options, seed):
        return (task, env_options, seed, self.text)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_kinds.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_kinds", None)


def recipe(*values):
    return load_recipe("tiny-grpo", values)


def test_a_users_classes_are_used_without_edits(own):
    read = recipe("proposer={kind: 'own_kinds:Scripted', text: Who}")
    assert isinstance(read.proposer, Unloaded) and "own_kinds" not in sys.modules
    (own / "again.yaml").write_text(dump_recipe(read))
    assert read_recipe(own / "again.yaml") == read
    assert with_code(read).proposer.source(1, {}, 2) == (1, {}, 2, "Who")
    staged = with_code(recipe("curriculum={kind: 'own_kinds:Upwards', after: 3, stages: [{}, {}]}")).curriculum
    assert [Curriculum(QUESTIONS, staged, 0, 2, 9).stage_at(step) for step in range(7)] == [0, 0, 0, 1, 1, 1, 1]
    better = with_code(recipe("method={kind: 'own_kinds:Better', than: 0.7}")).method
    assert (better.least_reward, better.compares, better.demonstrated, kind_name(better)) == (
        0.7,
        False,
        0,
        "own_kinds:Better",
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("curriculum={kind: 'own_kinds:Upwards', after: 0, stages: [{}]}", "after: expected at least 1, got 0"),
        ("curriculum={kind: 'own_kinds:Upwards', aftr: 1, stages: [{}]}", "did you mean 'after'"),
        ("method={kind: 'own_kinds:Better', than: much}", "than: expected a number, got 'much'"),
        ("proposer={kind: 'own_kinds:Scripted', text: raise}", "proposer: its check failed: AttributeError"),
        ("proposer={kind: 'own_kinds:Scripted', text: ''}", "proposer: 4 attempts"),
        ("proposer={kind: 'own_kinds:Better'}", "must be one class, a frozen dataclass that inherits Proposer"),
        ("method=own_kinds:Nothing", "own_kinds"),
    ],
)
def test_what_is_wrong_with_a_users_class_is_told(own, value, said):
    with pytest.raises(Exception, match=said):
        with_code(recipe("rollout.attempts=4", value))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["method=rejections"], "unknown method 'rejections'; did you mean 'rejection'"),
        (["method=policy", "method.min_reward=1"], "method.min_reward: unknown key"),
        (["method.kind=rejection", "method.min_reward=.nan"], "method.min_reward: expected a finite number"),
        (["method={kind: supervised, demonstrations: x, batch: 0}"], "method.batch: expected at least 1, got 0"),
        (["method={kind: supervised, demonstrations: x}", "proposer=path"], "proposer: method supervised asks no"),
        (
            ["method={kind: supervised, demonstrations: x}", "curriculum={kind: steps, stages: [{}]}"],
            "curriculum: meth",
        ),
        (["supervised.batch=3"], "supervised.batch is an old name: write method: {kind: supervised, batch"),
        (["guard.max_kl=3"], r"guard.max_kl is an old name: write guard: \{bounds: \{learner/old_kl"),
        (["rollout.probe_limit=1"], "rollout.probe_limit is an old name"),
    ],
)
def test_what_cannot_work_is_refused(values, said):
    with pytest.raises(CardError, match=said):
        recipe(*values)


def test_old_sections_of_a_file_are_named_with_their_lines(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text(
        "name: n\nsummary: s\nmethod: supervised\nmodel: m\nenv: e\nagent: a\nsteps: 5\nsupervised:\n  batch: 3\n"
    )
    with pytest.raises(CardError, match=r"old.yaml:9: supervised.batch: write method: \{kind: supervised, batch"):
        read_recipe(path)


@pytest.mark.parametrize("base", [Method, Proposer, Steps.__base__])
def test_every_shipped_class_has_a_docstring_and_is_named_as_its_module(base):
    assert len(kinds(base)) >= 2
    for name in kinds(base):
        cls = find_kind(base, name)
        assert cls.__module__ == f"{base.kinds_in}.{name.replace('-', '_')}" and cls.__doc__.strip()
