"""A served corpus under attack: slow sockets, endless headers, huge requests and a flood, and their effect on others.

The script starts ``searchgym serve retriever`` on generated passages and attacks it in turn:

- `slow sockets`: connections that send a request byte by byte and never end it;
- `headers`: a request with headers of 20 MB;
- `huge requests`: requests of 1,024 queries with k 100, and of the largest number of queries that is accepted with k
  100, sent without a pause while clients send single queries and another one reads ``/healthz``;
- `flood`: 60,000 requests from 64 clients; every answer is compared with that of an in-process search.

    python benchmarks/attack_server.py
    python benchmarks/attack_server.py --requests 2000 --slow-seconds 5 --timeout 2 --seconds 3
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import generated

from searchgym.cli.output import emit_rows
from searchgym.corpora.passages import write_corpus
from searchgym.envs.data import load_corpus
from searchgym.retrieval import HttpRetriever
from searchgym.retrieval.wire import document

K: Final = 3
HEADERS: Final = "Host: localhost\r\nContent-Type: application/json\r\n"


class Server:
    """A server process and its address."""

    def __init__(self, corpus: Path, options: Sequence[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "searchgym",
            "serve",
            "retriever",
            str(corpus),
            "--port",
            str(self.port),
            *options,
        ]
        self.process = subprocess.Popen(command)
        HttpRetriever(f"http://127.0.0.1:{self.port}").wait(300)

    def connect(self) -> socket.socket:
        """Returns a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def mebibytes(self) -> float:
        """Returns the memory of the process."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
        return round(int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024, 1)


def main() -> None:
    """Runs the attacks and prints the table."""
    args = parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        write_corpus(corpus, generated.passages(args.passages))
        options = ["--timeout", str(args.timeout)] if args.timeout else []
        print("starting the server ...", file=sys.stderr)
        server = Server(corpus, options)
        try:
            rows = [slow_sockets(server, args), headers(server)]
            for queries in args.huge:
                rows += huge_requests(server, queries, args)
            rows.append(flood(server, corpus, args))
        finally:
            server.process.kill()
            server.process.wait()
    emit_rows(rows, args.json, "results", f"{args.passages} passages")


def parse_args() -> argparse.Namespace:
    """Parses the command-line arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--slow", type=int, default=200, help="slow connections")
    parser.add_argument("--slow-seconds", type=float, default=40.0, help="seconds to watch them")
    parser.add_argument("--timeout", type=float, default=0.0, help="the server's --timeout, if not its default")
    parser.add_argument("--huge", type=int, nargs="*", default=[1024, 102], help="queries of the huge requests")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of huge requests")
    parser.add_argument("--requests", type=int, default=60_000, help="requests of the flood")
    parser.add_argument("--clients", type=int, default=64, help="clients of the flood")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def row(attack: str, what: str, value: Any, unit: str = "") -> dict[str, Any]:
    """Returns a row of the table."""
    return {"attack": attack, "seen": what, "value": value, "unit": unit}


# -- attacks -------------------------------------------------------------------------------------------------------


