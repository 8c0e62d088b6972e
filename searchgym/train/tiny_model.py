"""The tiny model before training: its settings and curriculum, its tokenizer, its architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from searchgym.agents.base import load_agent
from searchgym.cards import WorldSpec
from searchgym.corpora.worlds import build_world
from searchgym.errors import UsageError
from searchgym.protocol import get_protocol
from searchgym.train.demonstrations import (
    AGENT,
    ROLE,
)

WORDS: Final = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
"""What no token reaches across: a word with the blank before it; one digit; punctuation; blanks."""

TAGS: Final = tuple(
    f"<{slash}{tag}>"
    for tag in ("think", "search", "information", "answer", "tool_call", "tool_response")
    for slash in ("", "/")
)
"""Ordinary tokens of their own: text that spells one is one."""

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Qwen2's form, without its default system prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One part of the curriculum."""

    share: float
    """Of the run's tokens."""
    lesson: Literal["exercise", "single", "episode"]
    """Pages with all their facts; demonstrations of single facts; demonstrations of all questions."""
    pages: int = 1
    """Pages of an exercise."""
    review: bool = False
    """Whether demonstrations are mixed with exercises on their world's pages, so that reading is practised on."""
    early_stops: float = 0.0
    """Probability that the demonstration of a multi-hop question stops early."""
    targets: Literal["all", "model"] = "model"


STAGES: Final = (
    Stage(share=0.25, lesson="exercise", pages=1, targets="all"),
    Stage(share=0.30, lesson="exercise", pages=3, targets="all"),
    Stage(share=0.10, lesson="single", pages=3, review=True),
    Stage(share=0.20, lesson="episode", pages=3, review=True),
    Stage(share=0.15, lesson="episode", early_stops=0.65),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySettings:
    """Every number of a run."""

    seed: int = 0
    tokens: int = 40_000_000
    """Tokens read in training, padding apart."""
    stages: tuple[Stage, ...] = STAGES
    world_size: int = 60
    """Questions of a training world: about 110 pages."""
    vocabulary: int = 2048
    tokenizer_worlds: int = 40
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    intermediate: int = 704
    positions: int = 8192
    batch_tokens: int = 4096
    """Tokens of an update."""
    micro_batch_tokens: int = 8192
    matrix_lr: float = 0.02
    """Of Muon, for the matrices of the layers."""
    other_lr: float = 3e-3
    """Of AdamW, for embeddings, biases and norms."""
    weight_decay: float = 0.01
    warmup: float = 0.01
    """Share of the tokens over which the rates rise."""
    decay: float = 0.3
    """Share of the tokens, the last ones, over which the rates fall linearly to 0."""
    max_grad_norm: float = 1.0
    evaluations: int = 10
    """Evaluations over the run; the last one at its end."""
    evaluation_questions: int = 200
    device: str = "cpu"
    autocast: bool = True
    """Matrix products in bfloat16."""


# -- tokenizer and model -------------------------------------------------------------------------------------------


def train_tokenizer(settings: TinySettings) -> PreTrainedTokenizerBase:
    """Trains the byte-level BPE on training worlds and prompts.

    Invented names are left out, so that those of a split are not words to it: a name of any split is spelled in pieces.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    marks = (START, END, PAD)
    trainer = BpeTrainer(
        vocab_size=settings.vocabulary - len(TAGS) - len(marks),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_tokenizer_texts(settings), trainer)
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    made: PreTrainedTokenizerBase = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=settings.positions,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE
    return made


def _tokenizer_texts(settings: TinySettings) -> Iterator[str]:
    """Yields pages, questions, demonstrations and prompts without names."""
    prompt = load_agent(AGENT).roles[ROLE].template
    for number in range(settings.tokenizer_worlds):
        for name in ("tags", "tool_calls"):
            yield f"user assistant system\n{prompt}\n{get_protocol(name).instructions()}"
            yield get_protocol(name).notice("no complete action was found")
        level: Literal["simple", "full"] = "full" if number % 2 else "simple"
        world = build_world(WorldSpec(level, size=settings.world_size, seed=number, split="train"))
        texts = [f"Doc 1(Title: {p.title}) {p.text}" for p in world.passages]
        texts += [q.text for q in world.questions]
        names = {word for p in world.passages for word in re.findall(r"\w+", p.title) if word[0].isupper()}
        pattern = re.compile(r" ?\b(" + "|".join(map(re.escape, sorted(names))) + r")\b")
        yield from (pattern.sub("", text) for text in texts)


def make_model(settings: TinySettings, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Returns a Qwen2 with random weights; torch's own generator is left as it was."""
    if len(tokenizer) > settings.vocabulary:
        raise UsageError(
            f"a vocabulary of {settings.vocabulary} is too small: the tokenizer has {len(tokenizer)} tokens"
        )
    ids = tokenizer.get_vocab()
    config = Qwen2Config(
        vocab_size=settings.vocabulary,
        hidden_size=settings.hidden,
        intermediate_size=settings.intermediate,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids[END],
        pad_token_id=ids[PAD],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model: Any = Qwen2ForCausalLM(config)  # type: ignore[no-untyped-call]
    return cast(PreTrainedModel, model.to(settings.device).eval())
