"""Functions as retrievers: what they may return, how they are called, and what is never taken for a hit."""

import asyncio
import json
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from searchgym.errors import RetrieverError, UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.cards import Sources, find_retriever
from searchgym.retrieval.kinds.tool import ToolRetriever, in_threads
from searchgym.retrieval.retriever import identify, retrieve


def text(said):
    return SimpleNamespace(type="text", text=said)


def result(*items, error=False):
    """What the client of an MCP server returns."""
    return SimpleNamespace(content=list(items), isError=error)


def one(returned, k=5):
    return ToolRetriever(lambda query, k: returned).search(["q"], k)[0]


PAGE = Passage("7", "Title", "Text.")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (Hit(PAGE, 0.3), Hit(PAGE, 0.3)),
        (PAGE, Hit(PAGE, 1.0)),
        ("Some\ntext.", Hit(Passage("Some\ntext.", "", "Some\ntext."), 1.0)),
        ({"id": 7, "title": "Title", "text": "Text.", "score": 0.25}, Hit(PAGE, 0.25)),
        ({"id": "7", "contents": '"Title"\nText.'}, Hit(PAGE, 1.0)),
        ({"document": {"id": "7", "contents": '"Title"\nText.'}, "score": 3}, Hit(PAGE, 3.0)),
        ({"title": "Title", "snippet": "Text.", "url": "http://x"}, Hit(Passage("http://x", "Title", "Text."), 1.0)),
        ({"title": "Title", "snippet": ""}, Hit(Passage("Title", "Title", ""), 1.0)),
        ({"title": None, "text": "", "content": "Text."}, Hit(Passage("Text.", "", "Text."), 1.0)),
    ],
)
def test_an_item_becomes_a_hit(item, expected):
    assert one([item]) == [expected]


def test_the_rank_stands_for_scores_and_what_is_too_much_is_left_out():
    assert [(hit.passage.text, hit.score) for hit in one(["a", "b", "c"], k=2)] == [("a", 1.0), ("b", 0.5)]
    assert one((), 3) == []


def test_an_mcp_result_is_read():
    assert [hit.passage.text for hit in one(result(text("a"), text("b")))] == ["a", "b"]
    rows = [{"title": "Title", "text": "Text.", "id": "7"}, {"text": "other"}]
    each = result(*(text(json.dumps(row)) for row in rows))
    assert one(each) == one(result(text(json.dumps(rows)))) == one(rows)
    assert [hit.passage.text for hit in one(result(text("[1901]"), text("17")))] == ["[1901]", "17"]  # no objects
    assert one(result()) == []


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "return a list of hits.*NoneType"),
        ("Error: rate limited", "return a list of hits.*got str 'Error: rate limited'"),
        ({"error": "rate limited"}, "return a list of hits.*rate limited"),
        ([{"error": "rate limited"}], "item 1 .*rate limited"),
        ([{"error": "rate limited", "text": "sorry"}], "item 1 .*rate limited"),
        ([PAGE, 3], "item 2 .*int 3"),
        ([None], "item 1 .*NoneType"),
        ([" "], "item 1 .*str ' '"),
        ([{"text": "a", "score": "best"}], "item 1 .*best"),
        ([{"text": "a", "score": float("nan")}], "item 1 .*nan"),
        ([{}], "item 1"),
        (iter(["a"]), "return a list of hits"),
        (result(text("rate limited"), error=True), "the tool failed.*rate limited"),
        (result(SimpleNamespace(type="image", data="")), "other than text.*image"),
        (result(text('{"error": "rate limited"}')), "item 1 .*rate limited"),
        (SimpleNamespace(content="rate limited", isError=False), "other than text.*rate limited"),
    ],
)
def test_what_is_no_hit_is_refused(returned, said):
    with pytest.raises(RetrieverError, match=said):
        one(returned)


def test_queries_are_answered_in_their_order_as_many_at_once_as_allowed():
    here, together, most = threading.Lock(), [0, 0], threading.Barrier(3, timeout=10)

    def search(query, k):
        with here:
            together[0] += 1
            together[1] = max(together)
        most.wait()  # three calls meet here, or the test fails
        with here:
            together[0] -= 1
        return [f"{query} {k}"]

    tool = ToolRetriever(search, calls=3)
    assert [hits[0].passage.text for hits in tool.search(list("abcdef"), 4)] == [f"{q} 4" for q in "abcdef"]
    assert together == [0, 3]
    assert tool.calls_at_once == 3
    assert tool.search([], 4) == []


