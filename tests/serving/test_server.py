"""The retrieval server as a process, asked as Search-R1's and M-ASK's clients ask it, and by its own client."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import urllib3
import uvicorn

from searchgym.envs.data import load_corpus
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import BusyError, RetrieverError, UsageError
from searchgym.records import Hit, Passage
from searchgym.retrieval.kinds.http import HttpRetriever
from searchgym.retrieval.kinds.tool import ToolRetriever
from searchgym.retrieval.retriever import Retriever, identify, retrieve
from searchgym.retrieval.wire import document, read_contents, read_document
from searchgym.serving.app import make_app
from searchgym.serving.service import Limits, Service

CORPUS = Path(__file__).parents[2] / "searchgym" / "demo" / "corpus.jsonl"
QUERIES = ["Where is Orrin Vale?", "capital of Teskel", "islands mapped by Ilse Marrow", "", "zzz", "Vale \ud800"]
http = urllib3.PoolManager(retries=False)


def start(*options, corpus=CORPUS):
    command = [sys.executable, "-m", "searchgym", "serve", "retriever", str(corpus), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    while line and "listening at" not in line:
        line = process.stderr.readline()
    assert line, f"the server ended with {process.wait()}"

    def drain():
        with process.stderr:
            process.stderr.read()

    threading.Thread(target=drain, daemon=True).start()
    return process, line.split()[-1]


@pytest.fixture(scope="module")
def url():
    process, url = start()
    HttpRetriever(url).wait(60)
    yield url
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) in (0, -signal.SIGTERM)  # uvicorn ends by the signal, once it is done


@pytest.fixture(scope="module")
def own():
    return load_corpus(CORPUS)


def post(url, body):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = http.request("POST", url, body=data, headers={"Content-Type": "application/json"})
    return reply.status, json.loads(reply.data), reply.headers


# -- the two schemas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("scores", [True, False, None])
def test_search_r1s_schema(url, own, count, scores):
    """Their server gives wrong documents for exactly two queries without scores, and an error for one or three."""
    queries, wanted = QUERIES[:count], own.search(QUERIES[:count], 2)
    body = {"queries": queries, "topk": 2} | ({} if scores is None else {"return_scores": scores})
    status, reply, _ = post(f"{url}/retrieve", body)
    assert status == 200
    if scores:
        assert reply == {"result": [[{"document": document(h.passage), "score": h.score} for h in hs] for hs in wanted]}
    else:
        assert reply == {"result": [[document(h.passage) for h in hs] for hs in wanted]}
    assert all(reply["result"])


def test_their_number_of_documents_where_none_is_named(url, own):
    for body in ({"queries": QUERIES[:2]}, {"queries": QUERIES[:2], "topk": None}):
        _, reply, _ = post(f"{url}/retrieve", body)
        assert [len(hits) for hits in reply["result"]] == [len(hits) for hits in own.search(QUERIES[:2], 3)]


def test_m_asks_schema(url, own):
    _, reply, _ = post(f"{url}/search", {"questions": QUERIES[:3], "N": 2})
    wanted = own.search(QUERIES[:3], 2)
    assert reply == [{"top_k_docs": [f'"{h.passage.title}"\n{h.passage.text}' for h in hits]} for hits in wanted]


def test_documents_are_read_as_they_are_written():
    passage = Passage("7", 'The "best" of', "one\ntwo")
    assert read_document(document(passage)) == passage
    assert read_document({"id": 7, "title": "A", "text": "b"}) == Passage("7", "A", "b")
    assert read_contents('"A"\nb') == Passage("A", "A", "b")
    assert read_contents("a line") == Passage("a line", "", "a line")


def test_the_examples_of_the_docs(url, own, capsys):
    page = (Path(__file__).parents[2] / "docs" / "do" / "serving.md").read_text().replace("http://127.0.0.1:8000", url)
    curls = re.findall(r"^```bash\n(curl .*?)^```", page, re.DOTALL | re.MULTILINE)
    replies = [json.loads(subprocess.run(curl, shell=True, capture_output=True, check=True).stdout) for curl in curls]
    first, second = own.search(["capital of Teskel", "Orrin Vale"], 2)
    plain, scored, texts = replies
    assert plain["result"] == [[document(hit.passage) for hit in hits] for hits in (first, second)]
    assert [[row["document"] for row in rows] for rows in scored["result"]] == plain["result"]
    assert texts == [{"top_k_docs": [document(hit.passage)["contents"] for hit in first]}]
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    exec(compile(code, "docs/do/serving.md", "exec"), {})
    assert capsys.readouterr().out == f"{first[0].passage.title} {first[0].score}\n"


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        ([1], 422, "JSON object"),
        ({}, 422, "queries must be a list of strings"),
        ({"queries": "one"}, 422, "queries must be a list of strings"),
        ({"queries": ["a"], "topk": 0}, 422, "topk must be a number from 1 to 100"),
        ({"queries": ["a"], "topk": 101}, 422, "topk must be a number from 1 to 100"),
        ({"queries": ["a"], "topk": True}, 422, "topk must be a number"),
        ({"queries": ["a"], "return_scores": 1}, 422, "return_scores must be true or false"),
        ({"queries": ["a"], "top_k": 1}, 422, "key 'top_k': the accepted keys are queries, topk, return_scores"),
        ({"queries": ["a"], "k": 1}, 422, "unknown key 'k'"),
        ({"queries": ["a"], "questions": ["b"]}, 422, "unknown key 'questions'"),
        ({"queries": ["a"], "N": 1}, 422, "unknown key 'N'"),
        ({"questions": ["a"], "topk": 1}, 422, "unknown key 'topk': the accepted keys are questions, N"),
        ({"queries": ["a"], "": None}, 422, "unknown key ''"),
        ({"queries": ["a"], "k" * 500: 1}, 422, "unknown key 'kkk"),
        ({"queries": ["a"] * 2000}, 413, "2000 queries, at most 1024"),
        ({"queries": ["a" * (9 * 2**20)]}, 413, "bytes"),
    ],
)  # fmt: skip
def test_bad_requests_are_told_what_is_wrong(url, body, status, said):
    found, reply, _ = post(f"{url}/retrieve", body)
    assert found == status and said in reply["detail"]
    assert post(f"{url}/retrieve", {"queries": ["a"]})[0] == 200


def test_the_request_of_search_r1_is_answered(url):
    """With and without scores, and without a number of hits: as its client and its copies ask."""
    for body in ({"queries": ["a"], "topk": 2, "return_scores": True}, {"queries": ["a"], "topk": 2}, {"queries": []}):
        assert post(f"{url}/retrieve", body)[0] == 200
    for path in ("retrieve", "search"):
        assert post(f"{url}/{path}", {"questions": ["a"], "N": 2})[0] == 200
    assert post(f"{url}/search", {"questions": ["a"], "return_scores": True})[0] == 422


def test_odd_queries_get_what_they_get_in_process(url, own):
    odd = ["", "a" * 1_000_000, "\x00\x1b[31m", "\ud800", "   "]
    assert HttpRetriever(url).search(odd, 100) == own.search(odd, 100)
    assert HttpRetriever(url).search([], 3) == []


def test_health_counters_and_identity(url, own):
    assert http.request("GET", f"{url}/healthz").status == 200
    assert json.loads(http.request("GET", f"{url}/readyz").data) == {"ready": True}
    about = HttpRetriever(url).identity()
    assert about == identify(own)
    assert about["kind"] == "bm25"
    assert (about["passages"], about["corpus"]) == (len(own), own.corpus_sha256)

    def answered():
        lines = http.request("GET", f"{url}/metrics").data.decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("searchgym_queries_total")))

    before = answered()
    post(f"{url}/retrieve", {"queries": ["a", "b", "c"]})
    assert answered() == before + 3


# -- the client ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", ["retrieve", "search"])
def test_the_client_finds_what_the_index_finds(url, own, schema):
    client = HttpRetriever(f"{url}/{schema}")
    assert isinstance(client, Retriever) and client.url == url
    found, wanted = client.search(QUERIES, 4), own.search(QUERIES, 4)
    if schema == "retrieve":
        assert found == wanted
    else:  # it sends neither ids nor scores
        texts = [[(hit.passage.title, hit.passage.text) for hit in hits] for hits in wanted]
        assert [[(hit.passage.title, hit.passage.text) for hit in hits] for hits in found] == texts


def test_many_threads_get_their_own_answers(url, own):
    client = HttpRetriever(url, connections=16)
    passages = list(own.passages())[:40]
    wanted = {(p.title, k): own.search([p.title], k) for p in passages for k in (1, 3)}
    with ThreadPoolExecutor(16) as pool:
        for key, found in pool.map(lambda key: (key, client.search([key[0]], key[1])), list(wanted) * 5):
            assert found == wanted[key]


def test_an_environment_over_a_server_is_the_environment(url):
    served = load_task(find_env("Demo"), retriever=url)
    here = load_task(find_env("Demo"))
    queries = [question.text for question in here.questions]
    ids = [question.id for question in here.questions]
    assert retrieve(served.retriever, ids, queries, 3, 10.0) == retrieve(here.retriever, ids, queries, 3, 10.0)


@pytest.mark.slow
def test_an_evaluation_over_a_server_is_the_evaluation(url, tmp_path):
    scores = []
    for name, options in (("here", []), ("served", ["--retriever", url, "--wait", "9"])):
        command = [sys.executable, "-m", "searchgym", "eval", "Demo", "--agent", "single-search", "--json", *options]
        ended = subprocess.run([*command, "--out", str(tmp_path / name)], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        scores.append({k: v for k, v in json.loads(ended.stdout).items() if k != "out"})
    assert scores[0] == scores[1]
    here, served = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("here", "served"))
    same = here.keys() - {"seconds"}
    assert all(served[name] == here[name] for name in same) and here["corpus_sha256"]


def test_what_was_accepted_is_finished_before_the_end():
    under_way, go = threading.Event(), threading.Event()

    def slow(query, k):
        under_way.set()
        go.wait(10)
        return [HIT]

    server = uvicorn.Server(uvicorn.Config(make_app(Service(lambda _: ToolRetriever(slow))), log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(2) as pool:
        client = HttpRetriever(f"http://127.0.0.1:{listener.getsockname()[1]}")
        running = pool.submit(server.run, sockets=[listener])
        client.wait(20)
        found = pool.submit(client.search, ["q"], 1)
        assert under_way.wait(10)
        server.should_exit = True
        go.set()
        assert found.result(10) == [[HIT]] and client.tried_again == 0
        running.result(10)


def test_a_client_that_leaves_harms_nobody(url, own):
    address = urllib3.util.parse_url(url)
    for sent in (
        b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{",
        b"nonsense\r\n\r\n",
    ):
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(sent)
    assert HttpRetriever(url).search(QUERIES[:1], 3) == own.search(QUERIES[:1], 3)


def test_a_url_that_is_none():
    with pytest.raises(UsageError, match="http://"):
        HttpRetriever("localhost:8000")


# -- faults --------------------------------------------------------------------------------------------------------


class Strange(BaseHTTPRequestHandler):
    """Answers as its server's list says; the last answer again and again."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answers = self.server.answers
        status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        if status is None:  # dies in the middle
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            self.close_connection = True
            return
        if status == "late":
            time.sleep(body)
            return
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


