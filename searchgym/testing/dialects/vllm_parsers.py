"""Adapter of vLLM's parsers to the conformance set.

As in vLLM's server, a reasoning parser runs first if a text has its markers, and the tool parser reads the rest. Both
need a tokenizer only for its vocabulary, so `StandIn` replaces a real one.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, cast

ANSWER: Final = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
QWEN, MISTRAL = ("<think>", "</think>"), ("[THINK]", "[/THINK]")
PARSERS: Final = {
    "hermes": ("hermes", "qwen3", QWEN),
    "qwen3_coder": ("qwen3_coder", "qwen3", QWEN),
    "llama3": ("llama3_json", "deepseek_r1", QWEN),
    "mistral": ("mistral", "mistral", MISTRAL),
    "gpt_oss": ("openai", "openai_gptoss", ()),
}
"""Names of vLLM's tool parser and reasoning parser, and the markers of thoughts, by dialect."""
TOKENS: Final = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", *QWEN, *MISTRAL)
"""Special tokens that vLLM's parsers look up in a vocabulary."""


class StandIn:
    """A tokenizer with a few special tokens, in which every character is a token."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        """Returns the ids of the special tokens, which lie above all code points."""
        return {token: 0x110000 + number for number, token in enumerate(self.tokens)}

    def encode(self, text: str, **_: object) -> list[int]:
        """Returns the code points of a text."""
        return list(map(ord, text))

    def decode(self, ids: list[int], **_: object) -> str:
        """Returns the text of some code points."""
        return "".join(map(chr, ids))


def not_read() -> dict[str, str]:
    """Returns the dialects that no vLLM parser can read here, with the reasons."""
    from vllm.entrypoints.openai.parser import harmony_utils

    reasons = {
        "tags": "vLLM has no parser for it",
        "gemma": "vLLM's parsers functiongemma and gemma4 read other forms than tool_code",
    }
    try:
        cast("Any", harmony_utils).get_encoding()
    except Exception as error:  # whatever the library raises when it cannot download
        reasons["gpt_oss"] = f"vLLM reads token ids, and their vocabulary is missing: {error}"[:70]
    return reasons


def vllm_parse(dialect: str, text: str) -> Mapping[str, Any]:
    """Parses a text with vLLM's parsers for a dialect of `PARSERS`; the first call counts.

    vLLM's parsers know no answers. An answer is read from the text before the calls, which they return as the content.
    """
    calls, content = _harmony(text) if dialect == "gpt_oss" else _calls(dialect, text)
    answer = ANSWER.search(content)
    if answer and (dialect != "gpt_oss" or not calls):  # gpt-oss: the content is no longer in order with the calls
        return {"answer": answer[1].strip()}
    queries = _queries(calls[0].arguments) if calls and calls[0].name == "search" else []
    return {"search": queries} if queries else {"refused": True}


def _calls(dialect: str, text: str) -> tuple[list[Any], str]:
    """Returns the function calls in a text, and the content before them."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    request, (tool, reasoning, markers) = _request(), PARSERS[dialect]
    # Mistral's tokenizers from version 11 on have [ARGS], and vLLM then reads their form alone.
    tokenizer = StandIn((*TOKENS, "[ARGS]") if "[ARGS]" in text else TOKENS)
    if any(marker in text for marker in markers):
        thinks: Any = ReasoningParserManager.get_reasoning_parser(reasoning)
        text = thinks(tokenizer).extract_reasoning(text, request)[1] or ""
    parser: Any = ToolParserManager.get_tool_parser(tool)
    extracted: Any = parser(tokenizer, request.tools).extract_tool_calls(text, request)
    return [call.function for call in extracted.tool_calls], extracted.content or ""


def _harmony(text: str) -> tuple[list[Any], str]:
    """Returns the function calls in a text of gpt-oss, and its content; the library may download its vocabulary."""
    from vllm.entrypoints.openai.parser import harmony_utils
    from vllm.parser.parser_manager import ParserManager

    tool, reasoning, _ = PARSERS["gpt_oss"]
    kind: Any = ParserManager.get_parser(tool, reasoning, True, is_harmony=True)
    encoding: Any = cast("Any", harmony_utils).get_encoding()
    request, ids = _request(), encoding.encode(text, allowed_special="all")
    _, content, calls = kind(encoding, request.tools).parse(text, request, True, ids)
    return calls or [], content or ""


@cache
def _request() -> Any:
    """Returns a request that offers the tool search."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    logging.getLogger("vllm").setLevel(logging.CRITICAL + 1)  # it logs a traceback for each text that it refuses
    kinds = {"query": {"type": "string"}}
    tool = {"name": "search", "parameters": {"type": "object", "properties": kinds, "required": ["query"]}}
    messages = [{"role": "user", "content": ""}]
    return ChatCompletionRequest.model_validate(
        {"model": "", "messages": messages, "tools": [{"type": "function", "function": tool}]}
    )


def _queries(arguments: str) -> list[str]:
    """Returns the queries in a call's JSON arguments; none if the JSON is broken or a query is no text."""
    try:
        values: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return []
    query: object = values.get("query") if isinstance(values, dict) else None
    queries: list[object] = query if isinstance(query, list) else [query]
    usable = [one.strip() for one in queries if isinstance(one, str) and one.strip()]
    return usable if len(usable) == len(queries) else []
