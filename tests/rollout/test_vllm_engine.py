"""The thread that asks an engine, and several engines beside each other, on engines that do what a test says."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from searchgym.errors import EngineLostError, ModelError, UsageError
from searchgym.options import find_kind
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.rollout.sampler_kind import SamplerKind
from searchgym.rollout.samplers.transformers import Transformers
from searchgym.rollout.samplers.vllm import Vllm, vllm_version
from searchgym.rollout.transfer import folders as weight_folders
from searchgym.rollout.transfer.folders import Folders
from searchgym.rollout.vllm.backend import Adapter, Completion, EngineRequest
from searchgym.rollout.vllm.engine import VllmEngine
from searchgym.rollout.vllm.launch.versions import FEATURES, is_accepted, missing_features, vllm_folder
from searchgym.rollout.vllm.local import sampled_logp, skip_token_texts
from searchgym.rollout.vllm.replicas import Replicas
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.setup import EngineSetup, rank_for, serve_command, visible

WEIGHTS = {"model.embed_tokens.weight": torch.arange(6.0).reshape(3, 2)}


class Fake:
    """Answers each request with its prompt's length and what its weights are; one per step, unless it is held."""

    max_context, name = 100, "vLLM's engine"

    def new_folders(self):
        return Folders()

    def __init__(self, dies_at=()):
        self.asked, self.events, self.weights, self.dies_at = {}, [], None, list(dies_at)
        self.open, self.steps = threading.Event(), 0
        self.open.set()

    def restart(self):
        self.asked.clear()
        self.weights = None
        self.events.append("restart")

    def add(self, name, asked):
        self.asked[name] = asked

    def step(self):
        self.open.wait()
        self.steps += 1
        if self.dies_at and self.steps >= self.dies_at[0]:
            self.dies_at.pop(0)
            raise EngineLostError("killed")
        name = next(iter(self.asked))
        asked = self.asked.pop(name)
        ids = np.array([len(asked.prompt), 0 if self.weights is None else int(self.weights.sum())], np.int32)
        return [(name, Completion(ids, np.zeros(2, np.float32), "stop", 5))]

    def load(self, folder):
        assert not self.asked
        self.weights = load_file(f"{folder}/model.safetensors")["model.embed_tokens.weight"]
        assert torch.equal(load_file(f"{folder}/model.safetensors")["lm_head.weight"], self.weights)  # tied: both names
        self.events.append("load")

    def take(self, adapter):
        assert Path(f"{adapter.folder}/adapter_config.json").exists()
        self.events.append(f"take {adapter.name}")

    def drop(self, adapter):
        assert not self.asked
        self.events.append(f"drop {adapter.name}")

    def forget(self):
        self.events.append("forget")

    def sleep(self, level):
        self.events.append(f"sleep {level}")

    def wake(self):
        self.events.append("wake")

    def close(self):
        self.events.append("close")


def requests(*lengths, episodes=None):
    episodes = episodes or [""] * len(lengths)
    return [
        SampleRequest(np.zeros(n, np.int32), Sampling(9), i, e)
        for i, (n, e) in enumerate(zip(lengths, episodes, strict=True))
    ]


def engine_on(backend, **options):
    return VllmEngine(backend, vocabulary=10, **options)


def test_responses_name_their_weights_and_new_weights_wait_for_them():
    fake = Fake()
    sampler = VllmSampler(engine_on(fake, version=3), ends=[5])
    fake.open.clear()
    replies = {}
    todo = list(enumerate(requests(1, 2, 3)))

    def pull():
        found = todo.copy()
        todo.clear()
        return found

    thread = threading.Thread(target=sampler.stream, args=(pull, replies.__setitem__))
    thread.start()
    while len(sampler.engine._under_way) + len(sampler.engine._inbox) < 3:
        thread.join(0.001)
    loading = threading.Thread(target=sampler.update, args=(WEIGHTS, 4))
    loading.start()
    loading.join(0.05)
    assert loading.is_alive()  # three are under way
    fake.open.set()
    thread.join()
    loading.join()
    assert [(r.ids.tolist(), r.version, r.finish) for _, r in sorted(replies.items())] == [
        ([1, 0], 3, "eos"),
        ([2, 0], 3, "eos"),
        ([3, 0], 3, "eos"),
    ]
    (reply,) = sampler.sample(requests(4))
    assert (reply.ids.tolist(), reply.version, sampler.version) == ([4, 15], 4, 4)
    sampler.close()
    assert fake.events == ["load", "forget", "close"]


