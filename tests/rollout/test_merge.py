"""Averages of checkpoints: weights by hand, tensors by hand, atomic writes, and what is refused."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from made_models import tiny_qwen2, tiny_tokenizer
from safetensors.torch import load_file, save_file
from support import small_files

from searchgym.cli import app, main
from searchgym.errors import DataError, RunExistsError, UnknownNameError, UsageError
from searchgym.rollout.foreign.merging import given_weights, merge_checkpoints, scheduled
from searchgym.rollout.loading import load_model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three checkpoints of one small model with weights x, x + 1 and x + 4."""
    folder, model = tmp_path_factory.mktemp("checkpoints"), tiny_qwen2()
    for name, change in (("a", 0.0), ("b", 1.0), ("c", 3.0)):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += change
        model.save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
    return folder


@pytest.fixture
def three(made, tmp_path):
    shutil.copytree(made, tmp_path / "made")
    return [tmp_path / "made" / name for name in "abc"]


def difference(out, folder):
    merged, first = load_file(out / "model.safetensors"), load_file(folder / "model.safetensors")
    assert merged.keys() == first.keys()
    return {round(float(value), 3) for name in first for value in (merged[name] - first[name]).flatten()}


def test_weights_of_schedules_by_hand():
    """Four checkpoints: w = 3/4, 1/2, 1/4 for linear, and 1/2, 1 - sqrt(1/2), 1 - sqrt(3/4) for sqrt."""
    assert scheduled("mean", 4) == scheduled("linear", 4) == [0.25] * 4
    w = [1, 0.5, 1 - 0.5**0.5, 1 - 0.75**0.5, 0]
    assert scheduled("sqrt", 4) == pytest.approx([w[n] - w[n + 1] for n in range(4)])
    assert scheduled("cosine", 2) == pytest.approx([0.5, 0.5])
    for name in ("mean", "linear", "cosine", "sqrt"):
        assert sum(scheduled(name, 7)) == pytest.approx(1) and min(scheduled(name, 7)) >= 0
    with pytest.raises(UnknownNameError, match="did you mean 'linear'"):
        scheduled("liner", 3)


def test_an_average_is_a_training_whose_updates_decay():
    """WSM: checkpoints are sums of updates; their average has update i scaled by the decay at i / (k + 1)."""
    rng = np.random.default_rng(0)
    start, updates = rng.normal(size=3), rng.normal(size=(5, 3))
    checkpoints = start + np.concatenate([np.zeros((1, 3)), np.cumsum(updates, axis=0)])
    decayed = start + sum((1 - i / 6) * update for i, update in enumerate(updates, start=1))
    assert np.array(scheduled("linear", 6)) @ checkpoints == pytest.approx(decayed)


def test_given_weights():
    assert given_weights("1,3", 2) == [0.25, 0.75]
    for text in ("1", "1,2,3", "a,b", "0,0", "-1,2", "nan,1", "inf,1", ""):
        with pytest.raises(UsageError, match="expected 2 numbers"):
            given_weights(text, 2)


def test_the_average_by_hand(three, tmp_path):
    """x, x + 1 and x + 4 with weights 1/2, 1/4, 1/4 are x + 1.25."""
    out = merge_checkpoints(three, [0.5, 0.25, 0.25], tmp_path / "out")
    assert difference(out, three[0]) == {1.25}
    assert json.loads((out / "merge.json").read_text())["average_of"][1] == {"checkpoint": "b", "weight": 0.25}
    model, tokenizer = load_model(out)
    assert len(tokenizer) and model.dtype == torch.float32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "out"], "no temporary folder is left"


def test_halves_are_averaged_in_single_precision(three, tmp_path):
    for folder in three:
        halves = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    out = merge_checkpoints(three, [1 / 3] * 3, tmp_path / "out")
    merged = load_file(out / "model.safetensors")
    rows = [load_file(folder / "model.safetensors") for folder in three]
    for name, tensor in merged.items():
        assert tensor.dtype == torch.bfloat16
        want = sum(row[name].float() * (1 / 3) for row in rows).bfloat16()
        assert torch.equal(tensor, want)


