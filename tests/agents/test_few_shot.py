"""The prompt with worked examples: they are legal, and about names that no evaluated question knows."""

import re

from searchgym.agents.base import load_agent
from searchgym.corpora.folders import bundled_file
from searchgym.protocol import get_protocol
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Answer, Search

PROMPT = load_agent("search-r1-few-shot").roles["searcher"].template


def test_every_worked_reply_is_legal():
    replies = re.findall(r"^Reply: (.*)$", PROMPT, re.MULTILINE)
    actions = [get_protocol("tags").parse(reply) for reply in replies]
    assert [type(action) for action in actions] == [Search, Answer] * 3
    assert all(get_protocol("tags").write(action) == reply for action, reply in zip(actions, replies, strict=True))


def test_no_name_of_the_examples_is_in_an_evaluated_question_or_page():
    names = ["Ombrast", "Quessim", "Ulmara", "Bellowick", "Plint", "Farrowend", "Tovrin"]
    assert [name for name in names if name not in PROMPT] == []
    pages = bundled_file("demo/corpus.jsonl").read_text() + bundled_file("demo/questions.json").read_text()
    for level in ("simple", "full"):
        world = build_world(WorldSpec(level, size=100, seed=0, split="validation"))
        pages += "".join(f"{page.title} {page.text}" for page in world.passages)
    assert not [name for name in names if name in pages]
