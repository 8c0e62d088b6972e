"""Program that renders a chat template in a process of its own, within limits of time and memory.

Reads one JSON object from standard input: the ``template``, ``conversations`` (lists of messages), ``variables`` for
the template, the day ``now`` that its clock shows, and the limits ``seconds`` of processor time, ``memory`` in bytes
and ``characters`` of each text. Writes ``{"texts": [...]}``, or ``{"messages": n, "error": "..."}`` for the
conversation of n messages that failed. A template may use what transformers offers it: the sandbox, loop controls,
``generation`` blocks, ``tojson``, ``raise_exception`` and ``strftime_now``.
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
    """The block ``{% generation %}``, in which templates mark what a model writes: here it is its content."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Returns the statements of a block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment(now: str) -> ImmutableSandboxedEnvironment:
    """Returns the environment in which templates are compiled, with a clock that stands at the start of a day."""

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = datetime.fromisoformat(now).strftime
    return made


def rendered(asked: dict[str, Any]) -> dict[str, Any]:
    """Returns the texts of a request, or the error instead."""
    texts: list[str] = []
    for messages in asked["conversations"]:
        try:
            given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
            text = environment(asked["now"]).from_string(asked["template"]).render(given | asked["variables"])
            if (length := len(text)) > asked["characters"]:
                raise TemplateError(f"they become {length:,} characters")
            texts.append(text)
        except MemoryError:
            return {"messages": len(messages), "error": f"it takes more than {asked['memory'] >> 20} MiB"}
        except Exception as error:  # templates are programs: they raise what they like
            return {"messages": len(messages), "error": str(error)[:500] or type(error).__name__}
    return {"texts": texts}


def main() -> None:
    """Answers the request on standard input."""
    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"]))
    if sys.platform == "linux":  # other systems may not know it
        resource.setrlimit(resource.RLIMIT_AS, (asked["memory"], asked["memory"]))
    json.dump(rendered(asked), sys.stdout)


if __name__ == "__main__":
    main()
