"""Sampling servers that die, stand still, serve something else or belong to others; see fake_servers.py."""

import dataclasses
import errno
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_servers import GOOD, SERVED, FakeVllm, gated, serving
from safetensors.torch import load_file
from support import command_line, free_port

from searchgym.errors import DataError, EngineLostError, ModelError, UsageError
from searchgym.rollout.folders import model_folder
from searchgym.rollout.sampler import SampleRequest
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.vllm import gate, server
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.setup import EngineSetup, identity_of, serve_command
from searchgym.rollout.vllm.start import start_engine

WEIGHTS = {"w": torch.arange(3.0)}
GENERATE = "/inference/v1/generate"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A dead server is not waited for."""
    monkeypatch.setattr(server, "SERVER_SECONDS", 0.0)


def options_for(*addresses, **own):
    return Vllm(servers=list(addresses), **{"stall": 20.0, **own})


def sampler_on(*addresses, adapter=None, **own):
    options = options_for(*addresses, **own)
    adapters = int(adapter is not None)
    engine = start_engine("tiny", dtype="float32", requests=4, options=options, adapters=adapters, rank=8)
    return VllmSampler(engine, ends=[5], adapter=adapter)


def ask(sampler, count=1):
    return sampler.sample([SampleRequest(np.array([1], np.int32), seed=seed) for seed in range(count)])


@pytest.fixture
def fake():
    return FakeVllm()


@pytest.fixture
def address(fake):
    with gated(fake) as own:
        yield own


# -- replies -------------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases
@pytest.mark.parametrize("bad", [(500, "out of memory"), (200, "<html>busy</html>"), (200, '{"choices": [')])
def test_an_error_of_the_server_or_a_cut_reply_is_asked_again(fake, address, bad, capsys):
    fake.answers[GENERATE] = [bad, (200, GOOD)]
    sampler = sampler_on(address)
    if bad[1].startswith("<"):  # no JSON at all: not a server of vLLM
        with pytest.raises(ModelError, match="something else than a completion"):
            ask(sampler)
    else:
        (reply,) = ask(sampler)
        assert (reply.ids.tolist(), reply.logp.tolist(), reply.finish) == ([7, 5], [-0.5, -0.25], "eos")
        assert f"{address} has ended" in capsys.readouterr().err
    sampler.close()


def test_a_server_that_is_told_to_end_is_asked_again_when_it_is_back(fake, address):
    aborted = [{**GOOD["choices"][0], "finish_reason": "abort"}]
    fake.answers[GENERATE] = [(200, {"choices": aborted}), (200, GOOD)]
    sampler = sampler_on(address)
    (reply,) = ask(sampler)
    assert (reply.ids.tolist(), sampler.engine.restarts) == ([7, 5], 1)
    sampler.close()


def test_an_adapter_that_the_server_refuses_does_not_end_it(fake, address):
    fake.answers["/v1/load_lora_adapter"] = [(500, "rank 16 is above 8")]
    sampler = sampler_on(address, adapter={"r": 8})
    with pytest.raises(ModelError, match="rank 16 is above 8"):
        sampler.update(WEIGHTS, 1)
    assert sampler.engine.restarts == 0
    sampler.close()


# -- weights -------------------------------------------------------------------------------------------------------


def test_weights_go_through_the_shared_folder_and_requests_name_them(fake, address, tmp_path):
    sampler = sampler_on(address, shared=str(tmp_path))
    loaded = []
    reload = fake.answer

    def answer(path, asked):
        if asked.get("method") == "load_folder":
            folder = Path(asked["kwargs"]["folder"])
            loaded.append((folder.parent, load_file(folder / "model.safetensors")["w"].tolist(), folder.name))
        return reload(path, asked)

    fake.answer = answer
    sampler.update(WEIGHTS, 12)
    ((place, values, name),) = loaded
    assert (place, values) == (tmp_path, [0.0, 1.0, 2.0])
    assert "-v12-" in name
    assert ask(sampler)[0].version == 12
    sampler.close()
    assert [*tmp_path.iterdir()] == []


def test_an_adapter_goes_through_the_shared_folder_too(fake, address, tmp_path):
    sampler = sampler_on(address, adapter={"r": 8}, shared=str(tmp_path))
    sampler.update(WEIGHTS, 1)
    ((_, loaded),) = [call for call in fake.calls if call[0] == "/v1/load_lora_adapter"]
    folder = Path(loaded["lora_path"])
    assert folder.parent == tmp_path
    assert json.loads((folder / "adapter_config.json").read_text()) == {"r": 8}
    ask(sampler)
    assert fake.calls[-1][1]["model"] == loaded["lora_name"]
    sampler.close()


@pytest.mark.parametrize("harm", ["another file", "no file"])
def test_a_file_that_arrives_otherwise_is_not_loaded(fake, address, tmp_path, monkeypatch, harm, capsys):
    sampler = sampler_on(address, shared=str(tmp_path))
    call = server.ServedVllm._call

    def harmed(self, path, body, **options):
        if path == "/searchgym/load":
            file = Path(body["folder"]) / "model.safetensors"
            file.write_bytes(file.read_bytes()[:-4]) if harm == "another file" else file.unlink(missing_ok=True)
        return call(self, path, body, **options)

    monkeypatch.setattr(server.ServedVllm, "_call", harmed)
    said = "sees another file as" if harm == "another file" else "does not see the file"
    with pytest.raises(EngineLostError, match=f"{address}.*{said}.*model.safetensors"):
        sampler.update(WEIGHTS, 1)
    assert "load_folder" not in [asked.get("method") for _, asked in fake.calls]
    sampler.close()


@pytest.mark.slow
def test_a_server_that_came_back_between_requests_is_noticed_and_named(fake, capsys):
    """Its connection was idle, so nothing broke; its weights are those that it was started with."""
    port = free_port()
    with gated(fake, port=port) as address:
        sampler = sampler_on(address)
        sampler.update(WEIGHTS, 1)
        ask(sampler)
    with gated(fake, port=port) as address:
        (reply,) = ask(sampler)
        err = capsys.readouterr().err
        assert f"{address} has ended ({address}{GENERATE}: 412: it was started again" in err
        assert (reply.version, sampler.engine.restarts) == (1, 1)
        assert [asked.get("method") for _, asked in fake.calls].count("load_folder") == 2
        sampler.close()


def test_a_server_with_old_weights_is_noticed_and_named(fake, address, capsys):
    sampler = sampler_on(address)
    sampler.update(WEIGHTS, 1)
    sampler.engine.backend._weights = "those-of-v2"  # a load that the server never saw
    (reply,) = ask(sampler)
    assert f"{address}{GENERATE}: 412: it has weights searchgym-weights-" in capsys.readouterr().err
    assert (reply.version, sampler.engine.restarts) == (1, 1)
    sampler.close()


def test_the_next_run_gets_the_original_weights(fake, address):
    first = sampler_on(address)
    first.update(WEIGHTS, 1)
    first.close()
    second = sampler_on(address)
    loads = [asked for path, asked in fake.calls if path == "/collective_rpc" and asked["method"] != "check_health"]
    assert loads[1:] == [{"method": "load_folder", "kwargs": {"folder": str(model_folder("tiny"))}}]
    assert fake.paths()[-2:] == ["/reset_prefix_cache", "/v1/models"]  # keys and values of the first run are gone
    assert ask(second)[0].version == 0
    second.close()


# -- folders -------------------------------------------------------------------------------------------------------


def test_a_server_on_another_machine_needs_a_shared_folder():
    with pytest.raises(UsageError, match=r"10\.0\.0\.2:8000 is on another machine: set rollout\.sampler\.shared"):
        sampler_on("http://10.0.0.2:8000")


def test_a_folder_that_is_not_shared(address, tmp_path, monkeypatch):
    call = server.Client.call

    def elsewhere(self, path, body=None, **options):
        if path == "/searchgym/claim":
            body = body | {"folder": body["folder"].replace(str(tmp_path), "/nowhere")}
        return call(self, path, body, **options)

    monkeypatch.setattr(server.Client, "call", elsewhere)
    with pytest.raises(UsageError, match=f"{address} does not see the file /nowhere.*shared must be on both machines"):
        sampler_on(address, shared=str(tmp_path))
    assert [*tmp_path.iterdir()] == []


def test_a_shared_folder_that_does_not_exist(address, tmp_path):
    with pytest.raises(DataError, match=r"gone: cannot hold the weights.*No such file.*: create it where"):
        sampler_on(address, shared=str(tmp_path / "gone"))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "while it is written"])
def test_a_shared_folder_that_is_full(address, tmp_path, monkeypatch, when):
    sampler = sampler_on(address, shared=str(tmp_path))
    if when == "before":
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr(shutil, "disk_usage", lambda place: usage._replace(free=10))
        said = "0.0 MiB are free"
    else:

        def full(tensors, path):
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("safetensors.torch.save_file", full)
        said = "No space left on device"
    with pytest.raises(DataError, match=f"{tmp_path}: cannot hold the weights of version 1.*{said}.*: free some space"):
        sampler.update(WEIGHTS, 1)
    assert [*tmp_path.iterdir()] == []
    monkeypatch.undo()
    assert ask(sampler)[0].version == 0  # nothing is lost
    sampler.close()


# -- what it serves ------------------------------------------------------------------------------------------------


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": "x", "model": "/other"}, r"serves another model \(/other, here it is .*tiny\)"),
        ({"weights": "x"}, "serves other weights"),
        ({"tokenizer": "x"}, "serves another tokenizer"),
        ({"dtype": "bfloat16"}, "serves bfloat16, the recipe samples in float32"),
        ({"searchgym": "0.0.1"}, r"serves searchgym 0\.0\.1, here it is .*: install the same version"),
        ({"rank": 4}, "serves 1 adapters of rank 4, the recipe samples 1 of rank 8"),
    ],
)
def test_a_server_of_something_else(fake, change, said):
    adapter = {"r": 8} if "rank" in change else None
    with (
        gated(fake, SERVED | change) as address,
        pytest.raises(UsageError, match=f"{address} {said}.*searchgym serve model"),
    ):
        sampler_on(address, adapter=adapter)


def test_a_vllm_that_is_not_accepted_is_named(fake, capsys):
    with gated(fake, SERVED | {"vllm": "0.99.0"}) as address:
        sampler_on(address).close()
        assert (
            f"{address} has vLLM 0.99.0, accepted are 0.26 to 0.32: watch probe/difference" in capsys.readouterr().err
        )


def test_two_models_of_one_shape_have_different_identities(tmp_path):
    """One weight in the middle differs, as after a fine-tuning."""
    shutil.copytree(model_folder("tiny"), tmp_path / "copy")
    own, copy = (identity_of(folder, "float32") for folder in (model_folder("tiny"), tmp_path / "copy"))
    assert dataclasses.replace(copy, model=own.model) == own
    file = tmp_path / "copy" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert identity_of(tmp_path / "copy", "float32").weights != own.weights


def test_a_server_that_was_not_set_up_for_training(fake):
    with (
        serving(fake) as address,
        pytest.raises(UsageError, match="has no /searchgym/about: start it by `searchgym serve model"),
    ):
        sampler_on(address)


def test_nobody_there():
    with pytest.raises(EngineLostError, match=r"does not answer.*; start it by `searchgym serve model RECIPE --host H"):
        sampler_on(f"http://127.0.0.1:{free_port()}")


@pytest.mark.slow
def test_a_server_that_is_still_starting_is_waited_for(fake, monkeypatch, capsys):
    monkeypatch.setattr(server, "SERVER_SECONDS", 60.0)
    port, made = free_port(), []
    thread = threading.Thread(target=lambda: made.append(sampler_on(f"http://127.0.0.1:{port}")))
    thread.start()
    while "waiting for it, up to 60 s" not in capsys.readouterr().err:
        thread.join(0.01)
    with gated(fake, port=port):
        thread.join()
        made[0].close()


# -- keys and claims -----------------------------------------------------------------------------------------------


def test_a_wrong_key(fake, monkeypatch):
    monkeypatch.setenv(gate.KEY, "right")
    with gated(fake) as address:
        sampler = sampler_on(address)
        assert ask(sampler)
        for wrong in ("wrong", ""):
            monkeypatch.setenv(gate.KEY, wrong)
            with pytest.raises(UsageError, match=f"{address} refuses the key: set SEARCHGYM_ENGINE_KEY"):
                sampler_on(address)
        sampler.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.2"])
def test_no_server_for_other_machines_without_a_key(monkeypatch, capsys, host):
    monkeypatch.delenv(gate.KEY, raising=False)
    status, _, err = command_line(monkeypatch, capsys)("serve", "model", "tiny-grpo", "--host", host)
    assert status == 2
    assert f"--host {host} can be reached from other machines" in err


def test_a_second_run_is_refused_until_the_first_has_not_been_heard_of(fake):
    """By the server's clock alone: what time other machines have does not matter."""
    now = [1000.0]
    with gated(fake, clock=lambda: now[0]) as address:
        first = sampler_on(address)
        now[0] += gate.LEASE - 1
        with pytest.raises(
            UsageError, match=rf"{address} samples for another run \(.*heard of 29 s ago\): start a sep"
        ):
            sampler_on(address)
        first.engine.backend._client.call("/searchgym/beat", {}, timeout=5.0)
        now[0] += gate.LEASE - 1
        with pytest.raises(UsageError, match="samples for another run"):
            sampler_on(address)
        now[0] += 1
        second = sampler_on(address)
        with pytest.raises(UsageError, match="samples for another run"):  # the first has lost it, and is told
            ask(first)
        assert ask(second)
        first.close()
        second.close()
        sampler_on(address).close()