def adapter(folder, name, value, **config):
    place = folder / name
    place.mkdir()
    known = {"base_model_name_or_path": "tiny", "r": 2, "lora_alpha": 4, "target_modules": ["q", "v"]}
    (place / "adapter_config.json").write_text(json.dumps(known | config))
    save_file({"q.lora_A": torch.full((2, 3), value)}, place / "adapter_model.safetensors")
    return place


def test_adapters_are_averaged(tmp_path):
    places = [adapter(tmp_path, "a", 1.0), adapter(tmp_path, "b", 3.0, target_modules=["v", "q"])]
    out = merge_checkpoints(places, [0.25, 0.75], tmp_path / "out")
    assert load_file(out / "adapter_model.safetensors")["q.lora_A"].unique().tolist() == [2.5]
    assert (out / "adapter_config.json").is_file() and not (out / "config.json").exists()
    with pytest.raises(UsageError, match="base_model_name_or_path is 'other'"):
        merge_checkpoints(
            [places[0], adapter(tmp_path, "c", 1.0, base_model_name_or_path="other")], [0.5, 0.5], tmp_path / "o2"
        )


@pytest.mark.parametrize("scale", [{"use_rslora": True}, {"rank_pattern": {"q": 1}}])
def test_adapters_of_different_scales_are_not_averaged(tmp_path, scale):
    places = [adapter(tmp_path, "a", 1.0), adapter(tmp_path, "b", 3.0, use_rslora=False, rank_pattern={})]
    merge_checkpoints(places, [0.5, 0.5], tmp_path / "out")  # what is left out is false or empty
    with pytest.raises(UsageError, match=f"{next(iter(scale))} is None"):
        merge_checkpoints([adapter(tmp_path, "c", 1.0, **scale), *places], [0.5, 0.25, 0.25], tmp_path / "o2")


def test_what_does_not_fit_is_refused_and_nothing_is_written(three, tmp_path):
    def refused(kind, match, *checkpoints):
        with pytest.raises(kind, match=match):
            merge_checkpoints(checkpoints, [1 / len(checkpoints)] * len(checkpoints), tmp_path / "out")
        assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == []

    refused(UsageError, "two checkpoints or more", three[0])
    refused(UsageError, "adapters and whole models", three[0], adapter(three[0].parent, "lora", 1.0))
    tensors = load_file(three[1] / "model.safetensors")
    name = min(tensors)
    save_file(tensors | {name: tensors[name].flatten()}, three[1] / "model.safetensors", metadata={"format": "pt"})
    refused(UsageError, "has the shapes", three[0], three[1])
    save_file({n: t for n, t in tensors.items() if n != name}, three[1] / "model.safetensors")
    refused(UsageError, "only one of them has", three[0], three[1])
    save_file(tensors | {name: tensors[name] * float("nan")}, three[1] / "model.safetensors")
    refused(DataError, "is not finite", three[0], three[1])
    (three[1] / "model.safetensors").write_bytes(b"{}")
    refused(DataError, "cannot be read", three[0], three[1])
    config = json.loads((three[2] / "config.json").read_text())
    (three[2] / "config.json").write_text(json.dumps(config | {"hidden_size": 7}))
    refused(UsageError, "hidden_size is 7", three[0], three[2])
    (three[2] / "config.json").write_text(json.dumps(config))
    (three[2] / "tokenizer.json").write_text((three[2] / "tokenizer.json").read_text() + "\n")
    refused(UsageError, "tokenizer.json differs", three[0], three[2])
    (tmp_path / "there").mkdir()
    with pytest.raises(RunExistsError, match="already exists"):
        merge_checkpoints(three[:2], [0.5, 0.5], tmp_path / "there")


