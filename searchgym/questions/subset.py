"""Draws subsets of questions in which each kind keeps its share, and describes the mixture of kinds in a set.

Question files are often sorted by kind, so that the first questions are all of one kind. All code that uses only part
of a set therefore draws it here: limits of commands, validation, subsets of suites, and selection pools.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from searchgym.errors import drawable
from searchgym.records import Question, hops_of
from searchgym.scoring import UNANSWERABLE_SUFFIX

Field = Literal["type", "hops", "level"]
"""Field that questions can be stratified by."""
BY_KIND: Final[tuple[tuple[Field, ...], ...]] = (("type",), ("hops",))
"""Default fields that stratify a subset: the kind, then the number of hops within a kind; without kinds, only hops."""
SEED: Final = 0
"""Default seed. It is the same everywhere, so that two evaluations with one limit ask the same questions."""
DIFFERENT: Final = 0.1
"""Difference between a kind's shares in training and in validation above which a warning is printed."""
WIDTH: Final = 80
"""Maximum number of characters of a line about a mixture."""

Twins = tuple[Question, ...]
"""A question, or a question and its unanswerable twin."""


FIELDS: Final[Mapping[Field, Callable[[Question], str | None]]] = {
    "type": lambda question: question.kind,
    "hops": hops_of,
    "level": lambda question: question.level,
}


def draw_subset(
    questions: Sequence[Question], n: int, seed: int = SEED, strata: Sequence[Sequence[Field]] = BY_KIND
) -> list[Question]:
    """Draws a stratified random subset of questions, determined by a seed.

    Each stratum's number is its share rounded down or up, by largest remainders (ties to the larger stratum, then by
    name). Within a stratum, the questions with the smallest hashes are drawn; the hash is the SHA-256 of ``"SEED:ID"``,
    so the order of the questions has no influence. MuSiQue-Full's unanswerable twins stay with their questions: from a
    set of twins only, an even number is drawn, at least 2.

    Args:
        questions: The set, with unique ids.
        n: Number of questions to draw.
        seed: Seed of the hashes.
        strata: Fields that define the strata, level by level; each level subdivides the strata of the one before.

    Returns:
        The questions in the order of their hashes; all of them in their original order if there are at most `n`.
    """
    if n < 1 or n >= len(questions):
        return list(questions) if n > 0 else []
    single, pairs = _by_twins(questions)
    doubled = -((len(questions) - 2 * n * len(pairs)) // (2 * len(questions)))  # the nearest number of pairs
    doubled = max(doubled, 0 if single else 1)
    ranks = {question.id: _hash(question, seed) for question in questions}
    draw = _Draw(n, len(questions), ranks)
    chosen = [*draw.among(pairs, doubled, strata), *draw.among(single, n - 2 * doubled, strata)]
    return [question for twins in sorted(chosen, key=draw.rank) for question in twins]


def _by_twins(questions: Sequence[Question]) -> tuple[list[Twins], list[Twins]]:
    """Returns the questions without a twin, and the pairs of a question and its twin."""
    by_id = {question.id: question for question in questions}
    single, pairs = list[Twins](), list[Twins]()
    for question in questions:
        twin = by_id.get(question.id + UNANSWERABLE_SUFFIX)
        base = question.id.removesuffix(UNANSWERABLE_SUFFIX)
        if twin is not None:
            pairs.append((question, twin))
        elif base == question.id or base not in by_id:
            single.append((question,))
    return single, pairs


def _hash(question: Question, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{question.id}".encode("utf-8", "surrogatepass")).hexdigest()


class _Draw:
    """Draws `n` of `whole` questions."""

    def __init__(self, n: int, whole: int, ranks: Mapping[str, str]) -> None:
        self._n, self._whole, self._ranks = n, whole, ranks

    def rank(self, twins: Twins) -> tuple[str, str]:
        """Returns the sort key of a question: its hash, then its id."""
        return self._ranks[twins[0].id], twins[0].id

    def among(self, members: Sequence[Twins], count: int, levels: Sequence[Sequence[Field]]) -> list[Twins]:
        """Returns `count` members, allocated to the strata in proportion, level by level."""
        if not levels:
            return sorted(members, key=self.rank)[:count]
        strata: defaultdict[tuple[str, ...], list[Twins]] = defaultdict(list)
        for twins in members:
            strata[tuple(FIELDS[name](twins[0]) or "" for name in levels[0])].append(twins)
        counts, rests = {}, {}
        for name, stratum in strata.items():
            counts[name], rests[name] = divmod(self._n * len(stratum), self._whole)
        order = sorted(strata, key=lambda name: (-rests[name], -len(strata[name]), name))
        for name in order[: count - sum(counts.values())]:
            counts[name] += 1
        return [twins for name, stratum in strata.items() for twins in self.among(stratum, counts[name], levels[1:])]


def by_hash(questions: Iterable[Question], seed: int = SEED) -> list[Question]:
    """Returns questions in the order of their hashes, which depends on the seed and not on their present order."""
    return sorted(questions, key=lambda question: (_hash(question, seed), question.id))


# -- mixtures ------------------------------------------------------------------------------------------------------


def mixture(questions: Iterable[Question]) -> Counter[str]:
    """Returns the number of questions of each kind; questions without a kind are counted by hops."""
    return Counter(question.kind or _hops(question) or "no kind" for question in questions)


def _hops(question: Question) -> str | None:
    hops = hops_of(question)
    return None if hops is None else f"{hops} hop{'s' * (hops != '1')}"


def mixture_lines(training: Sequence[Question], validation: Sequence[Question]) -> Iterator[str]:
    """Yields lines of at most `WIDTH` characters that describe the mixtures of training and validation questions.

    A warning follows if shares differ by more than `DIFFERENT` plus one validation question: the validation score then
    reflects a different task mix from the one trained on.

    Args:
        training: Questions to train on; empty if they are generated during training.
        validation: Questions to validate on, after any limit.
    """
    for name, questions in (("training", training), ("validation", validation)):
        if questions:
            counts = mixture(questions).most_common()
            yield _line(f"{name}: {len(questions):,} questions", [f"{kind} {count:,}" for kind, count in counts])
    if not training or not validation:
        return
    differences = list[str]()
    by_hops = [Counter(hops for question in part if (hops := _hops(question))) for part in (training, validation)]
    for there, here in ((mixture(training), mixture(validation)), by_hops):
        shares = {kind: (here[kind] / len(validation), there[kind] / len(training)) for kind in there | here}
        far = {kind: part for kind, part in shares.items() if abs(part[0] - part[1]) > DIFFERENT + 1 / len(validation)}
        differences += [f"{kind} {part:.0%} ({other:.0%})" for kind, (part, other) in far.items()]
    if differences:
        yield _line("warning: differs from training", list(dict.fromkeys(differences)))


def _line(head: str, parts: Sequence[str]) -> str:
    """Returns a heading and as many parts as fit a line. Control characters in names from data sets are replaced."""
    texts = [drawable(part) for part in parts]
    for count in range(len(texts), -1, -1):
        rest = [] if count == len(texts) else [f"and {len(texts) - count} more"]
        line = f"{head}: {', '.join([*texts[:count], *rest])}"
        if len(line) <= WIDTH:
            return line
    return head
