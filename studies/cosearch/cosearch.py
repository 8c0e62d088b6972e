"""CoSearch's ranker beside the retriever's own order and an oracle's: nDCG of what is shown, then EM of the answers.

    python studies/cosearch/cosearch.py show                         # demonstrations, and a model that learnt them
    searchgym train tiny-cosearch --out runs/cosearch/trained  # both roles together, from that model
    python studies/cosearch/cosearch.py compare World --reasoner runs/cosearch/shown/checkpoints/last \
        --ranker shown=runs/cosearch/shown/checkpoints/last trained=runs/cosearch/trained/checkpoints/last/ranker
    python studies/cosearch/cosearch.py compare HotpotQA --fetch 10 --mixed-in 0 --reasoner smollm2-searcher \
        --ranker chat=smollm2

All rankers serve the same reasoner, so that only what it is shown differs. ``retriever`` keeps the retriever's order
and ``oracle`` puts gold pages first: between these two lies what a ranker can be worth. Differences are against
``retriever``, question by question, with the 95 % interval (bootstrap over questions). HotpotQA's questions and their
paragraphs are looked for in ``$SEARCHGYM_DATA``. nDCG is of searches that fetched a gold page.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from searchgym.agents.base import EpisodeIO, LoadedAgent, Reply, load_agent
from searchgym.agents.teams.oracle import CoSearchOracle
from searchgym.cli.output import emit_rows, say
from searchgym.envs import Task, find_env, load_task
from searchgym.eval import bootstrap_ci
from searchgym.records import Episode, Question
from searchgym.rollout.engine import Engine
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.models import Loading, Model, load_models
from searchgym.rollout.tokens import TokenFormat
from searchgym.train import load_recipe, train
from searchgym.train.credit.terms.ranking import ranking_quality
from searchgym.train.demonstrations.oracle import demonstrate_search
from searchgym.train.demonstrations.play import turn_ids
from searchgym.train.demonstrations.teams import QueuedSampler
from searchgym.train.demonstrations.write import write_demonstrations

AGENT: Final = "cosearch"
FIRST: Final = "<id>Document0</id>"
"""Output of a ranker that leaves the retriever's order as it is."""
Says = Callable[[Question, Mapping[str, str]], str]
"""Function from a question and the fields of the ranker's prompt to what a ranker without a model writes."""
DICTATED: Final[dict[str, Says]] = {
    "retriever": lambda question, fields: FIRST,
    "oracle": lambda question, fields: CoSearchOracle(question).reply("ranker", fields),
}
"""Rankers without a model by name."""


def main() -> None:
    """Runs one of the two commands."""
    args = parse_args()
    if args.command == "show":
        show(args)
        return
    task = task_of(args)
    arms = {**dict.fromkeys(DICTATED, ""), **dict(pair.split("=", 1) for pair in args.ranker)}
    found = {name: episodes_of(name, model, task, args) for name, model in arms.items()}
    rows = [row_of(name, task, episodes, found["retriever"]) for name, episodes in found.items()]
    emit_rows(rows, args.json, "results", f"{task.card.id}, {len(task.questions)} questions")


def parse_args() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("show", help="write demonstrations on a generated world, and train a model on them")
    shown.add_argument("--out", type=Path, default=Path("runs/cosearch"), help="folder of both")
    shown.add_argument("--n", type=int, default=2000, help="number of demonstrations")
    shown.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="values of recipe tiny-cosearch-shown")
    compared = commands.add_parser("compare", help="compare rankers")
    compared.add_argument("env", help="environment, World or HotpotQA say")
    compared.add_argument("--reasoner", required=True, help="model that searches and answers")
    compared.add_argument("--ranker", nargs="*", default=[], metavar="NAME=MODEL", help="rankers beside the two known")
    compared.add_argument("--questions", type=int, default=200, help="number of questions")
    compared.add_argument("--file", help="question file, if not the environment's own")
    compared.add_argument("--corpus", help="corpus file, if not the environment's own")
    compared.add_argument("--json", action="store_true", help="print one JSON object")
    for command in (shown, compared):
        command.add_argument("--fetch", type=int, default=6, help="pages fetched by a search")
        command.add_argument("--mixed-in", type=int, default=3, help="random pages among them, at random ranks")
    return parser.parse_args()


