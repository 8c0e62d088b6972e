"""Tool calls on a server's OpenAI interface, for models trained with this package's grammars.

Agents of other projects use messages and tools; the model was trained with a prompt, tags and results in certain
positions. A chat template converts messages to that form, and a parser (`searchgym.rollout.vllm.tool_parser`) reads
calls from the model's output.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from searchgym.agents.base import load_agent
from searchgym.errors import UsageError
from searchgym.protocol import DEFAULT, Protocol, joined, list_dialects
from searchgym.rollout.tokens import TokenFormat

PLUGIN: Final = "searchgym.rollout.vllm.tool_parser"
"""Module that vLLM loads the parsers from."""
PLACE: Final = "sentinelofatext"
"""Sentinel that replaces a text while a piece of the template is built."""

TEMPLATE: Final = (
    "{% set ns = namespace(asked=false) %}{% for message in messages %}"
    "{% set text = message['content'] or '' %}"
    "{% if message['role'] == 'user' and not ns.asked %}{% set ns.asked = true %}BEFORE{{ text }}AFTER"
    "{% elif message['role'] == 'user' %}OPENING{{ text | trim }}AGAIN"
    "{% elif message['role'] == 'tool' %}RESULT{{ text }}END"
    "{% elif message['role'] == 'assistant' %}{{ text }}"
    "{% for call in message['tool_calls'] or [] %}{% set called = call['function'] %}CALL{% endfor %}"
    "{% if not message['tool_calls'] %}CLOSING{% endif %}{% endif %}{% endfor %}"
)
"""Chat template whose words in capitals are replaced by pieces of the model's template and of the grammar. System
messages and descriptions of tools are left out, because the model's training prompt contains the instructions."""


_EACH: Final = "{% for key, value in called['arguments'].items() %}"
ARGUMENTS: Final = {
    "json": "{{ called['arguments'] | tojson }}",
    "python": _EACH + "{{ key }}={{ value | tojson }}{{ '' if loop.last else ', ' }}{% endfor %}",
    "xml": _EACH + "<parameter={{ key }}>\n{{ value if value is string else value | tojson }}\n</parameter>"
    "{{ '' if loop.last else '\\n' }}{% endfor %}",
}
"""Template parts that write a call's arguments, by the notation of the dialect."""


def parser_name(protocol: Protocol, thinks: bool) -> str:
    """Returns the name under which the parser of a grammar is registered with vLLM.

    Args:
        protocol: Action grammar.
        thinks: True if the model's chat template opens a thought.
    """
    dialect = "" if protocol.dialect is None or protocol.dialect.name == DEFAULT else f"_{protocol.dialect.name}"
    tools = "_browse" * protocol.browse + "_find" * protocol.find + "_cite" * protocol.cite
    return f"searchgym_{protocol.name}{dialect}{tools}{'_thinks' * thinks}"


def tool_template(form: TokenFormat, agent: str) -> str:
    """Returns the chat template of a model for conversations with tools.

    Args:
        form: Token format of the model, with a chat template.
        agent: Agent whose prompt the model was trained with; the first user message becomes the question in it.

    Raises:
        UsageError: The model has no chat template, the agent has not exactly one role, the dialect does not ship, or
            the tokenizer inserts blanks before texts.
    """
    roles = load_agent(agent).roles
    if len(roles) != 1 or not form.chat:
        raise UsageError(f"--tools needs a chat model and an agent with one role, got {agent} ({len(roles)} roles)")
    if form.blanks:
        raise UsageError(
            "--tools needs a tokenizer that puts no blank before texts, and this one does (SentencePiece's kind may): "
            "the template for tools would hold them twice; serve the model without --tools"
        )
    dialect = form.protocol.dialect
    if dialect is not None and dialect.name not in list_dialects():
        raise UsageError(f"--tools has no parser of dialect {dialect.name}, only of {', '.join(list_dialects())}")
    (role,) = roles.values()
    protocol, instructions = form.protocol, form.protocol.instructions()
    prompt = joined(role.parts({"question": PLACE, "instructions": instructions}, instructions))
    before, after = form.decode(form.prompt_ids(prompt)).split(PLACE)
    opening, again = form.decode(form.observation_ids(PLACE, "eos")).split(PLACE)
    closing = form.decode(form.closing_ids)
    result, end = form.decode(form.observation_ids(protocol.result(PLACE), "stop")).split(PLACE)
    texts = {
        "BEFORE": before, "AFTER": after, "OPENING": opening, "AGAIN": again, "RESULT": result, "END": end,
        "CLOSING": closing,
    }  # fmt: skip
    pieces = {name: f"{{{{ {json.dumps(text)} }}}}" if text else "" for name, text in texts.items()}
    pieces["CALL"] = _call(protocol)
    return re.sub(
        "|".join(pieces), lambda name: pieces[name[0]], TEMPLATE
    )  # in one pass, as texts may contain such words


def tool_flags(form: TokenFormat, agent: str) -> dict[str, Any]:
    """Returns the options of a vLLM server that replies with tool calls; arguments and errors as in `tool_template`."""
    return {
        "chat-template": tool_template(form, agent),
        "enable-auto-tool-choice": True,
        "tool-parser-plugin": PLUGIN,
        "tool-call-parser": parser_name(form.protocol, bool(form.thought_after(None))),
    }


def _call(protocol: Protocol) -> str:
    """Returns the part of the template that writes a call in the grammar's form."""
    if protocol.dialect is not None:
        fields = {"{name}": "{{ called['name'] }}", "{arguments}": ARGUMENTS[protocol.dialect.notation]}
        pieces = re.split(r"(\{name\}|\{arguments\})", protocol.dialect.call)
        return "".join(fields.get(piece) or f"{{{{ {json.dumps(piece)} }}}}" for piece in pieces if piece)
    search = "<search>{{ called['arguments']['query'] }}</search>"
    if not protocol.browse:
        return search
    pages = "{% if called['name'] == 'open' %}<open>{{ called['arguments']['page'] }}</open>"
    pages += "{% elif called['name'] == 'more' %}<more></more>"
    if protocol.find:
        pages += "{% elif called['name'] == 'find' %}<find>{{ called['arguments']['text'] }}</find>"
    if protocol.cite:
        cited = "{{ called['arguments']['page'] }} | {{ called['arguments']['quote'] }}"
        pages += f"{{% elif called['name'] == 'cite' %}}<cite>{cited}</cite>"
    return f"{pages}{{% else %}}{search}{{% endif %}}"
