"""A served index under load: throughput, latency and correctness, compared with its parts and with Search-R1's server.

Clients send requests of Search-R1's schema, each as soon as it has its last answer; every answer is compared, byte by
byte, with that of an in-process search. The server runs in a separate process, as with `searchgym serve retriever`,
and so do the clients, whose processor time is reported, since they compete for the cores. For comparison run

- `null`: the same server over a retriever that finds nothing, which shows the cost of HTTP and JSON;
- `in process`: the retriever called directly with 256 queries at a time, on every core;
- `loop`: a server that answers one query after the other in FastAPI's threads, as Search-R1's does (rebuilt from its
  description), over the same retriever; `loop, Lucene`: the same over pyserini's searcher, which Search-R1 uses;
- `flat`: both servers over a flat FAISS index of random vectors, with an encoder that returns random vectors; here
  answering one query at a time means reading every vector for each query.

    python benchmarks/serving.py --passages 1000000 --requests 20000
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import generated
import numpy as np

from searchgym.cli.output import emit_rows
from searchgym.retrieval import HttpRetriever, NullRetriever, Retriever, build_index, load_index
from searchgym.retrieval.wire import document

K: Final = 3
DISTINCT: Final = 8192
"""Number of distinct queries, which are sent in rotation."""
DIMENSION: Final = 384
ROLES: Final = {"ours": "bytes", "null": "", "loop": "json", "lucene": "", "flat": "ids", "flat-loop": "ids"}
"""Role of a server to the way its answers are compared: all bytes, as JSON, passage ids, or not at all."""
HEAD: Final = (
    "POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)


def main() -> None:
    """Builds the indexes, measures every server and prints the table."""
    args = parse_args()
    if args.role:
        serve(args.role, Path(args.index), Path(args.data), args.port)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        index = Path(args.index or Path(folder) / "index")
        if not index.exists():
            print("building ...", file=sys.stderr)
            build_index(generated.passages(args.passages), index)
        rows = measure(index, args)
        if args.lucene:
            lucene = Path(folder) / "lucene"
            print("building by Lucene ...", file=sys.stderr)
            build_index(generated.passages(args.passages), lucene, "lucene")
            rows.append(load("loop, Lucene", "lucene", lucene, lucene, 32, args.requests // 50, args))
            rows[-1]["of_loop"] = round(rows[2]["queries_per_s"] / rows[-1]["queries_per_s"], 2)
        if args.vectors:
            flat = Path(folder) / "vectors.faiss"
            write_flat(flat, args.vectors)
            ours = load("served, flat", "flat", index, flat, 4, args.requests // 50, args)
            loop = load("loop, flat", "flat-loop", index, flat, 4, args.clients, args)
            ours["of_loop"] = round(ours["queries_per_s"] / loop["queries_per_s"], 2)
            rows += [ours, loop]
    names = dict.fromkeys(name for row in rows for name in row)
    rows = [{name: row.get(name) for name in names} for row in rows]
    emit_rows(rows, args.json, "rows", f"{args.passages} passages, {args.clients} clients, {os.cpu_count()} cores")


def parse_args() -> argparse.Namespace:
    """Parses the command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1_000_000)
    parser.add_argument("--index", default="", help="existing index folder of these passages, instead of a new one")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--lucene", action="store_true", help="also measure the loop over pyserini's searcher")
    parser.add_argument("--vectors", type=int, default=0, help="also measure a flat index of this many vectors")
    parser.add_argument("--folder", help="where to put indexes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--data", default="", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(index: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures every server and returns the rows of the table, with the served index relative to the others."""
    rows = [apart(in_process, str(index), args.passages)]
    direct = rows[0]["queries_per_s"]
    for size in (32, 1):
        null = load("null", "null", index, index, size, args.requests, args)
        ours = load("served", "ours", index, index, size, args.requests, args)
        loop = load("loop", "loop", index, index, size, max(args.requests // 10, args.clients), args)
        allowed = 1 / (1 / null["queries_per_s"] + 1 / direct)
        ours["of_in_process"] = round(ours["queries_per_s"] / direct, 3)
        ours["of_parts"] = round(ours["queries_per_s"] / allowed, 3)
        ours["of_loop"] = round(ours["queries_per_s"] / loop["queries_per_s"], 2)
        rows += [null, ours, loop]
    return rows


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def in_process(index: str, passages: int) -> dict[str, Any]:
    """Measures the retriever when called directly; returns its row of the table."""
    retriever, asked = load_index(index), generated.queries(DISTINCT, passages)
    rates = []
    for _ in range(4):
        started = time.perf_counter()
        for at in range(0, len(asked), 256):
            retriever.search(asked[at : at + 256], K)
        rates.append(len(asked) / (time.perf_counter() - started))
    return {"what": "in process", "queries": 256, "queries_per_s": round(statistics.median(rates[1:]), 1)}


# -- servers -------------------------------------------------------------------------------------------------------


def serve(role: str, index: Path, data: Path, port: int) -> None:
    """Runs the server of a role until the process is ended."""
    import uvicorn

    app: Any
    if role == "lucene":
        app = loop_app(lucene_search(data))
    elif role in ("loop", "flat-loop"):
        app = loop_app(our_search(opened(role, index, data)))
    else:
        from searchgym.serving.app import make_app
        from searchgym.serving.service import Service

        app = make_app(Service(lambda _: opened(role, index, data)))
    uvicorn.run(app, port=port, log_level="warning", access_log=False, backlog=2048)


def opened(role: str, index: Path, data: Path) -> Retriever:
    """Opens the retriever that the server of a role uses."""
    if role == "null":
        return NullRetriever()
    return flat_retriever(index, data) if role.startswith("flat") else load_index(index)


class MadeEncoder:
    """Encoder that returns a random vector for each text at once."""

    def encode_queries(self, texts: Sequence[str]) -> Any:
        """Returns a random vector for each text, (Q, D) float32."""
        seeds = [int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") for text in texts]
        drawn = [np.random.Generator(np.random.SFC64(seed)).standard_normal(DIMENSION, np.float32) for seed in seeds]
        return np.stack(drawn) / DIMENSION**0.5


def write_flat(path: Path, count: int) -> None:
    """Writes a flat index of random vectors."""
    import faiss

    index = faiss.IndexFlatIP(DIMENSION)
    for block in range(0, count, 100_000):
        draw = np.random.default_rng([3, block])
        index.add(draw.standard_normal((min(100_000, count - block), DIMENSION), np.float32) / DIMENSION**0.5)
    faiss.write_index(index, str(path))


def flat_retriever(index: Path, data: Path) -> Retriever:
    """Returns a retriever over random vectors with the passages of an index folder."""
    from searchgym.corpora.store.reader import PassageStore
    from searchgym.retrieval import find_retriever
    from searchgym.retrieval.dense.backend import DenseRetriever
    from searchgym.retrieval.dense.vectors import open_index

    card: Any = find_retriever({"kind": "dense", "encoder": {"name": "made", "model": "none", "dimension": DIMENSION}})
    encoder: Any = MadeEncoder()
    return DenseRetriever(open_index(data), encoder, PassageStore(index), None, card)


def our_search(retriever: Retriever) -> Callable[[str, int], list[dict[str, Any]]]:
    """Returns a function that answers one query with a retriever."""

    def search(query: str, k: int) -> list[dict[str, Any]]:
        (hits,) = retriever.search([query], k)
        return [{"document": document(hit.passage), "score": hit.score} for hit in hits]

    return search


def lucene_search(index: Path) -> Callable[[str, int], list[dict[str, Any]]]:
    """Returns a function that answers one query with pyserini's searcher and the passages of the index folder."""
    from searchgym.corpora.store.reader import PassageStore
    from searchgym.retrieval.lucene.java import start_java

    start_java("4g")
    os.environ.setdefault("OPENAI_API_KEY", "unused")  # pyserini does not import without one
    from pyserini.search.lucene import LuceneSearcher

    searcher, store = LuceneSearcher(str(index / "lucene")), PassageStore(index)
    searcher.set_bm25(0.9, 0.4)

    def search(query: str, k: int) -> list[dict[str, Any]]:
        hits = searcher.search(query, k)
        return [{"document": document(store[int(hit.docid)]), "score": hit.score} for hit in hits]

    return search


def loop_app(search: Callable[[str, int], list[dict[str, Any]]]) -> Any:
    """Returns a server like Search-R1's, rebuilt from its description: it answers the queries one by one."""
    from fastapi import FastAPI
    from pydantic import BaseModel

    class QueryRequest(BaseModel):
        queries: list[str]
        topk: int | None = None
        return_scores: bool = False

    def retrieve(request: QueryRequest) -> dict[str, Any]:
        result = []
        for query in request.queries:
            result.append(search(query, request.topk or K))
        return {"result": result}

    retrieve.__annotations__["request"] = QueryRequest
    app = FastAPI()
    app.post("/retrieve")(retrieve)
    app.get("/readyz")(lambda: {"ready": True})
    return app


@contextmanager
def running(role: str, index: Path, data: Path) -> Iterator[str]:
    """Runs a server in a separate process while the block runs; yields its address."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--role", role, "--index", str(index), "--data", str(data)]
    with subprocess.Popen([*command, "--port", str(port)]) as process:
        try:
            HttpRetriever(f"http://127.0.0.1:{port}").wait(300)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


# -- clients -------------------------------------------------------------------------------------------------------


def load(
    what: str, role: str, index: Path, data: Path, size: int, requests: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Puts a server under load with `size` queries per request; returns the row of the table."""
    print(f"{what}, {size} queries per request ...", file=sys.stderr)
    with running(role, index, data) as address:
        seen = apart(clients, address, role, str(index), str(data), size, requests, args.clients, args.passages)
    return {"what": what, "queries": size, **seen}


def clients(
    address: str, role: str, index: str, data: str, size: int, requests: int, count: int, passages: int
) -> dict[str, Any]:
    """Sends requests and compares the answers; runs in a separate process and returns its figures."""
    exact = ROLES[role]
    asked = generated.queries(DISTINCT, passages)
    batches = [asked[at : at + size] for at in range(0, min(len(asked), size * requests), size)]
    sent = [request(batch) for batch in batches]
    wanted = answers(opened(role, Path(index), Path(data)), batches) if exact else [b""] * len(batches)
    warm = asyncio.run(run_clients(address, sent, wanted, 2 * count, count, exact))
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    seen = asyncio.run(run_clients(address, sent, wanted, requests, count, exact))
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    took = sorted(1000 * one for one in seen["seconds"])
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "queries_per_s": round(size * requests / seconds, 1),
        "requests_per_s": round(requests / seconds, 1),
        "p50_ms": round(took[len(took) // 2], 1),
        "p99_ms": round(took[int(0.99 * len(took))], 1),
        "client_cpu": round(cpu / seconds, 3),
        "requests": requests,
        "errors": seen["errors"] + warm["errors"],
        "wrong": seen["wrong"] + warm["wrong"] if exact else None,
    }


def request(batch: Sequence[str]) -> bytes:
    """Returns the bytes of an HTTP request for a batch of queries."""
    body = json.dumps({"queries": list(batch), "topk": K, "return_scores": True}).encode()
    return HEAD.format(len(body)).encode() + body


def answers(retriever: Retriever, batches: Sequence[Sequence[str]]) -> list[bytes]:
    """Returns the expected body of the answer to each batch of queries."""
    bodies = []
    for batch in batches:
        lists = retriever.search(batch, K)
        result = [[{"document": document(hit.passage), "score": hit.score} for hit in hits] for hits in lists]
        bodies.append(json.dumps({"result": result}, ensure_ascii=False).encode())
    return bodies


async def run_clients(
    address: str, sent: Sequence[bytes], wanted: Sequence[bytes], requests: int, count: int, exact: str
) -> dict[str, Any]:
    """Keeps `count` connections busy until every request is answered."""
    host, port = address.split(":")
    numbers = iter(range(requests))
    seen: dict[str, Any] = {"errors": 0, "wrong": 0, "seconds": []}

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
        for number in numbers:
            started = time.perf_counter()
            writer.write(sent[number % len(sent)])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            seen["seconds"].append(time.perf_counter() - started)
            if not head.startswith(b"HTTP/1.1 200"):
                seen["errors"] += 1
            elif exact and not same(body, wanted[number % len(sent)], exact):
                seen["wrong"] += 1
        writer.close()

    await asyncio.gather(*(one() for _ in range(count)))
    return seen


def same(body: bytes, wanted: bytes, exact: str) -> bool:
    """Returns whether an answer is right: in every byte, as JSON, or in the ids of its passages."""
    if exact == "ids":
        lists = [json.loads(one)["result"] for one in (body, wanted)]
        ids = [[[row["document"]["id"] for row in rows] for rows in one] for one in lists]
        return bool(ids[0] == ids[1])
    return body == wanted or (exact == "json" and json.loads(body) == json.loads(wanted))


if __name__ == "__main__":
    main()
