"""Any function as a retriever: a web search, a client of one's own, a tool of an MCP server."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import math
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

from searchgym.corpora.retrieval.remote.wire import read_contents
from searchgym.corpora.retrieval.retriever import check_request
from searchgym.errors import RetrieverError, UsageError
from searchgym.records import Hit, Passage

T = TypeVar("T")
TEXTS: Final = ("text", "contents", "content", "snippet", "body", "description")
"""Where a mapping may have its text, in this order."""
TITLES: Final = ("title", "name")
IDS: Final = ("id", "docid", "url", "link", "href")
SHOWN: Final = 200
"""Characters of a wrong result in a message."""


class ToolRetriever:
    """Asks a function, plain or ``async``, and reads what it returns as hits.

    For each query a sequence is expected, best first, or the result of an MCP tool (with `content`, a list of items
    with `text`, and `isError`). An item is a `Hit`; a `Passage`; a text, which has no title; or a mapping with a text
    (``text``, ``contents``, ``snippet`` ...) and, where known, ``title``, ``id`` or ``url``, and ``score``. Without a
    score it is 1 / rank. Items after the k-th are left out.

    A plain function is called from as many threads as there are calls; an ``async`` one runs in an event loop that
    lasts as long as the retriever, so that connections can be kept. A call that never returns keeps its place among
    the `calls`: give the function a deadline of its own.

    Args:
        function: ``function(query, k)``; with `batched`, ``function(queries, k)``, which returns one result per query.
        batched: Whether it takes several queries at once.
        calls: Calls under way at once.
    """

    def __init__(self, function: Callable[..., Any], *, batched: bool = False, calls: int = 8) -> None:
        if not callable(function):
            raise UsageError(f"a tool is a function of (query, k), got {type(function).__name__}")
        if calls < 1:
            raise UsageError(f"calls is at least 1, got {calls}")
        self.function, self.batched, self.calls_at_once = function, batched, calls
        if not batched:
            self.queries_at_once = 1  # a fault of one query is not the others'
        self._free = threading.BoundedSemaphore(calls)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    @classmethod
    def of_name(cls, name: str, *, calls: int = 8) -> Self:
        """Imports ``"module:function"``, a function of one query.

        Raises:
            UsageError: It is not there, or is not a function.
        """
        module, _, attribute = name.partition(":")
        try:
            function = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise UsageError(f"cannot load the tool {name!r} (expected module:function): {error}") from error
        return cls(function, calls=calls)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, in the function's order.

        Raises:
            RetrieverError: The function returned something else, or says that it failed.
            UsageError: `queries` is a single string, or `k` is below 1.
        """
        check_request(queries, k)
        if not queries:
            return []
        if not self.batched:
            return in_threads(lambda query: read_hits(self._call(query, k), k), queries, self.calls_at_once)
        results = self._call(list(queries), k)
        if not _is_list(results) or len(results) != len(queries):
            raise RetrieverError(f"expected one result for each of {len(queries)} queries, got {_shown(results)}")
        return [read_hits(result, k) for result in results]

    def identity(self) -> dict[str, Any]:
        """Returns the function's name, which is all that is known of it."""
        function: Any = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return {"kind": "tool", "function": f"{function.__module__}:{function.__qualname__}"}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _call(self, asked: str | list[str], k: int) -> Any:
        """Calls the function, once there is a place."""
        with self._free:
            result = self.function(asked, k)
            if not inspect.isawaitable(result):
                return result
            return asyncio.run_coroutine_threadsafe(_outcome(result), self._running_loop()).result()()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the event loop, started when it is first needed and stopped when nobody has the retriever."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(self._loop,), name="searchgym-tool", daemon=True)
                thread.start()
                weakref.finalize(self, _stop, self._loop, thread)
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs an event loop until it is told to stop, and ends what is left in it."""
    loop.run_forever()
    if left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(timeout=1.0)


async def _outcome(call: Awaitable[T]) -> Callable[[], T]:
    """Returns what gives the result, or raises what the call raised: not even SystemExit may end the event loop."""
    try:
        result = await call
    except BaseException as error:
        raised = error

        def again() -> T:
            raise raised

        return again
    return lambda: result


def in_threads(function: Callable[[str], T], items: Sequence[str], threads: int) -> list[T]:
    """Returns the function's results, in order; raises what the first call that failed raised.

    The threads are daemons: a call that hangs does not keep the program from ending.
    """
    if len(items) == 1:
        return [function(items[0])]
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    left = iter(range(len(items)))
    taking = threading.Lock()

    def work() -> None:
        while not errors:
            with taking:
                number = next(left, None)
            if number is None:
                return
            try:
                results[number] = function(items[number])
            except BaseException as error:
                errors[number] = error

    workers = [
        threading.Thread(target=work, name="searchgym-tool", daemon=True) for _ in range(min(threads, len(items)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(items))]


# -- reading results -----------------------------------------------------------------------------------------------


def read_hits(result: Any, k: int) -> list[Hit]:
    """Reads what a function returned for one query; see `ToolRetriever`.

    Raises:
        RetrieverError: It is something else, or an error.
    """
    items = _mcp_items(result) if hasattr(result, "content") and not isinstance(result, Mapping) else result
    if not _is_list(items):
        raise RetrieverError(f"a tool returns a list of hits, passages, texts or mappings, got {_shown(result)}")
    return [_hit(item, rank) for rank, item in enumerate(items[:k], start=1)]


def _mcp_items(result: Any) -> list[Any]:
    """Returns the texts of an MCP tool's result; what is an object in JSON, or a list of them, is read as such.

    Source: Model Context Protocol, specification of 2025-06-18, server features, tools, "Tool Result".
    """
    if getattr(result, "isError", False):
        raise RetrieverError(f"the tool failed: {_shown(result.content)}")
    texts = [getattr(item, "text", None) for item in result.content] if _is_list(result.content) else [None]
    items: list[Any] = []
    for text in texts:
        if not isinstance(text, str):
            raise RetrieverError(f"the tool sent something that is no text: {_shown(result.content)}")
        items += _json_objects(text) or [text]
    return items


def _json_objects(text: str) -> list[Any]:
    """Returns the objects that a text holds as JSON; nothing if it is anything else."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return []
    rows = data if isinstance(data, list) else [data]
    return rows if all(isinstance(row, dict) for row in rows) else []


