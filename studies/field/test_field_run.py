"""The field run's logic on rows made by hand: rates, tables, verdicts, and what a stop leaves behind."""

import dataclasses
import importlib
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp
from test_benchmarks import script

from searchgym.errors import EngineLostError, TrainingError, UsageError
from searchgym.eval import two_way_ci
from searchgym.eval.viewing.saved import SavedRun
from searchgym.train.loop.assembly import train
from searchgym.train.recipe.load import load_recipe

pytestmark = pytest.mark.study
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def field():
    return importlib.import_module("field")


def row(em, **changes):
    before = {"em": 0.2}
    made = {"em": em, "searches": 2.0, "before": before, "steps": 7, "tokens": 60_000, "read": 250_000, "lr": 3e-4}
    made |= {"by_hops": {"1": em, "2": em / 2}, "collapsed": False, "minutes": 2.5}
    return made | {"curve": {"tokens": [1, 2, 3], "read": [1, 2, 3], "em": [0.1, 0.2, em]}} | changes


def rows_of(field, **by_arm):
    """Rows of all arms: the baseline's EM by seed is 0.40, 0.41 ..., others' as given relative to it."""
    return {
        (arm, seed): row(0.40 + 0.01 * seed + (by_arm.get(arm, 0.0) if arm in by_arm else 0.0) + 0.002 * (seed % 2))
        if arm != "grpo"
        else row(0.40 + 0.01 * seed)
        for arm, plan in field.ARMS.items()
        for seed in plan.seeds
    }


@pytest.mark.slow
def test_the_plan_is_what_the_protocol_says(field):
    for arm, plan in field.ARMS.items():
        values = field.values_of(arm, 1e-3, 4, 1000, ["rollout.questions=4"])
        recipe = load_recipe(values[0], values[1:])
        assert (recipe.optimizer.lr, recipe.seed, recipe.rollout.questions) == (1e-3, 4, 4)
        assert recipe.max_read_tokens == 1000 * plan.reads
        against = field.ARMS.get(plan.against or "")
        assert against is None or (against.role == "baseline" and against.reads == plan.reads)
        assert len(plan.rates) == 3 and plan.seeds == field.SEEDS[: len(plan.seeds)]
        assert (len(plan.seeds) == 5) == (plan.role == "beside")
    roles = [plan.role for plan in field.ARMS.values()]
    wanted = {"method": 6, "control": 2, "intervention": 8, "beside": 2, "baseline": 3}
    assert {role: roles.count(role) for role in wanted} == wanted


def test_the_control_of_branches_is_the_same_training_without_shared_calls(field):
    made = [field.values_of(arm, 1e-3, 0, 9, []) for arm in ("tree", "undivided-first-twice")]
    tree, control = (load_recipe(values[0], values[1:]) for values in made)
    estimator = dataclasses.replace(tree.advantage.estimator, shared=False)
    assert control == dataclasses.replace(tree, advantage=dataclasses.replace(tree.advantage, estimator=estimator))
    assert field.ARMS["undivided-first-twice"].rate_of == "tree"


def test_arms_differ_from_their_baseline_in_credit_alone(field):
    for arm, plan in field.ARMS.items():
        if plan.against is None:
            continue
        own, other = (load_recipe(name[0], list(name[1:])) for name in (plan.values, field.ARMS[plan.against].values))
        changed = {key for key in own.__dataclass_fields__ if getattr(own, key) != getattr(other, key)}
        assert changed <= {"credit", "advantage", "loss"}, arm


def recorded(field, tmp_path, **rates):
    kept = field.Recorded(tmp_path / "rows.jsonl", {})
    for name, ems in rates.items():
        arm = name.replace("_", "-")
        for rate, em in zip(field.ARMS[arm].rates, ems, strict=False):
            kept.add(f"{arm}@{rate:g}-100", row(abs(em), collapsed=em < 0))
    return kept


def test_rates_are_those_of_the_highest_score(field, tmp_path):
    kept = recorded(field, tmp_path, grpo=[0.3, 0.35, 0.31], vpr=[0.4, 0.4, 0.2], tree=[0.3, 0.2])
    assert field.rate_of("grpo", tmp_path, kept) == 3e-4
    assert field.rate_of("vpr", tmp_path, kept) == 1e-4  # the lower one of equals
    assert field.rate_of("tree", tmp_path, kept) is None  # one of its three is missing
    assert field.rate_of("llds", tmp_path, kept) is None