GOOD = (200, {}, json.dumps({"result": [[{"document": {"id": "1", "contents": '"A"\nb'}, "score": 2.5}]]}).encode())
HIT = Hit(Passage("1", "A", "b"), 2.5)


@pytest.fixture
def strange():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Strange)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "bad",
    [
        (503, {"Retry-After": "0.01"}, b"full"),
        (500, {}, b"{}"),
        (200, {}, b"<html>"),
        (200, {}, b"[]"),
        (None, {}, b""),
    ],
)
def test_what_passes_is_tried_again(strange, bad):
    strange.answers = [bad, bad, GOOD]
    client = HttpRetriever(f"http://127.0.0.1:{strange.server_port}", deadline=20)
    assert client.search(["q"], 1) == [[HIT]] and client.tried_again == 2


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ((422, {}, b'{"detail": "topk must be a number"}'), "status 422: topk must be a number"),
        ((404, {}, b"<h1>no</h1>"), "status 404.*no"),
        ((200, {}, b'{"result": [[{"document": {"id": "1"}, "score": 1}]]}'), "schema of /retrieve: "),
        (
            (200, {}, b'{"result": [[{"document": {"contents": "a"}, "score": null}]]}'),
            "score is None, expected a fini",
        ),
        ((200, {}, b'{"result": [[["a", 1.0]]]}'), "schema of /retrieve: "),
        ((200, {}, b'{"result": [[7]]}'), "schema of /retrieve: "),
        ((200, {}, b'{"result": []}'), "1 queries.*got 0 lists"),
        ((200, {}, json.dumps({"result": [json.loads(GOOD[2])["result"][0] * 2]}).encode()), "up to 2"),
    ],
)
def test_what_stays_wrong_is_told_at_once(strange, bad, said):
    strange.answers = [bad]
    client = HttpRetriever(f"http://127.0.0.1:{strange.server_port}", deadline=20)
    with pytest.raises(RetrieverError, match=said):
        client.search(["q"], 1)
    assert client.tried_again == 0