def test_a_stranger_can_change_nothing(fake, address):
    sampler = sampler_on(address)
    client = server.Client(address, {})
    for path in ("/collective_rpc", "/sleep", "/v1/load_lora_adapter", GENERATE, "/searchgym/load"):
        with pytest.raises(UsageError, match="samples for another run"):
            client.call(path, {"method": "load_folder"}, timeout=5.0)
    assert client.call("/v1/models", timeout=5.0)
    sampler.close()


def test_other_agents_may_ask_while_no_run_does_and_change_nothing(fake):
    fake.answers["/v1/chat/completions"] = [(200, {"choices": []})]
    with gated(fake) as address:
        client = server.Client(address, {})
        assert client.call("/v1/chat/completions", {"messages": []}, timeout=5.0) == {"choices": []}
        for path in ("/collective_rpc", "/v1/load_lora_adapter", GENERATE):
            with pytest.raises(ModelError, match=f"serves /v1/chat/completions and .* and {path} to trainings"):
                client.call(path, {"method": "load_folder"}, timeout=5.0)
        sampler = sampler_on(address)
        with pytest.raises(UsageError, match="samples for another run"):
            client.call("/v1/chat/completions", {"messages": []}, timeout=5.0)
        sampler.close()


def test_other_agents_get_the_original_weights_after_a_run(fake):
    fake.answers["/v1/chat/completions"] = [(200, {"choices": []})]
    now, original = [1000.0], {"method": "load_folder", "kwargs": {"folder": SERVED["model"]}}
    with gated(fake, clock=lambda: now[0]) as address:
        client = server.Client(address, {})

        def chat():
            """Returns the calls of vLLM's own that two questions lead to."""
            fake.calls.clear()
            for _ in range(2):
                assert client.call("/v1/chat/completions", {"messages": []}, timeout=5.0) == {"choices": []}
            return [path if path != "/collective_rpc" else body for path, body in fake.calls]

        sampler = sampler_on(address)
        sampler.update(WEIGHTS, 1)
        sampler.close()
        assert chat() == [original, "/reset_prefix_cache", *["/v1/chat/completions"] * 2]
        killed = sampler_on(address)
        killed.update(WEIGHTS, 2)
        with pytest.raises(UsageError, match="samples for another run"):
            chat()
        now[0] += gate.LEASE
        assert chat() == [original, "/reset_prefix_cache", *["/v1/chat/completions"] * 2]
        third = sampler_on(address)
        third.update(WEIGHTS, 3)
        third.close()
        fake.answers["/collective_rpc"] = [(500, "no memory")]
        with pytest.raises(EngineLostError, match=r"503: cannot load its original weights again: .*no memory"):
            chat()
        fake.answers["/collective_rpc"] = [(200, {"results": [None]})]
        assert chat()[0] == original
        killed.close()


