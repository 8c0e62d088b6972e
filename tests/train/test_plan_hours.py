"""Hours of a plan: predictions by hand, a run's own steps, and how sure they are."""

import json

import pytest

from searchgym.errors import DataError
from searchgym.train import load_recipe
from searchgym.train.plan.hours import DEVICES, SIGNAL, Device, Lengths, Speed, estimate, slower
from searchgym.train.plan.shapes import model_shape

GIVEN = Lengths(100, 300)
STEP = ["validation.every=0", "rollout.questions=10", "rollout.attempts=8"]


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """A device whose seconds per token do not depend on the model: 1 ms sampled, 0.1 ms learnt."""
    monkeypatch.setitem(DEVICES, "cpu", Device(Speed(1e-3, 0.0), Speed(1e-4, 0.0), True))


def predicted(*values, recipe="tiny-grpo", device="cpu", tokens=GIVEN):
    return estimate(load_recipe(recipe, [*STEP, *values]), device, tokens=tokens)


def test_a_step_by_hand():
    step = predicted()
    assert (step.draw, step.learn) == (pytest.approx(80 * 100 * 1e-3), pytest.approx(80 * 400 * 1e-4 * SIGNAL))
    assert step.seconds == step.draw + step.learn
    assert (step.limit, step.basis, step.factor, step.why) == ("drawing", "prediction", 1.25, "")


def test_what_a_recipe_adds():
    plain = predicted()
    validated = predicted("validation.every=5", "validation.questions=100")
    assert validated.draw == pytest.approx((80 + 20) * 100 * 1e-3) and validated.learn == plain.learn
    assert predicted("learner.gradient_checkpointing=full").learn == pytest.approx(4 / 3 * plain.learn)
    assert predicted("lora.rank=4").learn == pytest.approx(4 / 6 * plain.learn)
    assert predicted("loss.kl_coef=0.01").learn == pytest.approx(4 / 3 * plain.learn)
    assert predicted(recipe="tiny-ppo").learn == pytest.approx(80 * 400 * 1e-4 * (1 + 4 / 3))
    assert predicted(recipe="tiny-ppo").limit == "drawing"
    assert predicted("learner.backend.kind=deepspeed", "learner.backend.ranks=2").learn == pytest.approx(
        plain.learn / 2
    )


def test_time_grows_with_the_weights(monkeypatch):
    monkeypatch.setitem(DEVICES, "cpu", Device(Speed(1e-3, 2.0), Speed(0.0, 3.0), True))
    billions = model_shape("tiny").parameters / 1e9
    step = predicted()
    assert step.draw == pytest.approx(80 * 100 * (1e-3 + 2.0 * billions))
    assert step.learn == pytest.approx(80 * 400 * 3.0 * billions * SIGNAL)


def test_how_sure_it_is():
    assert predicted(tokens=None).factor == 2.0
    assert predicted(device="h100").why == "h100 was never measured"
    unsure = predicted(device="h100", tokens=None)
    assert unsure.factor == 3.0 and unsure.why.startswith("h100 was never measured and lengths of episodes are assumed")
    assert predicted(device=None) is None
    half = slower(DEVICES["h200"], products=0.25, bandwidth=0.5)
    assert half.sample.per_billion == 2 * DEVICES["h200"].sample.per_billion and not half.measured
    assert half.learn.per_billion == 4 * DEVICES["h200"].learn.per_billion


def test_supervised_training_is_not_predicted_since_it_draws_nothing():
    assert estimate(load_recipe("tiny-warm"), "cpu", tokens=GIVEN) is None


def test_a_runs_first_steps_correct_it(tmp_path):
    recipe, file = load_recipe("tiny-grpo", STEP), tmp_path / "metrics.jsonl"
    assert estimate(recipe, None, run=file) is None
    rows = [{"step": 0, "time/validation": 50.0}, {"step": 1, "time/draw": 200.0, "time/learn": 100.0}]
    rows.append({"step": 2, "time/draw": 99.0, "time/waited": 5.0, "time/learn": 10.0, "time/validation": 15.0})
    rows.append({"step": 3, "time/draw": 8.0, "time/learn": 14.0})
    for count, seconds, factor in ((2, 300.0, 2.0), (3, 30.0, 2.0), (4, 26.0, 1.25)):  # the first warms up
        file.write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
        step = estimate(recipe, "cpu", run=file)
        assert (step.seconds, step.factor, step.basis) == (pytest.approx(seconds), factor, "run")
    assert (step.draw, step.learn) == (14.0, 12.0)
    assert estimate(recipe, "cpu", step_seconds=36.0, run=file).seconds == 36.0
    file.write_text('{"step": 1, "train/episodes": 3}\n')
    assert estimate(recipe, None, run=file) is None, "no times"
    for bad in ('{"step": 1, "time/draw": "2.0"}', '{"time/draw": 2.0}', '{"step": 1, "time/learn": -1}'):
        file.write_text(f"{json.dumps(rows[1])}\n{bad}\n")
        with pytest.raises(DataError, match=r"metrics\.jsonl:2: not the metrics of a step"):
            estimate(recipe, "cpu", run=file)
