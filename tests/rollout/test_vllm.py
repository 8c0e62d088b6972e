"""vLLM itself, on the CPU: the same tokens as transformers, weights that arrive, engines that end and are replaced."""

import contextlib
import copy
import os
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import psutil
import pytest
import torch

from searchgym.errors import ModelError, UsageError
from searchgym.rollout.loading import load_model
from searchgym.rollout.sampler import SampleRequest, Sampling, StreamingSampler
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.transformers.sampler import TransformersSampler, load_sampler
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.start import start_engine
from searchgym.testing import SamplerTests
from searchgym.train.learner.lora import adapter_config, adapter_weights, add_adapter, merged
from searchgym.train.recipe.options import LoraOptions

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("default"),  # vLLM and its imports raise warnings that we cannot mend
]
OPTIONS = Vllm(cache_gib=1, max_context=1024, eager=True)
QUESTION = "Which county is the birthplace of the painter in?\n"


@pytest.fixture(scope="module")
def own():
    """The tiny model on transformers, and its tokenizer."""
    return load_sampler("tiny")


@pytest.fixture(scope="module")
def vllm(own):
    engine = start_engine("tiny", dtype="float32", requests=64, options=OPTIONS, adapters=2, rank=4)
    sampler = VllmSampler(engine, ends=own[0].ends)
    yield sampler
    sampler.close()


def requests(tokenizer, count=8, **sampling):
    ids = np.array(tokenizer(QUESTION)["input_ids"], np.int32)
    return [SampleRequest(ids[: len(ids) - i], Sampling(**sampling), i) for i in range(count)]


def workers(sampler):
    """Process ids of its engine."""
    return sampler.engine.backend.processes


def test_it_is_a_streaming_sampler(vllm):
    assert isinstance(vllm, StreamingSampler)
    assert vllm.max_context == 1024


class TestVllmSampler(SamplerTests):
    tolerance = 1e-4

    @pytest.fixture(autouse=True)
    def take(self, own, vllm):
        self.own, self.vllm, version = own, vllm, vllm.version
        self.vocabulary = len(own[1])
        yield
        if vllm.version != version:
            vllm.update(own[0].model.state_dict(), version)

    def make_sampler(self):
        return self.vllm

    def close(self, sampler):
        """It is shared."""

    def decode(self, ids):
        return self.own[1].decode(ids)

    def new_weights(self):
        return moved(self.own[0].model, seed=1).state_dict()


@pytest.mark.smoke
@pytest.mark.parametrize("sampling", [{}, {"stop": ("</search>",)}, {"max_tokens": 3}])
def test_greedy_tokens_are_those_of_transformers(own, vllm, sampling):
    asked = requests(own[1], **({"max_tokens": 48, "temperature": 0.0} | sampling))
    for got, wanted in zip(vllm.sample(asked), own[0].sample(asked), strict=True):
        assert got.ids.tolist() == wanted.ids.tolist()
        assert got.finish == wanted.finish
        np.testing.assert_allclose(got.logp, wanted.logp, atol=1e-4)


def test_log_probs_are_after_the_temperature(own, vllm):
    asked = requests(own[1], max_tokens=24, temperature=0.7)
    for request, reply in zip(asked, vllm.sample(asked), strict=True):
        ids = torch.tensor(np.concatenate([request.ids, reply.ids]).astype(np.int64))[None]
        with torch.no_grad():
            logits = own[0].model(input_ids=ids).logits[0, len(request.ids) - 1 : -1]
        wanted = torch.log_softmax(logits / 0.7, -1).gather(1, ids[0, len(request.ids) :, None])[:, 0]
        np.testing.assert_allclose(reply.logp, wanted.numpy(), atol=1e-4)


def test_prompts_that_fill_the_context_and_foreign_ids(own, vllm):
    full = SampleRequest(np.zeros(1024, np.int32), Sampling(4))
    nearly = SampleRequest(np.full(1022, 300, np.int32), Sampling(40, 0.0))
    empty, short = vllm.sample([full, nearly])
    assert (len(empty.ids), empty.finish) == (0, "context")
    assert (len(short.ids), short.finish) == (2, "context") or short.finish == "eos"
    with pytest.raises(UsageError, match="token ids must be from 0 to"):
        vllm.sample([SampleRequest(np.array([10**6], np.int32))])


def moved(model, seed=0):
    """Weights somewhat beside a model's; what is tied stays tied."""
    torch.manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.02 * torch.randn_like(weight) if weight.ndim > 1 else 0)
    return other


@pytest.mark.smoke
def test_new_weights_arrive_and_nothing_of_the_old_ones_is_remembered(own, vllm):
    asked = requests(own[1], max_tokens=32, temperature=0.0)
    before = [reply.ids.tolist() for reply in vllm.sample(asked)]  # its prompts are remembered now
    other = moved(own[0].model)
    vllm.update(other.state_dict(), 1)
    assert vllm.version == 1
    wanted = TransformersSampler(other, own[1]).sample(asked)
    for got, reply in zip(vllm.sample(asked), wanted, strict=True):
        assert got.ids.tolist() == reply.ids.tolist()
        np.testing.assert_allclose(got.logp, reply.logp, atol=1e-4)
    assert [reply.ids.tolist() for reply in wanted] != before
    vllm.update(own[0].model.state_dict(), 2)
    assert [reply.ids.tolist() for reply in vllm.sample(asked)] == before


