"""Invents names: pronounceable words of two or three pieces, with first pieces used in one group of splits only."""

from __future__ import annotations

import random
from typing import Final

from searchgym.errors import UsageError
from searchgym.questions.worlds.schema import SPLITS
from searchgym.retrieval.bm25.analysis import analyse


def _pieces(text: str) -> tuple[str, ...]:
    """Returns the words of a text as name pieces."""
    return tuple(text.split())


ONSETS: Final = _pieces(
    "B Br C Cl Cr D Dr F Fl G Gl Gr H J K Kl Kr L M N P Pl Pr Qu R S Sk Sl Sm Sn St Sv T Th Tr V Vr W Y Z Zl Zv"
)
VOWELS: Final = _pieces("a e i o u")
MIDS: Final = _pieces("la ri mo ne ve ka do su ba li ro ni ta ze fo du pe gi ma vi")
ENDS: Final = {
    "person": _pieces("lin mar nis ra dek vas no lia ren tha sil bor mek zan"),
    "surname": _pieces("sen ski ova man der beck dahl mora quist well vich lund"),
    "city": _pieces("stad holm mund wick gard burg fell minster dorf port"),
    "river": _pieces("luth wen nue lach rill dra thas sey"),
    "mountain": _pieces("horn tor krag pike berg nock spit kulm"),
    "film": _pieces("xa quo zeth vim lux rox phane tiva noir zo"),
    "book": _pieces("gram lex dict foli tome scrip verb rune ode canto"),
    "company": _pieces("tec corp vex dyne plex nik mart tron gen lab"),
    "band": _pieces("zz wub bop funk jive rok pax hum yell tune"),
}
"""Last pieces of names by kind of entity; they hint at the kind, as ``-ton`` and ``-ville`` hint at a town."""
_SHARES: Final = (0.5, 0.2, 0.3)
"""Shares of the first pieces assigned to training, validation and test."""
_THREE_PIECES: Final = 0.3
_TRIES: Final = 200


def _heads() -> tuple[tuple[str, ...], ...]:
    """Returns the first pieces by `Split.names`; each is onset plus vowel, so none is a prefix of another group's."""
    heads = [onset + vowel for onset in ONSETS for vowel in VOWELS]
    random.Random("first pieces of names").shuffle(heads)
    cuts = [0]
    for share in _SHARES:
        cuts.append(cuts[-1] + round(share * len(heads)))
    return tuple(tuple(sorted(heads[a:b])) for a, b in zip(cuts, [*cuts[1:-1], len(heads)], strict=False))


HEADS: Final = _heads()
"""First pieces of names, indexed by `Split.names`."""


class Namer:
    """Generator of new words for a world's names; the words remain distinct after a search engine's stemming.

    Args:
        split: Name of the split.
        rng: Random generator of the world.
    """

    def __init__(self, split: str, rng: random.Random) -> None:
        self._heads, self._rng = HEADS[SPLITS[split].names], rng
        self._stems: set[str] = set()

    def word(self, kind: str) -> str:
        """Returns a new word for an entity of a kind.

        Raises:
            UsageError: No new word was found.
        """
        for attempt in range(_TRIES):
            middle = self._rng.choice(MIDS) if self._rng.random() < _THREE_PIECES or attempt > 3 else ""
            word = self._rng.choice(self._heads) + middle + self._rng.choice(ENDS[kind])
            stems = analyse(word)
            if len(stems) == 1 and stems[0] not in self._stems:
                self._stems.add(stems[0])
                return word
        raise UsageError(f"no new name for a {kind} after {len(self._stems)} names: ask for a smaller world")
