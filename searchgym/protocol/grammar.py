"""Action grammars: parsing a model's text into an action, and formatting hits as the text of an observation.

Three grammars share one scanner:

* ``tags`` (Search-R1, arXiv 2503.09516): ``<search>query</search>`` and ``<answer>text</answer>``; hits come back in
  ``<information>``.
* ``tool_calls``: calls of the tool ``search`` in one of the dialects (`searchgym.protocol.dialect`), such as
  ``<tool_call>{"name": "search", "arguments": {"query": ...}}</tool_call>``, and ``<answer>text</answer>``.
* ``propose`` (SSP, arXiv 2510.18821): as ``tags``, but ``<question>text</question>`` ends the episode.

If pages can be opened (`Protocol.browse`), there are two more actions: ``<open>title or id</open>`` and
``<more></more>``, or calls of the tools ``open`` (argument ``page``) and ``more``. With `Protocol.find`,
``<find>text</find>`` finds a text in the open page (tool ``find``, argument ``text``); with `Protocol.cite`,
``<cite>title or id | quote</cite>`` cites a page (tool ``cite``, arguments ``page`` and ``quote``).

Additional retrievers (`Protocol.sources`) each have their own search tag, ``<web_search>query</web_search>`` for one
called ``web``, or are selected by the argument ``source`` of the tool ``search``.

Common rules: only the model's own text is parsed; thoughts contain no actions (`searchgym.protocol.thoughts`), and an
unclosed thought is refused unless an action precedes it; the first complete action counts and the text after it is
ignored (a stop string may end inside a token); an action that contains another action's tag is refused, such as a query
that contains an answer tag. A call is complete where its object ends: it may quote its own closing marker, and the
marker may be missing. Parsing is linear in the length of the text and never raises.

Deviations from Search-R1: actions inside thoughts are ignored, nested tags are refused (Search-R1 accepts a query that
contains an ``<answer>``), and an empty query is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from searchgym.errors import UsageError
from searchgym.options.cards import ProtocolName, SeveralCalls
from searchgym.protocol.calls import ScannedCall, read_call, scan, spelled_in, write_call
from searchgym.protocol.dialect import AUTO, DEFAULT, Dialect, load_dialect
from searchgym.protocol.parts import Parts, Shown
from searchgym.protocol.thoughts import awaited, split_thoughts, thought_spans
from searchgym.records import Action, Answer, Cite, Find, Hit, Invalid, More, Open, Search
from searchgym.text import cut_words

MAX_ACTION_CHARS = 2**20
"""Maximum length in characters of a text that is parsed as an action; longer texts are invalid."""

MAX_RESULT_CHARS = 2**22
"""Maximum characters of retrieved text per turn; needed because the word budget does not bound the length of a word."""

CONFIDENCE: Final = re.compile(r"\n\s*confidence:\s*(\d{1,3}(?:\.\d+)?)\s*%\s*\Z", re.IGNORECASE)
"""Matches a last line such as ``Confidence: 85%``, the form in which BrowseComp's prompt asks for it."""

LONGEST_MARKER = 48
"""Upper bound on the length of thought and tool-call markers, in characters."""

NOTICE = "\n\nThat action was not understood: "
"""Beginning of the reply to an action that could not be parsed."""


