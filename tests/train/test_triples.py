"""Self-play on files of triples: what is asked, what is refused, and a world's own triples as a recipe's graph."""

import pytest

from searchgym.envs import find_env, load_task
from searchgym.errors import DataError, UsageError
from searchgym.questions.graphs.triples import read_triples
from searchgym.questions.source import HeldOut
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.questions.worlds.storage import TRIPLES, write_world
from searchgym.records import Passage
from searchgym.retrieval.index.index import build_in_memory
from searchgym.train.credit.waypoints import waypoints_of
from searchgym.train.recipe.load import load_recipe
from searchgym.train.selfplay.kinds.path import LearningProposer
from searchgym.train.selfplay.proposer import PathProposer
from searchgym.train.selfplay.triples import TripleGround

PAGES = [
    Passage("1", "Zor (film)", "A film by a painter."),
    Passage("2", "Ulo Bel", "A painter with a mother."),
    Passage("3", "Ada Bel", "A sailor from Rox."),
    Passage("4", "Kim Vos", "A sailor."),
]
LINES = [
    ("Zor (film)", "director", "Ulo Bel"),
    ("Ulo Bel", "mother", "Ada Bel"),
    ("Ada Bel", "place_of_birth", "Rox"),
    ("Ulo Bel", "child", "Kim Vos"),
    ("Ulo Bel", "child", "Ada Bel"),
    ("Nobody", "mother", "Ada Bel"),
]


def ground(tmp_path, hops=(1, 2, 3), held_out=None, top_k=1):
    file = tmp_path / "triples.tsv"
    file.write_text("".join("\t".join(line) + "\n" for line in LINES))
    out = held_out or HeldOut(frozenset(), frozenset())
    return TripleGround(read_triples(file), PAGES, build_in_memory(PAGES), top_k, hops, 0, out)


def asked(made):
    return {
        question.text: question
        for arm in made.arms
        for number, walk in enumerate(made.walks(arm))
        if not isinstance(question := made.question(arm, walk, number), str)
    }


def test_every_chain_of_single_facts_with_pages_is_asked(tmp_path):
    found = asked(ground(tmp_path))
    assert {text: made.answers[0] for text, made in found.items()} == {
        "What is the director of Zor?": "Ulo Bel",
        "What is the mother of Ulo Bel?": "Ada Bel",
        "What is the place of birth of Ada Bel?": "Rox",
        "What is the mother of the director of Zor?": "Ada Bel",
        "What is the place of birth of the mother of Ulo Bel?": "Rox",
        "What is the place of birth of the mother of the director of Zor?": "Rox",
    }
    longest = found["What is the place of birth of the mother of the director of Zor?"]
    assert longest.gold_titles == ("Zor (film)", "Ulo Bel", "Ada Bel")
    assert [point.name for point in waypoints_of(longest)] == ["Ulo Bel", "Ada Bel"]
    assert [hop.question for hop in longest.hops][1:] == [
        "What is the mother of #1?",
        "What is the place of birth of #2?",
    ]


def test_one_search_that_finds_all_pages_refuses_a_question(tmp_path):
    text = "What is the mother of the director of Zor?"  # "mother" and "Zor" stand in its pages, nothing of page 3 does
    assert text in asked(ground(tmp_path, top_k=1))
    found = asked(ground(tmp_path, top_k=4))
    assert text not in found and "What is the place of birth of the mother of the director of Zor?" in found


def test_held_out_pages_and_names_are_in_no_question(tmp_path):
    found = asked(ground(tmp_path, held_out=HeldOut(frozenset([2]), frozenset(["ada bel"]))))
    assert set(found) == {"What is the director of Zor?"}


def source_of(recipe):
    task = load_task(find_env(recipe.env), **recipe.env_options)
    return recipe.proposer.source(task, recipe.env_options, recipe.seed)


def test_a_worlds_triples_serve_as_the_graph_of_a_recipe(tmp_path):
    spec = WorldSpec("simple", split="train", size=60, seed=1)
    folder = write_world(build_world(spec), tmp_path / "world")
    values = [f"proposer.triples={folder / TRIPLES}", "env_options={questions: {split: train, size: 60, seed: 1}}"]
    recipe = load_recipe("tiny-selfplay", values)
    made = source_of(recipe)
    questions = made.draw(0, 20)
    assert len(questions) == 20 and all(q.text.startswith("What is the ") for q in questions)
    state = made.state()
    again = source_of(recipe)
    again.restore(state)
    assert [q.id for q in again.draw(1, 20)] == [q.id for q in made.draw(1, 20)]


def test_bad_triples_are_told_with_their_place(tmp_path):
    file = tmp_path / "bad.tsv"
    file.write_text("Zor\tdirector\n")
    recipe = load_recipe("tiny-selfplay", [f"proposer.triples={file}"])
    with pytest.raises(DataError, match=r"bad.tsv:1"):
        source_of(recipe)
    with pytest.raises(UsageError, match="no path of 4 hops"):
        PathProposer(ground(tmp_path, hops=(4,)), LearningProposer(hops=[4]), 0)
    recipe = load_recipe("tiny-selfplay", ["env=searchgym/Demo-v0", "env_options={}", "validation.env_options={}"])
    with pytest.raises(UsageError, match="no graph to walk"):
        source_of(recipe)
