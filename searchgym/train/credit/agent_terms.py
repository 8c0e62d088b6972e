"""Credit terms that papers made for one kind of agent: planners, parallel queries, two levels, knowledge, rankers.

Each is a function like those of `searchgym.train.credit.terms`. Where a paper gives one number for a whole episode,
the last call of each of its sequences gets it, as with ``outcome``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from searchgym.errors import DataError
from searchgym.records import Call, Episode, Question
from searchgym.scoring.ranking import mean_hit, ndcg
from searchgym.train.algorithms.samples import is_overlong, sequences_of
from searchgym.train.credit.context import CreditContext, Rows, Term
from searchgym.train.credit.evidence import fetched_gains
from searchgym.train.credit.ssrl import ssrl_form

COMPARISON: Final = "comparison"
"""`Question.kind` of questions whose parts do not need each other (HotpotQA's and 2WikiMultihopQA's name)."""
ONE_SEARCH: Final = frozenset({COMPARISON, None, "", "na", "single"})
"""Values of `Question.kind` for which ``search_count`` wants one search. ParallelSearch's data calls a question without
a type (all of NQ) ``na``; ``single`` is the worlds' name for what these are, questions of one page."""
DECOMPOSED, WHOLE, COUNTED = 0.45, 0.15, 0.35
"""Rewards of ParallelSearch's released script: ``3 comp_score``, ``comp_score`` and ``count_score``."""
KNOWN: Final = (0.6, 0.4, 0.2)
"""IKEA's bonus of a right answer after 0, 1 and 2 searches."""
TRIED: Final = 0.05
"""IKEA's reward of a wrong answer after a search."""
TOOLS: Final = 0.1
"""HierSearch's reward of a wrong answer for which every tool was used."""