def test_the_rate_that_collapses_is_the_lowest_that_does(field, tmp_path):
    kept = recorded(field, tmp_path / "a", grpo_4=[0.3, -0.2, -0.1])  # below 0: marked as collapsed
    assert field.rate_of("grpo-4", tmp_path, kept) == field.rate_of("llds", tmp_path, kept) == 3e-3
    kept = recorded(field, tmp_path / "b", grpo_4=[0.3, 0.25, 0.09])  # 0.09 is under half of 0.2
    assert field.rate_of("grpo-4", tmp_path, kept) == 1e-2
    kept = recorded(field, tmp_path / "c", grpo_4=[0.3, 0.25, 0.2])
    assert field.rate_of("grpo-4", tmp_path, kept) == 1e-2


def test_contrasts_by_hand(field):
    rows = rows_of(field, vpr=0.05, oracle=0.1, tree=-0.05, permuted=-0.1)
    found = {made["contrast"]: made for made in field.contrasts(rows)}
    assert len(found) == 27
    vpr = found["vpr:grpo"]
    differences = [0.05 + 0.002 * (seed % 2) for seed in range(10)]
    assert vpr["difference"] == pytest.approx(0.051) and vpr["seeds"] == "10 of 10"
    assert vpr["p"] == pytest.approx(ttest_1samp(differences, 0).pvalue)
    assert vpr["p_holm"] == pytest.approx(min(1.0, 6 * vpr["p"]), rel=0.2)  # among the two smallest of six
    assert (vpr["verdict"], found["tree:grpo"]["verdict"]) == ("higher", "lower")
    assert found["llds:grpo-4"]["verdict"] == "not resolved"
    assert found["oracle:grpo"]["verdict"] == "wins, as it must"
    assert found["permuted:grpo"]["verdict"] == "does not win, as it must"
    assert found["oracle:grpo"]["p_holm"] is None
    assert found["tree:grpo-undivided"]["verdict"] == "does not win"  # beside Holm's six, though of a method
    assert found["tree:grpo-undivided"]["p_holm"] is None
    assert found["tree:undivided-first-twice"]["verdict"] == "does not win"


def test_contrasts_count_the_questions_too(field, monkeypatch):
    """One question of two makes the whole difference, in every seed: with other questions it might not be there."""
    monkeypatch.setattr(sys.modules["methods"], "two_way_ci", partial(two_way_ci, resamples=100))
    rows = rows_of(field)
    for (arm, _), own in rows.items():
        ems = {"q0": 1.0, "q1": float(arm in ("vpr", "oracle"))}
        own |= {"em": sum(ems.values()) / 2, "em_by_question": ems}
    found = {made["contrast"]: made for made in field.contrasts(rows)}
    vpr = found["vpr:grpo"]
    assert (vpr["difference"], vpr["low"], vpr["high"], vpr["over"]) == (0.5, 0.0, 1.0, "seeds and questions")
    assert vpr["verdict"] == "not resolved"
    assert found["oracle:grpo"]["verdict"] == "does not win, WRONG"
    del rows["vpr", 3]["em_by_question"]  # a row that was recorded without
    found = {made["contrast"]: made for made in field.contrasts(rows)}
    assert found["vpr:grpo"]["over"] == "seeds" and found["oracle:grpo"]["over"] == "seeds and questions"


def test_controls_that_fail_say_so(field):
    found = {
        made["contrast"]: made
        for made in field.contrasts(rows_of(field, oracle=-0.1, permuted=0.1, **{"oracle-steps": -0.1}))
    }
    assert found["oracle:grpo"]["verdict"] == "does not win, WRONG"
    assert found["permuted:grpo"]["verdict"] == "wins, WRONG"
    assert found["oracle-steps:grpo"]["verdict"] == "does not win"


def test_an_intervention_takes_the_steps_of_its_baseline(field, tmp_path):
    kept = recorded(field, tmp_path)
    with pytest.raises(UsageError, match="as many steps as grpo, which has not trained with seed 3"):
        field.steps_of("oracle-steps", 3, tmp_path, kept)
    kept.add("grpo-3", row(0.4, steps=9))
    steps = field.steps_of("oracle-steps", 3, tmp_path, kept)
    values = field.values_of("oracle-steps", 1e-3, 3, 1000, [], steps)
    recipe = load_recipe(values[0], values[1:])
    assert (recipe.steps, recipe.max_read_tokens) == (9, None)
    assert field.steps_of("oracle", 3, tmp_path, kept) is None
    found = {made["contrast"]: made for made in field.contrasts(rows_of(field, **{"oracle-steps": 0.05}))}
    assert found["oracle-steps:grpo"]["verdict"] == "wins"
    assert found["oracle-steps:grpo"]["p_holm"] is None
    assert found["oracle-steps:oracle"]["difference"] == pytest.approx(0.05)


