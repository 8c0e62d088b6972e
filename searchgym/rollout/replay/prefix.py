"""Prefixes of recorded episodes, with which further episodes begin.

An agent's workflow runs again from its start: its first calls get the recorded tokens, so it takes the same actions,
and the environment must show the same again. After the prefix the model samples on. Search-R2 (arXiv 2602.03647) cuts
episodes so at a flawed step, and tree searches continue one prefix several times.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from searchgym.errors import ReplayError, UsageError
from searchgym.records import Call, Episode, Hit, Searched, Span
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Finish, Sampled
from searchgym.rollout.tokens import TokenFormat

SHOWN_TOKENS = 12
"""Number of tokens of a difference that an error message shows."""


@dataclass(frozen=True, slots=True)
class Start:
    """Beginning of an episode: the first turns of a recorded one.

    Raises:
        UsageError: The episode has fewer turns, or no tokens, or its calls are not ordered by turn.
    """

    episode: Episode
    """Recorded episode, with its contexts."""
    turns: int
    """Number of turns to repeat."""
    branch: int | None = None
    """Number of the continuation, which seeds it; None continues with the recorded episode's random numbers."""

    def __post_init__(self) -> None:
        episode, turns = self.episode, self.turns
        if not 0 <= turns <= episode.turns:
            raise UsageError(
                f"episode {episode.id} has {episode.turns} turns, so 0 to {episode.turns} can be replayed, got {turns}"
            )
        if episode.calls and not episode.contexts:
            raise UsageError(f"episode {episode.id} has no tokens: read it with read_episodes(path, tokens=True)")
        order = [call.turn for call in episode.calls]
        if order != sorted(order):
            raise UsageError(
                f"episode {episode.id}: its calls are not ordered by turn, so that no turns can be cut off"
            )

    @property
    def calls(self) -> int:
        """Number of calls that the prefix has."""
        return sum(call.turn <= self.turns for call in self.episode.calls)

    @property
    def name(self) -> str:
        """Id of the new episode."""
        branch = "" if self.branch is None else f".{self.branch}"
        return f"{self.episode.question_id}#{self.episode.attempt}~{self.turns}{branch}"

    def entropy(self, after: bool) -> tuple[int, int, int]:
        """Returns the numbers that seed the episode, before or after the end of the prefix."""
        episode = self.episode
        branch = f"\0{self.turns}.{self.branch}" if after and self.branch is not None else ""
        seeded = (episode.question_id + branch).encode("utf-8", "surrogatepass")
        return (episode.seed or 0, zlib.crc32(seeded), episode.attempt)

    def hits(self, turn: int) -> list[list[Hit]]:
        """Returns the recorded hits of a turn, for each query."""
        return [list(search.hits) for search in self.episode.searches if search.turn == turn]

    def response(self, number: int, role: str, model: Model) -> Sampled:
        """Returns the tokens of a recorded call.

        Args:
            number: 0-based number of the call.
            role: Role that makes the call now.
            model: Its model now.

        Raises:
            ReplayError: Another role or model made the call.
        """
        episode, call = self.episode, self.episode.calls[number]
        if (call.role, call.model_key) != (role, model.key):
            raise ReplayError(
                f"episode {episode.id}, call {number}: role {call.role} with model {call.model_key} was recorded, now "
                f"it is role {role} with model {model.key}: replay with the agent and the model keys of the recording"
            )
        logp = [np.zeros(len(span.ids), np.float32) if span.logp is None else span.logp for span in self._spans(call)]
        tokens = slice(call.start, call.end)
        ids = self._ids(call)[tokens]
        finish: Finish = "stop"
        if call.cut or call.thought_cut:
            finish = "length"
        elif number == len(episode.calls) - 1 and episode.stop_reason == "context" and not call.prefix:
            finish = "context"
        elif len(ids) and int(ids[-1]) in token_format(model).end_ids:
            finish = "eos"
        return Sampled(ids, np.concatenate(logp)[tokens], finish, call.policy_version)

    def requests(self, number: int, sent: int) -> int:
        """Returns the number of requests of a call: the recorded one, or `sent` for a call after the prefix."""
        return self.episode.calls[number].requests if number < self.calls else sent

    def check_prompt(self, number: int, context: int, prompt: npt.NDArray[np.int32], model: Model) -> None:
        """Raises a ReplayError if a call does not continue the tokens that the recorded call continued.

        Args:
            number: 0-based number of the call; calls after the recorded ones are not checked.
            context: Index of its context.
            prompt: (T,) int32 tokens before the call.
            model: Model of the call.
        """
        if number >= len(self.episode.calls) or number > self.calls:
            return
        call, format = self.episode.calls[number], token_format(model)
        recorded = self._ids(call)[: call.start]
        if call.context == context and np.array_equal(recorded, prompt):
            return
        same = min(len(recorded), len(prompt))
        differ = np.flatnonzero(recorded[:same] != prompt[:same])
        at = int(differ[0]) if len(differ) else same
        then, now = (format.decode(ids[at : at + SHOWN_TOKENS]) for ids in (recorded, prompt))
        where = f"episode {self.episode.id}, call {number} ({call.role}), token {at}"
        if format.decode(recorded) == format.decode(prompt):
            raise ReplayError(f"{where}: the same text has other tokens: the tokenizer or its chat template changed")
        if self._kind(call, at) == "observation":
            raise ReplayError(f"{where}: another observation: {then!r} was recorded, now it is {now!r}")
        raise ReplayError(
            f"{where}: another prompt: {then!r} was recorded, now it is {now!r}; the question, the role's prompt, the "
            "environment's card or the tokenizer changed"
        )

    def check_text(self, number: int, text: str) -> None:
        """Raises a ReplayError if a call's recorded text is not that of its tokens."""
        recorded = self.episode.calls[number]
        if not (recorded.text.startswith(text) if recorded.thought_cut else recorded.text == text):
            raise ReplayError(
                f"episode {self.episode.id}, call {number}: its text is {recorded.text!r:.80}, its tokens say "
                f"{text!r:.80}: the record was edited, or the tokenizer changed"
            )

    def check_turn(self, turn: int, searches: Sequence[Searched], opens: Sequence[Any], cites: Sequence[Any]) -> None:
        """Raises a ReplayError if the environment's reply to a turn differs from the recorded one.

        Args:
            turn: The 1-based turn.
            searches: Searches of the new episode so far.
            opens: Its requests for pages so far.
            cites: Its citations so far.
        """
        where, episode = f"episode {self.episode.id}, turn {turn}", self.episode
        then, now = ([search for search in each if search.turn == turn] for each in (episode.searches, searches))
        if [(s.query, s.source, s.fault) for s in then] != [(s.query, s.source, s.fault) for s in now]:
            queries = [", ".join(repr(search.query) for search in each) or "no search" for each in (then, now)]
            raise ReplayError(f"{where}: {queries[0]} was recorded, now it is {queries[1]}, or it has another fault")
        for before, after in zip(then, now, strict=True):
            _check_hits(f"{where}, query {before.query!r}", before.hits, after.hits)
        for what, old, new in (("page", episode.opens, opens), ("citation", episode.cites, cites)):
            for before_, after_ in zip(_of(old, turn), _of(new, turn), strict=True):
                if before_ != after_:
                    raise ReplayError(f"{where}: another {what}: {before_} was recorded, now it is {after_}")

    def _spans(self, call: Call) -> list[Span]:
        return self.episode.tokens(call.context)

    def _ids(self, call: Call) -> npt.NDArray[np.int32]:
        """Returns all tokens of a call's context, (T,) int32."""
        return np.concatenate([np.zeros(0, np.int32), *(span.ids for span in self._spans(call))])

    def _kind(self, call: Call, position: int) -> str:
        """Returns the kind of the recorded span at a position of a call's context."""
        end = 0
        for span in self._spans(call):
            end += len(span.ids)
            if position < end:
                return span.kind
        return "prompt"


