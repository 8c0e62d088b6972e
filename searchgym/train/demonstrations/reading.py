"""Reading practice: a question, one to three pages and a short answer, in several forms of prompts.

A context asks up to four questions about its pages, each answered in a separate turn. Steps of multi-hop questions are
questions too. Besides the gold pages a context contains unrelated pages.
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
"""Maximum number of contexts tried per requested context, as some are too long."""
SENTENCES: Final = 0.5
"""Share of contexts whose question was generated from a sentence, the kind closest to human questions."""
MOST_WORDS: Final = 80
"""Maximum length of a page in words; longer pages are cut, and a question is used only if its answer remains."""
FORMS: Final[Sequence[tuple[str, str]]] = (
    ("\nAnswer in as few words as possible.", "{answer}"),
    ("\nAnswer:", "{answer}"),
    ("\nGive the answer alone, as <answer>answer</answer>.", "<answer> {answer}</answer>"),
)
"""Forms of practice: the instruction after a question, and the format of the answer."""


@dataclass(frozen=True, slots=True)
class ReadingQuestion:
    """A question about a few pages."""

    id: str
    text: str
    answer: str
    titles: tuple[str, ...]
    """Title keys of the pages that the question needs."""
    kind: str = ""
    """Kind of question (shape and relations); all kinds are equally frequent."""


def demonstrate_reading(
    task: Task, form: TokenFormat, count: int, seed: int = 0, max_tokens: int = 2048
) -> DemonstrationSet:
    """Generates reading practice from the questions of a task.

    Args:
        task: Questions with gold pages, and a retriever whose corpus is on this machine.
        form: Token format of the model that will learn.
        count: Number of contexts.
        seed: Seed of all random choices.
        max_tokens: Maximum length of a context in tokens.

    Raises:
        UsageError: The corpus is not on this machine, or no question has at most `MOST_PAGES` gold pages that contain
            its answer.
    """
    passages = passages_of(task.retriever)
    if passages is None:
        raise UsageError("reading practice needs the corpus on this machine, not a retrieval server")
    pages: dict[str, Passage] = {}
    for passage in passages:
        pages.setdefault(title_key(passage.title), passage)
    rng, practice = random.Random(f"{seed} reading"), DemonstrationSet()
    candidates = [candidate for question in task.questions for candidate in reading_questions(question, pages)]
    if not candidates:
        raise UsageError(
            f"{len(task.questions)} questions yield no reading practice: none has its gold pages in the corpus"
        )
    by_page: dict[str, list[ReadingQuestion]] = {}
    for candidate in candidates:
        by_page.setdefault(candidate.titles[0], []).append(candidate)
    practice.counts["questions"] = len(candidates)
    keys = sorted({title for candidate in candidates for title in candidate.titles})
    for number, candidate in enumerate(itertools.islice(_endless(candidates, rng), TRIES * count)):
        if len(practice.episodes) == count:
            break
        titles = list(candidate.titles)
        distractors = [title for title in rng.sample(keys, min(MOST_PAGES, len(keys))) if title not in titles]
        titles += distractors[: rng.randint(min(1, MOST_PAGES - len(titles)), MOST_PAGES - len(titles))]
        rng.shuffle(titles)
        others = [other for title in titles for other in by_page.get(title, ()) if set(other.titles) <= set(titles)]
        chosen = {candidate.text: candidate}
        for other in rng.sample(others, len(others)):
            if len(chosen) < MOST_QUESTIONS:
                chosen.setdefault(other.text, other)
        questions = rng.sample(list(chosen.values()), len(chosen))
        episode = _episode(number, [pages[title] for title in titles], questions, form, rng)
        if max(context_lengths(episode)) > max_tokens:
            practice.counts[f"longer than {max_tokens} tokens"] += 1
            continue
        practice.counts["kept"] += 1
        practice.counts["answers"] += len(questions)
        practice.episodes.append(episode)
    if not practice.episodes:
        raise UsageError(f"no reading practice is as short as {max_tokens} tokens: allow longer contexts")
    return practice


def reading_questions(question: Question, pages: Mapping[str, Passage]) -> Iterator[ReadingQuestion]:
    """Yields a question and its steps, each if at most `MOST_PAGES` pages contain its answer."""
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
    """Returns True if the part of a page that is used contains an answer."""
    return holds(f"{page.title} {cut_words(page.text, MOST_WORDS)}", answer)


def _endless(candidates: Sequence[ReadingQuestion], rng: random.Random) -> Iterator[ReadingQuestion]:
    """Yields random questions without end: a share `SENTENCES` from sentences, the rest evenly over kinds."""
    sentences = [candidate for candidate in candidates if candidate.kind.startswith(SENTENCE)]
    kinds: dict[tuple[str, str], list[ReadingQuestion]] = {}
    for candidate in candidates:
        if not candidate.kind.startswith(SENTENCE):
            choice = candidate.answer if candidate.answer in ("yes", "no") else ""
            kinds.setdefault((candidate.kind, choice), []).append(candidate)
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
    page_parts: Parts = [
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

    for index, item in enumerate(questions):
        question: Parts = [("\nQuestion: " if index == 0 else "Question: ", True), (item.text, False), (after, True)]
        if index == 0:
            start = add("prompt", form.prompt_ids([*page_parts, *question]))
        else:
            start = add("observation", form.observation_ids(question, "eos"))
        text = answered.format(answer=item.answer)
        end = add("model", turn_ids(text, form, "eos" if index else None))
        calls.append(Call(0, start, end, "reader", MODEL_KEY, index + 1, text=text, answer=item.answer))
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
