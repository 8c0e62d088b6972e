"""Plugin for vLLM's server that parses tool calls and answers of models trained with this package's grammars.

vLLM loads this module by its name (``--tool-parser-plugin``). Texts are parsed by the grammar's own rules (`Protocol`).

The chat template decides how a response ends after its first action:

* If the template opens a thought, the plugin sets no stop strings and cuts the finished response. With stop strings,
  vLLM would also stop at an action that the thought only quotes, and the server could not continue the response.
* Otherwise, the plugin sets stop strings. If the model writes ``<think>`` itself and quotes a complete action in that
  thought, the response ends there.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Final

from vllm.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager

try:
    from vllm.entrypoints.generate.base.protocol import ExtractedToolCallInformation, FunctionCall, ToolCall
except ImportError:  # before vLLM 0.32
    from vllm.entrypoints.openai.engine.protocol import (  # type: ignore[import-not-found,no-redef]
        ExtractedToolCallInformation,
        FunctionCall,
        ToolCall,
    )  # pyright: ignore[reportMissingImports]

from searchgym.options.cards import ProtocolName
from searchgym.protocol import DEFAULT, THINK_OPEN, Protocol, get_protocol, list_dialects
from searchgym.records import Answer, Cite, Find, More, Open, Search
from searchgym.rollout.api.replies import ServerReply, settle
from searchgym.rollout.vllm.tool_calls import parser_name

GRAMMARS: Final[list[tuple[ProtocolName, str]]] = [
    ("tags", DEFAULT),
    *(("tool_calls", dialect) for dialect in list_dialects()),
]
"""Grammars with parsers, and their dialects. Each has parsers with every set of `PAGE_TOOLS`, and with and without
thoughts opened by the template."""
PAGE_TOOLS: Final = ((False,) * 3, (True, False, False), (True, True, False), (True, False, True), (True,) * 3)
"""Sets of tools that work on pages: `Protocol.browse`, `Protocol.find` and `Protocol.cite`."""


def called(protocol: Protocol, text: str, thinks: bool = False) -> tuple[str, str, dict[str, Any] | None]:
    """Reads the tool call or answer in a model's text.

    Args:
        protocol: Action grammar.
        text: The text; anything after its first action is ignored.
        thinks: True if the chat template opens a thought, with which the text begins.

    Returns:
        (content, tool, arguments): the text before the call, and the call; for an answer or any other text, the answer
        or the whole text, an empty tool and None.
    """
    whole = settle(ServerReply(text, ended_by=""), protocol.stop_strings, protocol, thinks).text
    action = protocol.parse(whole)
    if isinstance(action, Answer):
        return action.text, "", None
    if isinstance(action, Search):
        queries = action.queries
        tool, arguments = "search", {"query": queries[0] if len(queries) == 1 else list(queries)}
    elif isinstance(action, Open):
        tool, arguments = "open", {"page": action.target}
    elif isinstance(action, More):
        tool, arguments = "more", {}
    elif isinstance(action, Find):
        tool, arguments = "find", {"text": action.text}
    elif isinstance(action, Cite):
        tool, arguments = "cite", {"page": action.target, "quote": action.quote}
    else:
        return text, "", None
    before = protocol.before_action(whole)
    return before if text.startswith(before) else before.removeprefix(THINK_OPEN), tool, arguments


class _Parser(ToolParser):
    """Base class of parsers; a subclass sets the grammar."""

    protocol: Protocol
    thinks: bool
    engine_based_streaming = True
    """Makes vLLM reply with the content returned by `extract_tool_calls`, the bare answer, if no tool is called."""

    def adjust_request(self, request: Any) -> Any:
        """Sets stop strings after actions, unless responses begin in a thought; keeps tags that are tokens."""
        request = super().adjust_request(request)
        if request.tools and request.tool_choice != "none":
            stops = [request.stop] if isinstance(request.stop, str) else list(request.stop or ())
            request.stop = stops if self.thinks else [*stops, *self.protocol.stop_strings]
            request.include_stop_str_in_output, request.skip_special_tokens = True, False
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """Returns the tool call in a response, or its answer."""
        content, tool, arguments = called(self.protocol, model_output, self.thinks)
        if arguments is None:
            return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=content)
        call = ToolCall(function=FunctionCall(name=tool, arguments=json.dumps(arguments, ensure_ascii=False)))
        return ExtractedToolCallInformation(tools_called=True, tool_calls=[call], content=content or None)


for (_grammar, _dialect), (_browse, _find, _cite), _thinks in itertools.product(GRAMMARS, PAGE_TOOLS, (False, True)):
    _protocol = get_protocol(_grammar, browse=_browse, dialect=_dialect, find=_find, cite=_cite)
    _name = parser_name(_protocol, _thinks)
    ToolParserManager.register_module(_name, module=type(_name, (_Parser,), {"protocol": _protocol, "thinks": _thinks}))
