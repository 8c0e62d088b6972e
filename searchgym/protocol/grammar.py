"""Action grammars: how a model's text is parsed into an action, and how hits become the text of an observation.

Three grammars share one scanner:

* ``tags`` (Search-R1, arXiv 2503.09516): ``<search>query</search>`` and ``<answer>text</answer>``; hits come back in
  ``<information>``.
* ``tool_calls``: ``<tool_call>{"name": "search", "arguments": {"query": ...}}</tool_call>`` and
  ``<answer>text</answer>``; hits come back in ``<tool_response>``.
* ``propose`` (SSP, arXiv 2510.18821): as ``tags``, but ``<question>text</question>`` ends the episode.

Where pages can be opened (`Protocol.browse`), there are two more actions: ``<open>title or id</open>`` and
``<more></more>``, or calls of the tools ``open`` (argument ``page``) and ``more``. Where there are further retrievers
(`Protocol.sources`), each has a search tag of its own, ``<web_search>query</web_search>`` for one called web, or is
named by the argument ``source`` of the tool ``search``.

Rules, the same for all: only the model's own text is parsed; a thought never acts (`searchgym.protocol.thoughts`), and
one that never closes is refused if no action stands before it; the first complete action acts and what follows it is
ignored (a stop string may fall inside a token); an action that holds another action's tag is refused. Parsing is linear
in the length of the text and never raises.

Deviation from Search-R1: actions inside thoughts do not act, nested tags are refused (there a query could hold
an ``<answer>``), and an empty query is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from searchgym.options.cards import ProtocolName
from searchgym.protocol.parts import Parts, Shown
from searchgym.protocol.thoughts import awaited, split_thoughts, thought_spans
from searchgym.records import Action, Answer, Hit, Invalid, More, Open, Search
from searchgym.text import cut_words

MAX_ACTION_CHARS = 2**20
"""Maximum length in characters of a text that is parsed as an action; longer texts are invalid."""

MAX_RESULT_CHARS = 2**22
"""Maximum characters of retrieved text per turn: the budget counts words, and one word may be as long as a page."""

NOTICE = "\n\nThat action was not understood: "
"""Beginning of the reply to an action that could not be parsed."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One action grammar: the tags of actions and results, and how texts are parsed and written."""

    name: ProtocolName
    search_tag: str
    """Name of the tag around a search action."""
    result_tag: str
    """Name of the tag around retrieved text."""
    keep_thoughts: bool = True
    """Whether the transcript keeps the model's ``<think>`` blocks (see `history`)."""
    answer_tag: str = "answer"
    """Name of the tag around the action that ends an episode."""
    browse: bool = False
    """Whether pages can be opened."""
    sources: tuple[str, ...] = ()
    """Names of further retrievers, each searched by a tag of its own, ``<NAME_search>``."""

    def parse(self, text: str) -> Action:
        """Parses the first complete action of a model's text; any other text gives `Invalid`, never an exception."""
        if len(text) > MAX_ACTION_CHARS:
            return Invalid(f"the action has {len(text)} characters, at most {MAX_ACTION_CHARS} are read")
        first = self._first_action(split_thoughts(text)[1])
        if first is None:
            if closing := awaited(text):
                return Invalid(Shown.of((f"the thought never closes: write {closing} before you act", True)))
            return Invalid("no complete action was found")
        _, tag, body = first
        if any(f"<{t}>" in body or f"</{t}>" in body for t in self._tags):
            return Invalid(Shown.of((f"<{tag}> holds another tag", True)))
        if tag == "tool_call":
            return self._read_tool_call(body)
        text = body.strip()
        if tag == self.answer_tag:
            return Answer(text)
        if tag == "more":
            return Invalid(Shown.of(("<more> holds text", True))) if text else More()
        if tag == "open":
            return Open(text) if text else Invalid("the title is empty")
        source = "" if tag == self.search_tag else tag.removesuffix("_search")
        return Search((text,), source) if text else Invalid("the query is empty")

    @property
    def _tags(self) -> tuple[str, ...]:
        """Names of the tags of actions."""
        if self.name == "tool_calls":
            return (self.search_tag, self.answer_tag)
        pages = ("open", "more") if self.browse else ()
        return (self.search_tag, self.answer_tag, *pages, *(f"{source}_search" for source in self.sources))

    def before_action(self, text: str) -> str:
        """Returns what stands before the first complete action of a model's text, thoughts included; all if none."""
        first = self._first_action(split_thoughts(text)[1])
        if first is None:
            return text
        at = first[0]
        for start, end in thought_spans(text):
            at += end - start if start <= at else 0
        return text[:at]

    def _first_action(self, text: str) -> tuple[int, str, str] | None:
        """Returns (position, tag, body) of the first opening tag that has a closing tag after it."""
        best: tuple[int, str, str] | None = None
        for tag in self._tags:
            start = text.find(f"<{tag}>")
            end = text.find(f"</{tag}>", start) if start >= 0 else -1
            if end >= 0 and (best is None or start < best[0]):
                best = (start, tag, text[start + len(tag) + 2 : end])
        return best

    def _read_tool_call(self, body: str) -> Action:
        """Parses a tool call ``{"name": "search", "arguments": {"query": str or [str, ...]}}``, or of open or more.

        The argument ``source`` names one of the further retrievers.
        """
        try:
            call = json.loads(body)
        except (ValueError, RecursionError):
            return Invalid("the tool call is not JSON")
        if not isinstance(call, dict) or not isinstance(call.get("arguments"), dict):
            return Invalid('the tool call is not {"name": ..., "arguments": {...}}')
        name, arguments = call.get("name"), call["arguments"]
        if self.browse and name == "more":
            return More()
        if self.browse and name == "open":
            page = arguments.get("page")
            return Open(page.strip()) if isinstance(page, str) and page.strip() else Invalid("page is no title or id")
        if name != "search":
            return Invalid("the tools are search, open and more" if self.browse else "the only tool is search")
        query = arguments.get("query")
        queries = [query] if isinstance(query, str) else query
        if not isinstance(queries, list) or not queries or not all(isinstance(q, str) and q.strip() for q in queries):
            return Invalid("query is not a non-empty string or a list of them")
        source = arguments.get("source", "") if self.sources else ""
        if source not in ("", *self.sources):
            return Invalid(f"the sources are {', '.join(self.sources)}; leave source out for the first")
        return Search(tuple(q.strip() for q in queries), source)

    def ended(self, text: str) -> bool:
        """Returns whether a response that ends with a stop string is over: not if the string stands in a thought.

        Args:
            text: The response so far, from the opening marker of a thought that its prompt left open.
        """
        return not awaited(text)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end a model's response: the closing tags of the actions."""
        return tuple(f"</{tag}>" for tag in self._tags)

    def write(self, action: Search | Answer | Open | More) -> str:
        """Returns the canonical text of an action, which `parse` turns back into the action unless it contains tags."""
        if isinstance(action, Answer):
            return f"<{self.answer_tag}>{action.text}</{self.answer_tag}>"
        if self.name != "tool_calls":
            if isinstance(action, Open):
                return f"<open>{action.target}</open>"
            if isinstance(action, More):
                return "<more></more>"
            tag = f"{action.source}_search" if action.source else "search"
            return f"<{tag}>{' '.join(action.queries)}</{tag}>"
        name, arguments = "more", dict[str, object]()
        if isinstance(action, Open):
            name, arguments["page"] = "open", action.target
        elif isinstance(action, Search):
            name, arguments["query"] = "search", action.queries[0] if len(action.queries) == 1 else list(action.queries)
            arguments |= {"source": action.source} if action.source else {}
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"<tool_call>\n{call}\n</tool_call>"

    def history(self, text: str) -> str:
        """Returns a model's text as the transcript keeps it: with or without its ``<think>`` blocks."""
        return text if self.keep_thoughts else split_thoughts(text)[1]

    def instructions(self) -> str:
        """Returns a description of the grammar in plain words, for people and for prompts."""
        example = self.write(Search(("your query",)))
        further = "".join(
            f"Search the source {source} with {self.write(Search(('your query',), source))}. "
            for source in self.sources
        )
        final = "final answer" if self.answer_tag == "answer" else self.answer_tag
        pages = (
            f"Results show only the beginning of each page: open a page with {self.write(Open('its title'))}, and see "
            f"more of it with {self.write(More())}. "
        )
        return (
            f"Search with {example}; results come back between <{self.result_tag}> and </{self.result_tag}>. "
            f"{further}{pages if self.browse else ''}"
            f"Give the {final} with {self.write(Answer(f'your {self.answer_tag}'))}."
        )

    def observation(
        self, results: Sequence[Sequence[Hit]], max_words: int, name: Callable[[Hit], str] | None = None
    ) -> str:
        """Formats hits as the text of an observation, in Search-R1's form.

        Args:
            results: One sequence of hits per query.
            max_words: Maximum number of words of retrieved text; the rest is cut.
            name: Returns how a hit is named. Default: ``Title: ...``.

        Returns:
            ``Doc 1(Title: ...) text`` lines (Search-R1's form) inside the result tag.
        """
        lines = [
            f"Doc {number}({f'Title: {hit.passage.title}' if name is None else name(hit)}) {hit.passage.text}"
            for hits in results
            for number, hit in enumerate(hits, start=1)
        ]
        return self.result(cut_words("\n".join(lines) if lines else "No results.", max_words))

    def result(self, text: str) -> str:
        """Returns retrieved text inside the result tag, cut to `MAX_RESULT_CHARS`; only the tags are own text."""
        tag = self.result_tag
        return Shown.of((f"\n\n<{tag}>", True), (text[:MAX_RESULT_CHARS], False), (f"\n</{tag}>\n\n", True))

    def parts(self, text: str) -> Parts:
        """Returns the parts of what a workflow observes: those of `result` and `notice` know theirs.

        Any other text, such as pages in the format of an agent's own, is not own text, whatever it begins with.
        """
        return text.parts if isinstance(text, Shown) else [(text, False)]

    def notice(self, reason: str) -> str:
        """Formats the reply to an action that could not be parsed; the reason may quote others, so it is not own text.

        The tags in reasons that this grammar gives are.
        """
        return Shown.of((NOTICE, True), *self.parts(reason), (f". {self.instructions()}\n\n", True))


def get_protocol(
    name: ProtocolName, keep_thoughts: bool = True, browse: bool = False, sources: Sequence[str] = ()
) -> Protocol:
    """Returns the action grammar of that name, as cards write it."""
    search, result = ("tool_call", "tool_response") if name == "tool_calls" else ("search", "information")
    answer = "question" if name == "propose" else "answer"
    return Protocol(name, search, result, keep_thoughts, answer, browse, tuple(sources))
