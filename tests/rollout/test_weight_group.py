"""Weights that are sent to the processes of a server over the network; see fake_servers.py for the servers."""

import gc
import threading
import weakref

import pytest
import torch
from fake_servers import FakeVllm, gated
from test_vllm_servers import ask, sampler_on

from searchgym.errors import CardError, EngineLostError, ModelError, UsageError
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.transfer.folders import with_head
from searchgym.rollout.transfer.group import Invitation, joined, send
from searchgym.rollout.transfer.receiver import Receiver
from searchgym.rollout.vllm import server
from searchgym.rollout.vllm.client import RUN, Client
from searchgym.rollout.vllm.start import start_engine
from searchgym.train.recipe.load import load_recipe

WEIGHTS = {
    "half": torch.randn(3, 5).bfloat16(),
    "turned": torch.arange(6.0).reshape(2, 3).t(),  # its memory is in another order
    "one": torch.tensor(7),
    "none": torch.empty(0, 4),
    "whole": torch.randn(1000, 17),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A dead server is not waited for."""
    monkeypatch.setattr(server, "SERVER_SECONDS", 0.0)


def send_to(invite, processes=1, seconds=20.0):
    send(WEIGHTS, invite, backend="gloo", host="127.0.0.1", processes=processes, seconds=seconds)


def refuse(invitation):
    raise UsageError("samples for another run")


# -- the group -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 3])
def test_every_process_gets_the_same_bits(processes):
    fake = FakeVllm()
    fake.processes = processes
    send_to(fake.receive, processes)
    assert len(fake.received) == processes
    for received in fake.received:
        assert [*received] == [*WEIGHTS]
        for name, wanted in WEIGHTS.items():
            assert (received[name].dtype, received[name].shape) == (wanted.dtype, wanted.shape)
            assert torch.equal(received[name], wanted)


def test_a_worker_loads_what_it_is_sent_and_takes_the_rest_off_the_line():
    loaded = []

    class Worker(Receiver):
        rank = 0

        def reload_weights(self, weights_iterator):
            loaded.append(next(weights_iterator))  # as a model that has no use for the others

    send_to(lambda invitation: Worker().receive_weights(invitation))
    ((name, tensor),) = loaded
    assert name == "half"
    assert torch.equal(tensor, WEIGHTS["half"])
    send({}, lambda invitation: Worker().receive_weights(invitation), backend="gloo", host="127.0.0.1", processes=1)
    assert len(loaded) == 1


@pytest.mark.parametrize(
    "given", [["model.embed_tokens.weight", "lm_head.weight"], ["model.embed_tokens.weight"], ["norm"]]
)
def test_a_tied_head_is_among_the_original_weights(given):
    """Without it vLLM keeps the head of the weights before, which it packs for a CPU."""
    tensors = {name: torch.full((2,), float(n)) for n, name in enumerate(given)}
    found = list(with_head(tensors.items()))
    assert [name for name, _ in found[: len(given)]] == given
    if given == ["model.embed_tokens.weight"]:
        (name, tensor), *rest = found[1:]
        assert name == "lm_head.weight" and torch.equal(tensor, torch.zeros(2)) and not rest
    else:
        assert len(found) == len(given)


def test_a_server_that_refuses_ends_the_sending_at_once():
    with pytest.raises(UsageError, match="samples for another run"):
        send_to(refuse)


def test_a_server_that_says_well_and_has_not_joined():
    with pytest.raises(EngineLostError, match="replied before its processes had joined"):
        send_to(lambda invitation: None)


@pytest.mark.slow
def test_processes_that_cannot_reach_this_machine():
    cut = threading.Event()
    with pytest.raises(EngineLostError, match=r"have not joined at 127.0.0.1:\d+ for 0.2 s: both machines"):
        send_to(lambda invitation: cut.wait(20.0), seconds=0.2)
    cut.set()


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
def test_a_process_that_leaves_half_way(told):
    """The server's own error is told, if it can still tell one."""
    ended = threading.Event()

    def leave(invitation):
        with joined(Invitation(**invitation), 1) as tensors:
            next(tensors)
        if told:
            raise EngineLostError("out of memory")
        ended.wait(20.0)

    with pytest.raises(EngineLostError, match="out of memory" if told else "the weights did not arrive"):
        send_to(leave, seconds=0.3)
    ended.set()


# -- a server ------------------------------------------------------------------------------------------------------


def test_weights_are_sent_and_requests_name_them():
    fake = FakeVllm()
    fake.processes = 2
    with gated(fake) as address:
        sampler = sampler_on(address, transfer="gloo")
        assert fake.received == [{}, {}]  # they have met
        sampler.update(WEIGHTS, 12)
        assert all(torch.equal(received["whole"], WEIGHTS["whole"]) for received in fake.received)
        assert ask(sampler)[0].version == 12
        assert not any(asked.get("kwargs", {}).get("weights_path") for _, asked in fake.calls)
        sampler.close()


@pytest.mark.slow
def test_a_server_that_was_started_again_is_sent_the_weights_again(capsys):
    fake = FakeVllm()
    with gated(fake) as address:
        sampler = sampler_on(address, transfer="gloo")
        sampler.update(WEIGHTS, 1)
        fake.received = [{}]
        fake.answers["/inference/v1/generate"].insert(0, (500, "engine died"))
        assert ask(sampler)[0].version == 1
        assert torch.equal(fake.received[0]["whole"], WEIGHTS["whole"])
        assert f"{address} has ended" in capsys.readouterr().err
        sampler.close()


@pytest.mark.slow
def test_a_server_whose_processes_cannot_join_is_refused_at_the_start(monkeypatch):
    monkeypatch.setattr(server, "MEET", 0.2)
    fake = FakeVllm()
    cut = threading.Event()
    monkeypatch.setattr(fake, "receive", lambda invitation: cut.wait(20.0))
    with gated(fake) as address:
        options = Vllm(servers=[address], transfer="gloo", stall=20.0)
        with pytest.raises(EngineLostError, match=f"{address}: the server's processes have not joined"):
            start_engine("tiny", dtype="float32", requests=4, options=options)
        cut.set()


def test_a_server_on_another_machine_needs_no_folder():
    options = Vllm(servers=["http://10.255.255.1:8000"], stall=20.0)
    with pytest.raises(UsageError, match=r"or rollout\.sampler\.transfer to gloo"):
        start_engine("tiny", dtype="float32", requests=1, options=options)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "servers is not set"),
        (["rollout.sampler.servers=[http://a:1]", "rollout.sampler.shared=/tmp"], "leave out shared"),
        (["rollout.sampler.servers=[http://a:1]", "lora.rank=4"], "set adapters to merged"),
        (["rollout.sampler.servers=[http://a:1]", "lora.rank=4", "rollout.sampler.adapters=merged"], None),
        (["rollout.sampler.servers=[http://a:1]"], None),
    ],
)
def test_what_goes_with_a_group(more, said):
    values = ["rollout.sampler=vllm", "rollout.sampler.transfer=gloo", *more]
    if said is None:
        assert load_recipe("tiny-grpo", values).rollout.sampler.transfer == "gloo"
        return
    with pytest.raises(CardError, match=rf"rollout.sampler: transfer gloo .*{said}"):
        load_recipe("tiny-grpo", values)


