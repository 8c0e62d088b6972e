"""Second implementation of the credit terms for single agents and for questions with evidence.

The terms are written from their definitions and share no code with `searchgym.train.credit`. Texts and titles are
compared with the package's functions.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np

from searchgym.records import Call, Episode, Question, Searched, Triple, is_simulated, title_key
from searchgym.testing.reference.answer_terms import ANSWER_TERMS
from searchgym.testing.reference.case import Case, Floats
from searchgym.text import WORD, base_title, holds, norm


def names_of(every: Sequence[Question]) -> tuple[set[str], set[str]]:
    """Returns the names of the gold pages of some questions, and the lowercase words of these questions."""
    small = {word for question in every for word in WORD.findall(question.text) if word.islower()}
    return {norm(base_title(title)) for question in every for title in question.gold_titles or ()}, small


def _process(case: Case) -> Floats:
    searches, useful = case.episode.searches, 0
    for index, search in enumerate(searches):
        before = searches[:index]
        earlier_queries = {" ".join(other.query.casefold().split()) for other in before}
        earlier_pages = {hit.passage.id for other in before for hit in other.hits}
        fresh = any(hit.passage.id not in earlier_pages for hit in search.hits)
        useful += fresh and " ".join(search.query.casefold().split()) not in earlier_queries
    return case.at_ends(useful / len(searches) if searches else 0.0)


def _decomposition(case: Case) -> Floats:
    turns = sorted(search.turn for search in case.episode.searches)
    several = len(turns) > 1 and turns[1] == turns[0]
    if case.question.kind == "comparison":
        return case.at_ends(0.45 * several)
    return case.at_ends(0.15 * (not several))


def _search_count(case: Case) -> Floats:
    one = case.question.kind in ("comparison", None, "", "na", "single")
    paid = {0: 0.0, 1: 0.35} if one else {0: -0.35, 1: 0.0}
    beyond = 0.35 * (2 - case.actions) if one else 0.35
    return case.at_ends(paid.get(case.actions, beyond))


def _hiersearch(case: Case) -> Floats:
    episode, rewards = case.episode, np.zeros(len(case.episode.calls))
    cut = bool(episode.calls) and episode.calls[-1].cut and episode.stop_reason != "answer"
    if episode.stop_reason == "context" or cut or episode.answer is None or episode.answer.text == "":
        return rewards
    score, early = episode.reward, [bool(search.source) for search in episode.searches]
    if case.terms["hiersearch"].local_first and True in early:
        by_place = [-1, -1, -1, -0.2, -0.15, -0.1, -0.045, -0.03]
        score += [*by_place, *[-0.01] * len(early)][early.index(True)]
    illegal = {call.role for call in episode.calls if not call.legal}
    for last in case.lasts:
        if episode.calls[last].role not in illegal:
            rewards[last] = score if score > 0 else episode.notes.get("tools", 0.0) / 10
    return rewards


def _ikea(case: Case) -> Floats:
    episode = case.episode
    if any(not episode.calls[i].legal for i in case.acting):
        return case.at_ends(-1.0)
    right = episode.scores.get("em", 0.0) > 0
    return case.at_ends(1 + max(0.0, 0.6 - 0.2 * case.actions) if right else 0.05 * (case.actions > 0))


def _decision(case: Case) -> Floats:
    episode, rewards = case.episode, np.zeros(len(case.episode.calls))
    tried = [case.score(peer, call.answer or "") for peer in case.peers for call in peer.calls if call.prefix]
    for i, call in enumerate(episode.calls):
        if call.prefix:
            rewards[i] = case.score(episode, call.answer or "")
    if case.acting:
        first, knows_answer = case.acting[0], np.mean(tried) >= case.terms["decision"].known
        rewards[first] = episode.calls[first].legal and (len(episode.searches) == 0) == knows_answer
    return rewards


def _ranking(case: Case) -> Floats:
    rewards = np.zeros(len(case.episode.calls))
    for i, call in enumerate(case.episode.calls):
        if call.ranked is not None and call.legal:
            quality = _quality(case, call, call.ranked)
            above = quality is None or quality > case.terms["ranking"].gate
            rewards[i] = (quality or 0.0) + (case.episode.reward if above else 0.0)
    return rewards


def _quality(case: Case, call: Call, order: Sequence[int]) -> float | None:
    """Returns the quality of a ranking of retrieved pages, 0 to 1; None if no page is relevant."""
    question = case.question
    hits = [hit.passage for s in case.episode.searches if s.turn == call.turn - 1 for hit in s.hits]
    pages = [page for index, page in enumerate(hits) if page.id not in {other.id for other in hits[:index]}]
    gold = {title_key(title) for title in question.gold_titles or ()}
    relevant = [
        title_key(page.title) in gold
        if gold
        else not is_simulated(page) and any(holds(f"{page.title} {page.text}", answer) for answer in question.golds)
        for page in pages
    ]
    if not any(relevant):
        return None
    ordered = [relevant[index] for index in order]
    if case.terms["ranking"].measure == "hits":
        return (any(ordered[:1]) + any(ordered[:3]) + any(ordered[:5])) / 3
    ideal = min(sum(relevant), len(order))
    gained = sum(1 / math.log2(rank + 2) for rank, good in enumerate(ordered) if good)
    return gained / sum(1 / math.log2(rank + 2) for rank in range(ideal))


_FREE: Final = r"(?:(?!<[^<>]+>).)*"
_FORM: Final = re.compile(rf"(?s)(?=<think>)(?:<(think|search)>{_FREE}</\1>{_FREE})*<answer>{_FREE}</answer>")
"""Matches thoughts and searches in any order, beginning with a thought, then one answer, without other tags."""


def _ssrl_form(case: Case) -> Floats:
    rewards = np.zeros(len(case.episode.calls))
    for indices in case.sets:
        text = "".join(case.episode.calls[i].text for i in indices).strip()
        thoughts, parts = text.count("<think>"), text.count("<search>") + 1
        good = _FORM.fullmatch(text) and thoughts <= 8 and not re.search(r"<(\w+)>\s*</\1>", text)
        placeholders = "<think>[^<]*your thoughts|<search>[^<]*your query|<answer>[^<]*your answer"
        good = good and not re.search(placeholders, text.casefold())
        good = good and not any("\n" in query.strip() for query in re.findall(r"(?s)<search>(.*?)</search>", text))
        rewards[indices[-1]] = min(thoughts, 2) / 2 * min(thoughts / parts, parts / thoughts) if good else 0.0
    return rewards


def _vpr(case: Case) -> Floats:
    episode, rewards = case.episode, np.zeros(len(case.episode.calls))
    looks = [(s.turn, title_key(hit.passage.title)) for s in episode.searches for hit in s.hits]
    looks += [(opened.turn, title_key(opened.title)) for opened in episode.opens]
    for gold in {title_key(title) for title in case.question.gold_titles or ()}:
        turns = [turn for turn, title in looks if title == gold]
        acted = [i for i in case.acting if turns and episode.calls[i].turn == min(turns)]
        if acted:
            rewards[acted[-1]] = 1.0
    return rewards


def _evidence(case: Case) -> Floats:
    options, reward = case.terms["evidence"], case.episode.reward
    measured = {id(peer): _measure(case.question, peer, options.measure) for peer in case.peers}
    share = measured[id(case.episode)]
    if options.scaled:
        share /= max(measured.values()) or 1.0
    where = {"right": reward > 0, "wrong": reward <= 0, "all": True}[options.where]
    measurable = bool(case.question.evidences) and where
    return case.at_ends(options.share * (share - reward) if measurable else 0.0)


def _measure(question: Question, episode: Episode, kind: str) -> float:
    """Returns the share of a question's facts, or of the entities in them, that an episode has evidence for."""
    facts = list(question.evidences or ())
    if kind == "entities":
        entities = {norm(name) for fact in facts for name in (fact.subject, fact.object)}
        text = " ".join(call.text for call in episode.calls if not call.prefix)
        return sum(holds(text, name) for name in entities) / max(len(entities), 1)
    pages = [hit.passage for search in episode.searches for hit in search.hits if not is_simulated(hit.passage)]
    texts = [f"{page.title} {page.text}" for page in pages]
    stated = [fact for fact in facts if any(holds(t, fact.subject) and holds(t, fact.object) for t in texts)]
    if kind == "connected" and len(_connected(facts, question.golds)) == len(facts):
        stated = _connected(stated, question.golds)
    return len(stated) / max(len(facts), 1)