def token_format(model: Model) -> TokenFormat:
    """Returns the token format of a model, or raises a UsageError if it is sampled by a chat server."""
    if not isinstance(model.format, TokenFormat):
        raise UsageError(
            f"{model.key} is sampled by a chat server, which does not continue tokens: load the model here"
        )
    return model.format


def _of(records: Sequence[Any], turn: int) -> list[Any]:
    return [record for record in records if record.turn == turn]


def _check_hits(where: str, recorded: Sequence[Hit], hits: Sequence[Hit]) -> None:
    """Raises a ReplayError that names the first page of a search that differs from the recorded one."""
    for rank, (then, now) in enumerate(zip(recorded, hits, strict=False), 1):
        if (then.passage.id, then.passage.title) != (now.passage.id, now.passage.title):
            raise ReplayError(
                f"{where}: hit {rank} was {then.passage.title!r} ({then.passage.id}), now it is "
                f"{now.passage.title!r} ({now.passage.id}): the corpus or the index changed"
            )
        if then.passage.text != now.passage.text:
            at = next(
                (i for i, (a, b) in enumerate(zip(then.passage.text, now.passage.text, strict=False)) if a != b), 0
            )
            old, new = (text[max(0, at - 20) : at + 20] for text in (then.passage.text, now.passage.text))
            raise ReplayError(
                f"{where}: page {then.passage.title!r} ({then.passage.id}) changed at character {at}: {old!r} was "
                f"recorded, now it is {new!r}"
            )
    if len(recorded) != len(hits):
        raise ReplayError(f"{where}: {len(recorded)} hits were recorded, now there are {len(hits)}")