@pytest.mark.slow
def test_documents_without_scores_get_one_by_their_rank(strange):
    """What a server sends that does not know ``return_scores``."""
    rows = [{"id": "7", "contents": '"A"\nb'}, {"id": 8, "title": "C", "text": "d"}]
    strange.answers = [(200, {}, json.dumps({"result": [rows, rows[:1]]}).encode())]
    client = HttpRetriever(f"http://127.0.0.1:{strange.server_port}", deadline=20)
    first, second = Hit(Passage("7", "A", "b"), 1.0), Hit(Passage("8", "C", "d"), 0.5)
    assert client.search(["q", "r"], 2) == [[first, second], [first]]
    assert client.tried_again == 0


@pytest.mark.slow_cases
@pytest.mark.parametrize("bad", [("late", {}, 0.5), (503, {"Retry-After": "9"}, b'{"detail": "full"}')])
def test_the_deadline_ends_it(strange, bad):
    strange.answers = [bad]
    client, started = HttpRetriever(f"http://127.0.0.1:{strange.server_port}", deadline=0.2), time.monotonic()
    with pytest.raises(RetrieverError, match=r"Timeout|full"):
        retrieve(client, ["x"], ["q"], 1, 5.0)
    assert time.monotonic() - started < 6


@pytest.mark.slow  # two processes; `test_what_passes_is_tried_again` is the quick sibling
def test_a_server_that_comes_back_is_found_again(own):
    process, url = start()
    client = HttpRetriever(url, deadline=60)
    client.wait(60)
    process.kill()
    process.wait()
    port = url.rsplit(":", 1)[1]
    again = subprocess.Popen([sys.executable, "-m", "searchgym", "serve", "retriever", str(CORPUS), "--port", port])
    try:
        assert client.search(QUERIES[:2], 3) == own.search(QUERIES[:2], 3)
        assert client.tried_again > 0
    finally:
        again.terminate()
        again.wait()


