"""Second implementation of the credit terms that look at answers, plans, and what a model knows without a search.

No code is shared with `searchgym.train.credit`; texts and titles are compared with the package's functions.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from searchgym.records import Hit, Passage, is_simulated, title_key
from searchgym.scoring import exact_match, golds_with_words, plain_f1_score
from searchgym.testing.reference.case import Case, Floats
from searchgym.text import holds, norm


def _density(case: Case) -> Floats:
    gold = {title_key(title) for title in case.question.gold_titles or ()}
    wrong = {title_key(p.text) for p in case.question.paragraphs or () if not p.supporting}
    wrong -= {title_key(p.text) for p in case.question.paragraphs or () if p.supporting}
    first: dict[str, int] = {}
    for number, search in enumerate(case.episode.searches):
        pages = [hit.passage for hit in search.hits if not is_simulated(hit.passage)]
        for title in {title_key(page.title) for page in pages if title_key(page.text) not in wrong} & gold:
            opened = any(title_key(o.title) == title and o.turn < search.turn for o in case.episode.opens)
            first.setdefault(title, -1 if opened else number)
    useful = len({number for number in first.values() if number >= 0})
    share = useful / len(case.episode.searches) if case.episode.searches else 0.0
    return case.at_ends(share * max(case.episode.reward, 0.0))


def _pages(case: Case) -> Floats:
    term, episode = case.terms["pages"], case.episode
    wrong = {title_key(p.text) for p in case.question.paragraphs or () if not p.supporting}
    wrong -= {title_key(p.text) for p in case.question.paragraphs or () if p.supporting}
    seen = [(title_key(opened.title), "") for opened in episode.opens if opened.part]
    if term.of == "found":
        hits = [hit.passage for search in episode.searches for hit in search.hits]
        seen += [(title_key(page.title), title_key(page.text)) for page in hits if not is_simulated(page)]
    gold = {title_key(title) for title in case.question.gold_titles or ()}
    right = len({title for title, text in seen if title in gold and text not in wrong})
    missed, beyond = len(gold) - right, len({title for title, _ in seen}) - right
    square = term.beta**2
    score = (1 + square) * right / ((1 + square) * right + square * missed + beyond) if right else 0.0
    return case.at_ends(score * (term.eta + (1 - term.eta) * min(max(episode.reward, 0.0), 1.0)))


def _judgement(case: Case) -> Floats:
    term, episode = case.terms["judgement"], case.episode
    gold, seen, rewards = {title_key(title) for title in case.question.gold_titles or ()}, set[str](), list[float]()
    texts = {call.turn: call.text.rpartition("</think>")[2].lower() for call in episode.calls if not call.prefix}
    for turn in sorted({search.turn for search in episode.searches}):
        hits = {title_key(h.passage.title) for s in episode.searches if s.turn == turn for h in s.hits}
        new, text = bool(hits & gold - seen), texts.get(turn + 1)
        seen |= hits
        if text is not None:
            offsets = [(text.replace(" ", "").find(f"<judge>{word}</judge>"), word) for word in ("yes", "no")]
            first = min((entry for entry in offsets if entry[0] >= 0), default=(0, ""))[1]
            bonus = term.with_answer if episode.reward >= 1 else 0.0
            right = first == ("yes" if new else "no")
            rewards.append(term.right + bonus if right else term.wrong_yes if first == "yes" else term.wrong_no)
    worth = sum(rewards) / (1 if term.summed else max(len(rewards), 1))
    return case.at_ends(worth if worth < 0 or episode.stop_reason == "answer" else 0.0)


def _ranks(case: Case) -> Floats:
    term, lists = case.terms["ranks"], [search.hits for search in case.episode.searches]
    subsets = [[hits for n, hits in enumerate(lists) if bits >> n & 1] for bits in range(1, 1 << min(len(lists), 8))]
    worth = max((_worth(case, some) for some in subsets), default=0.0) if term.optimistic else _worth(case, lists)
    legal: Floats = np.array([call.legal for call in case.episode.calls], np.float64)
    return case.at_ends(worth) * legal


def _worth(case: Case, lists: Sequence[Sequence[Hit]]) -> float:
    """Returns the worth of the gold pages of some searches, whose pages are ordered by the harmonic sum of ranks."""
    term, keys, pages = case.terms["ranks"], dict[str, tuple[dict[int, int], tuple[int, int]]](), dict[str, Passage]()
    for number, hits in enumerate(lists):
        for rank, hit in reversed(list(enumerate(hits, start=1))):
            pages.setdefault(hit.passage.id, hit.passage)
            ranks, best = keys.get(hit.passage.id, ({}, (rank, number)))
            keys[hit.passage.id] = (ranks | {number: rank}, min(best, (rank, number)))
    scores = {id: max(hit.score for hits in lists for hit in hits if hit.passage.id == id) for id in pages}
    order = sorted(
        pages, key=lambda id: (1 / math.fsum(1 / r for r in keys[id][0].values()), -scores[id], keys[id][1], id)
    )
    gold = {title_key(title) for title in case.question.gold_titles or ()}
    wrong = {title_key(p.text) for p in case.question.paragraphs or () if not p.supporting}
    wrong -= {title_key(p.text) for p in case.question.paragraphs or () if p.supporting}
    first: dict[str, int] = {}
    for rank, id in enumerate(order, start=1):
        page = pages[id]
        title = title_key(page.title) if gold else ""
        answers = [] if is_simulated(page) else golds_with_words(case.question.golds)
        stated = any(holds(f"{page.title} {page.text}", answer) for answer in answers)
        if (title in gold and title_key(page.text) not in wrong) if gold else stated:
            first.setdefault(title, rank)
    values = [float(np.interp(rank, [1, 10, 100], [2, 1, 0])) for rank in first.values()]
    bonuses = [term.bonus / math.log2(rank + 1) if rank <= term.bonus_ranks else 0.0 for rank in first.values()]
    return math.fsum(
        term.decay**i * (value + more) for i, (value, more) in enumerate(zip(values, bonuses, strict=True))
    )


def _completeness(case: Case) -> Floats:
    term, episode = case.terms["completeness"], case.episode
    second = [call.answer or "" for call in episode.calls if call.prefix and call.role == "reader"]
    if not second or episode.reward <= term.right:
        return case.at_ends(0.0)
    golds = golds_with_words(case.question.golds)
    texts = [
        f"{hit.passage.title} {hit.passage.text}"
        for search in episode.searches
        for hit in search.hits
        if not is_simulated(hit.passage)
    ]
    stated = any(holds(text, gold) for gold in golds for text in texts)
    closed = any(gold.casefold() in ("yes", "no") for gold in golds)
    return case.at_ends(case.score(episode, second[-1]) if stated or closed or not term.grounded else 0.0)


def _boundary(case: Case) -> Floats:
    term = case.terms["boundary"]
    trials = [
        case.score(peer, call.answer or "") >= 1
        for peer in case.peers
        for call in peer.calls
        if call.prefix and call.role == "knower"
    ]
    spent = {id(peer): len(peer.searches) for peer in case.peers}
    needed = 0
    if np.mean(trials) < term.min_right:
        needed = min((spent[id(peer)] for peer in case.peers if peer.reward >= 1), default=0)
    queries = Counter(norm(search.query) for search in case.episode.searches)
    charged = spent[id(case.episode)] - needed if case.episode.reward >= 1 else 0
    return case.at_ends(-term.price * charged - term.repeat * sum(count - 1 for count in queries.values()))


def _plan(case: Case) -> Floats:
    rewards, hops = np.zeros(len(case.episode.calls)), case.question.hops or ()
    answers = {f"#{number}": hop.answer for number, hop in enumerate(hops, start=1)}
    gold = []
    for hop in hops:
        filled = hop.question
        for mark in sorted(answers, key=len, reverse=True):
            filled = filled.replace(mark, answers[mark])
        gold.append([hop.question, filled])
    for i in case.acting:
        text = case.episode.calls[i].text.split("</think>")[-1]
        tags = [f"q{number}" for number in range(1, 10) if f"<q{number}>" in text]
        stated = [body for tag in tags if (body := text.split(f"<{tag}>")[1].split(f"</{tag}>")[0].strip())]
        if stated:
            rewards[i] = _best_match(stated, gold) if case.episode.calls[i].legal else 0.0
            break
    return rewards


def _best_match(stated: Sequence[str], gold: Sequence[Sequence[str]]) -> float:
    """Returns twice the largest sum of similarities over all ways to match, divided by the number of both."""
    size = max(len(stated), len(gold))
    table = np.zeros((size, size))
    for i, part in enumerate(stated):
        for j, texts in enumerate(gold):
            table[i, j] = max(plain_f1_score(part, [text]) for text in texts)
    best = max(sum(table[i, j] for i, j in enumerate(order)) for order in itertools.permutations(range(size)))
    return 2 * best / (len(stated) + len(gold)) if gold else 0.0


def _stated(case: Case) -> list[tuple[str, float | None]]:
    """Returns the candidates of an episode's answer with their confidences."""
    answer = "" if case.episode.answer is None else case.episode.answer.text
    candidates = []
    for part in answer.replace("\n", ";").split(";"):
        text, _, number = part.strip().rpartition("(")
        number = number.rstrip(") ").strip()
        try:
            value = float(number.rstrip("% ")) / (100 if number.endswith("%") else 1)
        except ValueError:
            text, value = part, float("nan")
        if part.strip():
            candidates.append((text.strip(), None if np.isnan(value) else value))
    return candidates


