"""The HTTP application of a retrieval server: Search-R1's ``/retrieve``, M-ASK's ``/search``, health and metrics.

Request bodies are parsed and checked by hand instead of by a pydantic model, because the work per request limits the
speed of a server with one process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import ClientDisconnect

from searchgym.errors import BusyError, RetrieverError, UsageError
from searchgym.records import Hit
from searchgym.retrieval.wire import contents, document
from searchgym.serving.access import Access, AccessMiddleware
from searchgym.serving.service import Limits, Service

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

DEFAULT_K: Final = 3
"""Number of hits per query if a request names none, as in Search-R1."""
LONG: Final = 256
"""Number of hits above which a reply is encoded in a thread; encoding this many takes about a millisecond."""


class _BadRequestError(Exception):
    """Error in a request, with its reason and the HTTP status of the reply."""

    def __init__(self, reason: str, status: int = 422) -> None:
        self.reason, self.status = reason, status
        super().__init__(reason)


def make_app(
    service: Service,
    info: Callable[[], Mapping[str, Any]] = dict,
    access: Access | None = None,
    mcp: Server[Any] | None = None,
) -> FastAPI:
    """Returns the HTTP application of a retrieval service.

    Args:
        service: Service that answers the queries; it starts to load when the application starts.
        info: Returns the reply of ``/info``, a description of the index.
        access: Decides which requests are answered. Default: requests for localhost or an IP address.
        mcp: Server of the Model Context Protocol (`Tools.server`) to answer at ``/mcp``. Default: none.
    """
    manager, routes = None, []
    if mcp is not None:
        from searchgym.serving.mcp_tools import mounted

        route, manager = mounted(mcp, service.limits.body)
        routes.append(route)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        async with nullcontext() if manager is None else manager.run():
            yield

    app = FastAPI(title="SearchGym retrieval", lifespan=lifespan)
    app.add_middleware(AccessMiddleware, access=access or Access())
    app.router.routes.extend(routes)

    @app.post("/retrieve")
    async def retrieve(request: Request) -> Response:
        """Answers a request in Search-R1's schema, ``{"queries": [..], "topk": 3, "return_scores": false}``.

        UnityMAS-O's client tries this path first, with the schema of ``/search``, and gets a reply in that schema.
        """
        return await _answer(service, request, _retrieve)

    @app.post("/search")
    async def search(request: Request) -> Response:
        """Answers a request in the schema of M-ASK and UnityMAS-O, ``{"questions": [..], "N": 3}``."""
        return await _answer(service, request, _search)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Reports that the process is alive."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Response:
        """Reports whether queries can be answered: status 503 and the progress of loading until then."""
        if service.ready:
            return _json({"ready": True})
        seconds = round(service.loading_seconds, 1)
        return _json({"ready": False, "loading_seconds": seconds, "loading": service.loading}, 503)

    @app.get("/info")
    async def about() -> Response:
        """Describes the index that is searched; status 503 while it loads."""
        return _json(info()) if service.ready else _error("loading", 503, 2)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Returns the metrics as Prometheus text."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


Schema = Callable[[Service, dict[str, Any]], Awaitable[bytes]]
"""Function that answers the body of a request with the body of a reply."""


async def _retrieve(service: Service, body: dict[str, Any]) -> bytes:
    """Returns the reply of ``/retrieve``: a list per query, of documents or of documents with scores."""
    if "questions" in body and "queries" not in body:
        return await _search(service, body)
    scores = body.get("return_scores", False)
    if not isinstance(scores, bool):
        raise _BadRequestError(f"return_scores must be true or false, got {scores!r:.80}")

    def row(hits: list[Hit]) -> Any:
        documents = [document(hit.passage) for hit in hits]
        if not scores:
            return documents
        return [
            {"document": found_document, "score": hit.score}
            for found_document, hit in zip(documents, hits, strict=True)
        ]

    return b'{"result": ' + await _lists(service, body, row, "queries", "topk", "return_scores") + b"}"


async def _search(service: Service, body: dict[str, Any]) -> bytes:
    """Returns the reply of ``/search``: an object per question, with the texts of its hits."""
    return await _lists(
        service, body, lambda hits: {"top_k_docs": [contents(hit.passage) for hit in hits]}, "questions", "N"
    )


# -- requests ------------------------------------------------------------------------------------------------------


async def _answer(service: Service, request: Request, schema: Schema) -> Response:
    """Returns the reply to a request, or an error reply with the reason."""
    try:
        data = await schema(service, await _body(request, service.limits))
        response = Response(data, media_type="application/json")
    except _BadRequestError as error:
        response = _error(error.reason, error.status)
    except BusyError as error:
        response = _error(str(error), 503, error.after)
    except (RetrieverError, UsageError) as error:
        response = _error(str(error), 500)
    service.metrics.requests.labels(request.url.path, response.status_code).inc()
    return response


async def _body(request: Request, limits: Limits) -> dict[str, Any]:
    """Returns the JSON object in the body of a request, reading no more than the allowed number of bytes."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":  # a web page may send other types to any server unasked
        raise _BadRequestError(f"the content type must be application/json, got {media_type!r:.80}", 415)
    read = bytearray()
    try:
        async for chunk in request.stream():
            read += chunk
            if len(read) > limits.body:
                raise _BadRequestError(f"the body has more than {limits.body} bytes: send fewer queries at once", 413)
    except ClientDisconnect:
        raise _BadRequestError("the connection ended before the end of the request", 408) from None
    try:
        body = json.loads(read)
    except (ValueError, RecursionError) as error:
        raise _BadRequestError(f"the body is not JSON: {error}", 400) from None
    if not isinstance(body, dict):
        raise _BadRequestError(f"the body must be a JSON object, got {body!r:.80}")
    return body


