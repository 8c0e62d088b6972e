"""A chat model with Qwen3's architecture and its kind of chat template, from a folder, through whole trainings."""

import json

import pytest
import torch
from made_models import tiny_tokenizer
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from searchgym.corpora.files import iter_jsonl
from searchgym.protocol import split_thoughts
from searchgym.rollout.storage import read_episodes
from searchgym.train.loop.assembly import train
from searchgym.train.recipe.load import load_recipe

TEMPLATE = """
{%- set last = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' and not message.content.startswith('<tool_response>') %}
        {%- set last.question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set said = message.content.split('</think>')[-1].lstrip('\\n') %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > last.question %}
            {%- set thought = message.content.split('</think>')[0] if '</think>' in message.content else '' %}
            {{- '<think>\\n' + thought.split('<think>')[-1].strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- said + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
"""Qwen3's manners: thoughts before the last question vanish, later ones are wrapped anew; tools; a thinking switch."""

TAGS = ("<think>", "</think>", "<search>", "</search>", "<tool_call>", "</tool_call>", "<answer>", "</answer>")
"""Single tokens that are no special ones, as Qwen3 has for thoughts and tools: a random model writes them by chance."""

OFTEN = ("<think>", "</think>", "<search>", "</search>", "<answer>", "</answer>", "<|im_end|>")

RECIPE = """
name: chat-test
summary: three steps of a chat model on a tiny world
method: policy
model: {model}
env: searchgym/World-v0
agent: {agent}
steps: 3
env_options:
  questions: {{split: train, size: 12, seed: 1, hops: [1, 2]}}
  reward: test_chat_models:letters
  protocol: {protocol}
  max_turns: 3
rollout: {{questions: 3, attempts: 6}}
optimizer: {{lr: 1e-3}}
validation: {{every: 0}}
log: {{tensorboard: false, curve: false}}
"""

CARD = """
name: own-prompt
summary: the stock workflow with a prompt of one's own
workflow: searchgym.agents.monolithic:Monolithic
roles:
  searcher: {prompt: mine.md, fields: [question, instructions], max_tokens: 24}
"""


def letters(state):
    """Rewards what a random model does by chance: long answers, searches, actions that can be read."""
    return min(len(state.answer_text), 9) / 10 + 0.2 * len(state.searches) - 0.1 * state.invalid


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tiny Qwen3, random but fond of tags and ends of turns."""
    path = tmp_path_factory.mktemp("qwen3")
    tokenizer = tiny_tokenizer("qwen3")
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.chat_template = TEMPLATE
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
        model.model.embed_tokens.weight[:, 0] = 4  # what every position has in common: with it a row has a bias
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(list(OFTEN)), 0] = 1.5
        model.lm_head.weight[tokenizer.convert_tokens_to_ids(list(TAGS[:2])), 0] = 2
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def run(folder, tmp_path, monkeypatch):
    """Trains three steps; returns (result, rows of metrics.jsonl, episodes)."""
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "mine.md").write_text("My own words. {instructions}\n{question}")
    (agent / "card.yaml").write_text(CARD)

    def go(protocol, own=False):
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(RECIPE.format(model=folder, agent=agent if own else "search-r1", protocol=protocol))
        result = train(load_recipe(str(recipe)), tmp_path / "out")
        rows = [row for _, row in iter_jsonl(tmp_path / "out" / "metrics.jsonl")]
        return result, rows, list(read_episodes(tmp_path / "out" / "episodes.jsonl"))

    return go


def test_the_template_is_the_trap_that_it_is_meant_to_be(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def render(*contents, **options):
        messages = [
            {"role": role, "content": content}
            for role, content in zip(("user", "assistant") * 2, contents, strict=False)
        ]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)

    assert "B first" not in render("Q", "<think>\nB first\n</think>\n\nA", "page")
    assert "B first" in render("Q", "<think>\nB first\n</think>\n\nA", "<tool_response>page</tool_response>")
    assert render("Q", enable_thinking=False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert render("Q").endswith("<|im_start|>assistant\n")
    ids = tokenizer("<think></search>", add_special_tokens=False)["input_ids"]
    assert len(ids) == 2
    assert not set(ids) & set(tokenizer.all_special_ids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "own"),
    [
        pytest.param("tags", False, marks=pytest.mark.slow),
        pytest.param("tool_calls", False, marks=pytest.mark.slow),
        ("tags", True),
    ],
)
def test_a_chat_model_with_a_thinking_template_trains_three_steps(run, folder, protocol, own):
    result, rows, episodes = run(protocol, own)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    for row in rows[1:]:
        assert row["retokenisation_mismatch"] == 0
        assert row["rollout/reward_std"] > 0
        assert row["learner/updates"] == 1
        assert row["learner/max_sampler_difference"] < 1e-4  # the trainer reads what the sampler wrote
    assert len(episodes) == 3 * 3 * 6
    _check_the_prompts(AutoTokenizer.from_pretrained(folder), episodes, own)
    _check_that_thoughts_stay(AutoTokenizer.from_pretrained(folder), episodes)
    _check_the_checkpoint(folder, result.checkpoint)


def _check_the_prompts(tokenizer, episodes, own):
    """The first prompt is the template's own rendering of one user message, told in the agent's words."""
    start = "My own words. " if own else "Answer the question at the end."
    for episode in episodes:
        ids = episode.contexts[0].spans[0].ids.tolist()
        text = (
            tokenizer.decode(ids).removeprefix("<|im_start|>user\n").removesuffix("<|im_end|>\n<|im_start|>assistant\n")
        )
        assert text.startswith(start)
        messages = [{"role": "user", "content": text}]
        assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids


def _check_that_thoughts_stay(tokenizer, episodes):
    """Some turn before the last thought aloud; its tokens are still in the sequence that was trained on."""
    seen = 0
    for episode in episodes:
        whole = [int(i) for span in episode.contexts[0].spans for i in span.ids]
        for call in episode.calls[:-1]:
            seen += bool(split_thoughts(call.text)[0])
            assert tokenizer.decode(whole[call.start : call.end]).startswith(call.text)
    assert seen > 0


def _check_the_checkpoint(folder, checkpoint):
    """A checkpoint loads by name, with other weights than before and the same tokenizer and template."""
    before, after = (AutoModelForCausalLM.from_pretrained(path) for path in (folder, checkpoint))
    assert type(after) is Qwen3ForCausalLM
    pairs = zip(before.named_parameters(), after.named_parameters(), strict=True)
    still = [name for (name, old), (_, new) in pairs if torch.equal(old, new)]
    assert not still
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(folder).get_vocab()
    assert json.loads((checkpoint / "config.json").read_text())["model_type"] == "qwen3"
