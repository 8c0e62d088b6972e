"""A real ``vllm serve``; what goes wrong with servers is in test_vllm_servers.py."""

import copy
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from support import free_port

from searchgym.errors import ModelError, UsageError
from searchgym.rollout.folders import model_folder
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.transfer import group
from searchgym.rollout.transformers.sampler import TransformersSampler, load_sampler
from searchgym.rollout.vllm import server as vllm_server
from searchgym.rollout.vllm.backend import EngineRequest
from searchgym.rollout.vllm.sampler import VllmSampler, request_parameters
from searchgym.rollout.vllm.setup import EngineSetup, serve_command
from searchgym.rollout.vllm.start import start_engine

OPTIONS = Vllm(cache_gib=1, max_context=1024, eager=True)

# -- the real one --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The tiny model behind ``vllm serve``: its address and its process."""
    address = f"http://127.0.0.1:{free_port()}"
    setup = EngineSetup(folder=model_folder("tiny"), dtype="float32", requests=16, options=OPTIONS, adapters=1, rank=8)
    command, extra = serve_command(setup, address)
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=os.environ | extra, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    yield address, process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module", params=["folder", "gloo"])
def served(server, request):
    options = Vllm(servers=[server[0]], transfer=request.param)
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
@pytest.mark.parametrize("served", ["gloo"], indirect=True)
def test_a_transfer_that_breaks_half_way_is_made_again_from_the_start(served, monkeypatch, capsys):
    own, tokenizer, sampler = served
    monkeypatch.setattr(vllm_server, "SENDING", 3.0)
    broadcast, left = group._broadcast, [12]  # of the first layer, k is there and q is not

    def cut(process_group, memory):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("connection reset")
        broadcast(process_group, memory)

    monkeypatch.setattr(group, "_broadcast", cut)
    sampler.update(own.model.state_dict(), 3)
    said = capsys.readouterr().err
    assert "the weights did not arrive: connection reset" in said
    assert said.count("has ended") == 1  # the next load is not harmed by what is left of this one
    asked = requests(tokenizer, max_tokens=32, temperature=0.0, stop=("</search>",))
    for got, wanted in zip(sampler.sample(asked), own.sample(asked), strict=True):
        assert (got.ids.tolist(), got.version) == (wanted.ids.tolist(), 3)


@pytest.mark.engine
def test_a_second_run_is_refused(served, server):
    options = Vllm(servers=[server[0]])
    with pytest.raises(UsageError, match=r"samples for another run \(.*process \d+, heard of \d+ s ago\)"):
        start_engine("tiny", dtype="float32", requests=1, options=options)


@pytest.mark.engine
def test_a_request_that_the_server_refuses_is_told_and_the_others_go_on(served):
    _, tokenizer, sampler = served
    ended = []
    parameters = request_parameters(requests(tokenizer)[0], sampler.ends, sampler.max_context) | {"temperature": -1.0}
    done = threading.Event()
    sampler.engine.ask(
        EngineRequest([1, 2], parameters, lambda completion, version: (ended.append(completion), done.set()))
    )
    done.wait()
    assert isinstance(ended[0], ModelError)
    assert "400" in str(ended[0])
    assert len(sampler.sample(requests(tokenizer, max_tokens=4))) == 8


@pytest.mark.engine
def test_a_port_that_is_taken(server):
    port = server[0].rpartition(":")[2]
    command = [sys.executable, "-m", "searchgym", "serve", "model", "tiny-grpo", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port} " in done.stderr
