"""Models behind an OpenAI-compatible server, for evaluation and judges. Never for training: there are no token ids.

An API uses messages, the engine token ids. `MessageFormat` therefore encodes a conversation as Unicode code points with
marks between messages, so that episodes, budgets and records need no special case; `ApiSampler` converts them back to
messages and sends them. Log-probabilities are unknown and recorded as 0. `searchgym.rollout.api.replies` interprets
replies.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from urllib3.exceptions import HTTPError

from searchgym.errors import ModelError, UsageError
from searchgym.http_client import HttpClient, excerpt, retry_after
from searchgym.protocol import Parts, Protocol, joined
from searchgym.rollout.api.replies import ServerReply, read_choice, settle
from searchgym.rollout.sampler import Deliver, Finish, Key, Pull, Sampled, SampleRequest, sample_all
from searchgym.rollout.tokens import ContextText

USER: Final = 0x110000
"""Mark that begins a user message; larger than every Unicode code point."""
ASSISTANT: Final = 0x110001
"""Mark that begins an assistant message."""
RETRIED_STATUS: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""HTTP status codes after which a request is repeated."""
REPLY_BYTES: Final = 16 * 2**20
"""Maximum number of bytes in a reply; 100,000 tokens need about half a megabyte."""
LOOK: Final = 0.05
"""Seconds between checks for new requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Address, model, retries and prices of an OpenAI-compatible server."""

    url: str
    """Base URL, to which ``/chat/completions`` is appended: ``https://api.example.com/v1``. A user name and password in
    it are sent as basic authentication unless there is a key, and never appear in messages."""
    model: str
    """Name of the model on the server."""
    key_env: str = "OPENAI_API_KEY"
    """Environment variable with the API key; if it is unset, no key is sent."""
    at_once: int = 16
    """Maximum number of concurrent requests."""
    timeout: float = 120.0
    """Maximum seconds per attempt, including the transfer of the reply."""
    attempts: int = 6
    """Maximum number of attempts per request."""
    wait: float = 1.0
    """Seconds before the second attempt; doubled for each later one, up to a minute, and jittered. A ``Retry-After``
    header from the server takes precedence, up to a minute."""
    price_in: float = 0.0
    """Price of a million prompt tokens, in any currency."""
    price_out: float = 0.0
    """Price of a million generated tokens, in the same currency."""
    max_context: int = 1_000_000
    """Maximum length of a conversation, in characters; the server enforces its limit in tokens."""
    thinks: bool = False
    """True if the server's chat template opens a thought in the prompt. Responses then begin inside it without its
    opening marker, which the server does not report."""

    @classmethod
    def of(cls, spec: str) -> Self:
        """Parses ``URL#NAME`` or ``URL#NAME?thinks=true``.

        Raises:
            UsageError: The name is missing, or is followed by something else than the option.
        """
        url, _, named = spec.partition("#")
        name, mark, option = named.partition("?")
        if not name:
            raise UsageError(f"{url}: which model of this server? Write {url}#NAME")
        if mark and option not in ("thinks=true", "thinks=false"):
            raise UsageError(f"{spec}: after the model's name only ?thinks=true may follow, got ?{option}")
        return cls(url=url, model=name, thinks=option == "thinks=true")


