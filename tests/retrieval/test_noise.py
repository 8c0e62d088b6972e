"""Noise: how often, of what, and that it depends on nothing but seed, step and query."""

import hashlib
import math
import struct
import threading
from collections import Counter

import pytest
from support import PASSAGES, TitleRetriever

from searchgym.errors import CardError, UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.index.build import build_index
from searchgym.retrieval.index.index import build_in_memory, load_index
from searchgym.retrieval.kinds.cache import CacheRetriever
from searchgym.retrieval.kinds.noise import NoiseRetriever
from searchgym.retrieval.schedule import NoiseSchedule

CORPUS = [Passage(f"p{n}", f"T{n}", f"word{n} all") for n in range(60)]
QUERIES = [f"word{n % 60} number {n}" for n in range(4000)]


@pytest.fixture(scope="module")
def bm25():
    return build_in_memory(CORPUS)


def is_noise(query, hits):
    """A query finds the one passage with its word; noise never does."""
    return [hit.passage.title for hit in hits] != ["T" + query.split()[0].removeprefix("word")]


def training(noise: NoiseRetriever) -> NoiseRetriever:
    """At the first step of a training."""
    noise.at_step(0, 10)
    return noise


@pytest.mark.parametrize(
    ("step", "base", "expected"),
    [
        (0, 4, 0.1),
        (50, 4, 0.1 + (4**0.5 - 1) / 3 * 0.6),  # 0.3: half the way is a third of the rise
        (25, 9, 0.1 + (9**0.25 - 1) / 8 * 0.6),
        (100, 4, 0.7),
        (250, 4, 0.7),
        (50, 1, 0.4),
        (50, 0.25, 0.1 + (1 - 0.25**0.5) / 0.75 * 0.6),  # 0.5: early
    ],
)
def test_the_schedule_by_hand(step, base, expected):
    schedule = NoiseSchedule(start=0.1, end=0.7, base=base)
    assert schedule.probability(step, 100) == pytest.approx(expected, abs=1e-12)


def test_base_1_is_the_limit():
    early, line, late = (NoiseSchedule(end=1.0, base=base).probability(30, 100) for base in (1 - 1e-9, 1, 1 + 1e-9))
    assert early == pytest.approx(line, abs=1e-8) == late


def test_the_schedule_is_that_of_the_training_unless_the_card_has_steps(bm25):
    short, long = NoiseRetriever(bm25, base=1, steps=10), NoiseRetriever(bm25, base=1)
    for retriever, expected in ((short, [0.0, 0.25, 0.5, 0.5]), (long, [0.0, 0.125, 0.25, 0.475])):
        seen = []
        for step in (0, 5, 10, 19):
            retriever.at_step(step, 20)
            seen.append(retriever.probability)
        assert seen == pytest.approx(expected)
    assert NoiseRetriever(bm25).probability == 0.0  # outside training
    assert NoiseRetriever(bm25, start=0.2).probability == 0.0
    short.at_step(None, 20)
    assert short.probability == 0.0  # validation


@pytest.mark.parametrize("p", [0.0, 0.03, 0.3, 1.0])
def test_queries_are_replaced_with_the_probability(bm25, p):
    noise = training(NoiseRetriever(bm25, start=p, end=p, seed=11))
    noise.at_step(3, 9)
    found = noise.search(QUERIES, 1)
    noisy = sum(map(is_noise, QUERIES, found))
    assert abs(noisy - p * len(QUERIES)) <= 4 * math.sqrt(p * (1 - p) * len(QUERIES))


def test_every_other_passage_is_drawn_alike_and_none_twice(bm25):
    noise = training(NoiseRetriever(bm25, start=1.0))
    queries = [f"all {n}" for n in range(3000)]  # every passage has the word: the first three are found
    replaced = {hit.passage.id for hit in bm25.search(["all"], 3)[0]}
    counts = Counter()
    for hits in noise.search(queries, 3):
        drawn = {hit.passage.id for hit in hits}
        assert len(drawn) == 3
        assert not drawn & replaced
        counts.update(drawn)
    assert counts.keys() == {p.id for p in CORPUS} - replaced
    mean = 3 * 3000 / 57
    chi_square = sum((count - mean) ** 2 / mean for count in counts.values())
    assert chi_square < 56 + 4 * math.sqrt(2 * 56)


def test_noise_has_the_scores_and_the_number_of_what_it_replaces(bm25):
    noise = training(NoiseRetriever(bm25, start=1.0))
    for query, k in (("word3 word4 word5", 5), ("all", 60), ("unknown", 5)):
        (clean,), (hits,) = bm25.search([query], k), noise.search([query], k)
        assert [hit.score for hit in hits] == [hit.score for hit in clean][: 60 - len(clean)]
    small = training(NoiseRetriever(build_in_memory(PASSAGES), start=1.0))
    (hits,) = small.search(["Alpha Beta founded capital"], 3)  # three of five: two are left
    assert len(hits) == 2


