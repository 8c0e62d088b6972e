import asyncio
import dataclasses
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from searchgym.agents.base import load_agent
from searchgym.corpora.files import sha256_file
from searchgym.envs.cards import EnvCard
from searchgym.envs.task import Task, load_task
from searchgym.errors import DataError, DataMissingError, RunExistsError, UnknownNameError, UsageError
from searchgym.options.cards import find_card, load_card
from searchgym.questions.graphs.graph import Entity, Graph, evaluate, magnitude, starts
from searchgym.questions.worlds import WorldSpec, build_world, cached_world, read_world, write_world
from searchgym.questions.worlds.generate import NOTES, PATTERNS
from searchgym.questions.worlds.language import language_of
from searchgym.questions.worlds.names import HEADS
from searchgym.questions.worlds.questions import Drafter
from searchgym.questions.worlds.report import card_of, report_of
from searchgym.questions.worlds.schema import INFERENCES, LEVELS, MIX, RELATIONS, SPLITS, counts_of
from searchgym.records import title_key
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.engine import Engine

SIZE = 200
KNOWN_WORDS = {word for group in (*NOTES.values(), *PATTERNS.values()) for text in group for word in text.split()}
"""Words of titles that are no invented names."""


@pytest.fixture(scope="module")
def world():
    """Builds each world once."""
    built = {}

    def get(level, split="train", seed=0, size=SIZE):
        key = (level, split, seed, size)
        if key not in built:
            built[key] = build_world(WorldSpec(level, size, seed, split))
        return built[key]

    return get


def graph_of(world, without=None):
    """The graph that the triples of a world say, and nothing else; on request without those that one page states."""
    graph = Graph()
    for passage in world.passages:
        graph.add_entity(Entity(passage.title, passage.title.split(" (")[0], "thing"))
    for triple in world.triples:
        if triple.subject != without:
            graph.add(triple.subject, triple.relation, triple.object)
    return graph


def names_of(graph, shown):
    """Everything that an object is called: by its name, which entities may share, or by an alias."""
    entities = [entity for entity in graph.entities.values() if entity.name == shown]
    return {shown} | {alias for entity in entities for alias in graph.facts[entity.title].get("alias", ())}


def gold_pages(question):
    return [title_key(title) for title in question.gold_titles]


# -- one right answer ----------------------------------------------------------------------------------------------


def test_the_evaluator_by_hand():
    graph = Graph()
    for name in ("Film", "Ann", "Bob", "Cid", "Town", "Band"):
        graph.add_entity(Entity(name, name, "thing"))
    facts = [("Film", "director", "Ann"), ("Ann", "mother", "Bob"), ("Ann", "born", "1850"), ("Cid", "born", "1849"),
             ("Ann", "birthplace", "Town"), ("Cid", "birthplace", "Town"), ("Band", "member", "Ann"),
             ("Band", "member", "Cid")]  # fmt: skip
    for fact in facts:
        graph.add(*fact)

    def path(start, *steps):
        return {"op": "path", "start": start, "steps": list(steps)}

    assert evaluate(graph, path("Film", "director", "mother")) == ["Bob"]
    assert evaluate(graph, path("Cid", "~member")) == ["Band"]
    assert evaluate(graph, path("Band", "member")) == ["Ann", "Cid"]
    assert evaluate(graph, path("Bob", "mother")) == []
    pair = [path("Ann", "born"), path("Cid", "born")]
    assert evaluate(graph, {"op": "least", "paths": pair}) == ["Cid"]
    assert evaluate(graph, {"op": "greatest", "paths": pair}) == ["Ann"]
    assert evaluate(graph, {"op": "same", "paths": pair}) == ["no"]
    assert evaluate(graph, {"op": "same", "paths": [path("Ann", "birthplace"), path("Cid", "birthplace")]}) == ["yes"]
    assert evaluate(graph, {"op": "least", "paths": [path("Ann", "born"), path("Bob", "born")]}) == []


def test_literals_have_their_order():
    dates = ["412", "1871", "9 March 1871", "10 March 1871", "1 November 1871", "1 January 1872"]
    assert sorted(sorted(dates[2:]), key=magnitude) == dates[2:]
    assert magnitude("412") < magnitude("1871")


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("split", SPLITS)
def test_every_question_has_one_answer_and_needs_every_gold_page(world, level, split):
    built = world(level, split)
    graph = graph_of(built)
    rest = {}
    for question in built.questions:
        form = question.metadata["form"]
        (answer,) = evaluate(graph, form)
        assert graph.display(answer) == question.answers[0]
        assert len(gold_pages(question)) == question.metadata["hops"]
        for page in question.gold_titles:
            rest[page] = rest.get(page) or graph_of(built, page)
            assert evaluate(rest[page], form) == [], (question.text, page)
        named = question.kind in ("comparison", "bridge-comparison")
        assert named == (answer in starts(form) or answer in ("yes", "no"))


