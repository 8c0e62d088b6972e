"""Parsers in the form that the conformance set runs: this project's, and vLLM's tool parsers."""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from searchgym.protocol import Protocol, get_protocol
from searchgym.records import Action, Answer, Invalid, Search

ANSWER: Final = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
VLLM: Final = {"hermes": "hermes", "qwen3_coder": "qwen3_coder", "llama3": "llama3_json", "mistral": "mistral"}
"""Dialect to the name of vLLM's tool parser for it."""
NOT_VLLM: Final = {
    "tags": "vLLM has no parser for it",
    "gemma": "vLLM's parsers functiongemma and gemma4 read other forms than tool_code",
    "gpt_oss": "vLLM reads it from token ids, by a vocabulary that it downloads",
}
"""Dialect to the reason why no tool parser of vLLM is run on it."""
TOKENS: Final = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<think>", "</think>")
"""Special tokens that vLLM's parsers look up in a vocabulary."""


def protocol_of(dialect: str) -> Protocol | None:
    """Returns this project's grammar of a dialect; None where it has none."""
    make: Callable[..., Protocol] = get_protocol
    if dialect in ("tags", "hermes"):
        return make("tags" if dialect == "tags" else "tool_calls")
    return make("tool_calls", dialect=dialect) if "dialect" in inspect.signature(get_protocol).parameters else None


def own_parse(dialect: str, text: str) -> Mapping[str, Any]:
    """Parses a text by this project's grammar of a dialect, which must have one."""
    protocol = protocol_of(dialect)
    assert protocol is not None
    return plain(protocol.parse(text))


def plain(action: Action) -> Mapping[str, Any]:
    """Returns an action as the conformance set writes it."""
    if isinstance(action, Search):
        return {"search": list(action.queries)}
    if isinstance(action, Answer):
        return {"answer": action.text}
    return {"refused": action.reason if isinstance(action, Invalid) else f"{type(action).__name__} is not in the set"}


class StandIn:
    """A tokenizer of which vLLM's parsers need the vocabulary only: each character is a token."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        """Returns special token to id, above the numbers of all characters."""
        return {token: 0x110000 + number for number, token in enumerate(self.tokens)}

    def encode(self, text: str, **_: object) -> list[int]:
        """Returns the characters' numbers."""
        return list(map(ord, text))

    def decode(self, ids: list[int], **_: object) -> str:
        """Returns the characters of some numbers."""
        return "".join(map(chr, ids))


@cache
def _request() -> Any:
    """Returns a request that offers the tool search."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    logging.disable(logging.CRITICAL)  # vLLM logs a traceback for each text that it refuses
    kinds = {"query": {"type": "string"}}
    tool = {"name": "search", "parameters": {"type": "object", "properties": kinds, "required": ["query"]}}
    messages = [{"role": "user", "content": ""}]
    return ChatCompletionRequest.model_validate(
        {"model": "", "messages": messages, "tools": [{"type": "function", "function": tool}]}
    )


def vllm_parse(dialect: str, text: str) -> Mapping[str, Any]:
    """Parses a text by vLLM's tool parser for a dialect of `VLLM`; the first call acts.

    vLLM leaves thoughts and ``<answer>`` to others: an answer is read here from what its parser calls the content.
    """
    from vllm.tool_parsers import ToolParserManager

    request = _request()
    # Mistral's tokenizers from version 11 on have [ARGS], and vLLM then reads their form alone.
    tokens = (*TOKENS, "[ARGS]") if "[ARGS]" in text else TOKENS
    parser: Any = ToolParserManager.get_tool_parser(VLLM[dialect])
    found: Any = parser(StandIn(tokens), request.tools).extract_tool_calls(text, request)
    if answer := ANSWER.search(found.content or ""):
        return {"answer": answer[1].strip()}
    if not found.tool_calls:
        return {"refused": True}
    call = found.tool_calls[0].function
    queries = _queries(call.arguments) if call.name == "search" else []
    return {"search": queries} if queries else {"refused": True}


def _queries(arguments: str) -> list[str]:
    """Returns the queries in the JSON text of a call's arguments; none if a program could not use them."""
    try:
        values: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return []
    query: object = values.get("query") if isinstance(values, dict) else None
    queries: list[object] = query if isinstance(query, list) else [query]
    found = [one.strip() for one in queries if isinstance(one, str) and one.strip()]
    return found if len(found) == len(queries) else []
