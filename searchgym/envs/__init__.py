"""Environments: the text space, the environment core, and the Gymnasium classes built on it."""

from searchgym.envs.cards import EnvCard
from searchgym.envs.core import Rules, State
from searchgym.envs.options import TaskOptions
from searchgym.envs.registration import env_options, find_env, register, registered
from searchgym.envs.reward import Reward
from searchgym.envs.single import SearchEnv
from searchgym.envs.spaces import UnicodeText
from searchgym.envs.task import Task, load_task
from searchgym.envs.vector import SearchVectorEnv

__all__ = [
    "EnvCard",
    "Reward",
    "Rules",
    "SearchEnv",
    "SearchVectorEnv",
    "State",
    "Task",
    "TaskOptions",
    "UnicodeText",
    "env_options",
    "find_env",
    "load_task",
    "register",
    "registered",
]
