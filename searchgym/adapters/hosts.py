"""Models of another project (a host), which answers the requests of episodes with an async function."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError
from searchgym.protocol import Protocol
from searchgym.records import Episode
from searchgym.rollout.api.replies import ServerReply, settle
from searchgym.rollout.api.sampler import MessageFormat, messages_of, sampled_text
from searchgym.rollout.batcher import Batcher
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Finish, Sampled, SampleRequest, Sampling
from searchgym.rollout.tokens import TokenFormat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Answer = Callable[[SampleRequest], Awaitable[Sampled]]
"""Async function that samples one response."""
Chat = Callable[[list[dict[str, str]], Sampling], Awaitable[ServerReply]]
"""Async function from messages (``role``, ``content``) and sampling parameters to a response."""
Sample = Callable[[list[int], int], Awaitable[tuple[Sequence[int], Sequence[float] | None]]]
"""Async function from token ids and a maximum number of new tokens to the sampled ids, and their log-probs if known."""


def host_model(key: str, answer: Answer, form: TokenFormat | MessageFormat) -> Model:
    """Returns a model sampled by the host, for `Engine`; each request is awaited in the asyncio task of its episode.

    Hosts identify a request's sample by the asyncio task, and batch requests themselves; so there are no batches here.

    Args:
        key: Name of the model, recorded in every call.
        answer: Function that samples one response.
        form: Converter between text and token ids.
    """
    return Model(key, _HostSampler(key), form, _OneByOne(answer), engine="host")


def chat_model(key: str, chat: Chat, protocol: Protocol) -> Model:
    """Returns a model sampled by the host as a chat, with prompts and observations as user messages.

    Args:
        key: Name of the model.
        chat: Function that samples one response. If the host removes a stop string, it is restored; if a stop string
            cut a thought, the request is repeated without stop strings.
        protocol: Action grammar of the environment.
    """

    async def answer(request: SampleRequest) -> Sampled:
        messages, sampling = messages_of(request.ids), request.sampling
        reply = await chat(messages, sampling)
        settled = settle(reply, sampling.stop, protocol)
        if settled.cut:
            reply = await chat(messages, replace(sampling, stop=()))
            settled = settle(replace(reply, ended_by=""), sampling.stop, protocol)
        return sampled_text(settled.text, "stop" if settled.stopped else reply.finish)

    return host_model(key, answer, MessageFormat(protocol))


def token_model(key: str, sample: Sample, form: TokenFormat, room: Callable[[int], int]) -> Model:
    """Returns a model sampled by the host with token ids; sampled tokens are never encoded again.

    Args:
        key: Name of the model.
        sample: Function that samples one response, which ends at `TokenFormat.stop` and `TokenFormat.end_ids`.
        form: Converter between text and token ids.
        room: Function from the length of a context to the number of tokens that may follow.
    """

    async def answer(request: SampleRequest) -> Sampled:
        most = min(request.sampling.max_tokens, room(len(request.ids)))
        if most < 1:
            return Sampled(np.zeros(0, np.int32), np.zeros(0, np.float32), "context")
        ids, logp = await sample(request.ids.tolist(), most)
        logps = np.zeros(len(ids), np.float32) if logp is None else np.array(logp, np.float32)
        return Sampled(np.array(ids, np.int32), logps, _finish(form, ids, most, request.sampling))

    return host_model(key, answer, form)


def _finish(form: TokenFormat, ids: Sequence[int], most: int, sampling: Sampling) -> Finish:
    """Returns the reason why a response ended (end id, stop string or length), which hosts do not fully report."""
    if len(ids) and ids[-1] in form.end_ids:
        return "eos"
    text = form.decode(ids)
    if any(stop in text for stop in sampling.stop):
        return "stop"
    if len(ids) < most:  # the host removed the token that ended it
        return "eos"
    return "length" if most == sampling.max_tokens else "context"


@functools.lru_cache(maxsize=8)
def token_format(tokenizer: PreTrainedTokenizerBase, protocol: Protocol) -> TokenFormat:
    """Returns the cached token format of a tokenizer, with its chat template if it has one."""
    return TokenFormat(tokenizer, protocol, chat=bool(tokenizer.chat_template))


@dataclass(frozen=True, slots=True)
class OneSequence:
    """An episode with one context, as one sequence of tokens."""

    ids: npt.NDArray[np.int32]
    """(T,) int32 token ids."""
    mask: npt.NDArray[np.bool_]
    """(T,) bool: True for tokens that the model sampled."""
    logp: npt.NDArray[np.float32]
    """(T,) float32 log-probabilities of the sampled tokens, 0 elsewhere."""
    prompt: int
    """Number of tokens of the prompt, at the start of the sequence."""


def sequence_of(episode: Episode) -> OneSequence:
    """Returns an episode as one sequence of tokens.

    Raises:
        UsageError: The episode has several contexts, like those of teams.
    """
    if len(episode.contexts) != 1:
        raise UsageError(
            f"agent {episode.agent} wrote in {len(episode.contexts)} contexts, and this trainer's episodes are one "
            "sequence of tokens: use an agent with one role, such as search-r1"
        )
    spans = episode.contexts[0].spans
    model = [span.kind == "model" for span in spans]
    return OneSequence(
        np.concatenate([span.ids for span in spans]),
        np.concatenate([np.full(len(span.ids), is_model) for span, is_model in zip(spans, model, strict=True)]),
        np.concatenate([np.zeros(len(s.ids), np.float32) if s.logp is None else s.logp for s in spans]),
        len(spans[0].ids),
    )


class _OneByOne(Batcher[SampleRequest, Sampled]):
    """Batcher without batches: it awaits the host in the asyncio task of the request."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(_never)
        self._answer_one = answer

    async def ask(self, request: SampleRequest, sort_key: tuple[str, int] = ("", 0)) -> Sampled:
        sampled = await self._answer_one(request)
        self.calls += 1
        self.sizes += 1
        return sampled


def _never(requests: list[SampleRequest]) -> NoReturn:
    raise UsageError("a model of a host accepts one request at a time")


class _HostSampler:
    """Placeholder for the sampler of a host's model, whose weights cannot be changed here."""

    version = 0
    max_context = 2**31 - 1

    def __init__(self, key: str) -> None:
        self._key = key

    def sample(self, requests: Sequence[SampleRequest]) -> NoReturn:
        _never([])

    def update(self, state: Mapping[str, Any], version: int) -> NoReturn:
        raise UsageError(f"{self._key} cannot be trained here: its weights are its host's")

    def forget(self) -> None: ...

    def close(self) -> None: ...