# -- servers that die or stand still -------------------------------------------------------------------------------


def answered(sampler, count):
    """(ids, versions) of the replies to a number of requests: one each, none twice."""
    replies = ask(sampler, count)
    assert len(replies) == count
    return [reply.ids.tolist() for reply in replies]


@pytest.mark.slow
def test_a_server_that_dies_is_drained_and_returns_with_new_weights(capsys):
    one, two = FakeVllm(), FakeVllm()
    port = free_port()
    with gated(two) as other:
        with gated(one, port=port) as address:
            sampler = sampler_on(address, other)
            one.works.clear()
            ended = []
            thread = threading.Thread(target=lambda: ended.extend(answered(sampler, 6)))
            thread.start()
            while GENERATE not in one.paths():
                thread.join(0.001)
        thread.join()  # the server is gone, with the requests that it had
        assert ended == [[7, 5]] * 6
        assert sampler.engine.moved == 3  # half of them
        assert capsys.readouterr().err.count(f"{address} has ended ({address} does not answer") == 1
        sampler.update(WEIGHTS, 1)
        assert f"{address} cannot be restarted" in capsys.readouterr().err
        assert [*sampler.pins().values()] == [other]
        one.calls.clear()
        with gated(one, port=port):
            sampler.update(WEIGHTS, 2)
            assert [*sampler.pins().values()] == [address, other]
            assert {asked.get("method") for path, asked in one.calls if path == "/collective_rpc"} == {"load_folder"}
            assert answered(sampler, 6) == [[7, 5]] * 6
            assert GENERATE in one.paths()
            sampler.close()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["server", "engine"])
