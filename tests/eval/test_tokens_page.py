"""The page of an episode's tokens, read by an HTML parser of Python's: what it shows, and what it never holds."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import HOSTILE, chromium, watch
from support import command_line

from searchgym.eval.rows import call_rows
from searchgym.eval.viewing.page import render, visible, write_page
from searchgym.eval.viewing.tokens import pieces_of, tokens_of
from searchgym.packages import install_command
from searchgym.records import Call, Context, Episode, Span
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.storage import EpisodeWriter

ARTEFACTS = Path(__file__).parents[1] / "upgrade" / "0.1.0"
TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td"}
TAGS |= {"div", "span", "small", "a"}
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "title", "id", "href"}


class Read(HTMLParser):
    """Elements with their attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self._open: list[int] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), ""))
        if tag != "meta":
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, data):
        for place in self._open:
            tag, attributes, text = self.elements[place]
            self.elements[place] = tag, attributes, text + data

    def texts(self, tag, classes=""):
        return [text for own, a, text in self.elements if own == tag and (a.get("class") or "").startswith(classes)]


def episode_of(text="plain"):
    logp = [np.array(values, np.float32) for values in ([-0.25, -1.5], [-3.0])]
    spans = [
        Span("prompt", np.array([0, 1], np.int32)),
        Span("model", np.array([2, 3], np.int32), logp[0]),
        Span("observation", np.array([4], np.int32)),
        Span("model", np.array([5], np.int32), logp[1]),
    ]
    calls = [Call(0, 2, 4, text, "key", 1, text=text), Call(0, 5, 6, "two", "key", 2, legal=False)]
    return Episode(
        f"{text}#0", "q", text, text, contexts=[Context(None, 0, spans)], calls=calls, stop_reason="answer", reward=1.0
    )


def page_of(text="plain", advantages=None):
    episode = episode_of(text)
    terms = {"outcome": [0.0, 1.0], f"{text} format": [0.0, -0.5]}
    given = advantages or {f"{text}#0/0": np.array([2.0, -0.5], np.float32)}

    def decode(key, ids):
        return "".join(f"{text} {i}|" for i in ids)

    calls = call_rows(episode, terms)
    return render(episode, pieces_of(episode, tokens_of(episode, decode, calls, given), decode), calls)


def test_what_the_page_shows_by_hand():
    read = Read(page_of())
    assert read.texts("div", "seen") == ["plain 0|plain 1|", "plain 4|"]
    boxes = [(a["class"], text) for tag, a, text in read.elements if tag == "span" and "title" in a]
    # text, log-prob, advantage; 2.0 is the strongest, 0.5 a quarter of it, and the last token has none
    assert boxes == [
        ("t p4", "plain·2|−0.25+2"),
        ("t n1", "plain·3|−1.50−0.5"),
        ("t z", "plain·5|−3.00–"),
    ]
    cells = read.texts("td")
    assert cells == [
        *("0", "plain", "key, version 0", "yes", "1", "2", "−1.75", "+0", "+0", "+0", "−0.5 to +2"),
        *("1", "two", "key, version 0", "no", "2", "1", "−3.00", "+1", "−0.5", "+0.5", "–"),
    ]
    assert "Trained on: 3 of 6 tokens" in " ".join(read.texts("p")[0].split())


@pytest.mark.slow_cases
@pytest.mark.parametrize("text", [*HOSTILE, "\x00", "</div></body></html>", "&lt;script&gt;"])
def test_hostile_text_is_text(text):
    page = page_of(text)
    read = Read(page)
    assert {tag for tag, _, _ in read.elements} == TAGS
    assert {name for _, attributes, _ in read.elements for name in attributes} <= ATTRIBUTES
    assert all(a["href"].startswith("#call-") for tag, a, _ in read.elements if tag == "a")
    plain = Read(page_of())
    assert len(read.elements) == len(plain.elements)
    assert read.texts("title") == [f"Tokens of {text}#0"]
    assert read.texts("div", "seen")[0] == f"{text} 0|{text} 1|"
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert [a["content"] for _, a, _ in read.elements if a.get("http-equiv") == "Content-Security-Policy"] == [policy]


