"""What is asked once is not asked again, whoever asks, as long as there is room."""

import random
import threading
from collections import OrderedDict

import pytest

from searchgym.errors import RetrieverError, UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.kinds.cache import CacheRetriever


class Noting:
    """Finds k passages named after the query, and notes what it was asked."""

    def __init__(self):
        self.asked, self.fail = [], False

    def search(self, queries, k):
        self.asked.append(list(queries))
        if self.fail:
            raise ConnectionError("no")
        return [found(query, k) for query in queries]


def found(query, k):
    return [Hit(Passage(f"{query}{n}", "", query), 1 / (n + 1)) for n in range(k)]


def test_only_the_unknown_queries_of_a_batch_are_asked_each_once():
    inner = Noting()
    cache = CacheRetriever(inner, 10)
    assert cache.search(["b", "a", "b"], 2) == [found("b", 2), found("a", 2), found("b", 2)]
    assert cache.search(["c", "a", "d", "c"], 2) == [found(q, 2) for q in "cadc"]
    assert cache.search(["a"], 2) == [found("a", 2)]
    assert inner.asked == [["b", "a"], ["c", "d"]]
    assert (cache.hits, cache.misses) == (4, 4)
    assert cache.search(["a"], 3) == [found("a", 3)]  # another k is another question
    assert inner.asked[2:] == [["a"]]
    assert cache.search([], 3) == []


def test_those_not_asked_for_the_longest_go_first():
    inner = Noting()
    cache = CacheRetriever(inner, 2)
    cache.search(["a"], 1)
    cache.search(["b"], 1)
    cache.search(["a"], 1)
    cache.search(["c"], 1)  # b goes
    cache.search(["a", "c"], 1)
    assert inner.asked == [["a"], ["b"], ["c"]]
    cache.search(["b"], 1)
    assert inner.asked[3:] == [["b"]]
    assert cache.search(list("vwxyz"), 1) == [found(q, 1) for q in "vwxyz"]  # more than there is room for
    cache.search(["y", "z"], 1)
    assert inner.asked[4:] == [list("vwxyz")]


def test_it_keeps_what_a_plain_model_of_it_keeps():
    inner, rng, model, asked = Noting(), random.Random(5), OrderedDict(), []
    cache = CacheRetriever(inner, 7)
    for _ in range(500):
        batch = [rng.choice("abcdefghijkl") for _ in range(rng.randrange(1, 4))]
        unknown = [query for query in dict.fromkeys(batch) if query not in model]
        asked += [unknown] if unknown else []
        for query in [query for query in batch if query in model] + unknown:
            model[query] = None
            model.move_to_end(query)
        while len(model) > 7:
            model.popitem(last=False)
        cache.search(batch, 1)
    assert inner.asked == asked


def test_a_fault_is_not_kept():
    inner = Noting()
    cache = CacheRetriever(inner)
    cache.search(["a"], 1)
    inner.fail = True
    with pytest.raises(ConnectionError):
        cache.search(["a", "b"], 1)
    assert cache.search(["a"], 1) == [found("a", 1)]
    inner.fail = False
    assert cache.search(["b"], 1) == [found("b", 1)]
    assert inner.asked == [["a"], ["b"], ["b"]]

    class Short(Noting):
        def search(self, queries, k):
            return super().search(queries, k)[1:]

    short = CacheRetriever(Short())
    with pytest.raises(RetrieverError, match="expected a list of 2 lists"):
        short.search(["a", "b"], 1)
    assert not short._kept


def test_what_is_kept_cannot_be_changed_by_who_got_it():
    cache = CacheRetriever(Noting())
    first, twin = cache.search(["a", "a"], 2)
    first.clear()
    assert twin == found("a", 2)
    twin.append(None)
    assert cache.search(["a"], 2) == [found("a", 2)]


def test_hits_that_change_by_step_are_forgotten_at_each():
    plain, changing = Noting(), Noting()
    changing.changes_by_step = True
    for inner, calls in ((plain, 1), (changing, 3)):
        cache = CacheRetriever(inner)
        for step in (0, 1, None):
            cache.at_step(step, 2)
            cache.search(["a"], 1)
            cache.search(["a"], 1)
        assert len(inner.asked) == calls


def test_threads_share_it():
    cache, wrong = CacheRetriever(Noting(), 20), []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(300):
            batch = [str(rng.randrange(40)) for _ in range(3)]
            if cache.search(batch, 2) != [found(query, 2) for query in batch]:
                wrong.append(batch)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.hits + cache.misses == 4 * 300 * 3
    assert len(cache._kept) == 20


def test_a_cache_without_room_is_refused():
    with pytest.raises(UsageError, match="got 0"):
        CacheRetriever(Noting(), 0)
