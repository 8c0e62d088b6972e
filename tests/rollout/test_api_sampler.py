"""An OpenAI-compatible server that misbehaves in every way that servers do."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from searchgym.errors import ModelError, UsageError
from searchgym.protocol import get_protocol
from searchgym.rollout.api.sampler import ApiOptions, ApiSampler, MessageFormat, messages_of
from searchgym.rollout.sampler import SampleRequest, Sampling, StreamingSampler

FORMAT = MessageFormat(get_protocol("tags"))


def completion(text, reason="stop"):
    return {
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 4},
    }


@pytest.fixture
def server():
    """A server whose replies are a list: (status, headers, body) each, taken in order."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with served.lock:
                served.asked.append((self.path, self.headers.get("Authorization"), body))
                status, headers, reply = served.replies.pop(0) if served.replies else (200, {}, completion("ok"))
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.replies, served.asked, served.lock = [], [], threading.Lock()
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


def sampler(server, **options):
    given = {"model": "m", "wait": 0.001, "attempts": 4} | options
    return ApiSampler(ApiOptions(url=f"http://127.0.0.1:{server.server_port}/v1", **given), FORMAT.protocol)


def request(text="hello", **sampling):
    return SampleRequest(FORMAT.prompt_ids(text), Sampling(**sampling), 3)


def said(reply):
    return FORMAT.response_text(reply.ids)


def test_a_conversation_is_read_back_as_messages():
    ids = np.concatenate(
        [FORMAT.prompt_ids("Who? 東京"), [ord(c) for c in "<search>a</search>"], FORMAT.observation_ids(" b\n", "stop")]
    )
    assert messages_of(ids.astype(np.int32)) == [
        {"role": "user", "content": "Who? 東京"},
        {"role": "assistant", "content": "<search>a</search>"},
        {"role": "user", "content": "b"},
    ]


def test_what_is_sent(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    own = sampler(server)
    assert isinstance(own, StreamingSampler)
    own.sample([request(max_tokens=7, temperature=0.5, top_p=0.9, stop=("</search>",))])
    path, key, body = server.asked[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer k")
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["</search>"],
    }


@pytest.mark.parametrize(
    ("text", "reason", "wanted", "finish"),
    [
        ("<search>Rome", "stop", "<search>Rome</search>", "stop"),
        ("<search>a</search> then <answer>b", "stop", "<search>a</search>", "stop"),
        ("<answer>b</answer>", "stop", "<answer>b</answer>", "stop"),
        ("no action", "stop", "no action", "eos"),
        ("<search>Ro", "length", "<search>Ro", "length"),
        (None, "stop", "", "eos"),
    ],
)
def test_the_closing_tag_that_the_server_took_is_given_back(server, text, reason, wanted, finish):
    server.replies = [(200, {}, completion(text, reason))]
    reply = sampler(server).sample([request(stop=("</search>", "</answer>"))])[0]
    assert (said(reply), reply.finish) == (wanted, finish)
    assert len(reply.logp) == len(reply.ids)


BAD = {
    "429": (429, {"Retry-After": "0"}, {"error": "slow down"}),
    "500": (500, {}, b"oops"),
    "503 with a date": (503, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, b""),
    "a cut reply": (200, {"Content-Length": "5000"}, b'{"choices": [{"mess'),
    "no JSON": (200, {}, b"<html>busy</html>"),
    "wrong JSON": (200, {}, {"choices": []}),
    "other JSON": (200, {}, {"choices": [{"message": {"content": ["x"]}, "finish_reason": "stop"}]}),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_may_succeed_later_is_asked_again(server, bad):
    server.replies = [BAD[bad], BAD[bad]]
    own = sampler(server, timeout=1.0)
    assert said(own.sample([request()])[0]) == "ok"
    assert (own.usage.requests, own.usage.retries) == (1, 2)


def test_the_last_attempt_says_what_the_server_said(server):
    server.replies = [BAD["500"]] * 4
    with pytest.raises(ModelError, match=r"m at http.*: no answer in 4 attempts; the last one: HTTP 500: oops"):
        sampler(server).sample([request()])


def test_what_is_refused_is_not_asked_again(server):
    server.replies = [(401, {}, {"error": "no such key"})]
    with pytest.raises(UsageError, match=r"HTTP 401: .*no such key"):
        sampler(server).sample([request()])
    assert len(server.asked) == 1


def test_nobody_there(server):
    own = sampler(server, attempts=2)
    server.shutdown()
    server.server_close()
    with pytest.raises(ModelError, match=r"no answer in 2 attempts; the last one: NewConnectionError: .*refused"):
        own.sample([request()])


def test_many_at_once_keep_their_order_and_the_cost_is_counted(server):
    class Echo(ApiSampler):
        def _post(self, body):
            super()._post(body)
            return json.dumps(completion(body["messages"][0]["content"])).encode()

    own = Echo(sampler(server, price_in=1.0, price_out=5.0, at_once=4).options, FORMAT.protocol)
    texts = [f"question {i}" for i in range(20)]
    assert [said(reply) for reply in own.sample([request(text) for text in texts])] == texts
    assert own.usage.prompt_tokens == 200
    assert own.usage.cost == pytest.approx((200 * 1.0 + 80 * 5.0) / 1e6)


def test_its_weights_cannot_be_set(server):
    with pytest.raises(UsageError, match="cannot be trained"):
        sampler(server).update({}, 1)


def test_an_evaluation_outlives_its_server_and_is_resumed(server, tmp_path):
    """429, 500 and a cut reply are asked again; a refusal ends the run, whose episodes stay."""
    from searchgym.agents.base import load_agent
    from searchgym.envs.registration import find_env
    from searchgym.envs.task import load_task
    from searchgym.eval.runner import EvalOptions, evaluate
    from searchgym.rollout.models import Model
    from searchgym.rollout.storage import read_episodes

    def run(**options):
        model = Model.over("m", sampler(server), FORMAT)
        given = EvalOptions(concurrency=1, **options)
        return evaluate(
            load_task(find_env("Demo")), load_agent("search-r1"), tmp_path / "run", {"searcher": model}, given
        )

    answer = (200, {}, completion("<answer>Dunmere</answer>"))
    cut = (200, {"Content-Length": "5000"}, completion("<answer>"))
    server.replies = [answer, (429, {"Retry-After": "0"}, b""), (500, {}, b"no"), cut, answer, answer]
    server.replies += [(400, {}, b"too long")]
    with pytest.raises(UsageError, match="HTTP 400: too long"):
        run()
    assert len(list(read_episodes(tmp_path / "run" / "episodes.jsonl"))) == 3
    server.replies = [answer] * 9
    scores = run(resume=True)
    assert (scores["n"], scores["answered"], scores["em"]) == (12, 1.0, pytest.approx(1 / 12))
