"""Trainings by a curriculum: resumed at every step they ask the same questions and give the same bits."""

from dataclasses import replace

from toy_training import QUESTIONS, exact, toy_recipe, toy_trainer

from searchgym.train.curriculum.kinds.pass_rate import PassRate
from searchgym.train.curriculum.source import Curriculum
from searchgym.train.curriculum.stages import StageOptions

KIND = ["easy", "hard"]


def source(steps):
    """Stages by pass rate over the bandit's questions, half of them of each kind."""
    asked = [replace(q, kind=KIND[n % 2]) for n, q in enumerate(QUESTIONS)]
    stages = [StageOptions(mix={"easy": 1}), StageOptions(mix={"easy": 1, "hard": 1}), StageOptions(mix={"hard": 1})]
    options = PassRate(stages=stages, by="kind", up=0.3, down=0.1, window=1)
    return Curriculum(asked, options, 0, 2, steps)


def test_a_resumed_training_goes_on_in_its_stage(tmp_path):
    recipe = {"rollout": {"questions": 2, "attempts": 8}, "checkpoint": {"every": 1}, "validation": {"every": 0}}
    whole = toy_trainer(tmp_path / "whole", toy_recipe(steps=8, **recipe), questions=source(8)).run()
    stages = [row["curriculum/stage"] for row in whole.rows if "curriculum/stage" in row]
    assert len(set(stages)) > 1, "the schedule must move for this test to say anything"
    for cut in (1, 3, 6):
        toy_trainer(tmp_path / f"{cut}", toy_recipe(steps=cut, **recipe), questions=source(8)).run()
        again = toy_trainer(tmp_path / f"{cut}", toy_recipe(steps=8, **recipe), questions=source(8), resume=True).run()
        assert exact(again.rows) == exact(whole.rows)
