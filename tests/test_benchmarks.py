"""Every script under benchmarks/ prints a table, or exactly one JSON object with --json; progress goes to stderr."""

import importlib.util
import io
import json
import os
import runpy
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from linked_pages import linked_pages
from scipy.stats import ttest_1samp

from searchgym.corpora import folders
from searchgym.corpora.passages import write_corpus
from searchgym.corpora.questions import write_questions
from searchgym.errors import SearchGymError, UsageError
from searchgym.eval import two_way_ci
from searchgym.eval.viewing.saved import SavedRun
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.train.loop.assembly import load_tasks, train
from searchgym.train.recipe.load import load_recipe

ROOT = Path(__file__).parent.parent
QUICK = {  # arguments, and rows at least
    "attack_server.py": (
        ["--passages", "2000", "--slow-seconds", "3", "--timeout", "1", "--seconds", "1", "--requests", "500"],
        15,
    ),
    "evaluation.py": (["--questions", "8", "--runs", "1"], 6),
    "threads.py": (["--widths", "64", "--layers", "1", "--runs", "1"], 1),
    "precision.py": (["--corpus", "searchgym/demo/corpus.jsonl", "--prompts", "4"], 5),
    "real_questions.py": (
        [
            *("--base", "tiny", "--warm", "tiny", "--limit", "3", "--dtype", "float32"),
            *("--questions", "searchgym/demo/questions.json", "--corpus", "searchgym/demo/corpus.jsonl"),
        ],
        13,
    ),
    "docstrings.py": (["--number", "3"], 3),
    "viewing.py": (["--episodes", "200"], 14),
    "env_throughput.py": (["--runs", "1", "--steps", "64", "--grow", "0"], 6),
    "report.py": (["--episodes", "20"], 1),
    "worlds.py": (["--size", "100", "--seeds", "1"], 6),
    "gpu.py": (["--shapes", "mini", "--row-tokens", "64", "--step-tokens", "256", "--runs", "2"], 1),
    "decode_attention.py": (["--rows", "4", "--columns", "40", "--runs", "2"], 4),
    "memory.py": (["--width", "64", "--layers", "2", "--vocabulary", "500", "--tokens", "512"], 2),
    "contexts.py": (["--passages", "searchgym/demo/corpus.jsonl", "--questions", "searchgym/demo/questions.json"], 2),
    "cosearch.py": (
        ["compare", "World", "--reasoner", "tiny-teams", "--ranker", "untrained=tiny-teams", "--questions", "3"],
        3,
    ),
    "long_horizon.py": (["--turns", "6"], 2),
    "train.py": (["--groups", "2", "--attempts", "2", "--trl-batch", "2", "--runs", "1"], 2),
}

ALONE = {"attack_server.py", "memory.py", "report.py", "train.py", "viewing.py"}
"""Scripts that measure their process or leave threads behind: each runs in one of its own, which costs seconds."""


def script(name, *args):
    env = {name: value for name, value in os.environ.items() if name != "SEARCHGYM_DATA"}
    command = [sys.executable, str(ROOT / "benchmarks" / name), *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env | {"PYTHONPATH": str(ROOT)})


