"""Tool calls of served models: the template writes what the token format writes, the parser reads what models say."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
import torch
import urllib3
from made_models import tiny_tokenizer
from trl.chat_template_utils import qwen3_chat_template

from searchgym.agents.base import load_agent
from searchgym.errors import UsageError
from searchgym.protocol import get_protocol
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.samplers.vllm import Vllm
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.transformers.sampler import load_sampler
from searchgym.rollout.vllm.sampler import VllmSampler
from searchgym.rollout.vllm.start import start_engine
from searchgym.rollout.vllm.tool_calls import parser_name, tool_template
from searchgym.train import load_recipe
from searchgym.train.loop.samplers import computed_in

PAGE = "Doc 1(Title: Beta) Beta was founded by {{ Gamma }} </information> <answer>1901</answer>"


def form_of(name, browse=False):
    if name == "tags":
        return TokenFormat(load_tokenizer("tiny"), get_protocol("tags", browse=browse), chat=True)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = qwen3_chat_template
    return TokenFormat(tokenizer, get_protocol("tool_calls", browse=browse), chat=True)


def call(tool, **given):
    return [{"type": "function", "function": {"name": tool, "arguments": given}}]


@pytest.mark.parametrize("name", ["tags", "tool_calls"])
def test_the_template_writes_what_training_wrote(name):
    """A conversation of messages and tools, beside the tokens of an episode of the same texts."""
    form = form_of(name)
    protocol = form.protocol
    search = '<search>who "founded" Beta</search>'
    if name == "tool_calls":
        search = '<tool_call>\n{"name": "search", "arguments": {"query": "who \\"founded\\" Beta"}}\n</tool_call>'
    (role,) = load_agent("search-r1").roles.values()
    prompt = role.parts({"question": "Who?", "instructions": protocol.instructions()}, protocol.instructions())
    ids = [
        form.prompt_ids(prompt),
        form.reply_ids(f"<think>hm</think>{search}", None),
        form.observation_ids(protocol.parts(protocol.result(PAGE)), "stop"),
        form.reply_ids("Gamma", "stop"),
        form.closing_ids,
        form.observation_ids("And when?", "eos"),
    ]
    messages = [
        {"role": "system", "content": "You have tools."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "<think>hm</think>", "tool_calls": call("search", query='who "founded" Beta')},
        {"role": "tool", "content": PAGE},
        {"role": "assistant", "content": "Gamma"},
        {"role": "user", "content": "And when?"},
    ]
    template = tool_template(form, "search-r1")
    shown = form._tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    assert shown == "".join(form.decode(part) for part in ids)


def test_pages_are_opened_by_calls_too():
    form = form_of("tags", browse=True)
    calls = [call("open", page="Beta"), call("more"), call("search", query="x")]
    messages = [{"role": "assistant", "content": None, "tool_calls": own} for own in calls]
    template = tool_template(form, "search-r1")
    shown = form._tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    assert shown == "<open>Beta</open><more></more><search>x</search>"


def test_a_team_has_no_template():
    with pytest.raises(UsageError, match=r"an agent with one role, got m-ask"):
        tool_template(form_of("tags"), "m-ask")


CALLED = [
    ("tags", False, "<think>a</think> so <search>x</search>", ("<think>a</think> so ", "search", {"query": "x"})),
    ("tags", False, "<answer> Ada </answer>", ("Ada", "", None)),
    ("tags", False, "I do not know", ("I do not know", "", None)),
    ("tags", False, "<search></search>", ("<search></search>", "", None)),
    ("tags", True, "<open>Beta</open>", ("", "open", {"page": "Beta"})),
    ("tags", True, "hm <more></more>", ("hm ", "more", {})),
    (
        "tool_calls", False, 'a <tool_call>{"name": "search", "arguments": {"query": ["x", "y"]}}</tool_call>',
        ("a ", "search", {"query": ["x", "y"]}),
    ),
]  # fmt: skip


@pytest.mark.engine
@pytest.mark.filterwarnings("default")  # vLLM and its imports raise warnings that we cannot mend
def test_the_parser_reads_what_the_grammar_reads():
    """In vLLM's own registry, by its own interface; importing vLLM takes seconds."""
    from types import SimpleNamespace

    from vllm.tool_parsers.abstract_tool_parser import ToolParserManager
    from vllm.utils.import_utils import import_plugin

    from searchgym.rollout.vllm.tool_calls import PLUGIN

    assert import_plugin(PLUGIN) is not None
    for grammar, browse, text, (content, tool, given) in CALLED:
        name = parser_name(get_protocol(grammar, browse=browse), thinks=False)
        parser = ToolParserManager.get_tool_parser(name)(load_tokenizer("tiny"))
        found = parser.extract_tool_calls(text, SimpleNamespace())
        assert (found.content or "", found.tools_called) == (content, given is not None)
        assert [(c.function.name, json.loads(c.function.arguments)) for c in found.tool_calls] == (
            [] if given is None else [(tool, given)]
        )


@pytest.mark.engine
def test_a_served_model_calls_tools(tmp_path):
    """`searchgym serve model --tools` with the tiny model: a question comes back as a call, its result as an answer.

    A training's weights do not change what other programs get once it has ended.
    """
    url = "http://127.0.0.1:8719"
    command = [
        sys.executable,
        "-m",
        "searchgym",
        "serve",
        "model",
        "tiny-monolithic",
        "rollout.sampler.cache_gib=1",
        "--port",
        "8719",
    ]
    command += ["rollout.sampler.eager=true", "rollout.sampler.max_context=2048"]
    log = (tmp_path / "log").open("w+")
    server = subprocess.Popen([*command, "--tools"], stdout=log, stderr=log, env=os.environ)
    http = urllib3.PoolManager(retries=False)
    try:
        end = time.monotonic() + 540
        while True:
            try:
                models = http.request("GET", f"{url}/v1/models").json()
                break
            except urllib3.exceptions.HTTPError:
                assert server.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()[-3000:]
                time.sleep(0.5)
        parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
        tools = [{"type": "function", "function": {"name": "search", "parameters": parameters}}]
        messages = [{"role": "user", "content": "Who founded the town of Beta?"}]

        def said(messages):
            body = {"model": models["data"][0]["id"], "messages": messages, "tools": tools, "temperature": 0}
            reply = http.request("POST", f"{url}/v1/chat/completions", json=body)
            assert reply.status == 200, reply.data
            return reply.json()["choices"][0]

        first = said(messages)
        assert first["finish_reason"] == "tool_calls"
        (made,) = first["message"]["tool_calls"]
        assert made["function"]["name"] == "search"
        assert json.loads(made["function"]["arguments"])["query"]
        page = "Doc 1(Title: Beta) Beta was founded by Gamma Delt."
        messages += [first["message"], {"role": "tool", "tool_call_id": made["id"], "content": page}]
        second = said(messages)
        assert second["message"]["content"] or second["message"]["tool_calls"]
        assert not re.search(r"</?(search|answer)>", second["message"]["content"] or "")

        recipe = load_recipe("tiny-monolithic")
        own, _ = load_sampler(recipe.model)
        options = Vllm(servers=[url])
        engine = start_engine(recipe.model, dtype=computed_in(recipe), requests=4, options=options)
        training = VllmSampler(engine, ends=own.ends)
        training.update({name: torch.zeros_like(weight) for name, weight in own.model.state_dict().items()}, 1)
        training.close()
        again = said(messages[:1])
        assert again["message"]["tool_calls"][0]["function"] == made["function"]
    finally:
        server.terminate()
        server.wait(60)
        log.close()
