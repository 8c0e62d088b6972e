"""Search demonstrations: an oracle searches for a question's gold pages by name, and then answers.

Pages come from the real retriever, and a demonstration is kept only if its searches found the gold pages. With `early`,
some questions of several hops are answered after their first search by what it gives: a flaw to be repaired later.
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
from searchgym.text import base_title, holds, sentences
from searchgym.train.demonstrations.behaviours import WRITERS, Occasion
from searchgym.train.demonstrations.play import AGENT, Demonstration, play
from searchgym.train.demonstrations.teams import TEAMS, play_team

BATCH: Final = 64
"""Number of questions that are demonstrated at once."""


@dataclass(slots=True)
class DemonstrationSet:
    """Demonstrations, and what became of the questions that were tried."""

    episodes: list[Episode] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Questions by outcome: ``kept``, of these ``early``, and those left out by the reason."""


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
    """Shows how an agent answers questions of a task.

    Args:
        task: Questions that name their gold pages, and a retriever over a corpus that has them.
        form: Token format of the model that will learn from the episodes.
        count: Number of demonstrations; fewer if the questions give no more.
        agent: ``search-r1``, or a team for which an oracle speaks.
        early: Probability that a question of several hops is answered after its first search.
        behaviours: Names in `searchgym.train.demonstrations.behaviours.WRITERS`; each demonstration shows one of them
            for which its question gives occasion. Only with ``search-r1``.
        seed: Seed of the order of questions and of the early answers.
        max_tokens: Longest context that is kept, in tokens; longer ones are counted and left out.

    Raises:
        UsageError: The agent is another one, or no question gives a demonstration.
        UnknownNameError: A behaviour that does not exist.
    """
    if unknown := next((name for name in behaviours if name not in WRITERS), None):
        raise UnknownNameError("behaviour", unknown, WRITERS)
    if behaviours and agent != AGENT:
        raise UsageError(f"agent {agent}: behaviours are shown by {AGENT} alone")
    if agent not in (AGENT, *TEAMS, *ORACLES):
        raise UsageError(f"agent {agent}: the oracle speaks for {AGENT} and {', '.join((*TEAMS, *ORACLES))}")
    speaker = ORACLES.get(agent, OracleRoles)
    rng = random.Random(f"{seed} {agent} {early}")
    shown = DemonstrationSet()
    asked = questions_by_turns(rng.sample(task.questions, len(task.questions)), shown.counts)
    pages = {title_key(passage.title): passage for passage in passages_of(task.retriever) or ()}
    for start in range(0, len(asked), BATCH):
        batch = asked[start : start + BATCH]
        stops = {q.id for q in batch if len(q.gold_titles or ()) > 1 and rng.random() < early and not is_masked(q)}
        showing: dict[str, str] = {}
        if agent == AGENT:
            plain = [demonstration_of(q, q.id in stops, rng, task.rules) for q in batch]
            episodes = play(task, [_primed(own, behaviours, rng, showing) for own in plain], form)
        else:
            oracles = {q.id: speaker(q, quotes_of(q, pages), rng, float(q.id in stops)) for q in batch}
            episodes = play_team(agent, task, oracles, form)
        for question, episode in zip(batch, episodes, strict=True):
            if len(shown.episodes) == count:
                return shown
            reason = _refusal(question, episode, question.id in stops, max_tokens, task.rules)
            shown.counts[reason or "kept"] += 1
            if reason is None:
                shown.counts["early"] += question.id in stops
                shown.counts.update([showing[question.id]] if question.id in showing else [])
                shown.episodes.append(episode)
    if not shown.episodes:
        why = ", ".join(f"{reason}: {number}" for reason, number in shown.counts.most_common())
        raise UsageError(f"{len(task.questions)} questions give no demonstration ({why or 'there is none'})")
    return shown


def questions_by_turns(questions: Sequence[Question], left_out: Counter[str]) -> list[Question]:
    """Returns the questions that can be demonstrated, one of each kind and number of pages in turn.

    So no kind fills the demonstrations. Questions that name their answer (comparisons) take turns as one kind: who
    practises much of these answers by names of the question. Questions that name no pages or have no answer are left
    out, and those with the text of an earlier one.

    Args:
        questions: In the order in which those of a kind are taken.
        left_out: Counts those that are left out, by reason.
    """
    kinds: dict[tuple[bool, str | None, int], list[Question]] = {}
    for question in questions:
        kind = bool(choices_of(question)), question.kind, len(question.gold_titles or ())
        kinds.setdefault(kind, []).append(question)
    named = _turns([own for kind, own in kinds.items() if kind[0]])
    taken: dict[str, Question] = {}
    for question in _turns([list(named), *(own for kind, own in kinds.items() if not kind[0])]):
        if not question.gold_titles:
            left_out["no gold pages named"] += 1
        elif question.answerable is False:
            left_out["no answer"] += 1
        elif question.text in taken:
            left_out["the same text"] += 1
        else:
            taken[question.text] = question
    return list(taken.values())


def _turns(groups: Sequence[Sequence[Question]]) -> Iterator[Question]:
    """Yields one item of each group in turn until all are spent."""
    for turn in itertools.zip_longest(*groups):
        yield from (question for question in turn if question is not None)


