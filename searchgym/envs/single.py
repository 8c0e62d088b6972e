"""`SearchEnv`: one episode at a time, a plain ``gymnasium.Env``."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

import gymnasium

from searchgym.cards import EnvCard, build, find_card, load_card
from searchgym.corpora.retrieval.retriever import retrieve
from searchgym.envs.core import State, begin, fail, finish
from searchgym.envs.spaces import UnicodeText
from searchgym.envs.task import Task, TaskOptions, load_task
from searchgym.errors import EpisodeError, RetrieverError, UnknownNameError, UsageError
from searchgym.protocol import MAX_ACTION_CHARS, MAX_RESULT_CHARS
from searchgym.records import Action, Answer, Hit, Invalid, Question, Search

MAX_OBSERVATION_CHARS = MAX_RESULT_CHARS + 2**10
"""Upper bound of an observation's length, in characters: retrieved text and what stands around it."""


@dataclass(slots=True)
class Stats:
    """Counters and times of an environment since it was made; kept out of `info`, which is deterministic."""

    episodes: int = 0
    steps: int = 0
    retriever_calls: int = 0
    queries: int = 0
    retriever_errors: int = 0
    retriever_seconds: float = 0.0


@dataclass(slots=True)
class Snapshot:
    """A copy of an environment's episode, for prefixes and trees."""

    state: State
    transcript: list[str] = field(default_factory=list)
    rng_state: Any = None


def spaces_for(task: Task) -> tuple[UnicodeText, UnicodeText]:
    """Returns (observation space, action space) of a task."""
    protocol = task.rules.protocol
    samples = (protocol.write(Search(("{}",))), protocol.write(Answer("{}")), "{}")
    return UnicodeText(MAX_OBSERVATION_CHARS), UnicodeText(MAX_ACTION_CHARS, samples)


def read_action(task: Task, action: object) -> Action:
    """Reads what a user passed to `step`.

    Raises:
        UsageError: Not a string.
    """
    if not isinstance(action, str):
        raise UsageError(f"an action is a string such as '<search>query</search>', got {type(action).__name__}")
    return task.rules.protocol.parse(action)


def step_info(task: Task, state: State) -> dict[str, Any]:
    """Returns the deterministic info of a state: no times, no uuids."""
    kinds: dict[type, str] = {Search: "search", Answer: "answer", Invalid: "invalid"}
    info: dict[str, Any] = {
        "question_id": state.question.id,
        "turn": state.turn,
        "turns_left": task.rules.max_turns - state.turn,
        "searches": len(state.searches),
        "action": "" if state.action is None else kinds[type(state.action)],
        "hits": [hit_info(hit) for s in state.searches if s.turn == state.turn for hit in s.hits],
        "stop_reason": state.stop_reason or "",
    }
    return info


def hit_info(hit: Hit) -> dict[str, Any]:
    """Returns a hit without its text, which the observation shows."""
    return {"id": hit.passage.id, "title": hit.passage.title, "score": hit.score}


def end_info(state: State, scores: dict[str, float]) -> dict[str, Any]:
    """Returns what is added to the info of an episode's last step."""
    info: dict[str, Any] = {**scores, "answer": state.answer_text}
    return info | ({"error": state.error} if state.error is not None else {})


def draw_question(task: Task, rng: Any, question_id: object) -> Question:
    """Returns the asked question, or one drawn by the environment's own generator."""
    if question_id is not None:
        return task.find(str(question_id))
    return task.questions[int(rng.integers(len(task.questions)))]


