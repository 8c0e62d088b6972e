"""Retriever ``tool``: calls a Python function, such as a web search, a custom client or a tool of an MCP server."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self, TypeVar

from annotated_types import Interval
from typing_extensions import override

from searchgym.errors import RetrieverError, UsageError
from searchgym.named import check_call, load_function
from searchgym.records import Hit, Passage
from searchgym.retrieval.cards import RetrieverCard, Sources
from searchgym.retrieval.retriever import check_request
from searchgym.retrieval.wire import read_contents


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCard(RetrieverCard):
    """A Python function of the user, such as a web search or an MCP tool."""

    function: str
    """Name of the function, ``module:function``; it is called with one query and k."""
    calls: Annotated[int, Interval(ge=1, le=4096)] = 8
    """Maximum number of simultaneous calls."""

    @override
    def open(self, sources: Sources) -> ToolRetriever:
        return ToolRetriever.of_name(self.function, calls=self.calls)


T = TypeVar("T")
TEXTS: Final = ("text", "contents", "content", "snippet", "body", "description")
"""Keys under which a mapping may hold its text; the first one present is used."""
TITLES: Final = ("title", "name")
"""Keys under which a mapping may hold its title."""
IDS: Final = ("id", "docid", "url", "link", "href")
"""Keys under which a mapping may hold its id."""
SHOWN: Final = 200
"""Maximum number of characters of a wrong result in an error message."""


class ToolRetriever:
    """Retriever that calls a function, plain or ``async``, and reads its result as hits.

    For each query the function returns a sequence, best first, or the result of an MCP tool (with `content`, a list of
    items with `text`, and `isError` or `is_error`). An item is a `Hit`; a `Passage`; a text, which has no title; or a
    mapping with a text (``text``, ``contents``, ``snippet`` ...) and optionally ``title``, ``id`` or ``url``, and
    ``score``. An item without a score gets 1 / rank. Items after the k-th are ignored.

    A plain function is called in one thread per simultaneous call. An ``async`` one runs in an event loop that lives as
    long as the retriever, so that it can keep connections open. A call that never returns occupies one of the `calls`
    for good, so the function should have a timeout.

    Args:
        function: ``function(query, k)``; with `batched`, ``function(queries, k)`` that returns one result per query.
        batched: Whether the function takes several queries at once.
        calls: Maximum number of simultaneous calls.

    Raises:
        UsageError: `function` is not callable, or takes other arguments.
    """

    def __init__(self, function: Callable[..., Any], *, batched: bool = False, calls: int = 8) -> None:
        if not callable(function):
            raise UsageError(f"a tool must be a function of (query, k), got {type(function).__name__}")
        if calls < 1:
            raise UsageError(f"calls must be at least 1, got {calls}")
        check_call("a tool", function, "queries" if batched else "query", "k")
        self.function, self.batched, self.calls_at_once = function, batched, calls
        if not batched:
            self.queries_at_once = 1  # a fault of one query must not fail the others
        self._free = threading.BoundedSemaphore(calls)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    @classmethod
    def of_name(cls, name: str, *, calls: int = 8) -> Self:
        """Returns the retriever for a function of one query, imported by its name ``"module:function"``.

        Raises:
            UsageError: The function does not exist, is not callable, or takes other arguments.
        """
        return cls(load_function("tool", name, "query", "k"), calls=calls)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most k hits per query, in the function's order.

        Raises:
            RetrieverError: The function returned something other than hits, or an MCP result that reports an error.
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
        """Returns the settings that the hits depend on: the function's name, since nothing more is known about it."""
        function: Any = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return {"kind": "tool", "function": f"{function.__module__}:{function.__qualname__}"}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _call(self, query: str | list[str], k: int) -> Any:
        """Calls the function and returns its result, once fewer than `calls` other calls are running."""
        with self._free:
            result = self.function(query, k)
            if not inspect.isawaitable(result):
                return result
            value, error = asyncio.run_coroutine_threadsafe(_outcome(result), self._running_loop()).result()
            if error is not None:
                raise error
            return value

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the event loop, which starts when first needed and stops when the retriever is garbage-collected."""
        with self._lock:
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(loop,), name="searchgym-tool", daemon=True)
                thread.start()

                def stop() -> None:
                    loop.call_soon_threadsafe(loop.stop)
                    if thread is not threading.current_thread():
                        thread.join(timeout=1.0)

                weakref.finalize(self, stop)
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs an event loop until it is stopped, then cancels its remaining tasks and closes it."""
    loop.run_forever()
    if left := asyncio.all_tasks(loop):
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _outcome(call: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """Returns the result of a call or its exception, since SystemExit, for example, would end the event loop."""
    try:
        return await call, None
    except BaseException as error:
        return None, error


def in_threads(function: Callable[[str], T], items: Sequence[str], threads: int) -> list[T]:
    """Returns the results of a function for all items, in order, computed in several threads.

    The threads are daemons, so that a call that hangs does not keep the program from ending.

    Args:
        function: Function of one item.
        items: Arguments, one call each.
        threads: Maximum number of threads.

    Raises:
        BaseException: The exception of the first item whose call failed.
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
    """Returns the hits in a function's result for one query, at most k; `ToolRetriever` lists the accepted forms.

    Raises:
        RetrieverError: The result has another form, or reports an error.
    """
    items = _mcp_items(result) if hasattr(result, "content") and not isinstance(result, Mapping) else result
    if not _is_list(items):
        raise RetrieverError(f"a tool must return a list of hits, passages, texts or mappings, got {_shown(result)}")
    return [_hit(item, rank) for rank, item in enumerate(items[:k], start=1)]


def _mcp_items(result: Any) -> list[Any]:
    """Returns the items of an MCP tool's result: its texts, or the objects of a text that holds JSON objects.

    Source: Model Context Protocol, specification of 2025-06-18, server features, tools, "Tool Result".
    """
    if getattr(result, "isError", False) or getattr(result, "is_error", False):  # mcp before and since version 2
        raise RetrieverError(f"the tool failed: {_shown(result.content)}")
    texts = [getattr(item, "text", None) for item in result.content] if _is_list(result.content) else [None]
    items: list[Any] = []
    for text in texts:
        if not isinstance(text, str):
            raise RetrieverError(f"the tool sent something other than text: {_shown(result.content)}")
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        rows = data if isinstance(data, list) else [data]
        items += rows if all(isinstance(row, dict) for row in rows) else [text]
    return items


def _hit(item: Any, rank: int) -> Hit:
    """Returns one item of a result as a hit; `rank`, from 1, gives the score of an item without one."""
    if isinstance(item, Hit):
        return item
    if isinstance(item, Passage):
        return Hit(item, 1.0 / rank)
    if isinstance(item, str) and item.strip():
        return Hit(Passage(item, "", item), 1.0 / rank)
    if isinstance(item, Mapping):
        inner, score = item.get("document"), item.get("score")
        score = 1.0 / rank if score is None else score
        row = inner if isinstance(inner, Mapping) else item
        title, text, id = _first(row, TITLES), _first(row, TEXTS) or "", _first(row, IDS)
        finite = isinstance(score, (int, float)) and math.isfinite(score)
        if finite and (title or text) and not row.get("error"):
            whole = title is None and text == row.get("contents")
            page = read_contents(text, id) if whole else Passage(id or title or text, title or "", text)
            return Hit(page, float(score))
    raise RetrieverError(
        f"item {rank} of a tool's result is not a hit, a passage, a text or a mapping with a text: {_shown(item)}"
    )


def _first(row: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Returns the value of the first named field that holds a text or an integer, None if no field does."""
    values = (row.get(name) for name in names)
    return next((str(value) for value in values if value != "" and isinstance(value, (str, int))), None)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _shown(value: Any) -> str:
    """Returns a value's type and representation for an error message, shortened."""
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."
