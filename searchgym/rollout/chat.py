"""Contexts of an episode: the tokens that a model has read and written, which are never encoded again."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from searchgym.agents.base import Chat, LoadedAgent, Reply
from searchgym.agents.roles import Role
from searchgym.envs.core import State
from searchgym.errors import EpisodeError, UsageError
from searchgym.protocol import Parts, Protocol, awaited
from searchgym.records import Call, Context, Episode, Span, StopReason
from searchgym.rollout.models import Model
from searchgym.rollout.replay.prefix import Start
from searchgym.rollout.sampler import Finish, Sampled, SampleRequest, Sampling
from searchgym.rollout.tokens import ContextText


class EpisodeSettings(typing.Protocol):
    """Interface of the engine, with the settings that all episodes share."""

    agent: LoadedAgent
    models: Mapping[str, Model]
    """Models by role name."""
    temperature: float
    top_p: float
    canonical: bool
    """See `Engine`."""


class EpisodeRun(typing.Protocol):
    """Interface of the state that the chats of one episode share."""

    name: str
    """Id of the episode."""
    sort_key: tuple[str, int]
    """Question id and attempt, by which canonical batches are sorted."""
    protocol: Protocol
    state: State
    calls: list[Call]
    chats: list[TokenChat]
    start: Start | None
    """Recorded turns that the episode begins with."""

    @property
    def entropy(self) -> tuple[int, ...]:
        """Numbers that seed the episode."""
        ...

    @property
    def engine(self) -> EpisodeSettings:
        """Settings of all episodes."""
        ...

    def role(self, name: str) -> Role:
        """Returns the agent's role with this name, or raises a UsageError."""
        ...

    def end(self, reason: StopReason, why: str) -> EpisodeError:
        """Ends the episode and returns the exception to raise."""
        ...


