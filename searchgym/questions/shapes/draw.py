"""Draws drafts of questions of a shape from a source."""

from __future__ import annotations

import random
from collections.abc import Iterator

from searchgym.questions.shapes.chains import chains
from searchgym.questions.shapes.clues import intersections, veiled
from searchgym.questions.shapes.comparisons import compare_by, compare_over, pairs_of
from searchgym.questions.shapes.draft import Draft, take_turns
from searchgym.questions.source import FactBase
from searchgym.questions.spec import VEILED


def draw(source: FactBase, shape: str, hops: int, rng: random.Random) -> Iterator[Draft]:
    """Yields drafts of one shape without repeats; comparisons continue as long as new pairs are found."""
    pack = source.pack
    if shape == "chain":
        yield from chains(source, hops, rng)
    elif shape == "comparison":
        yield from take_turns([pairs_of(compare_by(source, name, rng).values()) for name in pack.relations])
    elif shape == "bridge-comparison":
        yield from take_turns([pairs_of(compare_over(source, bridge, rng).values()) for bridge in pack.bridges])
    elif shape == "intersection":
        yield from intersections(source, [clues for clues in pack.clues if clues.ask], rng)
    elif shape == VEILED:
        yield from veiled(source, hops, rng)