def test_what_is_drawn_depends_on_seed_step_and_query_alone(bm25):
    def drawn(batch, step=4, seed=0):
        noise = training(NoiseRetriever(bm25, start=0.5, end=0.5, seed=seed))
        noise.at_step(step, 9)
        return [hits for at in range(0, 400, batch) for hits in noise.search(QUERIES[at : min(at + batch, 400)], 3)]

    whole = drawn(400)
    assert drawn(1) == drawn(7) == whole
    assert drawn(400, step=5) != whole
    assert drawn(400, seed=1) != whole


def test_the_draws_are_blake2b_in_counter_mode(bm25):
    """So that a run that is resumed, by another version or on another machine, has the same noise."""
    noise = training(NoiseRetriever(bm25, start=0.5, end=0.5, seed=7))
    noise.at_step(2, 9)
    for query in QUERIES[:50]:
        key = hashlib.blake2b(f"7 2 {query}".encode(), digest_size=32).digest()
        first, *others = struct.unpack("<8Q", hashlib.blake2b(bytes(8), key=key).digest())
        (found,) = bm25.search([query], 1)
        if first < 2**63:
            drawn = (CORPUS[(number * 60) >> 64] for number in others)
            found = [Hit(next(p for p in drawn if p != found[0].passage), found[0].score)]
        assert noise.search([query], 1) == [found]


def test_threads_and_their_order_change_nothing(bm25):
    noise = training(NoiseRetriever(bm25, start=0.5))
    expected = training(NoiseRetriever(bm25, start=0.5)).search(QUERIES[:400], 3)
    found = {}

    def work(part):
        for at in range(part, 400, 4):
            (found[at],) = noise.search([QUERIES[at]], 3)

    threads = [threading.Thread(target=work, args=(part,)) for part in (3, 1, 0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[at] for at in range(400)] == expected


def test_a_text_that_is_not_unicode_has_its_noise_too(bm25):
    assert training(NoiseRetriever(bm25, start=1.0)).search(["all \ud800"], 2) != bm25.search(["all \ud800"], 2)


def test_a_cache_above_does_not_carry_noise_to_another_step(bm25):
    noise = NoiseRetriever(bm25, start=0.0, end=1.0, base=1)
    cache = CacheRetriever(noise)
    for step, noisy in ((0, False), (8, True), (None, False)):
        cache.at_step(step, 8)
        found = cache.search(QUERIES[:50], 1)
        assert cache.search(QUERIES[:50], 1) == found
        assert [*map(is_noise, QUERIES[:50], found)] == [noisy] * 50


def test_a_card_makes_it_over_an_index_folder(tmp_path):
    build_index(CORPUS, tmp_path / "index", {"kind": "noise", "of": "bm25", "start": 1.0, "seed": 3})
    noise = load_index(tmp_path / "index")
    assert isinstance(noise, NoiseRetriever)
    assert not any(map(is_noise, QUERIES[:50], noise.search(QUERIES[:50], 1)))  # an evaluation
    training(noise)
    assert all(map(is_noise, QUERIES[:50], noise.search(QUERIES[:50], 1)))
    clean = load_index(tmp_path / "index", card={"kind": "noise", "of": "bm25"})
    assert not any(map(is_noise, QUERIES[:50], clean.search(QUERIES[:50], 1)))


def test_what_cannot_be_is_refused(bm25):
    with pytest.raises(UsageError, match="TitleRetriever has none on this machine"):
        NoiseRetriever(TitleRetriever())
    for wrong in ({"start": -0.1}, {"end": 1.1}, {"base": 0}, {"base": math.inf}, {"steps": 0}, {"end": math.nan}):
        with pytest.raises(CardError, match=f"noise: {next(iter(wrong))}"):
            NoiseRetriever(bm25, **wrong)


def test_passages_mixed_in_stand_among_the_hits_in_evaluation_too(bm25):
    mixed = NoiseRetriever(bm25, start=0.0, end=0.0, mixed_in=3)
    ranks = Counter()
    for n in range(200):
        query = f"word3 word4 word5 q{n}"
        (clean,), (hits,) = bm25.search([query], 2), mixed.search([query], 5)
        ids = [hit.passage.id for hit in hits]
        own = [hit.passage.id for hit in clean]
        assert len(set(ids)) == len(ids) == 5 and [id for id in ids if id in own] == own
        assert [hit.score for hit in hits] == [5, 4, 3, 2, 1]
        ranks[ids.index(own[0])] += 1
    assert set(ranks) == {0, 1, 2, 3} and mixed.search(["unknown"], 5) == [[]]
    assert mixed.search([query], 5) == [hits]
    assert "mixed_in" in mixed.identity() and "mixed_in" not in NoiseRetriever(bm25).identity()
