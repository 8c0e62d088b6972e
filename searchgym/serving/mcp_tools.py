"""Tools ``search`` and ``open`` of a Model Context Protocol server over a retrieval service, for agents of any kind.

Source: Model Context Protocol, specification of 2025-06-18 and later, server features, "Tools".

A result is one JSON text, so page text is always a quoted string in it, whatever it contains. A wrong argument, a
missing page or a failed retriever gives a result with ``isError`` and the reason, which the model can read.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from searchgym.envs.pages.look import no_page
from searchgym.envs.pages.pages import PageIndex, part_of, parts_of, snippet
from searchgym.errors import RetrieverError, UsageError
from searchgym.packages import check
from searchgym.serving.service import Service
from searchgym.version import __version__

check("mcp")
import mcp_types as types  # noqa: E402 (after the check, which names the version that works)
from mcp.server.context import ServerRequestContext  # noqa: E402
from mcp.server.lowlevel import Server  # noqa: E402
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager  # noqa: E402
from mcp.shared.exceptions import MCPError  # noqa: E402
from starlette.routing import Route  # noqa: E402

DEFAULT_K: Final = 5
"""Number of hits if a call names none."""
PATH: Final = "/mcp"
"""Path of the tools on the HTTP server."""
SEARCH_SECONDS: Final = 20.0
"""Maximum number of seconds that a call waits for the corpus to load: an agent that starts a server calls at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Limits on the page text that the tools return."""

    snippet_words: int = 0
    """Maximum number of words of each hit; 0 returns whole passages."""
    page_words: int = 500
    """Maximum number of words of a part of an opened page."""


class _WrongArgumentError(Exception):
    """Raised when a call's argument cannot be used; the message is for the model."""


class Tools:
    """Tools ``search`` and ``open`` over a retrieval service.

    Args:
        service: Service that answers the queries.
        pages: Function that returns the pages that can be opened, or None while they load. If `pages` is None because
            the corpus is not on this machine, there is no tool ``open``.
        limits: Limits on the page text that the tools return.
    """

    def __init__(
        self, service: Service, pages: Callable[[], PageIndex | None] | None, limits: PageLimits | None = None
    ) -> None:
        self._service, self._pages, self._shown = service, pages, limits or PageLimits()

    def server(self) -> Server[Any]:
        """Returns the protocol's server."""
        more = " Open a page by its title or id to read all of it." if self._pages is not None else ""
        return Server(
            "searchgym",
            version=__version__,
            instructions=f"Search a corpus with the tool search.{more}",
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    async def _list(self, context: ServerRequestContext[Any], request: object) -> types.ListToolsResult:
        """Lists the tools with the schemas of their arguments."""
        most = self._service.limits.k
        query = {"type": "string", "description": "What to look for."}
        k = {"type": "integer", "minimum": 1, "maximum": most, "default": min(DEFAULT_K, most)}
        tools = [_tool("search", "Searches the corpus; returns a JSON list of passages, best first.", query=query, k=k)]
        if self._pages is not None:
            page = {"type": "string", "description": "Title of the page, or the id of a passage of it."}
            part = {"type": "integer", "minimum": 1, "default": 1, "description": "Number of the part."}
            tools.append(_tool("open", "Opens a page of the corpus, long ones in parts.", page=page, part=part))
        return types.ListToolsResult(tools=tools)

    async def _call(
        self, context: ServerRequestContext[Any], request: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Answers a call of a tool."""
        arguments = request.arguments or {}
        try:
            if request.name == "search":
                result: object = await self._search(arguments)
            elif request.name == "open" and self._pages is not None:
                result = await self._open(arguments, self._pages)
            else:
                tools = "search and open" if self._pages is not None else "only search"
                raise MCPError(types.INVALID_PARAMS, f"unknown tool {request.name!r:.80}: this server has {tools}")
        except (_WrongArgumentError, RetrieverError, UsageError) as error:
            text = str(error).encode("utf-8", "replace").decode()
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
        text = json.dumps(result, ensure_ascii=False)
        if any("\ud800" <= character <= "\udfff" for character in text):  # a lone surrogate, which UTF-8 lacks
            text = json.dumps(result)
        return types.CallToolResult(content=[types.TextContent(text=text)])

    async def _search(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Returns the hits of a query as JSON objects."""
        limit = self._service.limits.k
        query, k = _arguments(arguments, "query", "k", min(DEFAULT_K, limit), limit)
        await self._service.until_ready(SEARCH_SECONDS)
        (hits,) = await self._service.search([query], k)
        if words := self._shown.snippet_words:
            hits = [snippet(hit, words) for hit in hits]
        passages = [(hit.passage, hit.score) for hit in hits]
        return [{"id": p.id, "title": p.title, "text": p.text, "score": score} for p, score in passages]

    async def _open(self, arguments: Mapping[str, Any], loaded: Callable[[], PageIndex | None]) -> dict[str, Any]:
        """Returns a part of a page as a JSON object."""
        target, part = _arguments(arguments, "page", "part", 1)
        await self._service.until_ready(SEARCH_SECONDS)
        if (pages := loaded()) is None:
            raise _WrongArgumentError(f"the pages are loading for {self._service.loading_seconds:.0f} s: try again")

        def look() -> dict[str, Any]:
            positions, words = pages.find(target), self._shown.page_words
            if len(positions) != 1:
                raise _WrongArgumentError(no_page(target, positions, pages))
            page = pages.at(positions[0])
            parts = parts_of(page.text, words)
            if part > parts:
                raise _WrongArgumentError(f"the page {page.title:.200} has {parts} part(s), got part {part}")
            fields = {"id": pages.id_at(positions[0]), "title": page.title, "part": part, "parts": parts}
            return fields | {"text": part_of(page.text, part, words)}

        return await asyncio.to_thread(look)


def mounted(server: Server[Any], body: int) -> tuple[Route, StreamableHTTPSessionManager]:
    """Returns the route of a server on an HTTP application, and the manager whose ``run()`` must be running.

    Requests are independent: there are no sessions, and no streams that stay open.

    Args:
        server: The protocol's server.
        body: Maximum number of bytes in a request.
    """
    manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True, max_request_body_size=body)
    return Route(PATH, StreamableHTTPASGIApp(manager), methods=["POST"]), manager


def _tool(name: str, description: str, **arguments: dict[str, Any]) -> types.Tool:
    """Returns a read-only tool whose first argument is required."""
    schema = {
        "type": "object",
        "properties": arguments,
        "required": [next(iter(arguments))],
        "additionalProperties": False,
    }
    hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return types.Tool(name=name, description=description, input_schema=schema, annotations=hints)


def _arguments(
    arguments: Mapping[str, Any], text: str, number: str, default: int, most: int | None = None
) -> tuple[str, int]:
    """Checks and returns the arguments of a tool: a text that is not blank, and an integer of at least 1."""
    for name in arguments:
        if name not in (text, number):
            near = difflib.get_close_matches(str(name), (text, number), 1)
            hint = f": did you mean {near[0]}?" if near else f": the arguments are {text} and {number}"
            raise _WrongArgumentError(f"unknown argument {name!r:.80}{hint}")
    words, count = arguments.get(text), arguments.get(number, default)
    if not isinstance(words, str) or not words.strip():
        raise _WrongArgumentError(f"{text} must be a text that is not blank, got {words!r:.80}")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or (most is not None and count > most):
        accepted = "of at least 1" if most is None else f"from 1 to {most}"
        raise _WrongArgumentError(f"{number} must be a number {accepted}, got {count!r:.80}")
    return words, count
