"""Servers in this process that look like ``vllm serve`` to a training, with the real gate in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from safetensors.torch import load_file

from searchgym.rollout.folders import ADAPTER, ADAPTER_WEIGHTS, model_folder
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.rollout.transfer.fingerprint import adapter_fingerprint, fingerprint
from searchgym.rollout.transfer.group import Invitation, joined
from searchgym.rollout.vllm.client import PROCESSES, SERVES
from searchgym.rollout.vllm.gate import ServerGate
from searchgym.rollout.vllm.setup import identity_of

GOOD = {
    "choices": [
        {
            "token_ids": [7, 5],
            "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]},
            "finish_reason": "stop",
            "stop_reason": 5,
        }
    ]
}
NUMBERS = itertools.count()


def numbered(state):
    """Returns a reward that differs from every other one, so that each group has an advantage."""
    return float(next(NUMBERS))


SERVED = asdict(identity_of(model_folder("tiny"), "float32", adapters=1, rank=16)) | {"vllm": "0.32.0"}


class FakeVllm:
    """Answers what a test puts in: (status, body) by path, the last one again and again.

    While `open` is not set nothing is answered, as by a server that was stopped; while `works` is not set, nothing but
    what the gate answers itself. With a sampler on transformers it answers requests by the model's own tokens, and
    loads the weights that it is told to.
    """

    def __init__(self, sampler=None):
        self.answers = {
            "/v1/models": [(200, {"data": [{"max_model_len": 64 if sampler is None else sampler.max_context}]})],
            "/inference/v1/generate": [(200, GOOD)],
            "/collective_rpc": [(200, {"results": [None]})],
            "/reset_prefix_cache": [(200, {"success": True})],
            "/v1/load_lora_adapter": [(200, {})],
            "/v1/unload_lora_adapter": [(200, {})],
        }
        self.sampler, self.calls = sampler, []
        self.open, self.works = threading.Event(), threading.Event()
        self.open.set()
        self.works.set()
        self.ignores_weights, self.adapter_print = False, ""
        self.processes = 1
        self.received = [{}]
        """Tensors that each process was sent last."""

    def paths(self):
        return [path for path, _ in self.calls]

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = await receive()
        asked = json.loads(body.get("body") or b"{}")
        self.calls.append((scope["path"], asked))
        await asyncio.to_thread(self.works.wait)
        status, content = await asyncio.to_thread(self.answer, scope["path"], asked)
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": data})

    def answer(self, path, asked):
        if self.sampler is not None and path == "/inference/v1/generate":
            return 200, self.sampled(asked)
        if self.sampler is not None and asked.get("method") == "load_folder" and not self.ignores_weights:
            weights = load_file(f"{asked['kwargs']['folder']}/model.safetensors")
            weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])  # the model's own files lack it
            self.sampler.update(weights, 0)
        if path == "/v1/load_lora_adapter" and not self.ignores_weights:
            folder = Path(asked["lora_path"])
            if self.sampler is not None:
                state, config = load_file(folder / ADAPTER_WEIGHTS), json.loads((folder / ADAPTER).read_text())
                self.adapter_print = adapter_fingerprint(state, config["lora_alpha"] / config["r"], "float32")
        if self.sampler is not None and asked.get("method") == "weights_fingerprint":
            of_base = asked["kwargs"]["adapter"] is None
            whole = fingerprint(self.sampler.model.state_dict().items()) if of_base else self.adapter_print
            return 200, {"results": [whole] * self.processes}
        if asked.get("method") == "receive_weights":
            failed = self.receive(asked["kwargs"]["invitation"])
            if failed:
                return 200, {"results": [*[None] * (self.processes - 1), failed]}
        own = self.answers.get(path, [(404, "nothing here")])
        return own.pop(0) if len(own) > 1 else own[0]

    def receive(self, invitation):
        """Takes tensors in every process, each a thread here."""

        def take(number):
            with joined(Invitation(**invitation), 1 + number) as tensors:
                return dict(tensors)

        with ThreadPoolExecutor(self.processes) as pool:
            self.received = [*pool.map(take, range(self.processes))]
        if self.received[0] and self.sampler is not None and not self.ignores_weights:
            self.sampler.update(self.received[0], 0)

    def sampled(self, asked):
        given = asked["sampling_params"]
        sampling = Sampling(given["max_tokens"], given["temperature"], given["top_p"], tuple(given["stop"]))
        (reply,) = self.sampler.sample([SampleRequest(np.array(asked["token_ids"], np.int32), sampling, given["seed"])])
        choice = {
            "token_ids": reply.ids.tolist(),
            "logprobs": {"content": [{"logprob": float(own)} for own in reply.logp]},
            "finish_reason": "stop" if reply.finish in ("eos", "stop") else "length",
            "stop_reason": "text" if reply.finish == "stop" else None,
        }
        return {"choices": [choice]}


@contextlib.contextmanager
def serving(app, port=0):
    """Runs an ASGI application in a thread; yields its address. At the end it breaks off what it is answering.

    Threads of the application that wait must be let go then.
    """
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0))
    with socket.create_server(("127.0.0.1", port)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield address
        finally:
            for connection in [*server.server_state.connections]:
                connection.loop.call_soon_threadsafe(connection.transport.abort)
            server.should_exit = server.force_exit = True
            if (fake := getattr(app, "fake", None)) is not None:
                fake.open.set()
                fake.works.set()
            thread.join()


@contextlib.contextmanager
def gated(fake, serves=SERVED, clock=time.monotonic, port=0):
    """Runs a fake behind the real gate; yields its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SERVES, json.dumps(serves))
        patch.setenv(PROCESSES, str(fake.processes))
        gate = ServerGate(fake, clock)

    async def front(scope, receive, send):
        if scope["type"] == "http":
            await asyncio.to_thread(fake.open.wait)
        await gate(scope, receive, send)

    front.fake = fake
    with serving(front, port) as address:
        yield address
