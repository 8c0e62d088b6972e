"""Model folders of others: what their files cannot make a library do."""

import builtins
import json
import shutil
import sys
import time

import pytest
import torch
from made_models import STYLES, save_tiny, tiny_tokenizer
from safetensors.torch import load_file

from searchgym.cli import main
from searchgym.errors import DataError, UsageError
from searchgym.protocol import get_protocol
from searchgym.rollout.folders import local_folder
from searchgym.rollout.foreign import sizes, templates
from searchgym.rollout.loading import load_model, load_tokenizer
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.plan.shapes import model_shape


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "model")


def change(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize(
    "named", ["AutoProcessor", "AutoImageProcessor", "AutoTokenizer", "evil.T", ["LlamaTokenizer"]]
)
def test_no_code_runs_for_a_tokenizer_of_another_kind(file, named, folder, monkeypatch):
    """Transformers loads such a class without the order to run no code, and asks at the terminal whether to."""
    change(folder / file, tokenizer_class=named)
    for name in ("processor_config.json", "preprocessor_config.json"):
        (folder / name).write_text(json.dumps({"auto_map": {"AutoProcessor": "evil.Evil"}}))
    (folder / "evil.py").write_text(f"open({str(folder / 'RAN')!r}, 'w')\nclass Evil:\n    pass\n")
    monkeypatch.setattr(builtins, "input", lambda prompt="": "y")
    for read in (load_tokenizer, load_model):
        with pytest.raises(DataError, match=r"config.json: tokenizer_class is .*, which names no tokenizer"):
            read(folder)
    assert not (folder / "RAN").exists()


@pytest.mark.parametrize(
    "entries",
    [
        {"attn_implementation": "kernels-community/flash-mla"},
        {"_attn_implementation": "owner/kernel@main:layer"},
        {"attn_implementation": {"": "owner/kernel"}},
        {"experts_implementation": "owner/kernel"},
        {"text_config": {"attn_implementation": {"decoder": ["owner/kernel"]}}},
        {"attn_implementation": "paged|owner/kernel"},
    ],
)
def test_no_kernel_is_fetched_for_a_model(entries, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "kernels", None)
    change(folder / "config.json", **entries)
    for read in (load_model, load_tokenizer, model_shape):
        with pytest.raises(DataError, match=r"config.json: \w+_implementation is .* kernels are code"):
            read(str(folder))


@pytest.mark.parametrize("name", ["eager", "sdpa", "paged|eager", None])
def test_implementations_that_transformers_has_are_read(name, folder):
    change(folder / "config.json", attn_implementation=name)
    model_shape(str(folder))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            {"num_hidden_layers": 200_000},
            "num_hidden_layers is 200,000, its weights are .* tensors: they do not belong",
        ),
        ({"num_hidden_layers": 10**10}, "num_hidden_layers is 1e.10, at most 1,048,576 are read"),
        ({"num_labels": 10**9}, "num_labels is 1e.09"),
        ({"text_config": {"num_hidden_layers": 10**12}}, "num_hidden_layers is 1e.12"),
        ({"model_type": "mixtral", "num_local_experts": 5 * 10**6}, "num_local_experts is 5e.06"),
        ({"model_type": "gpt2", "num_hidden_layers": 900_000, "num_experts": 9}, "num_hidden_layers is 900,000"),
        # a vocabulary; tables of positions that are missing or computed; matrices
        (
            {"model_type": "bloom", "n_layer": 1, "hidden_size": 32, "n_head": 4, "vocab_size": 10**9},
            "at least .* numbers",
        ),
        (
            {"model_type": "gpt2", "n_layer": 1, "n_head": 4, "n_embd": 32, "n_positions": 10**6},
            "weights are missing|numbers",
        ),
        ({"model_type": "opt", "max_position_embeddings": 10**8, "num_hidden_layers": 1}, "at least .* numbers"),
        ({"hidden_size": 10**6}, "at least .* numbers"),
    ],
)
def test_a_configuration_cannot_ask_for_more_than_its_weights(entries, said, folder):
    change(folder / "config.json", architectures=None, layer_types=None, **entries)
    started = time.process_time()
    with pytest.raises(DataError, match=said):
        load_model(folder)
    assert time.process_time() - started < 3


def test_a_plan_has_a_limit_too(tmp_path, monkeypatch, whole):
    """No weights are there to compare with."""
    monkeypatch.setattr(sizes, "MOST_TENSORS", 100)
    shutil.copy(whole / "config.json", tmp_path)
    assert model_shape(str(tmp_path)).layers == 2
    change(tmp_path / "config.json", num_hidden_layers=30, layer_types=None)
    with pytest.raises(DataError, match=r"no model can be built from its configuration: .* at least 101 tensors"):
        model_shape(str(tmp_path / "config.json"))


def test_a_bound_is_of_one_thread_and_ends_with_its_block(whole):
    with sizes.bounded(whole):
        torch.nn.Linear(64, 64)
        with pytest.raises(Exception, match="at least 3 tensors with 1,073,745,984 numbers"):
            torch.nn.Linear(2**15, 2**15, device="meta")
    torch.nn.Linear(2**15, 2**15, device="meta")


