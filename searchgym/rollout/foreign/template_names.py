"""Names in the text of a chat template: the arguments it takes, and whether it reads the clock.

The text is parsed only. Templates are programs of others, and they run nowhere but in `searchgym.rollout.foreign`'s
process for them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLOCK: Final = "strftime_now"
"""Function by which a template writes today's date."""
GIVEN: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt", "loop", "self", "caller"})
"""Variables that a rendering gives, besides the special tokens; they are no arguments of a user."""


class TemplateNames(NamedTuple):
    """Names that a template uses."""

    arguments: frozenset[str] = frozenset()
    """Variables that a user may set, such as ``enable_thinking``."""
    clock: bool = False
    """Whether the template writes today's date."""


def template_names(tokenizer: PreTrainedTokenizerBase) -> TemplateNames | None:
    """Returns the names in a tokenizer's chat template, none without a template; None if it cannot be parsed."""
    if not tokenizer.chat_template:
        return TemplateNames()
    try:
        names = _names_in(tokenizer.get_chat_template())
    except Exception:  # of texts that are no template, which are refused where templates are rendered
        return None
    return names._replace(arguments=names.arguments.difference(tokenizer.special_tokens_map))


@functools.lru_cache(maxsize=64)
def _names_in(template: str) -> TemplateNames:
    """Returns the names in the text of a template.

    jinja2's `find_undeclared_variables` computes constants on the way, such as a text of 4 GB. Here a variable that the
    template sets counts as an argument only where the template asks whether it is defined, or gives its default.
    """
    from jinja2 import nodes

    from searchgym.rollout.foreign.render_template import environment

    made = environment("2000-01-01")  # nothing is rendered
    tree = made.parse(template)
    loaded, bound, asked = set[str](), set[str](), set[str]()
    for name in tree.find_all(nodes.Name):
        (loaded if name.ctx == "load" else bound).add(name.name)
    for node in tree.find_all((nodes.Test, nodes.Filter)):
        inner: Any = node.node
        if node.name in ("defined", "undefined", "default", "d") and isinstance(inner, nodes.Name):
            asked.add(inner.name)
    bound.update(macro.name for macro in tree.find_all(nodes.Macro))
    free = (loaded - bound) | (asked & loaded)
    return TemplateNames(frozenset(free - GIVEN - made.globals.keys() - {CLOCK}), CLOCK in loaded)