def test_numbers_that_are_not_finite_are_shown_and_give_no_colour():
    boxes = Read(page_of(advantages={"plain#0/0": np.array([math.nan, math.inf], np.float32)})).texts("span", "t z")
    assert [text for text in boxes if "|" in text] == ["plain·2|−0.25+nan", "plain·3|−1.50+inf", "plain·5|−3.00–"]


def test_half_a_character_is_replaced(tmp_path):
    episode = episode_of("\ud800")
    calls = call_rows(episode)
    decode = lambda key, ids: "\ud800"  # noqa: E731
    pieces = pieces_of(episode, tokens_of(episode, decode, calls, {}), decode)
    write_page(tmp_path / "page.html", episode, pieces, calls)
    assert "Tokens of episode ?#0" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_command_writes_it(tmp_path, monkeypatch, capsys):
    cli = command_line(monkeypatch, capsys)
    shutil.copytree(ARTEFACTS, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    monkeypatch.syspath_prepend(ARTEFACTS)
    status, out, err = cli("show", "run-policy", "--model", "./model", "--html", tmp_path / "page.html")
    assert (status, out) == (0, "")
    assert f"tokens in {tmp_path / 'page.html'}" in err
    read = Read((tmp_path / "page.html").read_text(encoding="utf-8"))
    boxes = [(a["title"], text) for tag, a, text in read.elements if tag == "span" and "title" in a]
    first = json.loads(Path("run-policy/episodes.jsonl").read_text(encoding="utf-8").splitlines()[0])
    prompt, wrote = first["contexts"][0]["spans"][:2]
    bytes_ = Path("run-policy/episodes.tokens.bin").read_bytes()
    ids = np.frombuffer(bytes_, "<i4", wrote["ids"][1], wrote["ids"][0]).tolist()
    logp = np.frombuffer(bytes_, "<f4", wrote["logp"][1], wrote["logp"][0])
    tokenizer = load_tokenizer("./model")
    assert len(boxes) == sum(call["end"] - call["start"] for call in first["calls"])
    for place, (id, value) in enumerate(zip(ids, logp, strict=True)):
        title, text = boxes[place]
        assert title == f"token {id} at {prompt['ids'][1] + place}"
        assert text.startswith(visible(tokenizer.decode([id])) + f"{value:.2f}".replace("-", "−"))


def test_a_run_without_tokens_names_commands_that_show_it(tmp_path, monkeypatch, capsys):
    cli = command_line(monkeypatch, capsys)
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        writer.write(Episode("q#0", "q", "oracle", "Demo"))
    status, _, err = cli("show", tmp_path)
    assert status != 0
    assert f"`searchgym report {tmp_path}` or `searchgym view {tmp_path}` shows its episodes" in err


def test_without_jinja_the_command_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    cli = command_line(monkeypatch, capsys)
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        writer.write(episode_of())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, _, err = cli("show", tmp_path, "--html", tmp_path / "page.html")
    assert (status, install_command("view") in err) == (2, True)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_it_asks_for_nothing_and_runs_nothing(tmp_path, scheme):
    file = tmp_path / "page.html"
    with chromium() as browser:
        page = browser.new_page(color_scheme=scheme)
        seen = watch(page)
        for number, text in enumerate(HOSTILE):
            file.write_text(page_of(text), encoding="utf-8")
            page.goto(file.as_uri())
            assert page.inner_text("h1") == " ".join(f"Tokens of episode {text}#0".split()), number
            box = page.locator(".wrote .t").first
            box.hover()
            page.locator("a").first.click()
            page.wait_for_timeout(50)
            assert page.url == f"{file.as_uri()}#call-0"
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(13, 17, 23)")
    assert (seen.fired, seen.elsewhere(), set(seen.requests)) == ([], [], {file.as_uri()})