@dataclass(slots=True)
class Usage:
    """Requests, tokens (as counted by the server) and cost of a sampler so far."""

    requests: int = 0
    """Number of answered requests."""
    repeated: int = 0
    """Number of requests repeated without stop strings, because a stop string had cut a thought or a call."""
    retries: int = 0
    """Number of repeated attempts after failures."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """Total price, by `ApiOptions.price_in` and `ApiOptions.price_out`."""
    unread: Counter[str] = field(default_factory=Counter)
    """Number of replies with other contents than a response, by name: a message's field such as ``refusal``, ``tool
    NAME`` for a call of an unknown tool, or ``nothing``."""

    def notes(self) -> list[str]:
        """Returns notes for the user about unusual replies, one line each."""
        notes = [f"{n} of {self.requests} replies: no response, but {name}" for name, n in self.unread.most_common(5)]
        if self.repeated:
            notes.append(
                f"{self.repeated} of {self.requests} requests repeated one cut by a stop string in a thought or call"
            )
        return notes


class MessageFormat:
    """Token format for APIs: ids are Unicode code points, with marks where messages begin (compare `TokenFormat`).

    Args:
        protocol: Action grammar of the environment.
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol

    def prompt_ids(self, text: str | Parts) -> npt.NDArray[np.int32]:
        """Returns the ids of a user message and the start of the model's turn, (T,) int32."""
        return np.array([USER, *map(ord, joined(text)), ASSISTANT], np.int32)

    def observation_ids(self, text: str | Parts, finish: Finish) -> npt.NDArray[np.int32]:
        """Returns the ids of an observation as a user message, (T,) int32; APIs have no other message type for it."""
        return self.prompt_ids(joined(text).strip())

    def encode(self, texts: Sequence[ContextText]) -> list[npt.NDArray[np.int32]]:
        """Returns the ids of each prompt or observation."""
        return [
            self.prompt_ids(text.parts) if text.finish is None else self.observation_ids(text.parts, text.finish)
            for text in texts
        ]

    continues = False
    """True if a response can be continued in a further request."""

    def goes_on(self, finish: Finish | None) -> bool:
        """Returns False: every observation is a separate message."""
        return False

    def thought_after(self, finish: Finish | None) -> str:
        """Returns an empty string: the server's template is unknown."""
        return ""

    def response_text(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> str:
        """Returns the text of a response."""
        return self.decode(ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids, without the marks."""
        return "".join(chr(i) for i in ids if i < USER)


def messages_of(ids: npt.NDArray[np.int32]) -> list[dict[str, str]]:
    """Returns the messages of a conversation written by `MessageFormat`, without the model's empty last turn.

    Args:
        ids: (T,) int32 code points and marks.
    """
    messages: list[dict[str, str]] = []
    marks = np.flatnonzero((ids == USER) | (ids == ASSISTANT)).tolist()
    for start, end in itertools.pairwise([*marks, len(ids)]):
        role = "user" if ids[start] == USER else "assistant"
        messages.append({"role": role, "content": "".join(map(chr, ids[start + 1 : end].tolist()))})
    return [message for message in messages if message["role"] == "user" or message["content"]]


def sampled_text(text: str, finish: Finish) -> Sampled:
    """Returns a text as a response in code points, whose log-probabilities are unknown."""
    ids = np.array([ord(character) for character in text], np.int32)
    return Sampled(ids, np.zeros(len(ids), np.float32), finish)


class ApiSampler:
    """Sampler that sends requests to an OpenAI-compatible server; results are not reproducible, even with seeds.

    Args:
        options: Address, model, retries and prices.
        protocol: Action grammar of the environment.

    Raises:
        UsageError: `options.url` is not the address of a server.
    """

    def __init__(self, options: ApiOptions, protocol: Protocol) -> None:
        self._protocol = protocol
        self._client = HttpClient(options.url, options.at_once, proxies=True)
        self.options, self.usage, self.version = options, Usage(), 0
        self.max_context = options.max_context
        self._lock = threading.Lock()
        self._random = random.Random(0)
        self._ended: set[threading.Event] = set()
        """One event per running `stream`; once set, that stream makes no further attempts."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns one response per request, in the same order."""
        return sample_all(self, requests)

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Sends requests as they arrive, many at once; see `StreamingSampler`.

        Raises:
            UsageError: The server rejects a request permanently.
            ModelError: The last attempt at a request failed.
        """
        waiting: dict[Future[Sampled], Key] = {}
        self._ended.add(ended := threading.Event())
        with ThreadPoolExecutor(self.options.at_once) as pool:
            try:
                while True:
                    for key, request in pull():
                        waiting[pool.submit(self._answer, request, ended)] = key
                    if not waiting:
                        return
                    done, _ = wait(waiting, LOOK, FIRST_COMPLETED)
                    for future in done:
                        deliver(waiting.pop(future), future.result())
            except BaseException:
                ended.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            finally:
                self._ended.discard(ended)

    def update(self, state: Mapping[str, Any], version: int) -> None:
        """Raises a UsageError: the weights belong to the server and cannot be updated."""
        raise UsageError(f"{self._where} cannot be trained: its weights are the server's")

    def forget(self) -> None:
        """Does nothing, since the server's cache cannot be reached."""

    def close(self) -> None:
        """Stops all running streams, so that nothing more is sent, and reports unusual replies on standard error."""
        for ended in list(self._ended):
            ended.set()
        for note in self.usage.notes():
            sys.stderr.write(f"note: {self._where}: {note}\n")

    # -- one request -----------------------------------------------------------------------------------------------

    def _answer(self, request: SampleRequest, ended: threading.Event) -> Sampled:
        """Returns the response to a request, which is sent twice if a stop string cut a thought or a call."""
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.options.model,
            "messages": messages_of(request.ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": request.seed % 2**31,
        }
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        reply = self._ask(body, ended)
        settled = settle(reply, sampling.stop, self._protocol, self.options.thinks)
        if settled.cut:
            with self._lock:
                self.usage.repeated += 1
            reply = self._ask({name: value for name, value in body.items() if name != "stop"}, ended)
            settled = settle(replace(reply, ended_by=""), sampling.stop, self._protocol, self.options.thinks)
        return sampled_text(settled.text, "stop" if settled.stopped else reply.finish)

    def _ask(self, body: Mapping[str, Any], ended: threading.Event) -> ServerReply:
        """Sends a request until it is answered, no attempt is left, or `ended` is set."""
        reason = ""
        for attempt in range(self.options.attempts):
            if ended.is_set():
                raise ModelError(f"{self._where}: closed before it answered")
            try:
                return self._read(self._post(body), body.get("stop", ()))
            except _Failed as error:
                reason, pause = str(error), error.wait
            if attempt + 1 < self.options.attempts:
                with self._lock:
                    self.usage.retries += 1
                    jitter = self._random.uniform(0.5, 1.0)
                ended.wait(jitter * min(60.0, self.options.wait * 2**attempt) if pause is None else pause)
        raise ModelError(f"{self._where}: no answer in {self.options.attempts} attempts; the last one: {reason}")

    @property
    def _where(self) -> str:
        """Name of the model and address of its server, for messages."""
        return f"{self.options.model} at {self._client.url}"

    def _post(self, body: Mapping[str, Any]) -> bytes:
        """Sends a request once.

        Raises:
            _Failed: The request may succeed later.
            UsageError: The request will never succeed.
        """
        headers = {"Content-Type": "application/json", "User-Agent": "searchgym"}
        if key := os.environ.get(self.options.key_env):
            headers["Authorization"] = f"Bearer {key}"
        path, data = "/chat/completions", json.dumps(body).encode()
        try:
            reply = self._client.call("POST", path, data, headers, seconds=self.options.timeout, most=REPLY_BYTES)
        except HTTPError as error:  # no connection, no complete reply in time, or too long a reply
            raise _Failed(f"{type(error).__name__}: {excerpt(str(error))}") from error
        if 200 <= reply.status < 300:
            return reply.body
        reason = f"HTTP {reply.status}: {excerpt(reply.body.decode('utf-8', 'replace'))}"
        if reply.status in RETRIED_STATUS:
            raise _Failed(reason, retry_after(reply.headers))
        raise UsageError(f"{self.options.model} at {self._client.url}{path}: {reason}")

    def _read(self, body: bytes, stop: Sequence[str]) -> ServerReply:
        """Parses the body of a reply, and counts its tokens and cost."""
        try:
            data = json.loads(body)
            reply = read_choice(data["choices"][0], stop, self._protocol)
            usage, options = data.get("usage") or {}, self.options
            tokens_in, tokens_out = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
            cost = (tokens_in * options.price_in + tokens_out * options.price_out) / 1e6
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise _Failed(f"not a chat completion ({type(error).__name__}: {error}): {body[:200]!r}") from error
        with self._lock:
            self.usage.requests += 1
            self.usage.prompt_tokens += tokens_in
            self.usage.completion_tokens += tokens_out
            self.usage.cost += cost
            self.usage.unread.update(map(excerpt, dict.fromkeys(reply.unread)))
        return reply


class _Failed(Exception):
    """Raised when an attempt failed and may be repeated.

    Args:
        reason: Reason of the failure.
        wait: Seconds to wait, if the server gave a time.
    """

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait
