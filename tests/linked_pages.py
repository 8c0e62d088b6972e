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


OWNERS = "Amber Basalt Cobalt Delta Ember Fallow Granite Harbour Indigo Juniper Kestrel Linden Marble Nimbus Osprey"
THINGS = "Valve Pump Boiler Ledger Gateway Turbine Archive Beacon Furnace Relay Reactor Depot Scanner Crane Mixer"
SENTENCES = (
    "In the spring audit the crew of {own} found that {other} had been running without its usual {word} supply.",
    "Since the fire of {year} all {word} parcels that {own} receives are weighed again by {other} before noon.",
    "The manual says that {own} must be shut down whenever {other} reports a {word} pressure above {year} units.",
    "A retired foreman called {own} the quiet sister of {other}, because both hum a {word} note at night.",
)
WORDS = "copper velvet hollow saline northern brittle crimson lunar wooden frozen hidden silent amber rapid heavy"


def wiki_pages(count, seed=0):
    """A company's wiki: every page names the next one, one near it and one anywhere, so that all are connected."""
    rng = random.Random(seed)
    known = [f"{owner} {thing} {n}" for owner in OWNERS.split() for thing in THINGS.split() for n in (1, 2)]
    names, words = rng.sample(known, count), WORDS.split()
    pages = []
    for number, own in enumerate(names):
        near, far = rng.randint(2, 4), rng.randrange(count)
        linked = dict.fromkeys([(number + 1) % count, (number + near) % count, far])
        told = rng.sample(SENTENCES, len(SENTENCES))
        text = [f"{own} stands in hall {rng.randint(1, 99)} and was paid for by the {rng.choice(words)} fund."]
        for sentence, other in zip(told, (names[n] for n in linked if n != number), strict=False):
            text.append(sentence.format(own=own, other=other, word=rng.choice(words), year=rng.randint(1900, 2020)))
        pages.append(Passage(f"w{number}", own, " ".join(text)))
    return pages