def adapted(seed):
    """The tiny model with an adapter of its own, trained by nobody."""
    model, _ = load_model("tiny")
    lora = LoraOptions(rank=4, alpha=8.0)
    add_adapter(model, lora, seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".lora_B." in name:
                weight.copy_(0.05 * torch.randn_like(weight))
    return model, lora


def test_two_adapters_on_one_engine_give_what_two_models_give(own, vllm):
    asked = requests(own[1], max_tokens=32, temperature=0.0)
    before = [reply.ids.tolist() for reply in vllm.sample(asked)]
    samplers, answers = [], []
    for seed in (1, 2):
        model, lora = adapted(seed)
        sampler = VllmSampler(vllm.engine, ends=own[0].ends, adapter=adapter_config(lora), shared=True)
        sampler.update(adapter_weights(model.state_dict()), seed)
        plain = copy.deepcopy(own[0].model)
        plain.load_state_dict(merged(model.state_dict(), lora))
        samplers.append(sampler)
        answers.append(TransformersSampler(plain, own[1]).sample(asked))
    for sampler, wanted in [*zip(samplers, answers, strict=True)] * 2:  # in turn: neither hears of the other
        for got, reply in zip(sampler.sample(asked), wanted, strict=True):
            assert got.ids.tolist() == reply.ids.tolist()
            np.testing.assert_allclose(got.logp, reply.logp, atol=2e-4)
    assert [[r.ids.tolist() for r in answer] for answer in answers] != [before, before]
    assert answers[0][0].ids.tolist() != answers[1][0].ids.tolist() or answers[0][0].logp[0] != answers[1][0].logp[0]
    model, lora = adapted(3)  # a new version of the first: nothing of the old one is remembered
    samplers[0].update(adapter_weights(model.state_dict()), 3)
    plain = copy.deepcopy(own[0].model)
    plain.load_state_dict(merged(model.state_dict(), lora))
    for got, reply in zip(samplers[0].sample(asked), TransformersSampler(plain, own[1]).sample(asked), strict=True):
        assert (got.ids.tolist(), got.version) == (reply.ids.tolist(), 3)
        np.testing.assert_allclose(got.logp, reply.logp, atol=2e-4)
    assert [reply.ids.tolist() for reply in vllm.sample(asked)] == before  # the base is itself
    for sampler in samplers:
        sampler.close()


def test_an_adapter_of_another_base_is_refused_and_the_engine_goes_on(own, vllm):
    model, lora = adapted(1)
    weights = {name: torch.nn.functional.pad(w, (0, 8)) for name, w in adapter_weights(model.state_dict()).items()}
    sampler = VllmSampler(vllm.engine, ends=own[0].ends, adapter=adapter_config(lora), shared=True)
    restarts, asked = vllm.engine.restarts, requests(own[1], max_tokens=4)
    try:
        with pytest.raises(ModelError, match="vLLM: "):
            sampler.update(weights, 1)
    finally:
        sampler.close()
    assert len(vllm.sample(asked)) == len(asked)
    assert vllm.engine.restarts == restarts


def first_child(process):
    """Waits for a process that a program starts by `multiprocessing`; returns its id."""
    for _ in range(2400):
        for child in psutil.Process(process.pid).children():
            with contextlib.suppress(psutil.Error):  # some end at once
                if "spawn_main" in " ".join(child.cmdline()):
                    return child.pid
        threading.Event().wait(0.05)
    raise AssertionError("no engine process started")


@pytest.mark.parametrize("moment", ["starting", "started"])
def test_an_engine_does_not_outlive_who_started_it(tmp_path, moment):
    """However that one ended: here by SIGKILL. It starts where vLLM never ran before, from a program in a file."""
    script = tmp_path / "program.py"
    script.write_text(
        "from searchgym.rollout.samplers.vllm import Vllm\n"
        "from searchgym.rollout.vllm.start import start_engine\n"
        "if __name__ == '__main__':\n"
        "    options = Vllm(cache_gib=1, max_context=64, eager=True)\n"
        "    engine = start_engine('tiny', dtype='float32', requests=1, options=options)\n"
        "    print('started', *engine.backend.processes, flush=True)\n"
        "    engine._thread.join()\n"
    )
    env = os.environ | {"VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        if moment == "started":
            line = next(line for line in iter(process.stdout.readline, "") if line.startswith("started"))
            (number,) = map(int, line.split()[1:])
        else:
            number = first_child(process)
            threading.Event().wait(0.5)  # the guard looks for processes ten times a second
        process.kill()
    for _ in range(200):
        if not psutil.pid_exists(number):
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"process {number} is still there")


def test_replacing_an_engine_loses_and_doubles_no_response(own, vllm):
    """By SIGTERM; trainings meet SIGKILL. Nothing of the old engine stays, such as its threads and sockets."""
    old = weakref.ref(vllm.engine.backend._engine)
    asked, got, todo = requests(own[1], 8, max_tokens=32), {}, []
    wanted = [reply.ids.tolist() for reply in vllm.sample(asked)]
    todo = list(enumerate(asked))
    restarts, killed = vllm.engine.restarts, workers(vllm)

    def pull():
        found, todo[:] = list(todo), []
        if not found and killed:
            os.kill(killed.pop(), signal.SIGTERM)
        return found

    def deliver(key, reply):
        assert key not in got
        got[key] = reply.ids.tolist()

    vllm.stream(pull, deliver)
    assert vllm.engine.restarts == restarts + 1
    assert [got[key] for key in range(len(asked))] == wanted
    assert old() is None