class First(NamedTuple):
    """First action of a text: a complete one, or one that the text ends within."""

    start: int
    tag: str
    """Name of the action's tag; empty for a tool call."""
    body: str
    """Text between the tags, or the text of the call."""
    call: ScannedCall | None
    """The tool call; None for an action in tags."""
    sure: bool
    """Whether no continuation of the text can make another action the first."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One action grammar: parses and writes actions, and formats observations."""

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
    """Names of additional retrievers, each with its own search tag, ``<NAME_search>``."""
    dialect: Dialect | None = None
    """Dialect of tool calls; None for grammars of tags."""
    several: SeveralCalls = "first"
    """Treatment of several tool calls in one response: ``first`` uses the first, ``all`` joins them to one search with
    all queries, ``refuse`` refuses them."""
    find: bool = False
    """Whether texts can be found in the open page."""
    cite: bool = False
    """Whether pages can be cited."""

    def parse(self, text: str) -> Action:
        """Parses the first complete action of a model's text; returns `Invalid` for any other text and never raises."""
        if len(text) > MAX_ACTION_CHARS:
            return Invalid(f"the action has {len(text)} characters, at most {MAX_ACTION_CHARS} are read")
        acting = split_thoughts(text)[1]
        first, reason = self._first_action(acting)
        if first is None:
            if closing := awaited(text):
                return Invalid(Shown.of((f"the thought never closes: write {closing} before you act", True)))
            return Invalid(self._foreign(acting) or reason or "no complete action was found")
        if first.call is not None:
            return self._read_calls(acting, first.call)
        tag, body = first.tag, first.body
        marks = [mark for t in self._tags for mark in (f"<{t}>", f"</{t}>")]
        if any(mark in body for mark in (*marks, *(self.dialect.marks if self.dialect else ()))):
            return Invalid(Shown.of((f"<{tag}> holds another tag", True)))
        text = body.strip()
        if tag == self.answer_tag:
            return read_answer(text)
        if tag == "more":
            return Invalid(Shown.of(("<more> holds text", True))) if text else More()
        if tag == "open":
            return Open(text) if text else Invalid("the title is empty")
        if tag == "find":
            return Find(text) if text else Invalid("the text to find is empty")
        if tag == "cite":
            target, _, quote = map(str.strip, text.partition("|"))
            return Cite(target, quote) if target and quote else Invalid("a citation is: title or id | quote")
        source = "" if tag == "search" else tag.removesuffix("_search")
        return Search((text,), source) if text else Invalid("the query is empty")

    @property
    def _tags(self) -> tuple[str, ...]:
        """Names of the tags of actions."""
        if self.dialect is not None:
            return (self.answer_tag,)
        sources = (f"{source}_search" for source in self.sources)
        return ("search", self.answer_tag, *self.page_tools, *sources)

    @property
    def page_tools(self) -> tuple[str, ...]:
        """Names of the actions on pages other than searching."""
        return (*("open", "more") * self.browse, *("find",) * self.find, *("cite",) * self.cite)

    def before_action(self, text: str) -> str:
        """Returns a model's text up to its first complete action, thoughts included; the whole text if it has none."""
        first, _ = self._first_action(split_thoughts(text)[1])
        if first is None:
            return text
        at = first.start
        for start, end in thought_spans(text):
            at += end - start if start <= at else 0
        return text[:at]

    def _first_action(self, text: str) -> tuple[First | None, str]:
        """Returns the first action of a text, if any, and the reason why an earlier potential tool call is not one."""
        best, unclosed, reason = None, len(text), ""
        for tag in self._tags:
            start = text.find(f"<{tag}>")
            end = text.find(f"</{tag}>", start) if start >= 0 else -1
            if end >= 0 and (best is None or start < best.start):
                best = First(start, tag, text[start + len(tag) + 2 : end], None, True)
            elif start >= 0 and end < 0:
                unclosed = min(unclosed, start)
        for scanned in scan(text, self.dialect) if self.dialect is not None else ():
            if best is not None and scanned.start > best.start:
                break
            if scanned.state != "loose":
                # # An unreadable call is final only if it is not a marker that the text cuts off.
                settled = text.endswith(self.stop_strings) or len(text) - scanned.end >= LONGEST_MARKER
                sure = scanned.state == "whole" or (scanned.state == "faulty" and settled)
                best = First(scanned.start, "", text[scanned.start : scanned.end], scanned, sure)
                break
            reason = reason or scanned.fault
            if self.dialect is not None and self.dialect.closing:
                unclosed = min(unclosed, scanned.start)
        return best and best._replace(sure=best.sure and unclosed >= best.start), reason

    def _read_calls(self, text: str, first: ScannedCall) -> Action:
        """Returns the action of a text's tool calls, as `several` prescribes; `first` is the first of them."""
        if self.several == "first":
            return self._read_call(text, first, first.calls[:1])
        actions, rest, at = list[Action](), "", 0
        for scanned in scan(text, self.dialect, None) if self.dialect is not None else ():
            if scanned.state != "loose":
                calls = scanned.calls if not scanned.fault else ()
                actions += [self._read_call(text, scanned, (call,)) for call in calls or (None,)]
                rest, at = rest + text[at : scanned.start], scanned.end
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

    def _read_call(self, text: str, scanned: ScannedCall, calls: Sequence[Any]) -> Action:
        """Returns the action of a single call, or `Invalid` with the reason."""
        body = text[scanned.start : scanned.end]
        if scanned.state != "whole" or calls == (None,):
            return Invalid(self._foreign(body) or scanned.fault)
        if f"<{self.answer_tag}>" in body or f"</{self.answer_tag}>" in body:
            return Invalid("the tool call holds another tag")
        key = self.dialect.arguments if self.dialect is not None else "arguments"
        return read_call(calls[0], key, self.page_tools, self.sources)

    def _foreign(self, text: str) -> str:
        """Returns a reason if a text contains a tool call in another dialect; otherwise an empty text."""
        name = spelled_in(text, self.dialect)
        form = self.write(Search(("your query",)))
        return Shown.of((f"tool calls in the dialect {name} are not read here: write {form}", True)) if name else ""

    def ended(self, text: str) -> bool:
        """Returns whether a response that ends with a stop string is finished.

        It is finished if its first action is complete and no continuation can change that action. It is not finished if
        the stop string lies in a thought, in a string of a tool call or after an unclosed tag, or closes nothing.
        Unless `several` is ``first``, a tool call does not finish a response: only an answer or the model's end of turn
        does.

        Args:
            text: The response so far, including the opening marker of a thought that its prompt left open.
        """
        if awaited(text):
            return False
        first, _ = self._first_action(split_thoughts(text)[1])
        return first is not None and first.sure and (first.call is None or self.several == "first")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end a model's response: the closing tags of actions and the closing marker of tool calls."""
        calls = self.dialect.stops if self.dialect is not None and self.several == "first" else ()
        return (*calls, *(f"</{tag}>" for tag in self._tags))

    def write(self, action: Search | Answer | Open | More | Find | Cite) -> str:
        """Returns the canonical text of an action; `parse` reverses it unless the action's texts contain tags."""
        if isinstance(action, Answer):
            stated = "" if action.confidence is None else f"\nConfidence: {100 * action.confidence:g}%"
            return f"<{self.answer_tag}>{action.text}{stated}</{self.answer_tag}>"
        if self.dialect is None:
            if isinstance(action, Open):
                return f"<open>{action.target}</open>"
            if isinstance(action, More):
                return "<more></more>"
            if isinstance(action, Find):
                return f"<find>{action.text}</find>"
            if isinstance(action, Cite):
                return f"<cite>{action.target} | {action.quote}</cite>"
            tag = f"{action.source}_search" if action.source else "search"
            return f"<{tag}>{' '.join(action.queries)}</{tag}>"
        name, arguments = "more", dict[str, object]()
        if isinstance(action, Open):
            name, arguments["page"] = "open", action.target
        elif isinstance(action, Find):
            name, arguments["text"] = "find", action.text
        elif isinstance(action, Cite):
            name, arguments["page"], arguments["quote"] = "cite", action.target, action.quote
        elif isinstance(action, Search):
            name, arguments["query"] = "search", action.queries[0] if len(action.queries) == 1 else list(action.queries)
            arguments |= {"source": action.source} if action.source else {}
        return write_call(self.dialect, name, arguments)

    @property
    def spelling(self) -> dict[str, str]:
        """Non-default settings of tool calls, for the record of a run: ``dialect`` and ``several_calls``."""
        if self.dialect is None or (self.dialect.name, self.several) == (DEFAULT, "first"):
            return {}
        return {"dialect": self.dialect.name, "several_calls": self.several}

    def history(self, text: str) -> str:
        """Returns a model's text as kept in the transcript: without its thoughts unless `keep_thoughts` is set."""
        return text if self.keep_thoughts else split_thoughts(text)[1]

    def instructions(self) -> str:
        """Returns a plain description of the grammar, for people and for prompts."""
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
        if self.find:
            pages += f"Find a text in the page opened last with {self.write(Find('some words'))}. "
        if self.cite:
            quoted = self.write(Cite("its title", "a sentence of it"))
            pages += f"Cite each page that you rely on, after you opened it, with {quoted}. "
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
            name: Function that returns the label of a hit. Default: ``Title: ...``.

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
        """Returns retrieved text, cut to `MAX_RESULT_CHARS`, between its markers, which alone count as own text."""
        before, after = self.result_marks
        return Shown.of((f"\n\n{before}", True), (text[:MAX_RESULT_CHARS], False), (f"\n{after}\n\n", True))

    def parts(self, text: str) -> Parts:
        """Splits an observation into parts; only the texts of `result` and `notice` carry parts.

        Any other text, such as pages that an agent formats itself, is one part that does not count as own text.
        """
        return text.parts if isinstance(text, Shown) else [(text, False)]

    def notice(self, reason: str) -> str:
        """Formats the reply to an action that could not be parsed; a plain-text reason is not own text.

        Reasons may quote pages or models. Reasons that this grammar gives carry their own parts.
        """
        return Shown.of((NOTICE, True), *self.parts(reason), (f". {self.instructions()}\n\n", True))


