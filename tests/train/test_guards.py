"""What ends a run by itself: phases past their deadlines, metrics out of range."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from toy_training import BanditRollout, toy_model, toy_recipe, toy_trainer

from searchgym.errors import CardError, GuardError
from searchgym.train.algorithms.estimators.tree import Tree
from searchgym.train.loop.checkpoint import list_checkpoints
from searchgym.train.loop.guards import HUNG, Watchdog, bound_warning, check_guards, signal_warning
from searchgym.train.recipe.load import load_recipe
from searchgym.train.recipe.options import Bound, GuardOptions


@pytest.mark.slow
def test_a_silent_sampler_ends_the_run_with_stacks_and_checkpoint(tmp_path):
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, str(here / "hanging_training.py"), str(tmp_path / "run"), "2"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == HUNG
    assert "rollout of step 3 did not end within 2 s" in done.stderr
    assert "hanging_training.py" in (tmp_path / "run/stacks.txt").read_text()
    assert list(list_checkpoints(tmp_path / "run/checkpoints")) == [2]  # of the last whole step
    beat = json.loads((tmp_path / "run/heartbeat.json").read_text())
    assert (beat["phase"], beat["step"]) == ("rollout", 3)
    model = toy_model()
    resumed = toy_trainer(
        tmp_path / "run",
        toy_recipe(deadline={"rollout": 2.0}, validation={"every": 0}, checkpoint={"every": 0}),
        model=model,
        rollout=BanditRollout(model),
        resume=True,
    ).run()
    assert resumed.progress.step == 8


@pytest.mark.slow
def test_a_late_phase_waits_for_its_checkpoint(tmp_path, monkeypatch):
    events, begun, gone_on = [], threading.Event(), threading.Event()

    def save():
        begun.set()
        gone_on.wait(0.3)
        events.append("saved")

    monkeypatch.setattr("searchgym.train.loop.guards.os._exit", lambda status: events.append(status))
    with Watchdog(tmp_path, save).phase("learning", 1, 0.01):
        begun.wait()
    events.append("gone on")
    gone_on.set()
    assert events == ["saved", HUNG, "gone on"]


def test_a_checkpoint_that_does_not_end_either_ends_the_run_all_the_same(tmp_path, monkeypatch, capsys):
    ended, codes = threading.Event(), []

    def leave(code):
        codes.append(code)
        ended.set()

    monkeypatch.setattr("searchgym.train.loop.guards.RESCUE", 0.05)
    monkeypatch.setattr("searchgym.train.loop.guards.os._exit", leave)
    (tmp_path / "stacks.txt").mkdir()  # stacks that cannot be written are no reason to stay
    Watchdog(tmp_path, ended.wait)._end("learning", 7, 1.0)
    assert codes == [HUNG, HUNG]  # the second one, once the save came back: a process that has left would not be there
    assert "error: learning of step 7 did not end within 1 s; nor did its checkpoint" in capsys.readouterr().err


BOUNDED = [
    ("learner/entropy", False),
    ("learner/entropy", True),
    ("learner/old_kl", True),
    ("learner/ref_kl", True),
    ("rollout/generated_tokens", True),
    ("groups/zero_variance_share", True),
    ("learner/sampler_difference", True),
]


@pytest.mark.parametrize(("metric", "above"), BOUNDED)
def test_a_metric_must_be_out_of_range_for_some_steps_in_a_row(metric, above):
    options = GuardOptions(patience=2, bounds={metric: Bound(max=1.0) if above else Bound(min=1.0)})
    good, bad = (0.5, 2.0) if above else (2.0, 0.5)
    check_guards([{metric: bad}], options)
    check_guards([{metric: bad}, {metric: good}], options)
    check_guards([{metric: bad}, {metric: bad}], GuardOptions(patience=2, bounds={metric: None}))
    check_guards([{metric: bad}, {}], options)
    with pytest.raises(
        GuardError,
        match=rf"{metric} was {bad:g}, {bad:g} in the last steps, guard.bounds has at {'most' if above else 'least'} 1",
    ):
        check_guards([{metric: good}, {metric: bad}, {metric: bad}], options)


def test_a_bound_of_no_metric_is_told_once():
    options = GuardOptions(
        bounds={"learner/entropyy": Bound(min=0.1), "learner/old_kl": Bound(max=1.0), "time/x": None}
    )
    before, learnt = {"validation/em": 0.5}, {"learner/updates": 1.0, "learner/k/entropy": 1.0, "learner/k/old_kl": 0.0}
    assert (
        bound_warning([before], options) is None and bound_warning([before, {"learner/updates": 0.0}], options) is None
    )
    told = bound_warning([before, learnt], options)
    assert told is not None and "guard.bounds: no step so far has learner/entropyy; did you mean 'learner/" in told
    assert "old_kl;" not in told and bound_warning([before, learnt, learnt], options) is None


def test_steps_without_signal_are_told_once():
    def row(signal, em=0.0, illegal=0.75):
        groups = {"groups/groups": 4.0, "groups/small": 1.0, "groups/zero_variance": 3.0 - signal}
        return groups | {"rollout/reward": em, "rollout/em": em, "rollout/illegal": illegal}

    assert signal_warning([]) is None and signal_warning([{}, *[row(0)] * 4]) is None
    told = signal_warning([{"validation/em": 0.0}, row(1), *[row(0)] * 5])
    assert told is not None and "no group had signal in 5 steps" in told
    assert "0.00 on average, and 25% of outputs were legal" in told and "searchgym demonstrate" in told
    assert signal_warning([*[row(0)] * 4, row(1), *[row(0)] * 4]) is None
    assert signal_warning([row(0)] * 6) is None  # told a step ago
    assert signal_warning([*[row(0)] * 5, row(1), *[row(0)] * 5]) is None  # told before
    assert "take harder questions" in str(signal_warning([row(0, em=1.0, illegal=0.0)] * 5))
    assert signal_warning([{"learner/updates": 1.0}] * 9) is None  # a method without groups


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ("{}", "guard.bounds.learner/kl: expected min, max or both"),
        ("{min: 2, max: 1}", "min is 2 and max 1: no value is between them"),
        ("{max: .nan}", "expected a finite number"),
        ("{max: much}", "expected a number"),
        ("{most: 1}", "learner/kl.most: unknown key. Known: max, min"),
    ],
)
def test_bounds_that_cannot_hold_are_refused(bound, said):
    with pytest.raises(CardError, match=said):
        load_recipe("tiny-grpo", [f"guard.bounds={{learner/kl: {bound}}}"])


def test_a_tree_without_branches_is_told_once():
    def row(nodes, shared):
        return {"groups/nodes": float(nodes), "groups/shared": float(shared)}

    few = [row(40, 1), {}, row(40, 0), row(20, 2)]
    assert Tree().warning(few[:3]) is None  # two steps had a tree
    told = Tree().warning(few)
    assert told is not None and "3 of 100 calls" in told and "whose first call counts twice" in told
    assert Tree().warning([*few, row(40, 0)]) is None and Tree().warning([*few, {}]) is None
    assert Tree().warning([*few[:3], row(20, 4)]) is None  # 5 of 100
    assert Tree().warning([row(0, 0)] * 3) is None and Tree().warning([]) is None


@pytest.mark.slow_cases
@pytest.mark.parametrize(("shared", "told"), [("true", 1), ("false", 0)])
def test_a_training_by_branches_that_has_few_says_so(shared, told, tmp_path, capsys, monkeypatch):
    """Here any share is few; a control that shares nothing on purpose is not warned."""
    monkeypatch.setattr("searchgym.train.algorithms.estimators.tree.FEW", 1.1)
    recipe = toy_recipe(
        steps=4,
        advantage={"estimator": {"kind": "tree", "shared": shared == "true"}},
        validation={"every": 0},
        checkpoint={"every": 0},
    )
    toy_trainer(tmp_path / "run", recipe).run()
    assert capsys.readouterr().err.count("shared by several attempts") == told


@pytest.mark.slow
def test_a_guard_stops_the_run_and_names_the_last_good_checkpoint(tmp_path):
    recipe = toy_recipe(
        steps=30, guard={"bounds": {"learner/entropy": {"min": 1.5}}, "patience": 2}, checkpoint={"every": 1}
    )
    with pytest.raises(GuardError, match=r"learner/entropy was .* last good checkpoint: .*step-0000") as caught:
        toy_trainer(tmp_path / "run", recipe).run()
    last = max(list_checkpoints(tmp_path / "run/checkpoints"))
    assert 2 < last < 30
    assert f"step-{last:06d}" in str(caught.value)
