"""The YAML reader of cards, recipes and front matter: plain data only, bounded in size and depth."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from searchgym.corpora import convert_documents
from searchgym.corpora.retrieval.cards import find_retriever
from searchgym.errors import CardError, SearchGymError
from searchgym.train.recipe.load import load_recipe
from searchgym.yaml_reader import read_small, read_yaml

BOMB = "kind: bm25\na: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in itertools.pairwise("abcdefg")
)
"""Under half a kilobyte that stands for ten million values."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"anchors \(&\) and aliases \(\*\) are refused: write the value out"),
        ("kind: &x bm25\n", "anchors"),
        ("kind: bm25\nsummary: " + "x" * 300_000, "more than 262,144 bytes"),
        ("kind: " + "[" * 5000 + "]" * 5000, "more than 50 nested levels"),
        ("kind: 2001-99-99", "month must be in 1..12"),
        ("kind: " + "9" * 5000, "Exceeds the limit"),
        ("? [a]\n: b", "unhashable key"),
        ("a: 1\nb: 2\na: 3\n", "key 'a' stands twice"),
    ],
    ids=["bomb", "anchor", "long", "deep", "date", "number", "list as key", "twice"],
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
