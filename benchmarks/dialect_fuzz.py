"""Random and hostile texts through the parser of each dialect: no exception, and time that grows with the length.

    python benchmarks/dialect_fuzz.py --texts 100000

Texts are drawn from pieces of markers, braces, quotes, escapes, thoughts, pages and random characters. Counted are

* ``raised``: texts that raised an exception;
* ``streamed``: texts that differ when they come as a stream. A response ends at the first stop string for which
  `Protocol.ended` holds; what is read there must be what is read of the whole text. Two refusals are equal, whatever
  their reasons. A text that begins inside a thought of its prompt gets the thought's opening marker, as in rollouts;
* ``slowest``: the greatest time per character of a hostile text of 100,000 characters, in units of the time per
  character of one of 1,000; at most 1.5 of them are allowed.

Any text that raised or differs, or a family of texts that is too slow, fails the script.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from searchgym.protocol import Protocol
from searchgym.protocol.thoughts import CLOSING
from searchgym.records import Action, Invalid
from searchgym.testing.dialects.parsers import protocol_of
from searchgym.testing.dialects.runner import DIALECTS, lines, load

BOUND: Final = 1.5
"""Maximum ratio of times per character."""
SHORT, LONG = 1_000, 100_000
"""Lengths in characters of the texts whose times are compared."""
MARKERS: Final = (
    *("<search>", "</search>", "<answer>", "</answer>", "<tool_call>", "</tool_call>"),
    *("<function=search>", "</function>", "<parameter=query>", "</parameter>"),
    *("<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "```tool_code", "```json", "```", "search(", 'search(query="', ")"),
    *("<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary", "<|constrain|>json", "<|message|>"),
    *("<|call|>", "<|return|>", "<|end|>", "<|im_end|>", "<|eot_id|>", "</s>"),
    *("<information>", "</information>", "<tool_response>", "</tool_response>"),
)
THOUGHTS: Final = (*CLOSING, *CLOSING.values(), "<THINK>", "<think >", "<thinking>", "\uff1cthink\uff1e")
PARTS: Final = (
    *("{", "}", "[", "]", '"', "'", "\\", "\\\\", '\\"', ",", ":", '{"', '"}', '"}}', "\\u00e9", "\\ud83d", "\\n"),
    *('"name": ', '"search"', '"arguments": ', '"parameters": ', '"query": ', '"who wrote Emma"', "query", " to="),
    *('{"name": "search", "arguments": {"query": "', '{"query": "', "functions.search ", '{"type": "function", '),
)
CHARACTERS: Final = " \n\t\r\x00aeiou.,:;=<>/|()é漢🙂\u200b\ud800\u2028"
HOSTILE: Final = {
    "openings": "{opening}",
    "closings": "</answer></tool_call></think>",
    "thoughts": "<think>a</think>",
    "open thoughts": "<think>[THINK]",
    "open calls": '{opening}{{"name": "search", "arguments": {{"query": "',
    "wrong calls": '{opening}{{"name": "python", "arguments": {{}}}}</tool_call>\n',
    "open texts": '{opening}"',
    "braces": "{{",
    "objects": '{{"a":',
    "lists": "[",
    "brackets": "[{{(",
    "backslashes": "\\",
    "quotes": '\\"',
    "fences": "```json\n{{",
    "parentheses": "```tool_code\nsearch(query=(",
    "blanks": " ",
    "words": "who wrote Emma ",
}
"""Name of a family of hostile texts to what is repeated in it; ``{opening}`` is the opening marker of a call."""
ENDS: Final = {
    "tags": ("<search>", "</search>"),
    "hermes": ("<tool_call>\n", "\n</tool_call>"),
    "qwen3_coder": ("<tool_call>\n<function=search>\n<parameter=query>\n", "\n</parameter>\n</function>\n</tool_call>"),
    "llama3": ("<|python_tag|>", "}}"),
    "mistral": ("[TOOL_CALLS] ", "}}]"),
    "gemma": ("```tool_code\nsearch(query=", ")\n```"),
    "gpt_oss": ("<|channel|>commentary to=functions.search <|constrain|>json<|message|>", "}<|call|>"),
}
"""Dialect to the opening and the closing marker of its calls."""
_THOUGHT: Final = re.compile("|".join(map(re.escape, [*CLOSING, *CLOSING.values()])))


@dataclass
class Row:
    """Results of the texts of one dialect."""

    dialect: str
    texts: int
    acted: int = 0
    """Texts that were read as an action."""
    raised: int = 0
    stopped: int = 0
    """Texts that a stop string would have ended."""
    streamed: int = 0
    slowest: float = 0.0
    family: str = ""
    """Family of the texts of `slowest`."""

    @property
    def fails(self) -> bool:
        """Whether a bound fails."""
        return self.raised > 0 or self.streamed > 0 or self.slowest > BOUND


def draw(rng: random.Random, cases: Sequence[str]) -> str:
    """Returns a random text: pieces one after the other, now and then a text of the conformance set, whole or cut."""
    pieces: list[str] = []
    for _ in range(rng.randint(1, 16)):
        roll = rng.random()
        if roll < 0.1:
            case = rng.choice(cases)
            start = rng.randrange(len(case) + 1) if rng.random() < 0.3 else 0
            end = rng.randrange(len(case) + 1) if rng.random() < 0.3 else len(case)
            pieces.append(case[start:end])
        elif roll < 0.2:
            pieces.append("".join(rng.choices(CHARACTERS, k=rng.randint(1, 8))))
        else:
            pieces.append(rng.choice(THOUGHTS if roll < 0.3 else PARTS if roll < 0.65 else MARKERS))
    return "".join(pieces)


def from_its_opening(text: str) -> str:
    """Returns a text with the opening marker of the thought that began in its prompt, if one did."""
    first = _THOUGHT.search(text)
    opening = {"</think>": "<think>", "[/THINK]": "[THINK]"}
    return opening.get(first[0], "") + text if first else text


def stopped_at(protocol: Protocol, text: str) -> str | None:
    """Returns the beginning of a text at which a stop string would end a stream; None if none does."""
    ends = {found.end() for stop in protocol.stop_strings for found in re.finditer(re.escape(stop), text)}
    return next((text[:end] for end in sorted(ends) if protocol.ended(text[:end])), None)


def equal(one: Action, other: Action) -> bool:
    """Returns whether two readings are the same action, or both refusals."""
    return one == other or (isinstance(one, Invalid) and isinstance(other, Invalid))


def fuzz(row: Row, protocol: Protocol, seed: int, examples: list[str]) -> None:
    """Draws the texts of a row and counts the results; at most 5 examples of each failure are recorded."""
    rng = random.Random(f"{seed} {row.dialect}")
    named = [row.dialect] * len(DIALECTS) + list(DIALECTS)  # half of the cases are the dialect's own
    cases = [case.text for dialect in named for case in load(dialect) if len(case.text) < 400]
    for number in range(row.texts):
        text = from_its_opening(draw(rng, cases))
        try:
            whole = protocol.parse(text)
            prefix = stopped_at(protocol, text)
            differs = prefix is not None and not equal(protocol.parse(prefix), whole)
        except Exception as error:
            row.raised += 1
            if row.raised <= 5:
                examples.append(f"{row.dialect} {number}: {type(error).__name__}: {error}: {text!r}")
            continue
        row.acted += not isinstance(whole, Invalid)
        row.stopped += prefix is not None
        row.streamed += differs
        if differs and row.streamed <= 5:
            examples.append(f"{row.dialect} {number}: {text!r} is {whole}, but its stream ends with {prefix!r}")


def seconds(protocol: Protocol, text: str, runs: int) -> float:
    """Returns the minimum CPU time per character of some runs, each with enough calls for a millisecond."""

    def timed(calls: int) -> float:
        start = time.process_time()
        for _ in range(calls):
            protocol.parse(text)
        return time.process_time() - start

    calls = 1
    while timed(calls) < 0.001:
        calls *= 2
    return min(timed(calls) for _ in range(runs)) / calls / len(text)


def measure(row: Row, protocol: Protocol, runs: int, families: Sequence[str] = tuple(HOSTILE)) -> None:
    """Finds the family of hostile texts whose time per character grows most.

    Each is timed inside an open call, and inside one that is closed. A family over the bound is timed twice more: other
    programs may use the machine.
    """
    opening, closing = ENDS[row.dialect]
    for family in families:
        piece = HOSTILE[family].format(opening=opening)
        for end in dict.fromkeys(["", closing]):
            short, long = (opening + (piece * (n // len(piece) + 1))[:n] + end for n in (SHORT, LONG))
            ratio = float("inf")
            for _ in range(3):
                ratio = min(ratio, seconds(protocol, long, runs) / seconds(protocol, short, runs))
                if ratio <= BOUND:
                    break
            if ratio > row.slowest:
                row.slowest, row.family = ratio, f"{family}, closed" if end else family


def main() -> int:
    """Prints one row per dialect; returns 1 if a bound fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dialects", nargs="+", choices=DIALECTS, default=DIALECTS)
    parser.add_argument("--texts", type=int, default=100_000, help="random texts per dialect")
    parser.add_argument("--runs", type=int, default=5, help="runs of each timed text; the fastest counts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    rows, examples = [Row(dialect, options.texts) for dialect in options.dialects], list[str]()
    for row in rows:
        protocol = protocol_of(row.dialect)
        sys.stderr.write(f"{row.dialect}: {row.texts} texts ...\n")
        fuzz(row, protocol, options.seed, examples)
        measure(row, protocol, options.runs)
    sys.stderr.writelines(f"{example}\n" for example in examples)
    if options.json:
        print(json.dumps({"results": [asdict(row) for row in rows]}))
    else:
        head = list(asdict(rows[0]))
        cells = [[f"{v:.2f}" if isinstance(v, float) else f"{v}" for v in asdict(row).values()] for row in rows]
        print(lines([head, *cells]))
    return int(any(row.fails for row in rows))


if __name__ == "__main__":
    sys.exit(main())