def _connected(facts: Sequence[Triple], golds: Sequence[str]) -> list[Triple]:
    """Returns the facts that share an entity with a gold answer, or with a fact that does."""
    reached = {norm(gold) for gold in golds}
    for _ in facts:
        for fact in facts:
            ends = {norm(fact.subject), norm(fact.object)}
            reached |= ends if ends & reached else set()
    return [fact for fact in facts if norm(fact.subject) in reached]


def _waypoint(case: Case) -> Floats:
    episode, question, options = case.episode, case.question, case.terms["waypoint"]
    pages: defaultdict[str, set[str]] = defaultdict(set)
    for title in question.gold_titles or ():
        pages[norm(title)].add(title_key(title))
        pages[norm(base_title(title))].add(title_key(title))
    entities = {norm(name) for fact in question.evidences or () for name in (fact.subject, fact.object)}
    points = [name for name in entities if name in pages and name not in map(norm, question.golds)]
    points = [name for name in points if not holds(question.text, name)]
    earned = [any(_earns(case, search, name, pages[name]) for search in episode.searches) for name in points]
    share = sum(earned) / max(len(earned), 1)
    if options.answered and episode.stop_reason != "answer":
        share = 0.0
    return case.at_ends(options.share * (1 - min(max(episode.reward, 0.0), 1.0)) * share)