class TokenChat(Chat):
    """Implementation of `Chat`: one context of the token tree, kept as token ids and never encoded again.

    Texts are encoded when the next response is requested, together with texts of other episodes; if the context is
    forked or the episode ends before that, they are encoded then, separately.

    A stop string ends a response only if the action that it closes is executed. Samplers only match strings, so the
    chat requests a continuation after a stop string in a thought, or in an incomplete tool call: `Call.requests` counts
    the requests of a response.
    """

    def __init__(
        self,
        run: EpisodeRun,
        role: Role,
        model: Model,
        context: Context,
        first: ContextText,
        inherited: Sequence[npt.NDArray[np.int32]] = (),
    ) -> None:
        self._run, self._role, self._model = run, role, model
        self._number, self._context, self._inherited = len(run.chats), context, inherited
        self._unread = [first]
        self._finish: Finish = "stop"  # an observation before the first response belongs to the model's turn
        self.thought = model.format.thought_after(first.finish)
        """Text of the model's turn since the opening marker of the open thought; empty outside thoughts."""
        self._begun = ""
        """Last text written by the workflow itself, which may begin the action that the next response completes."""
        run.chats.append(self)

    def read(self) -> Context:
        """Returns the context with all its texts encoded."""
        missing = [text for text in self._unread if text.ids is None]
        if missing:
            for text, ids in zip(missing, self._model.format.encode(missing), strict=True):
                text.ids = ids
        for text in self._unread:
            assert text.ids is not None
            self._context.spans.append(Span("prompt" if text.finish is None else "observation", text.ids))
        self._unread = []
        return self._context

    def _ids(self) -> npt.NDArray[np.int32]:
        """Returns the whole context, (T,) int32."""
        return np.concatenate([*self._inherited, *(span.ids for span in self.read().spans)])

    @override
    async def generate(self, prefix: bool = False) -> Reply:
        run, engine = self._run, self._run.engine
        if run.state.done:
            raise EpisodeError(f"the episode has ended ({run.state.stop_reason}): nothing is generated after the end")
        if len(run.calls) >= engine.agent.max_calls:
            spent = f"the episode has used all its {len(run.calls)} model calls (max_calls)"
            raise run.end("calls", f"agent {engine.agent.name}: {spent}")
        missing, encoder = [text for text in self._unread if text.ids is None], self._model.encoder
        # with a turnstile (canonical), episodes must wait for nothing else
        if missing and encoder is not None and not engine.canonical:
            for text, ids in zip(missing, await encoder.ask(missing, run.sort_key), strict=True):
                text.ids = ids
        call = await self._respond(self._role.max_tokens, self._role.max_thought_tokens, prefix)
        if call.thought_cut:
            closing = f"\n{awaited(self.thought)}\n\n"
            self._unread.append(ContextText([(closing, True)], "stop", goes_on=True))
            call.text += closing
            self.thought, thought = "", call.text
            call = await self._respond(self._role.max_tokens - (call.end - call.start), None, prefix)
            return Reply(thought + call.text, call)
        return Reply(call.text, call)

    async def _respond(self, max_tokens: int, max_thought_tokens: int | None, prefix: bool) -> Call:
        """Samples a response and appends it to the context.

        Args:
            max_tokens: Maximum number of tokens.
            max_thought_tokens: Number of tokens after which the response ends if a thought is open.
            prefix: See `Chat.generate`.

        Raises:
            EpisodeError: The context is full.
        """
        run, prompt = self._run, self._ids()
        if run.start is not None:
            run.start.check_prompt(len(run.calls), self._number, prompt, self._model)
        if run.start is not None and len(run.calls) < run.start.calls:
            pieces, text, finish = self._recorded(run.start)
        else:
            pieces, text, finish = await self._pieces(prompt, max_tokens, max_thought_tokens)
        ids = np.concatenate([piece.ids for piece in pieces])
        self._finish, self.thought, self._begun = finish, text if awaited(text) else "", ""
        cut = finish == "length"
        thought_cut = cut and max_thought_tokens is not None and len(ids) < max_tokens and bool(self.thought)
        if len(ids):
            self._context.spans.append(Span("model", ids, np.concatenate([piece.logp for piece in pieces])))
        call = Call(
            context=self._number,
            start=len(prompt),
            end=len(prompt) + len(ids),
            role=self._role.name,
            model_key=self._model.key,
            turn=run.state.turn + 1,
            text=text,
            policy_version=min(piece.version for piece in pieces),
            cut=cut and not thought_cut,
            prefix=prefix,
            requests=len(pieces) if run.start is None else run.start.requests(len(run.calls), len(pieces)),
            thought_cut=thought_cut,
        )
        if len(ids):
            run.calls.append(call)
        if finish == "context" and not prefix:
            call.legal = False  # not parsed: the episode ends here
            raise run.end("context", f"role {self._role.name}: the context is full after {call.end} tokens")
        return call

    def _recorded(self, start: Start) -> tuple[list[Sampled], str, Finish]:
        """Returns the recorded response of the next call; see `_pieces`."""
        number = len(self._run.calls)
        reply = start.response(number, self._role.name, self._model)
        text = self.thought + self._model.format.response_text(reply.ids)
        start.check_text(number, text)
        return [reply], text, reply.finish

    async def _pieces(
        self, prompt: npt.NDArray[np.int32], max_tokens: int, max_thought_tokens: int | None
    ) -> tuple[list[Sampled], str, Finish]:
        """Samples a response, in several requests if needed.

        Returns:
            (pieces, text, finish): the response's parts in order; its text, including the beginning of a thought that
            the prompt opened; the reason why it ended.
        """
        protocol, format = self._run.protocol, self._model.format
        stop = protocol.stop_strings if self._role.stop is None else self._role.stop
        bounds = [max_tokens] if max_thought_tokens is None else [min(max_thought_tokens, max_tokens), max_tokens]
        pieces, now, length, text = list[Sampled](), stop, 0, self.thought
        while True:
            ids = np.concatenate([prompt, *(piece.ids for piece in pieces)])
            bound = next(bound for bound in bounds if bound > length)
            last = await self._sample(ids, bound - length, now, len(pieces))
            pieces.append(last)
            before, length = len(text), length + len(last.ids)
            text = self.thought + format.response_text(np.concatenate([piece.ids for piece in pieces]))
            closing = awaited(text)
            if last.finish == "stop":
                hit = any(string in text[max(before + 1 - len(string), 0) :] for string in stop)
                over = (
                    protocol.ended(self._begun + text)
                    if hit and self._role.stop is None
                    else (hit or now == stop) and not closing
                )
                if over or not format.continues:
                    return pieces, text, "stop"
                if length >= max_tokens:
                    return pieces, text, "length"
            elif last.finish != "length" or bound == max_tokens or closing:
                return pieces, text, last.finish
            now = _stops((closing,) if closing else stop, text)

    async def _sample(
        self, ids: npt.NDArray[np.int32], max_tokens: int, stop: tuple[str, ...], request: int
    ) -> Sampled:
        """Samples the next piece of a response; `request` is its 0-based number, which seeds it."""
        run, engine = self._run, self._run.engine
        entropy = (*run.entropy, len(run.calls), request) if request else (*run.entropy, len(run.calls))
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        sampling = Sampling(max_tokens, engine.temperature, engine.top_p, stop)
        return await self._model.batcher.ask(SampleRequest(ids, sampling, seed, run.name), run.sort_key)

    @override
    def observe(self, text: str, trusted: bool = False) -> None:
        if not isinstance(text, str):  # texts of several episodes are encoded together later
            raise TypeError(f"observe takes a text, got {type(text).__name__}")
        parts = [(text, True)] if trusted else self._run.protocol.parts(text)
        self._unread.append(ContextText(self._outside(parts, self._finish), self._finish))
        self._begun = text if trusted else ""
        self.thought = self._model.format.thought_after(self._finish)

    @override
    def fork(self, role: str, **fields: str) -> TokenChat:
        run, agent_role, model = self._run, self._run.role(role), self._run.engine.models[role]
        if model is not self._model:
            raise UsageError(f"role {role} continues role {self._role.name}'s context: both need the same model")
        ids = self._ids()
        spans = self._context.spans
        # Whether the model's turn is still open, as for an observation after the last response.
        finish: Finish = self._finish if spans and spans[-1].kind == "model" else "stop"
        parts = [("\n\n", True), *agent_role.parts(fields, run.protocol.instructions()), ("\n\n", True)]
        text = ContextText(self._outside(parts, finish), finish)
        chat = TokenChat(run, agent_role, model, Context(self._number, len(ids)), text, [ids])
        chat._finish = finish
        return chat

    def _outside(self, parts: Parts, finish: Finish) -> Parts:
        """Returns a text to append to a response; if a thought is open in the same turn, it is closed first."""
        if self.thought and self._model.format.goes_on(finish):
            return [(f"\n{awaited(self.thought)}\n\n", True), *parts]
        return parts


def thought_counts(episodes: Sequence[Episode]) -> dict[str, list[float]]:
    """Counts open, cut and resumed thoughts of episodes.

    Returns:
        Numbers per episode: ``open_thoughts``, calls whose thought never closes, so that no action in it is executed;
        ``cut_thoughts``, calls whose thought was closed by `Role.max_thought_tokens`; ``resumed``, additional requests
        for responses (`Call.requests`). A count that is 0 for all episodes is left out.
    """
    counts = {
        "open_thoughts": [sum(bool(awaited(call.text)) for call in episode.calls) for episode in episodes],
        "cut_thoughts": [sum(call.thought_cut for call in episode.calls) for episode in episodes],
        "resumed": [sum(call.requests - 1 for call in episode.calls) for episode in episodes],
    }
    return {name: list(map(float, values)) for name, values in counts.items() if any(values)}


def _stops(stop: Sequence[str], text: str) -> tuple[str, ...]:
    """Returns stop strings for the rest of a response, including the missing rest of a partly written one."""
    missing = [
        string[most:]
        for string in stop
        if (most := max((n for n in range(len(string)) if text.endswith(string[:n])), default=0))
    ]
    return tuple(dict.fromkeys([*stop, *missing]))
