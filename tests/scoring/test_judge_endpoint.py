"""A judge behind an OpenAI-compatible endpoint: verdicts count, silence and prose leave an episode without a reward."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from credit_terms import terms_of
from judges_in_tests import find_judge

from searchgym.records import Answer, Call, Context, Episode, Question, Span
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext

RUBRIC = [{"text": "It says that the mother of Zor is Ada Bel."}]
QUESTION = Question("q", "Write about Zor.", ("Ada Bel",), metadata={"rubric": RUBRIC})


@pytest.fixture
def endpoint():
    """The URL of a server that hangs on slow answers, chats about others, and judges the rest by Ada's name."""
    end = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
            quoted = " ".join(line for line in prompt.splitlines() if line.startswith("|"))
            asked = prompt.splitlines()[-1]
            if "slow" in quoted:
                end.wait(30)
            says = "yes" if "Ada Bel" in quoted and "Ada Bel" in asked else "no"
            message = {"role": "assistant", "content": "Well, I would say yes." if "chat" in quoted else says}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            reply = {"id": "1", "object": "chat.completion", "created": 0, "model": "judge", "usage": usage,
                     "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}  # fmt: skip
            data = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *given): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1#judge"
    end.set()
    server.shutdown()
    server.server_close()
    thread.join(10)


def attempt(text, number):
    spans = [Span("prompt", np.array([1], np.int32)), Span("model", np.array([3], np.int32), np.zeros(1, np.float32))]
    calls = [Call(0, 1, 2, "searcher", "policy", 1)]
    contexts = [Context(None, 0, spans)]
    return Episode(f"q#{number}", "q", "a", "e", contexts=contexts, calls=calls, group_uid="g", answer=Answer(text))


@pytest.mark.slow
def test_only_what_it_judged_in_time_gets_a_reward(endpoint):
    judge = find_judge({"kind": "model", "model": endpoint, "seconds": 1.0})
    try:
        credit = Credit(terms_of("rubric"), CreditContext(question=lambda episode: QUESTION, judge=judge))
        answers = ["The mother is Ada Bel.", "A slow answer: Ada Bel.", "A chat on Ada Bel.", "The mother is Kim Vos."]
        found = credit.rewards([attempt(text, number) for number, text in enumerate(answers)])
        assert [None if row is None else row.total for row in found] == [[1.0], None, None, [0.0]]
        assert credit.judged()["unjudged"] == 2
    finally:
        judge.close()