@pytest.mark.parametrize("level", LEVELS)
def test_the_gold_sentences_state_the_evidence(world, level):
    built = world(level)
    graph, texts = graph_of(built), {passage.title: passage.text for passage in built.passages}
    for question in built.questions:
        pages = {page.title: page for page in question.paragraphs}
        assert len(question.paragraphs) == 10
        assert {p.title for p in question.paragraphs if p.supporting} == set(question.gold_titles)
        for page in question.paragraphs:
            assert page.text == texts[page.title]
        assert len(question.evidences) == len(question.hops)
        facts = [pages[fact.title].sentences[fact.sentence] for fact in question.supporting_facts]
        said = " ".join(facts)
        for triple, hop in zip(question.evidences, question.hops, strict=True):
            assert hop.answer in (triple.object, triple.subject)
            assert any(name in said for name in names_of(graph, triple.object)), (triple, said)


@pytest.mark.parametrize("level", LEVELS)
def test_shapes_are_what_their_names_say(world, level):
    built = world(level)
    for question in built.questions:
        form, hops = question.metadata["form"], question.metadata["hops"]
        if question.kind in ("single", "compositional"):
            assert form["op"] == "path"
            assert (question.kind == "single") == (hops == 1)
        elif question.kind == "inference":
            assert tuple(form["steps"]) in INFERENCES.values()
        else:
            assert {len(path["steps"]) for path in form["paths"]} == {1 if question.kind == "comparison" else 2}
    counts = dict.fromkeys(MIX, 0)
    for question in built.questions:
        counts[question.kind, question.metadata["hops"]] += 1
    assert counts == counts_of(built.spec)
    assert [part["questions"] for part in card_of(built)["mix"]] == list(counts.values())
    assert len({question.text for question in built.questions}) == SIZE


def test_transfer_asks_for_held_out_relations_and_other_splits_have_none(world):
    for split in SPLITS:
        built = world("simple", split)
        held_out = {triple.relation for triple in built.triples if triple.relation != "member"}
        held_out = {relation for relation in held_out if RELATIONS[relation].held_out}
        if split == "transfer":
            assert len(held_out) == 4
            assert all(held_out & set(question.metadata["form"]["steps"]) for question in built.questions)
        else:
            assert held_out == set()


# -- splits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_names_are_disjoint_across_splits(world, level):
    heads = [set(part) for part in HEADS]
    assert all(heads)
    assert sum(map(len, heads)) == len(set.union(*heads))
    invented = {}
    for split in ("train", "validation", "test"):
        titles = {passage.title for seed in range(2) for passage in world(level, split, seed).passages}
        assert len(titles) > 300
        invented[split] = {word.strip("(),:") for title in titles for word in title.split()} - KNOWN_WORDS
    for one, other in (("train", "test"), ("train", "validation"), ("validation", "test")):
        assert not invented[one] & invented[other]


@pytest.mark.parametrize("level", LEVELS)
def test_templates_are_disjoint_across_halves(level):
    language = language_of(level)
    pairs = [pair for phrases in language.phrases.values() for pair in phrases]
    for train, test in [*pairs, language.bridge, language.bridge_same]:
        assert not set(train) & set(test)
        assert bool(train) == bool(test)
    assert set(language.phrases) >= set(RELATIONS)
    assert all(one != other for one, other in language.roles.values())


# -- no shortcuts --------------------------------------------------------------------------------------------------


def task_of(built):
    card = load_card(EnvCard, find_card("envs", "world"))
    return load_task(card, questions=built.questions, retriever=build_in_memory(built.passages))


def run(task: Task, agent):
    episodes = []
    asyncio.run(Engine(task, load_agent(agent)).run(task.questions, episodes.append))
    return {episode.question_id: episode.scores["em"] for episode in episodes}


@pytest.mark.parametrize("level", LEVELS)
def test_scripted_agents_and_floors(world, level):
    built = world(level, "test")
    task = task_of(built)
    for name in ("oracle", "evidence-oracle"):
        assert set(run(task, name).values()) == {1.0}
    unnamed = [q.id for q in built.questions if q.metadata["hops"] > 1 and "comparison" not in q.kind]
    named = [q.id for q in built.questions if "comparison" in q.kind]
    for name, floor in (("closed-book", "closed_book"), ("single-search", "single_search")):
        scores = run(task, name)
        assert sum(scores[i] for i in unnamed) / len(unnamed) <= 0.05
        assert sum(scores[i] for i in named) / len(named) == pytest.approx(0.5, abs=0.05)
        reported = report_of(built)["floors"]
        assert reported["multi_hop_unnamed"][floor] == pytest.approx(
            sum(scores[i] for i in unnamed) / len(unnamed), abs=1e-4
        )
        assert reported["named"][floor] == pytest.approx(sum(scores[i] for i in named) / len(named), abs=1e-4)
    assert report_of(built)["floors"]["multi_hop_unnamed"]["majority_of_type"] <= 0.05