def test_fewer_seeds_than_planned_give_no_verdict(field):
    rows = rows_of(field, vpr=0.05)
    del rows["vpr", 7]
    found = {made["contrast"]: made for made in field.contrasts(rows)}
    assert found["vpr:grpo"]["verdict"] == "no verdict: 9 of 10 seeds"
    assert found["tree:grpo"]["verdict"] == "no verdict: 5 of 6 contrasts have all seeds"
    assert all(made["p_holm"] is None for made in found.values())
    assert found["oracle:grpo"]["verdict"] == "wins, as it must"  # a control with all its seeds is judged
    table = {made["arm"]: made for made in field.table(rows)}
    assert (table["vpr"]["seeds"], table["ppo"]["seeds"]) == ("9 of 10", "5 of 5")
    assert "199 of 200 planned trainings" in field.notes(rows)[0]
    few = {key: own for key, own in rows.items() if key == ("grpo", 3)}
    assert field.contrasts(few) == [] and len(field.table(few)) == 1


def test_means_of_the_table(field):
    (made,) = field.table({("grpo", 0): row(0.4), ("grpo", 1): row(0.6, searches=3.0, read=270_000, collapsed=True)})
    assert (made["em"], made["1 hops"], made["2 hops"]) == pytest.approx((0.5, 0.5, 0.25))
    assert (made["searches"], made["read"], made["collapsed"], made["seeds"]) == (2.5, 260_000, 1, "2 of 10")


def test_notes_say_what_the_bench_lacks(field):
    rows = rows_of(field)
    assert any("LLDS had little to prevent" in line for line in field.notes(rows))
    high = {key: own | {"em": 0.9, "collapsed": key[0] == "grpo-4"} for key, own in rows.items()}
    assert field.notes(high) == ["the baseline ends at EM 0.900, not between 0.3 and 0.6: too little room"]
    ended = {("llds", 2): row(0.0, ended="the loss is nan")}
    assert any("counted as EM 0: llds-2" in line for line in field.notes(ended))


def arguments(tmp_path, monkeypatch, *given):
    """Gives the script its arguments."""
    places = ["--out", str(tmp_path / "out"), "--recorded", str(tmp_path / "rows.jsonl")]
    monkeypatch.setattr(sys, "argv", ["field.py", *given, *places])


def test_a_run_that_was_stopped_goes_on_where_it_ended(field, tmp_path, monkeypatch, capsys):
    made = []

    def trained_as(task, name, values, out, kept):
        if len(made) == 5:
            raise KeyboardInterrupt
        if name not in kept.rows:
            made.append((name, next(v for v in values if v.startswith("optimizer.lr")), len(task.questions)))
            kept.add(name, row(0.5 if "@0.0003" in name else 0.4))

    monkeypatch.setattr(field, "trained_as", trained_as)
    monkeypatch.setattr(field, "draw", lambda *given, **how: None)
    given = ["grpo", "vpr", "--seeds", "0", "1", "--questions", "3", "--json"]
    arguments(tmp_path, monkeypatch, *given)
    with pytest.raises(KeyboardInterrupt):
        field.main()
    first, made = made[:], []
    assert [name for name, *_ in first] == [
        "grpo@0.0001-100", "grpo@0.0003-100", "grpo@0.001-100", "vpr@0.0001-100", "vpr@0.0003-100",
    ]  # fmt: skip

    def rest(task, name, values, out, kept):
        if name not in kept.rows:
            made.append((name, next(v for v in values if v.startswith("optimizer.lr")), len(task.questions)))
            kept.add(name, row(0.5 if "@0.0003" in name else 0.4))

    monkeypatch.setattr(field, "trained_as", rest)
    field.main()
    assert [name for name, *_ in made] == ["vpr@0.001-100", "grpo-0", "vpr-0", "grpo-1", "vpr-1"]
    assert {rate for name, rate, _ in made if "@" not in name} == {"optimizer.lr=0.0003"}
    result = json.loads(capsys.readouterr().out)
    assert [made["seeds"] for made in result["arms"]] == ["2 of 10", "2 of 10"]
    assert result["contrasts"][0]["verdict"] == "no verdict: 2 of 10 seeds"
    made.clear()
    arguments(tmp_path, monkeypatch, *given, "--table")
    field.main()
    assert made == [] and json.loads(capsys.readouterr().out) == result


