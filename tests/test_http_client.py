"""Hostile servers: no reply takes a client more time or memory than it allows, and each fault is one short line."""

import functools
import gzip
import json
import socket
import threading
import time
import tracemalloc
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from hostile_server import BLOCK, FAST, PAUSE, SLOW, good, hostile

from searchgym.errors import CardError, EngineLostError, ModelError, RetrieverError, SearchGymError, UsageError
from searchgym.protocol import get_protocol
from searchgym.records import Hit, Passage
from searchgym.retrieval.kinds import http as retrievers
from searchgym.retrieval.kinds.http import HttpRetriever
from searchgym.rollout.api import sampler as api_sampler
from searchgym.rollout.api.sampler import ApiOptions, ApiSampler
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.rollout.vllm import client as engines
from searchgym.rollout.vllm.client import Client

SECONDS = 0.2
"""Deadline of the calls."""
LATE = 2.0
"""Seconds after which a call is late, however busy the machine; without a deadline the servers go on for 4."""
BYTES = 2**16
"""Limit of a reply."""
MEMORY = 4 * 2**20
"""Bytes that a call may take; the servers send twelve times as much."""
ROW = {"document": {"id": "1", "contents": '"A"\nb'}, "score": 2.5}
HIT = Hit(Passage("1", "A", "b"), 2.5)


def call(url):
    from searchgym.http_client import HttpClient

    return HttpClient(url).call("POST", "/x", b"{}", seconds=SECONDS, most=BYTES)


def search(url):
    return HttpRetriever(url, deadline=SECONDS).search(["q"], 2)


def describe(url):
    return HttpRetriever(url).identity()


def ready(url):
    return HttpRetriever(url).ready()


def sample(url):
    sampler = ApiSampler(ApiOptions(url=url, model="m", timeout=SECONDS, attempts=1), get_protocol("tags"))
    return sampler.sample([SampleRequest(np.array([0x110000, 97, 0x110001], np.int32), Sampling(), 0)])


def engine(url):
    return Client(url, {}).call("/x", {}, timeout=SECONDS)