@pytest.mark.slow
def test_a_failed_process_is_reported_and_half_loaded_weights_never_sample(capsys):
    fake = FakeVllm()
    fake.processes = 2
    receive, fails = fake.receive, ["RuntimeError: out of memory"]

    def failing(invitation):
        receive(invitation)
        return fails.pop() if invitation["tensors"] and fails else None

    fake.receive = failing
    with gated(fake) as address:
        sampler = sampler_on(address, transfer="gloo")
        sampler.update(WEIGHTS, 1)  # the second try succeeds
        assert (
            f"{address} has ended ({address}/searchgym/load: 500: RuntimeError: out of memory)"
            in capsys.readouterr().err
        )
        assert (sampler.engine.restarts, ask(sampler)[0].version) == (1, 1)
        sampler.close()


def test_errors_of_the_api_are_those_of_recipes():
    for more, adapters, said in (
        ({"servers": ["http://127.0.0.1:1"]}, 1, "set adapters to merged"),
        ({}, 0, "none is named"),
        ({"servers": ["http://127.0.0.1:1"], "transfer": "nccl"}, 0, "this machine has none"),
    ):
        options = Vllm(**{"transfer": "gloo", **more})
        with pytest.raises(UsageError, match=said):
            start_engine("tiny", dtype="float32", requests=1, options=options, adapters=adapters)


def test_a_call_to_join_without_an_invitation_is_refused():
    with gated(FakeVllm()) as address:
        client = Client(address, {RUN: "mine"})
        client.call("/searchgym/claim", {"who": "me"}, timeout=5.0)
        with pytest.raises(ModelError, match="the invitation to a group is None"):
            client.call("/searchgym/load", {"name": "x", "invitation": None}, timeout=5.0)


def test_what_was_sent_is_not_kept_after_a_failure():
    whole = torch.randn(100)
    kept = weakref.ref(whole)
    gc.disable()
    try:
        with pytest.raises(UsageError):
            send({"w": whole}, refuse, backend="gloo", host="127.0.0.1", processes=1, seconds=5.0)
        del whole
        for thread in threading.enumerate():
            if thread.name == "weights":
                thread.join()
        assert kept() is None
    finally:
        gc.enable()
