"""Checks a submission: recomputes its scores from its episodes, and compares its fields with the data.

What this cannot prove: that a model wrote what the episodes say. `replay` repeats the searches and the workflow, and a
second run (`run_again`) repeats the rest.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, get_args

from searchgym.agents.base import LoadedAgent, load_agent, read_agent, source_of
from searchgym.corpora.files import sha256_file
from searchgym.envs.core import State
from searchgym.envs.reward import answer_scores, reward_name, score_rewards
from searchgym.envs.task import Task
from searchgym.errors import DataError, ScoringError, SubmissionError, UnknownNameError
from searchgym.eval.judged.verdicts import Judgement, judged_scores
from searchgym.eval.leaderboard.episodes import MAX_TEXT, check_predictions, load_episodes
from searchgym.eval.leaderboard.manifest import EPISODES, MANIFEST, SubmissionManifest, plain, read_manifest
from searchgym.eval.leaderboard.tasks import Tasks
from searchgym.eval.leaderboard.verdicts import check_verdicts
from searchgym.eval.run_folder import VERDICTS
from searchgym.eval.runner import prompts_sha256, questions_sha256
from searchgym.eval.scores import Scored, Scores, score_each, summarise
from searchgym.named import code_refused
from searchgym.options.cards import ProtocolName, list_cards
from searchgym.records import Episode, simulated_share
from searchgym.retrieval.retriever import identify
from searchgym.rollout.models import weights_sha256
from searchgym.scoring.confidence import check_confidence
from searchgym.text import count_words

EQUAL: Final = 1e-9
"""Absolute tolerance for one score computed by different versions of numpy."""
PROTOCOLS: Final = get_args(ProtocolName)
"""Names of the action grammars."""
MISSING: Final = "nothing"
"""Marks a missing score."""


@dataclass(frozen=True)
class CheckedSubmission:
    """A submission that passed all checks."""

    folder: Path
    manifest: SubmissionManifest
    task: Task
    scored: Scored
    scores: Scores
    """Recomputed scores."""
    judgement: Judgement | None = None
    """Verdicts of a judge; None if the run was not judged."""


def check_submission(folder: Path, tasks: Tasks | None = None) -> CheckedSubmission:
    """Checks a submission against its suite, and recomputes its scores.

    Args:
        folder: The submission.
        tasks: Tasks that are loaded already.

    Raises:
        SubmissionError: A field is not what the data say; the error names it.
        DataMissingError: The questions or the corpus of the suite are not here.
    """
    manifest, path = read_manifest(folder), folder / MANIFEST
    for name, sha256 in manifest.files.items():
        try:
            actual = sha256_file(folder / name)
        except DataError as error:
            raise SubmissionError(name, error.reason, folder / name) from error
        if actual != sha256:
            raise SubmissionError(name, "is not the file that the manifest names: it was changed", folder / name)
    tasks = tasks or Tasks()
    try:
        base = tasks.base(manifest.suite, manifest.part)
    except UnknownNameError as error:
        field = "part" if error.kind.startswith("part") else "suite"
        raise SubmissionError(field, str(error), path) from error
    with code_refused():  # what the suite and the user named is loaded; what follows is named by the submission
        return _checked(folder, manifest, tasks, base)


def _checked(folder: Path, manifest: SubmissionManifest, tasks: Tasks, base: Task) -> CheckedSubmission:
    """Compares a submission with the task of its part; see `check_submission`."""
    record, path = plain(manifest), folder / MANIFEST
    for field, got, expected in _said(manifest, base):
        if got != expected:
            raise SubmissionError(field, f"got {got!r:.100}, expected {expected!r:.100}", path)
    task = tasks.of_run(manifest.suite, manifest.part, record)
    _check_agent(manifest, path)
    episodes = load_episodes(folder, task)
    try:
        scored = score_each(task, episodes, manifest.samples)
    except ScoringError as error:
        raise SubmissionError(EPISODES, str(error), folder / EPISODES) from error
    for line, episode in enumerate(episodes, start=1):
        for field, reason in _faults(episode, manifest, task):
            raise SubmissionError(field, reason, folder / EPISODES, line)
    check_predictions(folder, episodes, task)
    scores, judgement = summarise(scored), None
    if VERDICTS in manifest.files:
        judgement = check_verdicts(folder, scored)
        scores = cast("Scores", scores | judged_scores(scored.episodes, judgement.verdicts))
    later = {f"{name}{end}" for name in LATER for end in ("", "_ci95")} - manifest.scores.keys()
    stated, counted = (
        {name: score for name, score in values.items() if name not in {*later, "refused"}}  # wording may change
        for values in (manifest.scores, scores)
    )
    for name, was, now in _differences(stated, counted):
        raise SubmissionError(f"scores.{name}", f"the manifest says {was!r:.60}, its episodes give {now!r:.60}", path)
    return CheckedSubmission(folder, manifest, task, scored, scores, judgement)


LATER: Final = (
    "open_thoughts", "cut_thoughts", "resumed", "markers_in_pages", "evidence_by_tokens", "evidence_by_searches",
    "evidence_curve", "confident", "expected_calibration_error", "select@vote", "select@shortest", "select@confident",
    "select@weighted_vote", "completeness", "candidates",
)  # fmt: skip
"""Counts that scores of older submissions lack. They do not affect the ranking."""


def _said(manifest: SubmissionManifest, base: Task) -> Iterator[tuple[str, Any, Any]]:
    """Yields (field, value in the manifest, value in the suite)."""
    card = base.card
    yield "env", manifest.env, card.id
    yield "dataset", manifest.dataset, card.questions.title
    yield "split", manifest.split, base.split
    yield "scorer", manifest.scorer, card.scorer
    if manifest.protocol not in PROTOCOLS:
        yield "protocol", manifest.protocol, " or ".join(PROTOCOLS)
    yield "questions", manifest.questions, len(base.questions)
    yield "questions_sha256", manifest.questions_sha256, questions_sha256(base.questions)
    yield "corpus_sha256", manifest.corpus_sha256, manifest.retriever.get("corpus", manifest.corpus_sha256)
    if manifest.retriever.get("kind") == "simulated":
        yield "retriever", manifest.retriever, "one that searches the corpus of the track"
    here = identify(base.retriever)
    if "corpus" in here and manifest.corpus_sha256 == here["corpus"]:
        names = ("passages", "corpus")
        yield "retriever", {n: manifest.retriever.get(n) for n in names}, {n: here[n] for n in names}


def _check_agent(manifest: SubmissionManifest, path: Path) -> None:
    """Compares the shipped agent and models that a manifest names with those of the package."""
    if (shipped := list_cards("agents").get(manifest.agent)) is not None:
        agent, roles = read_agent(str(shipped))
        workflow, _, limit = manifest.workflow.partition(", max_tokens ")
        if workflow != source_of(agent) or (limit and not limit.isdecimal()):
            reason = f"got {manifest.workflow!r:.100}, {agent.name} is {source_of(agent)!r}"
            raise SubmissionError("workflow", reason, path)
        if manifest.prompts != prompts_sha256(roles):
            reason = f"are not those of the agent {agent.name} of this version: give a custom agent another name"
            raise SubmissionError("prompts", reason, path)
        if manifest.models.keys() != roles.keys():
            reason = f"roles {sorted(manifest.models)}, the agent {agent.name} has {sorted(roles)}"
            raise SubmissionError("models", reason, path)
    if manifest.prompts.keys() != manifest.models.keys():
        raise SubmissionError("models", f"roles {sorted(manifest.models)}, prompts {sorted(manifest.prompts)}", path)
    for role, model in manifest.models.items():
        card = list_cards("models").get(model.name)
        if card is not None and model.sha256 != weights_sha256(card.parent):
            reason = f"role {role}: {model.name} has other weights than the model of that name that ships here"
            raise SubmissionError("models", reason, path)


def _faults(episode: Episode, manifest: SubmissionManifest, task: Task) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) for each violation of the manifest, the rules or the scorer by an episode."""
    for field, got, expected in (
        ("agent", episode.agent, manifest.agent),
        ("env", episode.env, manifest.env),
        ("seed", episode.seed, manifest.seed),
        (EPISODES, episode.id, f"{episode.question_id}#{episode.attempt}"),
        (EPISODES, episode.contexts, []),
        (EPISODES, episode.opens, []),  # no track opens pages, and those count as found
        (EPISODES, episode.group_uid, None),
    ):
        if got != expected:
            yield field, f"episode {episode.id!r:.60} has {got!r:.60}, expected {expected!r:.60}"
    if simulated_share(episode.searches):
        yield "retriever", "pages that a model wrote; rows of a leaderboard search the corpus of their track"
    if any(searched.source for searched in episode.searches):
        yield "retriever", "a search of a further retriever; rows of a leaderboard have the one of their track"
    if episode.answer is not None and len(episode.answer.text) > MAX_TEXT:
        yield EPISODES, f"an answer of {len(episode.answer.text):,} characters, at most {MAX_TEXT:,}"
    try:
        check_confidence(None if episode.answer is None else episode.answer.confidence, f"episode {episode.id!r:.60}")
    except ScoringError as error:
        yield EPISODES, str(error)
    if (episode.stop_reason == "answer") != (episode.answer is not None):
        yield EPISODES, f"stop_reason {episode.stop_reason!r} with{'out' if episode.answer is None else ''} an answer"
    yield from _over_budget(episode, manifest)
    yield from _calls(episode, manifest)
    words = observed_words(episode, task)
    if not episode.invalid and episode.error is None and words != episode.observation_words:
        yield (
            "max_observation_words",
            f"observation_words {episode.observation_words}, its hits show {words} under this budget",
        )
    state = State(task.by_id[episode.question_id], answer=episode.answer, stop_reason=episode.stop_reason)
    scores = answer_scores(state)
    if episode.scores != scores:
        yield EPISODES, f"scores {episode.scores!r:.60}, but its answer scores {scores!r:.60}"
    named = next((r for r in score_rewards().values() if reward_name(r) == manifest.reward), None)
    if named is not None and episode.reward != named(state):
        yield "reward", f"reward {episode.reward!r}, {manifest.reward} gives {named(state)!r}"


