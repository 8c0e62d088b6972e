"""Check of a model's template and tokenizer without its weights, by five scripted turns in each grammar."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from searchgym.errors import DataError, SearchGymError
from searchgym.protocol import THINK_OPEN, Protocol, awaited, detect, get_protocol
from searchgym.records import Answer, Search
from searchgym.rollout.foreign.template_names import TemplateNames, template_names
from searchgym.rollout.foreign.template_options import DATE, check_template, fitted, template_format
from searchgym.rollout.foreign.templates import render
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.sampler import Finish
from searchgym.rollout.tokens import TokenFormat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPTS: Final = ("Who founded Beta?", "Line one.\n\nLine two: café, naïve – 東京.")
"""Prompts whose ids are compared with those of `apply_chat_template`."""
TURNS: Final = 5
"""Number of scripted turns: searches, and a final answer."""
PAGE: Final = "Doc 1(Title: Beta) Beta was founded by Gamma in 1901."
"""Page returned by every search."""
State = Literal["ok", "note", "refused"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: str
    state: State
    found: str


@dataclass(frozen=True, slots=True)
class ModelReport:
    """Findings about a model before it is trained."""

    model: str
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> bool:
        """True if a check refuses the model."""
        return any(finding.state == "refused" for finding in self.findings)


def check_model(name: str, template: Mapping[str, Any] = {}) -> ModelReport:
    """Tests the chat template and the tokenizer of a model in each grammar that it may use.

    Args:
        name: Folder or name of a model; the files of its tokenizer are sufficient.
        template: Arguments for the chat template.

    Returns:
        The findings about template and tokenizer, then about each grammar.

    Raises:
        UsageError: See `check_template`.
    """
    try:
        tokenizer = load_tokenizer(name)
    except DataError as error:
        return ModelReport(name, (Finding("tokenizer", "refused", str(error)),))
    check_template([tokenizer], template)
    arguments = fitted(tokenizer, template)
    names = template_names(tokenizer) if tokenizer.chat_template else None
    findings = list(_of_template(tokenizer, names, arguments))
    dialect, why = detect(tokenizer.get_chat_template() if names else "")
    findings.append(Finding("dialect", "ok", f"{dialect}: {why}"))
    for number, protocol in enumerate((get_protocol("tags"), get_protocol("tool_calls", dialect=dialect))):
        try:
            form = template_format(tokenizer, protocol, arguments)
            if not number:
                findings += _of_tokenizer(tokenizer, form)
            findings += _of_grammar(tokenizer, form, arguments)
        except SearchGymError as error:
            refusal = Finding("refusal", "refused", str(error))
            if refusal not in findings:
                findings.append(refusal)
    return ModelReport(name, tuple(findings))


def _of_template(
    tokenizer: PreTrainedTokenizerBase, names: TemplateNames | None, arguments: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yields findings from the text of a template."""
    if not tokenizer.chat_template:
        yield Finding("template", "ok", "none: a base model, whose prompts are plain text")
        return
    yield Finding("template", "ok", "chat")
    if names is None:
        return
    takes = [f"{name}={arguments[name]}" if name in arguments else name for name in sorted(names.arguments)]
    yield Finding("arguments", "ok", ", ".join(takes) or "none")
    day = (
        f"shows {arguments[DATE]}, the day on which a run begins, which its record contains"
        if names.clock
        else "shows none"
    )
    yield Finding("date", "note" if names.clock else "ok", day)


def _of_tokenizer(tokenizer: PreTrainedTokenizerBase, form: TokenFormat) -> Iterator[Finding]:
    """Yields findings about the beginning and end of prompts, and about the ends of responses."""
    prompt = form.prompt_ids(PROMPTS[0]).tolist()
    opened = form.thought_after(None)
    yield Finding("thought", "note" if opened else "ok", f"the prompt opens {opened!r}" if opened else "not opened")
    ends = ", ".join(f"{i} {form.decode([i])}" for i in form.end_ids)
    yield Finding("end ids", "ok" if ends else "note", ends or "none: only stop strings and limits end a response")
    bos = tokenizer.bos_token_id
    count = prompt.count(bos)
    description = "none" if bos is None else f"{bos} {tokenizer.bos_token}, {count} in a prompt"
    yield Finding("beginning of text", "note" if count > 1 else "ok", description)


