"""Conversion of episodes to samples of Inspect's log format: scores, a conversation, a transcript.

The parts of a sample (`inspect_ai.log.EvalSample`):

- The id is the question's id, in training with ``@step``; the epoch is the attempt plus 1.
- Every number is a separate score, so that it has a column: ``em``, ``f1`` and other scores of the environment,
  ``reward``, ``searches``, ``turns``, ``invalid``, ``tokens``. Numbers that are not finite are only in the metadata.
- Messages are the question, the outputs of the roles, and each search or opened page as a tool call with its result.
- Events are the same in the order of turns, with the prompt of each call; after each call, an info event contains its
  reward, by term, and its advantage. ``metadata["calls"]`` contains these of all calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from inspect_ai.event import InfoEvent, ModelEvent, SpanBeginEvent, SpanEndEvent, ToolEvent
from inspect_ai.log import EvalError, EvalSample, condense_sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
)
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall

from searchgym.eval.rows import CallRow, ToolRow, Turn, turns_of
from searchgym.eval.viewing.saved import Viewed
from searchgym.records import Episode

Decode = Callable[[str, Iterable[int]], str | None]
"""Function from a model key and token ids to text; it returns None if the key's tokenizer is missing."""
COUNTS: Final = ("reward", "searches", "turns", "invalid", "tokens")
"""Names of scores in addition to those of the environment."""
NO_TEXT: Final = "(the question's text was not found: --questions FILE gives it)"
UNNAMEABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that file names in the log cannot contain."""
THEN: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Time of every event: episodes record no times, and the same episode must give the same bytes."""


def sample_key(viewed: Viewed) -> tuple[str, int]:
    """Returns the (id, epoch) of an episode's sample."""
    episode = viewed.episode
    name = episode.question_id if viewed.step is None else f"{episode.question_id}@{viewed.step}"
    return UNNAMEABLE.sub("\N{REPLACEMENT CHARACTER}", name), episode.attempt + 1


def numbers_of(episode: Episode) -> dict[str, float]:
    """Returns the scores of an episode in the log, by name; they may be infinite or NaN."""
    counts = {
        "reward": episode.reward,
        "searches": len(episode.searches),
        "turns": episode.turns,
        "invalid": episode.invalid,
        "tokens": sum(call.end - call.start for call in episode.calls),
    }
    return {**episode.scores, **counts, **({"opens": len(episode.opens)} if episode.opens else {})}


def sample_of(viewed: Viewed, decode: Decode) -> EvalSample:
    """Converts an episode to a sample, in which repeated texts are stored once.

    Args:
        viewed: Episode with its question and calls.
        decode: Function that decodes the tokens of prompts.
    """
    episode, question = viewed.episode, viewed.question
    id, epoch = sample_key(viewed)
    answer = None if episode.answer is None else episode.answer.text
    numbers, turns = numbers_of(episode), list(turns_of(episode, viewed.calls))
    sample = EvalSample(
        id=id,
        epoch=epoch,
        input=f"{episode.question_id} {NO_TEXT}" if question is None else question.text,
        target="" if question is None else list(question.golds),
        messages=_messages(viewed, turns),
        output=ModelOutput.from_content(model=episode.agent, content=answer or ""),
        scores={name: Score(value=value, answer=answer) for name, value in numbers.items() if math.isfinite(value)},
        metadata=_metadata(viewed, numbers),
        events=list(_events(viewed, turns, decode)),
        uuid=episode.id,
        error=None if episode.error is None else EvalError(message=episode.error, traceback="", traceback_ansi=""),
    )
    return condense_sample(sample)


