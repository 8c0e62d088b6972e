"""The ``serve retriever`` command: a retriever behind HTTP, or as tools of the Model Context Protocol."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from searchgym.cli.options import takes_records
from searchgym.cli.output import say
from searchgym.errors import UsageError
from searchgym.packages import install_command

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from searchgym.envs.pages.pages import PageIndex
    from searchgym.retrieval.cards import Progress
    from searchgym.retrieval.retriever import Retriever
    from searchgym.serving.service import Service

SWITCH: Final = 0.001
"""Seconds after which a thread that searches or writes an answer lets the others run; Python's own are 5 times more."""

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 also serves other machines.")]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Command-line options of a server: its address, limits, who may use it, and its MCP tools."""

    host: Host = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one and prints it.")] = 8000
    calls: Annotated[int, typer.Option(min=1, help="Retriever calls that run at once.")] = 1
    max_queries: Annotated[int, typer.Option(min=1, help="Maximum queries per request.")] = 1024
    max_k: Annotated[int, typer.Option(min=1, help="Maximum passages per query.")] = 100
    max_body: Annotated[int, typer.Option(min=1, help="Maximum bytes of a request body.")] = 4 * 2**20
    max_hits: Annotated[int, typer.Option(min=1, help="Maximum passages per request, its queries times k.")] = 10_240
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Maximum queries in the queue; further ones get status 503.")
    ] = 8192
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a request to arrive, and for a client to take its reply.")
    ] = 30.0
    grace: Annotated[int, typer.Option(min=0, help="Seconds to finish accepted requests at shutdown.")] = 30
    token: Annotated[
        str | None,
        typer.Option(envvar="SEARCHGYM_TOKEN", help="Token that clients must send; other users see it on this line."),
    ] = None
    token_file: Annotated[Path | None, typer.Option(help="File with the token.")] = None
    open_: Annotated[bool, typer.Option("--open", help="Serve other machines without a token.")] = False
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Name by which clients reach the server, * for any; may be repeated.")
    ] = None
    mcp: Annotated[
        bool, typer.Option("--mcp", help="Also serve MCP tools, search and open, at /mcp: for agents of any kind.")
    ] = False
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Serve the MCP tools on standard input and output, and nothing by HTTP.")
    ] = False
    snippet_words: Annotated[
        int, typer.Option(min=0, help="Maximum words of each passage that the tool search shows; 0 shows all.")
    ] = 0
    page_words: Annotated[int, typer.Option(min=1, help="Maximum words that the tool open shows at once.")] = 500


@takes_records
def serve_retriever(
    *,
    index: Annotated[
        str | None,
        typer.Argument(
            help="Index folder, corpus file, folder of documents, or name of a corpus card.", show_default=False
        ),
    ] = None,
    retriever: Annotated[str | None, typer.Option(help="Retriever card to search with.")] = None,
    options: ServeOptions,
) -> None:
    """Serve a retriever over HTTP, or as MCP tools.

    Paths: Search-R1's POST /retrieve, M-ASK's POST /search, /healthz, /readyz, /info, /metrics, and /mcp by --mcp.
    """
    try:
        import uvicorn

        from searchgym.serving.access import Access
        from searchgym.serving.app import make_app
        from searchgym.serving.connections import bounded
        from searchgym.serving.service import Limits, Service
    except ImportError as error:
        raise UsageError(f"serving needs {error.name}: {install_command('serve')}") from error
    access = Access(_token(options), [*(options.allow_host or ()), options.host, socket.gethostname()])
    limits = Limits(
        queries=options.max_queries,
        k=options.max_k,
        hits=options.max_hits,
        body=options.max_body,
        waiting=options.max_waiting,
        calls=options.calls,
    )
    sys.setswitchinterval(SWITCH)
    tools, with_tools = None, options.mcp or options.stdio
    loading = _Loading(_opener(index, retriever), pages=with_tools)
    service = Service(loading, limits, loading.fail)
    if with_tools:
        from searchgym.serving.mcp_tools import PageLimits, Tools

        pages = None if index is None else lambda: loading.pages
        page_limits = PageLimits(snippet_words=options.snippet_words, page_words=options.page_words)
        tools = Tools(service, pages, page_limits).server()
        if options.stdio:
            return _on_stdio(service, tools, loading)
    app = make_app(service, loading.info, access, tools)
    config = uvicorn.Config(
        app,
        http=bounded(options.timeout, options.max_body),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=options.grace,
    )
    server = uvicorn.Server(config)
    loading.failed = lambda: setattr(server, "should_exit", True)
    try:
        listener = socket.create_server((options.host, options.port), backlog=2048, reuse_port=False)
    except OSError as error:
        raise UsageError(f"cannot listen on {options.host}:{options.port} ({error}): give another --port") from error
    with contextlib.closing(listener):
        address = f"http://{options.host}:{listener.getsockname()[1]}"
        say(f"listening at {address}")
        if options.mcp:
            say(f"MCP tools at {address}/mcp")
        server.run(sockets=[listener])
    return loading.check()