def test_an_engine_that_ends_restarts_with_its_weights_and_requests():
    fake = Fake()
    sampler = VllmSampler(engine_on(fake), ends=[5])
    sampler.update(WEIGHTS, 1)
    fake.dies_at = [2, 4]
    replies = sampler.sample(requests(1, 2, 3))
    assert [reply.ids.tolist() for reply in replies] == [[1, 15], [2, 15], [3, 15]]
    assert sampler.engine.restarts == 2
    sampler.close()


def test_an_engine_that_ends_repeatedly_is_given_up_with_an_error():
    fake = Fake(dies_at=range(1, 9))
    sampler = VllmSampler(engine_on(fake), ends=[5])
    with pytest.raises(EngineLostError, match="ended 3 times in a row: killed"):
        sampler.sample(requests(1, 2))
    with pytest.raises(EngineLostError, match="closed"):
        sampler.sample(requests(1))
    with pytest.raises(EngineLostError, match="closed"):
        sampler.update(WEIGHTS, 1)
    sampler.close()


def test_what_a_request_raises_is_the_requests_own():
    class Refusing(Fake):
        def step(self):
            return [(name, ModelError("refused")) for name in [*self.asked][:1] if self.asked.pop(name)]

    sampler = VllmSampler(engine_on(Refusing()), ends=[5])
    with pytest.raises(ModelError, match="refused"):
        sampler.sample(requests(1))
    with pytest.raises(UsageError, match="token ids must be from 0 to 9, got 0 to 77"):
        sampler.sample([SampleRequest(np.array([0, 77], np.int32))])
    sampler.close()


def test_each_version_of_an_adapter_has_a_name_of_its_own(tmp_path):
    fake, names = Fake(), []
    add = fake.add
    fake.add = lambda name, asked: (names.append(asked.adapter), add(name, asked))
    sampler = VllmSampler(engine_on(fake), ends=[5], adapter={"r": 1})
    (first,) = sampler.sample(requests(1))
    sampler.update({"a": torch.zeros(1)}, 1)
    folder = sampler._adapter.folder
    assert load_file(f"{folder}/adapter_model.safetensors")["a"].tolist() == [0.0]
    (second,) = sampler.sample(requests(1))
    sampler.update({"a": torch.ones(1)}, 2)
    (third,) = sampler.sample(requests(1))
    assert names[0] is None
    assert len({names[1].name, names[2].name}) == len({names[1].number, names[2].number}) == 2
    assert [first.version, second.version, third.version] == [0, 1, 2]
    assert fake.events == [f"take {names[1].name}", f"take {names[2].name}", f"drop {names[1].name}"]
    assert Path(folder).exists()  # a replica may be asked for it still
    sampler.update({"a": torch.ones(1)}, 3)
    assert not Path(folder).exists()
    folder = sampler._adapter.folder
    sampler.close()
    assert not Path(folder).exists()


def test_an_adapter_that_is_refused_leaves_the_one_before():
    fake, take = Fake(), Fake.take

    def refuse(adapter):
        if adapter.name.endswith("v2"):
            raise ModelError("wrong shapes")
        take(fake, adapter)

    fake.take = refuse
    sampler = VllmSampler(engine_on(fake), ends=[5], adapter={"r": 1})
    sampler.update({"a": torch.zeros(1)}, 1)
    with pytest.raises(ModelError, match="wrong shapes"):
        sampler.update({"a": torch.zeros(2)}, 2)
    assert (sampler.version, sampler.sample(requests(1))[0].version) == (1, 1)
    sampler.close()


