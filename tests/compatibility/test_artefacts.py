"""What earlier versions of the code wrote is read, evaluated, resumed and searched as they did it themselves."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from artefact_parts import RECIPES, STEPS, Letters, episodes_of, hits_of, machine
from support import respell_credit

import searchgym
from searchgym.cli import main
from searchgym.corpora.own import bundled_file
from searchgym.corpora.retrieval import encoders
from searchgym.corpora.retrieval.index.index import inspect_index, load_index
from searchgym.train.inspect.explain import explain_run
from searchgym.train.recipe.load import load_recipe, read_recipe
from searchgym.train.run.assembly import train

HERE = Path(__file__).parent
COMMITS = sorted(file.parent.name for file in HERE.glob("*/expected.json"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As when they were written: the order of sums depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=COMMITS)
def expected(request, tmp_path, monkeypatch) -> dict[str, Any]:
    """What the code of a commit made of its artefacts; a copy of them is the working folder."""
    folder = Path(shutil.copytree(HERE / request.param, tmp_path / "artefacts", symlinks=True))
    for file in (*folder.glob("*.yaml"), *folder.rglob("recipe.yaml"), *folder.rglob("adapter_config.json")):
        bare = file.read_text()  # earlier versions took a bare name for a folder; as the change log says how to mend it
        file.write_text(
            bare.replace("model: model\n", "model: ./model\n").replace('path": "model"', 'path": "./model"')
        )
    respell_credit(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(HERE.parents[1] / "benchmarks")
    return json.loads(Path("expected.json").read_text())


def cli(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["searchgym", *arguments, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


def first_questions(count):
    """Options that ask the first questions of the demonstration, as ``--limit`` of earlier versions did."""
    rows = json.loads(bundled_file("demo/questions.json").read_text())
    Path("first.json").write_text(json.dumps(rows[:count]))
    return "--questions", "first.json"


def test_there_are_artefacts():
    assert COMMITS


@pytest.mark.parametrize("name", RECIPES)
def test_a_training_goes_on_to_the_same_bits(expected, monkeypatch, name):
    """On the processor and the torch that the artefacts were written with; elsewhere to the same numbers, rounded."""
    from same_bits import VARYING, digests, parts_of

    # the versions that wrote the artefacts probed vLLM alone and did not count tokens read: without both, rows have the
    # same metrics
    monkeypatch.setattr("same_bits.VARYING", (*VARYING, "read_tokens"))
    monkeypatch.setattr("searchgym.train.run.assembly.probe", lambda *given, **options: {})
    run, recipe = Path(f"run-{name}"), load_recipe(f"{name}.yaml")
    assert read_recipe(run / "recipe.yaml") == recipe
    result = train(recipe, run, resume=True)
    assert [row["step"] for row in result.rows] == list(range(STEPS + 1))
    wanted = expected["training"][name]
    last = list(parts_of(run / "metrics.jsonl").values())[-1]
    assert last == pytest.approx(wanted["last"], rel=1e-3, abs=1e-4)
    if machine() == expected["machine"]:
        assert digests(run) == wanted["sha256"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_checkpoint_is_evaluated(expected, monkeypatch, name):
    agent = "agents/pair" if name == "team" else "agents/searcher"
    model = f"run-{name}/checkpoints/last"
    cli(monkeypatch, "eval", "Demo-v0", "--agent", agent, "--model", model, *first_questions(4), "--out", "eval")
    assert episodes_of(Path("eval")) == expected["evaluation"][name]


def test_an_adapter_is_exported(expected, monkeypatch):
    cli(monkeypatch, "export", "run-adapter/checkpoints/last", "exported")
    options = ["--model", "./exported", *first_questions(4), "--out", "eval"]
    cli(monkeypatch, "eval", "Demo-v0", "--agent", "agents/searcher", *options)
    assert episodes_of(Path("eval")) == expected["evaluation"]["adapter"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_rewards_of_a_run_are_explained(expected, name):
    episode, calls = explain_run(Path(f"run-{name}"), None)
    assert sum(call.reward for call in calls) >= episode.reward
    assert all(call.advantage is not None for call in calls)


@pytest.mark.parametrize("name", ["eval-cut", "eval-finished"])
def test_an_evaluation_goes_on(expected, monkeypatch, name):
    """What was there stays, byte for byte."""
    before = Path(name, "episodes.jsonl").read_bytes()
    version = json.loads(Path(name, "run.json").read_text())["searchgym"]
    monkeypatch.setattr(searchgym, "__version__", version)  # runs of another version are refused, and rightly
    cli(monkeypatch, "eval", "Demo-v0", "--agent", "random", "--out", name, "--resume")
    assert Path(name, "episodes.jsonl").read_bytes().startswith(before)
    assert episodes_of(Path(name)) == expected["evaluation"]["random"]


@pytest.mark.parametrize("name", ["bm25", "flat", "hnsw"])
def test_an_index_finds_the_same(expected, monkeypatch, name):
    monkeypatch.setattr(encoders, "load_encoder", lambda card: Letters())
    inspect_index(Path(f"index-{name}"), verify=True)
    card = json.loads(Path(f"index-{name}", "manifest.json").read_text())["retriever"]  # given, hence trusted
    found, wanted = hits_of(load_index(Path(f"index-{name}"), card=card)), expected["indexes"][name]
    assert [[id for id, _ in hits] for hits in found] == [[id for id, _ in hits] for hits in wanted]
    assert [score for hits in found for _, score in hits] == pytest.approx(
        [score for hits in wanted for _, score in hits], rel=1e-6
    )


def test_a_world_is_built_again_to_the_same_bytes_and_searched(expected, monkeypatch):
    cli(monkeypatch, "world", "build", "--out", "again", "--size", "10", "--seed", "5")
    names = sorted(file.name for file in Path("world").iterdir())
    assert sorted(file.name for file in Path("again").iterdir() if file.name != ".lock") == names
    for name in names:
        assert Path("again", name).read_bytes() == Path("world", name).read_bytes(), name
    data = ["--questions", "world/questions.jsonl", "--corpus", "world/corpus.jsonl"]
    cli(monkeypatch, "eval", "World-v0", "--agent", "oracle", *data, "--out", "eval")
    assert json.loads(Path("eval", "scores.json").read_text())["em"] == 1
