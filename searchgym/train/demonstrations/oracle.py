"""Search demonstrations: an oracle searches for a question's gold pages by name, and then answers.

Pages come from the real retriever, and a demonstration is kept only if its searches found the gold pages and its answer
is right. With `early`, some demonstrations have a deliberate flaw that later training should repair: they answer a
multi-hop question too early, after a first search that found the first gold page.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from searchgym.agents.oracle_roles import COMPARISONS, OracleRoles, steps_of
from searchgym.agents.teams.oracle import ORACLES
from searchgym.envs.core import Rules
from searchgym.envs.pages.pages import part_of, parts_of
from searchgym.envs.task import Task
from searchgym.errors import UnknownNameError, UsageError
from searchgym.questions.masked.spans import SPAN_SEPARATOR
from searchgym.records import Episode, Passage, Question, title_key
from searchgym.retrieval.index.distractors import passages_of
from searchgym.rollout.tokens import TokenFormat
from searchgym.scoring.answers import exact_match
from searchgym.text import base_title, holds, sentences
from searchgym.train.demonstrations.behaviours import WRITERS, Occasion
from searchgym.train.demonstrations.play import AGENT, Demonstration, play
from searchgym.train.demonstrations.teams import TEAMS, play_team

JUDGING: Final = "reseek"
"""Agent that judges its searches: its demonstrations show the behaviour ``judgement``."""
BATCH: Final = 64
"""Number of questions demonstrated per batch."""


@dataclass(slots=True)
class DemonstrationSet:
    """Demonstrations, with counts of the tried questions by outcome."""

    episodes: list[Episode] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Number of questions by outcome: ``kept``, ``early`` (among the kept), and one count per reason for exclusion."""


def demonstrate_search(
    task: Task,
    form: TokenFormat,
    count: int,
    *,
    agent: str = AGENT,
    early: float = 0.0,
    behaviours: Sequence[str] = (),
    seed: int = 0,
    max_tokens: int = 2048,
) -> DemonstrationSet:
    """Generates demonstrations of an agent that answers questions of a task.

    Args:
        task: Questions with gold pages, and a retriever over a corpus that contains these pages.
        form: Token format of the model that will learn from the episodes.
        count: Maximum number of demonstrations.
        agent: ``search-r1``, ``reseek``, or a team that has an oracle.
        early: Probability that a multi-hop question is answered after its first search.
        behaviours: Names in `searchgym.train.demonstrations.behaviours.WRITERS`; each demonstration shows one of those
            that apply to its question. Only with ``search-r1``.
        seed: Seed of the order of questions and of the early answers.
        max_tokens: Maximum length of a context in tokens; longer episodes are counted and left out.

    Raises:
        UsageError: The agent has no oracle, or no question yields a demonstration.
        UnknownNameError: A behaviour does not exist.
    """
    if unknown := next((name for name in behaviours if name not in WRITERS), None):
        raise UnknownNameError("behaviour", unknown, WRITERS)
    if behaviours and agent != AGENT:
        raise UsageError(f"agent {agent}: only {AGENT} has behaviours")
    if agent not in (AGENT, JUDGING, *TEAMS, *ORACLES):
        named = ", ".join((*TEAMS, *ORACLES, JUDGING))
        raise UsageError(f"agent {agent}: there are oracles for {AGENT} and {named}")
    behaviours = ("judgement",) if agent == JUDGING else behaviours
    speaker = ORACLES.get(agent, OracleRoles)
    rng = random.Random(f"{seed} {agent} {early}")
    demonstrated = DemonstrationSet()
    questions = questions_by_turns(rng.sample(task.questions, len(task.questions)), demonstrated.counts)
    pages = {title_key(passage.title): passage for passage in passages_of(task.retriever) or ()}
    for start in range(0, len(questions), BATCH):
        batch = questions[start : start + BATCH]
        stops = {q.id for q in batch if len(q.gold_titles or ()) > 1 and rng.random() < early and not is_masked(q)}
        showing: dict[str, str] = {}
        if agent in (AGENT, JUDGING):
            plain = [demonstration_of(q, q.id in stops, rng, task.rules) for q in batch]
            primed = [_primed(demonstration, behaviours, rng, showing) for demonstration in plain]
            episodes = play(task, primed, form, agent)
        else:
            oracles = {q.id: speaker(q, quotes_of(q, pages), rng, float(q.id in stops)) for q in batch}
            episodes = play_team(agent, task, oracles, form)
        for question, episode in zip(batch, episodes, strict=True):
            if len(demonstrated.episodes) == count:
                return demonstrated
            reason = _refusal(question, episode, question.id in stops, max_tokens, task.rules)
            demonstrated.counts[reason or "kept"] += 1
            if reason is None:
                demonstrated.counts["early"] += question.id in stops
                demonstrated.counts.update([showing[question.id]] if question.id in showing else [])
                demonstrated.episodes.append(episode)
    if not demonstrated.episodes:
        why = ", ".join(f"{reason}: {number}" for reason, number in demonstrated.counts.most_common())
        raise UsageError(f"{len(task.questions)} questions give no demonstration ({why or 'there is none'})")
    return demonstrated


