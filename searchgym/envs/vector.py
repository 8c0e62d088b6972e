"""`SearchVectorEnv`: many episodes in one process, one retriever call per step for all of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.utils import seeding
from gymnasium.vector.utils import batch_space

from searchgym.cards import EnvCard
from searchgym.corpora.retrieval.retriever import retrieve
from searchgym.envs.core import State, begin, fail, finish
from searchgym.envs.single import (
    Stats,
    draw_question,
    end_info,
    read_action,
    reset_options,
    resolve,
    spaces_for,
    step_info,
)
from searchgym.envs.task import Task, TaskOptions
from searchgym.errors import EpisodeError, RetrieverError, UsageError

StepResult = tuple[
    tuple[str, ...], npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
]


class SearchVectorEnv(gymnasium.vector.VectorEnv[tuple[str, ...], tuple[str, ...], npt.NDArray[Any]]):
    """A vector of `SearchEnv` episodes: the same observations, rewards and infos as that many single environments.

    All queries of a step go to the retriever in exactly one call; there is none if nobody searched. Finished episodes
    are not reset by themselves (``AutoresetMode.DISABLED``): reset some with
    ``reset(options={"reset_mask": finished})``, or go on with the others by `step_subset`. A retrieval that fails past
    its deadline ends every episode that searched in that step.

    Args:
        card: See `SearchEnv`.
        num_envs: Number of episodes.
        render_mode: None; a vector is not rendered.
        **options: See `TaskOptions`.
    """

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}  # noqa: RUF012 (see SearchEnv)

    def __init__(
        self,
        card: EnvCard | Task | Mapping[str, Any] | str,
        num_envs: int = 1,
        *,
        render_mode: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> None:
        if num_envs < 1:
            raise UsageError(f"num_envs must be at least 1, got {num_envs}")
        if render_mode is not None:
            raise UsageError("a vector environment is not rendered: make a single one with render_mode='ansi'")
        self.task = resolve(card, options)
        self.num_envs = num_envs
        self.render_mode = None
        self.single_observation_space, self.single_action_space = spaces_for(self.task)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.stats = Stats()
        self._states: list[State | None] = [None] * num_envs
        self._rngs: list[np.random.Generator] = [seeding.np_random()[0] for _ in range(num_envs)]

    @property
    def states(self) -> tuple[State | None, ...]:
        """One state per environment; None before its first reset."""
        return tuple(self._states)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Starts episodes.

        Args:
            seed: One seed per environment, or one from which environment i takes ``seed + i``.
            options: ``{"reset_mask": (num_envs,) bool}`` resets only those (the others show an empty observation);
                ``{"question_ids": [...]}`` chooses the questions, one per environment, None for a drawn one.

        Raises:
            UnknownNameError: An unknown option or question id.
            UsageError: A mask, seed or question list of the wrong length.
        """
        chosen = reset_options(options, ("reset_mask", "question_ids"))
        mask = np.asarray(chosen.get("reset_mask", np.ones(self.num_envs, np.bool_)))
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise UsageError(f"reset_mask must be ({self.num_envs},) bool, got {mask.shape} {mask.dtype}")
        if isinstance(seed, (int, np.integer)):
            seed = [int(seed) + i for i in range(self.num_envs)]
        seeds = self._per_env(seed, "seed")
        question_ids = self._per_env(chosen.get("question_ids"), "question_ids")
        for question_id in question_ids:
            if question_id is not None:
                self.task.find(str(question_id))  # an unknown one is refused before anything changes
        observations, infos = [""] * self.num_envs, {}
        instructions = self.task.rules.protocol.instructions()
        for i in np.flatnonzero(mask):
            if seeds[i] is not None:
                self._rngs[i] = seeding.np_random(seeds[i])[0]
            question = draw_question(self.task, self._rngs[i], question_ids[i])
            state = self._states[i] = State(question)
            observations[i] = question.text
            infos[int(i)] = step_info(self.task, state) | {"instructions": instructions}
            self.stats.episodes += 1
        return tuple(observations), stack_infos(infos, self.num_envs)

    def _per_env(self, values: Any, name: str) -> list[Any]:
        """Returns one value per environment."""
        if values is None:
            return [None] * self.num_envs
        if len(values) != self.num_envs:
            raise UsageError(f"{name} must have {self.num_envs} entries, got {len(values)}")
        return list(values)

    def step(self, actions: Iterable[str]) -> StepResult:
        """Takes one turn in every environment.

        Args:
            actions: One string per environment.

        Returns:
            Observations (num_envs strings), rewards (num_envs,) float64, terminations and truncations (num_envs,)
            bool, infos (Gymnasium's vector form: an array per key and its ``_key`` mask).

        Raises:
            EpisodeError: An environment has not been reset, or its episode has ended.
        """
        return self.step_subset(range(self.num_envs), actions)

    def step_subset(self, indices: Iterable[int], actions: Iterable[str]) -> StepResult:
        """Takes one turn in some environments; the others keep their state and show empty, zero and False."""
        chosen, texts = list(indices), list(actions)
        if len(chosen) != len(texts) or len(set(chosen)) != len(chosen):
            raise UsageError(f"{len(texts)} actions for {len(chosen)} environments (each at most once)")
        begun = [
            begin(self._ready(i), read_action(self.task, a), self.task.rules)
            for i, a in zip(chosen, texts, strict=True)
        ]
        stepped = self._finish_all(begun)

        observations = [""] * self.num_envs
        rewards = np.zeros(self.num_envs)
        terminations, truncations = np.zeros((2, self.num_envs), np.bool_)
        infos: dict[int, dict[str, Any]] = {}
        for i, (state, observation) in zip(chosen, stepped, strict=True):
            info = step_info(self.task, state)
            if state.done:
                rewards[i], scores = self.task.score(state)
                info |= end_info(state, scores)
            truncations[i] = state.stop_reason == "retriever_error"
            terminations[i] = state.done and not truncations[i]
            observations[i] = observation
            infos[i] = info
        for i, (state, _) in zip(chosen, stepped, strict=True):
            self._states[i] = state
        self.stats.steps += len(chosen)
        return tuple(observations), rewards, terminations, truncations, stack_infos(infos, self.num_envs)

    def _ready(self, i: int) -> State:
        """Returns a state that can be stepped."""
        if not 0 <= i < self.num_envs:
            raise UsageError(f"environment {i} does not exist: there are {self.num_envs}")
        state = self._states[i]
        if state is None or state.done:
            why = "has not been reset" if state is None else f"has ended ({state.stop_reason})"
            raise EpisodeError(f"environment {i} {why}: reset it with options={{'reset_mask': ...}} or use step_subset")
        return state

    def _finish_all(self, begun: Sequence[tuple[State, tuple[str, ...]]]) -> list[tuple[State, str]]:
        """Retrieves for all states in one call and completes their actions."""
        rules = self.task.rules
        queries = [query for _, own in begun for query in own]
        ids = [state.question.id for state, own in begun for _ in own]
        hits, start = [], time.perf_counter()
        if queries:
            try:
                hits = retrieve(self.task.retriever, ids, queries, rules.top_k, rules.deadline)
            except RetrieverError as error:
                failed = sum(bool(own) for _, own in begun)
                self.stats.retriever_errors += failed
                return [(fail(s, str(error)), "") if own else finish(s, [], rules) for s, own in begun]
            finally:
                self.stats.retriever_calls += 1
                self.stats.queries += len(queries)
                self.stats.retriever_seconds += time.perf_counter() - start
        stepped, at = [], 0
        for state, own in begun:
            stepped.append(finish(state, hits[at : at + len(own)], rules))
            at += len(own)
        return stepped


def stack_infos(infos: Mapping[int, Mapping[str, Any]], num_envs: int) -> dict[str, Any]:
    """Returns infos in Gymnasium's vector form, column by column (its own ``_add_info`` does it value by value).

    Args:
        infos: Environment number to its info; environments without one are masked out.
        num_envs: Length of the arrays.

    Returns:
        Per key an array (num_envs,), of numbers where the first value is one, else of objects, and ``_key``, its mask.
    """
    stacked: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos.values() for key in info):
        rows = [(i, info[key]) for i, info in infos.items() if key in info]
        kind = type(rows[0][1])
        mask = np.zeros(num_envs, np.bool_)
        mask[[i for i, _ in rows]] = True
        array = np.zeros(num_envs, kind) if kind in (int, float, bool) else np.full(num_envs, None, object)
        for i, value in rows:
            array[i] = value
        stacked[key], stacked[f"_{key}"] = array, mask
    return stacked
