"""Runs that are extended, and recipes that are tried with a few steps."""

import pytest
import torch
from test_training_loop import Interrupted, equal, rows, weights, with_rollout
from toy_training import toy_recipe, toy_trainer

from searchgym.errors import CardError, UsageError
from searchgym.options.cards import list_cards
from searchgym.train.recipe.load import load_recipe, read_recipe, with_warmups_of

FILES = ("episodes.jsonl", "episodes.tokens.bin", "episodes.advantages.jsonl", "recipe.yaml")
PARTS = {"loss": {"kl_coef": 0.01}, "optimizer": {"warmup_steps": 2, "minibatches": 2}}


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [None, 2, 3])
def test_an_extended_run_equals_one_that_had_all_steps_from_the_start(tmp_path, interrupted):
    """After its last step, or after an interrupt, with bits equal to those of the longer run."""
    short, long = toy_recipe(steps=4, **PARTS), toy_recipe(steps=8, **PARTS)
    whole = toy_trainer(tmp_path / "whole", long).run()
    if interrupted is None:
        toy_trainer(tmp_path / "parts", short).run()
    else:
        given = with_rollout(Interrupted)
        given["rollout"].at = interrupted
        with pytest.raises(KeyboardInterrupt):
            toy_trainer(tmp_path / "parts", short, **given).run()
    extended = toy_trainer(tmp_path / "parts", long, resume=True).run()
    assert extended.progress == whole.progress
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    assert equal(weights(extended.checkpoint), weights(whole.checkpoint))
    assert equal(weights(extended.best), weights(whole.best))
    for name in FILES:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.slow
def test_the_validation_of_the_former_last_step_is_all_that_differs(tmp_path):
    options = {"validation": {"every": 3}, "checkpoint": {"every": 3}}
    toy_trainer(tmp_path / "whole", toy_recipe(steps=6, **options)).run()
    toy_trainer(tmp_path / "parts", toy_recipe(steps=4, **options)).run()
    toy_trainer(tmp_path / "parts", toy_recipe(steps=6, **options), resume=True).run()
    whole, parts = (rows(tmp_path / name) for name in ("whole", "parts"))
    extra = {name for name in parts[4] if name not in whole[4]}
    assert extra and all(name.startswith("validation/") for name in extra)
    parts[4] = {name: value for name, value in parts[4].items() if name not in extra}
    assert parts == whole
    last = [weights(tmp_path / name / "checkpoints/last") for name in ("whole", "parts")]
    assert equal(*last)


def test_fewer_steps_than_planned_but_not_than_made(tmp_path):
    given = with_rollout(Interrupted)
    with pytest.raises(KeyboardInterrupt):
        toy_trainer(tmp_path / "run", toy_recipe(steps=8), **given).run()  # after 4 steps
    with pytest.raises(UsageError, match=r"4 of 8 steps are done: give at least steps=4"):
        toy_trainer(tmp_path / "run", toy_recipe(steps=3), resume=True)
    assert toy_trainer(tmp_path / "run", toy_recipe(steps=5), resume=True).run().progress.step == 5


NOISE = {"kind": "noise", "of": "bm25"}
GAE = {"advantage": {"estimator": "gae"}}
COSINE = {"optimizer": {"schedule": "cosine"}}


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (COSINE, r"optimizer\.schedule cosine"),
        (GAE | {"critic": COSINE}, r"critic\.optimizer\.schedule cosine"),
        ({"env_options": {"retriever": NOISE}}, r"noise of env_options\.retriever"),
        ({"env_options": {"retriever": {"kind": "cache", "of": NOISE}}}, r"noise of env_options\.retriever"),
    ],
)
def test_a_schedule_refuses_another_number_of_steps(tmp_path, options, named):
    toy_trainer(tmp_path / "run", toy_recipe(steps=2, **options)).run()
    before = (tmp_path / "run/recipe.yaml").read_bytes()
    said = (
        rf"steps was 2 and is 4 now, and .*{named}.* depends on it: .* Continue with steps=2, or start a new run from"
    )
    with pytest.raises(UsageError, match=said):
        toy_trainer(tmp_path / "run", toy_recipe(steps=4, **options), resume=True)
    assert (tmp_path / "run/recipe.yaml").read_bytes() == before
    toy_trainer(tmp_path / "run", toy_recipe(steps=2, **options), resume=True).run()