def questions_by_turns(questions: Sequence[Question], left_out: Counter[str]) -> list[Question]:
    """Returns the questions that can be demonstrated, alternating between kinds and numbers of pages.

    So no kind dominates the demonstrations. All questions that name their answer (comparisons) count as one kind: a
    model trained on many of these answers with names from the question. Questions without gold pages, without an
    answer, or with the text of an earlier question are left out.

    Args:
        questions: Questions; those of one kind keep this order.
        left_out: Counter to which the questions that are left out are added, by reason.
    """
    kinds: dict[tuple[bool, str | None, int], list[Question]] = {}
    for question in questions:
        kind = bool(choices_of(question)), question.kind, len(question.gold_titles or ())
        kinds.setdefault(kind, []).append(question)
    named = _turns([group for kind, group in kinds.items() if kind[0]])
    chosen: dict[str, Question] = {}
    for question in _turns([list(named), *(group for kind, group in kinds.items() if not kind[0])]):
        if not question.gold_titles:
            left_out["no gold pages named"] += 1
        elif question.answerable is False:
            left_out["no answer"] += 1
        elif question.text in chosen:
            left_out["the same text"] += 1
        else:
            chosen[question.text] = question
    return list(chosen.values())


def _turns(groups: Sequence[Sequence[Question]]) -> Iterator[Question]:
    """Yields one item of each group in turn until all groups are used up."""
    for turn in itertools.zip_longest(*groups):
        yield from (question for question in turn if question is not None)


def demonstration_of(question: Question, early: bool, rng: random.Random, rules: Rules) -> Demonstration:
    """Returns an oracle's turns: a search for the name of each gold page, then the answer.

    If pages can be opened, it opens each gold page and reads on until a part contains the next name or the answer.

    Args:
        question: Question with gold pages in reading order.
        early: If True, it answers after the first search, with the intermediate answer, or, if the question names its
            possible answers, with one of them at random.
        rng: Random generator for that choice.
        rules: Rules of the environment.
    """
    queries, titles = queries_of(question), list(question.gold_titles or ())
    answer = question.answers[0]
    if early:
        answer = rng.choice(choices_of(question) or [steps_of(question)[0].answer])
        queries = queries[:1]
    turns, pages, words = list[str](), rules.pages, rules.max_observation_words
    for query, title, target in zip(queries, titles, [*queries[1:], answer], strict=False):
        turns.append(f"<search> {query}</search>")
        indices = pages.find(title) if pages is not None else []
        if pages is None or not indices:
            continue
        text = pages.at(indices[0]).text
        turns.append(f"<open> {title if len(indices) == 1 else pages.id_at(indices[0])}</open>")
        for part in range(1, parts_of(text, words)):
            if holds(part_of(text, part, words), target):
                break
            turns.append("<more></more>")
    return Demonstration(question, (*turns, f"<answer> {answer}</answer>"), early)


def _primed(
    demonstration: Demonstration, behaviours: Sequence[str], rng: random.Random, showing: dict[str, str]
) -> Demonstration:
    """Adds one of the behaviours that apply to a demonstration and records it in `showing`; unchanged if none does."""
    question, choices = demonstration.question, choices_of(demonstration.question)
    steps = steps_of(question)
    goes_on = len(steps) > 1 and not choices and not demonstration.early and not is_masked(question)
    checked = queries_of(question)[0] if choices or is_masked(question) else question.answers[0]
    titles, first_answer = list(question.gold_titles or ()), steps[0].answer if goes_on else None
    occasion = Occasion(question.text, demonstration.turns, titles, first_answer, checked)
    for name in rng.sample(behaviours, len(behaviours)):
        if (turns := WRITERS[name](occasion)) is not None:
            showing[question.id] = name
            return replace(demonstration, turns=turns)
    return demonstration


