"""Models behind an OpenAI-compatible server, for evaluation and judges. Never for training: there are no token ids.

An API speaks of messages, the engine of ids. `MessageFormat` writes a conversation as Unicode code points with marks
between messages, so that episodes, budgets and records stay as they are; `ApiSampler` reads the messages back and asks.
Log-probs are 0: nobody knows them.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from searchgym.errors import ModelError, UsageError
from searchgym.protocol import Protocol
from searchgym.rollout.sampler import Deliver, Finish, Key, Pull, Sampled, SampleRequest, sample_all

USER: Final = 0x110000
"""Begins a user message; beyond every code point."""
ASSISTANT: Final = 0x110001
"""Begins an assistant message."""
AGAIN: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""HTTP statuses after which the same request may succeed."""
LOOK: Final = 0.05
"""Seconds between looks at whether new requests have come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Where a model answers, and how patient the asking is."""

    url: str
    """Up to what comes before ``/chat/completions``: ``https://api.example.com/v1``."""
    model: str
    """Its name there."""
    key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; without one none is sent."""
    at_once: int = 16
    """Requests under way at the same time."""
    timeout: float = 120.0
    """Seconds until one attempt is given up."""
    attempts: int = 6
    """Attempts at one request."""
    wait: float = 1.0
    """Seconds before the second attempt; doubled for each later one, up to a minute, and jittered. A server that names
    a time (``Retry-After``) is believed, up to a minute."""
    price_in: float = 0.0
    """Of a million prompt tokens, in any currency."""
    price_out: float = 0.0
    """Of a million generated tokens."""
    max_context: int = 1_000_000
    """Characters of a conversation; the server knows the limit in tokens."""


@dataclass(slots=True)
class Usage:
    """What was asked and what it cost, as the server counts."""

    requests: int = 0
    """That were answered."""
    retries: int = 0
    """Attempts that were not."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


class MessageFormat:
    """Writes conversations as ids: code points, and marks where messages begin; see `TokenFormat`.

    Args:
        protocol: The action grammar.
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol

    def prompt_ids(self, text: str) -> npt.NDArray[np.int32]:
        """Returns a user message and the head of the model's turn."""
        return np.array([USER, *map(ord, text), ASSISTANT], np.int32)

    def observation_ids(self, text: str, finish: Finish) -> npt.NDArray[np.int32]:
        """Returns the next user message and the head of the model's next turn: an API has no other place for it."""
        return self.prompt_ids(text.strip())

    def response_text(self, ids: Sequence[int] | npt.NDArray[np.int32]) -> str:
        """Returns what the model said."""
        return "".join(map(chr, ids))


def messages_of(ids: npt.NDArray[np.int32]) -> list[dict[str, str]]:
    """Returns the messages of a conversation; the model's empty last turn is left out."""
    messages: list[dict[str, str]] = []
    text: list[str] = []
    for code in ids.tolist():
        if code in (USER, ASSISTANT):
            messages.append({"role": "user" if code == USER else "assistant", "content": ""})
            text = []
        else:
            text.append(chr(code))
            messages[-1]["content"] = "".join(text)
    return [message for message in messages if message["role"] == "user" or message["content"]]