@pytest.mark.parametrize("level", LEVELS)
def test_without_any_one_gold_page_the_evidence_oracle_fails(world, level):
    built = world(level)
    task = task_of(built)

    class Hiding:
        """Hides the n-th gold page of each question."""

        in_process = True

        def __init__(self, number):
            self.number = number

        def search_for(self, ids, queries, k):
            found = task.retriever.search(queries, k)
            gold = [gold_pages(task.find(i)) for i in ids]
            hidden = [titles[self.number % len(titles)] for titles in gold]
            return [[h for h in hits if title_key(h.passage.title) != t] for hits, t in zip(found, hidden, strict=True)]

    for number in range(4):
        scores = run(dataclasses.replace(task, retriever=Hiding(number)), "evidence-oracle")
        assert set(scores.values()) == {0.0}


# -- bytes and folders ---------------------------------------------------------------------------------------------


@pytest.mark.slow_cases
@pytest.mark.parametrize("level", LEVELS)
def test_the_same_seed_gives_the_same_bytes_in_another_process(level, tmp_path):
    write_world(build_world(WorldSpec(level, 60, 5, "validation")), tmp_path / "here")
    code = (
        "import sys; from searchgym.questions.worlds import *; "
        f"write_world(build_world(WorldSpec({level!r}, 60, 5, 'validation')), sys.argv[1])"
    )
    environment = dict(os.environ, PYTHONHASHSEED="4242")
    subprocess.run([sys.executable, "-c", code, tmp_path / "there"], check=True, env=environment)
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert names == ["card.yaml", "corpus.jsonl", "questions.jsonl", "report.json", "report.md", "triples.tsv"]
    for name in names:
        assert sha256_file(tmp_path / "here" / name) == sha256_file(tmp_path / "there" / name), name


@pytest.mark.parametrize("level", LEVELS)
def test_a_world_reads_back_equal(world, level, tmp_path):
    built = world(level)
    again = read_world(write_world(built, tmp_path / "a" / "world"))
    assert again == built
    assert card_of(again) == card_of(built)
    assert world(level, seed=1).triples != built.triples


def test_a_folder_in_use_is_refused(world, tmp_path):
    built = world("simple")
    folder = write_world(built, tmp_path / "world")
    with pytest.raises(RunExistsError, match="exists already"):
        write_world(built, folder)
    with pytest.raises(RunExistsError):
        write_world(built, folder / "card.yaml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["world"]


def test_folders_that_are_no_worlds(world, tmp_path):
    with pytest.raises(DataMissingError, match="no such world folder"):
        read_world(tmp_path / "nowhere")
    with pytest.raises(DataMissingError, match="not a world folder"):
        read_world(tmp_path)
    folder = write_world(world("simple"), tmp_path / "world")
    with (folder / "corpus.jsonl").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(DataError, match=r"corpus\.jsonl: is not the file that the world's card describes"):
        read_world(folder)
    (folder / "card.yaml").write_text("version: 99\n")
    with pytest.raises(DataError, match="version 99"):
        read_world(folder)
    (folder / "card.yaml").write_text("[]")
    with pytest.raises(DataError, match="not a world's card"):
        read_world(folder)


def test_the_cache_builds_once(tmp_path):
    spec = WorldSpec("simple", 20)
    folder = cached_world(spec, tmp_path / "worlds")
    before = (folder / "card.yaml").stat().st_mtime_ns
    assert cached_world(spec, tmp_path / "worlds") == folder
    assert (folder / "card.yaml").stat().st_mtime_ns == before
    assert cached_world(WorldSpec("simple", 20, hops=(1,)), tmp_path / "worlds") != folder
    assert read_world(folder) == build_world(spec)


# -- specs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (WorldSpec("hard"), UnknownNameError, "unknown level 'hard'"),
        (WorldSpec(split="tests"), UnknownNameError, "did you mean 'test'"),
        (WorldSpec(size=0), UsageError, "at least 1 question, got 0"),
        (WorldSpec(size=6), UsageError, "6 questions is too small .* at least 7"),
        (WorldSpec(hops=()), UsageError, "hops must be"),
        (WorldSpec(hops=(1, 5)), UsageError, "hops must be"),
        (WorldSpec(hops=(2, 2)), UsageError, "hops must be"),
        (WorldSpec(strata=("1",)), UsageError, "strata are chosen in worlds of level full"),
        (WorldSpec("full", strata=("1", "1")), UsageError, "each once"),
        (WorldSpec("full", strata=("2-6",)), UnknownNameError, "unknown stratum '2-6'; did you mean '2-5'"),
        (WorldSpec("full", 20, strata=("reformulation",)), UsageError, "no further single question of 1 hops in the"),
    ],
)
def test_specs_that_no_world_can_be_built_from(spec, error, message):
    with pytest.raises(error, match=message):
        build_world(spec)