def here(name, *args):
    """Runs a script in this process, which has the heavy libraries; returns what `script` does."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(ROOT)
        patch.delenv("SEARCHGYM_DATA", raising=False)
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.setattr(sys, "argv", [name, *args])
        try:
            runpy.run_path(str(ROOT / "benchmarks" / name), run_name="__main__")
        except SystemExit as ended:
            code = ended.code or 0
        except SearchGymError as error:
            code = 1
            print(error, file=err)
    return subprocess.CompletedProcess([name, *args], code, out.getvalue(), err.getvalue())


def test_every_script_has_json():
    texts = {path.name: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
    scripts = [name for name, text in texts.items() if "__main__" in text]
    assert {"retrieval.py", "serving.py"} < set(scripts) < texts.keys()
    for name in scripts:
        assert '"--json"' in texts[name], name


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", ["retrieval.py", "serving.py"])
def test_help(name):
    found = script(name, "--help")
    assert (found.returncode, "--json" in found.stdout) == (0, True), found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_scripts_print_a_table_or_one_object(name):
    arguments, rows = QUICK[name]
    found = (script if name in ALONE else here)(name, *arguments, "--json")
    assert found.returncode == 0, found.stderr
    assert len(json.loads(found.stdout)["results"]) >= rows
    assert "..." in found.stderr


@pytest.mark.slow
def test_structure():
    found = script("structure.py", "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    rooms = {row["room"]: row for row in result["rooms"]}
    assert rooms["searchgym.retrieval.bm25"]["floor"] > rooms["searchgym.corpora"]["floor"] > 0
    assert sum(row["lines"] for row in rooms.values()) > 20_000
    assert [row["of"] for row in result["sizes"]] == ["files", "functions"]
    assert (result["circles_of_modules"], result["packages_that_import_each_other"]) == ([], [])
    assert result["counts"]["options"] > result["counts"]["options in no recipe"] > 0
    assert [
        row["member"] for row in result["kinds"] if row["places"] is None
    ] == []  # the table of members is up to date


@pytest.mark.engine
def test_engines_of_retrieval():
    """On generated passages and vectors; pyserini's own searcher takes longer to import than all else."""
    text = ["--sizes", "200", "--queries", "16", "--engines", "bm25", "lucene"]
    vectors = ["--vectors", "300", "--dimension", "8", "--kinds", "ivf-sq8"]
    found = script("retrieval.py", *text, *vectors, "--runs", "1", "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert [(row["engine"], row["passages"], row["questions"]) for row in result["bm25"]] == [
        ("bm25", 200, 16),
        ("lucene", 200, 16),
    ]
    assert [(row["index"], row["vectors"]) for row in result["vectors"]] == [("ivf-sq8", 300)]
    assert all(row[f"qps_b{b}_t{t}"] > 0 for row in result["bm25"] for b, t in ((1, 1), (16, 1), (256, 2)))
    assert result["projection"] == []


@pytest.mark.slow
def test_retrieval_takes_real_passages_and_questions():
    demo = ROOT / "searchgym" / "demo"
    data = ["--corpus", str(demo / "corpus.jsonl"), "--questions", str(demo / "questions.json")]
    found = script("retrieval.py", *data, "--engines", "bm25", "--runs", "1", "--vectors", "0", "--json")
    assert found.returncode == 0, found.stderr
    (row,) = json.loads(found.stdout)["bm25"]
    assert (row["passages"], row["questions"]) == (25, 12)
    alone = script("retrieval.py", *data[:2])
    assert (alone.returncode, "belong together" in alone.stderr) == (2, True)


@pytest.mark.study
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
    found = here("plans.py", str(run), "--json")
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


def module(name):
    """Imports a script as a module; scripts import each other by name."""
    if str(ROOT / "benchmarks") not in sys.path:
        sys.path.append(str(ROOT / "benchmarks"))
    found = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    script = importlib.util.module_from_spec(found)
    found.loader.exec_module(script)
    return script


def test_recorded_rows_are_kept_and_never_mixed(tmp_path):
    recorded = module("recorded").Recorded
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
    methods = module("methods")
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


def test_two_processes_that_share_a_folder_evaluate_the_warm_model_one_after_the_other(tmp_path, monkeypatch):
    """The second one finds the first one's lock, tries again until it is gone, and is not refused."""
    methods = module("methods")
    inside, met = threading.Event(), threading.Event()

    def scores_of(task, recipe, checkpoint, out):
        with folders.lock_folder(out):  # as an evaluation does
            first = not inside.is_set()
            inside.set()
            return {"waited": not first or met.wait(60)}

    monkeypatch.setattr(methods, "scores_of", scores_of)
    monkeypatch.setattr(folders.time, "sleep", lambda seconds: met.set())
    recipe = load_recipe("tiny-grpo", [])
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(methods.warm_scores, None, recipe, tmp_path)
        assert inside.wait(60)
        second = pool.submit(methods.warm_scores, None, recipe, tmp_path)
        assert first.result(60) == second.result(60) == {"waited": True}
    assert met.is_set() and (tmp_path / "before-search-r1-tiny").is_dir()


