"""Adapter to verifiers v1: environments of this package as a taskset, agents as a harness in verifiers' process.

verifiers finds both by the name of an installed package whose ``__all__`` exports them (``docs/do/adapters.md`` has
that package, in two files). The harness sends every model call to verifiers' endpoint, which records the tokens; rules,
searches and rewards are this package's. An episode whose retriever failed is reported as an error and excluded from
training.
"""

from __future__ import annotations

from typing import Any, Final

from searchgym.adapters.episodes import AGENT, answered, numbers, of_episode, shared_engine, shared_task
from searchgym.adapters.hosts import chat_model
from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.packages import check
from searchgym.rollout.api.replies import ServerReply, read_choice
from searchgym.rollout.sampler import Sampling

check("verifiers")
# pyright: reportMissingImports=false
import verifiers.v1 as vf  # noqa: E402 (after the check, which names the version that works)
from openai import AsyncOpenAI  # noqa: E402
from verifiers.v1.runtimes import ProgramResult, Runtime  # noqa: E402

TOLD: Final = "searchgym"
"""Key of a trace's ``info`` under which the harness saves the episode's summary."""


class SearchGymTasksetConfig(vf.TasksetConfig):
    """Options of the taskset, under ``--env.taskset``."""

    env: str = "Demo"
    """Environment: an id, a short name or a path to a card."""
    options: dict[str, Any] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Options of the environment, see `TaskOptions`."""


class SearchGymHarnessConfig(vf.HarnessConfig):
    """Options of the harness, under ``--env.agent.harness``."""

    agent: str = AGENT
    """Agent of this package."""
    max_tokens: int | None = None
    """Maximum length of a response in tokens. Default: the number in the agent's card."""


class SearchGymData(vf.TaskData):
    """One question. Its prompt is only the question; the harness puts it into the agent's prompt."""

    env: str
    options: dict[str, Any]
    question_id: str


class SearchGymTask(vf.Task[SearchGymData, vf.State, vf.TaskConfig]):
    """One question and its reward.

    After another harness, such as one with a search tool, the answer is read from the model's last text.
    """

    @property
    def key(self) -> str:
        """Stable key of the task: the question's id."""
        return str(self.data.question_id)

    @vf.reward(weight=1.0)
    async def outcome(self, trace: vf.Trace) -> float:
        """Returns the environment's reward."""
        return float(self._told(trace)["reward"])

    @vf.metric
    async def episode(self, trace: vf.Trace) -> dict[str, float]:
        """Returns scores, searches and turns."""
        return {name: value for name, value in numbers(self._told(trace)).items() if name != "reward"}

    def _told(self, trace: vf.Trace) -> dict[str, Any]:
        summary: dict[str, Any] | None = trace.info.get(TOLD)
        if summary is not None:
            return summary
        messages = [message.content for branch in trace.branches[-1:] for message in branch.messages]
        text = messages[-1] if messages and isinstance(messages[-1], str) else ""
        return answered(shared_task(self.data.env, self.data.options), self.data.question_id, text)


class SearchGymTaskset(vf.Taskset[SearchGymTask, SearchGymTasksetConfig]):
    """Taskset with the questions of an environment."""

    def load(self) -> list[SearchGymTask]:
        """Returns one task per question, in the environment's order."""
        config = self.config
        return [
            SearchGymTask(
                SearchGymData(
                    id=question.id,
                    prompt=question.text,
                    env=config.env,
                    options=config.options,
                    question_id=question.id,
                ),
                config.task,
            )
            for question in shared_task(config.env, config.options).questions
        ]


class SearchGymHarness(vf.Harness[SearchGymHarnessConfig]):
    """An agent of this package."""

    APPENDS_SYSTEM_PROMPT, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> ProgramResult:
        """Runs one episode; verifiers calls it."""
        question: SearchGymData = trace.task.data
        agent = with_max_tokens(load_agent(self.config.agent), self.config.max_tokens)
        task = shared_task(question.env, question.options)
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:

            async def chat(messages: list[dict[str, str]], sampling: Sampling) -> ServerReply:
                system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
                request: Any = {"messages": [*system, *messages], "max_tokens": sampling.max_tokens}
                if sampling.stop:
                    request["stop"] = list(sampling.stop)
                reply = await client.chat.completions.create(model=ctx.model, **request)
                return read_choice(reply.choices[0].model_dump(exclude_unset=True), sampling.stop, task.rules.protocol)

            models = {role: chat_model(role, chat, task.rules.protocol) for role in agent.roles}
            engine = shared_engine(question.env, question.options, agent, models)
            episode = await engine.episode(task.find(question.question_id))
        trace.info[TOLD] = of_episode(episode)
        if episode.stop_reason == "retriever_error":
            return ProgramResult(exit_code=1, stdout="", stderr=f"the search failed: {episode.error}")
        return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["SearchGymHarness", "SearchGymTaskset"]
