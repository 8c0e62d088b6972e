"""Conformance suite for environments: `EnvironmentTests` checks what agents and trainers expect of them."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Sequence
from typing import Any, Final

import gymnasium
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import PassiveEnvChecker

from searchgym.errors import EpisodeError, UnknownNameError, UsageError
from searchgym.options.cards import ProtocolName
from searchgym.protocol import get_protocol
from searchgym.records import Answer, Search
from searchgym.retrieval.retriever import Retriever
from searchgym.testing.fakes import HOSTILE_ACTIONS, Broken, Trap

INFO: Final = ("question_id", "turn", "turns_left", "searches", "action", "hits", "stop_reason")
"""Keys that every info must have."""
Reply = tuple[str, float, bool, bool, dict[str, Any]]


class EnvironmentTests:
    """Checks of the contract of `searchgym.envs.single.SearchEnv`, for any environment that replaces it.

    A subclass defines `make_env`. Its episodes must allow at least three turns and have a reward at their end only.
    """

    protocol: ProtocolName = "tags"
    """Name of the action grammar that the environment parses."""
    env_seed: int = 0
    """Seed of the first reset."""
    hostile: Sequence[str] = HOSTILE_ACTIONS
    """Hostile actions; each must get a notice or end the episode, and must get the same reply when repeated."""

    def make_env(self, retriever: Retriever | None = None) -> gymnasium.Env[str, str]:
        """Returns a new environment.

        Args:
            retriever: Retriever to search with. Default: the environment's retriever.
        """
        raise NotImplementedError(f"{type(self).__name__} must define make_env(self, retriever=None)")

    def make_vector(self, number: int) -> gymnasium.vector.VectorEnv[Any, Any, Any] | None:
        """Returns a vector environment of the given size, or None if the environment has no vector form."""
        return None

    # -- acting ----------------------------------------------------------------------------------------------------

    def search(self, query: str) -> str:
        """Returns a search action as text."""
        return get_protocol(self.protocol).write(Search((query,)))

    def answer(self, text: str) -> str:
        """Returns an answer action as text."""
        return get_protocol(self.protocol).write(Answer(text))

    def step(self, env: gymnasium.Env[str, str], action: str) -> Reply:
        """Runs one step of the environment and checks the types of everything that it returns."""
        label = f"step({action!r:.60})"
        try:
            reply = env.step(action)
        except Exception as error:
            raise AssertionError(f"{label}: no text may raise, got {type(error).__name__}: {error}") from error
        observation, reward, terminated, truncated, info = reply
        assert observation in env.observation_space, f"{label}: observation outside of the space, {observation!r:.80}"
        assert type(reward) is float and math.isfinite(reward), f"{label}: a reward is a finite float, got {reward!r}"
        assert type(terminated) is bool and type(truncated) is bool, f"{label}: terminated and truncated are bools"
        assert not (terminated and truncated), f"{label}: an episode is terminated or truncated, not both"
        self.check_info(info)
        over = terminated or truncated
        assert over == bool(info["stop_reason"]), (
            f"{label}: stop_reason is set at the end and only there, {info!r:.200}"
        )
        assert over or reward == 0.0, f"{label}: the reward is 0 before the end, got {reward}"
        assert not over or {"em", "f1", "answer"} <= info.keys(), f"{label}: the last info lacks em, f1 or answer"
        return observation, float(reward), terminated, truncated, info

    def check_info(self, info: dict[str, Any]) -> None:
        """Checks that an info has every required key and holds plain data only."""
        missing = [name for name in INFO if name not in info]
        assert not missing, f"info lacks {', '.join(missing)}: it has {sorted(info)}"
        try:
            json.dumps(info)
        except TypeError as error:
            raise AssertionError(f"info must be plain data: {error}") from error

    def start(
        self, env: gymnasium.Env[str, str], seed: int | None = None, **options: Any
    ) -> tuple[str, dict[str, Any]]:
        """Resets the environment and returns (question, info)."""
        question, info = env.reset(seed=self.env_seed if seed is None else seed, options=options or None)
        assert question and question in env.observation_space, f"reset shows the question, got {question!r:.80}"
        self.check_info(info)
        return question, info

    def play(self, env: gymnasium.Env[str, str], actions: Sequence[str]) -> list[Any]:
        """Runs some actions and returns all results of the environment, which is reset after each end."""
        replies: list[Any] = [self.start(env)]
        for action in actions:
            reply = self.step(env, action)
            replies.append(copy.deepcopy(reply))
            if reply[2] or reply[3]:
                replies.append(copy.deepcopy(env.reset()))
        return replies

    # -- Gymnasium -------------------------------------------------------------------------------------------------

    def test_the_checkers_of_gymnasium_pass(self) -> None:
        """Checks that Gymnasium's `check_env` and its passive checker accept the environment."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about spaces that Gymnasium does not know
            check_env(self.make_env().unwrapped)
            env: gymnasium.Env[str, str] = PassiveEnvChecker(self.make_env())
            question, _ = env.reset(seed=self.env_seed)
            env.step(self.search(question))
            env.step(self.answer(""))
            env.close()
            env.close()

    def test_actions_and_observations_are_any_text(self) -> None:
        """Checks that the spaces hold Unicode text, including lone surrogates and line ends."""
        env = self.make_env()
        for name, space in (("action", env.action_space), ("observation", env.observation_space)):
            for text in ("", "é漢\x00\n<", "\ud800"):
                assert text in space, f"the {name} space must hold {text!r}; use searchgym.envs.spaces.UnicodeText"

    # -- resets ----------------------------------------------------------------------------------------------------

    def test_the_same_seed_gives_the_same_episodes(self) -> None:
        """Checks that equal seeds give equal results, infos included: nothing may depend on time."""
        actions = [self.search("a"), "no action", self.answer("x"), self.search("b"), self.answer("y")] * 4
        one, two = (self.play(self.make_env(), actions) for _ in range(2))
        for number, (reply, other) in enumerate(zip(one, two, strict=True)):
            assert reply == other, f"reply {number} differs under one seed: {reply!r:.300} and {other!r:.300}"

    def test_a_reset_takes_a_question_id(self) -> None:
        """Checks that `options={"question_id": ...}` selects the question and an unknown id or option is an error."""
        env, text_of = self.make_env(), dict[str, str]()
        for seed in range(8):
            question, info = self.start(env, seed)
            text_of[info["question_id"]] = question
        for question_id, text in text_of.items():
            question, info = self.start(env, question_id=question_id)
            assert (question, info["question_id"]) == (text, question_id), (
                f"question_id {question_id!r} must show {text!r:.80}, got {info['question_id']!r}: {question!r:.80}"
            )
        for options in ({"question_id": "no such question"}, {"no_such_option": 1}):
            try:
                env.reset(options=options)
            except UnknownNameError:
                continue
            raise AssertionError(f"reset(options={options}) must raise UnknownNameError")

    # -- turns -----------------------------------------------------------------------------------------------------

    def test_an_answer_ends_the_episode(self) -> None:
        """Checks that an answer terminates the episode with an empty observation, and that only a reset may follow."""
        env = self.make_env()
        self.start(env)
        observation, _, terminated, _, info = self.step(env, self.answer("some answer"))
        seen = (observation, terminated, info["stop_reason"], info["action"], info["answer"])
        expected = ("", True, "answer", "answer", "some answer")
        assert seen == expected, (
            f"observation, terminated, stop_reason, action, answer: expected {expected}, got {seen}"
        )
        self.refuses_a_step(env)

    def refuses_a_step(self, env: gymnasium.Env[str, str]) -> None:
        """Checks that a step after the end raises an error, and that a reset starts a new episode."""
        try:
            env.step(self.answer("again"))
        except EpisodeError:
            self.start(env)
            assert self.step(env, self.answer(""))[2], "after a reset an answer must end the episode again"
        else:
            raise AssertionError("a step after the end must raise EpisodeError")

    def test_a_step_needs_a_reset_and_a_text(self) -> None:
        """Checks that a step before a reset raises `EpisodeError`, and an action that is no string `UsageError`."""
        env = self.make_env().unwrapped
        wrong: Any = 3
        for action, error in ((self.answer("x"), EpisodeError), (wrong, UsageError)):
            try:
                env.step(action)
            except error:
                self.start(env)
                continue
            raise AssertionError(f"step({action!r}) must raise {error.__name__}")

    def test_the_turn_budget_ends_the_episode(self) -> None:
        """Checks that every action uses up a turn, even an unreadable one, and that the last turn ends the episode."""
        for action in ("no action at all", self.search("a")):
            env = self.make_env()
            _, info = self.start(env)
            budget, turn, terminated = info["turns_left"], 0, False
            assert type(budget) is int and budget > 0, f"turns_left is a positive int after a reset, got {budget!r}"
            while not terminated and turn <= budget:
                _, _, terminated, _, info = self.step(env, action)
                turn += 1
                seen = (info["turn"], info["turns_left"])
                assert seen == (turn, budget - turn), (
                    f"turn and turns_left: expected {(turn, budget - turn)}, got {seen}"
                )
            assert (terminated, turn) == (True, budget), f"not ended after {turn} turns; the budget is {budget}"
            assert info["stop_reason"] == "turns", f"stop_reason must be 'turns', got {info['stop_reason']!r}"

    def test_hostile_actions_get_deterministic_replies(self) -> None:
        """Checks that broken tags, lone surrogates and megabytes of text get the same reply twice, and no error."""
        one, two = (self.play(self.make_env(), self.hostile) for _ in range(2))
        assert one == two, "hostile actions got other replies the second time"

    # -- retrieval -------------------------------------------------------------------------------------------------

    def test_a_retrieved_text_is_never_an_action(self) -> None:
        """Checks that actions written in a retrieved page neither answer nor search, in this turn or the next."""
        env = self.make_env(Trap())
        self.start(env)
        observation, _, terminated, truncated, info = self.step(env, self.search("a"))
        assert "trapped" in observation, f"make_env(retriever) must search with that retriever, got {observation!r:.80}"
        seen = (terminated, truncated, info["searches"], info["action"])
        assert seen == (False, False, 1, "search"), f"a page was read as an action: {info!r:.300}"
        _, reward, terminated, _, info = self.step(env, "so the page says")
        later = (terminated, reward, info["searches"], info["action"])
        assert later == (False, 0.0, 1, "invalid"), f"a page was read as an action one turn later: {info!r:.300}"

    def test_a_retriever_that_fails_truncates_the_episode(self) -> None:
        """Checks that an error of the retriever ends the episode with reward 0, and that the next reset works."""
        env = self.make_env(Broken())
        self.start(env)
        observation, reward, _, truncated, info = self.step(env, self.search("a"))
        seen = (observation, reward, truncated, info["stop_reason"])
        expected = ("", 0.0, True, "retriever_error")
        assert seen == expected, f"observation, reward, truncated, stop_reason: expected {expected}, got {seen!r:.300}"
        assert "broken on purpose" in info.get("error", ""), "info['error'] must contain the retriever's message"
        self.refuses_a_step(env)

    # -- copies ----------------------------------------------------------------------------------------------------

    def test_snapshots_go_back_any_number_of_times(self) -> None:
        """Checks that `set_state` restores the episode and its random generator, if the environment has `get_state`."""
        env = self.make_env()
        inner: Any = env.unwrapped
        if not hasattr(inner, "get_state"):
            return
        self.start(env)
        self.step(env, self.search("a"))
        snapshot = inner.get_state()
        seen = []
        for _ in range(3):
            inner.set_state(snapshot)
            reply = copy.deepcopy(self.step(env, self.search("b")))
            seen.append((reply, [env.reset()[0] for _ in range(5)]))
        assert seen[0] == seen[1] == seen[2], f"after set_state the episode continues differently: {seen!r:.300}"

    def test_a_vector_gives_the_episodes_of_single_environments(self) -> None:
        """Checks that environment i of a vector reset with seed s equals a single environment with seed s + i."""
        number, seed = 3, self.env_seed
        vector = self.make_vector(number)
        if vector is None:
            return
        singles = [self.make_env() for _ in range(number)]
        questions, infos = vector.reset(seed=seed)
        starts = [self.start(env, seed + i) for i, env in enumerate(singles)]
        for i, (question, info) in enumerate(starts):
            assert questions[i] == question, (
                f"environment {i} of the vector shows {questions[i]!r:.80}: {question!r:.80}"
            )
            self.same_info(infos, i, info)
        for action in (self.search("a"), "no action", self.answer("x")):
            got = vector.step([action] * number)
            for i, env in enumerate(singles):
                single = self.step(env, action)
                seen = tuple(column[i] for column in got[:4])
                assert seen == single[:4], f"environment {i} of the vector: got {seen!r:.300}, alone {single!r:.300}"
                self.same_info(got[4], i, single[4])

    def same_info(self, infos: dict[str, Any], i: int, info: dict[str, Any]) -> None:
        """Checks that a vector's info has, for environment i, the entries of a single environment's info."""
        got = {name: values[i] for name, values in infos.items() if not name.startswith("_") and infos[f"_{name}"][i]}
        assert got == info, f"environment {i} of the vector: its info is {got!r:.300}, alone {info!r:.300}"