def _golds(case: Case) -> list[list[str]]:
    """Returns the spellings of each right answer of the question."""
    return [golds_with_words(names) for names in case.question.metadata.get("wanted", [case.question.golds])]


def _any_of(case: Case) -> Floats:
    texts, golds, most = [text for text, _ in _stated(case)], _golds(case), case.terms["any-of"].most
    right = len([names for names in golds if max([exact_match(text, names) for text in texts], default=0) > 0])
    return case.at_ends(min(right, most) / min(len(golds), most) if 0 < len(texts) <= most else 0.0)


def _calibrated(case: Case) -> Floats:
    rows, golds = _stated(case), [name for names in _golds(case) for name in names]
    stated = [p for _, p in rows if p is not None and 0 <= p <= 1]
    same = len(rows) - len({norm(text) for text, _ in rows})
    if not rows or same or len(stated) < len(rows) or sum(stated) > 1 + 1e-6:
        return case.at_ends(0.0)
    right = [exact_match(text, golds) for text, _ in rows]
    return case.at_ends(1 - float(np.mean(np.square(np.subtract(right, stated)))))


ANSWER_TERMS: dict[str, Callable[[Case], Floats]] = {
    "density": _density,
    "pages": _pages,
    "completeness": _completeness,
    "judgement": _judgement,
    "ranks": _ranks,
    "boundary": _boundary,
    "plan": _plan,
    "any-of": _any_of,
    "calibrated": _calibrated,
}
"""Functions that return the reward of each call of an episode, by term."""
