"""Repeats a submission: the workflow on the recorded outputs of its models, and the searches; or all of it.

What must come out again: queries, hits, answers, turns, what was refused. So an answer that no output holds is refused,
and hits that the retriever does not give. Outputs themselves are taken as they are: who writes the right answers into
them is found only by another run (`run_again`), which is recorded and is the highest tier of a row.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from searchgym.agents.base import LoadedAgent
from searchgym.corpora.files import read_json
from searchgym.errors import DataError, DataMissingError, SubmissionError
from searchgym.eval.leaderboard.check import CheckedSubmission, sample_episodes
from searchgym.eval.leaderboard.manifest import EPISODES, SubmissionManifest
from searchgym.eval.run_folder import RunReader
from searchgym.eval.runner import EvalOptions, evaluate, hardware, write_json
from searchgym.eval.scores import OFFICIAL
from searchgym.records import Call, Episode, Hit, Searched
from searchgym.retrieval.retriever import identify, retrieve
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Finish, Sampled, Sampler, SampleRequest
from searchgym.rollout.tokens import ContextText, TokenFormat
from searchgym.version import __version__

DRAWN: Final = 50
"""Default number of episodes to repeat."""
SCORE_TOLERANCE: Final = 1e-3
"""Relative tolerance for the score of a hit on different machines."""
BATCH: Final = 256
RERUN: Final = "rerun.json"
"""File with the record of a repetition, in the folder of the manifest."""
AGREE: Final = 0.01
"""Tolerance for EM and F1 of a repetition: ties between tokens may be broken differently."""


def replay_episodes(checked: CheckedSubmission, agent: LoadedAgent | None, most: int | None = DRAWN) -> dict[str, int]:
    """Repeats a sample of the episodes of a submission.

    Args:
        checked: The submission.
        agent: Its agent; None if it is not at hand: then only the searches are repeated.
        most: Number of episodes; None for all.

    Returns:
        ``episodes`` (number repeated by the workflow) and ``searches`` (number of queries repeated).

    Raises:
        SubmissionError: Something else came out, or the retriever here is not the one of the manifest.
    """
    task, manifest = checked.task, checked.manifest
    if (here := identify(task.retriever)) != manifest.retriever:
        reason = f"the submission searched {manifest.retriever!r:.120}, here is {here!r:.120}: give --retriever"
        raise SubmissionError("retriever", reason, checked.folder)
    chosen = sample_episodes((e for e in checked.scored.episodes if e.stop_reason != "retriever_error"), most)
    searches = 0
    for episode, searched, hits in _searched_again(checked, chosen):
        searches += 1
        if not _same_hits(searched.hits, hits):
            then, now = ([hit.passage.id for hit in each] for each in (searched.hits, hits))
            reason = f"query {searched.query!r:.60} returned {then!r:.80}, now {now!r:.80}"
            raise SubmissionError(EPISODES, f"{episode.id}: {reason}", checked.folder / EPISODES)
    if agent is None:
        return {"episodes": 0, "searches": searches}
    again = {episode.id: episode for episode in _played_again(checked, chosen, agent)}
    for episode in chosen:
        for name, then, now in _unlike(episode, again[episode.id]):
            reason = f"{episode.id}: {name} was {then!r:.80}, the workflow gives {now!r:.80}"
            raise SubmissionError(EPISODES, reason, checked.folder / EPISODES)
    return {"episodes": len(chosen), "searches": searches}


def _searched_again(
    checked: CheckedSubmission, episodes: Sequence[Episode]
) -> Iterator[tuple[Episode, Searched, Sequence[Hit]]]:
    """Yields each query of the episodes with its present hits."""
    searches = [(episode, searched) for episode in episodes for searched in episode.searches]
    for at in range(0, len(searches), BATCH):
        batch = searches[at : at + BATCH]
        ids, texts = [e.question_id for e, _ in batch], [s.query for _, s in batch]
        rules = checked.task.rules
        results = retrieve(checked.task.retriever, ids, texts, rules.top_k, rules.deadline)
        yield from ((episode, searched, hits) for (episode, searched), hits in zip(batch, results, strict=True))


def _same_hits(then: Sequence[Hit], now: Sequence[Hit]) -> bool:
    """Returns whether two lists of hits agree; hits with nearly equal scores may be in another order."""
    if len(then) != len(now) or not all(
        abs(a.score - b.score) <= SCORE_TOLERANCE * max(1.0, abs(b.score)) for a, b in zip(then, now, strict=True)
    ):
        return False
    return [hit.passage for hit in then] == [hit.passage for hit in now] or (
        {hit.passage.id for hit in then} == {hit.passage.id for hit in now}
    )


def _unlike(then: Episode, now: Episode) -> Iterator[tuple[str, Any, Any]]:
    """Yields the differences between an episode and its repetition."""
    queries = tuple([(s.turn, s.query) for s in episode.searches] for episode in (then, now))
    calls = tuple(
        [(c.role, c.turn, c.legal, c.answer) for c in episode.calls if not c.thought_cut] for episode in (then, now)
    )
    yield from ((name, a, b) for name, (a, b) in (("queries", queries), ("calls", calls)) if a != b)
    for name in ("answer", "turns", "invalid", "stop_reason", "observation_words", "notes"):
        if getattr(then, name) != getattr(now, name):
            yield name, getattr(then, name), getattr(now, name)


def _played_again(checked: CheckedSubmission, episodes: Sequence[Episode], agent: LoadedAgent) -> list[Episode]:
    """Runs a workflow again on the recorded outputs of its models."""
    recorded = _Recorded(episodes)
    names = {role: used.name for role, used in checked.manifest.models.items()}
    models = {
        name: Model.over(name, cast("Sampler", recorded), cast("TokenFormat", recorded))
        for name in dict.fromkeys(names.values())
    }
    if names.keys() != agent.roles.keys():
        reason = f"roles {sorted(names)}, the agent {agent.name} has {sorted(agent.roles)}"
        raise SubmissionError("models", reason, checked.folder)
    filled = {role: models[name] for role, name in names.items()}
    engine = Engine(
        checked.task,
        dataclasses.replace(
            agent,
            name=checked.manifest.agent,
            # recorded outputs hold the thoughts as they were cut
            roles={name: dataclasses.replace(role, max_thought_tokens=None) for name, role in agent.roles.items()},
        ),
        filled,
        seed=checked.manifest.seed,
        temperature=checked.manifest.temperature,
    )
    again: list[Episode] = []
    todo = [(checked.task.by_id[e.question_id], e.attempt) for e in episodes]
    asyncio.run(engine.run_attempts(todo, again.append))
    return again


class _Recorded:
    """Sampler and token format that replay the recorded outputs of episodes. A response is one id, its number.

    Args:
        episodes: The episodes; each role's outputs are given in their order.
    """

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self._calls: list[Call] = []
        self._left: dict[str, list[int]] = {}
        for episode in episodes:
            left, thought = list[int](), ""
            for call in episode.calls:
                if call.thought_cut:
                    thought = call.text  # the next call goes on with the same response
                    continue
                left.append(len(self._calls))
                self._calls.append(dataclasses.replace(call, text=thought + call.text))
                thought = ""
            self._left[episode.id] = left
        self._full = {episode.id for episode in episodes if episode.stop_reason == "context"}
        self._count: defaultdict[str, int] = defaultdict(int)

    def sample(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Returns the next recorded output for each request; an empty one after the last."""
        return [self._next(request.episode) for request in requests]

    def _next(self, episode: str) -> Sampled:
        number, outputs = self._count[episode], self._left[episode]
        self._count[episode] += 1
        last = number >= len(outputs) - 1
        ids = np.array(outputs[number : number + 1], np.int32)
        finish: Finish = "eos"
        if number >= len(outputs) or (last and episode in self._full):
            finish = "context"  # also ends an episode that now asks for more than was recorded
        elif self._calls[outputs[number]].cut:
            finish = "length"
        return Sampled(ids, np.zeros(len(ids), np.float32), finish)

    def close(self) -> None:
        """Does nothing: there is no process to end."""

    def encode(self, texts: Sequence[ContextText]) -> list[npt.NDArray[np.int32]]:
        """Returns one id for any prompt or observation."""
        return [np.zeros(1, np.int32) for _ in texts]

    continues = False

    def goes_on(self, finish: Finish | None) -> bool:
        """Returns False: recorded outputs are apart."""
        return False

    def thought_after(self, finish: Finish | None) -> str:
        """Returns an empty string: recorded outputs begin with the markers of their thoughts."""
        return ""

    def response_text(self, ids: npt.NDArray[np.int32]) -> str:
        """Returns the recorded text behind an id."""
        return self._calls[int(ids[0])].text if len(ids) else ""


