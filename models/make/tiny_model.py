"""The tiny model before training: its settings and curriculum, its tokenizer, its architecture."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from searchgym.agents.base import load_agent
from searchgym.errors import UsageError
from searchgym.protocol import get_protocol
from searchgym.questions.masked.spec import MOST_MASKS
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.names import ENDS, MIDS, ONSETS, VOWELS
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.train.demonstrations.play import AGENT

WORDS: Final = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+"
"""Regular expression of pre-tokens, which no token crosses: a word or one or two digits with a leading blank,
punctuation, blanks."""

TAGS: Final = tuple(
    f"<{slash}{tag}>"
    for tag in ("think", "search", "information", "answer", "tool_call", "tool_response")
    for slash in ("", "/")
)
"""Tags that are single, non-special tokens: a tag in any text becomes that token."""

TEAM_TAGS: Final = (
    "<end>",
    *(f"<{slash}{tag}>" for tag in ("final_answer", "evidence", "update", "add", "workflow", "query", "id")
      for slash in ("", "/")),
    *(f"<{slash}{tag}{number}>" for number in range(1, 8) for tag in "qa" for slash in ("", "/")),
)  # fmt: skip
"""Further tags that are single tokens, for the roles of teams."""

ROPE_THETA: Final = 10_000.0
"""Base of the rotary embedding."""
LEAD: Final = 6.0
"""Difference of attention scores between the token that a head looks back to and its neighbours, in nats."""
SLOWEST: Final = 0.05
"""Lower bound of the rotary frequencies that heads looking back use, in radians per token."""

PIECE_COUNT: Final = 20_000
"""Number of times that each name fragment is repeated in the tokenizer's training text, above the count of any letter
pair."""

START, END, PAD = MARKS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")

TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Chat template of Qwen2, without its default system prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of the curriculum."""

    share: float
    """Share of the run's tokens, relative to the other stages."""
    lesson: Literal["exercise", "masked", "single", "episode", "teams"]
    """What the stage trains on: ``exercise`` (pages with all their facts), ``masked`` (demonstrations of masked spans),
    ``single`` (single-fact demonstrations), ``episode`` (demonstrations of all questions) or ``teams`` (the same for
    every role of every team)."""
    pages: int = 1
    """Number of pages per exercise. Default: 1."""
    review: bool = False
    """Whether exercises on the world's pages and openings of its multi-hop questions are mixed in, to practise both."""
    strange_names: float = 0.5
    """Share of exercises and openings whose names are letters drawn at random."""
    early_stops: float = 0.0
    """Probability that the demonstration of a multi-hop question stops early; of a team's, see `OracleRoles`."""
    masks: int = 1
    """Number of spans that ``masked`` hides at once."""
    slips: float = 0.0
    """Share of a team's demonstrations in which one written token is wrong; see `with_slips`."""


STAGES: Final = (
    Stage(share=1.2, lesson="exercise", pages=1),
    Stage(share=4.0, lesson="exercise", pages=3),
    Stage(share=2.0, lesson="single", pages=3, review=True),
    Stage(share=6.3, lesson="episode", pages=3, review=True),
    Stage(share=5.5, lesson="episode", pages=3, review=True, early_stops=0.65),
)
"""Curriculum of the tiny model; shares are millions of tokens of the default run."""


def masked_first(stages: tuple[Stage, ...], share: float) -> tuple[Stage, ...]:
    """Returns a curriculum with masked spans between its exercises and its demonstrations, at equal tokens.

    The number of masks grows from one to four in equal parts (MaskSearch's curriculum, arXiv 2505.20285).

    Args:
        stages: Curriculum with demonstrations.
        share: Tokens of the masked spans, in the unit of the other shares, taken from those of the demonstrations.

    Raises:
        UsageError: The demonstrations have fewer tokens.
    """
    shown = [stage for stage in stages if stage.lesson != "exercise"]
    whole = sum(stage.share for stage in shown)
    if not 0 < share < whole:
        raise UsageError(
            f"masked spans need a share between 0 and that of the demonstrations ({whole:g}), got {share:g}"
        )
    masked = [Stage(share=share / MOST_MASKS, lesson="masked", masks=n) for n in range(1, MOST_MASKS + 1)]
    less = [dataclasses.replace(stage, share=stage.share * (1 - share / whole)) for stage in shown]
    return (*(stage for stage in stages if stage.lesson == "exercise"), *masked, *less)