def test_weights_in_torchs_format_are_bounded_by_their_size(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    load_model(folder)
    change(folder / "config.json", hidden_size=10**6)
    with pytest.raises(DataError, match=r"at least .* numbers"):
        load_model(folder)


def test_a_configuration_that_is_no_object_is_refused(folder):
    (folder / "config.json").write_text("[1]")
    for read in (load_model, model_shape):
        with pytest.raises(DataError, match=r"config.json: expected one JSON object, got list"):
            read(str(folder))


# -- chat templates --------------------------------------------------------------------------------------------------

LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}x"
ENDLESS = {
    "loops": (LOOP, "does not end within 1 s of processor time"),
    "a text": ("{{ 'a' * 4000000000 }}", "takes more than 512 MiB"),
    "a width": ("{{ '%2000000000d' % 1 }}", "takes more than 512 MiB"),
    # variants
    "a macro": ("{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}", "recursion"),
    "a doubled text": (
        "{% set n = namespace(t='a') %}{% for i in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
        "MiB",
    ),
    "a power": ("{{ 9 ** (9 ** 9) }}", "does not end within 1 s of processor time"),
    "a filter": ("{{ 'a' | center(3000000000) }}", "takes more than 512 MiB"),
    "a list": ("{{ (range(99999) | list * 9999) | length }}", "takes more than 512 MiB"),
    "later": ("{% if messages | length > 1 %}" + LOOP + "{% endif %}", "does not end within 1 s of processor time"),
    "much": ("{{ 'a' * 9000000 }}", "1 messages: they become 9,000,000 characters"),
}
SLOW = ("later", "a power")
"""Kinds that take a second of processor time."""


@pytest.mark.slow_cases
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in ENDLESS])
def test_a_template_has_limits_of_time_and_memory(kind, folder, monkeypatch):
    template, said = ENDLESS[kind]
    if "1 s of" in said:  # the others reach their limit of memory, on a slow machine after more than a second
        monkeypatch.setattr(templates, "CPU_SECONDS", 1)
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(UsageError, match=rf"model: the chat template cannot render .*{said}.*leave it out: a base mod"):
        TokenFormat(load_tokenizer(folder), get_protocol("tags"), chat=True)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ cycler.__init__.__globals__.os.popen('x').read() }}", "access to attribute '__init__'"),
        ("{% include '/etc/passwd' %}", "no loader for this environment"),
        ("{{ raise_exception('not this') }}", "messages: not this;"),
        ("{% for %}", "Expected an expression"),
        ("{{ messages.append(1) }}", "access to attribute 'append'"),
    ],
)
def test_a_template_stays_in_its_sandbox(template, said, folder):
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(
        UsageError, match=rf"the chat template cannot render 1 messages: .*{said}" if "messages" not in said else said
    ):
        TokenFormat(load_tokenizer(folder), get_protocol("tags"), chat=True)


TALK = [
    [{"role": "user", "content": "Who é?"}],
    [{"role": "user", "content": " a"}, {"role": "assistant", "content": "b "}],
]
FORMS = [
    *(template for template, _ in STYLES.values() if template),
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% if loop.first %}{% continue %}{% endif %}{% endfor %}",
    "{{ bos_token }}{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ strftime_now('%Y') }}{{ tools }}",
    "  {% if tools is defined and not tools %}\n  x\n  {%- endif %}\n{{ eos_token }}{{ none_such }}{{ documents }}"
    "{{ add_generation_prompt }}",
]


@pytest.mark.slow_cases
@pytest.mark.parametrize("template", FORMS)
def test_a_template_is_rendered_as_transformers_does(template):
    tokenizer = tiny_tokenizer("llama")
    tokenizer.chat_template = template
    wanted = [tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True) for talk in TALK]
    assert templates.render(tokenizer, TALK) == wanted


def test_of_several_templates_the_default_is_rendered():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = {"default": "d{{ messages[0].content }}", "tool_use": "t"}
    assert templates.render(tokenizer, TALK[:1]) == ["dWho é?"]
    tokenizer.chat_template = {"one": "a", "two": "b"}
    with pytest.raises(UsageError, match=r"the chat template cannot render a few messages: .*multiple chat templates"):
        templates.render(tokenizer, TALK[:1])


@pytest.mark.parametrize("name", ["tiny", "tiny-teams"])
def test_the_shipped_templates_are_rendered_as_before(name):
    tokenizer = load_tokenizer(name)
    wanted = [tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True) for talk in TALK]
    assert templates.render(tokenizer, TALK) == wanted


# -- tokenizers ------------------------------------------------------------------------------------------------------


SPLIT = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}


@pytest.fixture
def tiny(tmp_path):
    """The shipped model, whose class of tokenizers takes its file as it is."""
    return shutil.copytree(local_folder("tiny"), tmp_path / "model")


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    "part",
    [
        {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "A" * 1000}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "z*"}, "content": "A"}},
        {"pre_tokenizer": SPLIT},
    ],
)
def test_a_tokenizer_whose_library_panics_is_an_error(part, chat, tiny, capfd):
    """On every text or on some: the library raises what is no `Exception` of Python."""
    change(tiny / "tokenizer.json", **part)
    with pytest.raises(DataError, match=r"model: the tokenizer fails on .*: use the one that belongs to the model"):
        TokenFormat(load_tokenizer(tiny), get_protocol("tags"), chat=chat).prompt_ids("x" * 40)
    capfd.readouterr()  # the library's words about it


def test_a_tokenizer_that_panics_ends_an_evaluation_in_one_line(tiny, tmp_path, capfd, monkeypatch):
    """The texts of episodes are encoded in another thread."""
    tokens = json.loads((tiny / "tokenizer.json").read_text())
    change(
        tiny / "tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [SPLIT, tokens["pre_tokenizer"]]}
    )
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"id": "q", "question": "x" * 60, "golden_answers": ["y"]}) + "\n")
    words = ["eval", "Demo", "--agent", "search-r1", "--model", str(tiny), "--questions", str(questions)]
    monkeypatch.setattr(sys, "argv", ["searchgym", *words, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="1"):
        main()
    said = capfd.readouterr().err.splitlines()
    assert said[-1].startswith(f"error: {tiny}: the tokenizer fails on ['")