class _Loading:
    """Loads a retriever for a service, and keeps it, its pages and the error if that failed.

    Args:
        open_it: Function that opens the retriever.
        pages: Whether pages of the corpus shall be found by title.
    """

    def __init__(self, open_it: Callable[[Progress], Retriever], pages: bool) -> None:
        self._open_it, self._wants_pages = open_it, pages
        self._retriever: Retriever | None = None
        self._error: BaseException | None = None
        self.pages: PageIndex | None = None
        """Pages of the corpus, once they are loaded."""
        self.failed: Callable[[], object] = lambda: None
        """Called when loading has failed."""

    def __call__(self, progress: Progress) -> Retriever:
        """Loads the retriever."""
        from searchgym.envs.pages.pages import pages_of
        from searchgym.retrieval.retriever import corpus_of, identify

        retriever = self._retriever = self._open_it(progress)
        if self._wants_pages and corpus_of(retriever) is not None:
            self.pages = pages_of(retriever)
        gc.collect()
        gc.freeze()  # a collection would otherwise visit all that is loaded, and hold every request for 0.2 s
        say(f"ready: {identify(retriever).get('passages', 'unknown number of')} passages")
        return retriever

    def fail(self, error: BaseException) -> None:
        """Keeps the error."""
        self._error = error
        self.failed()

    def info(self) -> dict[str, Any]:
        """Describes the index."""
        from searchgym.retrieval.retriever import identify

        return identify(self._retriever) if self._retriever is not None else {}

    def check(self) -> None:
        """Raises the error if loading has failed."""
        if self._error is not None:
            raise self._error


def _on_stdio(service: Service, tools: Server[Any], loading: _Loading) -> None:
    """Serves the tools on standard input and output until the input ends."""
    import asyncio

    from mcp.server.stdio import stdio_server

    async def run() -> None:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        if main is not None:
            loading.failed = lambda: loop.call_soon_threadsafe(main.cancel)
        service.start()
        async with stdio_server() as (read, write):
            await tools.run(read, write, tools.create_initialization_options())

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(run())
    loading.check()


def _token(options: ServeOptions) -> str | None:
    """Returns the token that clients must send, None if none is given."""
    token = options.token
    if options.token_file is not None:
        try:
            token = options.token_file.read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--token-file {options.token_file}: {error}") from error
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise UsageError("the token is empty or has characters that no HTTP header can hold: use letters and digits")
    if token is None and not (options.open_ or options.stdio or is_loopback(options.host)):
        raise UsageError(
            f"--host {options.host} serves other machines: set the environment variable SEARCHGYM_TOKEN, here and "
            "where clients run, or give --token-file, or --open to serve everyone who reaches this address"
        )
    return token


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _opener(index: str | None, retriever: str | None) -> Callable[[Progress], Retriever]:
    """Returns a function that loads the retriever; wrong arguments are refused before anything is loaded."""
    from searchgym.envs.data import find_corpus, load_corpus
    from searchgym.retrieval.cards import Sources, find_retriever

    card = None if retriever is None else find_retriever(retriever)
    if card is not None and not card.needs_corpus:
        return lambda progress: Sources().open(card)
    if index is None:
        raise UsageError("nothing to search: give an index folder, a corpus file or the name of a corpus card")
    path = find_corpus(index)
    return lambda progress: load_corpus(path, card, progress)