def _over_budget(episode: Episode, manifest: SubmissionManifest) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) for each budget of the manifest that an episode exceeds."""
    if not 0 <= episode.invalid <= episode.turns or episode.turns > manifest.max_turns:
        yield "max_turns", f"{episode.turns} turns, {episode.invalid} of them invalid; at most {manifest.max_turns}"
    if episode.stop_reason == "turns" and episode.turns != manifest.max_turns:
        yield "max_turns", f"ended for want of turns after {episode.turns} of {manifest.max_turns}"
    queries_by_turn = Counter(searched.turn for searched in episode.searches)
    if queries_by_turn and not 1 <= min(queries_by_turn) <= max(queries_by_turn) <= min(
        episode.turns, manifest.max_turns - 1
    ):
        yield "max_turns", f"searches in turns {sorted(queries_by_turn)} of {episode.turns}; the last may not search"
    if len(queries_by_turn) + episode.invalid + (episode.answer is not None) > episode.turns:
        yield (
            "max_turns",
            f"{len(queries_by_turn)} searches, {episode.invalid} invalid actions, an answer: {episode.turns} turns",
        )
    if queries_by_turn and max(queries_by_turn.values()) > manifest.max_queries:
        yield "max_queries", f"{max(queries_by_turn.values())} queries in one turn, at most {manifest.max_queries}"
    if any(len(searched.hits) > manifest.top_k for searched in episode.searches):
        yield "top_k", f"a query with more than {manifest.top_k} hits"
    if not all(math.isfinite(hit.score) for searched in episode.searches for hit in searched.hits):
        yield EPISODES, "a hit whose score is not finite"


def _calls(episode: Episode, manifest: SubmissionManifest) -> Iterator[tuple[str, str]]:
    """Yields calls of models that the manifest does not name."""
    for call in episode.calls:
        used = manifest.models.get(call.role)
        if used is None or used.name != call.model_key:
            yield "models", f"a call of {call.model_key!r:.60} as {call.role!r:.60}, which the manifest does not name"
        if not 0 <= call.start <= call.end or not 1 <= call.turn <= manifest.max_turns:
            yield EPISODES, f"a call of tokens {call.start} to {call.end} in turn {call.turn}"
    if manifest.models and not episode.calls and episode.stop_reason not in ("retriever_error", "context"):
        yield EPISODES, f"episode {episode.id!r:.60} has no call of a model"


def observed_words(episode: Episode, task: Task) -> int:
    """Returns the number of words that the searches of an episode showed to the agent."""
    turns: dict[int, list[Any]] = {}
    for searched in episode.searches:
        turns.setdefault(searched.turn, []).append(searched.hits)
    rules = task.rules
    return sum(count_words(rules.protocol.observation(hits, rules.max_observation_words)) for hits in turns.values())


def _differences(was: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields (path, then, now) for every score that differs."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*now, *was)):
            yield from _differences(was.get(key, MISSING), now.get(key, MISSING), f"{name}.{key}" if name else key)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, pair in enumerate(zip(was, now, strict=True)):
            yield from _differences(*pair, f"{name}[{number}]")
    elif isinstance(was, (int, float)) and isinstance(now, (int, float)) and type(was) is not bool:
        if not math.isclose(was, now, rel_tol=EQUAL, abs_tol=EQUAL):
            yield name, was, now
    elif was != now:
        yield name, was, now


def agent_of(manifest: SubmissionManifest, agent: LoadedAgent | None) -> LoadedAgent | None:
    """Returns the agent of a submission: `agent`, or else the shipped one of that name; None if there is none.

    No code that a submission names is ever imported.
    """
    if agent is not None:
        return agent
    shipped = list_cards("agents").get(manifest.agent)
    return None if shipped is None else load_agent(str(shipped))


def sample_episodes(episodes: Iterable[Episode], most: int | None) -> list[Episode]:
    """Returns at most `most` episodes, chosen by the hash of their ids; all of them if it is None."""
    ranked = sorted(episodes, key=lambda e: hashlib.sha256(e.id.encode("utf-8", "surrogatepass")).hexdigest())
    return ranked if most is None else ranked[:most]