async def _lists(
    service: Service,
    body: Mapping[str, Any],
    row: Callable[[list[Hit]], Any],
    texts_field: str,
    k_field: str,
    *others: str,
) -> bytes:
    """Checks the fields of a body, and returns a JSON list with one row of hits per query.

    A body with an unknown field is refused, because a misspelt number of hits would silently become the default. Each
    row is encoded separately, because the encoder blocks all other threads until it is done.

    Args:
        service: The service.
        body: The body of the request.
        row: Converts the hits of one query to plain data for JSON.
        texts_field: Field of the queries.
        k_field: Field of the number of hits.
        *others: Fields that are checked elsewhere.
    """
    limits, texts, k = service.limits, body.get(texts_field), body.get(k_field)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _BadRequestError(f"{texts_field} must be a list of strings, got {texts!r:.80}")
    accepted = (texts_field, k_field, *others)
    if unknown := [field for field in body if field not in accepted]:
        raise _BadRequestError(f"unknown key {unknown[0]!r:.80}: the accepted keys are {', '.join(accepted)}")
    if len(texts) > limits.queries:
        raise _BadRequestError(f"{len(texts)} {texts_field}, at most {limits.queries} in one request", 413)
    k = DEFAULT_K if k is None else k
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= limits.k:
        raise _BadRequestError(f"{k_field} must be a number from 1 to {limits.k}, got {k!r:.80}")
    if len(texts) * k > limits.hits:
        size = f"{len(texts)} {texts_field} with {k_field} {k} are {len(texts) * k} passages"
        raise _BadRequestError(f"{size}, at most {limits.hits} in one request: send fewer {texts_field} at once", 413)
    lists = await service.search(texts, k)

    def write() -> bytes:
        return b"[" + b", ".join(_encoded(row(hits)) for hits in lists) + b"]"

    if sum(map(len, lists)) <= LONG:
        return write()
    return await asyncio.get_running_loop().run_in_executor(service.writer, write)  # other requests do not wait


def _encoded(body: Any) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only express as an escape
        return json.dumps(body).encode()


def _json(body: Any, status: int = 200) -> Response:
    return Response(_encoded(body), status, media_type="application/json")


def _error(reason: str, status: int, after: int | None = None) -> Response:
    """Returns an error reply; `after` is the number of seconds for ``Retry-After``."""
    response = _json({"detail": reason}, status)
    if after is not None:
        response.headers["Retry-After"] = str(after)
    return response