@pytest.mark.parametrize("when", ["it samples", "it loads weights"])
def test_a_server_that_stands_still_is_noticed_and_named(monkeypatch, capsys, what, when):
    """The whole server, as one that is stopped, or the engine behind a server that still answers."""
    monkeypatch.setattr(server, "HELLO", 0.5)
    monkeypatch.setattr(server, "LOADING", 0.2 if what == "engine" else 60.0)
    one, two = FakeVllm(), FakeVllm()
    with gated(one) as address, gated(two) as other:
        sampler = sampler_on(address, other, stall=0.2)
        (one.open if what == "server" else one.works).clear()
        if when == "it samples":
            assert answered(sampler, 6) == [[7, 5]] * 6
        else:
            sampler.update(WEIGHTS, 1)
            assert {reply.version for reply in ask(sampler, 4)} == {1}
        assert f"{address} has ended ({address} has not answered for 0.2 s: it stands still" in capsys.readouterr().err
        assert [*sampler.pins().values()] == [other]
        one.open.set()
        one.works.set()
        sampler.update(WEIGHTS, 2)
        assert [*sampler.pins().values()] == [address, other]
        sampler.close()


@pytest.mark.slow
def test_when_every_server_is_lost_the_run_is_told():
    one, two = FakeVllm(), FakeVllm()
    for own in (one, two):
        own.answers[GENERATE] = [(500, "out of memory")]
    with gated(one) as address, gated(two) as other:
        sampler = sampler_on(address, other)
        with pytest.raises(EngineLostError, match="every replica of vLLM's engine has ended"):
            ask(sampler, 4)
        sampler.close()


def test_the_key_is_not_in_the_command_of_a_server(monkeypatch):
    monkeypatch.setenv(gate.KEY, "secret")
    setup = EngineSetup(folder=model_folder("tiny"), dtype="float32", requests=1, options=Vllm())
    command, extra = serve_command(setup, "http://h:1")
    assert "secret" not in " ".join([*command, *extra.values()])
    assert command[command.index("--middleware") + 1] == "searchgym.rollout.vllm.gate.ServerGate"
    assert json.loads(extra[gate.SERVES])["weights"] == SERVED["weights"]
    assert os.environ[gate.KEY] == "secret"
