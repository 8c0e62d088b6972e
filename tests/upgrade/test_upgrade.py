"""What earlier versions wrote is read, evaluated, resumed and searched as they did it themselves."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from artefact_parts import ENCODER, RECIPES, STEPS, Letters, episodes_of, hits_of, interface, machine
from support import command_line

from searchgym.errors import DataWarning, SearchGymError
from searchgym.eval.run_folder import read_finished
from searchgym.eval.viewing.explain import explain_run
from searchgym.retrieval import encoders
from searchgym.retrieval.index.index import inspect_index, load_index
from searchgym.train import load_recipe, train
from searchgym.train.recipe.load import read_recipe

HERE = Path(__file__).parent
VERSIONS = sorted(file.parent.name for file in HERE.glob("*/expected.json"))
DENSE = {"kind": "dense", "encoder": ENCODER}
CARDS = {"bm25": None, "flat": DENSE, "hnsw": DENSE | {"index": "hnsw", "links": 4}}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As when they were written: the order of sums depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=VERSIONS)
def expected(request, tmp_path, monkeypatch) -> dict[str, Any]:
    """What a version made of its artefacts; a copy of them is the working folder."""
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(shutil.copytree(HERE / request.param, tmp_path / "artefacts", symlinks=True))
    monkeypatch.syspath_prepend(HERE.parents[1] / "benchmarks")
    return json.loads(Path("expected.json").read_text())


@pytest.fixture
def cli(monkeypatch, capsys):
    return command_line(monkeypatch, capsys)


def test_there_are_artefacts():
    assert "0.1.0" in VERSIONS


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", RECIPES)
def test_a_training_goes_on(expected, name):
    """To the same bits with the processor and the torch that wrote them, elsewhere to the same numbers, rounded."""
    from same_bits import digests, parts_of

    run, recipe = Path(f"run-{name}"), load_recipe(f"{name}.yaml")
    assert read_recipe(run / "recipe.yaml") == recipe
    result = train(recipe, run, resume=True)
    assert [row["step"] for row in result.rows] == list(range(STEPS + 1))
    last = list(parts_of(run / "metrics.jsonl").values())[-1]
    before = expected["training"][name]["last"]
    assert {key: last.get(key) for key in before} == pytest.approx(before, rel=1e-3, abs=1e-4)
    if machine() == expected["machine"]:
        after = digests(run)
        weights = {
            file: sha256 for file, sha256 in expected["training"][name]["sha256"].items() if "checkpoints" in file
        }
        assert weights and {file: after.get(file) for file in weights} == weights


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", RECIPES)
def test_a_checkpoint_is_evaluated(expected, cli, name):
    agent = "agents/pair" if name == "team" else "agents/searcher"
    model = f"run-{name}/checkpoints/last"
    cli("eval", "Demo-v0", "--agent", agent, "--model", model, "--limit", "4", "--out", "eval")
    assert episodes_of(Path("eval")) == expected["evaluation"][name]


@pytest.mark.parametrize("name", RECIPES)
def test_the_rewards_of_a_run_are_explained(expected, name):
    _, calls = explain_run(Path(f"run-{name}"), None, load_recipe(f"{name}.yaml"))
    assert calls and all(call.advantage is not None for call in calls)


def test_a_finished_evaluation_is_read(expected):
    scores = read_finished(Path("eval-finished")).scores
    episodes = expected["evaluation"]["random"]
    assert episodes_of(Path("eval-finished")) == episodes
    assert scores["em"] == pytest.approx(sum(episode[-1]["em"] for episode in episodes) / len(episodes))


def test_an_evaluation_goes_on(expected, cli, monkeypatch):
    """What was there stays, byte for byte; another version refuses to go on, so the version is that of the run."""
    version = json.loads(Path("eval-cut", "run.json").read_text())["searchgym"]
    monkeypatch.setattr("searchgym.eval.runner.__version__", version)
    before = Path("eval-cut", "episodes.jsonl").read_bytes()
    cli("eval", "Demo-v0", "--agent", "random", "--out", "eval-cut", "--resume")
    assert Path("eval-cut", "episodes.jsonl").read_bytes().startswith(before)
    assert episodes_of(Path("eval-cut")) == expected["evaluation"]["random"]


@pytest.mark.parametrize("name", CARDS)
def test_an_index_has_the_same_hits(expected, monkeypatch, name):
    monkeypatch.setattr(encoders, "load_encoder", lambda card: Letters())
    again = pytest.warns(DataWarning, match="built again") if name == "bm25" else contextlib.nullcontext()
    with again:
        inspect_index(f"index-{name}", verify=True)
        index = load_index(f"index-{name}", card=CARDS[name])
    hits, before = hits_of(index), expected["indexes"][name]
    assert [[id for id, _ in each] for each in hits] == [[id for id, _ in each] for each in before]
    scores = [score for each in before for _, score in each]
    assert [score for each in hits for _, score in each] == pytest.approx(scores, rel=1e-6)


def test_a_world_is_built_again_to_the_same_bytes(expected, cli):
    cli("world", "build", "--out", "again", "--size", "10", "--seed", "5")
    for file in Path("world").iterdir():
        assert Path("again", file.name).read_bytes() == file.read_bytes(), file.name


def test_a_submission_is_checked(expected, cli):
    cli("leaderboard", "check", "submissions/demo/Demo/oracle", "--replay", "--suite-card", "suite.yaml")


def test_public_names_and_parameters_are_still_there(expected):
    """A name or a parameter goes only after a deprecation of one minor version; then it is deleted here."""
    now = interface()
    for package, names in expected["interface"].items():
        for name, parameters in names.items():
            assert name in now[package], f"{package}.{name} is gone"
            if parameters is not None:
                present = now[package][name] or []
                before, after = ({word.rstrip("!") for word in words} for words in (parameters, present))
                assert before <= after, f"{package}.{name} lacks {sorted(before - after)}"
                required = {word for word in present if word.endswith("!")}
                assert required <= set(parameters), f"{package}.{name} needs {sorted(required - set(parameters))}"


RENAMES = [
    ("run-policy/metrics.jsonl", '"step"', '"steps"'),
    ("run-policy/recipe.yaml", "model:", "models_of:"),
    ("run-policy/episodes.jsonl", '"searches"', '"queries"'),
    ("run-policy/episodes.advantages.jsonl", '"advantage', '"benefit'),
    ("run-policy/checkpoints/step-000002/trainer.json", '"progress"', '"position"'),
]


@pytest.mark.slow_cases
@pytest.mark.parametrize(("file", "field", "renamed"), RENAMES)
def test_a_renamed_field_is_noticed(expected, file, field, renamed):
    """These tests fail where a run folder has another field than its version wrote."""
    text = Path(file).read_text()
    assert field in text
    Path(file).write_text(text.replace(field, renamed))
    with pytest.raises((SearchGymError, AssertionError, KeyError)):
        test_the_rewards_of_a_run_are_explained(expected, "policy")
        test_a_training_goes_on(expected, "policy")
