"""A retrieval server and clients that mean harm: who is answered, how much, and for how long a connection may last."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3
import uvicorn

from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import CardError, RetrieverError, UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.cards import Sources, find_retriever
from searchgym.retrieval.kinds.http import HttpCard, HttpRetriever
from searchgym.retrieval.wire import document
from searchgym.serving.app import make_app
from searchgym.serving.service import Limits, Service

SECRET = "open-sesame-8231"
pool = urllib3.PoolManager(retries=False)


class Pages:
    """Finds k pages for every query, once `go` is set."""

    def __init__(self, words=1):
        self.words, self.go, self.asked = words, threading.Event(), threading.Event()
        self.calls = []
        self.go.set()

    def search(self, queries, k):
        self.asked.set()
        self.go.wait(20)
        self.calls.append((len(queries), k))
        return [[Hit(Passage(f"{query} {n}", query, "text " * self.words), 1.0) for n in range(k)] for query in queries]


@contextmanager
def serving(retriever=None, limits=None, access=None, **bounds):
    """A server in a thread; yields its port and its service, which gets the set of the server's connections."""
    service = Service(lambda _: retriever or Pages(), limits)
    app = make_app(service) if access is None else make_app(service, access=access)
    options = {}
    if bounds:
        from searchgym.serving.connections import bounded

        options["http"] = bounded(**bounds)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, **options))
    service.connections = server.server_state.connections
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        HttpRetriever(f"http://127.0.0.1:{port}").wait(20)
        try:
            yield port, service
        finally:
            server.should_exit = True
            thread.join(20)


def post(port, body, path="/retrieve", **headers):
    url, headers = f"http://127.0.0.1:{port}{path}", {"Content-Type": "application/json"} | headers
    reply = pool.request("POST", url, body=json.dumps(body).encode(), headers=headers)
    return reply.status, json.loads(reply.data)


def access(*given):
    from searchgym.serving.access import Access

    return Access(*given)


# -- who is answered -----------------------------------------------------------------------------------------------


def test_a_token_is_asked_for_and_our_client_sends_it(monkeypatch):
    monkeypatch.delenv("SEARCHGYM_TOKEN", raising=False)
    with serving(access=access(SECRET)) as (port, _):
        url, right = f"http://127.0.0.1:{port}", f"Bearer {SECRET}"
        assert post(port, {"queries": ["q"]})[0] == 401
        for wrong in ("", SECRET, f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}", f"Basic {SECRET}", "Bearer \u00e9"):
            status, reply = post(port, {"queries": ["q"]}, Authorization=wrong.encode("latin-1"))
            assert status == 401 and "needs a token" in reply["detail"] and SECRET not in str(reply)
        assert post(port, {"queries": ["q"]}, Authorization=right)[0] == 200
        for path, status in (("healthz", 200), ("readyz", 200), ("info", 401), ("metrics", 401), ("docs", 401)):
            assert pool.request("GET", f"{url}/{path}").status == status, path
        with pytest.raises(RetrieverError, match="status 401: this server needs a token"):
            HttpRetriever(url).search(["q"], 1)
        assert len(HttpRetriever(url, token=SECRET).search(["q"], 2)[0]) == 2
        monkeypatch.setenv("SEARCHGYM_TOKEN", SECRET)
        assert len(HttpRetriever(url).search(["q"], 2)[0]) == 2
        monkeypatch.setenv("SEARCHGYM_TOKEN", "another")
        monkeypatch.setenv("SEARCHGYM_TOKEN_WIKI", SECRET)
        card = find_retriever({"kind": "http", "url": url, "token_env": "SEARCHGYM_TOKEN_WIKI"})
        assert len(Sources().open(card).search(["q"], 2)[0]) == 2


