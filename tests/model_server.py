"""A model behind an OpenAI-compatible server: whole texts of a model, cut and told as the servers named here do."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SAYS = {"vllm": ("stop_reason", None), "sglang": ("matched_stop", 151645), "silent": None}
"""Servers to the field that names the stop string, and its value where none ended the response."""


def choice_of(text, stop, server="silent", apart=False):
    """Returns a choice that holds a text up to the first stop string, which is left out.

    Args:
        text: What the model would write if nothing stopped it.
        stop: Stop strings.
        server: Key of `SAYS`.
        apart: Whether thoughts stand in a field of their own, as with vLLM's ``--reasoning-parser``.
    """
    at, cut = min(((text.find(s), s) for s in stop if s in text), default=(len(text), None))
    text = text[:at]
    message = {"role": "assistant", "content": text}
    if apart:
        thought, closing, rest = text.removeprefix("<think>").partition("</think>")
        message |= {"reasoning_content": thought, "content": rest if closing else None}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    if (told := SAYS[server]) is not None:
        choice[told[0]] = told[1] if cut is None else cut
    return choice


@contextlib.contextmanager
def serves(replies, **how):
    """Serves a model; yields its base URL and the list of requests, which grows.

    Args:
        replies: Reply of each turn: a text, or a whole choice. A request that is repeated gets the same one.
        **how: See `choice_of`.
    """
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            reply = replies[sum(message["role"] == "assistant" for message in body["messages"])]
            choice = choice_of(reply, body.get("stop") or (), **how) if isinstance(reply, str) else reply
            usage = {"prompt_tokens": 100, "completion_tokens": 10}
            data = json.dumps({"choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_): ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
