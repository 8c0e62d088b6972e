"""Repeats the episodes of a submission: the workflow on the recorded outputs of its models, and the searches.

What must come out again: queries, hits, answers, turns, what was refused. So an answer that no output holds is refused,
and hits that the retriever does not give. Outputs themselves are taken as they are: who writes the right answers into
them is found only by another run (`rerun`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from searchgym.agents.base import LoadedAgent
from searchgym.errors import SubmissionError
from searchgym.eval.leaderboard.check import Checked, drawn
from searchgym.eval.leaderboard.manifest import EPISODES
from searchgym.records import Call, Episode, Hit, Searched
from searchgym.retrieval.identity import identify
from searchgym.retrieval.retriever import retrieve
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Finish, Sampled, Sampler, SampleRequest
from searchgym.rollout.tokens import ContextText, TokenFormat

DRAWN: Final = 50
"""Default number of episodes that are repeated."""
NEAR: Final = 1e-3
"""Relative difference of two scores of a hit that are the same, from different machines."""
BATCH: Final = 256


def replay_episodes(checked: Checked, agent: LoadedAgent | None, most: int | None = DRAWN) -> dict[str, int]:
    """Repeats drawn episodes of a submission.

    Args:
        checked: The submission.
        agent: Its agent; None if it is not at hand: then only the searches are repeated.
        most: Number of episodes; None for all.

    Returns:
        ``episodes`` (number repeated by the workflow) and ``searches`` (number of queries repeated).

    Raises:
        SubmissionError: Something else came out, or the retriever here is not the one of the manifest.
    """
    task, manifest = checked.task, checked.manifest
    if (here := identify(task.retriever)) != manifest.retriever:
        reason = f"the submission searched {manifest.retriever!r:.120}, here is {here!r:.120}: give --retriever"
        raise SubmissionError("retriever", reason, checked.folder)
    chosen = drawn((e for e in checked.scored.episodes if e.stop_reason != "retriever_error"), most)
    searches = 0
    for episode, searched, hits in _searched_again(checked, chosen):
        searches += 1
        if not _same_hits(searched.hits, hits):
            then, now = ([hit.passage.id for hit in found] for found in (searched.hits, hits))
            reason = f"query {searched.query!r:.60} found {then!r:.80}, now {now!r:.80}"
            raise SubmissionError(EPISODES, f"{episode.id}: {reason}", checked.folder / EPISODES)
    if agent is None:
        return {"episodes": 0, "searches": searches}
    again = {episode.id: episode for episode in _played_again(checked, chosen, agent)}
    for episode in chosen:
        for name, then, now in _unlike(episode, again[episode.id]):
            reason = f"{episode.id}: {name} was {then!r:.80}, the workflow gives {now!r:.80}"
            raise SubmissionError(EPISODES, reason, checked.folder / EPISODES)
    return {"episodes": len(chosen), "searches": searches}


def _searched_again(checked: Checked, episodes: Sequence[Episode]) -> Iterator[tuple[Episode, Searched, Sequence[Hit]]]:
    """Yields each query of episodes with the hits that it has now."""
    asked = [(episode, searched) for episode in episodes for searched in episode.searches]
    for at in range(0, len(asked), BATCH):
        batch = asked[at : at + BATCH]
        ids, texts = [e.question_id for e, _ in batch], [s.query for _, s in batch]
        rules = checked.task.rules
        found = retrieve(checked.task.retriever, ids, texts, rules.top_k, rules.deadline)
        yield from ((episode, searched, hits) for (episode, searched), hits in zip(batch, found, strict=True))


def _same_hits(then: Sequence[Hit], now: Sequence[Hit]) -> bool:
    """Returns whether two lists of hits are the same; hits of nearly equal scores may have changed places."""
    if len(then) != len(now) or not all(
        abs(a.score - b.score) <= NEAR * max(1.0, abs(b.score)) for a, b in zip(then, now, strict=True)
    ):
        return False
    return [hit.passage for hit in then] == [hit.passage for hit in now] or (
        {hit.passage.id for hit in then} == {hit.passage.id for hit in now}
    )


def _unlike(then: Episode, now: Episode) -> Iterator[tuple[str, Any, Any]]:
    """Yields what differs between an episode and its repetition."""
    queries = tuple([(s.turn, s.query) for s in episode.searches] for episode in (then, now))
    calls = tuple([(c.role, c.turn, c.legal, c.answer) for c in episode.calls] for episode in (then, now))
    yield from ((name, a, b) for name, (a, b) in (("queries", queries), ("calls", calls)) if a != b)
    for name in ("answer", "turns", "invalid", "stop_reason", "observation_words", "notes"):
        if getattr(then, name) != getattr(now, name):
            yield name, getattr(then, name), getattr(now, name)


def _played_again(checked: Checked, episodes: Sequence[Episode], agent: LoadedAgent) -> list[Episode]:
    """Runs a workflow again on the recorded outputs of its models."""
    recorded = _Recorded(episodes)
    names = {role: used.name for role, used in checked.manifest.models.items()}
    models = {
        name: Model.over(name, cast("Sampler", recorded), cast("TokenFormat", recorded))
        for name in dict.fromkeys(names.values())
    }
    if names.keys() != agent.roles.keys():
        reason = f"roles {sorted(names)}, the agent {agent.name} has {sorted(agent.roles)}"
        raise SubmissionError("models", reason, checked.folder)
    filled = {role: models[name] for role, name in names.items()}
    engine = Engine(
        checked.task,
        dataclasses.replace(agent, name=checked.manifest.agent),
        filled,
        seed=checked.manifest.seed,
        temperature=checked.manifest.temperature,
    )
    again: list[Episode] = []
    todo = [(checked.task.by_id[e.question_id], e.attempt) for e in episodes]
    asyncio.run(engine.run_attempts(todo, again.append))
    return again


class _Recorded:
    """Sampler and token format that give the recorded outputs of episodes again: a response is its number, as one id.

    Args:
        episodes: The episodes; each role's outputs are given in their order.
    """

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self._calls: list[Call] = [call for episode in episodes for call in episode.calls]
        places = iter(range(len(self._calls)))
        self._left: Mapping[str, list[int]] = {e.id: [next(places) for _ in e.calls] for e in episodes}
        self._full = {episode.id for episode in episodes if episode.stop_reason == "context"}
        self._asked: defaultdict[str, int] = defaultdict(int)

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns the next recorded output for each request; nothing once an episode has no more."""
        return [self._next(request.episode) for request in requests]

    def _next(self, episode: str) -> Sampled:
        number, own = self._asked[episode], self._left[episode]
        self._asked[episode] += 1
        last = number >= len(own) - 1
        ids = np.array(own[number : number + 1], np.int32)
        finish: Finish = "eos"
        if number >= len(own) or (last and episode in self._full):
            finish = "context"  # also ends an episode that now asks for more than was recorded
        elif self._calls[own[number]].cut:
            finish = "length"
        return Sampled(ids, np.zeros(len(ids), np.float32), finish)

    def close(self) -> None:
        """Does nothing: no process is behind it."""

    def encode(self, texts: Sequence[ContextText]) -> list[npt.NDArray[np.int32]]:
        """Returns one id for each prompt or observation, whatever it says."""
        return [np.zeros(1, np.int32) for _ in texts]

    def response_text(self, ids: npt.NDArray[np.int32]) -> str:
        """Returns the recorded text behind an id."""
        return self._calls[int(ids[0])].text if len(ids) else ""
