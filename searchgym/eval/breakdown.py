"""What explains a run's scores: legal shares by role, why outputs were refused, how episodes ended, and splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from searchgym.eval.evidence import Golds, found_of
from searchgym.protocol import Protocol
from searchgym.records import Call, Episode, Invalid, Question, hops_of

Rows = Mapping[tuple[str, int], Mapping[str, float | None]]
"""Question id and attempt to the official scores of the answer."""
MOST_REASONS: Final = 5
"""Maximum number of reasons that a run lists for refused outputs."""
EXAMPLE: Final = 100
"""Maximum number of characters of an example of a refused output."""


def explain(
    episodes: Sequence[Episode],
    rows: Rows,
    questions: Mapping[str, Question],
    protocol: Protocol,
    golds: Golds,
) -> dict[str, Any]:
    """Returns what explains the scores of a run.

    Args:
        episodes: The episodes, in a fixed order.
        rows: Question id and attempt to the official scores of the answer.
        questions: Question id to question.
        protocol: Action grammar of the environment.
        golds: Question id to its gold pages.

    Returns:
        ``legal``, ``legal_by_role``, ``refused``, ``notes``, ``endings`` and ``splits`` of ``docs/evaluation.md``.
    """
    calls = [call for episode in episodes for call in outputs(episode)]
    by_role = {role: [call for call in calls if call.role == role] for role in sorted({c.role for c in calls})}
    hops, kinds = {id: hops_of(q) for id, q in questions.items()}, {id: q.kind for id, q in questions.items()}
    known = [episode for episode in episodes if episode.question_id in golds]
    return {
        "legal": legal_share(calls),
        "legal_by_role": {role: {"calls": len(own), "legal": legal_share(own)} for role, own in by_role.items()},
        "refused": _refused(episodes, protocol),
        "notes": _notes(episodes),
        "endings": dict(sorted(Counter(str(e.stop_reason or "unfinished") for e in episodes).items())),
        "splits": {
            "hops": _split(rows, [(episode, hops[episode.question_id]) for episode in episodes]),
            "type": _split(rows, [(episode, kinds[episode.question_id]) for episode in episodes]),
            "evidence": _split(rows, [(episode, found_of(episode, golds[episode.question_id])) for episode in known]),
        },
    }


def outputs(episode: Episode) -> list[Call]:
    """Returns the outputs of models that acted in an episode, trial answers for training left out."""
    return [call for call in episode.calls if not call.prefix]


def invalid_actions(episode: Episode) -> int:
    """Returns how many outputs or actions of an episode were not understood.

    A role of a team falls back to a default if its output is refused, so the environment sees no invalid action; a
    scripted agent makes no calls, so only the environment can refuse. What both refuse is counted once.
    """
    return max(episode.invalid, sum(not call.legal for call in outputs(episode)))


def legal_share(calls: Sequence[Call]) -> float | None:
    """Returns the share of outputs that were understood, None if there are none."""
    return sum(call.legal for call in calls) / len(calls) if calls else None


def _refused(episodes: Sequence[Episode], protocol: Protocol) -> list[dict[str, Any]]:
    """Returns the most frequent reasons for refused outputs by role, each with its first example."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for episode in episodes:
        for call in outputs(episode):
            if not call.legal:
                key = (call.role, _reason(call, episode, protocol))
                counts[key] += 1
                examples.setdefault(key, " ".join(call.text.split())[:EXAMPLE])
    return [
        {"role": role, "reason": reason, "calls": count, "example": examples[role, reason]}
        for (role, reason), count in counts.most_common(MOST_REASONS)
    ]


def _reason(call: Call, episode: Episode, protocol: Protocol) -> str:
    """Returns why an output was refused, as far as its record tells."""
    if call.cut:
        return "cut off by the role's max_tokens"
    if not call.text.strip():
        return "nothing was written"
    action = protocol.parse(call.text)
    if episode.invalid and isinstance(action, Invalid):  # the role writes actions of the environment's grammar
        return action.reason
    return "not in the form that the role's prompt asks for"


def _notes(episodes: Sequence[Episode]) -> dict[str, dict[str, float]]:
    """Returns the numbers that the workflow noted, the most frequent first: episodes that have one, and its mean."""
    values: dict[str, list[float]] = {}
    for episode in episodes:
        for name, value in episode.notes.items():
            values.setdefault(name, []).append(value)
    ordered = sorted(values.items(), key=lambda item: (-len(item[1]), item[0]))
    return {name: {"episodes": len(own), "mean": sum(own) / len(own)} for name, own in ordered}


def _split(rows: Rows, values: Sequence[tuple[Episode, str | None]]) -> dict[str, dict[str, Any]]:
    """Returns scores by the value that comes with each episode; episodes with None are left out."""
    members: dict[str, list[Episode]] = {}
    for episode, value in values:
        if value is not None:
            members.setdefault(value, []).append(episode)
    official = {id(e): rows[e.question_id, e.attempt] for e, _ in values}
    return {
        value: {
            "n": len(own),
            **{name: _mean([official[id(e)][name] for e in own if name in official[id(e)]]) for name in _MEANS},
            "legal": legal_share([call for episode in own for call in outputs(episode)]),
            "searches": sum(len(episode.searches) for episode in own) / len(own),
        }
        for value, own in sorted(members.items())
    }


_MEANS: Final = ("em", "f1")
"""Official scores that a split shows."""


def _mean(values: Sequence[float | None]) -> float | None:
    """Returns the mean, where None counts as 0; None if there is nothing to average."""
    return sum(value or 0.0 for value in values) / len(values) if values else None
