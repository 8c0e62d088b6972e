"""Plays a script through SkyRL-gym: its own `make`."""

import skyrl_gym
from scripts import QUESTION, Played

import searchgym.adapters.skyrl_env
from searchgym.adapters.episodes import rows


def play(env, script, folder):
    (row,) = [row for row in rows(env) if row["question_id"] == QUESTION]
    world = skyrl_gym.make(searchgym.adapters.skyrl_env.ID, env_config={"env": env}, extras=row)
    prompt, _ = world.init(row["prompt"])
    assert prompt == row["prompt"]
    observations, done, told = [], False, {}
    for text in script:
        assert not done
        assert world.get_metrics() == {}
        output = world.step(text)
        observations += [message["content"] for message in output["observations"]]
        done, told = output["done"], output["metadata"]
        assert output["reward"] == (told["reward"] if done else 0.0)
    assert done
    assert world.get_metrics()["reward"] == told["reward"]
    return Played(observations, told)
