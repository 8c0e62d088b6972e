"""The tiny model from scratch: tokenizer, model, reader, strategy.

    python -m searchgym.train.tiny --out runs/tiny

It learns to read first (exercises: pages and every fact on them, all tokens as targets), then to act (demonstrations,
its own tokens as targets), and last a poor strategy (demonstrations of which most multi-hop ones stop early). Every
world is seen once, so facts cannot be memorised. On CPU the same settings give the same weights for the same number of
threads.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import re
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
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
from searchgym.corpora.worlds import World, build_world
from searchgym.envs.task import Task
from searchgym.errors import TrainingError, UsageError
from searchgym.protocol import get_protocol
from searchgym.records import Answer, Episode, Question
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers_sampler import TransformersSampler
from searchgym.scoring import exact_match
from searchgym.train.batching import collate, pack, trained_logits
from searchgym.train.demonstrations import (
    AGENT,
    ROLE,
    demonstrate,
    demonstration_samples,
    exercise_samples,
    play,
    with_one_page,
    world_task,
    worlds,
)
from searchgym.train.samples import Sample, with_all_targets

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

LAST_TURN: Final = 64
"""Tokens of a last turn at most: it recalls four facts and answers."""

Scores = dict[str, float]


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


# -- data ----------------------------------------------------------------------------------------------------------


def lessons(stage: Stage, stream: Iterable[World], form: TokenFormat, seed: int) -> Iterator[Sample]:
    """Yields a stage's samples world by world, shuffled within each."""
    for world in stream:
        if stage.lesson == "exercise":
            samples = exercise_samples(world, stage.pages, form)
        else:
            chosen = with_one_page(world) if stage.lesson == "single" else world
            samples = demonstration_samples(chosen, stage.early_stops, form)
            samples += exercise_samples(world, stage.pages, form) if stage.review else []
        order = np.random.default_rng([seed, world.spec.seed]).permutation(len(samples))
        shuffled = [samples[i] for i in order]
        yield from map(with_all_targets, shuffled) if stage.targets == "all" else shuffled


def batches(samples: Iterable[Sample], tokens: int) -> Iterator[list[Sample]]:
    """Yields lists of samples of at least `tokens` tokens in all."""
    held: list[Sample] = []
    count = 0
    for sample in samples:
        held.append(sample)
        count += len(sample.ids)
        if count >= tokens:
            yield held
            held, count = [], 0


def stage_at(stages: Sequence[Stage], progress: float) -> int:
    """Returns the number of the stage at a share of the run's tokens."""
    ends = np.cumsum([stage.share for stage in stages]) / sum(stage.share for stage in stages)
    return min(int(np.searchsorted(ends, progress, side="right")), len(stages) - 1)


# -- training ------------------------------------------------------------------------------------------------------