def _hit(item: Any, rank: int) -> Hit:
    """Reads one item of a result."""
    if isinstance(item, Hit):
        return item
    if isinstance(item, Passage):
        return Hit(item, 1.0 / rank)
    if isinstance(item, str) and item.strip():
        return Hit(Passage(item, "", item), 1.0 / rank)
    if isinstance(item, Mapping):
        inner = item.get("document")
        page = _passage(inner if isinstance(inner, Mapping) else item)
        score = item.get("score")
        if page is not None and (score is None or _is_number(score)):
            return Hit(page, 1.0 / rank if score is None else float(score))
    raise RetrieverError(f"item {rank} of a tool's result is no hit, passage, text or mapping with one: {_shown(item)}")


def _passage(row: Mapping[str, Any]) -> Passage | None:
    """Reads a mapping's passage; None if it has neither text nor title, or is an error."""
    title, text, id = _first(row, TITLES), _first(row, TEXTS) or "", _first(row, IDS)
    if row.get("error") or not (title or text):
        return None
    if title is None and text == row.get("contents"):
        return read_contents(text, id)
    return Passage(id or title or text, title or "", text)


def _first(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Returns the first of some fields that holds a text, or a number."""
    found = (row.get(name) for name in names)
    return next((str(one) for one in found if one != "" and isinstance(one, (str, int))), None)


def _is_list(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes))


def _is_number(given: Any) -> bool:
    return isinstance(given, (int, float)) and math.isfinite(given)


def _shown(given: Any) -> str:
    shown = f"{type(given).__name__} {given!r}"
    return shown if len(shown) <= SHOWN else shown[:SHOWN] + "..."
