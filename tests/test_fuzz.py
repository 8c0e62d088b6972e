"""Damaged and hostile files: every reader loads them right or raises one clear error, and nothing in them is run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from made_models import tiny_qwen2

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
from fuzz_files import fuzz, run, table  # noqa: E402
from fuzz_kinds import KINDS  # noqa: E402

from searchgym.corpora.files import MAX_LINE, read_json  # noqa: E402
from searchgym.corpora.folders import lock_folder  # noqa: E402
from searchgym.errors import CardError, DataError, UsageError  # noqa: E402
from searchgym.options.yaml import parse_yaml  # noqa: E402
from searchgym.rollout.loading import generation_settings  # noqa: E402
from searchgym.rollout.storage import read_episodes, sidecar  # noqa: E402
from searchgym.train.learner.trained_model import Updater  # noqa: E402
from searchgym.train.loop.checkpoint import load_checkpoint  # noqa: E402
from searchgym.train.recipe.options import OptimizerOptions  # noqa: E402

HEAVY = {"model", "checkpoint", "index", "dense index", "episodes", "world"}
"""Kinds whose valid files take long to make."""


def faults(found):
    return {
        name: [(o.number, o.what, o.error, o.executed) for o in outcomes if o.result == "other" or o.executed]
        for name, outcomes in found.items()
    }


def check(found, files):
    assert not any(faults(found).values()), faults(found)
    for outcomes in found.values():
        assert [o.number for o in outcomes] == list(range(files + 1))
        assert outcomes[0].result == "loaded"  # the valid one
    assert all(row["refused"] for row in table(found))


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", KINDS)
def test_a_few_damaged_files_are_loaded_or_refused(name, tmp_path):
    check({name: fuzz(name, 5, 0, tmp_path)}, 5)


@pytest.mark.slow
def test_many_damaged_files_are_loaded_or_refused():
    check(dict(run(list(KINDS), 25, 1)), 25)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("fault", "name", "files"), [("yaml", "corpus card", 3), ("numpy", "dense index", 17), ("torch", "checkpoint", 3)]
)
def test_a_planted_fault_is_seen(fault, name, files, tmp_path):
    """Each attack comes in turn, every second file."""
    (tmp_path / "right").mkdir()
    (tmp_path / "wrong").mkdir()
    assert not any(o.executed for o in fuzz(name, files, 1, tmp_path / "right"))
    assert any("marker" in o.executed for o in fuzz(name, files, 1, tmp_path / "wrong", fault))


# -- what it found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["x: !!timestamp soon", "x: !!bool perhaps", "x: !!int abc", "x: 2001-99-99"])
def test_yaml_values_that_do_not_exist(text):
    with pytest.raises(CardError, match="here: cannot be read as YAML"):
        parse_yaml(text, "here")


def test_a_small_archive_is_not_unpacked_without_limit(tmp_path):
    import gzip

    file = tmp_path / "small.json.gz"
    file.write_bytes(gzip.compress(b"[" * 2**20) * (MAX_LINE // 2**20 + 1))
    with pytest.raises(DataError, match="unpacks to more than 100 times its size"):
        read_json(file)


def test_a_link_to_itself_in_a_run_folder(tmp_path):
    (tmp_path / "scores.json").symlink_to("scores.json")
    with pytest.raises(UsageError, match=r"scores\.json is a link that leads to itself"), lock_folder(tmp_path):
        pass


def test_tokens_that_are_a_folder(tmp_path):
    path = tmp_path / "episodes.jsonl"
    path.write_text("{}\n")
    sidecar(path).mkdir()
    (sidecar(path) / "file").touch()
    with pytest.raises(DataError, match=r"episodes\.tokens\.bin: cannot be read"):
        next(read_episodes(path))


def test_damaged_generation_settings(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"top_p": ')
    with pytest.raises(DataError, match=r"generation_config\.json: the settings cannot be read"):
        generation_settings(tmp_path)


def trained(**change):
    model = tiny_qwen2(vocabulary=50)
    updater = Updater(model, OptimizerOptions(lr=1e-3, **change), 10)
    model(input_ids=torch.arange(6)[None], labels=torch.arange(6)[None]).loss.backward()
    updater.apply(0)
    return updater


class Learner:
    """Loads a checkpoint of one model."""

    def __init__(self, updater):
        self.updater = updater

    def load(self, folder):
        self.updater.load(folder)


def damaged(folder, change):
    state = torch.load(folder / "optimizer.pt", weights_only=True)
    change(state)
    torch.save(state, folder / "optimizer.pt")


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["optimizer"]["state"][0].update(exp_avg=torch.zeros(3)),
        lambda state: state["optimizer"]["state"][0].update(step=[1]),
        lambda state: state["optimizer"]["state"].update({0: {}}),
        lambda state: state.update(version="one"),
        lambda state: state.pop("optimizer"),
    ],
)
def test_damaged_states_of_an_optimizer(change, tmp_path):
    updater = trained()
    updater.save(tmp_path)
    damaged(tmp_path, change)
    with pytest.raises(DataError, match="not a checkpoint of this model"):
        load_checkpoint(tmp_path, Learner(updater))


def test_the_options_of_an_optimizer_are_the_recipes(tmp_path):
    trained().save(tmp_path)
    damaged(tmp_path, lambda state: state["optimizer"]["param_groups"][0].update(betas="x", weight_decay=9.0))
    again = trained(weight_decay=0.5)
    again.load(tmp_path)
    assert again.optimizer.param_groups[0]["weight_decay"] == 0.5
    moments = [value["exp_avg"].numpy() for value in again.optimizer.state.values()]
    assert all(np.isfinite(value).all() and value.any() for value in moments)


@pytest.mark.parametrize(
    "record",
    [
        "[]",
        '{"progress": {"step": 1}}',
        '{"progress": {"step": 1}, "files": {"a": -1}}',
        '{"progress": {"step": 1}, "files": {"a": "1"}}',
        '{"progress": {"step": "1"}, "files": {}}',
        '{"progress": {"steps": 1}, "files": {}}',
    ],
)
def test_damaged_progress_of_a_run(record, tmp_path):
    updater = trained()
    updater.save(tmp_path)
    (tmp_path / "trainer.json").write_text(record)
    with pytest.raises((DataError, CardError), match=r"trainer\.json"):
        load_checkpoint(tmp_path, Learner(updater))
