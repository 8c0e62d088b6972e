"""Manifest of a submission: agent, models, task, submitter and scores.

Every field has a seal, a digest of its value, so that an edit by hand is refused with the name of the field. A seal
proves no more than that: who makes it again after an edit is caught where the data tell otherwise (see `check`).
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from searchgym.corpora.files import read_json
from searchgym.errors import CardError, DataError, DataMissingError, SubmissionError
from searchgym.eval.run_folder import JUDGE, VERDICTS
from searchgym.options import Options, read

MANIFEST: Final = "manifest.json"
"""File of the manifest."""
EPISODES: Final = "episodes.jsonl.gz"
"""File of the episodes, without tokens."""
PREDICTIONS: Final = "predictions.jsonl"
"""File of the answers, one line per episode."""
FORMAT: Final = "searchgym submission 1"
"""Format of a submission; another version is refused."""
MAX_MANIFEST_BYTES: Final = 1 << 22
"""Maximum number of bytes of a manifest."""
MAX_NAME: Final = 120
"""Maximum number of characters of a name."""
NAME: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
"""Pattern of a line of text without control characters of terminals or of the direction of writing."""


LEAST: Final = {
    1: ("questions", "top_k", "max_turns", "max_queries", "max_observation_words", "samples"),
    0: ("temperature", "seconds", "seed", "training_seed"),
}
"""Minimum values of numbers."""
FORMS: Final = {"url": r"https?://[^\s<>\"'`()\[\]|]{1,300}", "commit": r"[0-9a-f]{7,40}"}
"""Patterns of optional texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedModel(Options):
    """Model of a role."""

    name: str
    """Name of the model, as in the calls of the episodes."""
    sha256: str | None = None
    """SHA-256 of its weights; None for a model on a server."""
    revision: str | None = None
    """Revision on the hub."""
    engine: str = ""
    """Sampling engine and type; empty for transformers in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionManifest(Options):
    """Manifest of a submission: everything that it states about itself."""

    format: str
    name: str
    """Name of the row; several training seeds of one method have the same."""
    by: str
    """Submitter."""
    date: str
    """Day of the submission, ``YYYY-MM-DD``."""
    url: str | None = None
    """Address of the model or the paper."""
    suite: str
    part: str
    env: str
    dataset: str
    split: str
    questions: int
    """Number of questions."""
    questions_sha256: str
    corpus_sha256: str | None
    retriever: dict[str, Any]
    """Identity of the retriever: its kind and settings, with those of its card."""
    protocol: str
    scorer: str
    reward: str
    top_k: int
    max_turns: int
    max_queries: int
    max_observation_words: int
    agent: str
    workflow: str
    """Class and options of the workflow."""
    prompts: dict[str, str]
    """Role to SHA-256 of its prompt."""
    models: dict[str, UsedModel]
    """Role to model."""
    template: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Role to the arguments of its model's chat template, and to the date that the template shows, if any."""
    temperature: float
    samples: int
    """Episodes per question."""
    seed: int
    """Seed of the evaluation."""
    training_seed: int | None = None
    """Seed of the training, if the row has several trainings."""
    searchgym: str
    """Version that ran it."""
    commit: str | None = None
    """Commit of the code, if it ran in a checkout."""
    hardware: dict[str, Any]
    seconds: float
    """Wall time of the evaluation."""
    files: dict[str, str]
    """File to SHA-256 of its bytes."""
    scores: dict[str, Any]
    """Scores; they must equal those recomputed from the episodes."""
    seal: dict[str, str] = field(default_factory=dict)
    """Digest of each other field."""


def digest(value: Any) -> str:
    """Returns the seal of a field: the first 16 hexadecimal digits of the SHA-256 of its JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def plain(manifest: SubmissionManifest) -> dict[str, Any]:
    """Returns a manifest as plain data, with the seals of its fields."""
    fields = dataclasses.asdict(manifest)
    del fields["seal"]
    if not manifest.template:  # as in submissions before there were any
        del fields["template"]
    return {**fields, "seal": {name: digest(value) for name, value in fields.items()}}


def read_manifest(folder: Path) -> SubmissionManifest:
    """Reads the manifest of a submission, and checks its form and its seals.

    Raises:
        SubmissionError: It is missing, of another format, edited by hand, or a field has no possible value; the error
            names the field.
    """
    path = folder / MANIFEST
    try:
        data = read_json(path, MAX_MANIFEST_BYTES)
    except DataMissingError:
        raise SubmissionError(MANIFEST, "no such file: not the folder of a submission", path) from None
    except DataError as error:
        raise SubmissionError(MANIFEST, error.reason, path, error.line) from error
    if isinstance(data, Mapping) and data.get("format", FORMAT) != FORMAT:
        raise SubmissionError("format", f"got {data['format']!r:.60}, this version reads {FORMAT!r}", path)
    try:
        manifest = read(SubmissionManifest, data, "manifest")
    except CardError as error:
        raise SubmissionError(MANIFEST, str(error), path) from error
    sealed = plain(manifest)["seal"]
    for name, seal in sealed.items():
        if manifest.seal.get(name) != seal:
            raise SubmissionError(name, "was edited after the submission was written: write it again", path)
    if unknown := sorted(manifest.seal.keys() - sealed.keys()):
        raise SubmissionError("seal", f"names {unknown[0]!r:.60}, which is no field", path)
    for name, reason in _impossible(manifest):
        raise SubmissionError(name, reason, path)
    return manifest


def _impossible(manifest: SubmissionManifest) -> Iterator[tuple[str, str]]:
    """Yields invalid fields, each with the reason."""
    for name in ("name", "by", "agent", "suite", "part", "searchgym"):
        value = getattr(manifest, name)
        if not value.strip() or len(value) > MAX_NAME or not NAME.fullmatch(value):
            yield name, f"expected one line of 1 to {MAX_NAME} characters, got {value!r:.60}"
    for least, names in LEAST.items():
        for name in names:
            value = getattr(manifest, name)
            if value is not None and not least <= value < math.inf:
                yield name, f"expected a number from {least} up, got {value}"
    for name, form in FORMS.items():
        value = getattr(manifest, name)
        if value is not None and not re.fullmatch(form, value):
            yield name, f"expected the form {form}, got {value!r:.60}"
    if manifest.samples > 1 and manifest.models and not manifest.temperature:
        yield "samples", f"{manifest.samples} samples at temperature 0 are one answer, given several times"
    if not _has_been(manifest.date):
        yield "date", f"expected a day that has been, as YYYY-MM-DD, got {manifest.date!r:.40}"
    if not all(isinstance(value, (str, int, float)) for value in manifest.hardware.values()):
        yield "hardware", "expected names and numbers"
    if set(manifest.files) - {VERDICTS, JUDGE} != {EPISODES, PREDICTIONS} or len(manifest.files) == 3:
        expected = f"{PREDICTIONS} and {EPISODES}, and of a judged run {VERDICTS} and {JUDGE}"
        yield "files", f"expected {expected}, got {', '.join(sorted(manifest.files))!r:.80}"


def _has_been(date: str) -> bool:
    """Returns whether a text is a day not later than tomorrow (it may be tomorrow in another time zone)."""
    try:
        day = datetime.date.fromisoformat(date)
    except ValueError:
        return False
    return date == day.isoformat() and day <= datetime.date.today() + datetime.timedelta(days=1)