def queries_of(question: Question) -> list[str]:
    """Returns the queries for a question's gold pages: those it was generated with, or else the pages' titles.

    For masked spans the query is the remaining text, and one query may find several pages.
    """
    titles = list(question.gold_titles or ())
    queries = question.metadata.get("queries")
    if not isinstance(queries, list) or not queries or not all(isinstance(query, str) for query in queries):
        return [base_title(title) for title in titles]
    usable = is_masked(question) or len(queries) == len(titles)
    return list(queries) if usable else [base_title(title) for title in titles]


def is_masked(question: Question) -> bool:
    """Returns True if a question asks for masked spans."""
    return isinstance(question.metadata.get("masks"), int)


def choices_of(question: Question) -> list[str]:
    """Returns the possible answers of a comparison; empty for other questions."""
    answer = question.answers[0]
    if answer.lower() in ("yes", "no"):
        return ["yes", "no"]
    if question.kind not in COMPARISONS:
        return []
    named = [query for query in queries_of(question) if query in question.text]
    return named if answer in named else [*named, answer]


def quotes_of(question: Question, pages: Mapping[str, Passage]) -> list[str]:
    """Returns the supporting sentences of each gold page, or its first sentence if no supporting fact names one."""
    numbers_by_title: dict[str, list[int]] = {}
    for fact in question.supporting_facts or ():
        numbers_by_title.setdefault(title_key(fact.title), []).append(fact.sentence or 0)
    quotes = []
    for title in question.gold_titles or ():
        page = pages.get(title_key(title))
        text = "" if page is None else page.text
        spans = sentences(text)
        quoted = [text[slice(*spans[n])].strip() for n in numbers_by_title.get(title_key(title), [0]) if n < len(spans)]
        quotes.append(" ".join(quoted) or title)
    return quotes


def _refusal(question: Question, episode: Episode, early: bool, max_tokens: int, rules: Rules) -> str | None:
    """Returns the reason to exclude an episode from the demonstrations; None if it is usable.

    A query or an answer that does not follow from the text seen so far would teach the model to guess.
    """
    hit = {title_key(match.passage.title) for searched in episode.searches for match in searched.hits}
    gold = list(question.gold_titles or ())[: 1 if early else None]
    if not all(title_key(title) in hit for title in gold):
        return "a gold page is not among the hits"
    if episode.answer is None or not all(call.legal for call in episode.calls):
        return f"the episode ends otherwise: {episode.stop_reason}"
    if not early and not exact_match(episode.answer.text, question.golds):
        return "the answer is wrong"  # a team may drop a page that its searches found
    if max(context_lengths(episode)) > max_tokens:
        return f"longer than {max_tokens} tokens"
    seen, parts_by_turn = question.text, dict[int, str]()
    for opened in episode.opens:
        if rules.pages is not None and opened.place is not None:
            page = rules.pages.at(opened.place)
            parts_by_turn[opened.turn] = part_of(page.text, opened.part, rules.max_observation_words)
    for turn, searches in itertools.groupby(episode.searches, key=lambda searched: searched.turn):
        turn_searches = list(searches)
        seen += "".join(parts_by_turn.pop(earlier) for earlier in sorted(parts_by_turn) if earlier < turn)
        if episode.agent == AGENT and not all(holds(seen, searched.query) for searched in turn_searches):
            return "a query names what was not shown before"
        seen += rules.protocol.observation([searched.hits for searched in turn_searches], rules.max_observation_words)
    seen += "".join(parts_by_turn.values())
    answers = [answer.split(SPAN_SEPARATOR) if is_masked(question) else [answer] for answer in question.golds]
    if not early and not choices_of(question) and not any(all(holds(seen, p) for p in parts) for parts in answers):
        return "the answer was not shown"
    return None


def context_lengths(episode: Episode) -> list[int]:
    """Returns the number of tokens in each context of an episode."""
    new_tokens = [sum(len(span.ids) for span in context.spans) for context in episode.contexts]
    return [length + context.fork for length, context in zip(new_tokens, episode.contexts, strict=True)]