def test_a_request_that_is_refused_has_ended_and_the_others_go_on():
    fake = Fake()
    add = fake.add

    def refusing(name, asked):
        if len(asked.prompt) == 2:
            raise ModelError("too odd")
        add(name, asked)

    fake.add = refusing
    engine, ended = engine_on(fake), []
    for length in (1, 2, 3):
        engine.ask(EngineRequest([0] * length, {}, lambda completion, version: ended.append(completion)))
    engine.forget()
    assert sorted(str(one) if isinstance(one, ModelError) else str(one.ids[0]) for one in ended) == [
        "1",
        "3",
        "too odd",
    ]
    engine.close()


def test_a_sampler_sleeps_until_its_next_weights():
    fake = Fake()
    sampler = VllmSampler(engine_on(fake), ends=[5])
    sampler.engine.sleep(2)
    sampler.update(WEIGHTS, 1)
    assert fake.events == ["sleep 2", "wake", "load", "forget"]
    sampler.close()


# -- replicas ------------------------------------------------------------------------------------------------------


def replicas(*fakes):
    made = iter(fakes)
    return Replicas([lambda: engine_on(next(made), deaths=1) for _ in range(2)])


def test_an_episode_stays_on_its_replica_and_new_ones_go_where_fewest_are():
    fakes = Fake(), Fake()
    for fake in fakes:
        fake.open.clear()
    engines = replicas(*fakes)
    ended = []
    for episode in ("a", "b", "c", "a", "a", "b"):
        engines.ask(EngineRequest([0], {}, lambda c, v: ended.append((c.ids.tolist(), v)), episode=episode))
    homes = {episode: engines._replicas.index(engines._homes[episode]) for episode in "abc"}
    assert homes["a"] != homes["b"]
    for fake in fakes:
        fake.open.set()
    engines.load(WEIGHTS, 1)  # waits for all six
    assert len(ended) == 6
    assert sum(fake.steps for fake in fakes) == 6
    assert [fake.steps for fake in fakes][homes["a"]] >= 3
    assert engines._homes.get("a") is None  # caches are empty: it may go anywhere
    engines.close()


def test_episodes_of_a_dead_replica_move_and_it_returns_with_new_weights(capsys):
    dying, other, back = Fake(dies_at=[3]), Fake(), Fake()
    engines = replicas(dying, other, back)
    sampler = VllmSampler(engines, ends=[5])
    asked = requests(*range(1, 9), episodes=[f"e{i}" for i in range(8)])
    replies = sampler.sample(asked)
    assert [reply.ids[0] for reply in replies] == list(range(1, 9))
    assert engines.moved >= 1
    assert "has ended (" in capsys.readouterr().err
    assert len(sampler.sample(asked)) == 8  # the other one serves alone
    assert not back.steps
    sampler.update(WEIGHTS, 1)
    assert {tuple(reply.ids[1:]) for reply in sampler.sample(asked)} == {(15,)}
    assert back.steps + other.steps == len(asked) * 2 + 8 - 2
    sampler.close()