def test_growth_of_short_plans_by_hand():
    plans = module("plans")
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


@pytest.fixture
def practised(tmp_path):
    """A folder as `questions select` leaves it, with questions of a world, and the world's corpus."""
    world = build_world(WorldSpec("simple", size=40, seed=5, split="train"))
    corpus = tmp_path / "corpus.jsonl"
    write_corpus(corpus, world.passages)
    for name, questions in (("practice", world.questions[:16]), ("validation", world.questions[16:20]),
                            ("test", world.questions[20:26])):  # fmt: skip
        (tmp_path / name).mkdir()
        write_questions(tmp_path / name / "questions.jsonl", questions)
        write_corpus(tmp_path / name / "corpus.jsonl", world.passages)
    return tmp_path


SMALL = ["steps=2", "rollout.questions=4", "rollout.attempts=2", "rollout.resample=0", "learner.frozen_layers=0"]
SMALL += [
    "advantage.drop_zero_variance=false",
    "validation.every=2",
    "validation.questions=4",
    "log.tensorboard=false",
    "log.curve=false",
    "optimizer.autocast=null",  # some CPUs emulate bfloat16
]


@pytest.mark.study
def test_a_ranker_is_shown_its_role(tmp_path):
    found = here("cosearch.py", "show", "--out", str(tmp_path), "--n", "12", "--set", "steps=1", "method.batch=4")
    assert found.returncode == 0, found.stderr
    assert load_recipe(str(tmp_path / "shown" / "recipe.yaml")).agent == "cosearch"
    assert (tmp_path / "shown" / "checkpoints" / "last").exists()
    assert (tmp_path / "demonstrations" / "episodes.jsonl").read_text().count('"ranked"') > 6


@pytest.mark.study
def test_a_ladder_of_two_rungs(practised):
    given = ["recipe", "lr 2e-5", "--home", str(practised), "--out", str(practised / "ladder"), "--json"]
    found = here("ladder.py", *given, "--set", "model=tiny", *SMALL)
    assert found.returncode == 0, found.stderr
    rows = json.loads(found.stdout)["results"]
    assert [row["rung"] for row in rows] == ["recipe", "lr 2e-5"]
    assert all(len(row["validation"]) == 2 for row in rows)
    run = practised / "ladder" / "recipe" / "train"
    assert load_recipe(str(run / "recipe.yaml")).optimizer.lr == 1e-5
    assert load_recipe(str(practised / "ladder" / "lr-2e-5" / "train" / "recipe.yaml")).optimizer.lr == 2e-5
    # the first and last fifth of 16 episodes are three each, counted here once more
    first = list(SavedRun.read(run).episodes.values())[:3]
    assert rows[0]["em, first"] == round(sum(episode.scores["em"] for episode in first) / 3, 3)
    assert rows[0]["searches, first"] == round(sum(len(episode.searches) for episode in first) / 3, 3)


@pytest.mark.study
def test_a_study_of_all_arms(practised):
    out = practised / "study"
    # the facts of a world's pages that patterns of real text find are of one page, or lead to comparisons
    arms = ("warm", "grpo", "demonstrations", "rejection", "permuted", "worlds", "selfplay-any")
    given = [*arms, "--seeds", "0", "--home", str(practised)]
    given += ["--corpus", str(practised / "corpus.jsonl"), "--model", "tiny", "--out", str(out), "--json"]
    given += ["--shown", "learner.frozen_layers=0", "optimizer.autocast=null", "--dtype", "float32", "--set", *SMALL]
    found = here("real_training.py", *given)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert {(row["arm"], row["set"]) for row in result["results"]} == {
        (arm, f"generated {agent}") for arm in arms for agent in ("search-r1", "direct")
    }
    records = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert set(records) == {f"{arm}-0" for arm in arms}
    read = [records[f"{arm}-0"]["tokens_read"] for arm in ("grpo", "demonstrations")]
    assert 0.5 < read[1] / read[0] < 2  # as near as whole steps of eight demonstrations come
    assert load_recipe(str(out / "worlds-0" / "train" / "recipe.yaml")).env == "searchgym/WorldFull-v0"
    contrast = next(row for row in result["contrasts"] if row["contrast"] == "grpo less warm")
    em = [[records[f"{arm}-0"]["scores"]["generated search-r1"]["em"][id] for id in sorted(
        records["warm-0"]["scores"]["generated search-r1"]["em"])] for arm in ("grpo", "warm")]  # fmt: skip
    assert contrast["em"] == pytest.approx(sum(em[0]) / 6 - sum(em[1]) / 6)
    again = here("real_training.py", *given)
    assert again.returncode == 0 and json.loads(again.stdout) == result and "scored" not in again.stderr
    refused = here("real_training.py", "selfplay", *given[len(arms) :])
    assert refused.returncode == 1 and "name their answer (comparisons)" in refused.stderr


