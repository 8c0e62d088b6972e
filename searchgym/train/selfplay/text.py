"""Questions written by a language model: the prompt, the filters, and verification from the pages it read.

Source: SSP, arXiv 2510.18821, and its released code (`problem_extraction.py`). Deviations: without a verdict of the
judge a question is unverified (there it is accepted), and the judge's answer is compared by exact match only (there a
second model decides if that fails). It has not been run with a large model, and small models write no usable questions;
the model that writes is not trained yet.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from searchgym.envs.core import State
from searchgym.errors import ScoringError
from searchgym.records import Episode, Question, Searched, SupportingFact
from searchgym.scoring.judges.judge import Checked, Judge
from searchgym.text import holds, norm

LENGTHS: Final = (10, 1000)
"""Minimum and maximum number of characters in a question."""
LEAST_WORDS: Final = 10
NOISE: Final = 4
"""Number of other proposals whose pages are mixed in for verification."""


def asked_for(answer: str, searches: int, examples: Sequence[str] = (), id: str = "") -> Question:
    """Returns the task, for `searchgym/Propose-v0`, to write a question with a given answer.

    Args:
        answer: The answer.
        searches: Number of searches that the question should need.
        examples: Questions to show as examples.
        id: Id of the task. Default: derived from the answer.
    """
    example_lines = "".join(f"\nExample: {text}" for text in examples)
    text = f"Answer: {answer}\nSearches that the question should need: {searches}{example_lines}"
    return Question(id or f"propose-{norm(answer).replace(' ', '-')}", text, (answer,), kind="propose")


def refusal(question: str | None, answer: str, searches: Sequence[Searched]) -> str | None:
    """Returns the name of the first filter, in SSP's order, that rejects a written question; None if it passes all.

    Args:
        question: The question; None if the model wrote none.
        answer: The answer that the question should have.
        searches: Searches of the episode in which it was written.
    """
    rules: Mapping[str, Callable[[str], bool]] = {
        "length": lambda text: not LENGTHS[0] <= len(text) <= LENGTHS[1] or len(text.split()) < LEAST_WORDS,
        "answer in the question": lambda text: holds(text, answer),
        "no page was read": lambda _: not any(search.hits for search in searches),
        "one search, or a search twice": lambda _: (
            len(searches) < 2 or len({norm(search.query) for search in searches}) < len(searches)
        ),
        "answer in a search": lambda _: any(holds(search.query, answer) for search in searches),
    }
    if question is None or not question.strip():
        return "no question"
    return next((name for name, rule in rules.items() if rule(question)), None)


def reward_kept(state: State) -> float:
    """Returns 1 if the question written in an episode of `searchgym/Propose-v0` passes all filters, else 0."""
    text = None if state.answer is None else state.answer.text
    return float(refusal(text, state.question.answers[0], state.searches) is None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of filtering and verifying a written question."""

    question: Question | None
    """The question, with the pages that were read as supporting facts; None if it was rejected or not verified."""
    reason: str
    """Reason for rejection: a filter's name, ``refuted``, or ``unverified`` with the error; empty if accepted."""


def judged(
    tasks: Sequence[Question],
    episodes: Sequence[Episode],
    judge: Judge | Checked,
    rng: random.Random,
    noise: int = NOISE,
) -> list[Verdict]:
    """Returns a verdict for each episode: filters, then verification from its pages mixed with those of others.

    Args:
        tasks: Task of each episode; see `asked_for`.
        episodes: Episodes of a batch, in which questions were written.
        judge: Judge that answers the questions from pages.
        rng: Random generator that selects and shuffles the episodes whose pages the judge sees.
        noise: Number of other episodes whose pages are mixed in.
    """
    judge = judge if isinstance(judge, Checked) else Checked(judge)
    hits = [[hit.passage for search in episode.searches for hit in search.hits] for episode in episodes]
    read = ["\n".join(f"{passage.title}: {passage.text}" for passage in passages) for passages in hits]
    verdicts = []
    for task, episode, passages, episode_pages in zip(tasks, episodes, hits, read, strict=True):
        text = None if episode.answer is None else episode.answer.text
        reason = refusal(text, task.answers[0], episode.searches)
        if text is None or reason is not None:
            verdicts.append(Verdict(None, reason or "no question"))
            continue
        others = [pages for pages in read if pages not in ("", episode_pages)]
        pages = [episode_pages, *rng.sample(others, min(noise, len(others)))]
        rng.shuffle(pages)
        try:
            right = judge.verify(text, task.answers[0], pages)
        except ScoringError as error:
            verdicts.append(Verdict(None, f"unverified: {error}"))
            continue
        facts = tuple(map(SupportingFact, dict.fromkeys(passage.title for passage in passages)))
        id = f"{episode.id}-question"
        question = Question(id, text, task.answers, task.aliases, "proposed", supporting_facts=facts)
        verdicts.append(Verdict(question, "") if right else Verdict(None, "refuted"))
    return verdicts
