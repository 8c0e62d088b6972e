"""Credit terms: functions from the attempts at one question to a reward for each of their calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from searchgym.errors import DataError
from searchgym.named import find_function
from searchgym.records import Episode
from searchgym.train.algorithms.samples import outcome_rewards, sequences_of
from searchgym.train.credit import judged
from searchgym.train.credit.context import CreditContext, Rows, Term
from searchgym.train.credit.evidence import MEASURES, acting_calls, new_pages
from searchgym.train.credit.waypoints import coverage, waypoints_of
from searchgym.train.recipe.options import CreditOptions


def outcome(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Gives the episode's reward to the last call of each of its sequences, and 0 to the others.

    In a team every call is its own sequence, so every call gets the reward; of a monolithic agent only the last call.
    """
    return [outcome_rewards(episode) for episode in group]


def difference(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards each turn of a team by how much it changed the score of the answer that the team would give.

    A call that proposes an answer gets the answer's score s_t. Every call between two proposals gets their whole
    difference, ``s_t - s_{t-1}``; every call before the first proposal gets that proposal's score; calls after the last
    proposal get 0. The differences of an episode sum to ``s_T - s_0``.

    Source: M-ASK, arXiv 2601.04703, and its released code: planning and answering get s; searching, summarising and
    updating get the difference; a search that ends the episode gets 0.
    """
    return [_differences(episode, context) for episode in group]


def _differences(episode: Episode, context: CreditContext) -> list[float]:
    rewards, between, before = [0.0] * len(episode.calls), list[int](), 0.0
    for index, call in enumerate(episode.calls):
        if call.prefix:
            continue
        if call.answer is None:
            between.append(index)
            continue
        rewards[index] = score = context.score(episode, call.answer)
        for earlier in between:
            rewards[earlier] = score - before
        between, before = [], score
    return rewards


def gain(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards a call that proposes an answer by how much better it is than the answer proposed before.

    The call that proposes answer k gets ``s_k - s_{k-1}``, the first one ``s_0``; every other call gets 0. So the
    rewards of an episode sum to the score of its last answer. Made for ``advantage.chain: episode``, which passes them
    back to the calls that led to the answers. Ours: no paper has it.

    Raises:
        DataError: An episode has an answer that no call proposed.
    """
    return [_gains(episode, context) for episode in group]


def _gains(episode: Episode, context: CreditContext) -> list[float]:
    rewards, before, proposed = [0.0] * len(episode.calls), 0.0, False
    for index, call in enumerate(episode.calls):
        if call.answer is not None and not call.prefix:
            score = context.score(episode, call.answer)
            rewards[index], before, proposed = score - before, score, True
    if episode.stop_reason == "answer" and not proposed:
        raise DataError(
            f"episode {episode.id}: no call proposes an answer, and credit gain needs an agent whose calls do"
        )
    return rewards


def praise(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Rewards each search by how much it improved the answer that the model would give right away.

    With prefix answers scored v_0 (before the first search) to v_T: ``alpha (v_t - v_{t-1})`` for the call that made
    search t, and v_t for the prefix answer itself. The rewards of an episode's searches sum to ``alpha (v_T - v_0)``.

    Source: PRAISE, arXiv 2604.03675 (alpha 0.5). The outcome is a separate term.

    Raises:
        DataError: An episode has no prefix answers.
    """
    return [_praise(episode, context) for episode in group]


def _praise(episode: Episode, context: CreditContext) -> list[float]:
    rewards = [0.0] * len(episode.calls)
    before: float | None = None
    acted: int | None = None
    for index, call in enumerate(episode.calls):
        if not call.prefix:
            acted = index
            continue
        rewards[index] = score = context.score(episode, call.answer or "")
        if before is not None and acted is not None:
            rewards[acted] = context.options.alpha * (score - before)
        before, acted = score, None
    if before is None and episode.calls:
        raise DataError(
            f"episode {episode.id} has no prefix answers, credit praise needs them: agent praise gives them"
        )
    return rewards


def format_(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Gives each call whose output was illegal the penalty of its role, else 0; see `RoleCard.penalty`."""
    return [[0.0 if c.legal else context.penalties.get(c.role, 0.0) for c in e.calls] for e in group]


def costs(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Charges an episode's rounds and searches to each of its calls, prefix answers excepted.

    The reward is ``-turn_cost min(rounds - 1, 3) / 3 - search_cost min(searches, 3) / 3``. The number of rounds is the
    workflow's note ``rounds``; without one, the episode's turns.

    Source: JADE, arXiv 2601.21916, its alpha and beta.
    """
    options, rows = context.options, []
    for episode in group:
        rounds, searches = episode.notes.get("rounds", float(episode.turns)), len(episode.searches)
        turns, retrievals = min(max(rounds - 1, 0), 3) / 3, min(searches, 3) / 3
        cost = 0.0 - options.turn_cost * turns - options.search_cost * retrievals
        rows.append([0.0 if call.prefix else cost for call in episode.calls])
    return rows


def overlong(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Charges a sequence for the tokens that the model wrote beyond a length, on its last call.

    With n tokens of the model in the sequence, limit L and cache C (`CreditOptions.length_limit`, ``length_cache``): 0
    up to ``L - C``, then ``(L - C - n) / C``, and -1 from L on.

    Source: DAPO, arXiv 2503.14476, equation 13 (L = 20,480, C = 4,096), its soft overlong punishment.
    """
    return [_overlong(episode, context.options) for episode in group]


def _overlong(episode: Episode, options: CreditOptions) -> list[float]:
    limit, cache = options.length_limit, options.length_cache
    assert limit is not None
    assert cache is not None
    rewards = [0.0] * len(episode.calls)
    for calls in sequences_of(episode):
        written = sum(episode.calls[index].end - episode.calls[index].start for index in calls)
        rewards[calls[-1]] = min(0.0, max(-1.0, (limit - cache - written) / cache))
    return rewards


def waypoint(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Gives an episode that is not right a part of the reward for the waypoints that it reached.

    With the environment's reward r, cut to [0, 1], and the share c of the question's waypoints that searches earned:
    ``lambda (1 - r) c`` for the last call of each sequence, so that with ``outcome`` the sum is 1 where the episode is
    right and ``lambda c`` where r is 0. What earns a waypoint is said by `CreditOptions.waypoint_rules`.

    Do not divide it by the deviation of its group (``advantage.std: sample``): in groups that are all wrong lambda
    cancels, and a search that still fails counts as much as a right answer elsewhere. Set ``std: none``, or `std_floor`
    to about 0.3.

    Source: Waypoint Coverage Reward, arXiv 2605.05702. The abstract alone is public: full reward if right, else graded
    by the coverage of the construction path. What counts as reached, lambda and the scale for rewards between 0 and 1
    are ours.
    """
    return [_waypoint(episode, context) for episode in group]


def _waypoint(episode: Episode, context: CreditContext) -> list[float]:
    options, rewards = context.options, [0.0] * len(episode.calls)
    missing = 1 - min(max(episode.reward, 0.0), 1.0)
    if missing == 0 or (options.waypoint_answered and episode.stop_reason != "answer"):
        return rewards
    points = waypoints_of(context.question(episode))
    share = coverage(points, episode.searches, context.names(), options.waypoint_rules, options.waypoint_names)
    for calls in sequences_of(episode):
        rewards[calls[-1]] = options.waypoint_lambda * missing * share
    return rewards


def evidence(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Mixes a measure of an episode's evidence into its reward, so that right answers need support.

    With the reward r and the measure m (`CreditOptions.evidence_of`), the sum with ``outcome`` is
    ``(1 - a) r + a m`` for the last call of each sequence, a being `evidence_weight`. `evidence_where` says for which
    episodes: with ``right`` those of r > 0 (the others keep r), with ``wrong`` those of r = 0, with ``all`` every one.
    With `evidence_scaled` m is divided by the largest m of the group. Questions without evidence keep the outcome.

    Source: CaRR and its C-GRPO, arXiv 2601.06021, and the released code (a 0.3, ``right``, ``connected``); LongTraceRL
    (a 0.3, ``right``, ``entities``). Deviation: in CaRR a language model names the entities of the response and judges
    which facts its citations support; here a fact is supported if a found passage holds its subject and object.
    """
    options, measure = context.options, MEASURES[context.options.evidence_of]
    known = context.question(group[0])
    if not known.evidences:
        return [[0.0] * len(episode.calls) for episode in group]
    measured = [measure(known, episode) for episode in group]
    largest = (max(measured) or 1.0) if options.evidence_scaled else 1.0
    rows = []
    for episode, share in zip(group, measured, strict=True):
        row, right = [0.0] * len(episode.calls), episode.reward > 0
        if options.evidence_where in ("all", "right" if right else "wrong"):
            for calls in sequences_of(episode):
                row[calls[-1]] = options.evidence_weight * (share / largest - episode.reward)
        rows.append(row)
    return rows


def vpr(group: Sequence[Episode], context: CreditContext) -> Rows:
    """Gives 1 to a call whose search, or opened page, is the first of the episode to find some gold page, else 0.

    For ``advantage.chain: none`` and ``normalise: role-turn``, so that each turn is compared with the same turn of
    other attempts; beside ``outcome``, which verifies the turn that answers.

    Source: Verifiable Process Rewards, arXiv 2605.10325: an oracle judges each action. Deviations: the paper's oracles
    are of games; that a new gold page is what to verify of a search is ours. By its repository's README four candidates
    are compared at every state; here whole attempts are, turn by turn, as third-party notes describe it.
    """
    return [_verified(episode, context) for episode in group]


def _verified(episode: Episode, context: CreditContext) -> list[float]:
    rewards, made_by = [0.0] * len(episode.calls), acting_calls(episode)
    for turn, found in new_pages(episode, context.question(episode)).items():
        if found and turn in made_by:
            rewards[made_by[turn]] = 1.0
    return rewards


TERMS: dict[str, Term] = {
    "outcome": outcome,
    "waypoint": waypoint,
    "evidence": evidence,
    "vpr": vpr,
    "difference": difference,
    "gain": gain,
    "praise": praise,
    "format": format_,
    "overlong": overlong,
    "costs": costs,
    "rubric": judged.rubric,
    "gated": judged.gate,
    "tournament": judged.tournaments,
    "candidates": judged.candidates,
}
"""Built-in credit terms by name."""
KEPT: Final = ("format", "overlong")
"""Terms that judge a call's own form: group estimators with ``advantage.chain: episode`` pass them to no earlier
call."""


def get_term(name: str, known: Mapping[str, Term] = TERMS) -> Term:
    """Returns the credit term of a built-in name, or of a user's ``"module:function"``.

    Args:
        name: Name of the term.
        known: Built-in terms by name.

    Raises:
        UnknownNameError: The name is neither; the nearest one is suggested.
        UsageError: The module or function cannot be loaded, or it takes other arguments.
    """
    term: Term = find_function("credit term", name, known, "episodes", "context")
    return term
