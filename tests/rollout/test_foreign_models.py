"""Model folders of others: what their files cannot make a library do."""

import builtins
import json
import shutil
import sys
import time

import pytest
import torch
from made_models import save_tiny
from safetensors.torch import load_file

from searchgym.errors import DataError
from searchgym.rollout.foreign import sizes
from searchgym.rollout.loading import load_model, load_tokenizer
from searchgym.train.inspect.shapes import model_shape


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


def change(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize(
    "named", ["AutoProcessor", "AutoImageProcessor", "AutoTokenizer", "evil.T", ["LlamaTokenizer"]]
)
def test_no_code_runs_for_a_tokenizer_of_another_kind(file, named, folder, monkeypatch):
    """Transformers loads such a class without the order to run no code, and asks at the terminal whether to."""
    change(folder / file, tokenizer_class=named)
    for name in ("processor_config.json", "preprocessor_config.json"):
        (folder / name).write_text(json.dumps({"auto_map": {"AutoProcessor": "evil.Evil"}}))
    (folder / "evil.py").write_text(f"open({str(folder / 'RAN')!r}, 'w')\nclass Evil:\n    pass\n")
    monkeypatch.setattr(builtins, "input", lambda prompt="": "y")
    for read in (load_tokenizer, load_model):
        with pytest.raises(DataError, match=r"config.json: tokenizer_class is .*, which names no tokenizer"):
            read(folder)
    assert not (folder / "RAN").exists()


@pytest.mark.parametrize(
    "entries",
    [
        {"attn_implementation": "kernels-community/flash-mla"},
        {"_attn_implementation": "owner/kernel@main:layer"},
        {"attn_implementation": {"": "owner/kernel"}},
        {"experts_implementation": "owner/kernel"},
        {"text_config": {"attn_implementation": {"decoder": ["owner/kernel"]}}},
        {"attn_implementation": "paged|owner/kernel"},
    ],
)
def test_no_kernel_is_fetched_for_a_model(entries, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "kernels", None)
    change(folder / "config.json", **entries)
    for read in (load_model, load_tokenizer, model_shape):
        with pytest.raises(DataError, match=r"config.json: \w+_implementation is .* kernels are code"):
            read(str(folder))


@pytest.mark.parametrize("name", ["eager", "sdpa", "paged|eager", None])
def test_implementations_that_transformers_has_are_read(name, folder):
    change(folder / "config.json", attn_implementation=name)
    model_shape(str(folder))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            {"num_hidden_layers": 200_000},
            "num_hidden_layers is 200,000, its weights are .* tensors: they do not belong",
        ),
        ({"num_hidden_layers": 10**10}, "num_hidden_layers is 1e.10, at most 1,048,576 are read"),
        ({"num_labels": 10**9}, "num_labels is 1e.09"),
        ({"text_config": {"num_hidden_layers": 10**12}}, "num_hidden_layers is 1e.12"),
        ({"model_type": "mixtral", "num_local_experts": 5 * 10**6}, "num_local_experts is 5e.06"),
        ({"model_type": "gpt2", "num_hidden_layers": 900_000, "num_experts": 9}, "num_hidden_layers is 900,000"),
        # a vocabulary; tables of positions that are missing or computed; matrices
        (
            {"model_type": "bloom", "n_layer": 1, "hidden_size": 32, "n_head": 4, "vocab_size": 10**9},
            "at least .* numbers",
        ),
        (
            {"model_type": "gpt2", "n_layer": 1, "n_head": 4, "n_embd": 32, "n_positions": 10**6},
            "weights are missing|numbers",
        ),
        ({"model_type": "opt", "max_position_embeddings": 10**8, "num_hidden_layers": 1}, "at least .* numbers"),
        ({"hidden_size": 10**6}, "at least .* numbers"),
    ],
)
def test_a_configuration_cannot_ask_for_more_than_its_weights(entries, said, folder):
    change(folder / "config.json", architectures=None, layer_types=None, **entries)
    started = time.process_time()
    with pytest.raises(DataError, match=said):
        load_model(folder)
    assert time.process_time() - started < 3


def test_a_plan_has_a_limit_too(tmp_path, monkeypatch, whole):
    """No weights are there to compare with."""
    monkeypatch.setattr(sizes, "MOST_TENSORS", 100)
    shutil.copy(whole / "config.json", tmp_path)
    assert model_shape(str(tmp_path)).layers == 2
    change(tmp_path / "config.json", num_hidden_layers=30, layer_types=None)
    with pytest.raises(DataError, match=r"no model can be made of its configuration: .* at least 101 tensors"):
        model_shape(str(tmp_path / "config.json"))


def test_a_bound_is_of_one_thread_and_ends_with_its_block(whole):
    with sizes.bounded(whole):
        torch.nn.Linear(64, 64)
        with pytest.raises(Exception, match="at least 3 tensors with 1,073,745,984 numbers"):
            torch.nn.Linear(2**15, 2**15, device="meta")
    torch.nn.Linear(2**15, 2**15, device="meta")


def test_weights_in_torchs_format_are_bounded_by_their_size(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    load_model(folder)
    change(folder / "config.json", hidden_size=10**6)
    with pytest.raises(DataError, match=r"at least .* numbers"):
        load_model(folder)


def test_a_damaged_file_of_weights_is_named(folder):
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(DataError, match=r"model.safetensors: cannot be read"):
        load_model(folder)


def test_a_configuration_that_is_no_object_is_refused(folder):
    (folder / "config.json").write_text("[1]")
    for read in (load_model, model_shape):
        with pytest.raises(DataError, match=r"config.json: expected one JSON object, got list"):
            read(str(folder))
