"""Agents: workflows that search for evidence and answer questions."""

from typing import TYPE_CHECKING

from searchgym._lazy import lazy

if TYPE_CHECKING:
    from searchgym.agents.base import Agent, Chat, EpisodeIO, LoadedAgent, Observation, Reply, documents, load_agent
    from searchgym.agents.parsing import only_tag, said
    from searchgym.agents.roles import Role

__all__ = [
    "Agent",
    "Chat",
    "EpisodeIO",
    "LoadedAgent",
    "Observation",
    "Reply",
    "Role",
    "documents",
    "load_agent",
    "only_tag",
    "said",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "base": "Agent Chat EpisodeIO LoadedAgent Observation Reply documents load_agent",
        "parsing": "only_tag said",
        "roles": "Role",
    },
)
