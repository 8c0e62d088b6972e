"""A real ``vllm serve``, and servers that are not what they should be."""

import copy
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from searchgym.errors import EngineLostError, ModelError, UsageError
from searchgym.rollout.folders import model_folder
from searchgym.rollout.sampler import SampleRequest, Sampling, VllmOptions
from searchgym.rollout.transformers.sampler import TransformersSampler, load_sampler
from searchgym.rollout.vllm.engine import Asked
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.server import ServedVllm, serve_command
from searchgym.rollout.vllm.start import start_engine

OPTIONS = VllmOptions(cache_gib=1, max_context=1024, eager=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# -- the real one --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The tiny model behind ``vllm serve``: its address and its process."""
    address = f"http://127.0.0.1:{free_port()}"
    command, extra = serve_command(
        model_folder("tiny"), address, dtype="float32", requests=16, options=OPTIONS, adapters=1, rank=8
    )
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=os.environ | extra, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    yield address, process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def served(server):
    options = VllmOptions(servers=[server[0]])
    own, tokenizer = load_sampler("tiny")
    sampler = VllmSampler(start_engine("tiny", dtype="float32", requests=16, options=options), ends=own.ends)
    yield own, tokenizer, sampler
    sampler.close()


def requests(tokenizer, count=8, **sampling):
    ids = np.array(tokenizer("Which county is the birthplace of the painter in?\n")["input_ids"], np.int32)
    return [SampleRequest(ids[: len(ids) - i], Sampling(**sampling), i) for i in range(count)]


@pytest.mark.engine
def test_a_server_samples_like_transformers_before_and_after_new_weights(served):
    own, tokenizer, sampler = served
    assert sampler.max_context == 1024
    asked = requests(tokenizer, max_tokens=32, temperature=0.0, stop=("</search>",))
    for got, wanted in zip(sampler.sample(asked), own.sample(asked), strict=True):
        assert got.ids.tolist() == wanted.ids.tolist()
        assert (got.finish, got.version) == (wanted.finish, 0)
        np.testing.assert_allclose(got.logp, wanted.logp, atol=1e-4)
    torch.manual_seed(0)
    other = copy.deepcopy(own.model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.02 * torch.randn_like(weight) if weight.ndim > 1 else 0)
    sampler.update(other.state_dict(), 1)
    for got, wanted in zip(sampler.sample(asked), TransformersSampler(other, tokenizer).sample(asked), strict=True):
        assert got.ids.tolist() == wanted.ids.tolist()
        assert got.version == 1
        np.testing.assert_allclose(got.logp, wanted.logp, atol=1e-4)
    sampler.update(own.model.state_dict(), 2)


@pytest.mark.engine
def test_a_second_run_is_refused(served, server):
    with pytest.raises(UsageError, match="samples for another run of this machine"):
        ServedVllm(server[0], requests=1)


@pytest.mark.engine
def test_a_request_that_the_server_refuses_is_told_and_the_others_go_on(served):
    _, tokenizer, sampler = served
    ended = []
    parameters = sampler._parameters(requests(tokenizer)[0]) | {"temperature": -1.0}
    done = threading.Event()
    sampler.engine.ask(Asked([1, 2], parameters, lambda completion, version: (ended.append(completion), done.set())))
    done.wait()
    assert isinstance(ended[0], ModelError)
    assert "400" in str(ended[0])
    assert len(sampler.sample(requests(tokenizer, max_tokens=4))) == 8


@pytest.mark.engine
def test_a_port_that_is_taken(server):
    command = [sys.executable, "-m", "searchgym", "engine", "tiny-grpo", "--at", server[0]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"--at {server[0]}: cannot listen" in done.stderr


# -- others --------------------------------------------------------------------------------------------------------


@pytest.fixture
def pretender():
    """A server that answers what a test puts in: (status, body) by path, the last one again and again."""
    answers = {"/v1/models": [(200, json.dumps({"data": [{"max_model_len": 64}]}))]}

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            own = answers.get(self.path, [(404, "nothing here")])
            status, body = own.pop(0) if len(own) > 1 else own[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = answer

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as own:
        thread = threading.Thread(target=own.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{own.server_port}", answers
        own.shutdown()
        thread.join()


GOOD = json.dumps(
    {
        "choices": [
            {
                "token_ids": [7, 5],
                "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]},
                "finish_reason": "stop",
                "stop_reason": 5,
            }
        ]
    }
)


@pytest.mark.parametrize("bad", [(500, "out of memory"), (200, "<html>busy</html>"), (200, '{"choices": [')])
def test_an_error_of_the_server_or_a_cut_reply_is_asked_again(pretender, bad, capsys):
    address, answers = pretender
    answers["/inference/v1/generate"] = [bad, (200, GOOD)]
    sampler = VllmSampler(
        start_engine("tiny", dtype="float32", requests=1, options=VllmOptions(servers=[address])), ends=[5]
    )
    if bad[1].startswith("<"):  # no JSON at all: not a server of vLLM
        with pytest.raises(ModelError, match="something else than a completion"):
            sampler.sample([SampleRequest(np.array([1], np.int32))])
    else:
        (reply,) = sampler.sample([SampleRequest(np.array([1], np.int32))])
        assert (reply.ids.tolist(), reply.logp.tolist(), reply.finish) == ([7, 5], [-0.5, -0.25], "eos")
        assert "it is begun again" in capsys.readouterr().err
    sampler.close()


def test_a_server_that_was_not_set_up_for_training(pretender):
    address, _ = pretender
    sampler = VllmSampler(
        start_engine("tiny", dtype="float32", requests=1, options=VllmOptions(servers=[address])), ends=[5]
    )
    with pytest.raises(UsageError, match="has no /inference/v1/generate: start it by `searchgym engine`"):
        sampler.sample([SampleRequest(np.array([1], np.int32))])
    with pytest.raises(UsageError, match="has no /collective_rpc: start it by `searchgym engine`"):
        sampler.update({"w": torch.zeros(1)}, 1)
    sampler.close()


def test_an_adapter_that_the_server_refuses_does_not_end_it(pretender):
    address, answers = pretender
    answers["/v1/load_lora_adapter"] = [(500, "rank 16 is above 8")]
    options = VllmOptions(servers=[address])
    engine = start_engine("tiny", dtype="float32", requests=1, options=options)
    sampler = VllmSampler(engine, ends=[5], adapter={"r": 16})
    with pytest.raises(ModelError, match="rank 16 is above 8"):
        sampler.update({"w": torch.zeros(1)}, 1)
    assert engine.restarts == 0
    sampler.close()


def test_a_server_that_is_told_to_end_is_asked_again_when_it_is_back(pretender):
    address, answers = pretender
    answers["/inference/v1/generate"] = [
        (200, GOOD.replace('"finish_reason": "stop"', '"finish_reason": "abort"')),
        (200, GOOD),
    ]
    engine = start_engine("tiny", dtype="float32", requests=1, options=VllmOptions(servers=[address]))
    sampler = VllmSampler(engine, ends=[5])
    (reply,) = sampler.sample([SampleRequest(np.array([1], np.int32))])
    assert (reply.ids.tolist(), engine.restarts) == ([7, 5], 1)
    sampler.close()


def test_nobody_there():
    with pytest.raises(EngineLostError, match="does not answer"):
        ServedVllm(f"http://127.0.0.1:{free_port()}", requests=1, patience=0.0)
