"""`SearchEnv`: one episode at a time, a plain ``gymnasium.Env``."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import gymnasium

from searchgym.envs.cards import EnvCard
from searchgym.envs.core import State, begin, fail, finish
from searchgym.envs.options import TaskOptions
from searchgym.envs.reward import score_episode
from searchgym.envs.spaces import UnicodeText
from searchgym.envs.task import Task, load_task
from searchgym.errors import EpisodeError, RetrieverError, UnknownNameError, UsageError
from searchgym.options import read
from searchgym.options.cards import find_card, load_card
from searchgym.protocol import MAX_ACTION_CHARS, MAX_RESULT_CHARS
from searchgym.records import Action, Answer, Invalid, More, Open, Question, Search
from searchgym.retrieval.retriever import retrieve

Begun = tuple[State, tuple[str, ...]]
"""State of an episode in the middle of an action, and the queries to retrieve for it; see `begin`."""
MAX_OBSERVATION_CHARS = MAX_RESULT_CHARS + 2**10
"""Upper bound of an observation's length, in characters: retrieved text and the tags or notice around it."""


@dataclass(slots=True)
class Stats:
    """Counters and times of an environment since it was made; kept out of `info`, which is deterministic."""

    episodes: int = 0
    """Number of episodes started."""
    steps: int = 0
    """Number of actions taken."""
    retriever_calls: int = 0
    """Number of calls to the retriever; one call may carry many queries."""
    queries: int = 0
    """Number of queries sent."""
    retriever_errors: int = 0
    """Number of episodes that a failed retrieval ended."""
    retriever_seconds: float = 0.0
    """Wall-clock seconds spent in the retriever."""


@dataclass(slots=True)
class Snapshot:
    """Saved episode of a `SearchEnv`, to branch several continuations from one point."""

    state: State
    """State of the episode."""
    transcript: list[str] = field(default_factory=list)
    """Transcript so far, as a list of texts, for `SearchEnv.render`."""
    rng_state: Any = None
    """State of the environment's NumPy bit generator."""


def spaces_for(task: Task) -> tuple[UnicodeText, UnicodeText]:
    """Returns the observation space and the action space of a task."""
    protocol = task.rules.protocol
    samples: tuple[str, ...] = (protocol.write(Search(("{}",))), protocol.write(Answer("{}")), "{}")
    samples += tuple(protocol.write(Search(("{}",), source)) for source in protocol.sources)
    samples += (protocol.write(Open("{}")), protocol.write(More())) if protocol.browse else ()
    return UnicodeText(MAX_OBSERVATION_CHARS), UnicodeText(MAX_ACTION_CHARS, samples)


def read_action(task: Task, action: object) -> Action:
    """Parses the action that a user passed to `step`.

    Raises:
        UsageError: The action is not a string.
    """
    if not isinstance(action, str):
        raise UsageError(f"an action is a string such as '<search>query</search>', got {type(action).__name__}")
    return task.rules.protocol.parse(action)


def step_info(task: Task, state: State) -> dict[str, Any]:
    """Returns the Gymnasium info of a state; deterministic, hence without times or random ids."""
    kinds: dict[type, str] = {Search: "search", Answer: "answer", Invalid: "invalid", Open: "open", More: "more"}
    info: dict[str, Any] = {
        "question_id": state.question.id,
        "turn": state.turn,
        "turns_left": task.rules.max_turns - state.turn,
        "searches": len(state.searches),
        "action": "" if state.action is None else kinds[type(state.action)],
        "hits": [
            {"id": hit.passage.id, "title": hit.passage.title, "score": hit.score}
            for s in state.searches
            if s.turn == state.turn
            for hit in s.hits
        ],
        "stop_reason": state.stop_reason or "",
    }
    return info if task.rules.pages is None else info | {"opens": len(state.opens)}


def first_info(task: Task, state: State) -> dict[str, Any]:
    """Returns the info of a state before the first action, with the action grammar in words."""
    return step_info(task, state) | {"instructions": task.rules.protocol.instructions()}


def outcome(task: Task, state: State) -> tuple[float, bool, bool, dict[str, Any], dict[str, float]]:
    """Returns what a turn gives: reward, whether the episode terminated, whether it was truncated, info and scores.

    Raises:
        RewardError: The reward function raised, or returned something other than a finite number.
    """
    info, reward, scores = step_info(task, state), 0.0, dict[str, float]()
    if state.done:
        reward, scores = score_episode(task.reward, state)
        info |= {**scores, "answer": state.answer_text}
        info |= {} if state.error is None else {"error": state.error}
    failed = state.stop_reason == "retriever_error"
    return reward, state.done and not failed, failed, info, scores


def draw_question(task: Task, rng: Any, question_id: object) -> Question:
    """Returns the question with the given id, or one drawn with the environment's generator if the id is None."""
    if question_id is not None:
        return task.find(str(question_id))
    return task.questions[int(rng.integers(len(task.questions)))]