class Trainer:
    """Maximum likelihood with Muon for the matrices of the layers and AdamW for the rest.

    Args:
        model: Trained in place.
        settings: Rates and sizes.
    """

    def __init__(self, model: PreTrainedModel, settings: TinySettings) -> None:
        self.model, self.settings = model, settings
        embedding = model.get_input_embeddings().weight
        matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embedding]
        rest = [p for p in model.parameters() if p.ndim < 2]
        decay = settings.weight_decay
        adam = [{"params": [embedding], "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(matrices, lr=settings.matrix_lr, weight_decay=decay), settings.matrix_lr),
            (torch.optim.AdamW(adam, lr=settings.other_lr, betas=(0.9, 0.95)), settings.other_lr),
        ]

    def step(self, samples: Sequence[Sample], progress: float) -> tuple[float, int]:
        """Makes one update.

        Args:
            samples: With targets.
            progress: Share of the run's tokens read so far, for the rates.

        Returns:
            (mean loss per target in nats, number of targets).

        Raises:
            TrainingError: The loss is not finite.
        """
        targets = sum(int(sample.mask.sum()) for sample in samples)
        loss = 0.0
        for rows in pack([len(sample.ids) for sample in samples], self.settings.micro_batch_tokens):
            batch = collate(samples, {}, rows, self.model.device)
            with torch.autocast(batch.ids.device.type, torch.bfloat16, enabled=self.settings.autocast):
                logits = trained_logits(self.model, batch)
            part = torch.nn.functional.cross_entropy(logits.float(), batch.targets, reduction="sum") / targets
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
        if not np.isfinite(loss):
            raise TrainingError(f"the loss is {loss}: lower the learning rates")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        for optimizer, rate in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * rate_scale(progress, self.settings)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss, targets


def rate_scale(progress: float, settings: TinySettings) -> float:
    """Returns the share of the learning rates: a linear rise, a plateau, a linear fall."""
    rise = min(1.0, (progress + 1e-3) / settings.warmup) if settings.warmup else 1.0
    fall = min(1.0, (1 - progress) / settings.decay) if settings.decay else 1.0
    return min(rise, max(fall, 0.0))


@dataclass(slots=True)
class Run:
    """A training under way, and what is reported of it."""

    settings: TinySettings
    tokenizer: PreTrainedTokenizerBase
    form: TokenFormat
    model: PreTrainedModel
    tokens: int = 0
    """Read so far."""
    seconds: float = 0.0
    """Of training, evaluations apart."""
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, settings: TinySettings) -> Run:
        """Makes a tokenizer and a model with random weights."""
        tokenizer = train_tokenizer(settings)
        form = TokenFormat(tokenizer, get_protocol("tags"), chat=True)
        return cls(settings, tokenizer, form, make_model(settings, tokenizer))

    def batches(self) -> Iterator[tuple[int, list[Sample]]]:
        """Yields (number of the stage, samples of an update) until the tokens are spent; counts them."""
        settings = self.settings
        streams = [
            batches(lessons(stage, worlds(settings.seed * 10 + i, settings.world_size), self.form, settings.seed),
                    settings.batch_tokens)
            for i, stage in enumerate(settings.stages)
        ]  # fmt: skip
        while self.tokens < settings.tokens:
            number = stage_at(settings.stages, self.tokens / settings.tokens)
            samples = next(streams[number])
            self.tokens += sum(len(sample.ids) for sample in samples)
            yield number, samples

    def train(self, examiner: Examiner | None = None, out: Path | None = None) -> None:
        """Trains to the end; evaluates and saves on the way.

        Args:
            examiner: Evaluates at even distances and at the end; None: never.
            out: Where the model is saved after each evaluation, replaced each time; None: nowhere.
        """
        settings, trainer = self.settings, Trainer(self.model, self.settings)
        every = settings.tokens / settings.evaluations
        due, losses, targets, began = every, 0.0, 0, time.monotonic()
        for number, samples in self.batches():
            loss, count = trainer.step(samples, self.tokens / settings.tokens)
            losses, targets = losses + loss * count, targets + count
            if examiner is None or self.tokens < min(due, settings.tokens):
                continue
            due += every
            self.seconds += time.monotonic() - began
            row = {"tokens": self.tokens, "stage": number, "loss": losses / targets}
            row["tokens_per_second"] = self.tokens / self.seconds
            self.history.append(row | examiner.examine(self.model, search=settings.stages[number].lesson == "episode"))
            _say(json.dumps(self.history[-1]))
            if out is not None:
                self.save(out)
            losses, targets, began = 0.0, 0, time.monotonic()

    def save(self, out: Path) -> None:
        """Writes model (bfloat16), tokenizer and ``summary.json`` to a folder, in place of an earlier save."""
        building = out.with_name(f".{out.name}.building")
        shutil.rmtree(building, ignore_errors=True)
        _copy(self.model).to(torch.bfloat16).save_pretrained(building)
        self.tokenizer.save_pretrained(building)
        (building / "summary.json").write_text(json.dumps(self.summary(), indent=2) + "\n", encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        building.rename(out)

    def summary(self) -> dict[str, Any]:
        """Returns what was done, as plain data."""
        return {
            "settings": dataclasses.asdict(self.settings),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "vocabulary": len(self.tokenizer),
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "threads": torch.get_num_threads(),
            "history": self.history,
        }


def _copy(model: PreTrainedModel) -> Any:
    """Returns a model of its own with the same weights, in evaluation mode."""
    copy = cast(Any, type(model))(model.config).to(model.device).eval()
    copy.load_state_dict(model.state_dict())
    return copy


# -- evaluation ----------------------------------------------------------------------------------------------------


class Examiner:
    """Measures reading and searching on worlds that training has not seen.

    Args:
        specs: Worlds by the name that their scores get.
        tokenizer: The model's.
        form: Its token format.
    """

    def __init__(self, specs: Mapping[str, WorldSpec], tokenizer: PreTrainedTokenizerBase, form: TokenFormat) -> None:
        self._tokenizer, self._form = tokenizer, form
        self._tasks = {name: world_task(build_world(spec)) for name, spec in specs.items()}
        self._given = {
            name: play(task, [demonstrate(question) for question in task.questions], form)
            for name, task in self._tasks.items()
        }

    def examine(self, model: PreTrainedModel, search: bool = True) -> dict[str, dict[str, Scores]]:
        """Returns EM by hops: ``{name: {"reading": {"1": 0.9, ...}, "search": {...}}}``.

        ``reading`` gives the gold pages: all searches are the demonstration's, the model writes the last turn.
        ``search`` is its own greedy search.

        Args:
            model: In any state of training.
            search: False leaves ``search`` out: a model that was shown no episode yet only fills its turns.

        Returns:
            Scores by world, kind and hops.

        """
        sampler = TransformersSampler(_copy(model), self._tokenizer)  # it changes how a model computes attention
        return {
            name: {"reading": self._reading(sampler, name)}
            | ({"search": self._search(sampler, task)} if search else {})
            for name, task in self._tasks.items()
        }

    def _reading(self, sampler: TransformersSampler, name: str) -> Scores:
        """Returns EM of the last turn after a demonstration's searches."""
        sampling = Sampling(max_tokens=LAST_TURN, temperature=0.0, stop=self._form.stop)
        requests = [SampleRequest(_before_last(episode), sampling) for episode in self._given[name]]
        replies = sampler.sample(requests)
        actions = [self._form.protocol.parse(self._form.response_text(reply.ids)) for reply in replies]
        return by_hops(
            (question, exact_match(action.text, question.golds) if isinstance(action, Answer) else 0.0)
            for question, action in zip(self._tasks[name].questions, actions, strict=True)
        )

    def _search(self, sampler: TransformersSampler, task: Task) -> Scores:
        """Returns EM of greedy episodes."""
        episodes: list[Episode] = []
        engine = Engine(task, load_agent(AGENT), {ROLE: Model.over("tiny", sampler, self._form)})
        asyncio.run(engine.run(task.questions, episodes.append))
        return by_hops((task.by_id[episode.question_id], episode.scores["em"]) for episode in episodes)


def _before_last(episode: Episode) -> Any:
    """Returns the ids before an episode's last response, (T,) int32."""
    return np.concatenate([span.ids for span in episode.contexts[0].spans[:-1]])


def by_hops(scored: Iterable[tuple[Question, float]]) -> Scores:
    """Returns the mean score by number of hops, and over ``"all"``."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for question, score in scored:
        values[str(question.metadata["hops"])].append(score)
        values["all"].append(score)
    return {hops: round(sum(own) / len(own), 4) for hops, own in sorted(values.items())}


# -- command -------------------------------------------------------------------------------------------------------


def tokens_in(minutes: float, settings: TinySettings) -> int:
    """Returns how many tokens this machine trains on in a time, from a few updates of a model that is thrown away."""
    run = Run.start(settings)
    trainer, stream = Trainer(run.model, settings), run.batches()
    trainer.step(next(stream)[1], 0.0)
    began, start = time.monotonic(), run.tokens
    for _ in range(4):
        trainer.step(next(stream)[1], 0.0)
    return int(minutes * 60 * (run.tokens - start) / (time.monotonic() - began))


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m searchgym.train.tiny", description="Trains the tiny model from scratch."
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the model; replaced if it holds one")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--tokens", type=int, help=f"tokens to train on (default {TinySettings().tokens:,})")
    length.add_argument("--minutes", type=float, help="as many tokens as fit, measured first; summary.json names them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--float32", action="store_true", help="matrix products in float32, not bfloat16")
    parser.add_argument("--threads", type=int, help="threads of torch; results on CPU depend on it")
    parser.add_argument("--json", action="store_true", help="print the summary to standard output")
    given = parser.parse_args(argv)
    if min(given.tokens or 1, given.minutes or 1, given.threads or 1) <= 0 or given.seed < 0:
        parser.error("--tokens, --minutes and --threads must be positive, --seed not negative")
    return given


def main(argv: Sequence[str] | None = None) -> None:
    """Trains the tiny model."""
    given = _arguments(argv)
    if given.out.exists() and not (given.out / "summary.json").is_file():
        raise SystemExit(f"{given.out} exists and is not a model made by this command: name another folder")
    if given.threads:
        torch.set_num_threads(given.threads)
    settings = TinySettings(seed=given.seed, device=given.device, autocast=not given.float32)
    tokens = given.tokens or (tokens_in(given.minutes, settings) if given.minutes else settings.tokens)
    settings = dataclasses.replace(settings, tokens=tokens)
    _say(f"training on {tokens:,} tokens")
    run = Run.start(settings)
    size = settings.evaluation_questions
    specs = {split: WorldSpec("simple", size=size, seed=1, split=split) for split in ("validation", "test")}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    run.train(Examiner(specs, run.tokenizer, run.form), given.out)
    if given.json:
        sys.stdout.write(json.dumps(run.summary(), indent=2) + "\n")


if __name__ == "__main__":
    main()
