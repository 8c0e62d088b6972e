"""Pages of invented people who name each other, for tests that hide spans."""

from __future__ import annotations

import random

from searchgym.records import Passage

FIRST = ("Ada", "Bo", "Cal", "Dan", "Eva", "Finn", "Gus", "Hal", "Ida", "Jon", "Kai", "Liv")
LAST = ("Abbot", "Berg", "Crane", "Dahl", "Eklund", "Frost", "Grieg", "Holm", "Ibsen", "Jansen", "Krogh", "Lund")
TOWNS = ("Port Arden", "Old Venn", "Great Yarrow", "Upper Tarn")


def linked_pages(pairs=12, seed=0):
    """Couples whose two pages name each other, and critics who name one of them without being named."""
    rng = random.Random(seed)
    first, last = rng.sample(FIRST, len(FIRST)), rng.sample(LAST, len(LAST))
    names = [f"{first[n % 12]} {last[(5 * n + n // 12) % 12]}" for n in range(3 * pairs)]  # neighbours share no word
    pages = []
    for number in range(pairs):
        one, two, critic = names[3 * number : 3 * number + 3]
        year, town = 1850 + number, rng.choice(TOWNS)
        for own, other in ((one, two), (two, one)):
            text = f"{own} was a painter who lived in {town} for most of a long and quiet life. "
            text += f"The painter was married in {year} to {other}, with whom nine of the known pictures were made. "
            text += f'The best was called "The Long Stair {number}" and sold on {1 + number} May {year + 40}.'
            pages.append((own, text))
        text = f"{critic} was a critic who wrote a famous and very unkind book on {one} about the later pictures."
        pages.append((critic, text))
    rng.shuffle(pages)
    return [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(pages)]