@pytest.mark.parametrize("idle", [True, False])
def test_a_replica_that_dies_while_loading_leaves_weights_to_the_others(idle):
    """While nothing is under way it ends on hearing of them; else they wait in its inbox when it ends."""
    dying, other, back = Fake(), Fake(), Fake()
    engines = replicas(dying, other, back)
    sampler = VllmSampler(engines, ends=[5])
    ended, loading = [], threading.Thread(target=sampler.update, args=(WEIGHTS, 1))
    if idle:

        def load(folder):
            raise EngineLostError("killed")

        dying.load = load
        loading.start()
    else:
        for fake in (dying, other):
            fake.open.clear()
        for episode in ("a", "b", "c"):
            engines.ask(EngineRequest([0], {}, lambda completion, version: ended.append(completion), episode=episode))
        loading.start()
        first = engines._replicas[0].engine
        while not any(not isinstance(news, EngineRequest) for news in [*first._inbox]):
            loading.join(0.001)
        dying.dies_at = [1]
        dying.open.set()
        while engines._replicas[0].engine is first:
            loading.join(0.001)
        other.open.set()
    loading.join()
    for _ in range(5000):  # what moved to another replica may be answered after the weights have come
        if len(ended) == (0 if idle else 3):
            break
        threading.Event().wait(0.001)
    assert len(ended) == (0 if idle else 3)
    assert all(isinstance(completion, Completion) for completion in ended)
    assert {tuple(reply.ids[1:]) for reply in sampler.sample(requests(*range(1, 9)))} == {(15,)}
    assert back.steps
    assert other.steps
    sampler.close()


def test_a_replica_that_does_not_come_back_is_left_out_until_the_next_time(capsys):
    dying, other, refusing, back = Fake(dies_at=[1]), Fake(), Fake(), Fake()

    def load(folder):
        raise ModelError("no memory")

    refusing.load = load
    made = iter((dying, other, refusing, back))
    engines = Replicas([lambda: engine_on(next(made), deaths=1) for _ in range(2)])
    sampler = VllmSampler(engines, ends=[5])
    sampler.sample(requests(1, 2, 3))
    sampler.update(WEIGHTS, 1)
    assert "replica 0 of vLLM's engine cannot be restarted (no memory)" in capsys.readouterr().err
    assert refusing.events == ["close"]
    assert len(sampler.sample(requests(1, 2, 3))) == 3
    sampler.update(WEIGHTS, 2)
    assert {tuple(reply.ids[1:]) for reply in sampler.sample(requests(*range(1, 9)))} == {(15,)}
    assert back.steps
    sampler.close()


def test_engines_are_closed_if_one_of_them_does_not_start():
    fake = Fake()

    def failing():
        raise ModelError("no memory")

    with pytest.raises(ModelError, match="no memory"):
        Replicas([lambda: engine_on(fake), failing])
    assert fake.events == ["close"]


def test_nobody_is_left_waiting_when_every_replica_has_ended():
    engines = replicas(Fake(dies_at=[1]), Fake(dies_at=[1]))
    sampler = VllmSampler(engines, ends=[5])
    with pytest.raises(EngineLostError, match="every replica of vLLM's engine has ended"):
        sampler.sample(requests(1, 2, 3))
    engines.drop(Adapter("gone", 1, ""))
    sampler.close()


def test_a_restarted_replica_gets_requests_only_with_its_weights():
    """Requests keep coming from another thread while it starts and loads."""
    dying, other, back = Fake(dies_at=[1]), Fake(), Fake()
    engines, seen, answered = replicas(dying, other, back), [], threading.Event()
    load = back.load

    def done(completion, version):
        seen.append(back.steps)
        answered.set()

    def loading(folder):
        engines.ask(EngineRequest([0], {}, done, episode="new"))
        assert answered.wait(30)  # by the other one: this one is not asked before it has loaded
        load(folder)

    back.load = loading
    sampler = VllmSampler(engines, ends=[5])
    sampler.sample(requests(1, 2, 3, episodes=["a", "b", "c"]))
    sampler.update(WEIGHTS, 1)
    assert {tuple(reply.ids[1:]) for reply in sampler.sample(requests(*range(1, 9)))} == {(15,)}
    assert seen == [0]
    assert back.steps
    sampler.close()


def test_homes_are_forgotten_with_each_version_of_an_adapter():
    engines = replicas(Fake(), Fake())
    sampler = VllmSampler(engines, ends=[5], adapter={"r": 1})
    sampler.sample(requests(1, 2, episodes=["a", "b"]))
    assert engines._homes.get("a") is not None
    sampler.update({"a": torch.zeros(1)}, 1)
    assert engines._homes.get("a") is None
    sampler.close()


