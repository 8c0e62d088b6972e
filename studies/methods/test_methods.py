"""The studies of methods: contrasts, plans and curves by hand, and rows that are never repeated."""

import importlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
from scipy.stats import ttest_1samp
from test_benchmarks import here

from searchgym.corpora import folders as locks
from searchgym.errors import UsageError
from searchgym.eval import two_way_ci
from searchgym.eval.viewing.saved import SavedRun
from searchgym.train.loop.assembly import load_tasks, train
from searchgym.train.recipe.load import load_recipe

pytestmark = pytest.mark.study


def test_plans_of_a_team(tmp_path):
    """What M-ASK's team did in two small steps, counted once more by the tags in its outputs."""
    options = [
        "steps=2",
        "rollout.questions=4",
        "rollout.attempts=2",
        "rollout.max_tokens=96",
        "validation.every=0",
        "log.tensorboard=false",
    ]
    options += ["critic.warmup_steps=1", "log.curve=false"]
    run = tmp_path / "mask-0" / "train"
    world = "env_options={questions: {size: 60, seed: 1}, reward: f1, max_turns: 3}"
    train(load_recipe("tiny-mask", [*options, world]), run)
    found = here("studies/methods/plans.py", str(run), "--json")
    assert found.returncode == 0, found.stderr
    rows = json.loads(found.stdout)["results"]
    assert [(row["run"], row["steps"]) for row in rows] == [("mask-0", "1-1"), ("mask-0", "2-2")]
    saved = SavedRun.read(run)
    task = load_tasks(saved.recipe)[0]
    for number, row in enumerate(rows):
        own = [e for e in saved.episodes.values() if (e.group_uid or "").startswith(f"{number}/")]
        own = [e for e in own if task.find(e.question_id).metadata["hops"] > 1]
        assert row["episodes"] == len(own)
        assert row["searches"] == pytest.approx(sum(len(e.searches) for e in own) / len(own), abs=1e-3)
        assert row["legal plans"] == pytest.approx(sum(e.calls[0].legal for e in own) / len(own), abs=1e-3)
        legal = [e for e in own if e.calls[0].legal]
        if len(legal) == len(own):
            short = sum("<q2>" not in e.calls[0].text for e in own)
            assert row["one part"] == pytest.approx(short / len(own), abs=1e-3)


def test_recorded_rows_are_kept_and_never_mixed(tmp_path):
    recorded = importlib.import_module("recorded").Recorded
    path = tmp_path / "rows" / "study.jsonl"
    first = recorded(path, {"tokens": 9, "set": ["a=1"]})
    first.add("grpo-0", {"em": 0.5})
    first.add("grpo-0", {"em": 0.9})  # a training is recorded once
    recorded(path, {"tokens": 9, "set": ["a=1"]}).add("grpo-1", {"em": 0.25})
    assert recorded(path, {"tokens": 9, "set": ["a=1"]}).rows == {"grpo-0": {"em": 0.5}, "grpo-1": {"em": 0.25}}
    with pytest.raises(UsageError, match=r"study.jsonl:1: a row with settings .*9.*, not .*8"):
        recorded(path, {"tokens": 8, "set": ["a=1"]})
    recorded(None, {}).add("grpo-0", {})