def _metadata(viewed: Viewed, numbers: dict[str, float]) -> dict[str, Any]:
    """Returns the metadata of an episode's sample, without missing values."""
    episode = viewed.episode
    values = {
        "episode": episode.id,
        "question_id": episode.question_id,
        "stop_reason": episode.stop_reason or "unfinished",
        "hops": viewed.hops,
        "type": viewed.kind,
        "step": viewed.step,
        "attempt": episode.attempt,
        "agent": episode.agent,
        "env": episode.env,
        "seed": episode.seed,
        "observation_words": episode.observation_words,
        "notes": _plain(episode.notes) or None,
        "not_finite": {name: str(value) for name, value in numbers.items() if not math.isfinite(value)} or None,
        "calls": [call_row(number, call) for number, call in enumerate(viewed.calls)] or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def call_row(number: int, call: CallRow) -> dict[str, Any]:
    """Returns a call without its text as plain data: role, reward by term, advantage and others."""
    row = {
        "call": number,
        "role": call.role,
        "reward": call.reward if call.parts else None,
        "advantage": call.advantage,
        "reward_by_term": call.parts or None,
        "legal": call.legal,
        "tokens": call.tokens,
        "turn": call.turn,
        "model": call.model_key,
    }
    return {name: _plain(value) for name, value in row.items() if value is not None}


def _plain(value: Any) -> Any:
    """Converts numbers that are not finite, which JSON cannot represent, to text."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# -- texts ---------------------------------------------------------------------------------------------------------


def arguments_of(tool: ToolRow) -> dict[str, Any]:
    """Returns the arguments of a tool call."""
    return {} if tool.function == "more" else {"query" if tool.function == "search" else "page": tool.query}


def result_of(tool: ToolRow) -> str:
    """Returns the result of a tool call as text; for a search, the rank, title, score and text of each hit."""
    if tool.hits is None:
        return tool.page or "(no page was shown)"
    hits = [
        f"[{rank}] {hit.passage.title or hit.passage.id} (score {hit.score:.4g})\n{hit.passage.text}"
        for rank, hit in enumerate(tool.hits, start=1)
    ]
    return "\n\n".join(hits) or "(no hits)"


def _messages(viewed: Viewed, turns: Sequence[Turn]) -> list[ChatMessage]:
    """Returns the messages of an episode as a conversation."""
    question = viewed.question
    messages: list[ChatMessage] = [
        ChatMessageUser(id="question", content=NO_TEXT if question is None else question.text)
    ]
    for turn, calls, tools in turns:
        tool_calls = [ToolCall(id=tool.id, function=tool.function, arguments=arguments_of(tool)) for tool in tools]
        for index, call in calls:
            messages.append(
                ChatMessageAssistant(
                    id=f"call-{index}",
                    content=call.text,
                    model=call.model_key,
                    tool_calls=tool_calls if tool_calls and index == calls[-1][0] else None,
                    metadata={"role": call.role, "call": index},
                )
            )
        if tool_calls and not calls:  # the agent uses no models
            messages.append(ChatMessageAssistant(id=f"turn-{turn}", content="", tool_calls=tool_calls))
        for tool in tools:
            ids: dict[str, Any] = {"tool_call_id": tool.id, "function": tool.function}
            messages.append(ChatMessageTool(id=f"shown-{tool.id}", content=result_of(tool), **ids))
    answer = viewed.episode.answer
    if answer is not None and not viewed.calls:
        messages.append(ChatMessageAssistant(id="answer", content=answer.text))
    return messages


def _events(viewed: Viewed, turns: Sequence[Turn], decode: Decode) -> Iterator[Any]:
    """Yields the events of an episode: for each turn, a span with its calls and searches."""
    for turn, calls, tools in turns:
        span = f"turn-{turn}"
        common: dict[str, Any] = {"span_id": span, "timestamp": THEN, "working_start": float(turn)}
        yield SpanBeginEvent(id=span, name=f"turn {turn}", uuid=f"{span}-begin", **common)
        for index, call in calls:
            yield ModelEvent(
                uuid=f"model-{index}",
                model=call.model_key,
                role=call.role,
                input=_prompt(viewed.episode, index, decode),
                tools=[],
                tool_choice="none",
                config=GenerateConfig(),
                output=ModelOutput.from_content(model=call.model_key, content=call.text),
                metadata={"call": index},
                **common,
            )
            yield InfoEvent(
                uuid=f"info-{index}", source=f"{call.role}: reward and advantage", data=call_row(index, call), **common
            )
        for tool in tools:
            metadata: dict[str, Any] = {"turn": tool.turn}
            if tool.hits is not None:
                metadata["hits"] = [
                    {"id": hit.passage.id, "title": hit.passage.title, "score": _plain(hit.score)} for hit in tool.hits
                ]
            yield ToolEvent(
                uuid=f"tool-{tool.id}",
                id=tool.id,
                function=tool.function,
                arguments=arguments_of(tool),
                result=result_of(tool),
                message_id=f"shown-{tool.id}",
                metadata=metadata,
                **common,
            )
        yield SpanEndEvent(id=span, uuid=f"{span}-end", **common)


def _prompt(episode: Episode, index: int, decode: Decode) -> list[ChatMessage]:
    """Returns the context of a call, span by span: prompts and observations as user messages, responses as replies."""
    call = episode.calls[index]
    if not 0 <= call.context < len(episode.contexts):
        return []
    messages: list[ChatMessage] = []
    left = call.start
    for number, span in enumerate(episode.tokens(call.context)):
        if left <= 0:
            break
        text = decode(call.model_key, span.ids[:left].tolist())
        if text is None:
            return []
        kind = ChatMessageAssistant if span.kind == "model" else ChatMessageUser
        messages.append(kind(id=f"context-{call.context}-{number}", content=text))
        left -= len(span.ids)
    return messages