@pytest.mark.parametrize(
    "options",
    [
        {"env_options": {"retriever": NOISE | {"steps": 3}}},
        {"env_options": {"retriever": NOISE | {"start": 0.5}}},
        {"env_options": {"retriever": "bm25"}},
        {"critic": COSINE, "method": {"kind": "supervised", "demonstrations": "toy"}},
    ],
)
def test_schedules_with_a_length_of_their_own_do_not_depend_on_steps(options):
    from searchgym.train.recipe.extension import resume_problem

    assert resume_problem(toy_recipe(steps=2, **options), toy_recipe(steps=4, **options), 2) is None


def test_other_values_may_not_change(tmp_path):
    toy_trainer(tmp_path / "run", toy_recipe(steps=2)).run()
    changed = toy_recipe(steps=4, optimizer={"lr": 0.5}, seed=3)
    said = r"\(seed: 0 then, 3 now; optimizer\.lr: 0\.01 then, 0\.5 now\): only steps may change, so give seed=0 opt"
    with pytest.raises(UsageError, match=said):
        toy_trainer(tmp_path / "run", changed, resume=True)


# -- short looks ---------------------------------------------------------------------------------------------------


def test_warm_ups_are_shortened_to_the_steps_of_the_run():
    said = []
    recipe = load_recipe("tiny-jade", ["steps=2"], said.append)
    assert (recipe.steps, recipe.optimizer.warmup_steps, recipe.critic.warmup_steps) == (2, 2, 1)
    assert said == ["critic.warmup_steps: 1 instead of the recipe's 2, because steps is 2"]
    said = []
    assert load_recipe("tiny-grpo", ["steps=1"], said.append).optimizer.warmup_steps == 1
    assert said == ["optimizer.warmup_steps: 1 instead of the recipe's 3, because steps is 1"]
    said = []
    assert load_recipe("tiny-grpo", ["steps=3"], said.append).optimizer.warmup_steps == 3
    assert said == []


@pytest.mark.parametrize("name", list_cards("train"))
def test_every_recipe_can_be_tried_for_a_step(name):
    assert load_recipe(name, ["steps=1"]).steps == 1


def test_a_warm_up_that_somebody_asked_for_is_not_shortened(tmp_path):
    for name, override in (("tiny-grpo", "optimizer.warmup_steps=3"), ("tiny-jade", "critic.warmup_steps=2")):
        with pytest.raises(CardError, match=r"warmup_steps is \d of 1 steps"):
            load_recipe(name, ["steps=1", override])


@pytest.mark.slow
def test_a_shortened_run_resumes_and_says_how_to_extend_it(tmp_path):
    """The record of the run has the warm-up that it had."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: toy\nsummary: s\nmethod: policy\nmodel: toy\nenv: toy\nagent: toy\nsteps: 8\n"
        "rollout: {questions: 4, attempts: 8}\noptimizer: {lr: 1e-2, warmup_steps: 4}\n"
        "validation: {every: 2, questions: 4}\nlog: {tensorboard: false, curve: false}\n"
    )
    out = tmp_path / "run"
    toy_trainer(out, load_recipe(str(path), ["steps=2"])).run()
    assert read_recipe(out / "recipe.yaml").optimizer.warmup_steps == 2
    toy_trainer(out, load_recipe(str(path), ["steps=2"]), resume=True).run()
    with pytest.raises(UsageError, match=r"warmup_steps: 2 then, 4 now\).* give optimizer\.warmup_steps=2"):
        toy_trainer(out, load_recipe(str(path)), resume=True)
    extended = toy_trainer(out, load_recipe(str(path), ["optimizer.warmup_steps=2"]), resume=True).run()
    assert extended.progress.step == 8
    assert [row["learner/learning_rate"] for row in extended.rows[1:4]] == [5e-3, 1e-2, 1e-2]


def test_a_resumed_run_keeps_the_warm_up_that_it_began_with():
    """`steps=2` made the recipe's warm-up shorter; resumed with more steps, the run goes on with the shorter one."""
    overrides = ["steps=2", "optimizer.warmup_steps=1"]
    before, now = load_recipe("tiny-grpo", overrides), load_recipe("tiny-grpo", ["steps=6"])
    assert with_warmups_of(now, before, ["steps=6"]).optimizer.warmup_steps == 1
    given = load_recipe("tiny-grpo", ["steps=6", "optimizer.warmup_steps=3"])
    assert with_warmups_of(given, before, ["steps=6", "optimizer.warmup_steps=3"]).optimizer.warmup_steps == 3