# -- weights on their way ------------------------------------------------------------------------------------------


def test_only_weights_of_killed_programs_are_cleared(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_folders, "MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    own = weight_folders._machine_prefix()
    names = (f"{own}{ended.pid}-x", f"{own}{os.getpid()}-x", f"searchgym-weights-other-0-{ended.pid}-x")
    gone, *kept = (tmp_path / name for name in names)
    for folder in (gone, *kept):
        folder.mkdir()
    folders = Folders()
    folder = Path(folders.model(WEIGHTS, 1))
    assert folder.parent == tmp_path
    assert not gone.exists()
    assert all(folder.exists() for folder in kept)
    folders.clear()
    assert not folder.exists()


def test_weights_for_another_machine_do_not_go_through_this_ones_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_folders, "MEMORY", tmp_path / "memory")
    for name in ("memory", "shared"):
        (tmp_path / name).mkdir()
    for place, name in ((None, "memory"), (tmp_path / "shared", "shared")):
        folders = Folders(place, summed=True)
        folder = Path(folders.model(WEIGHTS, 3))
        assert folder.parent == tmp_path / name
        assert "-v3-" in folder.name
        sums = {"model.safetensors": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()}
        assert json.loads((folder / "sha256.json").read_text()) == sums
        folders.clear()


@pytest.mark.parametrize(
    ("seen", "wanted"), [(None, "1,3"), ("4,5,6,7", "5,7"), ("GPU-a,GPU-b,GPU-c,GPU-d", "GPU-b,GPU-d")]
)
def test_gpus_are_counted_among_those_that_the_program_may_see(monkeypatch, seen, wanted):
    if seen is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    assert visible([1, 3]) == wanted


