"""Tool calls on a server's OpenAI interface, for a model that was trained in this package's grammars.

Agents of other projects say messages and tools; the model knows its prompt, its tags and where results stand. A chat
template writes the one as the other, and a parser (`searchgym.rollout.vllm.tool_parser`) reads calls from what it says.
"""

from __future__ import annotations

import json
from typing import Any, Final

from searchgym.agents.base import load_agent
from searchgym.errors import UsageError
from searchgym.protocol import DEFAULT, Protocol, joined, opened_by
from searchgym.rollout.tokens import TokenFormat

PLUGIN: Final = "searchgym.rollout.vllm.tool_parser"
"""Module that vLLM loads the parsers from."""
PLACE: Final = "sentinelofatext"
"""Sentinel that stands for a text while a piece of the template is made."""

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
"""Chat template whose words in capitals are pieces of the model's own template and of the grammar. A system message and
descriptions of tools are left out: the prompt that the model was trained with says it all."""


def parser_name(protocol: Protocol, thinks: bool) -> str:
    """Returns the name under which the parser of a grammar is registered with vLLM.

    Args:
        protocol: Action grammar.
        thinks: Whether the model's chat template opens a thought.
    """
    dialect = protocol.dialect.name if protocol.dialect is not None else DEFAULT
    spelled = protocol.name if dialect == DEFAULT else f"{protocol.name}_{dialect}"
    return f"searchgym_{spelled}{'_browse' * protocol.browse}{'_thinks' * thinks}"


def tool_template(form: TokenFormat, agent: str) -> str:
    """Returns the chat template of a model for conversations with tools.

    Args:
        form: The model's token format, as a chat.
        agent: Agent whose prompt the model was trained with; the first user message is the question in it.

    Raises:
        UsageError: The model has no chat template, the agent not one role, or the grammar's calls are not in JSON.
    """
    roles = load_agent(agent).roles
    if len(roles) != 1 or not form.chat:
        raise UsageError(f"--tools needs a chat model and an agent with one role, got {agent} ({len(roles)} roles)")
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
    template = TEMPLATE.replace("CALL", _call(protocol))
    for name, text in texts.items():
        template = template.replace(name, f"{{{{ {json.dumps(text)} }}}}" if text else "")
    return template


def tool_flags(form: TokenFormat, agent: str) -> dict[str, Any]:
    """Returns the options of a vLLM server that answers with tool calls; arguments and errors as `tool_template`."""
    return {
        "chat-template": tool_template(form, agent),
        "enable-auto-tool-choice": True,
        "tool-parser-plugin": PLUGIN,
        # An empty prompt, since wordings of prompts name the markers of thoughts too.
        "tool-call-parser": parser_name(form.protocol, bool(opened_by(form.decode(form.prompt_ids(""))))),
    }


def _call(protocol: Protocol) -> str:
    """Returns the part of the template that writes a call as the grammar does."""
    arguments = "called['arguments']"
    if protocol.dialect is not None:
        if protocol.dialect.notation != "json":
            raise UsageError(f"--tools writes calls in JSON, not as the dialect {protocol.dialect.name!r} does")
        return protocol.dialect.show("{{ called['name'] }}", f"{{{{ {arguments} | tojson }}}}")
    search = f"<search>{{{{ {arguments}['query'] }}}}</search>"
    if not protocol.browse:
        return search
    return (
        f"{{% if called['name'] == 'open' %}}<open>{{{{ {arguments}['page'] }}}}</open>"
        f"{{% elif called['name'] == 'more' %}}<more></more>{{% else %}}{search}{{% endif %}}"
    )