TEAM_STAGES: Final = (
    Stage(share=4.0, lesson="teams", pages=3, review=True, slips=0.25),
    Stage(share=5.0, lesson="teams", pages=3, review=True, early_stops=0.5, slips=0.25),
)
"""Curriculum of the model for teams, which starts from the tiny one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinySettings:
    """Settings of a training run of the tiny model."""

    seed: int = 0
    tokens: int = 19_000_000
    """Tokens read in training, without padding."""
    stages: tuple[Stage, ...] = STAGES
    world_size: int = 60
    """Questions per training world, which has about 110 pages."""
    vocabulary: int = 2048
    tokenizer_worlds: int = 40
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    intermediate: int = 704
    positions: int = 8192
    batch_tokens: int = 2048
    """Minimum tokens per update."""
    matrix_lr: float = 0.01
    """Learning rate of Muon, for the matrices of the layers."""
    other_lr: float = 2e-3
    """Learning rate of AdamW, for embeddings, biases and norms."""
    weight_decay: float = 0.01
    warmup: float = 0.01
    """Share of the tokens over which the learning rates rise (warm-up)."""
    decay: float = 0.85
    """Share of the tokens, at the end of the run, over which the learning rates fall linearly to 0."""
    max_grad_norm: float = 1.0
    evaluations: int = 2
    """Number of evaluations, evenly spaced; the last is at the end."""
    evaluation_questions: int = 100
    device: str = "cpu"
    autocast: bool = True
    """Whether matrix products are computed in bfloat16."""
    sharpness: float = 1.0
    """Factor of the saved model's logits: with 2, temperature 1 samples as temperature 0.5 did in training. This lowers
    the probability of tokens that break a role's grammar, which is too high in small models; equal choices stay
    equal."""
    start: str | None = None
    """Model whose weights initialise this one; None: random weights."""
    agents: tuple[str, ...] = (AGENT,)
    """Agents whose prompts the tokenizer is trained on."""
    tags: tuple[str, ...] = TAGS
    """Tags that are single tokens."""


def team_settings() -> TinySettings:
    """Returns the settings of the model from which every shipped team can start."""
    return TinySettings(
        tokens=20_000_000,
        stages=TEAM_STAGES,
        vocabulary=2560,
        matrix_lr=0.004,
        other_lr=1e-3,
        warmup=0.02,
        sharpness=2.0,
        start="tiny",
        agents=("search-r1", "praise", "m-ask", "jade", "ircot"),
        tags=(*TAGS, *TEAM_TAGS),
    )


# -- tokenizer and model -------------------------------------------------------------------------------------------


def train_tokenizer(settings: TinySettings) -> PreTrainedTokenizerBase:
    """Trains the byte-level BPE on training worlds and prompts.

    The training text contains no invented names, so that the names of a split do not become words. It begins with the
    parts of names: initial consonants with the blank before them, middles, ends. Therefore a name of any split always
    consists of the same three or four tokens, which occur in training. It also contains all numbers of two digits, so
    that a year is two tokens.
    """
    text = {
        name: getattr(settings, name) for name in ("vocabulary", "tags", "agents", "tokenizer_worlds", "world_size")
    }
    tokenizer = Tokenizer.from_str(_trained_bpe(TinySettings(**text)))
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in settings.tags])
    made: PreTrainedTokenizerBase = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        model_max_length=settings.positions,
        clean_up_tokenization_spaces=False,
    )
    made.chat_template = TEMPLATE
    return made


@functools.lru_cache(maxsize=2)
def _trained_bpe(settings: TinySettings) -> str:
    """Returns the trained BPE as JSON; cached, since one process may train several models on the same text."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=settings.vocabulary - len(settings.tags) - len(MARKS),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_tokenizer_texts(settings), trainer)
    return str(tokenizer.to_str())