@pytest.mark.parametrize("level", LEVELS)
def test_worlds_of_some_hops_only(level):
    built = build_world(WorldSpec(level, 20, hops=(1,)))
    assert {(q.kind, q.metadata["hops"]) for q in built.questions} == {("single", 1)}
    built = build_world(WorldSpec(level, 20, hops=(4, 3)))
    assert {q.metadata["hops"] for q in built.questions} == {3, 4}


def test_the_examples_of_the_docs_are_of_a_world(world):
    page = (Path(__file__).parents[2] / "docs" / "do" / "worlds.md").read_text()
    table = [
        line.split("|")[4] for line in page.splitlines() if line.startswith(tuple(f"| {kind} " for kind, _ in MIX))
    ]
    examples = [example.split(" (no page")[0].strip() for cell in table for example in cell.split("·")]
    assert len(examples) == len(MIX) + 1
    assert set(examples) <= {question.text for question in world("simple", size=500).questions}
    quoted = [" ".join(part.replace("\n> ", " ").split()) for part in page.split("\n\n") if part.startswith("> **")]
    for level, quote in zip(("simple", "full"), quoted, strict=True):
        title, text = quote.removeprefix("> **").split("** ", 1)
        assert (title, text) in {(passage.title, passage.text) for passage in world(level, size=500).passages}


# -- large worlds: what is rare in small ones ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_rare_cases_of_large_worlds(world, level):
    built = world(level, seed=1, size=2000)  # in `full` it has titles that do not find their pages
    graph = graph_of(built)
    assert len({question.text for question in built.questions}) == 2000
    for question in built.questions:
        form = question.metadata["form"]
        (answer,) = evaluate(graph, form)  # no ties, although many entities share a year
        if "comparison" not in question.kind:
            named = {graph.entities[title].name for title in (*starts(form), *question.gold_titles)}
            assert graph.display(answer) not in named
    years = [magnitude(triple.object) for triple in built.triples if triple.relation == "opened"]
    assert level == "full" or len(set(years)) < len(years)
    assert report_of(built)["retrieval"]["title_finds_gold@3"] == 1.0


def patterns(clauses):
    """Regular expressions that match what is made of templates."""
    return [re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(clause)) + r"[.?]?", re.IGNORECASE) for clause in clauses]


def test_pages_and_questions_use_the_templates_of_their_half_only(world):
    phrases = language_of("simple").phrases
    for split, half in (("train", 0), ("validation", 0), ("test", 1)):
        built = world("simple", split)
        said = [patterns(clause for one in phrases.values() for clause in one.state[i]) for i in (0, 1)]
        asked = [patterns(clause for one in phrases.values() for clause in one.ask[i]) for i in (0, 1)]
        sentences = [
            s.strip() for question in built.questions for page in question.paragraphs for s in page.sentences[1:]
        ]
        hops = [hop.question for question in built.questions for hop in question.hops]
        for texts, halves in ((sentences, said), (hops, asked)):
            assert all(any(pattern.fullmatch(text) for pattern in halves[half]) for text in texts)
            assert not any(pattern.fullmatch(text) for text in texts for pattern in halves[1 - half])
    for split, half in (("train", 0), ("test", 1)):
        text = " ".join(passage.text for passage in world("full", split).passages).lower()
        fixed = [[frame.replace("{c}", "").strip(" ,") for frame in frames] for frames in language_of("full").frames]
        assert all(frame in text for frame in fixed[half])
        assert not any(frame in text for frame in fixed[1 - half])


def test_no_answer_is_frequent(world):
    for level in LEVELS:
        built = world(level)
        unnamed = Counter(q.answers[0] for q in built.questions if "comparison" not in q.kind)
        assert max(unnamed.values()) <= 0.02 * SIZE


def test_a_namesake_of_what_the_question_names_is_no_answer():
    graph = Graph()
    for note in ("poet", "chemist", "sailor"):
        graph.add_entity(Entity(f"Ann Bo ({note})", "Ann Bo", "person", "she", note, shared=True))
    graph.add_entity(Entity("Cid Bo", "Cid Bo", "person", "he", "poet"))
    graph.add("Ann Bo (poet)", "mother", "Ann Bo (chemist)")
    graph.add("Ann Bo (sailor)", "mother", "Cid Bo")
    drafter = Drafter(graph, WorldSpec("full", 100, hops=(1,)), random.Random(0))
    drawn = {drafter.draw("single", 1, lambda draft: True).answer}
    with pytest.raises(UsageError, match="no further single question"):
        drafter.draw("single", 1, lambda draft: True)
    assert drawn == {"Cid Bo"}
