"""A person plays an episode in the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from searchgym.cli.output import say
from searchgym.envs.single import SearchEnv
from searchgym.records import Answer, Search

HELP = "s QUERY searches, a ANSWER answers, q leaves; a line that begins with < goes to the environment as it is."


def play_episode(env: SearchEnv, question_id: str | None, seed: int | None) -> dict[str, Any] | None:
    """Runs one episode on standard input; the conversation goes to standard error.

    Returns:
        What the episode came to, or None if the player left.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (line editing for input())
    observation, info = env.reset(seed=seed, options={"question_id": question_id})
    say(f"Question: {observation}\n{HELP}")
    while True:
        say(f"[{info['turns_left']} turns left]")
        print("> ", end="", file=sys.stderr, flush=True)  # noqa: T201
        try:
            line = input()
        except EOFError:
            return None
        if line.strip() in ("q", "quit"):
            return None
        action = read_line(env, line.strip())
        if action is None:
            say(HELP)
            continue
        observation, reward, terminated, truncated, info = env.step(action)
        say(observation.strip())
        if terminated or truncated:
            golds = list(env.state.question.golds)
            scores = {name: info[name] for name in ("em", "f1", "answer", "turn", "searches", "stop_reason")}
            return {"question_id": info["question_id"], "reward": reward, **scores, "gold": golds}


def read_line(env: SearchEnv, line: str) -> str | None:
    """Returns the action text behind what a player typed, or None if it is none."""
    protocol = env.task.rules.protocol
    command, _, rest = line.partition(" ")
    if line.startswith("<"):
        return line
    if command in ("s", "search") and rest.strip():
        return protocol.write(Search((rest.strip(),)))
    if command in ("a", "answer"):
        return protocol.write(Answer(rest.strip()))
    return None
