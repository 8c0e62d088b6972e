"""`SearchVectorEnv`: many episodes in one process, with one retriever call per step for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Unpack

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from searchgym.envs import turns
from searchgym.envs.cards import EnvCard
from searchgym.envs.core import State
from searchgym.envs.options import TaskOptions
from searchgym.envs.task import Task
from searchgym.errors import EpisodeError, UnknownNameError, UsageError

AUTORESET: Final = {mode.name.lower(): mode for mode in AutoresetMode}
"""Autoreset modes of Gymnasium, by the names that `SearchVectorEnv` accepts."""

StepResult = tuple[
    tuple[str, ...], npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
]
"""Observations, rewards, terminations, truncations and infos of one step of a vector environment."""


class SearchVectorEnv(gymnasium.vector.VectorEnv[tuple[str, ...], tuple[str, ...], npt.NDArray[Any]]):
    """A vector of `SearchEnv` episodes: the same observations, rewards and infos as that many single environments.

    All queries of a step to one retriever are sent in a single call; there is no call if no episode searched. A
    retrieval that fails past its deadline ends every episode that searched in that step.

    Args:
        card: See `SearchEnv`.
        num_envs: Number of episodes.
        autoreset: Handling of episodes that have ended, as in Gymnasium's vector environments. ``"next_step"``:
            the next step ignores its action and starts a new episode with reward 0. ``"same_step"``: a new episode
            starts in the same step; the last observation and info are in ``infos["final_obs"]`` and
            ``infos["final_info"]``. ``"disabled"``: reset it with ``reset(options={"reset_mask": ended})``, or continue
            the others with `step_subset`. Members of ``gymnasium.vector.AutoresetMode`` are accepted too.
        render_mode: Must be None: a vector environment is not rendered.
        **options: See `TaskOptions`.

    Raises:
        UnknownNameError: The mode `autoreset` does not exist.
        UsageError: `num_envs` is below 1, or `render_mode` is not None.
    """

    def __init__(
        self,
        card: EnvCard | Task | Mapping[str, Any] | str,
        num_envs: int = 1,
        *,
        autoreset: str | AutoresetMode = "next_step",
        render_mode: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> None:
        if num_envs < 1:
            raise UsageError(f"num_envs must be at least 1, got {num_envs}")
        if render_mode is not None:
            raise UsageError("a vector environment is not rendered: make a single one with render_mode='ansi'")
        name = autoreset.name.lower() if isinstance(autoreset, AutoresetMode) else autoreset
        if name not in AUTORESET:
            raise UnknownNameError("autoreset", name, AUTORESET)
        self.autoreset_mode = AUTORESET[name]
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        self.task = turns.resolve(card, options)
        self.num_envs = num_envs
        self.render_mode = None
        self.single_observation_space, self.single_action_space = turns.spaces_for(self.task)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.stats = turns.Stats()
        self._states: list[State | None] = [None] * num_envs
        self._rngs: list[np.random.Generator] = [seeding.np_random()[0] for _ in range(num_envs)]

    @property
    def states(self) -> tuple[State | None, ...]:
        """State of each environment; None before its first reset."""
        return tuple(self._states)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Starts episodes in all environments, or only in those selected by a mask.

        Args:
            seed: One seed per environment, or a single seed, from which environment i uses ``seed + i``.
            options: ``{"reset_mask": (num_envs,) bool}`` resets only the marked environments (the others return an
                empty observation); ``{"question_ids": [...]}`` chooses the questions, one id per environment, or None
                to draw one.

        Raises:
            UnknownNameError: An option or question id is unknown.
            UsageError: A mask, seed or question list has the wrong length.
        """
        chosen = turns.reset_options(options, ("reset_mask", "question_ids"))
        mask = np.asarray(chosen.get("reset_mask", np.ones(self.num_envs, np.bool_)))
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise UsageError(f"reset_mask must be ({self.num_envs},) bool, got {mask.shape} {mask.dtype}")
        if isinstance(seed, (int, np.integer)):
            seed = [int(seed) + i for i in range(self.num_envs)]
        seeds = self._per_env(seed, "seed")
        question_ids = self._per_env(chosen.get("question_ids"), "question_ids")
        for question_id in question_ids:
            if question_id is not None:
                self.task.find(str(question_id))  # raises for an unknown id before anything changes
        observations, infos = [""] * self.num_envs, {}
        for i in map(int, np.flatnonzero(mask)):
            if seeds[i] is not None:
                self._rngs[i] = seeding.np_random(seeds[i])[0]
            observations[i], infos[i] = self._start(i, question_ids[i])
        return tuple(observations), stack_infos(infos, self.num_envs)

    def _start(self, i: int, question_id: object = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode in environment `i` and returns its first observation and info."""
        state = self._states[i] = State(turns.draw_question(self.task, self._rngs[i], question_id))
        self.stats.episodes += 1
        return state.question.text, turns.first_info(self.task, state)

    def _per_env(self, values: Any, name: str) -> list[Any]:
        """Returns the values as a list with one entry per environment; None gives a list of None."""
        if values is None:
            return [None] * self.num_envs
        if len(values) != self.num_envs:
            raise UsageError(f"{name} must have {self.num_envs} entries, got {len(values)}")
        return list(values)

    def step(self, actions: Iterable[str]) -> StepResult:
        """Executes one turn in every environment.

        Args:
            actions: One string per environment.

        Returns:
            Observations (num_envs strings), rewards (num_envs,) float64, terminations and truncations (num_envs,)
            bool, infos (Gymnasium's vector form: an array per key and its ``_key`` mask).

        Raises:
            EpisodeError: An environment has not been reset, or its episode has ended and `autoreset` is disabled.
        """
        return self.step_subset(range(self.num_envs), actions)

    def step_subset(self, indices: Iterable[int], actions: Iterable[str]) -> StepResult:
        """Executes one turn in some environments; the others keep their state.

        Args:
            indices: Environments to step, each at most once.
            actions: One string per index.

        Returns:
            The results of `step`; other environments have an empty observation, reward 0 and False flags.

        Raises:
            EpisodeError: An environment has not been reset, or its episode has ended and `autoreset` is disabled.
            UsageError: An index is unknown or repeated, or the number of actions differs.
        """
        chosen, texts = list(indices), list(actions)
        if len(chosen) != len(texts) or len(set(chosen)) != len(chosen):
            raise UsageError(f"{len(texts)} actions for {len(chosen)} environments (each at most once)")
        ended: set[int] = set()
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            ended = {i for i, state in enumerate(self._states) if state is not None and state.done and i in chosen}
        acting = {i: text for i, text in zip(chosen, texts, strict=True) if i not in ended}
        results = turns.take_turns(self.task, [(self._ready(i), text) for i, text in acting.items()], self.stats)
        stepped = dict(zip(acting, results, strict=True))

        observations = [""] * self.num_envs
        rewards = np.zeros(self.num_envs)
        terminations, truncations = np.zeros((2, self.num_envs), np.bool_)
        infos: dict[int, dict[str, Any]] = {}
        for i, (state, observations[i]) in stepped.items():
            rewards[i], terminations[i], truncations[i], infos[i], _ = turns.outcome(self.task, state)
        # Done last, after all rewards are computed, so that a step that raises leaves all states unchanged.
        for i, (state, _) in stepped.items():
            self._states[i] = state
        self.stats.steps += len(stepped)
        for i in ended:
            observations[i], infos[i] = self._start(i)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            for i in np.flatnonzero(terminations | truncations).tolist():
                last = {"final_obs": observations[i], "final_info": infos[i]}
                observations[i], info = self._start(i)
                infos[i] = last | info
        return tuple(observations), rewards, terminations, truncations, stack_infos(infos, self.num_envs)

    def _ready(self, i: int) -> State:
        """Returns the state of environment `i`; raises if it does not exist, is not reset or has ended."""
        if not 0 <= i < self.num_envs:
            raise UsageError(f"environment {i} does not exist: there are {self.num_envs}")
        state = self._states[i]
        if state is None or state.done:
            why = "has not been reset" if state is None else f"has ended ({state.stop_reason})"
            raise EpisodeError(
                f"environment {i} {why}: reset it with options={{'reset_mask': ...}}, step the others with "
                "step_subset, or make the environment with autoreset='next_step'"
            )
        return state


def stack_infos(infos: Mapping[int, Mapping[str, Any]], num_envs: int) -> dict[str, Any]:
    """Returns infos in Gymnasium's vector form, built by column (Gymnasium's ``_add_info`` adds value by value).

    Args:
        infos: Environment number to its info; environments without one are masked out.
        num_envs: Length of the arrays.

    Returns:
        For each key, an array (num_envs,) of numbers if the first value is a number, a dict of this form if it is an
        info itself, else an array of objects; and under ``_key`` a bool mask (num_envs,) of the environments that have
        a value.
    """
    stacked: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos.values() for key in info):
        rows = [(i, info[key]) for i, info in infos.items() if key in info]
        kind = type(rows[0][1])
        mask = np.zeros(num_envs, np.bool_)
        mask[[i for i, _ in rows]] = True
        stacked[f"_{key}"] = mask
        if kind is dict:
            stacked[key] = stack_infos(dict(rows), num_envs)
            continue
        array = np.zeros(num_envs, kind) if kind in (int, float, bool) else np.full(num_envs, None, object)
        for i, value in rows:
            array[i] = value
        stacked[key] = array
    return stacked