@pytest.mark.slow
def test_the_command(three, tmp_path):
    from typer.testing import CliRunner

    out, merge = tmp_path / "out", ["model", "merge", *map(str, three)]
    run = CliRunner().invoke(app, [*merge, "--weights", "2,1,1", "--out", str(out), "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout)["weights"][str(three[0])] == 0.5 and difference(out, three[0]) == {1.25}
    both = [*merge, "--weights", "1,1,1", "--schedule", "sqrt", "--out", str(tmp_path / "x")]
    assert isinstance(CliRunner().invoke(app, both).exception, UsageError)


@pytest.mark.parametrize("weights", ["1e308,1e308,1e308", "nan,1,1", "inf,1,1", "-1,1,1", "0,0,0", "1,1", "", ","])
def test_weights_that_have_no_average_are_refused(weights):
    with pytest.raises(UsageError, match=r"--weights .*: expected 3 numbers from 0 up with a finite sum above 0"):
        given_weights(weights, 3)
    assert given_weights("1e307,1e307", 2) == [0.5, 0.5]


@pytest.mark.slow_cases
@pytest.mark.parametrize("most", [100, 10_000])  # the weights fail, or the tokenizer after them
def test_a_model_that_cannot_be_written_is_one_line_and_leaves_nothing(most, three, tmp_path, monkeypatch, capsys):
    model = tiny_qwen2(hidden_size=4, intermediate_size=4, num_attention_heads=1, num_key_value_heads=1, vocabulary=430)
    for folder in three if most == 10_000 else ():
        model.save_pretrained(folder)
    out = tmp_path / "out"
    for words in (["merge", *map(str, three)], ["export", str(three[0])]):
        monkeypatch.setattr(sys, "argv", ["searchgym", "model", *words, "--out", str(out)])
        with small_files(most), pytest.raises(SystemExit, match="1"):
            main()
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert re.fullmatch(rf"error: {out}: cannot be written: .* \(\d+ MiB free\)", said.splitlines()[-1]), said
        assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]


@pytest.mark.parametrize("name", ["notes.txt", "tokenizer_config.json", "chat.jinja"])
def test_nothing_is_copied_through_a_link_that_leads_out(three, tmp_path, name):
    (tmp_path / "secret").write_text("{}")
    (three[-1] / name).unlink(missing_ok=True)
    (three[-1] / name).symlink_to("../../secret" if name == "notes.txt" else tmp_path / "secret")
    with pytest.raises(DataError, match=rf"{name}: is a link that leads out of the checkpoint"):
        merge_checkpoints(three, [0.5, 0.25, 0.25], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "secret"]


def test_a_link_of_a_link_leads_out_too_and_one_inside_does_not(three, tmp_path):
    (three[-1] / "inside.txt").symlink_to("config.json")
    merge_checkpoints(three, [0.5, 0.25, 0.25], tmp_path / "out")
    assert (tmp_path / "out/inside.txt").read_bytes() == (three[-1] / "config.json").read_bytes()
    (three[-1] / "step").symlink_to(tmp_path)
    (three[-1] / "notes.txt").symlink_to("step/out/config.json")
    with pytest.raises(DataError, match="leads out"):
        merge_checkpoints(three, [0.5, 0.25, 0.25], tmp_path / "other")


def test_a_snapshot_of_the_hub_is_links_into_its_own_blobs(three, tmp_path):
    model = tmp_path / "models--a--b"
    (model / "blobs").mkdir(parents=True)
    snapshot = model / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(three[-1].iterdir())):
        shutil.copyfile(file, model / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    merge_checkpoints([*three[:2], snapshot], [0.5, 0.25, 0.25], tmp_path / "out")
    assert (tmp_path / "out/config.json").is_file()
    (tmp_path / "secret").write_text("x")
    (snapshot / "notes.txt").symlink_to("../../../secret")
    with pytest.raises(DataError, match="leads out"):
        merge_checkpoints([*three[:2], snapshot], [0.5, 0.25, 0.25], tmp_path / "other")