def _of_grammar(
    tokenizer: PreTrainedTokenizerBase, form: TokenFormat, arguments: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yields findings about a grammar's markers, prompts and turns."""
    name = form.protocol.name
    yield Finding(f"{name}: markers", "ok", _markers(tokenizer, form.protocol))
    if form.chat:
        pairs = [
            (form.prompt_ids(text).tolist(), _rendered(tokenizer, [{"role": "user", "content": text}], arguments))
            for text in PROMPTS
        ]
        yield _compared(f"{name}: prompt ids", form, pairs)
    yield from _of_turns(tokenizer, form, arguments)


def _markers(tokenizer: PreTrainedTokenizerBase, protocol: Protocol) -> str:
    """Describes the tokens of a grammar's markers."""
    single, several = list[str](), list[str]()
    for closing in protocol.stop_strings:
        for mark in dict.fromkeys((closing.replace("</", "<"), closing)):
            ids = _ids(tokenizer, mark)
            (single if len(ids) == 1 else several).append(mark if len(ids) == 1 else f"{mark} {len(ids)}")
    parts = [f"one token: {', '.join(single)}"] if single else []
    return "; ".join([*parts, *([f"several tokens: {', '.join(several)}"] if several else [])])


def _of_turns(tokenizer: PreTrainedTokenizerBase, form: TokenFormat, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields findings about scripted turns: whether each context begins with the previous one."""
    name, protocol = form.protocol.name, form.protocol
    ids, talk = form.prompt_ids(PROMPTS[0]).tolist(), [{"role": "user", "content": PROMPTS[0]}]
    opened = form.thought_after(None)
    ended = form.chat and name == "tool_calls"
    finish: Finish | None = None
    for turn in range(TURNS):
        action = Search((f"founder {turn} of Beta",)) if turn < TURNS - 1 else Answer("Gamma")
        output = f"{'' if opened else THINK_OPEN}so.{awaited(opened or THINK_OPEN)}\n\n{protocol.write(action)}"
        # Markers may be special tokens; if the tokenizer inserts blanks, the position of the text matters.
        response = form.reply_ids(output, finish).tolist() if form.blanks else _ids(tokenizer, output)
        response += list(form.end_ids[-1:]) if ended else []
        read = protocol.parse(opened + form.response_text(response))
        if read != action:
            why = f"{output!r} is read as {read}: the tokenizer does not reproduce the text"
            yield Finding(f"{name}: turn {turn + 1}", "refused", why)
            return
        if turn == TURNS - 1:
            break
        page = protocol.result(PAGE)
        finish = "eos" if ended else "stop"
        before, opened = [*ids, *response], form.thought_after(finish)
        ids = [*before, *form.observation_ids(protocol.parts(page), finish).tolist()]
        if not form.decode(ids).startswith(form.decode(before)):
            why = "the text of the context changes when pages follow it: use the tokenizer that belongs to the model"
            yield Finding(f"{name}: turn {turn + 1}", "refused", why)
            return
        talk += [{"role": "assistant", "content": output}, {"role": "user", "content": page.strip()}]
    yield Finding(f"{name}: turns", "ok", f"{TURNS} turns, each context begins with the previous one")
    if ended:
        history = _compared(f"{name}: history", form, [(ids, _rendered(tokenizer, talk, arguments))])
        if history.state == "refused":
            why = "the template rewrites earlier turns (without thoughts, for example); here they stay unchanged"
            history = replace(history, state="note", found=why)
        yield history


def _compared(check: str, form: TokenFormat, pairs: list[tuple[list[int], list[int]]]) -> Finding:
    """Compares pairs of our ids and the template's, and returns the finding."""
    ours, reference = next((pair for pair in pairs if pair[0] != pair[1]), ([], []))
    if ours == reference:
        return Finding(check, "ok", "equal to apply_chat_template's")
    index = next(n for n, (a, b) in enumerate(itertools.zip_longest(ours, reference)) if a != b)
    here, there = (form.decode(ids[index : index + 1]) for ids in (ours, reference))
    differs = f"token {index} is {here!r}, and {there!r} by apply_chat_template"
    if form.decode(ours) == form.decode(reference):
        return Finding(check, "note", f"the same text in other tokens, as no special token separates it: {differs}")
    return Finding(check, "refused", f"another text: {differs}; use the tokenizer that belongs to the model")


def _rendered(
    tokenizer: PreTrainedTokenizerBase, talk: list[dict[str, str]], arguments: Mapping[str, Any]
) -> list[int]:
    """Returns the ids that `apply_chat_template` gives for a conversation with the arguments and the date."""
    variables = {name: value for name, value in arguments.items() if name != DATE}
    return _ids(tokenizer, render(tokenizer, [talk], variables, date=arguments.get(DATE))[0])


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns the ids of a text that contains markers, as in `apply_chat_template`."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