class ApiSampler:
    """A `StreamingSampler` on an OpenAI-compatible server. Answers are not repeatable: a server's seed promises little.

    Args:
        options: Where, and how patiently.
    """

    def __init__(self, options: ApiOptions) -> None:
        self.options, self.usage, self.version = options, Usage(), 0
        self.max_context = options.max_context
        self._lock = threading.Lock()
        self._random = random.Random(0)
        self._ended: set[threading.Event] = set()
        """One of each `stream` that is under way: set, it makes no further attempts."""

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns one response per request, in the same order."""
        return sample_all(self, requests)

    def stream(self, pull: Pull[Key], deliver: Deliver[Key]) -> None:
        """Asks for what comes, many at once; see `StreamingSampler`.

        Raises:
            UsageError: The server refuses the request itself.
            ModelError: The last attempt at a request failed, too.
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
        """Refuses: the weights are the server's."""
        raise UsageError(f"{self.options.model} at {self.options.url} cannot be trained: its weights are the server's")

    def forget(self) -> None:
        """Does nothing: what the server remembers is its own affair."""

    def close(self) -> None:
        """Ends what is under way: nothing more is sent, and paid for."""
        for ended in list(self._ended):
            ended.set()

    # -- one request -----------------------------------------------------------------------------------------------

    def _answer(self, request: SampleRequest, ended: threading.Event) -> Sampled:
        """Asks until there is an answer, or nobody wants one any more."""
        asked = request.sampling
        body: dict[str, Any] = {
            "model": self.options.model,
            "messages": messages_of(request.ids),
            "max_tokens": asked.max_tokens,
            "temperature": asked.temperature,
            "seed": request.seed % 2**31,
        }
        if asked.top_p < 1:
            body["top_p"] = asked.top_p
        if asked.stop:
            body["stop"] = list(asked.stop)
        said = ""
        where = f"{self.options.model} at {self.options.url}"
        for attempt in range(self.options.attempts):
            if ended.is_set():
                raise ModelError(f"{where}: closed before it answered")
            try:
                return self._read(self._post(body), asked.stop)
            except _Failed as error:
                said, pause = str(error), error.wait
            if attempt + 1 < self.options.attempts:
                with self._lock:
                    self.usage.retries += 1
                    jitter = self._random.uniform(0.5, 1.0)
                ended.wait(jitter * min(60.0, self.options.wait * 2**attempt) if pause is None else pause)
        raise ModelError(f"{where}: no answer in {self.options.attempts} attempts; the last one: {said}")

    def _post(self, body: Mapping[str, Any]) -> bytes:
        """Sends a request once.

        Raises:
            _Failed: It may succeed later.
            UsageError: It will not.
        """
        headers = {"Content-Type": "application/json", "User-Agent": "searchgym"}
        if key := os.environ.get(self.options.key_env):
            headers["Authorization"] = f"Bearer {key}"
        url = self.options.url.rstrip("/") + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self.options.timeout) as reply:
                return bytes(reply.read())
        except urllib.error.HTTPError as error:
            said = f"HTTP {error.code}: {error.read(2000).decode('utf-8', 'replace'):.300}"
            if error.code in AGAIN:
                raise _Failed(said, _seconds(error.headers.get("Retry-After"))) from error
            raise UsageError(f"{self.options.model} at {url}: {said}") from error
        except (OSError, http.client.HTTPException) as error:  # no connection, a timeout; a cut reply
            raise _Failed(f"{type(error).__name__}: {error}") from error

    def _read(self, reply: bytes, stop: Sequence[str]) -> Sampled:
        """Returns the response in a reply, and counts what it cost."""
        try:
            data = json.loads(reply)
            choice = data["choices"][0]
            text, reason = choice["message"]["content"] or "", choice["finish_reason"]
            if not isinstance(text, str):
                raise TypeError(f"content is {type(text).__name__}")
        except (ValueError, LookupError, TypeError) as error:
            raise _Failed(f"not a chat completion ({type(error).__name__}: {error}): {reply[:200]!r}") from error
        usage, options = data.get("usage") or {}, self.options
        with self._lock:
            self.usage.requests += 1
            self.usage.prompt_tokens += (asked := int(usage.get("prompt_tokens") or 0))
            self.usage.completion_tokens += (made := int(usage.get("completion_tokens") or 0))
            self.usage.cost += (asked * options.price_in + made * options.price_out) / 1e6
        finish: Finish = "length" if reason == "length" else "eos"
        if finish == "eos" and (cut := _cut_off(text, stop)):
            text, finish = text + cut, "stop"
        ids = np.array([ord(c) for c in text], np.int32)
        return Sampled(ids, np.zeros(len(ids), np.float32), finish)


class _Failed(Exception):
    """An attempt that may be repeated.

    Args:
        said: Why.
        wait: Seconds that the server asks for.
    """

    def __init__(self, said: str, wait: float | None = None) -> None:
        super().__init__(said)
        self.wait = wait


def _cut_off(text: str, stop: Sequence[str]) -> str:
    """Returns the closing tag that a server took away with the stop string, or nothing."""
    for tag in stop:
        if text.rfind(tag.replace("</", "<")) > text.rfind(tag):
            return tag
    return ""


def _seconds(text: str | None) -> float | None:
    """Returns what a ``Retry-After`` header asks for, at most a minute; None if it is a date or nothing."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return min(60.0, max(0.0, seconds)) if math.isfinite(seconds) else None