def _earns(case: Case, search: Searched, name: str, pages: Collection[str]) -> bool:
    """Checks whether a search earns the waypoint of a name, that is, satisfies every rule of the recipe."""
    rules, searches = case.terms["waypoint"].rules, case.episode.searches
    earlier = [other for other in searches if other.turn < search.turn]
    names = {norm(base_title(hit.passage.title)) for other in searches for hit in other.hits}.union(case.named[0])
    rule = {
        "query": holds(search.query, name),
        "page": any(title_key(hit.passage.title) in pages for hit in search.hits),
        "led": any(holds(f"{h.passage.title} {h.passage.text}", name) for other in earlier for h in other.hits),
        "few": _named(norm(search.query).split(), names - set(case.named[1])) <= case.terms["waypoint"].most_names,
    }
    return all(rule[required] for required in rules)


def _named(words: Sequence[str], names: Collection[str]) -> int:
    """Returns the number of names in a query; where one name begins with another, the longer one counts."""
    matched, rest = set[str](), list(words)
    while rest:
        sizes = [n for n in range(1, len(rest) + 1) if " ".join(rest[:n]) in names]
        longest = max(sizes, default=1)
        matched |= {" ".join(rest[:longest])} if sizes else set()
        rest = rest[longest:]
    return len(matched)


def _efficiency(case: Case) -> Floats:
    """Each gold page earns the number of doublings left between what was spent for it and the upper limit."""
    episode, options = case.episode, case.terms["efficiency"]
    looks = [(s.turn, title_key(hit.passage.title)) for s in episode.searches for hit in s.hits]
    looks += [(opened.turn, title_key(opened.title)) for opened in episode.opens]
    golds = {title_key(title) for title in case.question.gold_titles or ()}
    low, doublings = {"tokens": (256, 8), "searches": (1, 4)}[options.unit]
    left = 0.0
    for gold in golds:
        turns = [turn for turn, title in looks if title == gold]
        if turns and (episode.calls or options.unit == "searches"):
            spent = _spent(case, min(turns), options.unit)
            left += min(max(doublings - math.log2(max(spent, 1) / low), 0), doublings) / doublings
    share = left / len(golds) if golds else 0.0
    unpaid = (options.right and episode.reward < 1) or (options.answered and episode.stop_reason != "answer")
    return case.at_ends(0.0 if unpaid else share)


def _spent(case: Case, turn: int, unit: str) -> int:
    """Returns the number of searches up to a turn, or of different tokens in contexts when its hits are read."""
    episode = case.episode
    if unit == "searches":
        return len([search for search in episode.searches if search.turn <= turn])
    seen, used = set[tuple[int, int]](), set[int]()
    for i in case.acting:
        call = episode.calls[i]
        used.add(call.context)
        if call.turn > turn:
            return len(seen | _positions(episode, call.context, call.start))
        seen |= _positions(episode, call.context, call.end)
    for context in used:
        seen |= _positions(episode, context, sum(len(span.ids) for span in episode.tokens(context)))
    return len(seen)


def _positions(episode: Episode, context: int, end: int) -> set[tuple[int, int]]:
    """Returns the first tokens of a context, each as the context that it was written in and its position."""
    node = episode.contexts[context]
    mine = {(context, position) for position in range(node.fork, end)}
    return mine if node.parent is None else mine | _positions(episode, node.parent, min(node.fork, end))


FURTHER: dict[str, Callable[[Case], Floats]] = {
    "process": _process,
    "decomposition": _decomposition,
    "search-count": _search_count,
    "hiersearch": _hiersearch,
    "ikea": _ikea,
    "decision": _decision,
    "ranking": _ranking,
    "ssrl-form": _ssrl_form,
    "vpr": _vpr,
    "evidence": _evidence,
    "waypoint": _waypoint,
    "efficiency": _efficiency,
    **ANSWER_TERMS,
}
"""Functions that return the reward of each call of an episode, by term."""
