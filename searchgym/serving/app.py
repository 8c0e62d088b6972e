"""The HTTP face of a retriever: Search-R1's ``/retrieve`` and the M-ASK family's ``/search``, health, counters.

Bodies are read and checked here, without a model of pydantic's per request: a server of one process is as fast as what
it does per request.
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
"""Hits per query where a request names no number, as in Search-R1."""


class _BadRequestError(Exception):
    """What is wrong with a request, and the status that says so."""

    def __init__(self, reason: str, status: int = 422) -> None:
        self.reason, self.status = reason, status
        super().__init__(reason)


def make_app(service: Service, info: Callable[[], Mapping[str, Any]] = dict) -> FastAPI:
    """Returns the application over a service.

    Args:
        service: Begins to load when the application starts.
        info: What ``/info`` says: of which index the hits are.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield

    app = FastAPI(title="SearchGym retrieval", lifespan=lifespan)

    @app.post("/retrieve")
    async def retrieve(request: Request) -> Response:
        """Search-R1: ``{"queries": [..], "topk": 3, "return_scores": false}``."""
        return await _answer(service, request, _retrieve)

    @app.post("/search")
    async def search(request: Request) -> Response:
        """M-ASK, UnityMAS-O: ``{"questions": [..], "N": 3}``."""
        return await _answer(service, request, _search)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Response:
        """Queries can be answered; 503 until then."""
        if service.ready:
            return _json({"ready": True})
        seconds = round(service.loading_seconds, 1)
        return _json({"ready": False, "loading_seconds": seconds, "loading": service.loading}, 503)

    @app.get("/info")
    async def about() -> Response:
        """Of which index the hits are."""
        return _json(info()) if service.ready else _error("loading", 503, 2)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters as Prometheus text."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


Schema = Callable[[Service, dict[str, Any]], Awaitable[Any]]


async def _retrieve(service: Service, body: dict[str, Any]) -> Any:
    """Answers ``/retrieve``: one list per query, of documents, or of documents with their scores."""
    scores = body.get("return_scores", False)
    if not isinstance(scores, bool):
        raise _BadRequestError(f"return_scores is true or false, got {scores!r:.80}")
    found = await service.search(_texts(body, "queries", service.limits), _k(body, "topk", service.limits))
    if not scores:
        return {"result": [[document(hit.passage) for hit in hits] for hits in found]}
    return {"result": [[{"document": document(hit.passage), "score": hit.score} for hit in hits] for hits in found]}


async def _search(service: Service, body: dict[str, Any]) -> Any:
    """Answers ``/search``: one object per question, with texts."""
    found = await service.search(_texts(body, "questions", service.limits), _k(body, "N", service.limits))
    return [{"top_k_docs": [contents(hit.passage) for hit in hits]} for hits in found]


# -- requests ------------------------------------------------------------------------------------------------------


async def _answer(service: Service, request: Request, schema: Schema) -> Response:
    """Answers a request, or says why not."""
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
    """Reads a body, of which no more is held than may come."""
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
    texts = body.get(name)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _BadRequestError(f"{name} is a list of strings, got {texts!r:.80}")
    if len(texts) > limits.queries:
        raise _BadRequestError(f"{len(texts)} {name}, at most {limits.queries} in one request", 413)
    return texts


def _k(body: Mapping[str, Any], name: str, limits: Limits) -> int:
    k = body.get(name)
    k = DEFAULT_K if k is None else k
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= limits.k:
        raise _BadRequestError(f"{name} is a number from 1 to {limits.k}, got {k!r:.80}")
    return k


def _json(body: Any, status: int = 200) -> Response:
    try:
        data = json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON has as an escape only
        data = json.dumps(body).encode()
    return Response(data, status, media_type="application/json")


def _error(reason: str, status: int, after: int | None = None) -> Response:
    response = _json({"detail": reason}, status)
    if after is not None:
        response.headers["Retry-After"] = str(after)
    return response