def test_a_token_is_compared_in_constant_time(monkeypatch):
    from searchgym.serving import access as module

    compared = []
    monkeypatch.setattr(module.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    scope = {"headers": [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer x")], "path": "/retrieve"}
    assert access(SECRET).refusal(scope).status_code == 401
    assert compared == [(b"Bearer x", f"Bearer {SECRET}".encode())]


def test_a_token_is_written_nowhere(monkeypatch):
    monkeypatch.setenv("SEARCHGYM_TOKEN", SECRET)
    with serving(access=access(SECRET)) as (port, _):
        task = load_task(find_env("Demo"), retriever=f"http://127.0.0.1:{port}")
        assert task.retriever.search(["q"], 1)
        card = find_retriever(f"http://127.0.0.1:{port}")
        for written in (card, dataclasses.asdict(card), task.retriever.identity(), task.card, task.rules):
            assert SECRET not in repr(written)


def test_a_card_names_no_other_secret(monkeypatch):
    monkeypatch.setenv("OTHER_KEY", "secret")
    for name in ("OTHER_KEY", "SEARCHGYM_TOKENS", "", "HOME"):
        with pytest.raises(CardError, match="token_env must be SEARCHGYM_TOKEN or begin with"):
            find_retriever({"kind": "http", "url": "http://localhost:1", "token_env": name})
    with pytest.raises(UsageError, match="SEARCHGYM_TOKEN_NONE, which is not set"):
        Sources().open(HttpCard(url="http://localhost:1", token_env="SEARCHGYM_TOKEN_NONE"))


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "given", ["text/plain", "", "application/x-www-form-urlencoded", "text/plain; application/json"]
)
def test_another_content_type_is_refused(given):
    with serving() as (port, _):
        for path in ("/retrieve", "/search"):
            status, reply = post(port, {"queries": ["q"], "questions": ["q"]}, path, **{"Content-Type": given})
            assert status == 415 and "the content type must be application/json" in reply["detail"]
        assert post(port, {"queries": ["q"]}, **{"Content-Type": "Application/JSON; charset=utf-8"})[0] == 200


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("localhost:8000", 200), ("LocalHost", 200), ("[::1]:8000", 200), ("10.1.2.3:80", 200),
        ("evil.example", 421), ("evil.example:8000", 421), ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421), ("", 421), ("[::1", 421), ("x@evil.example", 421),
    ],
)  # fmt: skip
def test_a_name_that_was_not_allowed_is_not_answered(host, status):
    with serving() as (port, _):
        assert post(port, {"queries": ["q"]}, Host=host)[0] == status


@pytest.mark.slow
def test_names_can_be_allowed():
    for allowed in ("Node7", "*"):
        with serving(access=access(None, [allowed])) as (port, _):
            assert post(port, {"queries": ["q"]}, Host="node7:8000")[0] == 200
            assert post(port, {"queries": ["q"]}, Host="other")[0] == (200 if allowed == "*" else 421)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "--host 0.0.0.0 serves other machines"),
        (["--host", "::"], "--host :: serves other machines"),
        (["--host", "node7"], "--host node7 serves other machines"),
        (["--token", "two words\n"], "the token is empty or has"),
        (["--token", ""], "the token is empty or has"),
        (["--token-file", "nowhere"], "--token-file nowhere: "),
    ],
)
def test_a_server_for_other_machines_needs_a_token(options, said, tmp_path, monkeypatch, capsys):
    from searchgym.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCHGYM_TOKEN", raising=False)
    monkeypatch.setattr(sys, "argv", ["searchgym", "serve", "retriever", "nothing.jsonl", *options])
    with pytest.raises(SystemExit):
        main()
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("way", ["environment", "file", "open"])
def test_ways_to_serve_other_machines(way, tmp_path):
    (tmp_path / "token").write_text(f"{SECRET}\n")
    options = {"environment": [], "file": ["--token-file", "token"], "open": ["--open"]}[way]
    corpus = Path(__file__).parents[2] / "searchgym" / "demo" / "corpus.jsonl"
    command = [
        sys.executable,
        "-m",
        "searchgym",
        "serve",
        "retriever",
        str(corpus),
        "--host",
        "0.0.0.0",
        "--port",
        "0",
        *options,
    ]
    env = dict(sys_env(), **({"SEARCHGYM_TOKEN": SECRET} if way == "environment" else {}))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=env) as process:
        try:
            port = int(next(line for line in process.stderr if "listening at" in line).rsplit(":", 1)[1])
            client = HttpRetriever(f"http://127.0.0.1:{port}", token=None if way == "open" else SECRET)
            client.wait(60)
            assert client.search(["Orrin Vale"], 1)[0]
            assert post(port, {"queries": ["q"]})[0] == (200 if way == "open" else 401)
        finally:
            process.kill()