@pytest.mark.slow
def test_a_port_that_is_taken(url):
    command = [sys.executable, "-m", "searchgym", "serve", "retriever", str(CORPUS), "--port", url.rsplit(":", 1)[1]]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2 and "give another --port" in ended.stderr


@pytest.mark.slow
def test_an_index_that_does_not_load_ends_the_server(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    command = [sys.executable, "-m", "searchgym", "serve", "retriever", str(folder), "--port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0 and "error:" in ended.stderr and "Traceback" not in ended.stderr


# -- the queue -----------------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_and_recovers():
    go = threading.Event()
    loaded = threading.Event()

    def slow(query, k):
        go.wait(10)
        return [Hit(Passage(query, "", query), 1.0)]

    async def scene():
        service = Service(lambda _: (loaded.wait(10), ToolRetriever(slow))[1], Limits(waiting=4))
        service.start()
        with pytest.raises(BusyError, match="loading"):
            await service.search(["a"], 1)
        loaded.set()
        while not service.ready:
            await asyncio.sleep(0.01)
        under_way = [asyncio.create_task(service.search([name, name], 1)) for name in "ab"]
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError, match="4 queries are waiting"):
            await service.search(["c"], 1)
        go.set()
        assert [hits[0][0].passage.id for hits in await asyncio.gather(*under_way)] == ["a", "b"]
        return await service.search(["c"], 1)

    assert asyncio.run(scene())[0][0].passage.id == "c"


@pytest.mark.slow
def test_requests_that_wait_share_a_call_with_those_of_the_same_k():
    calls = []

    class Noting:
        def search(self, queries, k):
            time.sleep(0.05)
            calls.append((sorted(queries), k))
            return [[Hit(Passage(query, "", query), 1.0)] for query in queries]

    async def scene():
        service = Service(lambda _: Noting())
        service.start()
        while not service.ready:
            await asyncio.sleep(0.01)
        wanted = [("first", 1), *((f"q{i}", 1 + i % 2) for i in range(8))]
        tasks = []
        for query, k in wanted:
            tasks.append(asyncio.create_task(service.search([query], k)))
            await asyncio.sleep(0.001)
        for (query, _), hits in zip(wanted, await asyncio.gather(*tasks), strict=True):
            assert hits[0][0].passage.id == query

    asyncio.run(scene())
    assert sum(len(queries) for queries, _ in calls) == 9 and len(calls) <= 4
    assert all(len({int(q[1:]) % 2 for q in queries if q != "first"}) <= 1 for queries, _ in calls)
