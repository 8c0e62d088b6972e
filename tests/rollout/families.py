"""Families of chat templates, written to behave as public descriptions of them say, each with a small tokenizer."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from made_models import SENTENCES, tiny_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

FOLDER = Path(__file__).with_name("template_families")

Kind = Literal["bytes", "first", "always", "legacy", "never"]
"""Kind of tokenizer: bytes; SentencePiece's with a blank before the first text, before each text after an added token
(by the pre-tokenizer, or by the normalizer as old files say), or before none."""


@dataclass(frozen=True)
class Family:
    """A chat template and what a tokenizer for it is like."""

    kinds: tuple[Kind, ...]
    """Kinds of tokenizer that models of the family have; the first is tested quickly."""
    special: tuple[str, ...]
    """Special tokens beside those of `names`."""
    names: Mapping[str, str]
    ends: tuple[str, ...]
    """Tokens that end a response."""
    bos: int = 0
    """How often the beginning-of-text id stands in a first prompt."""
    thought: str = ""
    """Thought that a prompt leaves open."""
    stripping: bool = False
    """Whether special tokens take the blanks after them along."""
    plain: tuple[str, ...] = ()
    """Added tokens that are not special."""
    trims: bool = False
    """Whether the template trims texts."""
    arguments: Mapping[str, Any] = field(default_factory=dict)


IM = {"special": ("<|im_start|>",), "names": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}}
QWEN: Mapping[str, Any] = IM | {"ends": ("<|im_end|>",)}
THINKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
SP = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
FAMILIES: dict[str, Family] = {
    "chatml": Family(("bytes", "never"), **QWEN),
    "qwen3": Family(("bytes",), **QWEN, plain=THINKS),
    "qwen3_thinking": Family(("bytes",), **QWEN, plain=THINKS, thought="<think>\n"),
    "qwen3_coder": Family(("bytes",), **QWEN, plain=THINKS),
    "r1_distill": Family(
        ("bytes", "first"),
        (),
        {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
        ("<｜end▁of▁sentence｜>",),
        bos=1,
        thought="<think>\n",
        plain=("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
    ),
    "llama2": Family(("always", "legacy", "first"), (), SP, ("</s>",), bos=1, trims=True),
    "llama3": Family(
        ("bytes",),
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
        ("<|end_of_text|>", "<|eot_id|>"),
        bos=1,
        trims=True,
    ),
    "mistral_v01": Family(("legacy", "always", "first"), (), SP, ("</s>",), bos=1),
    "mistral_v3": Family(("always", "legacy", "bytes"), ("[INST]", "[/INST]"), SP, ("</s>",), bos=1),
    "gemma": Family(
        ("never",),
        ("<start_of_turn>", "<end_of_turn>"),
        {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"},
        ("<eos>", "<end_of_turn>"),
        bos=1,
        trims=True,
    ),
    "phi3": Family(
        ("legacy", "always", "first"),
        ("<|user|>", "<|assistant|>", "<|end|>"),
        {"bos_token": "<s>", "eos_token": "<|endoftext|>", "unk_token": "<unk>"},
        ("<|endoftext|>", "<|end|>"),
        stripping=True,
    ),
    "zephyr": Family(("always", "legacy", "first", "bytes"), (), SP, ("</s>",)),
    "granite": Family(
        ("bytes",), ("<|start_of_role|>", "<|end_of_role|>"), {"eos_token": "<|end_of_text|>"}, ("<|end_of_text|>",)
    ),
    "gpt_oss": Family(
        ("bytes",),
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"),
        {"eos_token": "<|return|>"},
        ("<|return|>",),
        arguments={"reasoning_effort": "high"},
    ),
}
CASES = [(name, kind) for name, family in FAMILIES.items() for kind in family.kinds]


@functools.cache
def _pieces() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Returns vocabulary and merges of a BPE with blanks in words and a token for each byte."""
    trained = Tokenizer(BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"[^\s\p{L}\p{N}]"), "isolated"), pre_tokenizers.Metaspace(prepend_scheme="first")]
    )
    trainer = BpeTrainer(vocab_size=300, min_frequency=2, special_tokens=["<unk>"], show_progress=False)
    trained.train_from_iterator([*SENTENCES, "The gull is white. The gull is here. [INST] [/INST]"] * 3, trainer)
    state = json.loads(trained.to_str())["model"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["<unk>", *bytes_, *(word for word in state["vocab"] if word != "<unk>" and word != "\n")]
    return {word: i for i, word in enumerate(words)}, [
        tuple(pair) for pair in state["merges"] if "\n" not in "".join(pair)
    ]


def pieces_tokenizer(kind: Kind) -> Tokenizer:
    """Returns a tokenizer of SentencePiece's kind."""
    vocabulary, merges = _pieces()
    made = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if kind in ("always", "first"):
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
    else:
        prepended = [normalizers.Prepend("▁")] if kind == "legacy" else []
        made.normalizer = normalizers.Sequence([*prepended, normalizers.Replace(" ", "▁")])
    strip = [] if kind == "never" else [decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return made


@functools.cache
def _made(name: str, kind: Kind) -> PreTrainedTokenizerBase:
    family = FAMILIES[name]
    inner = pieces_tokenizer(kind) if kind != "bytes" else tiny_tokenizer("base").backend_tokenizer
    rstrip, marks = family.stripping, dict.fromkeys([*family.names.values(), *family.special])
    inner.add_special_tokens([AddedToken(m, special=True, normalized=False, rstrip=rstrip) for m in marks])
    inner.add_tokens([AddedToken(m, special=False, normalized=False) for m in family.plain])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=10**9, name_or_path=name, **family.names)
    made.chat_template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    return made


def family_tokenizer(name: str, kind: Kind | None = None) -> PreTrainedTokenizerBase:
    """Returns the tokenizer of a family, of its first kind by default; it is shared and must not be changed."""
    return _made(name, kind or FAMILIES[name].kinds[0])