def sys_env():
    return {name: value for name, value in os.environ.items() if name != "SEARCHGYM_TOKEN"}


# -- how much ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_queries_times_k_are_limited():
    with serving() as (port, _):
        status, reply = post(port, {"queries": ["q"] * 1024, "topk": 100})
        assert status == 413
        assert "1024 queries with topk 100 are 102400 passages, at most 10240 in one request" in reply["detail"]
        assert post(port, {"questions": ["q"] * 1024, "N": 100}, "/search")[0] == 413
        assert post(port, {"queries": ["q"] * 102, "topk": 100})[0] == 200
        assert post(port, {"queries": ["q"] * 1024, "topk": 10})[0] == 200
        found = HttpRetriever(f"http://127.0.0.1:{port}").search([f"q{n}" for n in range(300)], 100)
        assert [hits[-1].passage.id for hits in found] == [f"q{n} 99" for n in range(300)]  # in several requests


def test_long_answers_are_what_short_ones_are():
    with serving(Pages(3)) as (port, _):
        for queries, k in ((["a"], 3), (["\ud800", "\u00e9"] * 100, 2), (["a", "b"], 100), (["a", "b"] * 51, 100)):
            wanted = Pages(3).search(queries, k)
            plain = {"result": [[document(hit.passage) for hit in hits] for hits in wanted]}
            scored = {
                "result": [[{"document": document(h.passage), "score": h.score} for h in hits] for hits in wanted]
            }
            assert post(port, {"queries": queries, "topk": k}) == (200, plain)
            assert post(port, {"queries": queries, "topk": k, "return_scores": True}) == (200, scored)


def test_others_are_answered_while_a_long_answer_is_written():
    with serving() as (port, service):
        free, wrote = threading.Event(), []
        service.writer.submit(free.wait, 20)
        long = threading.Thread(target=lambda: wrote.append(post(port, {"queries": ["q"] * 102, "topk": 100})))
        long.start()
        assert post(port, {"queries": ["q"]})[0] == 200
        assert pool.request("GET", f"http://127.0.0.1:{port}/healthz").status == 200
        assert not wrote
        free.set()
        long.join(20)
        assert wrote[0][0] == 200


def test_a_call_is_no_larger_than_a_request_may_be():
    pages = Pages()
    with serving(pages, Limits(hits=400)) as (port, _):
        pages.go.clear()
        threads = [threading.Thread(target=post, args=(port, {"queries": ["q"] * 4, "topk": 100})) for _ in range(8)]
        for thread in threads:
            thread.start()
        pages.asked.wait(20)
        pages.go.set()
        for thread in threads:
            thread.join(20)
    assert pages.calls == [(4, 100)] * 8


# -- how long ------------------------------------------------------------------------------------------------------


def ending(connection):
    """Returns what a server sends until it ends the connection."""
    received = b""
    try:
        while data := connection.recv(1 << 16):
            received += data
    except ConnectionError:
        pass
    return received


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"POST /retr",
        b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nX: a",
        b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /heal",
    ],
)
def test_a_request_that_does_not_end_is_ended(start):
    with serving(seconds=0.3, body=1000) as (port, _), socket.create_connection(("127.0.0.1", port), 20) as slow:
        slow.sendall(start)
        assert b"408 Request Timeout" in ending(slow)
        assert post(port, {"queries": ["q"]})[0] == 200


