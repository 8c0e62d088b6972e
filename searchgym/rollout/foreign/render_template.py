"""Program that renders a chat template in a separate process, with limits of time and memory.

Reads one JSON object from standard input: the ``template``, ``conversations`` (lists of messages), ``variables`` for
the template, the current time ``now`` (ISO text) for the template, and the limits ``seconds`` of processor time,
``memory`` in bytes and ``characters`` of each text. Writes ``{"texts": [...]}``, or ``{"messages": n, "error": "..."}``
for the conversation of n messages that failed. A template may use the features that transformers offers: the sandbox,
loop controls, ``generation`` blocks, ``tojson``, ``raise_exception`` and ``strftime_now``.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """The block ``{% generation %}``, with which templates mark a model's text; it is rendered as its content."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Returns the statements of a block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment(now: datetime) -> ImmutableSandboxedEnvironment:
    """Returns the jinja2 environment that compiles templates, with `now` as the current time."""

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    sandbox = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    sandbox.filters["tojson"] = to_json
    sandbox.globals["raise_exception"] = raise_exception
    sandbox.globals["strftime_now"] = now.strftime
    return sandbox


def rendered(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the rendered texts of a request, or an error."""
    texts, now = list[str](), datetime.fromisoformat(request["now"])
    for messages in request["conversations"]:
        try:
            variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
            text = environment(now).from_string(request["template"]).render(variables | request["variables"])
            if (length := len(text)) > request["characters"]:
                raise TemplateError(f"they become {length:,} characters")
            texts.append(text)
        except MemoryError:
            return {"messages": len(messages), "error": f"it takes more than {request['memory'] >> 20} MiB"}
        except Exception as error:  # templates are programs: they raise what they like
            return {"messages": len(messages), "error": str(error)[:500] or type(error).__name__}
    return {"texts": texts}


def main() -> None:
    """Reads a request from standard input and writes its reply to standard output."""
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"]))
    if sys.platform == "linux":  # other systems may not know it
        resource.setrlimit(resource.RLIMIT_AS, (request["memory"], request["memory"]))
    json.dump(rendered(request), sys.stdout)


if __name__ == "__main__":
    main()
