"""SearchGym: a gym and trainer for agentic search.

Importing the package registers its environments with Gymnasium and loads nothing heavy::

    import gymnasium
    import searchgym

    env = gymnasium.make("searchgym/Demo-v0")
    observation, info = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("<search>Aral lighthouse</search>")
"""

from searchgym.envs.registration import register, register_shipped
from searchgym.records import Action, Answer, Hit, Invalid, Passage, Question, Search
from searchgym.version import __version__ as __version__

__all__ = ["Action", "Answer", "Hit", "Invalid", "Passage", "Question", "Search", "register"]

register_shipped()