def retriever_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the card of BM25, with random pages mixed in."""
    return {"kind": "noise", "of": "bm25", "start": 0, "end": 0, "mixed_in": args.mixed_in}


# -- a model that knows the roles ----------------------------------------------------------------------------------


def show(args: argparse.Namespace) -> None:
    """Writes an oracle's demonstrations on a generated world and trains recipe ``tiny-cosearch-shown`` on them."""
    folder = args.out / "demonstrations"
    given = [f"method.demonstrations={folder / 'episodes.jsonl'}", *args.set]
    recipe = load_recipe("tiny-cosearch-shown", given)
    # not the world of tiny-cosearch, whose seed is 1
    world = {"split": "train", "size": args.n, "seed": 2}
    task = load_task(find_env("World"), questions=world, top_k=args.fetch, retriever=retriever_of(args))
    form = TokenFormat(load_tokenizer(recipe.model), task.rules.protocol, chat=True)
    if not folder.exists():
        shown = demonstrate_search(task, form, args.n, agent=AGENT)
        write_demonstrations(shown, folder, {"kind": AGENT, "model": recipe.model, "world": world})
    train(recipe, args.out / "shown")


# -- comparison ----------------------------------------------------------------------------------------------------


class Dictated:
    """CoSearch's workflow in which a function says what the ranker writes.

    Args:
        agent: Agent ``cosearch``.
        says: The function.
        form: Token format of the ranker's texts.
    """

    def __init__(self, agent: LoadedAgent, says: Says, form: TokenFormat) -> None:
        self._agent, self._says, self._form = agent, says, form
        self.sampler = QueuedSampler()

    async def run(self, question: Question, io: EpisodeIO) -> None:
        """Runs one episode."""
        await self._agent.workflow.run(question, cast(EpisodeIO, _DictatedIO(io, self, question)))

    def tell(self, episode: str, question: Question, fields: Mapping[str, str]) -> None:
        """Queues what the ranker is about to write."""
        self.sampler.put(episode, turn_ids(self._says(question, fields), self._form), "eos")


class _DictatedIO:
    """`EpisodeIO` of such an episode."""

    def __init__(self, io: EpisodeIO, dictated: Dictated, question: Question) -> None:
        self._io, self._dictated, self._question = io, dictated, question

    def __getattr__(self, name: str) -> Any:
        return getattr(self._io, name)

    async def generate(self, role: str, **fields: str) -> Reply:
        self._dictated.tell(self.name, self._question, fields)
        return await self._io.generate(role, **fields)


def task_of(args: argparse.Namespace) -> Task:
    """Returns the task with a number of its questions that name gold pages."""
    task = load_task(
        find_env(args.env), questions=args.file, corpus=args.corpus, top_k=args.fetch, retriever=retriever_of(args)
    )
    return task.asking(question for question in task.questions if question.gold_titles).subset(args.questions)


def episodes_of(name: str, model: str, task: Task, args: argparse.Namespace) -> list[Episode]:
    """Returns the greedy episodes of one ranker, in the order of their ids."""
    say(f"{name}: {len(task.questions)} questions ...")
    agent = load_agent(AGENT)
    models = load_models({"reasoner": args.reasoner}, task.rules.protocol, Loading())
    if name in DICTATED:
        form = models["reasoner"].format
        if not isinstance(form, TokenFormat):
            raise SystemExit("the reasoner must be loaded here: texts are dictated in its tokens")
        dictated = Dictated(agent, DICTATED[name], form)
        models["ranker"] = Model.over("dictated", dictated.sampler, form)
        agent = dataclasses.replace(agent, workflow=dictated)
    else:  # apart: folders of checkpoints have the same names
        models |= load_models({"ranker": model}, task.rules.protocol, Loading())
    episodes: list[Episode] = []
    asyncio.run(Engine(task, agent, models).run(task.questions, episodes.append))
    return sorted(episodes, key=lambda episode: episode.question_id)


def row_of(name: str, task: Task, episodes: Sequence[Episode], base: Sequence[Episode]) -> dict[str, Any]:
    """Returns the figures of one ranker, and its differences from the retriever's order."""
    calls = [(episode, call) for episode in episodes for call in episode.calls if call.ranked is not None]
    before, after = [], []
    for episode, call in calls:
        question = task.find(episode.question_id)
        kept = dataclasses.replace(call, ranked=tuple(range(len(call.ranked or ()))))
        if (quality := ranking_quality(question, episode, call)) is not None:
            after.append(quality)
            before.append(ranking_quality(question, episode, kept) or 0.0)
    scores = {score: [episode.scores[score] for episode in episodes] for score in ("em", "f1")}
    gained = [own - other.scores["em"] for own, other in zip(scores["em"], base, strict=True)]
    low, high = bootstrap_ci(gained)
    return {
        "ranker": name,
        "ranked": len(calls),
        "legal": _mean([float(call.legal) for _, call in calls]),
        "nDCG fetched": _mean(before),
        "nDCG shown": _mean(after),
        "EM": _mean(scores["em"]),
        "F1": _mean(scores["f1"]),
        "EM less retriever": f"{statistics.fmean(gained):+.3f} ({low:.3f} to {high:.3f})",
    }


def _mean(values: Sequence[float]) -> float | None:
    """Returns a rounded mean; None of nothing."""
    return round(statistics.fmean(values), 4) if values else None


if __name__ == "__main__":
    main()