def slow_sockets(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    """Opens connections that send a byte each second; returns how many the server still holds at the end."""
    slow = [server.connect() for _ in range(args.slow)]
    for one in slow:
        one.sendall(b"POST /retrieve HTTP/1.1\r\nX: ")
    end = time.monotonic() + args.slow_seconds
    while time.monotonic() < end:
        time.sleep(1.0)
        slow = [one for one in slow if is_open(one)]
    left = len(slow)
    for one in slow:
        one.close()
    return row(f"{args.slow} slow sockets", f"open after {args.slow_seconds:g} s", left)


def is_open(connection: socket.socket) -> bool:
    """Sends a byte; returns whether the server still holds the connection."""
    try:
        connection.sendall(b"a")
        connection.setblocking(False)
        try:
            return bool(connection.recv(1000)) and False
        except BlockingIOError:
            connection.setblocking(True)
            return True
    except OSError:
        return False


def headers(server: Server) -> dict[str, Any]:
    """Sends headers of 20 MB; returns how many bytes the server took."""
    piece, sent, connection = b"a" * 65_536, 0, server.connect()
    with contextlib.suppress(OSError):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
        while sent < 20 * 10**6:
            connection.sendall(piece)
            sent += len(piece)
            time.sleep(0.001)  # a reply and the end of the connection come through meanwhile
        connection.sendall(b"\r\n\r\n")
    connection.close()
    return row("headers of 20 MB", "taken", round(sent / 10**6, 1), "MB")


def huge_requests(server: Server, queries: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Sends huge requests while other clients search; returns the replies and the waiting times of the others."""
    attack, stop = f"{queries} queries, k 100", threading.Event()
    words = generated.vocabulary()[100:]  # frequent ones, so that every query has its 100 hits
    data = request([" ".join(words[at % 1000 : at % 1000 + 4]) for at in range(queries)], 100)
    replies: list[tuple[int, int]] = []

    def ask() -> None:
        with server.connect() as connection:
            while not stop.is_set():
                connection.sendall(data)
                replies.append(receive(connection))

    attacker = threading.Thread(target=ask, daemon=True)
    attacker.start()
    seen = asyncio.run(bystanders(server.port, args))
    stop.set()
    attacker.join()
    rows = [
        row(attack, "statuses", ", ".join(map(str, sorted({status for status, _ in replies})))),
        row(attack, "longest reply", round(max(size for _, size in replies) / 10**6, 1), "MB"),
    ]
    for name, seconds in seen.items():
        rows.append(row(attack, f"{name}, median", round(1000 * statistics.median(seconds), 1), "ms"))
        rows.append(row(attack, f"{name}, longest", round(1000 * max(seconds), 1), "ms"))
    return rows


def receive(connection: socket.socket) -> tuple[int, int]:
    """Reads one reply; returns its status and the bytes of its body."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += connection.recv(65_536)
    start, _, body = head.partition(b"\r\n\r\n")
    length = int(start.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    left = length - len(body)
    while left > 0:
        left -= len(connection.recv(1 << 20))
    return int(start.split()[1]), length


async def bystanders(port: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Sends single queries and health checks for a while; returns the seconds of each reply."""
    seen: dict[str, list[float]] = {"single query": [], "healthz": []}
    end = time.monotonic() + args.seconds

    async def ask(name: str, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            started = time.monotonic()
            await asked(reader, writer, data)
            seen[name].append(time.monotonic() - started)
            await asyncio.sleep(0.02)
        writer.close()

    health = f"GET /healthz HTTP/1.1\r\n{HEADERS}\r\n".encode()
    await asyncio.gather(ask("healthz", health), *(ask("single query", request(["a page"], K)) for _ in range(4)))
    return seen


def flood(server: Server, corpus: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Sends many requests from many clients; returns the number of errors, the server's memory and the time."""
    texts = generated.queries(2000, args.passages)
    found = load_corpus(corpus).search(texts, K)
    sent = [request([text], K) for text in texts]
    wanted = [json.dumps({"result": [[document(hit.passage) for hit in hits]]}, ensure_ascii=False) for hits in found]
    asyncio.run(run_clients(server.port, sent, wanted, min(args.requests, 2000), args.clients))
    before, started = server.mebibytes(), time.monotonic()
    errors, wrong = asyncio.run(run_clients(server.port, sent, wanted, args.requests, args.clients))
    seconds = time.monotonic() - started
    return row(
        f"{args.requests} requests, {args.clients} clients",
        "errors, wrong answers, memory at start and end, time",
        f"{errors}, {wrong}, {before} MiB, {server.mebibytes()} MiB, {seconds:.1f} s",
    )


async def run_clients(
    port: int, sent: Sequence[bytes], wanted: Sequence[str], requests: int, clients: int
) -> tuple[int, int]:
    """Keeps connections busy until every request is answered; returns the numbers of errors and wrong answers."""
    numbers: Iterator[int] = iter(range(requests))
    faults = [0, 0]

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        for number in numbers:
            status, body = await asked(reader, writer, sent[number % len(sent)])
            if status != 200:
                faults[0] += 1
            elif body.decode() != wanted[number % len(sent)]:
                faults[1] += 1
        writer.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return faults[0], faults[1]


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> tuple[int, bytes]:
    """Sends one request and returns the status and the body of its reply."""
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


def request(texts: Sequence[str], k: int) -> bytes:
    """Returns the bytes of a request for the hits of some queries."""
    body = json.dumps({"queries": list(texts), "topk": k}).encode()
    return f"POST /retrieve HTTP/1.1\r\n{HEADERS}Content-Length: {len(body)}\r\n\r\n".encode() + body


if __name__ == "__main__":
    main()
