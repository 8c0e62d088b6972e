"""verifiers v1: environments of this package as a taskset, its agents as a harness that runs in verifiers' process.

verifiers finds both by the name of an installed package whose ``__all__`` exports them (``docs/do/adapters.md`` has that
package, in two files). The harness sends every call of the model to verifiers' own endpoint, which records the tokens;
rules, searches and rewards are this package's. An episode whose retriever failed is an error there, which leaves
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
"""Key of a trace's ``info`` under which the harness leaves what happened in the episode."""


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
    """One question. Its prompt is the question alone: the harness asks it in the words of its agent."""

    env: str
    options: dict[str, Any]
    question_id: str


class SearchGymTask(vf.Task[SearchGymData, vf.State, vf.TaskConfig]):
    """One question and its reward.

    After another harness, such as one with a search tool, the last text of the model is the answer.
    """

    @property
    def key(self) -> str:
        """Question's id, which lasts."""
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
        told: dict[str, Any] | None = trace.info.get(TOLD)
        if told is not None:
            return told
        said = [message.content for branch in trace.branches[-1:] for message in branch.messages]
        text = said[-1] if said and isinstance(said[-1], str) else ""
        return answered(shared_task(self.data.env, self.data.options), self.data.question_id, text)


class SearchGymTaskset(vf.Taskset[SearchGymTask, SearchGymTasksetConfig]):
    """The questions of an environment."""

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
                asked: Any = {"messages": [*system, *messages], "max_tokens": sampling.max_tokens}
                if sampling.stop:
                    asked["stop"] = list(sampling.stop)
                reply = await client.chat.completions.create(model=ctx.model, **asked)
                return read_choice(reply.choices[0].model_dump(exclude_unset=True), sampling.stop, task.rules.protocol)

            models = {role: chat_model(role, chat, task.rules.protocol) for role in agent.roles}
            engine = shared_engine(question.env, question.options, agent, models)
            episode = await engine.episode(task.find(question.question_id))
        trace.info[TOLD] = of_episode(episode)
        if episode.stop_reason == "retriever_error":
            return ProgramResult(exit_code=1, stdout="", stderr=f"the search failed: {episode.error}")
        return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["SearchGymHarness", "SearchGymTaskset"]
