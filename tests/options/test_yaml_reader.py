"""The YAML reader of cards, recipes and front matter: plain data only, bounded in size and depth."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import time
from pathlib import Path

import pytest
from support import growth

from searchgym.corpora import convert_documents
from searchgym.errors import CardError, SearchGymError
from searchgym.options.yaml import parse_yaml, read_small, read_yaml
from searchgym.retrieval.cards import find_retriever
from searchgym.train.recipe.load import load_recipe

BOMB = "kind: bm25\na: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in itertools.pairwise("abcdefg")
)
"""Under half a kilobyte that stands for ten million values."""


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"anchors \(&\) and aliases \(\*\) are refused: write the value out"),
        ("kind: &x bm25\n", "anchors"),
        ("kind: bm25\nsummary: " + "x" * 300_000, "more than 262,144 bytes"),
        ("kind: " + "[" * 5000 + "]" * 5000, "more than 50 nested levels"),
        ("kind: 2001-99-99", "month must be in 1..12"),
        ("kind: " + "9" * 5000, "Exceeds the limit"),
        ('kind: "\\UFFFFFFFF"', "too large to convert"),
        ("kind: !!float " + "1:" * 300 + "1.5", "is not a number"),
        ("kind: !!int " + "1:" * 300 + "1", "is not a number"),
        ("kind: !!int {=: '" + "1:" * 300 + "1'}", "is not a number"),
        ("kind: 0x" + "f" * 5000, "Exceeds the limit of 1,000 digits"),
        ("kind: !!int 0b" + "1" * 200_000, "Exceeds the limit of 1,000 digits"),
        ("? [a]\n: b", "unhashable key"),
        ("a: 1\nb: 2\na: 3\n", "key 'a' occurs twice"),
    ],
    ids=[
        "bomb",
        "anchor",
        "long",
        "deep",
        "date",
        "number",
        "character",
        "base 60",
        "tagged base 60",
        "base 60 in a mapping",
        "hexadecimal",
        "binary",
        "list as key",
        "twice",
    ],
)
def test_awkward_yaml_is_one_error_that_names_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "awkward.yaml"
    path.write_text(text)
    for read in (find_retriever, load_recipe):
        with pytest.raises(CardError, match=message) as caught:
            read(str(path))
        assert str(caught.value).startswith(f"{path}: cannot be read as YAML: ")
        assert len(str(caught.value)) < 1000


def test_an_override_is_bounded_too() -> None:
    with pytest.raises(SearchGymError, match="override 'seed=&a 1': the value: cannot be read as YAML: anchors"):
        load_recipe("tiny-grpo", ["seed=&a 1"])


@pytest.mark.slow
def test_many_keys_are_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("".join(f"k{number}: 1\n" for number in range(20_000)))
    begun = time.process_time()
    with pytest.raises(CardError):
        find_retriever(str(path))
    assert time.process_time() - begun < 8


def test_front_matter_that_is_no_plain_data_is_text(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"---\n{BOMB}title: *g\n---\nBody.\n")
    (passage,) = convert_documents(tmp_path)
    assert passage.title == "page"
    assert passage.text.endswith("Body.")
    assert len(passage.text) < 1000


def test_a_byte_order_mark_is_no_text(tmp_path):
    """As Windows editors write it: it would stand in every prompt of a role."""
    (tmp_path / "prompt.md").write_bytes(b"\xef\xbb\xbfAnswer: {question}")
    assert read_small(tmp_path / "prompt.md") == "Answer: {question}"
    (tmp_path / "card.yaml").write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_yaml(tmp_path / "card.yaml") == {"name": "x"}


@pytest.mark.parametrize("value", ["12:30:45", "1:1:1.5", "-1:30", "1:" * 300 + "1.5"])
def test_what_has_colons_is_text_and_no_number_of_base_60(value: str) -> None:
    assert parse_yaml(f"a: {value}", "here") == {"a": value}


def test_numbers_are_read_as_before() -> None:
    text = "[12, -3, 0x1f, 0b11, 017, 1_000, 1.5, -.5e-3, 1e-4, .inf, 2001-02-03]"
    date = datetime.date(2001, 2, 3)
    assert parse_yaml(text, "here") == [12, -3, 31, 3, 15, 1000, 1.5, -0.0005, 1e-4, float("inf"), date]


@pytest.mark.parametrize("text", ["a: {}1", "a: !!int {}1", "a: {}1.5", "? {}1\n: b"])
def test_many_colons_take_linear_time(text: str) -> None:
    def read(n: int) -> None:
        with contextlib.suppress(CardError):
            parse_yaml(text.format("1:" * n), "here")

    assert growth(read) < 8


def test_a_pipe_is_refused_before_it_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pack.yaml")
    with pytest.raises(CardError, match=r"pack\.yaml: .*is no regular file"):
        read_yaml(tmp_path / "pack.yaml")