@pytest.mark.study
def test_documents_of_linked_pages(practised):
    given = ["--corpus", str(practised / "corpus.jsonl"), "--pages", "4"]
    given += ["--questions", str(practised / "practice" / "questions.jsonl"), "--out", str(practised / "documents")]
    found = here("own_corpus.py", *given, "--json")
    assert found.returncode == 0, found.stderr
    texts = [path.read_text() for path in sorted((practised / "documents").glob("*.md"))]
    assert json.loads(found.stdout)["documents"] == len(texts) and 2 <= len(texts) <= 4
    assert all(text.startswith("---\ntitle: ") for text in texts)


@pytest.mark.study
def test_self_play_in_figures(tmp_path):
    """A tiny recorded training: signal with waypoints is at least that without, and half of a step is chosen."""
    found = here("selfplay.py", "--size", "200", "--proposals", "400", "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    valid = {(row["proposer"], row["hops"]): row["valid"] for row in result["validity"]}
    assert all(valid["path", hops] == 1 > valid["kinds", hops] > valid["blind", hops] for hops in (1, 2, 3))
    options = ["steps=6", "rollout.questions=4", "rollout.attempts=3", "validation.every=0"]
    run = tmp_path / "run"
    train(load_recipe("tiny-grpo", options), run)
    found = here("selfplay.py", str(run), "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert {(row["arms by"], row["run"], row["steps"]) for row in result["replay"]} == {
        (level, name, 2) for level in ("hops", "shape", "last", "relations") for name in ("all", "0")
    }
    every = next(row for row in result["waypoints"] if row["questions"] == "all")
    assert every["groups"] == 24 and every["with waypoints"] >= every["outcome"]
    groups = {}
    for episode in SavedRun.read(run).episodes.values():
        groups.setdefault(episode.group_uid, []).append(episode.reward)
    mixed = sum(len(set(rewards)) > 1 for rewards in groups.values())
    assert every["outcome"] == pytest.approx(mixed / 24)


def test_curves_of_a_policy_and_of_demonstrations(tmp_path):
    made = {
        "policy": [{"step": n, "rollout/em": float(n)} for n in range(1, 6)] + [{"step": 5, "validation/em": 0.25}],
        "shown": [{"step": n, "learner/loss": 3.0 - n} for n in (1, 2)],
    }
    for name, rows in made.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    picture = tmp_path / "pictures" / "curves.png"
    ran = here("curves.py", *(str(tmp_path / name) for name in made), "--out", str(picture), "--json")
    policy, shown = json.loads(ran.stdout)["results"]
    assert (policy["steps"], policy["first"], policy["last"], policy["validation"]) == (5, 2.0, 4.0, "0.25")
    assert (shown["metric"], shown["first"]) == ("learner/loss", 1.5)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_main_effects_by_hand():
    methods = module("methods")
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
    methods = module("methods")
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
    methods = module("methods")
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
    methods = module("methods")
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


def test_the_contrast_of_warm_starts_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import masked_warm_start

    em = {"masked": (0.5, 0.6, 0.55), "plain": (0.4, 0.5, 0.45)}
    rows = [{"arm": arm, "seed": n, "warm em": own} for arm, values in em.items() for n, own in enumerate(values, 1)]
    found = masked_warm_start.contrast(rows, "warm")
    assert found["difference"] == pytest.approx(0.1) and found["verdict"] == "masked wins"
    whole = [
        row | {"warm em_by_question": {f"q{n}": float(n < 10 * row["warm em"]) for n in range(10)}} for row in rows
    ]
    found = masked_warm_start.contrast(whole, "warm")
    assert found["verdict"] == "not resolved" and found["low"] == 0  # one question of ten makes all of it
    worse = [row | {"warm em": 1 - row["warm em"]} for row in rows]
    assert masked_warm_start.contrast(worse, "warm")["verdict"] == "plain wins"
    rows[0]["warm em"] = 0.1
    assert masked_warm_start.contrast(rows, "warm")["verdict"] == "not resolved"


@pytest.mark.study
def test_two_warm_starts_that_are_not_repeated(tmp_path):
    given = ["--seeds", "1", "--reader", "9000", "--tokens", "8000", "--steps", "1", "--questions", "2", "--float32"]
    given += ["--set", "rollout.questions=2", "rollout.attempts=2", "rollout.max_tokens=16"]
    kept = ["--recorded", str(tmp_path / "rows.jsonl"), "--json"]
    found = here("masked_warm_start.py", *given, "--out", str(tmp_path / "runs"), *kept)
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert [row["arm"] for row in result["arms"]] == ["masked", "plain"]
    assert all(row["tokens"] >= 8000 and row["generated_tokens"] > 0 for row in result["arms"])
    assert [row["after"] for row in result["contrasts"]] == ["warm", "trained"]
    recorded = here("masked_warm_start.py", *given, "--out", str(tmp_path / "elsewhere"), *kept)
    assert recorded.returncode == 0 and json.loads(recorded.stdout) == result
    assert not (tmp_path / "elsewhere" / "reader").exists()
    other = here("masked_warm_start.py", *given, "--questions", "3", "--out", str(tmp_path / "runs"))
    assert other.returncode == 2 and "another --out" in other.stderr


def test_episodes_of_two_runs_stand_side_by_side(tmp_path):
    questions = [{"id": f"q{n}", "question": f"Who | {n}?", "golden_answers": ["Ada", "Ada L."]} for n in range(4)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    wrong = {"searches": [], "answer": None, "scores": {"em": 0.0}}
    right = {"searches": [{"query": "a"}, {"query": "b"}], "answer": {"text": "Ada"}, "scores": {"em": 1.0}}
    for name, ids, told in (("before", "031", wrong), ("after", "1230", right)):
        rows = [{"question_id": f"q{n}"} | told for n in ids]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [str(tmp_path / "before"), str(tmp_path / "after"), "--questions", str(tmp_path / "test.jsonl")]
    printed = here("side_by_side.py", *given, "--n", "2").stdout.splitlines()
    assert printed[2:] == [f"| Who / {n}? | Ada, Ada L. |  → no answer (wrong) | a; b → Ada (right) |" for n in (0, 1)]
    assert [row["question"] for row in json.loads(here("side_by_side.py", *given, "--json").stdout)["results"]] == [
        "Who | 0?",
        "Who | 1?",
        "Who | 3?",
    ]


@pytest.mark.study
def test_masked_spans_are_counted_and_printed(tmp_path):
    write_corpus(tmp_path / "corpus.jsonl", linked_pages(12))
    found = here("masked_spans.py", str(tmp_path / "corpus.jsonl"), "--n", "40", "--shown", "3", "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    for source, with_source in (("kept", True), ("hidden", False)):
        told = result[source]
        assert told["spans"] == sum(told["by kind"].values()) > 0 and len(told["shown"]) == 3
        assert sum(told["by masks"].values()) == sum(told["tasks"].values()) == told["oracle"]["tasks"]
        assert told["oracle"]["recall"] == 1.0
        assert told["oracle"]["source among the hits"] == (told["oracle"]["tasks"] if with_source else 0)