class SearchEnv(gymnasium.Env[str, str]):
    """A multi-turn question-answering environment over a retriever.

    ## Description
    `reset` shows a question. Each `step` takes the text of one turn, reads its first complete action, and shows what
    was found. The episode ends with an answer.

    ## Action space
    `UnicodeText`: any string. With the ``tags`` protocol ``<search>query</search>`` searches and
    ``<answer>text</answer>`` answers; ``info["instructions"]`` of `reset` has the grammar in words. Text that holds no
    complete action costs a turn and is answered by a notice; no string raises.

    ## Observation space
    `UnicodeText`: the question; then ``Doc i(Title: ...) text`` for up to `top_k` hits, cut at
    `max_observation_words` words; empty once the episode has ended.

    ## Reward
    0 until the end, then the reward function of the final state: by default exact match, in {0, 1}.

    ## Episode end
    `terminated` on an answer and when the turn budget is spent (it is part of the task). `truncated` when the
    retriever failed past its deadline: reward 0, ``info["stop_reason"] == "retriever_error"``.

    ## Info
    ``question_id, turn, turns_left, searches, action, hits, stop_reason`` on every step; ``em, f1, answer`` on the
    last. Deterministic: times and counters are in `stats`.

    ## Reset options
    ``{"question_id": ...}`` chooses the question; otherwise the environment's own generator draws one.

    ## Version history
    * v0: first version.

    Args:
        card: An `EnvCard` (as plain data too: what an `EnvSpec` in JSON holds), the name of a shipped one, or a path.
        render_mode: None or ``"ansi"`` (the transcript as text).
        **options: See `TaskOptions`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (Gymnasium declares it as an instance's)

    def __init__(
        self,
        card: EnvCard | Task | Mapping[str, Any] | str,
        *,
        render_mode: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise UsageError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        self.task = resolve(card, options)
        self.render_mode = render_mode
        self.observation_space, self.action_space = spaces_for(self.task)
        self.stats = Stats()
        self._state: State | None = None
        self._transcript: list[str] = []

    @property
    def state(self) -> State:
        """The episode's state.

        Raises:
            EpisodeError: Before the first reset.
        """
        if self._state is None:
            raise EpisodeError("reset the environment before the first step")
        return self._state

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode; see the class for options.

        Raises:
            UnknownNameError: An unknown option or question id.
        """
        super().reset(seed=seed)
        chosen = reset_options(options, ("question_id",))
        question = draw_question(self.task, self.np_random, chosen.get("question_id"))
        self._state = State(question)
        self._transcript = [f"Question: {question.text}"]
        self.stats.episodes += 1
        info = step_info(self.task, self._state)
        return question.text, info | {"instructions": self.task.rules.protocol.instructions()}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes one turn; see the class.

        Raises:
            EpisodeError: Before a reset or after the end.
            UsageError: The action is not a string.
            RewardError: The reward function raised or returned no finite number.
        """
        rules = self.task.rules
        state, queries = begin(self.state, read_action(self.task, action), rules)
        observation = ""
        try:
            hits = self._retrieve(state, queries) if queries else []
        except RetrieverError as error:
            state = fail(state, str(error))
            self.stats.retriever_errors += 1
        else:
            state, observation = finish(state, hits, rules)
        info, reward = step_info(self.task, state), 0.0
        if state.done:
            reward, scores = self.task.score(state)
            info |= end_info(state, scores)
        self._state = state
        self.stats.steps += 1
        self._transcript += [rules.protocol.history(action), observation or f"[{state.stop_reason}]"]
        failed = state.stop_reason == "retriever_error"
        return observation, reward, state.done and not failed, failed, info

    def _retrieve(self, state: State, queries: tuple[str, ...]) -> list[list[Hit]]:
        """Retrieves for one state, timed."""
        rules, start = self.task.rules, time.perf_counter()
        try:
            ids = [state.question.id] * len(queries)
            return retrieve(self.task.retriever, ids, queries, rules.top_k, rules.deadline)
        finally:
            self.stats.retriever_calls += 1
            self.stats.queries += len(queries)
            self.stats.retriever_seconds += time.perf_counter() - start

    def render(self) -> str | None:
        """Returns the transcript so far, if `render_mode` is ``"ansi"``."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() was called on an environment made without render_mode='ansi'")
            return None
        return "\n".join(self._transcript)

    def get_state(self) -> Snapshot:
        """Returns a copy of the episode and the generator, to come back to with `set_state`."""
        return Snapshot(self.state, list(self._transcript), copy.deepcopy(self.np_random.bit_generator.state))

    def set_state(self, snapshot: Snapshot) -> None:
        """Goes back to a snapshot; it can be used any number of times."""
        self._state = snapshot.state
        self._transcript = list(snapshot.transcript)
        self.np_random.bit_generator.state = copy.deepcopy(snapshot.rng_state)


def resolve(card: EnvCard | Task | Mapping[str, Any] | str, options: TaskOptions) -> Task:
    """Returns the task behind what a user passed.

    Raises:
        UsageError: Options were given beside a finished task.
    """
    if isinstance(card, Task):
        if options:
            raise UsageError(f"a Task is complete: leave out {', '.join(options)}")
        return card
    if isinstance(card, str):
        card = load_card(EnvCard, find_card("envs", card))
    if not isinstance(card, EnvCard):
        card = build(EnvCard, card, "card")
    return load_task(card, **options)


def reset_options(options: dict[str, Any] | None, known: tuple[str, ...]) -> dict[str, Any]:
    """Returns reset options, refusing unknown ones.

    Raises:
        UnknownNameError: An option that does not exist.
    """
    for name in options or {}:
        if name not in known:
            raise UnknownNameError("reset option", str(name), known)
    return options or {}
