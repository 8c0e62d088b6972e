"""Agents: workflows that search for evidence and answer questions."""

from searchgym.agents.base import Agent, Chat, EpisodeIO, LoadedAgent, Observation, Reply, documents, load_agent
from searchgym.agents.parsing import only_tag, without_thoughts
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
    "without_thoughts",
]