def test_searches_of_several_threads_share_the_places():
    lock, now, most = threading.Lock(), [0], [0]

    def search(query, k):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        asyncio.run(asyncio.sleep(0.001))
        with lock:
            now[0] -= 1
        return [query]

    tool = ToolRetriever(search, calls=2)
    threads = [threading.Thread(target=tool.search, args=(list("abcd"), 1)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [2]


def test_a_batched_function_is_called_once():
    calls = []

    def search(queries, k):
        calls.append((queries, k))
        return [[query.upper()] for query in queries]

    tool = ToolRetriever(search, batched=True)
    assert [hits[0].passage.text for hits in tool.search(("a", "b"), 3)] == ["A", "B"]
    assert calls == [(["a", "b"], 3)]
    for wrong in ([["a"]], None, "ab", {"a": [], "b": []}):
        with pytest.raises(RetrieverError, match="one result for each of 2 queries"):
            ToolRetriever(lambda queries, k, wrong=wrong: wrong, batched=True).search(["a", "b"], 3)


def test_coroutines_share_one_event_loop_that_lasts():
    loops, meeting = [], asyncio.Barrier(2)

    class Client:
        async def __call__(self, query, k):
            loops.append(asyncio.get_running_loop())
            await asyncio.wait_for(meeting.wait(), 10)  # two calls at the same time, or the test fails
            return [query]

    tool = ToolRetriever(Client(), calls=2)
    for _ in range(2):
        assert [hits[0].passage.text for hits in tool.search(["a", "b"], 1)] == ["a", "b"]
    assert len(loops) == 4
    assert len(set(loops)) == 1
    threads = [thread for thread in threading.enumerate() if thread.name == "searchgym-tool"]
    del tool
    for thread in threads:
        thread.join(10)
    assert loops[0].is_closed()


@pytest.mark.slow_cases
@pytest.mark.parametrize("error", [ConnectionError("over"), SystemExit("over"), asyncio.CancelledError("over")])
@pytest.mark.parametrize("queries", [["a"], ["a", "b", "c"]])
def test_what_a_function_raises_is_the_retrievers_fault(error, queries):
    def plain(query, k):
        raise error

    async def later(query, k):
        raise error

    async def fine(query, k):
        return [query]

    for function in (plain, later):
        with pytest.raises(RetrieverError, match=f"{type(error).__name__}: over"):
            retrieve(ToolRetriever(function), queries, queries, 3, deadline=2.0)
    assert ToolRetriever(fine).search(["a"], 1)[0][0].passage.text == "a"


def test_the_first_query_that_fails_is_the_one_that_is_told():
    def search(query, k):
        if query in "bc":
            raise ConnectionError(query)
        return [query]

    with pytest.raises(ConnectionError, match="b"):
        in_threads(lambda query: search(query, 1), list("abcd"), 1)


def test_a_fault_is_tried_again():
    calls = []

    def search(query, k):
        calls.append(query)
        if len(calls) < 3:
            raise ConnectionError
        return [query]

    assert retrieve(ToolRetriever(search), ["q"], ["x"], 3, deadline=10)[0][0].passage.text == "x"
    assert len(calls) == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_call_that_hangs_keeps_neither_the_caller_nor_the_program(kind):
    wait = "await asyncio.sleep(600)" if kind == "async def" else "time.sleep(600)"
    code = f"""
import asyncio, time
from searchgym.retrieval.retriever import retrieve
from searchgym.retrieval.kinds.tool import ToolRetriever
{kind} hangs(query, k):
    {wait}
try:
    retrieve(ToolRetriever(hangs), ["1", "2"], ["a", "b"], 3, 0.05)
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert "no reply before the deadline" in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_a_card_names_the_function():
    tool = Sources().open(find_retriever({"kind": "tool", "function": f"{__name__}:named", "calls": 2}))
    assert [hit.passage.text for hit in tool.search(["x"], 3)[0]] == ["x", "x", "x"]
    assert tool.calls_at_once == 2
    assert identify(tool) == {"retriever": "ToolRetriever", "kind": "tool", "function": f"{__name__}:named"}
    for name in ("searchgym.nothing:f", "searchgym.records:nothing", "searchgym", ""):
        with pytest.raises(UsageError, match="expected module:name"):
            ToolRetriever.of_name(name)
    with pytest.raises(UsageError, match="is a str, not a function"):
        ToolRetriever.of_name("searchgym.records:__name__")
    with pytest.raises(UsageError, match="at least 1, got 0"):
        ToolRetriever(named, calls=0)


def named(query, k):
    return [query] * k