CLIENTS = {"search": search, "identity": describe, "ready": ready, "sample": sample, "engine": engine}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small limits, so that no test needs much memory or time."""
    for module, name in ((retrievers, "REPLY_BYTES"), (api_sampler, "REPLY_BYTES"), (engines, "REPLY_BYTES")):
        monkeypatch.setattr(module, name, BYTES, raising=False)
    monkeypatch.setattr(retrievers, "HIT_BYTES", 0, raising=False)
    monkeypatch.setattr(retrievers, "INFO_SECONDS", SECONDS, raising=False)


def outcome(client, url):
    """Returns what a client returned or raised, the seconds, and the most bytes of memory that it held."""
    from urllib3.exceptions import HTTPError

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    started = time.monotonic()
    try:
        result = client(url)
    except (SearchGymError, HTTPError) as error:
        result = error
    took = time.monotonic() - started
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return result, took, peak


def check(client, *replies, **how):
    """Checks that an attack gets neither time nor memory nor a thread, and ends in one short line."""
    with hostile(*replies, **how) as server:
        before = {thread for thread in threading.enumerate() if thread.name != "hostile"}
        result, took, peak = outcome(client, server.url)
        left = {thread for thread in threading.enumerate() if thread.name != "hostile"} - before
    assert took < LATE
    assert peak < MEMORY
    assert not left
    if isinstance(result, Exception):
        assert "\n" not in str(result) and len(str(result)) < 1000
    else:
        assert (client in (describe, ready) and not result) or replies == (FAST["trailers"],)
    return result


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", SLOW)
def test_a_reply_that_drips_ends_at_the_deadline(name):
    check(call, SLOW[name], pause=PAUSE)


@pytest.mark.parametrize("name", FAST)
def test_a_reply_without_end_is_not_kept(name):
    """Not even by a client that has the time to take all of it."""
    from searchgym.http_client import HttpClient

    def patient(url):
        return HttpClient(url).call("POST", "/x", b"{}", seconds=60, most=BYTES)

    with hostile(FAST[name]) as server:
        result, _, peak = outcome(patient, server.url)
    assert peak < MEMORY
    assert name == "trailers" or "\n" not in str(result)
    assert isinstance(result, Exception) or (name == "trailers" and not result.body)  # trailers are read and dropped


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("slow", ["body", "head"])
def test_every_client_has_a_deadline_for_the_whole_reply(name, slow):
    check(CLIENTS[name], SLOW[slow], pause=PAUSE)


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_has_a_limit_for_the_whole_reply(name):
    check(CLIENTS[name], FAST["chunks"])


@pytest.mark.slow  # the tests above take each attack and each client once
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("attack", [*((kind, PAUSE) for kind in SLOW), *((kind, 0.0) for kind in FAST)], ids=str)
def test_every_attack_on_every_client(name, attack):
    kind, pause = attack
    check(CLIENTS[name], (SLOW if pause else FAST)[kind], pause=pause)


def test_headers_have_a_limit():
    """A hundred lines of 64 kB, which http.client would take, need 45 MB until they are parsed."""
    line = b"X: " + b"a" * 30_000
    with hostile(good(b"{}", line, line)) as server:
        assert call(server.url).body == b"{}"
    with hostile(good(b"{}", line, line, line)) as server:
        result, _, peak = outcome(call, server.url)
    assert "the headers of the reply have over 65,536 bytes" in str(result)
    assert peak < 2**20


@functools.cache
def bomb(encoding):
    """Returns the first bytes of 32 MiB of blanks in an encoding."""
    pack = zlib.compress if encoding == "deflate" else functools.partial(gzip.compress, compresslevel=1)
    packed = pack(b" " * (32 * 2**20))
    return (gzip.compress(packed) if encoding == "gzip, gzip" else packed)[:BYTES]


@pytest.mark.slow_cases
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "gzip, gzip", "br", "x-gzip", "GZIP"])
@pytest.mark.parametrize("name", ["search", "identity", "sample", "engine"])
def test_a_compressed_reply_is_not_unpacked(name, encoding):
    result = check(CLIENTS[name], good(bomb(encoding), b"Content-Encoding: " + encoding.encode()))
    assert name == "identity" or "compressed" in str(result)


def test_a_reply_is_asked_for_as_it_is():
    with hostile(good(json.dumps({"result": [[ROW]]}).encode())) as server:
        assert search(server.url) == [[HIT]]
    assert "\naccept-encoding: identity\r" in server.heads[0].lower()


def test_a_server_that_does_not_take_the_request_is_left_at_the_deadline():
    def send(url):
        return HttpRetriever(url, deadline=SECONDS).search(["q" * 2**23], 1)

    with hostile((b"", b""), reads=False, pause=PAUSE) as server:
        result, took, _ = outcome(send, server.url)
    assert isinstance(result, RetrieverError) and took < LATE


@pytest.mark.slow_cases
@pytest.mark.parametrize("piece", [b"", b"\x00"])
def test_the_handshake_of_tls_counts(piece):
    """A record of 16 kB is announced, of which a byte comes now and then, or none."""

    def secure(url):
        return HttpRetriever(url.replace("http:", "https:"), deadline=SECONDS).search(["q"], 1)

    check(secure, (b"\x16\x03\x03\x40\x00", piece), reads=False, pause=PAUSE)


def test_many_addresses_that_do_not_answer_share_the_deadline(monkeypatch):
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for waiting in (first, second):  # which fill its queue
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", deaf.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address] * 20)
        result, took, _ = outcome(search, "http://many.example")
    assert isinstance(result, RetrieverError) and "timed out" in str(result)
    assert took < LATE


def test_a_connection_that_was_cut_off_is_not_used_again():
    """What is left of a long reply must not be read as the next one; and the only connection is given back."""
    from urllib3.exceptions import HTTPError

    from searchgym.http_client import HttpClient

    attacks = [FAST["body"], good(BLOCK * 2), SLOW["small chunks"], good(b"", b"Content-Encoding: gzip")]
    with hostile(*attacks, good(), pause=0.001) as server:
        client = HttpClient(server.url)
        for _ in attacks:
            with pytest.raises(HTTPError):
                client.call("GET", "/", seconds=SECONDS, most=BYTES)
        assert [client.call("GET", "/", seconds=20, most=BYTES).body for _ in range(3)] == [b'{"ok": 1}'] * 3


def test_a_call_waits_for_its_turn_within_its_time():
    from urllib3.exceptions import HTTPError, TimeoutError

    from searchgym.http_client import HttpClient

    inside, leave = threading.Semaphore(0), threading.Event()

    def request(*_, **__):
        inside.release()
        leave.wait(20)
        raise HTTPError("over")

    def ask(seconds=20):
        with pytest.raises(HTTPError, match="over"):
            client.call("GET", "/", seconds=seconds, most=1)

    client = HttpClient("http://127.0.0.1:9", connections=2)
    client._pool = SimpleNamespace(request=request)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert inside.acquire(timeout=20)
    with pytest.raises(TimeoutError, match=r"no connection was free within 0.05 s"):
        client.call("GET", "/", seconds=0.05, most=1)
    leave.set()
    for thread in threads:
        thread.join()
    ask()


def test_what_is_sent_counts_too(monkeypatch):
    """A peer that takes a piece in each 0.4 seconds: by TLS every piece would get the whole time anew."""
    from searchgym import http_client

    class Slow:
        def __init__(self):
            self.taken, self.times = 0, []

        def settimeout(self, seconds):
            self.times.append(round(seconds, 1))

        def sendall(self, data):
            self.taken += len(data)
            clock[0] += 0.4

        def close(self):
            pass

    clock = [100.0]
    monkeypatch.setattr(http_client.time, "monotonic", lambda: clock[0])
    connection = http_client.HttpConnection("127.0.0.1")
    connection.timeout, connection.sock = 1.0, (slow := Slow())
    with pytest.raises(TimeoutError):
        connection.send(b"x" * 10 * 2**16)
    assert (slow.taken, slow.times) == (3 * 2**16, [1.0, 0.6, 0.2])


# -- faults that must be one line ------------------------------------------------------------------------------------


def hits(score):
    return f'{{"result": [[{{"document": {{"id": "1", "contents": "a"}}, "score": {score}}}]]}}'.encode()


BAD_REPLIES = {
    "nested": good(b"[" * 60_000),
    "score of 400 digits": good(hits("1" + "0" * 400)),
    "score of 5000 digits": good(hits("1" + "0" * 5000)),
    "score NaN": good(hits("NaN")),
    "score 1e999": good(hits("1e999")),
    "score that is no number": good(hits('"high"')),
    "id that is an object": good(b'{"result": [[{"document": {"id": {}, "contents": "a"}, "score": 1}]]}'),
    "text that is a list": good(b'{"result": [[{"document": {"id": "1", "contents": ["a"]}, "score": 1}]]}'),
    "title that is null": good(b'{"result": [[{"document": {"title": null, "text": "a"}, "score": 1}]]}'),
    "document that is a text": good(b'{"result": [[{"document": "a", "score": 1}]]}'),
    "nothing": good(b'{"result": [[null]]}'),
    "object of lists": good(b'{"result": {"0": []}}'),
    "list of texts": good(b'{"result": ["abc"]}'),
    "error of many lines": good(b"a\x1b[31m\nb\r\n\x00" * 100).replace(b"200 OK", b"400 No"),
    "error nested": good(b"[" * 60_000).replace(b"200 OK", b"500 No"),
    "error with a detail of many lines": good(b'{"detail": "a\\nb\\u001b[2J"}').replace(b"200 OK", b"422 No"),
    "retry-after nan": good(b"", b"Retry-After: nan").replace(b"200 OK", b"503 No"),
    "retry-after inf": good(b"", b"Retry-After: inf").replace(b"200 OK", b"503 No"),
    "retry-after huge": good(b"", b"Retry-After: 1e300").replace(b"200 OK", b"429 No"),
    "retry-after negative": good(b"", b"Retry-After: -5").replace(b"200 OK", b"503 No"),
    "no colon in a header": good(b"{}", b"X"),
    "no status": b"hello\r\n\r\n",
    "status of five digits": b"HTTP/1.1 99999 OK\r\n\r\n",
    "redirect": good(b"", b"Location: http://127.0.0.1:1/x").replace(b"200 OK", b"307 X"),
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", BAD_REPLIES)
@pytest.mark.parametrize("client", [search, sample, engine])
def test_a_bad_reply_is_a_fault_of_one_line(client, name, caplog):
    with hostile(BAD_REPLIES[name]) as server:
        result, took, _ = outcome(client, server.url)
    assert took < LATE
    if client is engine and not isinstance(result, Exception):
        return  # any JSON is a reply to this client
    assert isinstance(result, (RetrieverError, ModelError, EngineLostError, UsageError))
    assert str(result).isprintable() and len(str(result)) < 1000
    assert not caplog.records  # urllib3 would print headers and a traceback


BAD_INFOS = {
    "nested": b"[" * 60_000,
    "nested a little": b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}",
    "lone surrogate": b'{"corpus": "\\ud800"}',
    "lone surrogate in a key": b'{"\\udfff": 1}',
    "NaN": b'{"corpus": NaN}',
    "infinity": b'{"corpus": 1, "a": [-Infinity]}',
    "a list": b"[1]",
    "no UTF-8": b'{"a": "\xff"}',
    "digits": b'{"a": ' + b"9" * 5000 + b"}",
    "long": b'{"a": "' + b"a" * 2**17 + b'"}',
}


@pytest.mark.parametrize("name", BAD_INFOS)
def test_a_description_that_no_file_can_hold_is_none(name):
    with hostile(good(BAD_INFOS[name])) as server:
        retriever = HttpRetriever(server.url)
        assert (retriever.identity(), retriever.corpus_sha256) == ({}, None)


def test_a_description_is_kept():
    about = {"retriever": "BM25Retriever", "corpus": "a" * 64, "passages": 3, "k1": 0.9, "title": "Größe \U0001f3ed"}
    with hostile(good(json.dumps(about).encode())) as server:
        assert HttpRetriever(server.url).identity() == about


# -- names and passwords -------------------------------------------------------------------------------------------


@pytest.mark.slow_cases
@pytest.mark.parametrize("login", ["user:pa55word", "pa55word", ":pa55word", "user:pa55%40word", "us:pa55:word@x"])
@pytest.mark.parametrize("client", [search, sample])
def test_a_password_in_an_address_is_in_no_message(client, login, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for reply in (good(b"no").replace(b"200 OK", b"400 No"), good(b"<html>"), good(b"", b"Content-Encoding: br")):
        with hostile(reply) as server:
            result, _, _ = outcome(client, server.url.replace("://", f"://{login}@"))
        assert isinstance(result, SearchGymError) and "pa55" not in f"{result} {result.__cause__!r}"
        assert f"127.0.0.1:{server.port}" in str(result)
        assert "\r\nauthorization: basic " in server.heads[0].lower()


def test_a_login_is_sent_as_the_standard_says():
    """RFC 7617, section 2: Aladdin and "open sesame"."""
    with hostile(good(json.dumps({"result": [[ROW]]}).encode())) as server:
        url = server.url.replace("://", "://Aladdin:open%20sesame@")
        assert HttpRetriever(url).search(["q"], 1) == [[HIT]]
        assert HttpRetriever(url, token="t").search(["q"], 1) == [[HIT]]
        retriever = HttpRetriever(url)
        assert retriever.url == server.url
    assert "\r\nAuthorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==" in server.heads[0]
    assert "\r\nAuthorization: Bearer t" in server.heads[1]


@pytest.mark.parametrize(
    "url",
    ["ftp://user:pa55@host", "user:pa55@host", "http://user:pa55/x@host:1", "http://u:pa55@[::", "http://u:pa55@"],
)
@pytest.mark.parametrize("client", [search, sample])
def test_an_address_that_is_none_does_not_show_its_password(client, url):
    with pytest.raises(UsageError) as caught:
        client(url)
    assert "pa55" not in f"{caught.value} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert "http://" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"kind": "http", "url": "http://user:pa55@host"}, "retriever: url"),
        ({"kind": "hybrid", "of": ["bm25", {"kind": "http", "url": "https://pa55@host/x"}]}, r"of\[1\]\.url"),
        ({"kind": "hybrid", "of": ["bm25", "http://user:pa55@host"]}, r"of\[1\]"),
        ({"kind": "simulated", "model": "http://user:pa55@host/v1#m"}, "retriever: model"),
    ],
)
def test_a_card_keeps_no_password(data, where):
    from searchgym.retrieval.cards import find_retriever

    with pytest.raises(CardError, match=where) as caught:
        find_retriever(data)
    assert "pa55" not in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "env_options={retriever: 'http://user:pa55@host'}",
        "validation.env_options={retrievers: {web: {retriever: {kind: http, url: 'http://user:pa55@host'}}}}",
        "judge=http://user:pa55@host/v1#m",
        "rollout.sampler.servers=['http://user:pa55@host:1']",
    ],
)
def test_a_recipe_keeps_no_password(override):
    from searchgym.train import load_recipe

    with pytest.raises(CardError, match="would be stored in run records") as caught:
        load_recipe("tiny-grpo", [override])
    assert "pa55" not in str(caught.value)


def test_the_record_of_a_model_keeps_no_password(monkeypatch):
    from searchgym.protocol import get_protocol
    from searchgym.rollout.models import load_models, parse_models

    model = "http://user:pa55@127.0.0.1:9/v1"
    assert load_models({"searcher": f"{model}#m"}, get_protocol("tags"))["searcher"].engine == "http://127.0.0.1:9/v1"
    for wrong in ({"a": model}, {"a": f"{model}#m", "b": f"{model}/w#m"}):
        with pytest.raises(UsageError) as caught:
            load_models(wrong, get_protocol("tags"))
        assert "pa55" not in str(caught.value)
    for specs in ([model, model], [f"a={model}", f"a={model}"], [f"a={model}", model]):
        with pytest.raises(UsageError) as caught:
            parse_models(specs, {"a": None})
        assert "pa55" not in str(caught.value)
