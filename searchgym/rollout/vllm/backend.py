"""Interface of vLLM engines: requests, completions, and loading of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from searchgym.errors import ModelError
from searchgym.rollout.transfer.folders import Folders


@dataclass(frozen=True, slots=True)
class Adapter:
    """LoRA adapter in a folder that the engine can read."""

    name: str
    """Unique name of the adapter."""
    number: int
    """Unique number above 0; vLLM identifies adapters by name and number."""
    folder: str
    """Folder with peft's configuration and weight files."""
    version: int = 0
    """Version of the adapter's weights."""


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """Result of a request to vLLM."""

    ids: npt.NDArray[np.int32]
    """(N,) int32 sampled token ids, the end id included."""
    logp: npt.NDArray[np.float32]
    """(N,) float32 natural-log probabilities of the sampled tokens, in the engine's log-probability mode."""
    reason: str | None
    """vLLM's finish reason: ``"stop"``, ``"length"`` or another."""
    stop: str | int | None = None
    """Stop string or token id that ended the response."""


Done = Callable[[Completion | Exception, int], None]
"""Callback that receives the completion or an error, and the version of the base model's weights."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """Request to an engine, with the callback for its result."""

    prompt: list[int]
    """Token ids of the prompt."""
    parameters: Mapping[str, Any]
    """Keyword arguments of vLLM's `SamplingParams`."""
    done: Done
    """Callback for the result."""
    adapter: Adapter | None = None
    """Adapter to sample with; None for the base model."""
    episode: str = ""
    """Id of the episode; its requests share a long prefix, so all are sent to the same replica."""


class EngineBackend(Protocol):
    """Interface of a vLLM engine in child processes or behind a server.

    Every method raises `EngineLostError` if the engine has ended; `restart` then starts it again. A refused request
    raises `ModelError`.
    """

    name: str
    """Name for messages."""
    max_context: int
    """Maximum number of tokens of request and response."""

    def new_folders(self) -> Folders:
        """Returns an empty set of folders for passing weights to the engine."""
        ...

    def restart(self) -> None:
        """Starts the engine again, with the model's original weights."""

    def add(self, name: str, request: EngineRequest) -> None:
        """Adds a request under a name that was never used before."""

    def step(self) -> list[tuple[str, Completion | Exception]]:
        """Runs the engine briefly; returns (name, completion or error) of each request that ended."""
        ...

    def load(self, folder: str) -> None:
        """Loads the base model's weights from a folder."""

    def take(self, adapter: Adapter) -> None:
        """Loads an adapter.

        Raises:
            ModelError: The adapter does not fit the base model.
        """

    def fingerprint(self, adapter: Adapter | None) -> str | None:
        """Returns the fingerprint of the base model's weights or of an adapter that the engine has.

        Returns:
            The fingerprint, those of several processes joined if they differ; "" if there are no such weights, None if
            they cannot be read. See `Receiver.weights_fingerprint`.
        """
        return None

    def drop(self, adapter: Adapter) -> None:
        """Unloads an adapter."""

    def forget(self) -> None:
        """Clears cached keys and values of earlier requests."""

    def sleep(self, level: int) -> None:
        """Frees GPU memory until `wake`; level 1 keeps the weights in main memory, 2 drops them."""

    def wake(self) -> None:
        """Allocates GPU memory again after `sleep`."""

    def close(self) -> None:
        """Stops the processes and threads that the backend started; a server keeps running."""


def check_reset(done: object) -> None:
    """Raises a ModelError unless vLLM reported that its prefix cache is cleared."""
    if not done:
        raise ModelError("vLLM did not reset its prefix cache: it would mix keys and values of old and new weights")
