"""OpenEnv server: environments of this package behind OpenEnv's HTTP and WebSocket interface.

A file ``app.py`` for ``uvicorn app:app``::

    from searchgym.adapters.openenv_server import make_app
    app = make_app("World", {"reward": "f1"})
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from searchgym.adapters.episodes import AGENT, ended, prompts, shared_task
from searchgym.adapters.openenv_client import SearchAction, SearchObservation, SearchState
from searchgym.envs.single import SearchEnv
from searchgym.envs.task import Task
from searchgym.errors import UnknownNameError, UsageError
from searchgym.packages import check

check("openenv")
# pyright: reportMissingImports=false
from openenv.core.env_server.http_server import create_app  # noqa: E402 (after the check)
from openenv.core.env_server.interfaces import Environment  # noqa: E402

if TYPE_CHECKING:
    from fastapi import FastAPI

    from searchgym.records import Question


def make_app(env: str, options: Mapping[str, Any] | None = None, agent: str = AGENT, max_sessions: int = 64) -> FastAPI:
    """Returns the web application that serves an environment.

    Args:
        env: An id, a short name or a path to a card.
        options: Options of the environment, see `TaskOptions`.
        agent: Agent whose prompt asks the question.
        max_sessions: Maximum number of concurrent sessions, one episode each.

    Raises:
        SearchGymError: The environment cannot be loaded; raised before anything is served.
    """
    task = shared_task(env, options)
    ask = prompts(task, agent)
    app: FastAPI = create_app(
        lambda: ServedEnvironment(task, ask),
        SearchAction,
        SearchObservation,
        env_name="searchgym",
        max_concurrent_envs=max_sessions,
        state_cls=SearchState,
    )
    return app


class ServedEnvironment(Environment[SearchAction, SearchObservation, SearchState]):
    """Environment of one session, over a task that all sessions share.

    Args:
        task: The task.
        ask: Function from a question to the first prompt.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, task: Task, ask: Callable[[Question], str]) -> None:
        super().__init__()
        self._env, self._ask = SearchEnv(task), ask
        self._state = SearchState()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        question_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        **unknown: Any,
    ) -> SearchObservation:
        """Starts an episode; the observation's text is the prompt with the question.

        Args:
            seed: Seed of the random choice if no question is selected.
            episode_id: Name of the episode. Default: a random one.
            question_id: Id of the question.
            split: Split to which `index` refers; an environment has one split.
            index: 0-based number of the question.
            **unknown: Not accepted.

        Raises:
            UnknownNameError: An option, question or split does not exist.
            UsageError: Both `question_id` and `index` are given.
            IndexError: There is no question of that number.
        """
        for name in unknown:
            raise UnknownNameError("reset option", name, ("seed", "episode_id", "question_id", "split", "index"))
        if index is not None:
            if question_id is not None:
                raise UsageError("reset takes question_id or index, got both")
            question_id = self.get_task(split or self.list_splits()[0], index)["question_id"]
        _, info = self._env.reset(seed=seed, options=None if question_id is None else {"question_id": question_id})
        self._state = SearchState(
            episode_id=episode_id or uuid.uuid4().hex, step_count=0, question_id=info["question_id"]
        )
        return SearchObservation(text=self._ask(self._env.state.question), info=info)

    def step(self, action: SearchAction, timeout_s: float | None = None, **unknown: Any) -> SearchObservation:
        """Executes one turn.

        Args:
            action: Text of the model.
            timeout_s: Not used: the environment has a deadline for each search.
            **unknown: Not used.

        Raises:
            EpisodeError: The call was before a reset or after the end.
        """
        text, reward, terminated, truncated, info = self._env.step(action.text)
        self._state.step_count += 1
        done = terminated or truncated
        return SearchObservation(text=text, info=info | (ended(info, reward) if done else {}), done=done, reward=reward)

    @property
    def state(self) -> SearchState:
        """State of the episode."""
        return self._state

    # -- OpenEnv's task interface ----------------------------------------------------------------------------------

    def list_splits(self) -> list[str]:
        """Returns the single split, that of the environment's questions."""
        return [self._env.task.split]

    def num_tasks(self, split: str) -> int:
        """Returns the number of questions."""
        return len(self._questions(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """Returns the id and the text of a question, without its answers.

        Raises:
            IndexError: There is no question of that number.
        """
        questions = self._questions(split)
        if not 0 <= index < len(questions):
            raise IndexError(f"index {index}: the questions have numbers from 0 to {len(questions) - 1}")
        return {"question_id": questions[index].id, "question": questions[index].text, "index": index}

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """Returns the first questions, at most 1,000."""
        return self.get_task_range(split, 0, 1000)

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """Returns the questions in a slice."""
        return [self.get_task(split, index) for index in range(*slice(start, stop).indices(self.num_tasks(split)))]

    def _questions(self, split: str) -> tuple[Question, ...]:
        if split not in (splits := self.list_splits()):
            raise UnknownNameError("split", split, splits)
        return self._env.task.questions
