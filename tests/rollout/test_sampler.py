import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_models import save_tiny, tiny_qwen2, tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM

from searchgym.errors import DataError, DataMissingError, ModelError, UnknownNameError, UsageError
from searchgym.rollout.folders import local_folder
from searchgym.rollout.loading import load_model
from searchgym.rollout.sampler import SampleRequest, Sampling
from searchgym.rollout.transformers.kv_cache import PrefixStore
from searchgym.rollout.transformers.running_batch import StopMatcher, choose, uniforms
from searchgym.rollout.transformers.sampler import PREFILL_TOKENS, TransformersSampler, load_sampler
from searchgym.testing import SamplerTests

VOCABULARY = 512


def prompt(length, seed=0):
    return np.random.default_rng(seed).integers(0, 340, length).astype(np.int32)


def sampler(model=None, **options):
    return TransformersSampler(model or tiny_qwen2(), tiny_tokenizer("base"), **({"ends": ()} | options))


def recorded(own):
    """Makes a sampler note the shape of every forward pass: (rows, new tokens, columns of the cache before)."""
    passes = []
    forward = own._forward

    def noting(ids, mask, positions, cache):
        passes.append((*ids.shape, mask.shape[1] - ids.shape[1]))
        return forward(ids, mask, positions, cache)

    own._forward = noting
    return passes


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids.tolist()])).logits[0].float()


def reference(model, request):
    """Samples one token after the other without batch, padding or cache, by numpy."""
    ids, logp = list(request.ids), []
    sampling = request.sampling
    for noise in uniforms(request.seed, sampling.max_tokens):
        logits = logits_of(model, np.array(ids))[-1].double().numpy()
        p = np.exp((logits - logits.max()) / (sampling.temperature or 1))
        p /= p.sum()
        if sampling.temperature == 0:
            token = int(logits.argmax())
        else:
            if sampling.top_p < 1:
                order = np.argsort(-p, kind="stable")
                size = int((np.cumsum(p[order]) < sampling.top_p).sum()) + 1
                p[order[size:]] = 0
                p /= p.sum()
            token = int((np.cumsum(p) <= noise).sum())
        ids.append(token)
        logp.append(np.log(p[token]))
    return ids[len(request.ids) :], logp


def mixed_requests():
    """Of every kind, of lengths far apart, some with a common prefix."""
    shared = prompt(40, 99)
    settings_ = [
        Sampling(12),
        Sampling(5, temperature=0.7),
        Sampling(9, temperature=0),
        Sampling(15, temperature=1.3, top_p=0.8),
        Sampling(1),
        Sampling(20, top_p=0.3),
    ]
    requests = []
    for number in range(18):
        own = prompt(1 + 7 * number, number)
        ids = np.concatenate([shared, own]) if number % 3 == 0 else own
        requests.append(SampleRequest(ids, settings_[number % len(settings_)], seed=number))
    return requests


# -- the right tokens ------------------------------------------------------------------------------------------------


def llama(dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=512,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
        )
        return LlamaForCausalLM(config).to(dtype).eval()


