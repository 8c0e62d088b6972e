"""A server that dies under episodes, and one that is asked for too much: nothing is lost, and no error is a page."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import urllib3

from searchgym.agents.base import load_agent
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import RetrieverError
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.questions.worlds import cached_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.retrieval.kinds.http import HttpRetriever
from searchgym.rollout.storage import read_episodes

EPISODES = 500
http = urllib3.PoolManager(retries=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return cached_world(WorldSpec(size=EPISODES, hops=(2,)), tmp_path_factory.mktemp("worlds"))


class Server:
    """A server process that can be killed and started again at the same address."""

    def __init__(self, corpus, *options):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.command = [
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
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)

    def kill(self):
        self.process.kill()
        assert self.process.wait(30) == -signal.SIGKILL


@pytest.fixture
def server(world):
    server = Server(world / "corpus.jsonl")
    HttpRetriever(server.url).wait(60)
    yield server
    server.process.kill()
    server.process.wait(30)


def run(world, out, retriever=None, progress=None):
    own = {"retriever": retriever, "retriever_deadline": 120.0} if retriever else {"corpus": world / "corpus.jsonl"}
    task = load_task(find_env("World"), questions=world / "questions.jsonl", **own)
    scores = evaluate(task, load_agent("evidence-oracle"), out, options=EvalOptions(concurrency=32), progress=progress)
    return scores, {episode.question_id: episode for episode in read_episodes(out / "episodes.jsonl")}


@pytest.mark.slow
def test_a_server_killed_under_500_episodes_loses_none(world, server, tmp_path):
    retriever, deaths = HttpRetriever(server.url, deadline=100.0), []

    def progress(done, of):
        if done in (50, 250):
            server.kill()
            deaths.append(done)
            threading.Timer(0.3, server.start).start()

    scores, episodes = run(world, tmp_path / "served", retriever, progress)
    assert deaths == [50, 250] and retriever.tried_again >= 2  # retries are counted
    assert scores["n"] == EPISODES and scores["retriever_errors"] == 0
    own_scores, own = run(world, tmp_path / "here")
    assert own_scores["em"] == scores["em"] > 0.5
    assert episodes.keys() == own.keys() and len(own) == EPISODES
    for id, episode in own.items():
        assert episodes[id].searches == episode.searches  # every page is one of the corpus, word by word
        assert episodes[id].answer == episode.answer


@pytest.mark.slow
def test_a_server_that_stays_dead_ends_episodes_and_no_error_is_seen(world, server, tmp_path):
    retriever = HttpRetriever(server.url, deadline=0.5)
    dead = []

    def progress(done, of):
        if done == 450 and not dead:
            server.kill()
            dead.append(done)

    scores, episodes = run(world, tmp_path / "served", retriever, progress)
    failed = [episode for episode in episodes.values() if episode.stop_reason == "retriever_error"]
    assert len(episodes) == EPISODES and 0 < len(failed) <= 50 and scores["retriever_errors"] == len(failed)
    for episode in failed:
        assert "NewConnectionError" in (episode.error or "") or "Connection" in (episode.error or "")
        assert not any("Connection" in hit.passage.text for search in episode.searches for hit in search.hits)


@pytest.mark.slow
def test_an_overfilled_queue_says_503_and_recovers(world, tmp_path):
    server = Server(world / "corpus.jsonl", "--max-waiting", "8", "--max-queries", "1024", "--max-hits", "102400")
    try:
        HttpRetriever(server.url).wait(60)
        queries = [f"page number {n} of the world" for n in range(1024)]
        body = json.dumps({"queries": queries, "topk": 100}).encode()
        headers = {"Content-Type": "application/json"}
        statuses, hits = [], []

        def ask():
            reply = http.request("POST", f"{server.url}/retrieve", body=body, headers=headers, timeout=60)
            statuses.append(reply.status)
            if reply.status == 503:
                assert (
                    int(reply.headers["Retry-After"]) >= 1 and "are waiting already" in json.loads(reply.data)["detail"]
                )

        def patient():
            hits.append(HttpRetriever(server.url, deadline=60.0).search(queries[:2], 3))

        threads = [threading.Thread(target=ask) for _ in range(16)] + [threading.Thread(target=patient)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        assert {200, 503} == set(statuses) and len(statuses) == 16
        end = time.monotonic() + 30
        while (reply := http.request("POST", f"{server.url}/retrieve", body=body, headers=headers)).status == 503:
            assert time.monotonic() < end
        assert reply.status == 200 and len(json.loads(reply.data)["result"]) == 1024
        (found,) = hits  # the client waited as it was told, and was served
        assert len(found) == 2
    finally:
        server.kill()


def test_a_dead_server_is_an_error_that_names_it():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RetrieverError, match=rf"http://127.0.0.1:{port}/retrieve: .*attempt [1-9]"):
        HttpRetriever(f"http://127.0.0.1:{port}", deadline=0.3).search(["q"], 1)
