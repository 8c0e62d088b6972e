"""`SearchEnv`: one episode at a time, a plain ``gymnasium.Env``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

import gymnasium

from searchgym.envs import turns
from searchgym.envs.cards import EnvCard
from searchgym.envs.core import State
from searchgym.envs.options import TaskOptions
from searchgym.envs.task import Task
from searchgym.errors import EpisodeError, UsageError


@dataclass(slots=True)
class Snapshot:
    """Saved episode of a `SearchEnv`, from which several continuations can branch."""

    state: State
    """State of the episode."""
    transcript: list[str] = field(default_factory=list)
    """Transcript so far, as a list of texts, for `SearchEnv.render`."""
    rng_state: Any = None
    """State of the environment's NumPy bit generator."""


class SearchEnv(gymnasium.Env[str, str]):
    """A multi-turn question-answering environment over a retriever.

    ## Description
    `reset` shows a question. Each `step` takes the text of one turn, parses its first complete action, and shows the
    retrieved passages. The episode ends with an answer.

    ## Action space
    `UnicodeText`: any string. With the ``tags`` protocol ``<search>query</search>`` searches and
    ``<answer>text</answer>`` answers; ``info["instructions"]`` of `reset` describes the grammar. Text without a
    complete action costs a turn and returns a notice; no string raises an error.

    ## Observation space
    `UnicodeText`: the question; then ``Doc i(Title: ...) text`` for up to `top_k` hits, cut to
    `max_observation_words` words; empty once the episode has ended. If pages can be opened (`browse`), a search shows
    `snippet_words` words of each hit, and an opened page is shown in parts of `max_observation_words` words.

    ## Reward
    0 until the end, then the reward function of the final state: by default exact match, in {0, 1}.

    ## Episode end
    `terminated` on an answer and when the turn budget is spent (it is part of the task). `truncated` when the
    retriever failed past its deadline: reward 0, ``info["stop_reason"] == "retriever_error"``.

    ## Info
    ``question_id, turn, turns_left, searches, action, hits, stop_reason`` on every step; ``em, f1, answer`` on the
    last; ``opens`` if pages can be opened. The info is deterministic: times and counters are in `stats`.

    ## Reset options
    ``{"question_id": ...}`` chooses the question; otherwise the environment's generator draws one.

    ## Version history
    * v0: first version.

    Args:
        card: An `EnvCard`, its fields as a mapping (the form in an `EnvSpec` in JSON), a loaded `Task`, the name of a
            shipped card, or a path to one.
        render_mode: None or ``"ansi"`` (the transcript as text).
        **options: See `TaskOptions`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium declares an instance attribute)

    def __init__(
        self,
        card: EnvCard | Task | Mapping[str, Any] | str,
        *,
        render_mode: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise UsageError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        self.task = turns.resolve(card, options)
        self.render_mode = render_mode
        self.observation_space, self.action_space = turns.spaces_for(self.task)
        self.stats = turns.Stats()
        self._state: State | None = None
        self._transcript: list[str] = []

    @property
    def state(self) -> State:
        """State of the current episode.

        Raises:
            EpisodeError: The environment has not been reset.
        """
        if self._state is None:
            raise EpisodeError("reset the environment before the first step")
        return self._state

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode; the class docstring lists the options.

        Raises:
            UnknownNameError: An option or question id is unknown.
        """
        super().reset(seed=seed)
        chosen = turns.reset_options(options, ("question_id",))
        question = turns.draw_question(self.task, self.np_random, chosen.get("question_id"))
        self._state = State(question)
        self._transcript = [f"Question: {question.text}"]
        self.stats.episodes += 1
        return question.text, turns.first_info(self.task, self._state)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Executes one turn; the class docstring describes actions, observations and rewards.

        Raises:
            EpisodeError: The environment has not been reset, or the episode has ended.
            UsageError: The action is not a string.
            RewardError: The reward function raised, or returned something other than a finite number.
        """
        ((state, observation),) = turns.take_turns(self.task, [(self.state, action)], self.stats)
        reward, terminated, truncated, info, scores = turns.outcome(self.task, state)
        text = observation
        if state.done:
            figures = {"reward": reward} | scores
            text = f"[{state.stop_reason}: {', '.join(f'{name} {value:g}' for name, value in figures.items())}]"
        self._state = state
        self.stats.steps += 1
        self._transcript += [self.task.rules.protocol.history(action), text]
        return observation, reward, terminated, truncated, info

    def render(self) -> str | None:
        """Returns the transcript so far, with reward and scores at the end, if `render_mode` is ``"ansi"``."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() was called on an environment made without render_mode='ansi'")
            return None
        return "\n".join(self._transcript)

    def get_state(self) -> Snapshot:
        """Returns a snapshot of the episode and the random generator, for `set_state`."""
        return Snapshot(self.state, list(self._transcript), copy.deepcopy(self.np_random.bit_generator.state))

    def set_state(self, snapshot: Snapshot) -> None:
        """Restores a snapshot; the same snapshot can be restored any number of times."""
        self._state = snapshot.state
        self._transcript = list(snapshot.transcript)
        self.np_random.bit_generator.state = copy.deepcopy(snapshot.rng_state)
