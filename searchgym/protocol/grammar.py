"""Action grammars: how a model's text is parsed into an action, and how hits become the text of an observation.

Three grammars share one scanner:

* ``tags`` (Search-R1, arXiv 2503.09516): ``<search>query</search>`` and ``<answer>text</answer>``; hits come back in
  ``<information>``.
* ``tool_calls``: calls of the tool ``search`` in one of the dialects (`searchgym.protocol.dialect`), such as
  ``<tool_call>{"name": "search", "arguments": {"query": ...}}</tool_call>``, and ``<answer>text</answer>``.
* ``propose`` (SSP, arXiv 2510.18821): as ``tags``, but ``<question>text</question>`` ends the episode.

Where pages can be opened (`Protocol.browse`), there are two more actions: ``<open>title or id</open>`` and
``<more></more>``, or calls of the tools ``open`` (argument ``page``) and ``more``. Where there are further retrievers
(`Protocol.sources`), each has a search tag of its own, ``<web_search>query</web_search>`` for one called web, or is
named by the argument ``source`` of the tool ``search``.

Rules, the same for all: only the model's own text is parsed; a thought never acts (`searchgym.protocol.thoughts`), and
one that never closes is refused if no action stands before it; the first complete action acts and what follows it is
ignored (a stop string may fall inside a token); an action that holds another action's tag is refused, such as a query
that holds an answer's. A call is complete where its object ends: it may quote its own closing marker, and may lack it.
Parsing is linear in the length of the text and never raises.

Deviation from Search-R1: actions inside thoughts do not act, nested tags are refused (there a query could hold
an ``<answer>``), and an empty query is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from searchgym.errors import UsageError
from searchgym.options.cards import ProtocolName, SeveralCalls
from searchgym.protocol.calls import Found, read_call, scan, spelled_in, write_call
from searchgym.protocol.dialect import AUTO, DEFAULT, Dialect, load_dialect
from searchgym.protocol.parts import Parts, Shown
from searchgym.protocol.thoughts import awaited, split_thoughts, thought_spans
from searchgym.records import Action, Answer, Hit, Invalid, More, Open, Search
from searchgym.text import cut_words

MAX_ACTION_CHARS = 2**20
"""Maximum length in characters of a text that is parsed as an action; longer texts are invalid."""

MAX_RESULT_CHARS = 2**22
"""Maximum characters of retrieved text per turn: the budget counts words, and one word may be as long as a page."""

LONGEST_MARKER = 48
"""Characters that no marker of a thought or a tool call is longer than."""

NOTICE = "\n\nThat action was not understood: "
"""Beginning of the reply to an action that could not be parsed."""


class First(NamedTuple):
    """First action of a text that is complete, or that the text ends within."""

    start: int
    tag: str
    """Name of its tag; empty for a tool call."""
    body: str
    """Text between its tags, or of the call."""
    found: Found | None
    """The tool call."""
    sure: bool
    """Whether no continuation of the text can make another action the first."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One action grammar: the tags of actions and results, and how texts are parsed and written."""

    name: ProtocolName
    result_marks: tuple[str, str]
    """Markers around retrieved text."""
    keep_thoughts: bool = True
    """Whether the transcript keeps the model's ``<think>`` blocks (see `history`)."""
    answer_tag: str = "answer"
    """Name of the tag around the action that ends an episode."""
    browse: bool = False
    """Whether pages can be opened."""
    sources: tuple[str, ...] = ()
    """Names of further retrievers, each searched by a tag of its own, ``<NAME_search>``."""
    dialect: Dialect | None = None
    """How tool calls are spelled; None for grammars of tags."""
    several: SeveralCalls = "first"
    """What several tool calls in one response are: the first acts, all are the queries of one search, or a refusal."""

    def parse(self, text: str) -> Action:
        """Parses the first complete action of a model's text; any other text gives `Invalid`, never an exception."""
        if len(text) > MAX_ACTION_CHARS:
            return Invalid(f"the action has {len(text)} characters, at most {MAX_ACTION_CHARS} are read")
        acting = split_thoughts(text)[1]
        first, reason = self._first_action(acting)
        if first is None:
            if closing := awaited(text):
                return Invalid(Shown.of((f"the thought never closes: write {closing} before you act", True)))
            return Invalid(self._foreign(acting) or reason or "no complete action was found")
        if first.found is not None:
            return self._read_calls(acting, first.found)
        tag, body = first.tag, first.body
        marks = [mark for t in self._tags for mark in (f"<{t}>", f"</{t}>")]
        if any(mark in body for mark in (*marks, *(self.dialect.marks if self.dialect else ()))):
            return Invalid(Shown.of((f"<{tag}> holds another tag", True)))
        text = body.strip()
        if tag == self.answer_tag:
            return Answer(text)
        if tag == "more":
            return Invalid(Shown.of(("<more> holds text", True))) if text else More()
        if tag == "open":
            return Open(text) if text else Invalid("the title is empty")
        source = "" if tag == "search" else tag.removesuffix("_search")
        return Search((text,), source) if text else Invalid("the query is empty")

    @property
    def _tags(self) -> tuple[str, ...]:
        """Names of the tags of actions."""
        if self.dialect is not None:
            return (self.answer_tag,)
        pages = ("open", "more") if self.browse else ()
        return ("search", self.answer_tag, *pages, *(f"{source}_search" for source in self.sources))

    def before_action(self, text: str) -> str:
        """Returns what stands before the first complete action of a model's text, thoughts included; all if none."""
        first, _ = self._first_action(split_thoughts(text)[1])
        if first is None:
            return text
        at = first.start
        for start, end in thought_spans(text):
            at += end - start if start <= at else 0
        return text[:at]

    def _first_action(self, text: str) -> tuple[First | None, str]:
        """Returns the first action of a text, and why a tool call before it, or in its place, is none."""
        best, unclosed, reason = None, len(text), ""
        for tag in self._tags:
            start = text.find(f"<{tag}>")
            end = text.find(f"</{tag}>", start) if start >= 0 else -1
            if end >= 0 and (best is None or start < best.start):
                best = First(start, tag, text[start + len(tag) + 2 : end], None, True)
            elif start >= 0 and end < 0:
                unclosed = min(unclosed, start)
        for found in scan(text, self.dialect) if self.dialect is not None else ():
            if best is not None and found.start > best.start:
                break
            if found.state != "loose":
                # What cannot be read is no marker of which the text holds only the beginning.
                settled = text.endswith(self.stop_strings) or len(text) - found.end >= LONGEST_MARKER
                sure = found.state == "whole" or (found.state == "faulty" and settled)
                best = First(found.start, "", text[found.start : found.end], found, sure)
                break
            reason = reason or found.fault
            if self.dialect is not None and self.dialect.closing:
                unclosed = min(unclosed, found.start)
        return best and best._replace(sure=best.sure and unclosed >= best.start), reason

    def _read_calls(self, text: str, first: Found) -> Action:
        """Returns the action of the tool calls of a text, of which the first is given."""
        if self.several == "first":
            return self._read_call(text, first, first.calls[:1])
        actions, rest, at = list[Action](), "", 0
        for found in scan(text, self.dialect, None) if self.dialect is not None else ():
            if found.state != "loose":
                calls = found.calls if not found.fault else ()
                actions += [self._read_call(text, found, (call,)) for call in calls or (None,)]
                rest, at = rest + text[at : found.start], found.end
        rest += text[at:]
        invalid = next((action for action in actions if isinstance(action, Invalid)), None)
        if invalid is not None or (len(actions) == 1 and f"</{self.answer_tag}>" not in rest):
            return invalid or actions[0]
        if self.several == "refuse":
            return Invalid(f"the response holds {len(actions)} tool calls or an answer besides: write one action")
        searches = [action for action in actions if isinstance(action, Search)]
        if len(searches) < len(actions) or f"</{self.answer_tag}>" in rest:
            return Invalid("only searches may stand together in one response: write one action")
        if len({action.source for action in searches}) > 1:
            return Invalid("searches that stand together have one source: write one action for each source")
        return Search(tuple(query for action in searches for query in action.queries), searches[0].source)

    def _read_call(self, text: str, found: Found, calls: Sequence[Any]) -> Action:
        """Returns the action of the one call that is given, or why what was found is none."""
        body = text[found.start : found.end]
        if found.state != "whole" or calls == (None,):
            return Invalid(self._foreign(body) or found.fault)
        if f"<{self.answer_tag}>" in body or f"</{self.answer_tag}>" in body:
            return Invalid("the tool call holds another tag")
        key = self.dialect.arguments if self.dialect is not None else "arguments"
        return read_call(calls[0], key, self.browse, self.sources)

    def _foreign(self, text: str) -> str:
        """Returns that a text holds a tool call in another dialect, as a reason; empty if it does not."""
        name = spelled_in(text, self.dialect)
        form = self.write(Search(("your query",)))
        return Shown.of((f"tool calls in the dialect {name} are not read here: write {form}", True)) if name else ""

    def ended(self, text: str) -> bool:
        """Returns whether a response that ends with a stop string is over.

        It is once its first action is complete and nothing that follows can change it. So it is not where the string
        stands in a thought, in a string of a tool call or after a tag that is still open, or closes nothing. Where
        several calls act or are refused, only an answer ends it; otherwise the model ends its turn.

        Args:
            text: The response so far, from the opening marker of a thought that its prompt left open.
        """
        if awaited(text):
            return False
        first, _ = self._first_action(split_thoughts(text)[1])
        return first is not None and first.sure and (first.found is None or self.several == "first")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end a model's response: the closing tags of actions, and the closing marker of calls if any."""
        calls = self.dialect.stops if self.dialect is not None and self.several == "first" else ()
        return (*calls, *(f"</{tag}>" for tag in self._tags))

    def write(self, action: Search | Answer | Open | More) -> str:
        """Returns the canonical text of an action, which `parse` turns back into the action unless it contains tags."""
        if isinstance(action, Answer):
            return f"<{self.answer_tag}>{action.text}</{self.answer_tag}>"
        if self.dialect is None:
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
        return write_call(self.dialect, name, arguments)

    @property
    def spelling(self) -> dict[str, str]:
        """How tool calls are spelled, for the record of a run; empty where that is as it was before dialects."""
        if self.dialect is None or (self.dialect.name, self.several) == (DEFAULT, "first"):
            return {}
        return {"dialect": self.dialect.name, "several_calls": self.several}

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
            f"Search with {example}; results come back between {self.result_marks[0]} and {self.result_marks[1]}. "
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
        """Returns retrieved text between its markers, cut to `MAX_RESULT_CHARS`; only the markers are own text."""
        before, after = self.result_marks
        return Shown.of((f"\n\n{before}", True), (text[:MAX_RESULT_CHARS], False), (f"\n{after}\n\n", True))

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
    name: ProtocolName,
    keep_thoughts: bool = True,
    browse: bool = False,
    sources: Sequence[str] = (),
    dialect: str = DEFAULT,
    several: SeveralCalls = "first",
) -> Protocol:
    """Returns the action grammar of that name, as cards write it.

    Args:
        name: Name of the grammar.
        keep_thoughts: See `Protocol`, as for the following.
        browse: Whether pages can be opened.
        sources: Names of further retrievers.
        dialect: How tool calls are spelled: a name, or the path of a YAML file.
        several: What several tool calls in one response are.

    Raises:
        UnknownNameError: There is no such dialect; the nearest is suggested.
        CardError: The dialect's file cannot be read.
        UsageError: The grammar has no tool calls, or the dialect is ``auto`` still.
    """
    if name != "tool_calls":
        if (dialect, several) != (DEFAULT, "first"):
            given = f"dialect {dialect!r}" if dialect != DEFAULT else f"several_calls {several!r}"
            raise UsageError(f"protocol {name!r} has no tool calls: leave out {given}, or choose protocol 'tool_calls'")
        marks = ("<information>", "</information>")
        answer = "question" if name == "propose" else "answer"
        return Protocol(name, marks, keep_thoughts, answer, browse, tuple(sources))
    if dialect == AUTO:
        raise UsageError(f"dialect {AUTO!r} takes a model's chat template, and none is known here: name the dialect")
    spelled = load_dialect(dialect)
    return Protocol(name, spelled.result, keep_thoughts, "answer", browse, tuple(sources), spelled, several)