def test_recorded_trainings_are_not_repeated(tmp_path, monkeypatch):
    methods = importlib.import_module("methods")
    kept = methods.Recorded(tmp_path / "rows.jsonl", {})
    kept.add("grpo-3", {"em": 0.5, "curve": {}})
    assert methods.trained(None, "grpo", 3, [], tmp_path, kept)["em"] == 0.5
    folder = tmp_path / "grpo-4" / "train"
    folder.mkdir(parents=True)
    (folder.parent / "row.json").write_text('{"em": 0.25}')
    steps = [
        {"generated_tokens": 10, "rollout/em": 0.1},
        {"generated_tokens": 10},
        {"generated_tokens": 25, "rollout/em": 0.2},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    row = {"em": 0.25, "curve": {"tokens": [10, 25], "em": [0.1, 0.2]}}
    assert methods.trained(None, "grpo", 4, [], tmp_path, kept) == row
    assert methods.Recorded(tmp_path / "rows.jsonl", {}).rows["grpo-4"] == row


def test_two_processes_evaluate_a_shared_model_in_turn(tmp_path, monkeypatch):
    """The second one finds the first one's lock, tries again until it is gone, and is not refused."""
    methods = importlib.import_module("methods")
    inside, met = threading.Event(), threading.Event()

    def scores_of(task, recipe, checkpoint, out):
        with locks.lock_folder(out):  # as an evaluation does
            first = not inside.is_set()
            inside.set()
            return {"waited": not first or met.wait(60)}

    monkeypatch.setattr(methods, "scores_of", scores_of)
    monkeypatch.setattr(locks.time, "sleep", lambda seconds: met.set())
    recipe = load_recipe("tiny-grpo", [])
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(methods.warm_scores, None, recipe, tmp_path)
        assert inside.wait(60)
        second = pool.submit(methods.warm_scores, None, recipe, tmp_path)
        assert first.result(60) == second.result(60) == {"waited": True}
    assert met.is_set() and (tmp_path / "before-search-r1-tiny").is_dir()


def test_growth_of_short_plans_by_hand():
    plans = importlib.import_module("plans")
    shares = {
        ("a", 0): (0.2, 0.5, 0.7),
        ("a", 1): (0.3, 0.3, 0.6),
        ("b", 0): (0.2, 0.9, 0.3),
        ("b", 1): (0.4, 0.0, 0.3),
    }
    rows = [{"run": f"{arm}-{seed}", "one part": share} for (arm, seed), own in shares.items() for share in own]
    # a grows by 0.5 and 0.3, b by 0.1 and -0.1: the differences are 0.4 and 0.4
    (row,) = plans.growth(rows)
    assert row == {"arms": "a:b", "seeds": 2, "difference": 0.4, "low": 0.4, "high": 0.4,
                   "growth of the first": 0.4, "of the second": 0.0}  # fmt: skip
    assert plans.growth(rows[:6]) == []


def test_curves_of_a_policy_and_of_demonstrations(tmp_path):
    made = {
        "policy": [{"step": n, "rollout/em": float(n)} for n in range(1, 6)] + [{"step": 5, "validation/em": 0.25}],
        "shown": [{"step": n, "learner/loss": 3.0 - n} for n in (1, 2)],
    }
    for name, rows in made.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    picture = tmp_path / "pictures" / "curves.png"
    ran = here("studies/methods/curves.py", *(str(tmp_path / name) for name in made), "--out", str(picture), "--json")
    policy, shown = json.loads(ran.stdout)["results"]
    assert (policy["steps"], policy["first"], policy["last"], policy["validation"]) == (5, 2.0, 4.0, "0.25")
    assert (shown["metric"], shown["first"]) == ("learner/loss", 1.5)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_main_effects_by_hand():
    methods = importlib.import_module("methods")
    em = {"neither": [0.30, 0.32], "proposer": [0.36, 0.36], "waypoint": [0.31, 0.33], "both": [0.39, 0.42]}
    rows = {(f"sp-{arm}", seed): {"em": values[seed]} for arm, values in em.items() for seed in (0, 1)}
    effects = {row["effect"]: row for row in methods.main_effects(rows, [0, 1])}
    assert effects["proposer"]["difference"] == pytest.approx(((0.06 + 0.08) / 2 + (0.04 + 0.09) / 2) / 2)
    assert effects["waypoints"]["difference"] == pytest.approx(((0.01 + 0.03) / 2 + (0.01 + 0.06) / 2) / 2)
    assert effects["both against neither"]["difference"] == pytest.approx(0.095)
    by_scipy = ttest_1samp([0.09, 0.10], 0).pvalue
    assert effects["both against neither"]["p"] == pytest.approx(by_scipy)
    assert methods.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert methods.holm([0.6, 0.5]) == [1.0, 1.0]


def rows_by_question(**by_arm):
    """Returns rows of arms with five seeds: EM of four questions, whose means are the same for every seed."""
    return {
        (arm, seed): {"em": sum(em) / 4, "gain": 0.0, "collapsed": False, "tokens": 100 + seed}
        | {"em_by_question": {f"q{n}": value for n, value in enumerate(em)}}
        for arm, em in by_arm.items()
        for seed in range(5)
    }


def test_a_contrast_counts_the_questions_too():
    """Five seeds that agree on four questions: over the seeds alone the difference of 0.5 would be certain."""
    methods = importlib.import_module("methods")
    rows = rows_by_question(grpo=[1.0, 1.0, 1.0, 0.0], ppo=[0.0, 0.0, 1.0, 0.0])
    made = methods.contrast(rows, "grpo", "ppo", list(range(5)))
    assert (made["difference"], made["over"], made["by seed"]) == (0.5, "seeds and questions", [0.5] * 5)
    assert (made["low"], made["high"], made["verdict"]) == (0.0, 1.0, "not resolved")  # two of four questions differ
    assert made["tokens"] == [102.0, 102.0]
    for row in rows.values():
        del row["em_by_question"]  # as recorded earlier
    made = methods.contrast(rows, "grpo", "ppo", list(range(5)))
    assert (made["over"], made["low"], made["verdict"]) == ("seeds", 0.5, "grpo wins")
    one = methods.contrast(rows, "grpo", "ppo", [0])
    assert (one["low"], one["high"], one["verdict"]) == (None, None, "not resolved")
    assert "Infinity" not in json.dumps(one)


def test_main_effects_count_the_questions_too(monkeypatch):
    methods = importlib.import_module("methods")
    monkeypatch.setattr(methods, "two_way_ci", partial(two_way_ci, resamples=100))
    em = {"neither": [0.0, 0.0, 0.0], "proposer": [1.0, 0.0, 0.0], "waypoint": [0.0, 0.0, 0.0], "both": [1.0, 0.0, 0.0]}
    rows = {
        (f"sp-{arm}", seed): {"em": 1 / 3 if sum(own) else 0.0, "em_by_question": dict(zip("abc", own, strict=True))}
        for arm, own in em.items()
        for seed in range(3)
    }
    effects = {row["effect"]: row for row in methods.main_effects(rows, [0, 1, 2])}
    assert effects["proposer"]["difference"] == pytest.approx(1 / 3)
    assert effects["proposer"]["low"] == 0 and effects["proposer"]["verdict"] == "not resolved"


def test_a_row_keeps_the_score_of_each_question(tmp_path, monkeypatch):
    methods = importlib.import_module("methods")
    scores = {"em": {"a": 1.0, "b": 0.0}, "f1": 0.5, "title_recall": [0.5], "searches": 1.0, "longest_prompt": 9}
    task = SimpleNamespace(questions=[SimpleNamespace(id=id, metadata={"hops": 1}) for id in "ab"])
    done = SimpleNamespace(rows=[], checkpoint=tmp_path, progress=SimpleNamespace(
        step=1, generated_tokens=5, read_tokens=7))  # fmt: skip
    monkeypatch.setattr(methods, "under", lambda recipe, task: task)
    monkeypatch.setattr(methods, "warm_scores", lambda *given: scores)
    monkeypatch.setattr(methods, "scores_of", lambda *given: scores)
    monkeypatch.setattr(methods, "train", lambda *given, **how: done)
    row = methods.new_row(task, "grpo-0", ["tiny-grpo"], tmp_path)
    assert (row["em"], row["em_by_question"]) == (0.5, {"a": 1.0, "b": 0.0})
