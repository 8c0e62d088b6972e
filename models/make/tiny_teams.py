"""Demonstrations of all shipped agents on generated worlds."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from tiny_lessons import with_prefixes

from searchgym.agents.oracle_roles import OracleRoles
from searchgym.questions.worlds import World
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.algorithms.samples import Sample, samples_from
from searchgym.train.demonstrations.play import play
from searchgym.train.demonstrations.teams import play_team
from searchgym.train.demonstrations.worlds import demonstrate_all, gold_sentences, world_task

MIXTURE: Final = {"praise": 0.2, "m-ask": 0.3, "jade": 0.3, "ircot": 0.1, "m-ask-no-knowledge": 0.1}
"""Share of a world's questions that each agent is shown on; the generator of ``rag`` is that of ``jade``."""


def team_samples(world: World, flaws: float, form: TokenFormat) -> list[Sample]:
    """Returns demonstrations of all shipped agents on a world's questions, a function of the arguments alone.

    Args:
        world: World of the questions; each question is used for one agent, drawn by `MIXTURE`.
        flaws: See `OracleRoles`; for the monolithic agent, the probability of an early stop.
        form: Token format of the model.
    """
    rng = random.Random(f"teams {world.spec.seed}")
    pages = {passage.title: passage for passage in world.passages}
    agents = rng.choices(list(MIXTURE), list(MIXTURE.values()), k=len(world.questions))
    task, samples = world_task(world), list[Sample]()
    for name in MIXTURE:
        asked = [q for q, agent in zip(world.questions, agents, strict=True) if agent == name]
        if name == "praise":
            shown = demonstrate_all(replace(world, questions=tuple(asked)), flaws, rng)
            episodes = play(task, [with_prefixes(own) for own in shown], form, name)
        else:
            oracles = {
                q.id: OracleRoles(q, gold_sentences(q, pages), random.Random(f"{world.spec.seed} {q.id}"), flaws)
                for q in asked
            }
            episodes = play_team(name, task, oracles, form)
        samples += [sample for episode in episodes for sample in samples_from(episode, "demonstration")]
    return samples
