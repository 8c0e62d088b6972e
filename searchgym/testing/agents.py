"""Conformance suite for agents: `AgentTests` checks what the episode engine expects of every agent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from searchgym.agents.base import Agent, LoadedAgent
from searchgym.envs.cards import EnvCard
from searchgym.envs.task import load_task
from searchgym.options.cards import ProtocolName
from searchgym.protocol import get_protocol
from searchgym.questions.sources.dataset import DatasetQuestions
from searchgym.records import Episode, Question
from searchgym.retrieval.retriever import Retriever
from searchgym.rollout.api.sampler import MessageFormat
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.testing.fakes import (
    HOSTILE_PASSAGES,
    HOSTILE_REPLIES,
    PASSAGES,
    QUESTIONS,
    REPLIES,
    Broken,
    Pages,
    Replies,
)
from searchgym.testing.watched import NeverReturnsError, Watched


class AgentTests:
    """Checks of the contract of `searchgym.agents.base.Agent` and of its agent card.

    A subclass defines `make_agent`. No models are needed: replies come from lists, chosen by prompt and seed.
    """

    questions: Sequence[Question] = QUESTIONS
    """Questions of every check; the last of the default questions is hostile."""
    replies: Sequence[str] = REPLIES
    """Replies of the fake models; texts that the agent's roles can parse make the checks cover more of its workflow."""
    protocols: Sequence[ProtocolName] = ("tags", "tool_calls")
    """Names of the action grammars of the environments in which the agent runs."""
    budgets: Sequence[int] = (1, 2, 5)
    """Turn budgets of the environments in which the agent runs."""
    seconds: float = 30.0
    """Maximum wall-clock seconds for the episodes of one check."""

    def make_agent(self) -> LoadedAgent | Agent:
        """Returns the agent under test, as `load_agent` returns it; a bare workflow becomes an agent without roles."""
        raise NotImplementedError(f"{type(self).__name__} must define make_agent(self)")

    def run(
        self,
        agent: LoadedAgent | Agent | None = None,
        *,
        questions: Sequence[Question] | None = None,
        retriever: Retriever | None = None,
        sampler: Replies | None = None,
        protocol: ProtocolName = "tags",
        max_turns: int = 5,
        concurrency: int = 64,
        training: bool = False,
        attempts: int = 2,
    ) -> dict[str, Episode]:
        """Runs episodes of an agent and returns them by id.

        Raises:
            AssertionError: The agent raised an error, or did not end in time.
        """
        subject = self.make_agent() if agent is None else agent
        loaded = subject if isinstance(subject, LoadedAgent) else LoadedAgent(type(subject).__name__, subject)
        questions = self.questions if questions is None else questions
        source = DatasetQuestions(dataset="none", split="test", size=len(questions), file="none", get="nowhere")
        card = EnvCard(id="testing/Agents-v0", summary="for conformance", questions=source, corpus="none")
        options: Any = {"protocol": protocol, "max_turns": max_turns, "retriever_deadline": 0.01}
        task = load_task(card, questions=questions, retriever=retriever or Pages(PASSAGES), **options)
        model = Model.over("scripted", sampler or Replies(self.replies), MessageFormat(get_protocol(protocol)))
        engine = Engine(
            task,
            replace(loaded, workflow=Watched(loaded.workflow)),
            dict.fromkeys(loaded.roles, model),
            concurrency=concurrency,
            training=training,
        )
        episodes: list[Episode] = []
        where = f"agent {loaded.name} ({protocol}, {max_turns} turns)"
        try:
            asyncio.run(asyncio.wait_for(engine.run(questions, episodes.append, attempts), self.seconds))
        except TimeoutError as error:
            raise AssertionError(f"{where} did not end within {self.seconds:g} seconds") from error
        except (Exception, NeverReturnsError) as error:
            raise AssertionError(f"{where} raised {type(error).__name__}: {error}") from error
        return {episode.id: episode for episode in episodes}

    def ended(self, episodes: Mapping[str, Episode], reasons: Sequence[str]) -> None:
        """Checks that every episode ended for one of the given reasons."""
        for name, episode in episodes.items():
            assert episode.stop_reason in reasons, (
                f"episode {name} must end by {' or '.join(map(repr, reasons))}, got {episode.stop_reason!r} "
                f"after {episode.turns} turns and {len(episode.calls)} calls"
            )

    def same(self, actual: Mapping[str, Episode], expected: Mapping[str, Episode], when: str) -> None:
        """Checks that every expected episode equals the episode of the same id in another run."""
        for name, episode in expected.items():
            assert actual[name] == episode, (
                f"episode {name} differs {when}: {actual[name]!r:.400}, before {episode!r:.400}"
            )

    # -- ends ------------------------------------------------------------------------------------------------------

    def test_every_episode_ends_within_its_budget(self) -> None:
        """Checks that every episode ends with an answer or its last turn, for each budget and grammar."""
        for protocol in self.protocols:
            for max_turns in self.budgets:
                episodes = self.run(protocol=protocol, max_turns=max_turns)
                self.ended(episodes, ("answer", "turns"))
                over = [name for name, episode in episodes.items() if episode.turns > max_turns]
                assert not over, f"episode {over[0]} used more than {max_turns} turns"

    def test_it_asks_only_roles_that_it_declares(self) -> None:
        """Checks that the agent uses only the roles and prompt fields of its card, in training too."""
        for training in (False, True):
            self.run(training=training)  # the engine refuses all others

    def test_hostile_replies_are_survived(self) -> None:
        """Checks that the agent ends its episodes, without an error, whatever text its models return."""
        for protocol in self.protocols:
            for training in (False, True):
                sampler = Replies(HOSTILE_REPLIES)
                episodes = self.run(sampler=sampler, protocol=protocol, training=training, attempts=10)
                self.ended(episodes, ("answer", "turns"))
        for text in HOSTILE_REPLIES:
            self.ended(self.run(sampler=Replies([text]), attempts=1), ("answer", "turns"))

    def test_hostile_pages_are_survived(self) -> None:
        """Checks that the agent handles pages full of tags or without titles, and searches without results."""
        for retriever in (Pages(HOSTILE_PASSAGES, always=True), Pages(())):
            for protocol in self.protocols:
                self.ended(self.run(retriever=retriever, protocol=protocol), ("answer", "turns"))

    def test_a_retriever_that_fails_ends_the_episode(self) -> None:
        """Checks that the agent neither raises an error nor runs forever if the retriever fails."""
        self.ended(self.run(retriever=Broken()), ("retriever_error", "answer", "turns"))

    def test_a_full_context_ends_the_episode(self) -> None:
        """Checks that the agent neither raises an error nor runs forever if its models' context is full."""
        episodes = self.run(sampler=Replies(self.replies, "context"))
        self.ended(episodes, ("context", "answer", "turns"))

    # -- independence ----------------------------------------------------------------------------------------------

    def test_the_same_replies_give_the_same_episodes(self) -> None:
        """Checks that an agent acts the same in a second run: random choices must come from `io.rng`."""
        agent = self.make_agent()
        first = self.run(agent)
        self.same(self.run(agent), first, "when the same agent runs again")
        self.same(self.run(), first, "when a new agent runs")

    def test_episodes_do_not_depend_on_each_other(self) -> None:
        """Checks that an episode does not change with the other episodes of a run, their order or concurrency."""
        first = self.run(concurrency=1)
        self.same(self.run(concurrency=64), first, "when all run at once")
        self.same(self.run(questions=self.questions[::-1], concurrency=3), first, "in another order")
        one = self.run(questions=self.questions[:1], concurrency=1)
        self.same(first, one, "with other questions in the run")

    def test_its_models_are_never_told_the_gold_answer(self) -> None:
        """Checks that the prompts do not depend on the gold answer; only for agents with roles."""
        agent = self.make_agent()
        if not (isinstance(agent, LoadedAgent) and agent.roles):
            return
        other = [replace(question, answers=("qzx",), aliases=()) for question in self.questions]
        relabelled = self.run(agent, questions=other)
        for name, episode in self.run(agent).items():
            texts = [[call.text for call in one.calls] for one in (episode, relabelled[name])]
            assert texts[0] == texts[1], (
                f"episode {name} depends on the gold answer: {texts[0]!r:.200}, {texts[1]!r:.200}"
            )