def test_a_gpu_that_the_program_may_not_see(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(UsageError, match=r"there is no GPU 3: CUDA_VISIBLE_DEVICES is 0,1"):
        visible([1, 3])


@pytest.mark.parametrize(("rank", "wanted"), [(1, 1), (4, 8), (8, 8), (48, 64), (1000, 1000)])
def test_ranks_that_vllm_is_set_up_for(rank, wanted):
    assert rank_for(rank) == wanted
    setup = EngineSetup(folder=Path("m"), dtype="float32", requests=1, options=Vllm(), adapters=1, rank=rank)
    command, _ = serve_command(setup, "http://h:1")
    assert command[command.index("--max-lora-rank") + 1] == str(wanted)


# -- outputs -------------------------------------------------------------------------------------------------------


def test_log_probs_are_those_of_the_sampled_tokens():
    flat = SimpleNamespace(logprobs=[-1.0, -9.0, -2.0, -3.0], start_indices=[0, 2, 3])
    np.testing.assert_array_equal(sampled_logp(flat, 3), np.array([-1, -2, -3], np.float32))
    np.testing.assert_array_equal(sampled_logp(flat, 2), np.array([-1, -2], np.float32))


def test_only_the_texts_of_tokens_are_skipped():
    states = {name: SimpleNamespace(logprobs_processor=SimpleNamespace(tokenizer="tokenizer")) for name in "ab"}
    skip_token_texts(SimpleNamespace(request_states=states), "a")
    assert [states[name].logprobs_processor.tokenizer for name in "ab"] == [None, "tokenizer"]


# -- options -------------------------------------------------------------------------------------------------------


def test_replicas_have_gpus_of_their_own():
    assert Vllm().gpus_of(0) is None
    assert Vllm(replicas=2, tensor_parallel=2).gpus_of(1) == [2, 3]
    assert Vllm(replicas=2, gpus=[5, 7]).gpus_of(1) == [7]
    with pytest.raises(UsageError, match="names 1 GPUs: 2 replicas on 1 each take 2"):
        Vllm(replicas=2, gpus=[5]).gpus_of(0)


@pytest.mark.parametrize(
    ("version", "wanted", "by_vllm", "said"),
    [
        (None, "transformers", False, ""),
        (None, "auto", False, "vLLM is not installed, using transformers"),
        ("0.32.1", "auto", True, ""),
        ("0.26.0", "auto", True, ""),
        ("0.99.0", "auto", False, "0.99.0 is not from 0.26 to 0.32"),
        ("0.25.9", "auto", False, "0.25.9 is not from 0.26 to 0.32"),
        ("0.99.0", "vllm", True, "0.99.0 is not from 0.26 to 0.32"),
        ("0.32.0", "vllm", True, ""),
    ],
)
def test_what_samples_where_vllm_is_missing_or_untested(monkeypatch, capsys, version, wanted, by_vllm, said):
    monkeypatch.setattr("searchgym.rollout.samplers.vllm.vllm_version", lambda: version)
    monkeypatch.setattr("searchgym.rollout.samplers.auto.vllm_version", lambda: version)
    kind = find_kind(SamplerKind, wanted)().chosen()
    assert kind == (Vllm() if by_vllm else Transformers())
    error = capsys.readouterr().err
    assert said in error
    assert bool(said) == bool(error)


def test_vllm_that_must_sample_and_is_not_there(monkeypatch):
    monkeypatch.setattr("searchgym.rollout.samplers.vllm.vllm_version", lambda: None)
    with pytest.raises(UsageError, match="not installed: searchgym doctor shows how to install it"):
        Vllm().chosen()


# -- versions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pruned_vllm(tmp_path):
    """A vLLM of which only the classes and names that this package uses are left."""
    folder = tmp_path / "vllm"
    for feature in FEATURES:
        file = folder / feature.file
        file.parent.mkdir(parents=True, exist_ok=True)
        body = "".join(f"    {member}: int\n" for member in feature.members) or "    pass\n"
        with file.open("a") as written:
            written.write(f"class {feature.name}:\n{body}")
    return folder


def test_a_vllm_with_all_features_lacks_none(pruned_vllm):
    assert missing_features(pruned_vllm) == ()


def test_a_missing_feature_is_named_and_refused(pruned_vllm, monkeypatch, capsys):
    file = pruned_vllm / "sampling_params.py"
    file.write_text(file.read_text().replace("    flat_logprobs: int\n", ""))
    (pruned_vllm / "lora/request.py").unlink()
    monkeypatch.setattr("searchgym.rollout.samplers.vllm.vllm_folder", lambda: pruned_vllm)
    for module in ("vllm", "auto"):
        monkeypatch.setattr(f"searchgym.rollout.samplers.{module}.vllm_version", lambda: "0.30.1")
    lacking = "vLLM 0.30.1 lacks SamplingParams.flat_logprobs, LoRARequest in lora/request.py"
    with pytest.raises(UsageError, match=f"{lacking}: install a version from 0.26 to 0.32"):
        Vllm().chosen()
    assert isinstance(find_kind(SamplerKind, "auto")().chosen(), Transformers)
    assert lacking in capsys.readouterr().err


def test_the_installed_vllm_has_every_feature():
    folder = vllm_folder()
    if folder is None:
        pytest.skip("vLLM is not installed")
    assert missing_features(folder) == ()
    assert is_accepted(vllm_version())


def test_options_of_a_server_are_those_of_its_version(tmp_path, monkeypatch):
    setup = EngineSetup(folder=tmp_path, dtype="float32", requests=1, options=Vllm())
    file = tmp_path / "entrypoints/openai/cli_args.py"
    file.parent.mkdir(parents=True)
    monkeypatch.setattr("searchgym.rollout.vllm.setup.vllm_folder", lambda: tmp_path)
    for text, wanted in (("    host: str\n", False), ("    enable_scale_out: bool = False\n", True)):
        file.write_text(f"class FrontendArgs:\n{text}")
        assert ("--enable-scale-out" in serve_command(setup, "http://h:1")[0]) == wanted
