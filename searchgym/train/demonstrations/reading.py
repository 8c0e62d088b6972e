"""Reading practice: a question, one to three pages and a short answer, in several forms of prompts.

A context asks up to four questions about its pages, of which each is answered in a turn of its own. Steps of a question
that has several hops are questions, too. Pages that do not help stand beside the gold ones.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from searchgym.agents.oracle_roles import steps_of
from searchgym.envs.task import Task
from searchgym.errors import UsageError
from searchgym.protocol import Parts
from searchgym.questions.spec import SENTENCE
from searchgym.records import Answer, Call, Context, Episode, Passage, Question, Span, title_key
from searchgym.retrieval.index.distractors import passages_of
from searchgym.rollout.tokens import TokenFormat
from searchgym.text import cut_words, holds
from searchgym.train.demonstrations.oracle import DemonstrationSet, context_lengths
from searchgym.train.demonstrations.play import MODEL_KEY, turn_ids

MOST_PAGES: Final = 3
MOST_QUESTIONS: Final = 4
TRIES: Final = 10
"""Contexts that are drawn for each one that is wanted, before giving up on those that are too long."""
SENTENCES: Final = 0.5
"""Share of the contexts about a question made of a sentence, the kind nearest to what people ask."""
MOST_WORDS: Final = 80
"""Longest page that is shown, in words; longer ones are cut, and their questions kept only if the answer stays."""
FORMS: Final[Sequence[tuple[str, str]]] = (
    ("\nAnswer in as few words as possible.", "{answer}"),
    ("\nAnswer:", "{answer}"),
    ("\nGive the answer alone, as <answer>answer</answer>.", "<answer> {answer}</answer>"),
)
"""What follows a question, and how it is answered."""


@dataclass(frozen=True, slots=True)
class ReadingQuestion:
    """A question about a few pages."""

    id: str
    text: str
    answer: str
    titles: tuple[str, ...]
    """Keys of the pages that it needs."""
    kind: str = ""
    """Shape and relation; all kinds are asked alike often."""


def demonstrate_reading(
    task: Task, form: TokenFormat, count: int, seed: int = 0, max_tokens: int = 2048
) -> DemonstrationSet:
    """Makes reading practice from the questions of a task.

    Args:
        task: Questions that name their gold pages, and a retriever whose corpus is at hand.
        form: Token format of the model that will learn.
        count: Number of contexts.
        seed: Seed of all that is drawn.
        max_tokens: Longest context that is kept, in tokens.

    Raises:
        UsageError: The corpus is not at hand, or no question needs at most `MOST_PAGES` pages that hold its answer.
    """
    passages = passages_of(task.retriever)
    if passages is None:
        raise UsageError("reading practice needs the corpus on this machine, not a retrieval server")
    pages: dict[str, Passage] = {}
    for passage in passages:
        pages.setdefault(title_key(passage.title), passage)
    rng, shown = random.Random(f"{seed} reading"), DemonstrationSet()
    asked = [own for question in task.questions for own in reading_questions(question, pages)]
    if not asked:
        raise UsageError(f"{len(task.questions)} questions give no reading practice: none has gold pages at hand")
    by_page: dict[str, list[ReadingQuestion]] = {}
    for own in asked:
        by_page.setdefault(own.titles[0], []).append(own)
    shown.counts["questions"] = len(asked)
    keys = sorted({title for own in asked for title in own.titles})
    for number, own in enumerate(itertools.islice(_endless(asked, rng), TRIES * count)):
        if len(shown.episodes) == count:
            break
        titles = list(own.titles)
        others_shown = [title for title in rng.sample(keys, min(MOST_PAGES, len(keys))) if title not in titles]
        titles += others_shown[: rng.randint(min(1, MOST_PAGES - len(titles)), MOST_PAGES - len(titles))]
        rng.shuffle(titles)
        others = [other for title in titles for other in by_page.get(title, ()) if set(other.titles) <= set(titles)]
        chosen = {own.text: own}
        for other in rng.sample(others, len(others)):
            if len(chosen) < MOST_QUESTIONS:
                chosen.setdefault(other.text, other)
        questions = rng.sample(list(chosen.values()), len(chosen))
        episode = _episode(number, [pages[title] for title in titles], questions, form, rng)
        if max(context_lengths(episode)) > max_tokens:
            shown.counts[f"longer than {max_tokens} tokens"] += 1
            continue
        shown.counts["kept"] += 1
        shown.counts["answers"] += len(questions)
        shown.episodes.append(episode)
    if not shown.episodes:
        raise UsageError(f"no reading practice is as short as {max_tokens} tokens: allow longer contexts")
    return shown


def reading_questions(question: Question, pages: Mapping[str, Passage]) -> Iterator[ReadingQuestion]:
    """Yields a question and its steps, as far as few enough pages hold them."""
    titles = [title_key(title) for title in question.gold_titles or ()]
    if question.answerable is False or not titles or not all(title in pages for title in titles):
        return
    answer = question.answers[0]
    if len(titles) <= MOST_PAGES and (answer in ("yes", "no") or any(_says(pages[title], answer) for title in titles)):
        relations = question.metadata.get("relations") or ()
        yield ReadingQuestion(
            question.id, question.text, answer, tuple(titles), " ".join([question.kind or "", *relations])
        )
    if question.hops and question.evidences and len(question.hops) == len(question.evidences) == len(titles):
        for number, (step, title) in enumerate(zip(steps_of(question), titles, strict=False)):
            if len(titles) > 1 and _says(pages[title], step.answer):
                kind = f"step {question.evidences[number].relation}"
                yield ReadingQuestion(f"{question.id}/{number}", step.filled, step.answer, (title,), kind)


def _says(page: Passage, answer: str) -> bool:
    """Returns whether the part of a page that is shown holds an answer."""
    return holds(f"{page.title} {cut_words(page.text, MOST_WORDS)}", answer)


def _endless(asked: Sequence[ReadingQuestion], rng: random.Random) -> Iterator[ReadingQuestion]:
    """Yields questions without end, half of them sentences; of the others, each kind and yes and no alike often."""
    sentences = [own for own in asked if own.kind.startswith(SENTENCE)]
    kinds: dict[tuple[str, str], list[ReadingQuestion]] = {}
    for own in asked:
        if not own.kind.startswith(SENTENCE):
            said = own.answer if own.answer in ("yes", "no") else ""
            kinds.setdefault((own.kind, said), []).append(own)
    others = list(kinds.values())
    while True:
        if sentences and (not others or rng.random() < SENTENCES):
            yield rng.choice(sentences)
        else:
            yield rng.choice(rng.choice(others))


def _episode(
    number: int, pages: Sequence[Passage], questions: Sequence[ReadingQuestion], form: TokenFormat, rng: random.Random
) -> Episode:
    """Returns a context that shows pages and asks questions about them, as an episode without searches."""
    after, answered = rng.choice(FORMS)
    shown: Parts = [
        (f"Doc {n}(Title: {p.title}) {cut_words(p.text, MOST_WORDS)}\n", False) for n, p in enumerate(pages, start=1)
    ]
    spans: list[Span] = []
    calls: list[Call] = []
    at = 0

    def add(kind: str, ids: npt.NDArray[np.int32]) -> int:
        nonlocal at
        logp = np.zeros(len(ids), np.float32) if kind == "model" else None
        spans.append(Span(kind, ids, logp))  # type: ignore[arg-type]  # one of the literals
        at += len(ids)
        return at

    for place, own in enumerate(questions):
        question: Parts = [("\nQuestion: " if place == 0 else "Question: ", True), (own.text, False), (after, True)]
        if place == 0:
            start = add("prompt", form.prompt_ids([*shown, *question]))
        else:
            start = add("observation", form.observation_ids(question, "eos"))
        text = answered.format(answer=own.answer)
        end = add("model", turn_ids(text, form, "eos" if place else None))
        calls.append(Call(0, start, end, "reader", MODEL_KEY, place + 1, text=text, answer=own.answer))
    last = questions[-1]
    return Episode(
        id=f"reading-{number:06d}#0",
        question_id=last.id,
        agent="reading",
        env="reading",
        contexts=[Context(None, 0, spans)],
        calls=calls,
        turns=len(calls),
        answer=Answer(last.answer),
        reward=1.0,
        stop_reason="answer",
    )
