"""Size and speed of the viewer's logs and pages on many hostile episodes.

    python benchmarks/viewing.py [--episodes 10000] [--no-browser] [--json]

Makes an evaluation of that many episodes: four turns, three searches with three hits each, the tokens of every prompt
and response, and in questions, answers, titles, passages and outputs text that runs a script or fetches from another
host wherever it is taken for markup. Then ``searchgym view --export-only`` writes its log, and headless Chromium
(Debian's package ``chromium``) opens the list of episodes, sorts it, filters it and opens an episode. Seconds are wall
time; memory is the peak of the command that writes. The last rows count requests to other hosts and scripts that ran:
both must be 0.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from searchgym.cli.output import emit_rows
from searchgym.corpora.questions import write_questions
from searchgym.records import Answer, Call, Context, Episode, Hit, Passage, Question, Searched, Span
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.storage import EpisodeWriter

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from browser import HOSTILE, chromium, watch  # type: ignore[import-not-found]  # noqa: E402  # pyright: ignore

TURNS: Final = 4
WORDS: Final = 90
"""Words of a passage."""
MIB: Final = 2**20


def main() -> None:
    """Measures and prints the table."""
    args = parse_args()
    with tempfile.TemporaryDirectory(prefix="searchgym-viewing-") as folder:
        rows = list(measure(Path(folder) / "run", args.episodes, args.browser))
    if args.json:
        print(json.dumps({"results": rows}))
    else:
        emit_rows(rows, False, "results")


def parse_args() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--browser", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object")
    return parser.parse_args()


def measure(run: Path, episodes: int, browser: bool) -> Iterator[dict[str, Any]]:
    """Yields the rows of the measurements."""
    print(f"making {episodes} episodes ...", file=sys.stderr)
    make_run(run, episodes)
    yield row("episodes", episodes)
    yield row("MiB of episodes.jsonl", (run / "episodes.jsonl").stat().st_size / MIB)
    print("writing the log ...", file=sys.stderr)
    command = [
        sys.executable,
        "-m",
        "searchgym",
        "view",
        str(run),
        "--questions",
        str(run.with_name("questions.jsonl")),
    ]
    began = time.perf_counter()
    result = subprocess.run([*command, "--export-only", "--json"], capture_output=True, text=True, env=environment())
    if result.returncode:
        raise SystemExit(result.stderr)
    yield row("seconds to write the log", time.perf_counter() - began)
    yield row("MiB of memory at the peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
    (log,) = json.loads(result.stdout)["logs"]
    yield row("MiB of the log", log["bytes"] / MIB)
    began = time.perf_counter()
    subprocess.run([*command, "--export-only"], check=True, capture_output=True, env=environment())
    yield row("seconds to find it written", time.perf_counter() - began)
    if browser:
        yield from look(Path(log["log"]), episodes)


def environment() -> dict[str, str]:
    """Returns the environment of a child process, which imports this checkout."""
    return os.environ | {"PYTHONPATH": str(ROOT)}


def row(measured: str, value: float) -> dict[str, Any]:
    """Returns a row of the table."""
    return {"measured": measured, "value": value if isinstance(value, int) else round(value, 2)}


# -- in the browser ------------------------------------------------------------------------------------------------


def look(log: Path, episodes: int) -> Iterator[dict[str, Any]]:
    """Yields the seconds of each step of viewing a log in a browser."""
    from searchgym.eval.viewing.server import viewer

    print("opening it in a browser ...", file=sys.stderr)
    began = time.perf_counter()
    with viewer([("run", log)], 0) as shown:
        yield row("seconds until the viewer answers", time.perf_counter() - began)
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.set_default_timeout(120_000)
            seen = watch(page)
            began = time.perf_counter()
            page.goto(shown.url)
            page.get_by_text(f"{episodes} Samples", exact=True).wait_for()
            page.locator("[role=gridcell]").first.wait_for()
            yield row("seconds until all rows are listed", time.perf_counter() - began)
            began = time.perf_counter()
            page.get_by_role("columnheader", name="searches").click()
            page.locator("[role=columnheader][aria-sort=ascending]").wait_for()
            yield row("seconds to sort", time.perf_counter() - began)
            began = time.perf_counter()
            page.locator("[contenteditable=true]").first.click()
            page.keyboard.type("em == 1")
            page.get_by_text(f"{(episodes + 2) // 3} Samples", exact=True).wait_for()
            yield row("seconds to filter", time.perf_counter() - began)
            began = time.perf_counter()
            page.locator("[role=gridcell]").nth(2).click()
            page.get_by_text("STEP: turn 1").first.wait_for()
            yield row("seconds to open an episode", time.perf_counter() - began)
            page.wait_for_timeout(1000)
            heap = page.evaluate("performance.memory.usedJSHeapSize")
            yield row("MiB of the page's heap", heap / MIB)
            host = shown.url.split("/")[2]
            yield row("requests to other hosts", len(seen.elsewhere(host)))
            yield row("scripts of episodes that ran", len(seen.fired))


# -- hostile episodes ----------------------------------------------------------------------------------------------


def make_run(run: Path, episodes: int) -> None:
    """Writes an evaluation of hostile episodes, and its questions to the same folder."""
    run.mkdir(parents=True)
    write_questions(run.with_name("questions.jsonl"), [question_of(number) for number in range(episodes)])
    tokenizer = load_tokenizer("tiny")
    record = {"env": "searchgym/World-v0", "agent": hostile(0), "models": {"searcher": ["tiny", None]}, "seconds": 1.0}
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    encoded: dict[str, list[int]] = {}

    def encode(text: str) -> list[int]:
        if text not in encoded:
            encoded[text] = tokenizer.encode(text, add_special_tokens=False)
        return encoded[text]

    with EpisodeWriter(run / "episodes.jsonl") as writer:
        for number in range(episodes):
            writer.write(episode_of(number, encode))


def hostile(number: int) -> str:
    """Returns one of the hostile texts."""
    return str(HOSTILE[number % len(HOSTILE)])


def question_of(number: int) -> Question:
    """Returns the question of an episode."""
    return Question(f"q-{number}", f"Who wrote {hostile(number)}?", (hostile(number + 1),), metadata={"hops": 2})


def passage_of(number: int) -> Passage:
    """Returns a passage of `WORDS` words, which differ from passage to passage."""
    words = " ".join(f"w{(number * 7919 + index * 104_729) % 50_000}" for index in range(WORDS))
    return Passage(f"p-{number}", f"Page {hostile(number)}", f"{words} {hostile(number + 2)}")


def episode_of(number: int, encode: Any) -> Episode:
    """Returns an episode that searches `TURNS` - 1 times and answers; every third is right."""
    spans, calls, searches, position = [], [], [], 0
    for turn in range(1, TURNS + 1):
        prompt = encode(f"{hostile(number + turn)} prompt {number % 50}")
        text = f"<search>{hostile(number + turn)}</search>" if turn < TURNS else f"<answer>{hostile(number)}</answer>"
        wrote = encode(text)
        spans.append(Span("prompt" if turn == 1 else "observation", np.array(prompt, np.int32)))
        spans.append(Span("model", np.array(wrote, np.int32), np.full(len(wrote), -0.5, np.float32)))
        start = position + len(prompt)
        position = start + len(wrote)
        calls.append(Call(0, start, position, "searcher", "tiny", turn, text=text))
        if turn < TURNS:
            hits = tuple(Hit(passage_of(number * 9 + turn * 3 + rank), 9.0 - rank) for rank in range(3))
            searches.append(Searched(turn, hostile(number + turn), hits))
    right = float(number % 3 == 0)
    return Episode(
        id=f"q-{number}#0",
        question_id=f"q-{number}",
        agent=hostile(number),
        env="searchgym/World-v0",
        contexts=[Context(None, 0, spans)],
        calls=calls,
        searches=searches[: number % TURNS],
        turns=TURNS,
        answer=Answer(hostile(number)),
        stop_reason="answer",
        reward=right,
        scores={"em": right, "f1": float("nan") if number % 100 == 99 else right},
    )


if __name__ == "__main__":
    main()