def finish_all(task: Task, begun: Sequence[Begun], stats: Stats) -> list[tuple[State, str]]:
    """Completes the actions that `begin` took, with one call to each retriever that is asked.

    A retrieval that fails past its deadline ends every episode that asked it.

    Args:
        task: Task of the episodes.
        begun: State and queries of each episode, as `begin` returned them.
        stats: Counters, which are updated.

    Returns:
        The new state and the observation of each episode.
    """
    rules = task.rules
    stepped = {i: finish(state, [], rules) for i, (state, queries) in enumerate(begun) if not queries}
    for source in dict.fromkeys(state.source for state, queries in begun if queries):
        asking = {i: pair for i, pair in enumerate(begun) if pair[1] and pair[0].source == source}
        all_queries = [query for _, queries in asking.values() for query in queries]
        ids = [state.question.id for state, queries in asking.values() for _ in queries]
        start = time.perf_counter()
        try:
            hits = iter(retrieve(task.source(source), ids, all_queries, rules.top_k, rules.deadline))
        except RetrieverError as error:
            stats.retriever_errors += len(asking)
            stepped |= {i: (fail(state, str(error)), "") for i, (state, _) in asking.items()}
        else:
            for i, (state, queries) in asking.items():
                stepped[i] = finish(state, [next(hits) for _ in queries], rules)
        finally:
            stats.retriever_calls += 1
            stats.queries += len(all_queries)
            stats.retriever_seconds += time.perf_counter() - start
    return [stepped[i] for i in range(len(begun))]


class SearchEnv(gymnasium.Env[str, str]):
    """A multi-turn question-answering environment over a retriever.

    ## Description
    `reset` shows a question. Each `step` takes the text of one turn, parses its first complete action, and shows the
    retrieved passages. The episode ends with an answer.

    ## Action space
    `UnicodeText`: any string. With the ``tags`` protocol ``<search>query</search>`` searches and
    ``<answer>text</answer>`` answers; ``info["instructions"]`` of `reset` has the grammar in words. Text that holds no
    complete action costs a turn and is answered by a notice; no string raises.

    ## Observation space
    `UnicodeText`: the question; then ``Doc i(Title: ...) text`` for up to `top_k` hits, cut to
    `max_observation_words` words; empty once the episode has ended. Where pages can be opened (`browse`), a search
    shows `snippet_words` words of each hit, and an opened page comes in parts of `max_observation_words` words.

    ## Reward
    0 until the end, then the reward function of the final state: by default exact match, in {0, 1}.

    ## Episode end
    `terminated` on an answer and when the turn budget is spent (it is part of the task). `truncated` when the
    retriever failed past its deadline: reward 0, ``info["stop_reason"] == "retriever_error"``.

    ## Info
    ``question_id, turn, turns_left, searches, action, hits, stop_reason`` on every step; ``em, f1, answer`` on the
    last; ``opens`` where pages can be opened. Deterministic: times and counters are in `stats`.

    ## Reset options
    ``{"question_id": ...}`` chooses the question; otherwise the environment's generator draws one.

    ## Version history
    * v0: first version.

    Args:
        card: An `EnvCard`, its fields as a mapping (as an `EnvSpec` in JSON holds them), a finished `Task`, the name of
            a shipped card, or a path to one.
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
        self.task = resolve(card, options)
        self.render_mode = render_mode
        self.observation_space, self.action_space = spaces_for(self.task)
        self.stats = Stats()
        self._state: State | None = None
        self._transcript: list[str] = []

    @property
    def state(self) -> State:
        """State of the current episode.

        Raises:
            EpisodeError: Before the first reset.
        """
        if self._state is None:
            raise EpisodeError("reset the environment before the first step")
        return self._state

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode; the class docstring lists the options.

        Raises:
            UnknownNameError: An unknown option or question id.
        """
        super().reset(seed=seed)
        chosen = reset_options(options, ("question_id",))
        question = draw_question(self.task, self.np_random, chosen.get("question_id"))
        self._state = State(question)
        self._transcript = [f"Question: {question.text}"]
        self.stats.episodes += 1
        return question.text, first_info(self.task, self._state)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Takes one turn; the class docstring describes actions, observations and rewards.

        Raises:
            EpisodeError: Before a reset or after the end.
            UsageError: The action is not a string.
            RewardError: The reward function raised, or returned something other than a finite number.
        """
        rules = self.task.rules
        begun = begin(self.state, read_action(self.task, action), rules)
        ((state, observation),) = finish_all(self.task, [begun], self.stats)
        reward, terminated, truncated, info, scores = outcome(self.task, state)
        shown = observation
        if state.done:
            figures = {"reward": reward} | scores
            shown = f"[{state.stop_reason}: {', '.join(f'{name} {value:g}' for name, value in figures.items())}]"
        self._state = state
        self.stats.steps += 1
        self._transcript += [rules.protocol.history(action), shown]
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
        """Restores a snapshot, which can be restored any number of times."""
        self._state = snapshot.state
        self._transcript = list(snapshot.transcript)
        self.np_random.bit_generator.state = copy.deepcopy(snapshot.rng_state)


def resolve(card: EnvCard | Task | Mapping[str, Any] | str, options: TaskOptions) -> Task:
    """Returns the task for a card in any of the forms that `SearchEnv` accepts.

    Raises:
        UsageError: Options were given with a finished task.
    """
    if isinstance(card, Task):
        if options:
            raise UsageError(f"a Task is complete: leave out {', '.join(options)}")
        return card
    if isinstance(card, str):
        card = load_card(EnvCard, find_card("envs", card))
    if not isinstance(card, EnvCard):
        card = read(EnvCard, card, "card")
    return load_task(card, **options)


def reset_options(options: dict[str, Any] | None, known: tuple[str, ...]) -> dict[str, Any]:
    """Checks the option names given to `reset` and returns the options, an empty dict for None.

    Raises:
        UnknownNameError: An option that does not exist.
    """
    for name in options or {}:
        if name not in known:
            raise UnknownNameError("reset option", str(name), known)
    return options or {}
