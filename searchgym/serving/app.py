"""The HTTP application of a retrieval server: Search-R1's ``/retrieve``, M-ASK's ``/search``, health and metrics.

Request bodies are parsed and checked by hand instead of by a pydantic model, because the work per request limits the
speed of a server with one process.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from searchgym.corpora.retrieval.remote.wire import contents, document
from searchgym.errors import BusyError, RetrieverError
from searchgym.serving.service import Limits, Service

DEFAULT_K: Final = 3
"""Number of hits per query if a request names none, as in Search-R1."""


class _BadRequestError(Exception):
    """Error in a request, with its reason and the HTTP status of the reply."""

    def __init__(self, reason: str, status: int = 422) -> None:
        self.reason, self.status = reason, status
        super().__init__(reason)


def make_app(service: Service, info: Callable[[], Mapping[str, Any]] = dict) -> FastAPI:
    """Returns the HTTP application of a retrieval service.

    Args:
        service: Service that answers the queries; it starts to load when the application starts.
        info: Returns the reply of ``/info``, a description of the index.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield

    app = FastAPI(title="SearchGym retrieval", lifespan=lifespan)

    @app.post("/retrieve")
    async def retrieve(request: Request) -> Response:
        """Answers a request in Search-R1's schema, ``{"queries": [..], "topk": 3, "return_scores": false}``."""
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


Schema = Callable[[Service, dict[str, Any]], Awaitable[Any]]
"""Function that answers the body of a request with the body of a reply."""


async def _retrieve(service: Service, body: dict[str, Any]) -> Any:
    """Returns the reply of ``/retrieve``: a list per query, of documents or of documents with scores."""
    scores = body.get("return_scores", False)
    if not isinstance(scores, bool):
        raise _BadRequestError(f"return_scores is true or false, got {scores!r:.80}")
    lists = await service.search(_texts(body, "queries", service.limits), _k(body, "topk", service.limits))
    if not scores:
        return {"result": [[document(hit.passage) for hit in hits] for hits in lists]}
    return {"result": [[{"document": document(hit.passage), "score": hit.score} for hit in hits] for hits in lists]}


async def _search(service: Service, body: dict[str, Any]) -> Any:
    """Returns the reply of ``/search``: an object per question, with the texts of its hits."""
    lists = await service.search(_texts(body, "questions", service.limits), _k(body, "N", service.limits))
    return [{"top_k_docs": [contents(hit.passage) for hit in hits]} for hits in lists]


# -- requests ------------------------------------------------------------------------------------------------------


async def _answer(service: Service, request: Request, schema: Schema) -> Response:
    """Returns the reply to a request, or an error reply with the reason."""
    try:
        response = _json(await schema(service, await _body(request, service.limits)))
    except _BadRequestError as error:
        response = _error(error.reason, error.status)
    except BusyError as error:
        response = _error(str(error), 503, error.after)
    except RetrieverError as error:
        response = _error(str(error), 500)
    service.metrics.requests.labels(request.url.path, response.status_code).inc()
    return response


async def _body(request: Request, limits: Limits) -> dict[str, Any]:
    """Returns the JSON object in the body of a request, reading no more than the allowed number of bytes."""
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > limits.body:
            raise _BadRequestError(f"the body has over {limits.body} bytes: send fewer queries at once", 413)
    try:
        body = json.loads(read)
    except (ValueError, RecursionError) as error:
        raise _BadRequestError(f"the body is no JSON: {error}", 400) from None
    if not isinstance(body, dict):
        raise _BadRequestError(f"the body is a JSON object, got {body!r:.80}")
    return body


def _texts(body: Mapping[str, Any], name: str, limits: Limits) -> Sequence[str]:
    """Returns the queries in a field of a body."""
    texts = body.get(name)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _BadRequestError(f"{name} is a list of strings, got {texts!r:.80}")
    if len(texts) > limits.queries:
        raise _BadRequestError(f"{len(texts)} {name}, at most {limits.queries} in one request", 413)
    return texts


def _k(body: Mapping[str, Any], name: str, limits: Limits) -> int:
    """Returns the number of hits in a field of a body, `DEFAULT_K` if it is absent."""
    k = body.get(name)
    k = DEFAULT_K if k is None else k
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= limits.k:
        raise _BadRequestError(f"{name} is a number from 1 to {limits.k}, got {k!r:.80}")
    return k


def _json(body: Any, status: int = 200) -> Response:
    try:
        data = json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can only express as an escape
        data = json.dumps(body).encode()
    return Response(data, status, media_type="application/json")


def _error(reason: str, status: int, after: int | None = None) -> Response:
    """Returns an error reply; `after` is the number of seconds for ``Retry-After``."""
    response = _json({"detail": reason}, status)
    if after is not None:
        response.headers["Retry-After"] = str(after)
    return response