MODELS = {
    "grouped heads": lambda dtype: tiny_qwen2(dtype=dtype),
    "window": lambda dtype: tiny_qwen2(dtype=dtype, use_sliding_window=True, sliding_window=16, max_window_layers=1),
    "llama": llama,
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("architecture", list(MODELS))
@pytest.mark.parametrize("reuse", [0, 4000])
def test_a_batch_samples_what_each_row_would_alone_without_a_cache(architecture, reuse):
    model = MODELS[architecture](torch.float64)
    requests = mixed_requests()
    expected = [reference(model, request) for request in requests]
    own = sampler(model, reuse_tokens=reuse, max_batch_tokens=1500)
    for _ in range(2):  # the second time over what is remembered, if anything is
        got = own.sample(requests)
        assert [s.ids.tolist() for s in got] == [ids for ids, _ in expected]
        for s, (_, logp) in zip(got, expected, strict=True):
            np.testing.assert_allclose(s.logp, logp, atol=2e-6)
            assert (s.finish, s.ids.dtype, s.logp.dtype) == ("length", np.int32, np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", list(MODELS))
@pytest.mark.parametrize("max_batch_tokens", [1500, 100_000])
def test_requests_that_join_later_get_what_they_would_alone(architecture, max_batch_tokens):
    """One joins after each token: shorter and longer ones than those that are there, into slots that were left."""
    model = MODELS[architecture](torch.float64)
    requests = mixed_requests()
    order = np.random.default_rng(0).permutation(len(requests)).tolist()
    own = sampler(model, max_batch_tokens=max_batch_tokens)
    passes, answered = recorded(own), {}

    def pull():
        new, order[:2] = order[:2], []
        return [(f"request {number}", requests[number]) for number in new]

    own.stream(pull, answered.__setitem__)
    for number, request in enumerate(requests):
        ids, logp = reference(model, request)
        assert answered[f"request {number}"].ids.tolist() == ids
        np.testing.assert_allclose(answered[f"request {number}"].logp, logp, atol=2e-6)
    prefills = [at for at, (_, new, _) in enumerate(passes) if new > 1]
    assert any(passes[at - 1][1] == 1 for at in prefills[1:])  # some joined between tokens


@pytest.mark.slow
def test_what_was_never_written_into_a_cache_reaches_no_row():
    """The cache has spare slots and grows; then a short one joins, beside columns that none has written in its slot."""
    model = tiny_qwen2(dtype=torch.float64)
    requests = [SampleRequest(prompt(9, n), Sampling(limit), seed=n) for n, limit in enumerate([200, *[2] * 5, 3])]
    expected = [reference(model, request) for request in requests]
    turns = [[0], [1, 2, 3, 4, 5], *[[]] * 150, [6]]
    answered = {}
    torch.use_deterministic_algorithms(True)  # memory that is not set is nan then
    try:
        assert torch.empty(3).isnan().all()
        sampler(model).stream(lambda: [(n, requests[n]) for n in (turns.pop(0) if turns else [])], answered.__setitem__)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [answered[n].ids.tolist() for n in range(len(requests))] == [ids for ids, _ in expected]


def test_a_request_is_answered_before_longer_ones_are_done():
    own, order = sampler(), []
    new = [SampleRequest(prompt(20, n), Sampling(tokens), seed=n) for n, tokens in enumerate([30, 2, 9])]
    todo = list(enumerate(new))
    own.stream(lambda: [todo.pop(0)] if todo else [], lambda key, reply: order.append((key, len(reply.ids))))
    assert order == [(1, 2), (2, 9), (0, 30)]


@pytest.mark.slow_cases
class TestTransformersSampler(SamplerTests):
    vocabulary = 340

    @pytest.fixture(autouse=True, params=[{}, {"reuse_tokens": 0}, {"style": "merging", "max_batch_tokens": 150}])
    def make_it_so(self, request):
        self.options = dict(request.param)
        self.tokenizer = tiny_tokenizer(self.options.pop("style", "base"))

    def make_sampler(self):
        return TransformersSampler(tiny_qwen2(len(self.tokenizer)), self.tokenizer, **({"ends": ()} | self.options))

    def decode(self, ids):
        return self.tokenizer.decode(ids)

    def new_weights(self):
        return tiny_qwen2(len(self.tokenizer), seed=1).state_dict()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_log_probs_are_those_of_one_forward_pass_over_the_whole_sequence(dtype, tolerance, temperature):
    model = tiny_qwen2(dtype=dtype)
    requests = [SampleRequest(prompt(20 + 9 * n, n), Sampling(30, temperature), seed=n) for n in range(6)]
    for request, sampled in zip(requests, sampler(model).sample(requests), strict=True):
        whole = np.concatenate([request.ids, sampled.ids])
        logp = torch.log_softmax(logits_of(model, whole) / (temperature or 1.0), -1)
        start = len(request.ids) - 1
        told = logp[range(start, len(whole) - 1), sampled.ids.tolist()]
        np.testing.assert_allclose(sampled.logp, told, atol=tolerance)


def test_evenly_spaced_noise_chooses_tokens_by_their_probability():
    p = np.array([0.5, 0.0, 0.25, 0.125, 0.125])
    count = 8000
    logits = torch.log(torch.tensor(p, dtype=torch.float32)).repeat(count, 1)
    noise = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    tokens, logp = choose(logits, torch.ones(count), torch.ones(count), noise)
    assert np.bincount(tokens.numpy(), minlength=5).tolist() == (p * count).tolist()
    np.testing.assert_allclose(logp.exp(), p[tokens], atol=1e-6)
    largest = torch.full((1,), 1 - 2.0**-53, dtype=torch.float64)
    assert choose(logits[:1, :2], torch.ones(1), torch.ones(1), largest)[0].item() == 0  # the last has probability 0


def test_nucleus_and_temperature_by_hand():
    p = torch.tensor([0.05, 0.5, 0.15, 0.3])
    noise = torch.tensor([0.0, 0.6, 0.63, 0.99], dtype=torch.float64)
    tokens, logp = choose(torch.log(p).repeat(4, 1), torch.ones(4), torch.full((4,), 0.7), noise)
    assert tokens.tolist() == [1, 1, 3, 3]  # {0.5, 0.3} is the smallest set that holds 0.7: 0.625 and 0.375
    np.testing.assert_allclose(logp.exp(), [0.625, 0.625, 0.375, 0.375], rtol=1e-5)
    halves = torch.full((4,), 0.5)  # squares the odds: 0.0025, 0.25, 0.0225, 0.09 of 0.365
    tokens, logp = choose(torch.log(p).repeat(4, 1), halves, torch.ones(4), noise)
    np.testing.assert_allclose(logp.exp(), (p**2 / (p**2).sum())[tokens], rtol=1e-5)
    tokens, logp = choose(torch.log(p).repeat(4, 1), torch.zeros(4), torch.full((4,), 0.1), noise)
    assert tokens.tolist() == [1] * 4
    np.testing.assert_allclose(logp.exp(), 0.5, rtol=1e-5)  # uncut, at temperature 1


def test_noise_depends_on_seed_and_position_alone():
    assert uniforms(7, 50)[:20].tolist() == uniforms(7, 20).tolist()
    assert uniforms(7, 20).tolist() != uniforms(8, 20).tolist()
    request = prompt(30)
    same, other, again = sampler().sample([SampleRequest(request, Sampling(30), seed) for seed in (1, 2, 1)])
    assert same.ids.tolist() == again.ids.tolist() != other.ids.tolist()


def test_no_global_generator_is_used_and_nothing_else_is_left_changed():
    states = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    model = tiny_qwen2()
    model.train()
    sampler(model).sample(mixed_requests())
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all()
    assert states[2] == random.getstate()
    assert model.training
    assert torch.is_grad_enabled()
    assert "attn" not in json.dumps(model.config.to_dict())  # a checkpoint says nothing of how it was sampled


# -- how a response ends ---------------------------------------------------------------------------------------------


def test_an_end_id_ends_a_response_and_is_part_of_it():
    free = sampler().sample([SampleRequest(prompt(30), Sampling(40), seed=3)])[0].ids.tolist()
    for end in {free[0], free[7], free[39]}:
        got = sampler(ends=[end, 511]).sample([SampleRequest(prompt(30), Sampling(40), seed=3)])[0]
        assert got.ids.tolist() == free[: free.index(end) + 1]
        assert got.finish == "eos"


def test_end_ids_come_from_tokenizer_template_and_generation_settings():
    model, tokenizer = tiny_qwen2(), tiny_tokenizer("llama")
    assert sorted(TransformersSampler(model, tokenizer).ends) == [349, 352]
    model.generation_config.eos_token_id = [5, 349]
    assert sorted(TransformersSampler(model, tokenizer).ends) == [5, 349, 352]
    model.generation_config.eos_token_id = 6
    assert sorted(TransformersSampler(model, tokenizer).ends) == [6, 349, 352]


@pytest.mark.parametrize("style", ["base", "merging"])
def test_a_stop_string_ends_a_response_after_the_token_that_completes_it(style):
    tokenizer = tiny_tokenizer(style)
    own = TransformersSampler(tiny_qwen2(len(tokenizer)), tokenizer, ends=())
    request = SampleRequest(prompt(30), Sampling(40), seed=5)
    ids = own.sample([request])[0].ids.tolist()
    texts = [tokenizer.decode(ids[: n + 1]) for n in range(len(ids))]
    stops = [texts[-1][at : at + size] for at in range(0, 30, 3) for size in (1, 2, 5)]
    stops = [stop for stop in stops if "\N{REPLACEMENT CHARACTER}" not in stop] + ["not in there"]
    got = own.sample([SampleRequest(request.ids, Sampling(40, stop=(stop, "zzz")), seed=5) for stop in stops])
    for stop, sampled in zip(stops, got, strict=True):
        first = next((n for n, text in enumerate(texts) if stop in text), None)
        assert sampled.ids.tolist() == (ids if first is None else ids[: first + 1])
        assert sampled.finish == ("length" if first is None else "stop")


def test_a_stop_string_inside_a_token_keeps_the_whole_token():
    tokenizer = tiny_tokenizer("merging")
    ids = tokenizer("<search>Beta</search>\n\nmore", add_special_tokens=False)["input_ids"]
    matcher = StopMatcher(tokenizer.decode, ("</search>",))
    first = next(n for n in range(1, len(ids)) if matcher.complete(ids[:n]))
    assert tokenizer.decode(ids[:first]) == "<search>Beta</search>\n\n"


@settings(max_examples=150, deadline=None)
@given(
    ids=st.lists(st.integers(0, 340), min_size=1, max_size=30),
    stop=st.lists(st.text(min_size=1, max_size=3) | st.sampled_from(["</search>", "東京", "é"]), max_size=3),
    text=st.text(max_size=10) | st.sampled_from(["a</search>\n", "in 東京 é"]),
)
def test_stop_strings_are_found_where_decoding_everything_finds_them(ids, stop, text):
    tokenizer = tiny_tokenizer("base")
    whole = [*ids, *tokenizer(text, add_special_tokens=False)["input_ids"], *ids]
    matcher = StopMatcher(tokenizer.decode, stop)
    for n in range(1, len(whole) + 1):
        expected = any(s in tokenizer.decode(whole[:n]) for s in stop)
        assert matcher.complete(whole[:n]) == expected
        if expected:
            break


def test_a_full_context_is_an_end_not_an_error():
    own = sampler(max_context=50)
    lengths = [60, 51, 50, 49, 45, 44, 10]
    got = own.sample([SampleRequest(prompt(n), Sampling(5), seed=n) for n in lengths])
    assert [len(s.ids) for s in got] == [0, 0, 0, 1, 5, 5, 5]
    assert [s.finish for s in got] == ["context"] * 4 + ["length"] * 3
    assert [len(s.logp) for s in got] == [len(s.ids) for s in got]
    assert sampler(tiny_qwen2(max_position_embeddings=77)).max_context == 77
    assert own.sample([]) == []


# -- no more work than needed ----------------------------------------------------------------------------------------


def test_finished_rows_leave_the_batch():
    own = sampler(reuse_tokens=0)
    passes = recorded(own)
    own.sample([SampleRequest(prompt(9, n), Sampling(tokens), seed=n) for n, tokens in enumerate([1, 1, 3, 30])])
    assert passes == [(4, 9, 0)] + [(2, 1, 9), (2, 1, 10)] + [(1, 1, 9 + n) for n in range(2, 29)]


def test_equal_prompts_are_read_once_and_long_ones_in_several_passes():
    own = sampler(tiny_qwen2(max_position_embeddings=4096), reuse_tokens=0)
    passes = recorded(own)
    prompts = [prompt(700, n) for n in range(4)]
    own.sample([SampleRequest(prompts[n % 4], Sampling(1), seed=n) for n in range(16)])
    rows = PREFILL_TOKENS // 700
    assert passes == [(rows, 700, 0)] * (4 // rows)


def test_a_batch_holds_at_most_its_tokens():
    own = sampler(max_batch_tokens=300)
    passes = recorded(own)
    requests = [SampleRequest(prompt(n, n), Sampling(10), seed=n) for n in (20, 100, 90, 21, 22, 400, 95)]
    assert [len(s.ids) for s in own.sample(requests)] == [10] * 7
    steps = [(rows, 1 + before) for rows, new, before in passes if new == 1]
    assert all(rows == 1 or rows * columns <= 300 for rows, columns in steps)
    assert [rows for rows, columns in steps if columns in (401, 101, 91)] == [1, 2, 3]


def test_a_continued_request_reads_only_what_is_new():
    own = sampler()
    first = SampleRequest(prompt(60), Sampling(20), seed=1)
    said = own.sample([first])[0]
    observation = prompt(25, 5)
    second = SampleRequest(np.concatenate([first.ids, said.ids, observation]), Sampling(1), seed=2)
    passes = recorded(own)
    reused = own.sample([second, SampleRequest(prompt(60), Sampling(1), seed=3)])
    assert passes == [(2, 26, 79)]  # the last token said was not read yet; of the whole prompt the last one is read
    fresh = sampler(reuse_tokens=0).sample([second, SampleRequest(prompt(60), Sampling(1), seed=3)])
    for a, b in zip(reused, fresh, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        np.testing.assert_allclose(a.logp, b.logp, atol=1e-5)


def test_the_prefix_store_finds_the_longest_prefix_and_forgets_the_oldest():
    store = PrefixStore(200)
    a, b = prompt(50, 1), np.concatenate([prompt(50, 1)[:37], prompt(40, 2)])
    rows = {"a": [], "b": [], "c": []}
    assert store.longest(a) == (0, None)
    store.add(a, rows["a"])
    assert store.longest(a) == (49, rows["a"])  # one token is left to read
    assert store.longest(np.concatenate([a, b]))[0] == 50
    assert store.longest(b)[0] == 37
    assert store.longest(a[:15]) == (0, None)  # shorter than a block
    store.add(b, rows["b"])
    assert store.tokens == 127
    assert store.longest(a)[1] is rows["a"]
    store.add(np.concatenate([a, prompt(30, 3)]), rows["c"])  # holds all of a: a is forgotten
    assert store.tokens == 77 + 80
    assert store.longest(b)[0] == 76
    store.add(prompt(100, 4), [])  # c was used longest ago
    assert store.tokens == 77 + 100
    assert store.longest(b)[0] == 76
    assert store.longest(np.concatenate([a, prompt(30, 3)])) == (0, None)  # c had taken over what b shares with it
    store.add(prompt(201, 5), [])
    assert store.tokens == 177
    store.clear()
    assert store.tokens == 0
    assert store.longest(b) == (0, None)


# -- weights ---------------------------------------------------------------------------------------------------------


def test_update_loads_weights_and_forgets_what_the_old_ones_computed():
    own, new = sampler(), tiny_qwen2(seed=1)
    requests = mixed_requests()
    before = [s.ids.tolist() for s in own.sample(requests)]
    own.update(new.state_dict(), 7)
    assert own.version == 7
    after = own.sample(requests)
    expected = sampler(new, reuse_tokens=0).sample(requests)
    assert [s.ids.tolist() for s in after] == [s.ids.tolist() for s in expected]
    assert [s.ids.tolist() for s in after] != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("model.norm.weight"), "model.norm.weight is missing"),
        (lambda state: state.update(extra=torch.zeros(1)), "extra is unknown"),
        (lambda state: state.update({"model.norm.weight": torch.zeros(3)}), r"has shape \(3,\), not \(32,\)"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_changes(change, message):
    own = sampler()
    own.version = 3
    kept = {name: tensor.clone() for name, tensor in own.model.state_dict().items()}
    state = tiny_qwen2(seed=1).state_dict()
    change(state)
    with pytest.raises(UsageError, match=message):
        own.update(state, 4)
    assert own.version == 3
    assert all(torch.equal(kept[name], tensor) for name, tensor in own.model.state_dict().items())


def test_output_that_is_not_finite_is_an_error():
    own = sampler()
    own.model.model.norm.weight.data[0] = float("nan")
    for temperature in (0.0, 1.0):
        with pytest.raises(ModelError, match="logits of Qwen2ForCausalLM are not finite"):
            own.sample([SampleRequest(prompt(5), Sampling(3, temperature))])


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling(max_tokens=0), "max_tokens must be at least 1, got 0"),
        (lambda: Sampling(temperature=-1.0), "temperature must be a number from 0 up, got -1.0"),
        (lambda: Sampling(temperature=float("nan")), "temperature must be a number"),
        (lambda: Sampling(top_p=0.0), r"top_p must be in \(0, 1\], got 0.0"),
        (lambda: Sampling(stop="</search>"), "tuple of non-empty strings"),
        (lambda: Sampling(stop=("",)), "tuple of non-empty strings"),
        (lambda: SampleRequest(prompt(0)), "at least one token id"),
        (lambda: SampleRequest(prompt(4).reshape(2, 2)), r"got shape \(2, 2\)"),
        (lambda: SampleRequest(prompt(4), seed=-1), "seed must be 0 or more, got -1"),
        (lambda: sampler().sample([SampleRequest(np.array([3, 512], np.int32))]), "from 0 to 511, got 3 to 512"),
        (lambda: sampler(max_context=513), "from 1 to the model's 512 positions, got 513"),
        (lambda: sampler(max_batch_tokens=0), "max_batch_tokens=0"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_a_model_with_other_layers_than_attention_is_refused():
    config = MambaConfig(vocab_size=32, hidden_size=8, state_size=4, num_hidden_layers=1, time_step_rank=1)
    with pytest.raises(UsageError, match="MambaForCausalLM has layers other than attention"):
        sampler(MambaForCausalLM(config))


# -- from a folder ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_saved_model_loads_and_samples_the_same(tmp_path):
    model, tokenizer = load_model(save_tiny(tmp_path), chat=True)
    requests = mixed_requests()
    got, expected = sampler(model).sample(requests), sampler().sample(requests)
    assert [s.ids.tolist() for s in got] == [s.ids.tolist() for s in expected]
    assert tokenizer.chat_template == tiny_tokenizer("qwen2").chat_template
    assert not model.training
    half, _ = load_sampler(tmp_path, "bfloat16", max_context=99)
    assert (half.model.dtype, half.max_context) == (torch.bfloat16, 99)


def test_a_run_folder_means_its_best_checkpoint_else_the_last(tmp_path):
    assert local_folder(tmp_path) == tmp_path
    (tmp_path / "checkpoints" / "step-000002").mkdir(parents=True)
    for link in ("last", "best"):
        (tmp_path / "checkpoints" / link).symlink_to("step-000002", target_is_directory=True)
        assert local_folder(tmp_path) == tmp_path / "checkpoints" / link
    assert local_folder(str(tmp_path / "checkpoints" / "step-000002")) == tmp_path / "checkpoints" / "step-000002"
    assert local_folder(tmp_path / "none") is None


def remove(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (remove("config.json"), DataMissingError, "no config.json"),
        (remove("model.safetensors"), DataMissingError, "no weights"),
        (remove("tokenizer.json", "tokenizer_config.json"), DataMissingError, "no tokenizer"),
        (remove("chat_template.jinja"), DataMissingError, "no chat template.*chat_template.jinja"),
        (lambda folder: (folder / "config.json").write_text("{"), DataError, r"config\.json:1: not JSON"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), DataError, "the tokenizer cannot be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"12"), DataError, "the model cannot be read"),
        (lambda folder: tiny_qwen2(100).save_pretrained(folder), UsageError, "has 351 tokens, the model 100"),
    ],
)
def test_a_damaged_folder_is_told(tmp_path, damage, error, message):
    damage(save_tiny(tmp_path))
    with pytest.raises(error, match=message) as caught:
        load_model(tmp_path, chat=True)
    assert type(caught.value) is error
    assert str(tmp_path) in str(caught.value)


def test_weights_missing_from_a_file_are_told_not_made_up(tmp_path):
    from safetensors.torch import load_file, save_file

    file = save_tiny(tmp_path) / "model.safetensors"
    state = load_file(file)
    del state["model.norm.weight"]
    save_file(state, file, {"format": "pt"})
    with pytest.raises(DataError, match=r"1 weights are missing, model\.norm\.weight among them"):
        load_model(tmp_path)


def test_a_folder_that_is_not_there_and_an_unknown_dtype_are_told(tmp_path):
    with pytest.raises(DataMissingError, match="no such folder"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(UnknownNameError, match="unknown dtype 'float23'; did you mean 'float32'"):
        load_model(save_tiny(tmp_path), "float23")