def read_answer(text: str) -> Answer:
    """Returns an answer without its last line if that states a confidence of 0 to 100 %; such a line is no answer."""
    stated = CONFIDENCE.search(text)
    if stated is None or float(stated[1]) > 100:
        return Answer(text)
    return Answer(text[: stated.start()].strip(), confidence=float(stated[1]) / 100)


def get_protocol(
    name: ProtocolName,
    keep_thoughts: bool = True,
    browse: bool = False,
    sources: Sequence[str] = (),
    dialect: str = DEFAULT,
    several: SeveralCalls = "first",
    find: bool = False,
    cite: bool = False,
) -> Protocol:
    """Returns the action grammar with a given name and settings, as written in cards.

    Args:
        name: Name of the grammar.
        keep_thoughts: Whether the transcript keeps thoughts; see `Protocol`.
        browse: Whether pages can be opened.
        sources: Names of additional retrievers.
        dialect: Dialect of tool calls: a name, or the path of a YAML file.
        several: Treatment of several tool calls in one response; see `Protocol.several`.
        find: Whether texts can be found in the open page; needs `browse`.
        cite: Whether pages can be cited; needs `browse`.

    Raises:
        UnknownNameError: There is no such dialect; the most similar name is suggested.
        CardError: The dialect's file cannot be read.
        UsageError: A setting of tool calls is used with a grammar without them, or the dialect is ``auto``, which must
            be resolved before; or pages can be cited but not opened.
    """
    if (find or cite) and not browse:
        raise UsageError(f"{'find' if find else 'cite'} needs pages that can be opened: set browse as well")
    if name != "tool_calls":
        if (dialect, several) != (DEFAULT, "first"):
            option = f"dialect {dialect!r}" if dialect != DEFAULT else f"several_calls {several!r}"
            raise UsageError(
                f"protocol {name!r} has no tool calls: leave out {option}, or choose protocol 'tool_calls'"
            )
        marks = ("<information>", "</information>")
        answer = "question" if name == "propose" else "answer"
        return Protocol(name, marks, keep_thoughts, answer, browse, tuple(sources), find=find, cite=cite)
    if dialect == AUTO:
        raise UsageError(f"dialect {AUTO!r} takes a model's chat template, and none is known here: name the dialect")
    spelled = load_dialect(dialect)
    return Protocol(name, spelled.result, keep_thoughts, "answer", browse, tuple(sources), spelled, several, find, cite)
