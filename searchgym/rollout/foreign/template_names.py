"""Names in the text of a chat template: its arguments, and whether it uses the current date.

The text is only parsed. Templates are third-party programs and run only in the separate process of
`searchgym.rollout.foreign`.
"""

from __future__ import annotations

import functools
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CLOCK: Final = "strftime_now"
"""Function with which a template writes today's date."""
GIVEN: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt", "loop", "self", "caller"})
"""Variables set when rendering, in addition to special tokens; users cannot set them."""


class TemplateNames(NamedTuple):
    """Names that a template uses."""

    arguments: frozenset[str] = frozenset()
    """Variables that a user may set, such as ``enable_thinking``."""
    clock: bool = False
    """True if the template writes today's date."""


def template_names(tokenizer: PreTrainedTokenizerBase) -> TemplateNames | None:
    """Returns the names in a tokenizer's chat template (empty without a template); None if it cannot be parsed."""
    if not tokenizer.chat_template:
        return TemplateNames()
    try:
        return _names_in(tokenizer.get_chat_template())
    except Exception:  # invalid templates are refused when they are rendered
        return None


@functools.lru_cache(maxsize=64)
def _names_in(template: str) -> TemplateNames:
    """Returns the names in the text of a template.

    jinja2's `find_undeclared_variables` evaluates constants, which could be a text of 4 GB. Here a variable that the
    template sets counts as an argument only if the template tests whether it is defined, or sets its default.
    """
    from jinja2 import nodes

    from searchgym.rollout.foreign.render_template import environment

    sandbox = environment(datetime.min)
    tree = sandbox.parse(template)
    loaded, bound, tested = set[str](), set[str](), set[str]()
    for name in tree.find_all(nodes.Name):
        (loaded if name.ctx == "load" else bound).add(name.name)
    for node in tree.find_all((nodes.Test, nodes.Filter)):
        inner: Any = node.node
        if node.name in ("defined", "undefined", "default", "d") and isinstance(inner, nodes.Name):
            tested.add(inner.name)
    bound.update(macro.name for macro in tree.find_all(nodes.Macro))
    free = {name for name in (loaded - bound) | (tested & loaded) if not name.endswith("_token")}  # as bos_token
    return TemplateNames(frozenset(free - GIVEN - sandbox.globals.keys() - {CLOCK}), CLOCK in loaded)