@pytest.mark.slow
def test_a_byte_now_and_then_gains_no_time():
    with serving(seconds=0.5, body=1000) as (port, _), socket.create_connection(("127.0.0.1", port), 20) as slow:
        started = time.monotonic()
        slow.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        slow.settimeout(0.05)
        while True:
            try:
                assert b"408" in slow.recv(1000)
                break
            except TimeoutError:
                slow.sendall(b"a")
        assert time.monotonic() - started < 10


@pytest.mark.slow
def test_what_is_being_answered_has_all_the_time():
    pages = Pages()
    with serving(pages, seconds=0.2, body=1000) as (port, _):
        pages.go.clear()
        threading.Timer(0.7, pages.go.set).start()
        assert post(port, {"queries": ["q"]})[0] == 200


@pytest.mark.slow
def test_a_reply_that_is_not_taken_is_dropped():
    with serving(Pages(20_000), Limits(k=300), seconds=0.3, body=1000) as (port, service):
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", port))
        body = json.dumps({"queries": ["q"], "topk": 300}).encode()
        head = (
            "POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
        )
        slow.sendall(head.format(len(body)).encode() + body)
        end = time.monotonic() + 20
        while service.metrics.registry.get_sample_value("searchgym_queries_total") != 1:
            assert time.monotonic() < end
        while service.connections:
            assert time.monotonic() < end
        assert len(ending(slow)) < 30_000_000  # the reply has 30 MB
        slow.close()


@pytest.mark.parametrize("first", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"])
def test_headers_without_end_are_refused(first):
    with (
        serving(seconds=20, body=100_000) as (port, _),
        socket.create_connection(("127.0.0.1", port), 20) as connection,
    ):
        connection.sendall(first + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
        sent = 0
        with pytest.raises(OSError):
            for _ in range(1000):
                connection.sendall(b"a" * 20_000)
                sent += 20_000
        assert sent < 10_000_000  # 20 MB were offered; what the sockets buffer counts as sent
        assert post(port, {"queries": ["q"]})[0] == 200


def test_a_body_that_is_too_long_gets_its_reply():
    with serving(limits=Limits(body=1_000_000), seconds=20, body=1_000_000) as (port, _):
        for _ in range(3):
            status, reply = post(port, {"queries": ["q" * 3_500_000]})
            assert status == 413 and "bytes" in reply["detail"]


@pytest.mark.parametrize(
    ("hits", "said"), [([{"id": "1"}], "expected Hit records"), ([Hit(Passage("1", "", ""), None)], "score is None")]
)
def test_a_retriever_that_returns_no_hits_is_a_reply_of_one_line(hits, said):
    class Odd:
        tries_again = True

        def search(self, queries, k):
            return [hits for _ in queries]

    with serving(Odd()) as (port, _):
        status, reply = post(port, {"queries": ["q"]})
        assert status == 500 and said in reply["detail"] and "\n" not in reply["detail"]


# -- UnityMAS-O ----------------------------------------------------------------------------------------------------


def test_unitymas_finds_title_and_text_at_retrieve():
    """Its client asks with "questions" and "N" first, at /retrieve, and reads the texts in "top_k_docs"."""
    with serving() as (port, _):
        status, reply = post(port, {"questions": ["a", "b"], "N": 2})
        assert (status, reply) == (200, [{"top_k_docs": [f'"{q}"\ntext '] * 2} for q in "ab"])
        assert reply == post(port, {"questions": ["a", "b"], "N": 2}, "/search")[1]
        _, theirs = post(port, {"queries": ["a"], "topk": 1, "return_scores": False})  # Search-R1's form stays
        assert theirs == {"result": [[{"id": "a 0", "contents": '"a"\ntext '}]]}
        assert post(port, {"N": 2})[1]["detail"].startswith("queries must be a list of strings")
