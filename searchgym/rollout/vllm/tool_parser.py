"""Plugin of vLLM's server: calls of tools, and answers, in the texts of models trained in this package's grammars.

vLLM loads this module by its name (``--tool-parser-plugin``). Texts are parsed by the grammar's own rules (`Protocol`).

vLLM matches stop strings inside thoughts too, and a server cannot go on with a response. Where the chat template opens
a thought, responses therefore end by themselves and are cut behind their first action. Other models keep the stop
strings: one that writes ``<think>`` itself and names a whole action in its thought loses the rest of that response.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Final

from vllm.entrypoints.generate.base.protocol import ExtractedToolCallInformation, FunctionCall, ToolCall
from vllm.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager

from searchgym.options.cards import ProtocolName
from searchgym.protocol import DEFAULT, THINK_OPEN, Protocol, get_protocol, list_dialects
from searchgym.records import Answer, More, Open, Search
from searchgym.rollout.api.replies import ServerReply, settle
from searchgym.rollout.vllm.tool_calls import parser_name

GRAMMARS: Final[list[tuple[ProtocolName, str]]] = [
    ("tags", DEFAULT),
    *(("tool_calls", dialect) for dialect in list_dialects()),
]
"""Grammars that have parsers, with their dialects: with and without pages that can be opened, and thoughts that the
template opens."""


def called(protocol: Protocol, text: str, thinks: bool = False) -> tuple[str, str, dict[str, Any] | None]:
    """Reads a model's text.

    Args:
        protocol: Action grammar.
        text: The text; what follows its first action is ignored.
        thinks: Whether the chat template opens a thought, with which the text begins.

    Returns:
        (content, tool, arguments): what was said before the call, and the call; or the answer, or the whole text if it
        is neither, with an empty tool and None.
    """
    whole = settle(ServerReply(text, ended_by=""), protocol.stop_strings, protocol, thinks).text
    action = protocol.parse(whole)
    if isinstance(action, Answer):
        return action.text, "", None
    if isinstance(action, Search):
        queries = action.queries
        tool, given = "search", {"query": queries[0] if len(queries) == 1 else list(queries)}
    elif isinstance(action, Open):
        tool, given = "open", {"page": action.target}
    elif isinstance(action, More):
        tool, given = "more", {}
    else:
        return text, "", None
    before = protocol.before_action(whole)
    return before if text.startswith(before) else before.removeprefix(THINK_OPEN), tool, given


class _Parser(ToolParser):
    """Parser of one grammar; subclasses name it."""

    protocol: Protocol
    thinks: bool
    engine_based_streaming = True
    """Makes vLLM reply with the content that `extract_tool_calls` returns, the bare answer, where no tool is called."""

    def adjust_request(self, request: Any) -> Any:
        """Ends responses where the model's actions end, unless they begin in a thought; keeps tags that are tokens."""
        request = super().adjust_request(request)
        if request.tools and request.tool_choice != "none":
            given = [request.stop] if isinstance(request.stop, str) else list(request.stop or ())
            request.stop = given if self.thinks else [*given, *self.protocol.stop_strings]
            request.include_stop_str_in_output, request.skip_special_tokens = True, False
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """Returns the call in a response, or its answer."""
        content, tool, given = called(self.protocol, model_output, self.thinks)
        if given is None:
            return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=content)
        call = ToolCall(function=FunctionCall(name=tool, arguments=json.dumps(given, ensure_ascii=False)))
        return ExtractedToolCallInformation(tools_called=True, tool_calls=[call], content=content or None)


for (_grammar, _dialect), _browse, _thinks in itertools.product(GRAMMARS, (False, True), (False, True)):
    _protocol = get_protocol(_grammar, browse=_browse, dialect=_dialect)
    _name = parser_name(_protocol, _thinks)
    ToolParserManager.register_module(_name, module=type(_name, (_Parser,), {"protocol": _protocol, "thinks": _thinks}))
