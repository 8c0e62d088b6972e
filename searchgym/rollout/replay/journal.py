"""Journal of a training's sampled responses, from which a run that crashed takes what it had sampled already.

Every response of an unfinished step is on disk before its episode goes on. A resumed run plays the step again: requests
whose response is in the journal get it, the others are sampled. A request is recognised by a digest of all that its
response depends on: model key, token ids of the context (so question, prompt, pages and earlier responses), sampling
parameters, seed (so run, step and attempt). If anything differs, such as a page, it is sampled anew.

The folder ``sampled`` of a run has a file for each rollout since the last checkpoint, such as ``step-000012-0.jsonl``,
with one response per line, and ``base.json`` with the step of that checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from searchgym.corpora.files import dump_line, read_json, write_atomic
from searchgym.errors import DataError
from searchgym.rollout.sampler import Sampled, SampleRequest
from searchgym.rollout.storage import IDS, LOGP, cut_half_line

BASE: Final = "base.json"
END: Final = b'{"end": true}\n'
"""Last line of a complete rollout."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """Number of responses that a rollout took from its journal."""

    reused: int
    """Responses from the journal."""
    sampled: int
    """Responses that were sampled."""
    repeated: int
    """Sampled responses that the journal has, because others of their batch are missing."""
    seconds: float
    """Seconds that sampling the reused responses had taken."""


class Journal:
    """Journal of the rollouts of one run.

    Args:
        folder: Folder of the files; created by `start`.
        whole: Use only rollouts that were complete when the run stopped.
        lasting: Number of steps by which episodes may outlast their own; so many older files are kept.
    """

    def __init__(self, folder: Path, whole: bool = False, lasting: int = 0) -> None:
        self.folder, self.whole, self.lasting = folder, whole, lasting
        self._opened = Counter[tuple[int, bool]]()
        self.started = False
        """Whether a run has begun; before that, nothing is read or written."""

    def start(self, step: int) -> None:
        """Prepares for a run that continues after `step` steps: removes what does not follow that checkpoint."""
        self.started = True
        self.folder.mkdir(parents=True, exist_ok=True)
        base = self._base()
        elsewhere = base is None or base > step  # responses of a later checkpoint, to which an older one may not lead
        for path in self.folder.glob("step-*.jsonl"):
            if elsewhere or _step_of(path) < step - self.lasting:
                path.unlink()
        self._write_base(step)

    def saved(self, step: int) -> None:
        """Removes the rollouts that a checkpoint after `step` steps makes superfluous."""
        self._write_base(step)
        for path in self.folder.glob("step-*.jsonl"):
            # a step is validated before its checkpoint is written
            if _step_of(path) < step - self.lasting + path.stem.endswith("-validation"):
                path.unlink()

    def open(self, step: int, greedy: bool) -> Page:
        """Returns the responses of the next rollout of a step.

        Args:
            step: 0-based step of the rollout.
            greedy: Whether it is a validation after that many steps.
        """
        number = self._opened[step, greedy]
        self._opened[step, greedy] += 1
        kind = "validation" if greedy else f"{number}"
        return Page(self.folder / f"step-{step:06d}-{kind}.jsonl", self.whole)

    def open_all(self, step: int) -> Page:
        """Returns the responses of all rollouts; new ones are written to the file of a 0-based step."""
        earlier = sorted(self.folder.glob("step-*.jsonl"))
        return Page(self.path_of(step), self.whole, earlier)

    def path_of(self, step: int) -> Path:
        """Returns the file of a step whose episodes may outlast it."""
        return self.folder / f"step-{step:06d}-0.jsonl"

    def _base(self) -> int | None:
        try:
            return int(read_json(self.folder / BASE)["step"])
        except (DataError, KeyError, TypeError, ValueError):
            return None

    def _write_base(self, step: int) -> None:
        with write_atomic(self.folder / BASE) as file:
            file.write(json.dumps({"step": step}).encode() + b"\n")


def _step_of(path: Path) -> int:
    """Returns the step in a file's name."""
    return int(path.name[5:11])