def process(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rates the searches of an episode: the share of its queries that were new and found a page not found before.

    An episode without a query gets 0. Nothing is compared with the question or its answer.

    Source: AI-SearchPlanner, arXiv 2508.20368, in which a language model rates how rational a trajectory is; the rule
    in its place, and the weight that a recipe gives it, are ours.
    """
    return [_spread(episode, _useful(episode)) for episode in group]


def decomposition(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards the form of the first search: 0.45 for several queries at a comparison, 0.15 for one at other questions.

    An episode that does not search counts as one query.

    Source: the released reward of ParallelSearch, with the values of its script. There, too, only the first search is
    looked at, and the answer does not matter.
    """

    def value(episode: Episode) -> float:
        first = min((search.turn for search in episode.searches), default=0)
        several = sum(search.turn == first for search in episode.searches) > 1
        if context.question(episode).kind == COMPARISON:
            return DECOMPOSED if several else 0.0
        return 0.0 if several else WHOLE

    return [_spread(episode, value(episode)) for episode in group]


def search_count(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards the number n of search actions: ``0.35 (1 - |n - 1|)``, or ``0.35 (min(n, 2) - 1)`` for several hops.

    One search is wanted at a comparison and at a question without a type (`ONE_SEARCH`), at least two at others.

    Source: the released reward of ParallelSearch, which counts the tag in the prompt too, where it stands twice:
    ``0.35 (1 - |m - 3|)`` and ``0.35 (1 - |min(m, 4) - 4|)`` of m = n + 2. Ours: that ``single`` is no type.
    """

    def value(episode: Episode) -> float:
        actions = len({search.turn for search in episode.searches})
        one = context.question(episode).kind in ONE_SEARCH
        return COUNTED * (1 - abs(actions - 1) if one else min(actions, 2) - 1)

    return [_spread(episode, value(episode)) for episode in group]


def hiersearch(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Gives the reward of an episode, or, where that is 0, up to 0.1 for the share of tools that the planner used.

    The share is the workflow's note ``tools``. A role that wrote something illegal gets 0 for all its calls, and so
    does every call of an episode that was cut off or has no answer, or an empty one. With `CreditOptions.local_first`
    the penalty of `order_penalty` is added to the reward first. It takes the place of ``outcome``.

    Source: the released reward of HierSearch (plageon/HierSearch), whose levels are trained one after the other, each
    on its own text; here a role stands for a level.
    """
    return [_by_level(episode, context.options.local_first) for episode in group]


def _by_level(episode: Episode, local_first: bool) -> list[float]:
    rewards = [0.0] * len(episode.calls)
    if is_overlong(episode) or episode.answer is None or not episode.answer.text:
        return rewards
    score = episode.reward + (order_penalty([s.source for s in episode.searches]) if local_first else 0.0)
    value = score if score > 0 else TOOLS * episode.notes.get("tools", 0.0)
    refused = {call.role for call in episode.calls if not call.legal}
    for calls in sequences_of(episode):
        if episode.calls[calls[-1]].role not in refused:
            rewards[calls[-1]] = value
    return rewards


def order_penalty(sources: Sequence[str]) -> float:
    """Returns HierSearch's penalty for early searches of another source than the environment's own, at most 0.

    The first such search decides: -1 among the first three, then -0.2, -0.15, -0.1 (fourth to sixth), -0.045, -0.03
    (seventh, eighth), and -0.01 later.

    Args:
        sources: Source of each query in order; empty for the environment's own.
    """
    first = next((place for place, source in enumerate(sources) if source), None)
    if first is None:
        return 0.0
    if first < 3:
        return -1.0
    if first < 6:
        return -0.05 * (7 - first)
    return -0.015 * (9 - first) if first < 8 else -0.01


def ikea(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards a right answer the more the fewer searches it took, and a wrong one only if the agent searched.

    Right: 1.6, 1.4, 1.2 and 1 after 0, 1, 2 and more search actions; wrong: 0.05 after a search, else 0; any illegal
    output: -1. Right means exact match. It takes the place of ``outcome``.

    Source: the released reward of IKEA, arXiv 2505.07596 (hzy312/knowledge-r1), which also asks for thoughts.
    """
    return [_spread(episode, _ikea(episode)) for episode in group]


def _ikea(episode: Episode) -> float:
    if not all(call.legal for call in episode.calls if not call.prefix):
        return -1.0
    actions = len({search.turn for search in episode.searches})
    if episode.scores.get("em", 0.0) > 0:
        return 1.0 + (KNOWN[actions] if actions < len(KNOWN) else 0.0)
    return TRIED if actions else 0.0


def decision(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards the choice to search: 1 for the first call of an episode if it searched just where it had to, else 0.

    An illegal choice, after which the agent searches, gets 0.
    A question counts as known if the trial answers without a search (`Call.prefix`) have a mean score of at least
    `CreditOptions.known_share` over the group; then searching is wrong, otherwise not searching is. A trial answer gets
    its own score, so that answering from memory is trained, too (`CreditOptions.train_prefixes`).

    Source: AdaSearch, arXiv 2512.16883, which trains the decision apart from the ways of solving; its exact reward is
    not public. Label, threshold and reward are ours.

    Raises:
        DataError: No episode of the group has a trial answer.
    """
    rows = [[context.score(e, c.answer or "") if c.prefix else 0.0 for c in e.calls] for e in group]
    tried = [row[i] for row, e in zip(rows, group, strict=True) for i, c in enumerate(e.calls) if c.prefix]
    if not tried:
        raise DataError(
            f"episode {group[0].id} has no trial answer, credit decision needs them: agent adasearch gives them"
        )
    known = sum(tried) / len(tried) >= context.options.known_share
    for row, episode in zip(rows, group, strict=True):
        first = next((i for i, call in enumerate(episode.calls) if not call.prefix), None)
        if first is not None:
            row[first] = float(episode.calls[first].legal and bool(episode.searches) != known)
    return rows


def ranking(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards a ranker's call by the quality q of its order and by the episode's reward r; other calls get 0.

    With a relevant page among the fetched ones: q if q is at most `CreditOptions.ranking_gate`, else q + r. Without
    one: r. An illegal output: 0, so that only ``format`` speaks. q is the nDCG of the pages shown, or the mean of
    Hit@1, Hit@3 and Hit@5 (`ranking_of`), against the gold pages that the search fetched (`fetched_gains`).

    Source: CoSearch, arXiv 2604.17555, whose q is the mean of hits of the gold answer, with nDCG as an ablation, and
    whose gate is 0.5 (0.8, of a binarised r, in its released script). That gold pages are what is relevant is ours.
    Deviation: rankers of an episode with an illegal reasoner learn, too.
    """
    return [[_ranking(episode, call, context) for call in episode.calls] for episode in group]


def _ranking(episode: Episode, call: Call, context: CreditContext) -> float:
    if call.ranked is None or not call.legal:
        return 0.0
    question, options = context.question(episode), context.options
    quality = ranking_quality(question, episode, call, options.ranking_of)
    if quality is None:
        return episode.reward
    return quality + (episode.reward if quality > options.ranking_gate else 0.0)


def ranking_quality(question: Question, episode: Episode, call: Call, measure: str = "ndcg") -> float | None:
    """Returns the quality of a ranker's order; None if no relevant page was fetched, and none could be shown.

    Args:
        question: Question of the episode.
        episode: The episode.
        call: A call that ranked.
        measure: ``ndcg``, at as many ranks as were shown, or ``hits`` (`mean_hit`).
    """
    gains, order = fetched_gains(question, episode, call), call.ranked or ()
    if not any(gains):
        return None
    shown = [gains[place] for place in order]
    return mean_hit(shown) if measure == "hits" else ndcg(shown, [gain for gain in gains if gain], len(order))


def _useful(episode: Episode) -> float:
    """Returns the share of an episode's queries that were new and found a new page."""
    asked, seen, useful = set[str](), set[str](), 0
    for search in episode.searches:
        query, found = " ".join(search.query.casefold().split()), {hit.passage.id for hit in search.hits}
        useful += query not in asked and bool(found - seen)
        asked.add(query)
        seen |= found
    return useful / max(len(episode.searches), 1)


def _spread(episode: Episode, value: float) -> list[float]:
    """Returns one reward per call: the value for the last call of each sequence, 0 for the others."""
    rewards = [0.0] * len(episode.calls)
    for calls in sequences_of(episode):
        rewards[calls[-1]] = value
    return rewards


AGENT_TERMS: dict[str, Term] = {
    "process": process,
    "decomposition": decomposition,
    "search_count": search_count,
    "hiersearch": hiersearch,
    "ikea": ikea,
    "decision": decision,
    "ranking": ranking,
    "ssrl_form": ssrl_form,
}
"""Terms of particular agents by name."""