def _tokenizer_texts(settings: TinySettings) -> Iterator[str]:
    """Yields the tokenizer's training text: parts of names, many times, then other texts without names."""
    ends = tuple(itertools.chain(*ENDS.values()))
    invented = re.compile(rf" ?\b(?:{'|'.join(ONSETS)})[{''.join(VOWELS)}](?:{'|'.join(MIDS)})?(?:{'|'.join(ends)})\b")
    yield from (",".join([f" {onset}"] * 2 * PIECE_COUNT) for onset in ONSETS)
    yield from (",".join([piece] * PIECE_COUNT) for piece in (*MIDS, *ends))
    yield from (",".join([f"{blank}{digits:02}"] * PIECE_COUNT) for digits in range(100) for blank in ("", " "))
    prompts = [role.template for agent in settings.agents for role in load_agent(agent).roles.values()]
    for number in range(settings.tokenizer_worlds):
        for name in ("tags", "tool_calls"):
            for prompt in prompts:
                yield f"user assistant system\n{prompt}\n{get_protocol(name).instructions()}"
            yield get_protocol(name).notice("no complete action was found")
        level: Literal["simple", "full"] = "full" if number % 2 else "simple"
        world = build_world(WorldSpec(level, size=settings.world_size, seed=number, split="train"))
        texts = [f"Doc 1(Title: {p.title}) {p.text}" for p in world.passages]
        texts += [f" {q.text}" for q in world.questions] + [
            f" {hop.question}" for q in world.questions for hop in q.hops or ()
        ]
        yield from (invented.sub("", text) for text in texts)


def make_model(settings: TinySettings, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Returns a Llama with random weights; torch's global generator does not change."""
    if len(tokenizer) > settings.vocabulary:
        raise UsageError(
            f"a vocabulary of {settings.vocabulary} is too small: the tokenizer has {len(tokenizer)} tokens"
        )
    ids = tokenizer.get_vocab()
    # Llama with biases computes what Qwen2 does; transformers replaces the tokenizer of any model that is called Qwen2.
    config = LlamaConfig(
        vocab_size=settings.vocabulary,
        hidden_size=settings.hidden,
        intermediate_size=settings.intermediate,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.positions,
        attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids[END],
        pad_token_id=ids[PAD],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    if settings.start is not None:
        _begin_as(model, tokenizer, settings.start)
        return cast(PreTrainedModel, model.to(settings.device).eval())
    attention = model.model.layers[0].self_attn
    for number in range(settings.heads - 1):
        _look_back(attention, number, distance=number + 1, theta=ROPE_THETA)
    return cast(PreTrainedModel, model.to(settings.device).eval())


def sharpened(model: Any, sharpness: float) -> Any:
    """Multiplies a model's logits by a factor, in place, by scaling its last norm; returns the model."""
    with torch.no_grad():
        model.model.norm.weight.mul_(sharpness)
    return model


def _begin_as(model: Any, tokenizer: PreTrainedTokenizerBase, start: str) -> None:
    """Copies the weights of a trained model; the embedding of a new token is the mean of the tokens that spell it."""
    from searchgym.rollout.loading import load_model

    loaded, old = load_model(start)
    state = dict(loaded.state_dict())
    known, rows = old.get_vocab(), state["model.embed_tokens.weight"]
    embedding = model.model.embed_tokens.weight.detach().clone()
    for token, number in tokenizer.get_vocab().items():
        if token in known:
            embedding[number] = rows[known[token]]
        elif spelled := old(tokenizer.decode([number]), add_special_tokens=False)["input_ids"]:
            embedding[number] = rows[torch.tensor(spelled)].mean(0)
    state["model.embed_tokens.weight"] = state["lm_head.weight"] = embedding
    model.load_state_dict(state)


def _look_back(attention: Any, head: int, distance: int, theta: float) -> None:
    """Sets the biases of a head so that it attends to the token a fixed distance back.

    To copy, a model needs a first layer that attends to preceding tokens, which small models learn late. Query and key
    biases are constant vectors that the rotary embedding rotates: a key bias rotated forward by `distance` has its
    largest product with the query bias at that distance. Only frequencies that distinguish neighbours are used. The
    biases are trained like all weights.

    Args:
        attention: Attention module of a Llama with biases; changed in place.
        head: Index of the head.
        distance: Distance in tokens.
        theta: Base of the rotary embedding.
    """
    width = attention.head_dim
    frequencies = theta ** (-torch.arange(0, width, 2) / width)
    used = (frequencies > SLOWEST).float()
    lost = (used * (1 - torch.cos(frequencies))).sum()  # of the score by a neighbour, for biases of length 1
    size = torch.sqrt(LEAD * width**0.5 / lost) * used
    own = slice(head * width, (head + 1) * width)
    turned = distance * frequencies
    with torch.no_grad():
        attention.q_proj.bias[own] = torch.cat([size, torch.zeros_like(size)])
        attention.k_proj.bias[own] = torch.cat([size * torch.cos(turned), size * torch.sin(turned)])