class Page:
    """Responses of one rollout; those of an earlier attempt at it are read when it is opened.

    Args:
        path: File of the rollout; a partial last line is removed, and damaged lines are left out.
        whole: Remove all lines unless the rollout is complete.
        earlier: Files whose responses are read too.
    """

    def __init__(self, path: Path, whole: bool, earlier: Sequence[Path] = ()) -> None:
        self._replies, self._started, self._before = dict[str, tuple[Sampled, float]](), time.monotonic(), 0.0
        self._reused, self._sampled, self._repeated, self._last = 0, 0, 0, 0.0
        cut_half_line(path)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        self._complete = END in lines
        if whole and not self._complete:
            path.write_bytes(b"")
            lines = []
        for other in earlier:
            lines += other.read_bytes().splitlines(keepends=True) if other != path else []
        for entry in filter(None, map(_read, lines)):
            self._replies[entry[0]] = entry[1:]
            self._before = max(self._before, entry[2])
        self._lock = threading.Lock()  # several models answer in threads of their own
        self._open = ExitStack()
        self._file: BinaryIO = self._open.enter_context(path.open("ab"))

    def of(self, key: str) -> Responses:
        """Returns the responses of one model key."""
        return Responses(self, key)

    def find(self, digest: str) -> Sampled | None:
        """Returns the response to a request, None if the journal has none."""
        entry = self._replies.get(digest)
        return None if entry is None else entry[0]

    def reuse(self, digests: Sequence[str]) -> None:
        """Counts responses that are used instead of sampling."""
        self._reused += len(digests)
        self._last = max(self._last, *(self._replies[digest][1] for digest in digests))

    def write(self, replies: Mapping[str, Sampled]) -> None:
        """Appends sampled responses; they are on disk when it returns."""
        seconds = self._before + time.monotonic() - self._started
        with self._lock:
            self._sampled += len(replies)
            self._repeated += sum(digest in self._replies for digest in replies)
            self._file.write(b"".join(_line(digest, reply, seconds) for digest, reply in replies.items()))
            self._file.flush()

    def roll(self, path: Path) -> None:
        """Writes to another file from now on."""
        with self._lock:
            self._open.close()
            cut_half_line(path)
            self._file = self._open.enter_context(path.open("ab"))

    def close(self, complete: bool) -> Reuse:
        """Closes the file; returns what was reused.

        Args:
            complete: Whether all episodes of the rollout have ended.
        """
        with self._open:
            if complete and not self._complete:
                self._file.write(END)
        return Reuse(self._reused, self._sampled, self._repeated, self._last)


class Responses:
    """Responses of one model key in one rollout; see `Memory`.

    Args:
        page: The rollout's responses.
        key: The model key.
    """

    def __init__(self, page: Page, key: str) -> None:
        self._page, self._key = page, key

    def recall(self, requests: Sequence[SampleRequest]) -> list[Sampled] | None:
        """Returns the responses to all requests, None if one of them is missing."""
        digests = [self._digest(request) for request in requests]
        replies = [reply for digest in digests if (reply := self._page.find(digest)) is not None]
        if len(replies) < len(requests):
            return None
        self._page.reuse(digests)
        return replies

    def record(self, requests: Sequence[SampleRequest], replies: Sequence[Sampled]) -> None:
        """Writes responses that were sampled."""
        self._page.write({self._digest(request): reply for request, reply in zip(requests, replies, strict=True)})

    def _digest(self, request: SampleRequest) -> str:
        """Returns a digest of all that the response to a request depends on, but for the weights."""
        what = repr((self._key, request.episode, request.seed, request.sampling)).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(what + b"\0" + request.ids.astype(IDS).tobytes(), digest_size=16).hexdigest()


def _line(digest: str, reply: Sampled, seconds: float) -> bytes:
    """Returns a response as a line with a checksum."""
    row = {
        "request": digest,
        "ids": base64.b64encode(reply.ids.astype(IDS).tobytes()).decode(),
        "logp": base64.b64encode(reply.logp.astype(LOGP).tobytes()).decode(),
        "finish": reply.finish,
        "version": reply.version,
        "seconds": round(seconds, 3),
    }
    return dump_line(row | {"sum": _sum(row)})


def _read(line: bytes) -> tuple[str, Sampled, float] | None:
    """Returns digest, response and seconds of a line; None if it is damaged, so that it is sampled again."""
    try:
        row = json.loads(line)
        if row.pop("sum") != _sum(row):
            return None
        reply = Sampled(_array(row["ids"], IDS), _array(row["logp"], LOGP), row["finish"], row["version"])
        return row["request"], reply, float(row["seconds"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _sum(row: Mapping[str, Any]) -> int:
    """Returns the checksum of a line's values."""
    return zlib.crc32(json.dumps(row, sort_keys=True).encode())


def _array(text: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns an array from its base64 text."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype).copy()