def demonstration_of(question: Question, early: bool, rng: random.Random, rules: Rules) -> Demonstration:
    """Returns an oracle's turns: a search for the name of each gold page, then the answer.

    Where pages can be opened, it opens each gold page and reads on until the next name, or the answer, stands there.

    Args:
        question: Names its gold pages, in reading order.
        early: Answer after the first search: with what that page gives, or, where the question names its possible
            answers, with one of them at random.
        rng: Draws among these.
        rules: Rules of the environment.
    """
    queries, titles = queries_of(question), list(question.gold_titles or ())
    answer = question.answers[0]
    if early:
        answer = rng.choice(choices_of(question) or [steps_of(question)[0].answer])
        queries = queries[:1]
    turns, pages, words = list[str](), rules.pages, rules.max_observation_words
    for query, title, wanted in zip(queries, titles, [*queries[1:], answer], strict=False):
        turns.append(f"<search> {query}</search>")
        places = pages.find(title) if pages is not None else []
        if pages is None or not places:
            continue
        text = pages.at(places[0]).text
        turns.append(f"<open> {title if len(places) == 1 else pages.id_at(places[0])}</open>")
        for part in range(1, parts_of(text, words)):
            if holds(part_of(text, part, words), wanted):
                break
            turns.append("<more></more>")
    return Demonstration(question, (*turns, f"<answer> {answer}</answer>"), early)


def _primed(
    shown: Demonstration, behaviours: Sequence[str], rng: random.Random, showing: dict[str, str]
) -> Demonstration:
    """Returns a demonstration that shows one of some behaviours, and notes which; the same one without occasion."""
    question, choices = shown.question, choices_of(shown.question)
    steps = steps_of(question)
    goes_on = len(steps) > 1 and not choices and not shown.early and not is_masked(question)
    checked = queries_of(question)[0] if choices or is_masked(question) else question.answers[0]
    titles, found = list(question.gold_titles or ()), steps[0].answer if goes_on else None
    occasion = Occasion(question.text, shown.turns, titles, found, checked)
    for name in rng.sample(behaviours, len(behaviours)):
        if (turns := WRITERS[name](occasion)) is not None:
            showing[question.id] = name
            return replace(shown, turns=turns)
    return shown


def queries_of(question: Question) -> list[str]:
    """Returns the names of a question's gold pages, as it was generated with or else by their titles.

    Masked spans are searched for by the text that is left: one query may find several of their pages.
    """
    titles = list(question.gold_titles or ())
    queries = question.metadata.get("queries")
    if not isinstance(queries, list) or not queries or not all(isinstance(query, str) for query in queries):
        return [base_title(title) for title in titles]
    usable = is_masked(question) or len(queries) == len(titles)
    return list(queries) if usable else [base_title(title) for title in titles]


def is_masked(question: Question) -> bool:
    """Returns whether a question asks for masked spans."""
    return isinstance(question.metadata.get("masks"), int)


def choices_of(question: Question) -> list[str]:
    """Returns the answers among which a comparison asks for one; none for other questions."""
    answer = question.answers[0]
    if answer.lower() in ("yes", "no"):
        return ["yes", "no"]
    if question.kind not in COMPARISONS:
        return []
    named = [query for query in queries_of(question) if query in question.text]
    return named if answer in named else [*named, answer]


def quotes_of(question: Question, pages: Mapping[str, Passage]) -> list[str]:
    """Returns the supporting sentences of each gold page, or the page's first one where none is named."""
    wanted: dict[str, list[int]] = {}
    for fact in question.supporting_facts or ():
        wanted.setdefault(title_key(fact.title), []).append(fact.sentence or 0)
    quotes = []
    for title in question.gold_titles or ():
        page = pages.get(title_key(title))
        text = "" if page is None else page.text
        places = sentences(text)
        said = [text[slice(*places[n])].strip() for n in wanted.get(title_key(title), [0]) if n < len(places)]
        quotes.append(" ".join(said) or title)
    return quotes


def _refusal(question: Question, episode: Episode, early: bool, max_tokens: int, rules: Rules) -> str | None:
    """Returns why an episode is no demonstration, None if it is one.

    A query or an answer that nothing shown leads to would teach to guess.
    """
    hit = {title_key(found.passage.title) for searched in episode.searches for found in searched.hits}
    gold = list(question.gold_titles or ())[: 1 if early else None]
    if not all(title_key(title) in hit for title in gold):
        return "a gold page is not among the hits"
    if episode.answer is None or not all(call.legal for call in episode.calls):
        return f"the episode ends otherwise: {episode.stop_reason}"
    if max(context_lengths(episode)) > max_tokens:
        return f"longer than {max_tokens} tokens"
    seen, shown = question.text, dict[int, str]()
    for opened in episode.opens:
        if rules.pages is not None and opened.place is not None:
            page = rules.pages.at(opened.place)
            shown[opened.turn] = part_of(page.text, opened.part, rules.max_observation_words)
    for turn, searches in itertools.groupby(episode.searches, key=lambda searched: searched.turn):
        made = list(searches)
        seen += "".join(shown.pop(earlier) for earlier in sorted(shown) if earlier < turn)
        if episode.agent == AGENT and not all(holds(seen, searched.query) for searched in made):
            return "a query names what was not shown before"
        seen += rules.protocol.observation([searched.hits for searched in made], rules.max_observation_words)
    seen += "".join(shown.values())
    answers = [answer.split(SPAN_SEPARATOR) if is_masked(question) else [answer] for answer in question.golds]
    if not early and not choices_of(question) and not any(all(holds(seen, p) for p in own) for own in answers):
        return "the answer was not shown"
    return None


def context_lengths(episode: Episode) -> list[int]:
    """Returns the number of tokens of each of an episode's contexts."""
    own = [sum(len(span.ids) for span in context.spans) for context in episode.contexts]
    return [length + context.fork for length, context in zip(own, episode.contexts, strict=True)]