# -- another run -----------------------------------------------------------------------------------------------------


def run_again(
    checked: CheckedSubmission,
    agent: LoadedAgent,
    models: Mapping[str, Model],
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Repeats the evaluation of a submission, compares the scores, and records the agreement in its folder.

    Args:
        checked: The submission.
        agent: Its agent.
        models: The model behind each role.
        progress: Called with (episodes done, episodes in all).

    Returns:
        What was recorded: ``answers_equal`` of ``episodes``, ``em`` and ``f1`` of the repetition, where and when.

    Raises:
        SubmissionError: The models are others, or EM or F1 differs by more than `AGREE`.
    """
    manifest, folder = checked.manifest, checked.folder
    for role, used in manifest.models.items():
        if role in models and models[role].sha256 != used.sha256:
            reason = f"role {role}: the weights here are not those of {used.name}"
            raise SubmissionError("models", reason, folder)
        if role in models and models[role].template != (then := manifest.template.get(role, {})):
            reason = f"role {role}: {then} in the submission, {models[role].template} here"
            raise SubmissionError("template", reason, folder)
    if identify(checked.task.retriever) != manifest.retriever:
        raise SubmissionError("retriever", "is not the one that is here: give --retriever", folder)
    options = EvalOptions(manifest.temperature, manifest.seed, samples=manifest.samples)
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        scores = evaluate(checked.task, agent, run, models, options, progress=progress)
        again = {episode.id: episode for episode in RunReader(run).episodes(tokens=False)}
    equal = sum(again[episode.id].answer == episode.answer for episode in checked.scored.episodes)
    results: tuple[Mapping[str, Any], ...] = (checked.scores, scores)
    for name in OFFICIAL:
        was, now = (result.get(name) for result in results)
        if (was is None) != (now is None) or abs((was or 0.0) - (now or 0.0)) > AGREE:
            values = ["none" if value is None else f"{value:.4f}" for value in (was, now)]
            reason = f"the submission has {values[0]}, run again it is {values[1]}"
            raise SubmissionError(f"scores.{name}", reason, folder)
    record = {
        "episodes_sha256": manifest.files[EPISODES],
        "episodes": len(again),
        "answers_equal": equal,
        "em": scores.get("em"),
        "f1": scores.get("f1"),
        "date": datetime.date.today().isoformat(),
        "searchgym": __version__,
        "hardware": hardware(),
    }
    write_json(folder / RERUN, record)
    return record


def was_rerun(folder: Path, manifest: SubmissionManifest) -> bool:
    """Returns whether the folder of a submission records a repetition of exactly these episodes.

    The record is that of whoever keeps the leaderboard: what a submitter puts there is removed when it is taken in.

    Raises:
        SubmissionError: The record cannot be read.
    """
    try:
        record = read_json(folder / RERUN)
    except DataMissingError:
        return False
    except DataError as error:
        raise SubmissionError(RERUN, error.reason, folder / RERUN) from error
    return isinstance(record, dict) and record.get("episodes_sha256") == manifest.files[EPISODES]
