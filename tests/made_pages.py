"""Pages of invented directors and films, worded as an encyclopedia's, for tests that generate questions."""

from __future__ import annotations

import random

from searchgym.records import Passage

FIRST = "Ada Bo Cal Dan Eva Finn Gus Hal Ida Jon Kai Liv Max Nia Ole Pia Rex Sue Tom Una".split()  # noqa: SIM905
LAST = "Abbot Berg Crane Dahl Eklund Frost Grieg Holm Ibsen Jansen Krogh Lund Moe Nygaard Olsen Post".split()  # noqa: SIM905
NATIONS = ("Swedish", "Danish", "Norwegian", "Finnish", "Polish")
WORDS = ["Silent", "Broken", "Golden", "Hidden", "Distant", "Frozen", "Amber", "Crimson"]
NOUNS = ["River", "Garden", "Winter", "Mirror", "Harbour", "Letter", "Stranger", "Window", "Orchard", "Lantern"]
MONTHS = ("January", "March", "May", "July", "October")


def made_pages(directors=24, films=3, seed=1):
    """Pages of invented directors and their films, in the wording of an encyclopedia."""
    rng = random.Random(seed)
    names = rng.sample([f"{a} {b}" for a in FIRST for b in LAST], directors)
    adjectives = rng.sample([f"{a} {b}" for a in WORDS for b in NOUNS], min(directors * films, 80))
    pages, titles = [], iter(adjectives)
    for name in names:
        born, died = rng.randrange(1880, 1930), rng.randrange(1970, 1999)
        dates = (
            f"{rng.randrange(1, 28)} {rng.choice(MONTHS)} {born} – {rng.randrange(1, 28)} {rng.choice(MONTHS)} {died}"
        )
        pages.append(
            (
                name,
                f"{name} ({dates}) was a {rng.choice(NATIONS)} film director. Much of the work is lost.",
            )
        )
        for _ in range(films):
            title = next(titles, None)
            if title is not None:
                year = rng.randrange(born + 20, 1969)
                pages.append(
                    (
                        title,
                        f"{title} is a {year} {rng.choice(NATIONS)} drama film directed by {name}. "
                        f"It was shot in {rng.choice(FIRST)}town and praised for its colours.",
                    )
                )
    rng.shuffle(pages)
    return [Passage(f"p{number}", title, text) for number, (title, text) in enumerate(pages)]


PAGES = made_pages()
