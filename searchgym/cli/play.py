"""The ``play`` command: an interactive episode in the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from searchgym.cli.options import MaxTurns, SourceOptions, TopK, takes_records
from searchgym.cli.output import Json, emit, say
from searchgym.cli.run import OwnEnv, load, task_options
from searchgym.records import Answer, Search

if TYPE_CHECKING:
    from searchgym.envs.single import SearchEnv

HELP = "s QUERY searches, a ANSWER answers, q quits; a line that begins with < goes to the environment unchanged."


@takes_records
def play(
    *,
    env: OwnEnv = None,
    source: SourceOptions,
    question: Annotated[str | None, typer.Option(help="Question id; a random one by default.")] = None,
    top_k: TopK = None,
    max_turns: MaxTurns = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the random choice of question.")] = None,
    json: Json = False,
) -> None:
    """Play an episode yourself in the terminal."""
    from searchgym.envs.single import SearchEnv

    options = task_options(source)
    if top_k is not None:
        options["top_k"] = top_k
    if max_turns is not None:
        options["max_turns"] = max_turns
    outcome = play_episode(SearchEnv(load(env, options, source.wait)), question, seed)
    if outcome is None:
        say("left before the end")
        raise typer.Exit(130)
    emit(outcome, json, "outcome")


def play_episode(env: SearchEnv, question_id: str | None, seed: int | None) -> dict[str, Any] | None:
    """Plays one episode with actions from standard input; prints the conversation on standard error.

    Args:
        env: Environment to play.
        question_id: Question to ask; a random one if None.
        seed: Seed of the random choice.

    Returns:
        Question id, reward, scores and gold answers; None if the player quit.
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
            names = ("em", "f1", "answer", "turn", "searches", "stop_reason")
            scores = {name: info[name] for name in names if name in info}
            return {"question_id": info["question_id"], "reward": reward, **scores, "gold": golds}


def read_line(env: SearchEnv, line: str) -> str | None:
    """Returns the action text for a line that the player typed, or None if the line is no command."""
    protocol = env.task.rules.protocol
    command, _, rest = line.partition(" ")
    if line.startswith("<"):
        return line
    if command in ("s", "search") and rest.strip():
        return protocol.write(Search((rest.strip(),)))
    if command in ("a", "answer"):
        return protocol.write(Answer(rest.strip()))
    return None