def test_a_training_that_cannot_go_on_counts_as_nothing_right(field, tmp_path, monkeypatch):
    run = tmp_path / "llds-0" / "train"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text(
        json.dumps({"step": 0, "generated_tokens": 0, "read_tokens": 0}) + "\n"
        + json.dumps({"step": 3, "generated_tokens": 9, "read_tokens": 70, "time/draw": 60.0, "rollout/em": 0.1}) + "\n"
    )  # fmt: skip

    def breaks(*given):
        raise TrainingError("the loss is nan")

    task = field.load_task(field.find_env(field.ENV))
    task = task.asking(task.questions[:4])
    monkeypatch.setattr(field, "trained_as", breaks)
    before = {"em": {"a": 0.5}, "f1": 0.5, "title_recall": [0.1], "searches": 1.0, "longest_prompt": 9}
    monkeypatch.setattr(field, "warm_scores", lambda *given: before)
    kept = field.Recorded(tmp_path / "rows.jsonl", {})
    values = field.values_of("llds", 1e-2, 0, 1000, [])
    field.trained(task, "llds-0", values, tmp_path, kept)
    (made,) = field.Recorded(tmp_path / "rows.jsonl", {}).rows.values()
    assert (made["em"], made["steps"], made["read"], made["minutes"], made["lr"]) == (0.0, 3, 70, 1.0, 1e-2)
    assert made["em_by_question"] == {question.id: 0.0 for question in task.questions}
    assert made["ended"] == "the loss is nan" and field.fell(made) and set(made["by_hops"].values()) == {0.0}
    assert field.known("llds-0", tmp_path, field.Recorded(None, {})) == made

    def gone(*given):
        raise EngineLostError("the engine has ended")

    monkeypatch.setattr(field, "trained_as", gone)
    with pytest.raises(EngineLostError):
        field.trained(task, "llds-1", values, tmp_path, kept)


@pytest.mark.parametrize(
    ("given", "said"), [(["gpro"], "no such arm: gpro"), (["--seeds", "11"], "planned are 0 to 9, got 11")]
)
def test_wrong_names_are_refused(given, said, field, tmp_path, monkeypatch, capsys):
    arguments(tmp_path, monkeypatch, *given)
    with pytest.raises(SystemExit):
        field.main()
    assert said in capsys.readouterr().err


def test_what_arms_would_change_in_a_recorded_training(tmp_path):
    """Where groups have signal, permuted outcomes have the same deviation: advantages move, and their mean stays 0."""
    options = ["steps=1", "rollout.questions=6", "rollout.attempts=6", "validation.every=0", "log.tensorboard=false"]
    options += ["optimizer.warmup_steps=0", "log.curve=false"]
    train(load_recipe("tiny-grpo", options), tmp_path / "run")
    found = script("studies/field/bites.py", str(tmp_path / "run"), "--steps", "1", "--json")
    assert found.returncode == 0, found.stderr
    rows = {made["arm"]: made for made in json.loads(found.stdout)["results"]}
    arms = ["grpo", "stratified", "vpr", "evidence", "tree", "oracle", "permuted"]
    arms += ["oracle-balanced", "oracle-third", "oracle-undivided", "vpr-balanced", "grpo-undivided"]
    arms += ["undivided-first-twice"]
    assert list(rows) == arms and (rows["grpo"]["changed"], rows["grpo"]["by"]) == (0, 0)
    saved = SavedRun.read(tmp_path / "run")
    assert {made["calls"] for made in rows.values()} == {sum(len(e.calls) for e in saved.episodes.values())}
    assert all(0 <= made["changed"] <= 1 for made in rows.values()) and rows["vpr"]["changed"] > 0.05
    missing = script("studies/field/bites.py", str(tmp_path / "run"), "--steps", "2")
    assert missing.returncode == 2 and "no episodes of step 2" in missing.stderr


def test_a_small_field_run_end_to_end(tmp_path):
    given = ["tree", "grpo", "--seeds", "0", "--read", "1", "--questions", "3", "--out", str(tmp_path / "out")]
    given += ["--recorded", str(tmp_path / "rows.jsonl"), "--json", "--set", "rollout.questions=4"]
    given += [
        "rollout.attempts=4",
        "env_options={questions: {split: train, size: 60, seed: 1}}",
        "log.tensorboard=false",
    ]
    given += ["optimizer.autocast=null", "rollout.max_tokens=64"]  # some CPUs emulate bfloat16
    found = script("studies/field/field.py", *given)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert [made["arm"] for made in result["arms"]] == ["grpo", "tree"]
    names = [json.loads(line)["name"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(names) == 8 and names[-2:] == ["tree-0", "grpo-0"]
    for made in result["arms"]:
        assert made["read"] > 0 and 0 <= made["em"] <= 1
    (contrast,) = result["contrasts"]
    assert contrast["contrast"] == "tree:grpo" and np.isfinite(contrast["difference"])
    assert (tmp_path / "out" / "curves.png").stat().st_size > 0
    again = script("studies/field/field.py", *given)
    assert again.returncode == 0 and json.loads(again.stdout) == result and "..." not in again.stderr
