"""``MaskedSpan-v0``: generated tasks, the environment, its reward and its oracle, in both modes."""

import asyncio
import itertools
import json
import os
import warnings
from collections import Counter
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from linked_pages import linked_pages

import searchgym  # noqa: F401
from searchgym.agents.base import load_agent
from searchgym.corpora.passages import write_corpus
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.envs.registration import find_env
from searchgym.envs.single import SearchEnv
from searchgym.envs.task import load_task
from searchgym.envs.vector import SearchVectorEnv
from searchgym.errors import CardError, DataError, UsageError
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.questions.masked.generate import SearchLimits, _pages, _within, generate
from searchgym.questions.masked.spans import HiddenSpan, Window
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.questions.storage import read_card
from searchgym.records import Passage, Question, SupportingFact
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.engine import Engine
from searchgym.scoring import normalise_answer, span_recall
from searchgym.testing import EnvironmentTests
from searchgym.testing.fakes import HOSTILE_ACTIONS
from searchgym.text import holds, norm

DATA = os.environ.get("SEARCHGYM_DATA", "")
PAGES = linked_pages(16, seed=5)
INDEX = build_in_memory(PAGES)


def made(source="kept", pages=PAGES, rules=None, **fields):
    spec = MaskedSpec(**({"n": 60, "split": "all", "source": source} | fields))
    return generate(pages, spec, rules or SearchLimits(), INDEX if pages is PAGES else build_in_memory(pages))


def tasks(source="kept", **fields):
    return [question for own in made(source, **fields).questions.values() for question in own]


def task_of(source="kept", **options):
    return load_task(find_env("searchgym/MaskedSpan-v0"), questions=tasks(source), retriever=INDEX, **options)


def played(task, agent):
    episodes = []
    asyncio.run(Engine(task, load_agent(agent), {}).run(task.questions, episodes.append))
    return episodes


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    write_corpus(tmp_path / "corpus.jsonl", PAGES)
    return str(tmp_path / "corpus.jsonl")


# -- generated tasks -----------------------------------------------------------------------------------------------


@pytest.mark.slow_cases
@pytest.mark.parametrize("source", ["kept", "hidden"])
def test_the_same_seed_gives_the_same_tasks_and_another_one_others(source):
    assert tasks(source) == tasks(source)
    if source == "kept":
        assert tasks(source) != tasks(source, seed=1)


def test_masks_have_their_number_and_the_text_keeps_the_rest():
    by_masks = Counter(question.metadata["masks"] for question in tasks(n=60))
    assert set(by_masks) == {1, 2, 3, 4}
    for question in tasks(masks=[2]):
        spans = question.answers[0].split("; ")
        assert question.metadata["masks"] == len(spans) == len(question.metadata["kinds"]) == 2
        assert question.kind == "masked-2" and not any(holds(question.text, span) for span in spans)


def test_what_many_masks_lack_fewer_make_up_for():
    short = [Passage(p.id, p.title, p.text.partition(". ")[0] + " in the north.") for p in linked_pages(16)]
    found = Counter(q.metadata["masks"] for q in tasks(pages=short, n=40, masks=[1, 4]))
    assert found[4] == 0 and found[1] > 20


@pytest.mark.parametrize("source", ["kept", "hidden"])
def test_splits_share_no_page(source):
    pages = {
        split: {norm(page) for q in own for page in (q.metadata["page"], *q.gold_titles)}
        for split, own in made(source).questions.items()
    }
    assert all(pages.values())
    for one, other in itertools.combinations(pages.values(), 2):
        assert not one & other


def test_parts_and_copies_of_a_page_are_in_one_split():
    """Ten pages of three parts each, whose texts differ, and a page whose text stands under many titles."""
    parts = [
        Passage(f"{n}-{part}", f"Page {n}", f"The house was bought by {a} {b} in the north of the land in days of old.")
        for n in range(10)
        for part, (a, b) in enumerate(zip(("Ada", "Bo", "Cal"), SURNAMES[n:], strict=False))
    ]
    found = made(pages=parts, masks=[1], n=200)
    pages = [{q.metadata["page"] for q in own} for own in found.questions.values()]
    assert all(pages) and sum(map(len, pages)) == len(set().union(*pages)) >= 8
    text = "The film was directed by Mara Vint in the north of the land where all of the lamps are lit at night."
    copies = [Passage(f"c{n}", f"Copy {n}", text) for n in range(10)]
    found = made(pages=copies, masks=[1], n=200, rules=SearchLimits(top_k=10))
    assert sum(bool(own) for own in found.questions.values()) == 1


SURNAMES = ("Abbot", "Berg", "Crane", "Dahl", "Eklund", "Frost", "Grieg", "Holm", "Ibsen", "Jansen", "Krogh", "Lund",
            "Moe", "Nygaard", "Olsen", "Post")  # fmt: skip


def test_spans_are_split_and_crossing_ones_counted():
    """Each of 60 pages states a span of the one before it, so that all are one component; two are copies."""
    passages = [Passage(str(n), f"Page {n}", f"Text {n}") for n in range(60)] + [Passage("60", "Page 7", "Other text")]
    windows = [Window(n, 0, 6, (HiddenSpan(((0, 4),), "link", ((n + 1) % 60,)),)) for n in range(60)]
    pages, counts = _pages(passages, windows), Counter()
    assert {split: len(own) for split, own in pages.items()} == pytest.approx(
        {"train": 48, "validation": 6, "test": 6}, abs=2
    )
    assert any({7, 60} <= own for own in pages.values())
    kept = [window for own in pages.values() for window in _within(windows, own, MaskedSpec(source="hidden"), counts)]
    of = {page: split for split, own in pages.items() for page in own}
    assert all(of[window.page] == of[page] for window in kept for span in window.spans for page in span.supports)
    assert counts == {"spans that only another split's pages state": 60 - len(kept)} and len(kept) < 60


def test_kept_sources_answer_and_hidden_ones_need_a_naming_page():
    by_title = {page.title: page for page in PAGES}
    for question in tasks("kept"):
        assert question.gold_titles == (question.metadata["page"],) and "hidden" not in question.metadata
    for question in tasks("hidden"):
        assert question.metadata["page"] not in question.gold_titles
        assert question.metadata["hidden"]["title"] == question.metadata["page"]
        for title in question.gold_titles:
            assert holds(by_title[title].text, question.metadata["page"])


def test_a_task_that_no_search_solves_is_refused():
    """A page that is cut before its span; a page whose name and sentence find others."""
    long = [Passage(p.id, p.title, "word " * 300 + ". " + p.text) for p in linked_pages(6)]
    with pytest.raises(DataError, match=r"gives no masked spans \(source: kept\): 18 passages"):
        made(pages=long, rules=SearchLimits(words=100))
    counts = made().counts
    assert counts["drafts that an oracle solves"] + counts["drafts: a span is not found"] == (
        counts["drafts"] - counts["drafts: the same text"]
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"n": 0}, "n must be at least 1"), ({"masks": []}, "masks are numbers from 1 to 4"),
     ({"masks": [1, 5]}, "masks are numbers from 1 to 4"), ({"masks": [0]}, "masks are numbers from 1 to 4")],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        made(**fields)


@pytest.mark.parametrize(
    "pages",
    [
        [Passage("1", "A", "Nothing.")],
        [Passage("1", "", "word")],
        [Passage(str(n), "Same", "The film was directed by Mara Vint in the north of the land.") for n in range(3)],
        [Passage("1", "A", "x" * 2**20), Passage("2", "B", "word")],
    ],
)  # fmt: skip
def test_corpora_that_nothing_can_be_hidden_in_say_why(pages):
    with pytest.raises(DataError, match="gives no masked spans"):
        made("hidden", pages=pages)


def test_copies_of_a_page_are_one_task():
    text = "The film was directed by Mara Vint in the north of the land where all of the lamps are lit at night."
    pages = [Passage(str(n), "Zor", text) for n in range(20)]
    assert len(tasks(pages=pages, masks=[1])) == 1


def test_pages_without_a_title_are_asked_by_their_text():
    pages = [Passage(p.id, "", p.text) for p in linked_pages(12)]
    asked = tasks(pages=pages)
    assert asked and all(q.gold_titles is None and q.metadata["queries"] for q in asked)


def test_facts_that_are_known_stand_in_for_a_pack(tmp_path, monkeypatch):
    from searchgym.questions.worlds import build_world, write_world
    from searchgym.questions.worlds.schema import WorldSpec

    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    world = write_world(build_world(WorldSpec("simple", size=60, seed=3, split="train")), tmp_path / "world")
    spec = {"triples": str(world / "triples.tsv"), "masks": [1, 2]}
    env = gymnasium.make("searchgym/MaskedSpan-v0", corpus=world / "corpus.jsonl", questions=spec)
    asked = env.unwrapped.task.questions
    assert {q.metadata["masks"] for q in asked} == {1, 2} and "link" in {k for q in asked for k in q.metadata["kinds"]}


# -- the reward ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "gold", "recall"),
    [
        ("Ada Bel", "Ada Bel", 1.0),
        ("the ada, bel.", "Ada Bel", 1.0),
        ("Ada", "Ada Bel", 0.5),
        ("Ada Bel of Zor city", "Ada Bel", 0.0),  # five words for two
        ("Ada Bel of Zor", "Ada Bel", 1.0),  # four
        ("Ada Bel; 1931", "Ada Bel; 1931", 1.0),
        ("1931; Ada Bel", "Ada Bel; 1931", 0.0),  # each at its place
        ("Ada Bel", "Ada Bel; 1931", 0.5),
        ("; 1931", "Ada Bel; 1931", 0.5),
        ("Ada Bel; 1931; 1932", "Ada Bel; 1931", 0.0),  # more parts than masks
        ("Ada Bel 1931", "Ada Bel; 1931", 0.5),
        ("", "Ada Bel", 0.0),
        (";;;;", "a b; c; d; e", 0.0),
        ("Bel Bel", "Ada Bel", 0.5),  # a word counts once
        ("one; x two; y", "one; two", 0.0),
    ],
)  # fmt: skip
def test_recall_by_hand(said, gold, recall):
    assert span_recall(said, gold) == recall


def test_listing_everything_earns_nothing():
    for question in tasks("kept"):
        everything = " ".join(page.text for page in PAGES)
        assert span_recall(everything, question.answers[0]) == 0.0
        spans = question.answers[0].split("; ")
        longest = "; ".join(f"{span} " + "x " * len(normalise_answer(span).split()) for span in spans)
        assert span_recall(longest, question.answers[0]) == 1.0
        assert span_recall(f"{longest} x", question.answers[0]) == pytest.approx(1 - 1 / len(spans))


# -- the environment -----------------------------------------------------------------------------------------------


class TestHiddenSources(EnvironmentTests):
    """The contract of environments, also between a vector and single environments."""

    hostile = tuple(action for action in HOSTILE_ACTIONS if len(action) < 10_000)

    def task(self, retriever=None):
        return load_task(find_env("searchgym/MaskedSpan-v0"), questions=HIDDEN, retriever=retriever or INDEX)

    def make_env(self, retriever=None):
        return SearchEnv(self.task(retriever), render_mode="ansi")

    def make_vector(self, number):
        return SearchVectorEnv(self.task(), number)


HIDDEN = tasks("hidden")


@pytest.mark.slow
@pytest.mark.parametrize("source", ["kept", "hidden"])
def test_it_is_made_by_its_id_and_cached(corpus, source, monkeypatch):
    options = {"corpus": corpus, "questions": {"source": source, "n": 40}}
    env = gymnasium.make("searchgym/MaskedSpan-v0", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(env.unwrapped, skip_render_check=True)
    from searchgym.questions.masked import storage

    monkeypatch.setattr(storage, "generate", None)  # generated once, then read
    vector = gymnasium.make_vec("searchgym/MaskedSpan-v0", num_envs=3, **options)
    together, _ = vector.reset(seed=[4, 5, 6])
    assert list(together) == [gymnasium.make("searchgym/MaskedSpan-v0", **options).reset(seed=s)[0] for s in (4, 5, 6)]
    (folder,) = [path for path in (Path(corpus).parent / "home" / "masked").iterdir() if path.is_dir()]
    card = read_card(folder)
    assert card["source"] == source and card["questions"]["train"] == len(env.unwrapped.task.questions)
    assert card["counts"]["windows"] > 0


def test_an_episode_earns_its_recall(corpus):
    env = gymnasium.make("searchgym/MaskedSpan-v0", corpus=corpus, questions={"masks": [2]})
    _, info = env.reset(seed=0)
    asked = env.unwrapped.task.find(info["question_id"])
    env.step(f"<search>{asked.metadata['queries'][0]}</search>")
    first = asked.answers[0].split("; ")[0]
    _, reward, done, _, info = env.step(f"<answer>{first}</answer>")
    assert (reward, done, info["em"]) == (0.5, True, 0.0)


def test_options_that_do_not_fit_are_refused(corpus):
    with pytest.raises(UsageError, match=r"hides parts of a corpus of yours: pass corpus=PATH"):
        gymnasium.make("searchgym/MaskedSpan-v0")
    with pytest.raises((UsageError, CardError), match=r"questions\.sourc: unknown key; did you mean 'source'"):
        gymnasium.make("searchgym/MaskedSpan-v0", corpus=corpus, questions={"sourc": "kept"})
    with pytest.raises((UsageError, CardError), match="'gone'"):
        gymnasium.make("searchgym/MaskedSpan-v0", corpus=corpus, questions={"source": "gone"})
    with pytest.raises(UsageError, match=r"questions\.masks: unknown key"):
        gymnasium.make("searchgym/Corpus-v0", corpus=corpus, questions={"masks": [2]})
    with pytest.raises(UsageError, match="masks are numbers"):
        gymnasium.make("searchgym/MaskedSpan-v0", corpus=corpus, questions={"masks": [9]})


def test_written_tasks_hide_their_sources_wherever_they_are_asked(tmp_path):
    write_questions(tmp_path / "masked.jsonl", HIDDEN)
    assert read_questions(tmp_path / "masked.jsonl") == HIDDEN
    task = load_task(find_env("searchgym/MaskedSpan-v0"), questions=str(tmp_path / "masked.jsonl"), retriever=INDEX)
    for asked in task.questions:
        (hits,) = task.retriever.search_for([asked.id], [asked.metadata["page"]], 5)
        assert asked.metadata["page"] not in {hit.passage.title for hit in hits}


def test_a_run_over_hidden_sources_is_recorded_and_resumed(tmp_path):
    task = task_of("hidden")
    agent = load_agent("span-oracle")
    scores = evaluate(task, agent, tmp_path / "run", {})
    assert scores["reward"] == scores["em"] == 1.0
    retriever = json.loads((tmp_path / "run" / "run.json").read_text())["retriever"]
    assert retriever["retriever"] == "HidingRetriever" and retriever["passages"] == len(PAGES)
    assert evaluate(task, agent, tmp_path / "run", {}, EvalOptions(resume=True)) == scores


# -- the oracle ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["kept", "hidden"])
def test_the_oracle_fills_in_everything_in_both_modes(source):
    episodes = played(task_of(source), "span-oracle")
    assert episodes and all(episode.reward == 1.0 and episode.scores["em"] == 1.0 for episode in episodes)


def test_the_oracle_says_only_what_it_saw():
    """Over pages without what is hidden it finds nothing, so its recall measures searches and not the gold."""
    bare = build_in_memory([Passage(page.id, page.title, page.title) for page in PAGES])
    task = load_task(find_env("searchgym/MaskedSpan-v0"), questions=tasks("kept", masks=[1]), retriever=bare)
    dates = [e.reward for e in played(task, "span-oracle") if "year" in task.find(e.question_id).metadata["kinds"]]
    assert dates and not any(dates)


def test_the_oracle_reads_other_questions_by_their_gold_titles():
    page = next(page for page in PAGES if "painter" in page.text)
    asked = [
        Question("q", "What was it?", ("a painter",), supporting_facts=(SupportingFact(page.title),)),
        Question("r", "Who?", ("nobody at all",), supporting_facts=(SupportingFact(page.title),)),
        Question("s", "Who?", ("x; y",)),
    ]
    task = load_task(find_env("searchgym/MaskedSpan-v0"), questions=asked, retriever=INDEX)
    assert {e.question_id: e.answer.text for e in played(task, "span-oracle")} == {
        "q": "a painter", "r": "unknown", "s": "unknown",
    }  # fmt: skip


# -- real pages ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="SEARCHGYM_DATA is not set")
def test_real_pages_give_250_strict_spans_and_nothing_of_an_evaluation(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    files = [str(Path(DATA) / name / "questions.json") for name in ("2wikimultihopqa", "hotpotqa")]
    kept = [question for file in files for question in read_questions(file)]
    gold = {norm(title) for question in kept for title in question.gold_titles}
    answers = {norm(answer) for question in kept for answer in question.golds if len(answer.split()) > 1}
    corpus = str(Path(DATA) / "2wikimultihopqa" / "corpus.json")
    for source, fewest in (("kept", 1000), ("hidden", 250)):
        spec = {"source": source, "split": "all", "hold_out": files}
        task = load_task(find_env("searchgym/MaskedSpan-v0"), corpus=corpus, questions=spec)
        assert len(task.questions) >= fewest
        spans = {(q.metadata["page"], norm(part)) for q in task.questions for part in q.answers[0].split(";")}
        assert len(spans) >= 250
        pages = {norm(page) for q in task.questions for page in (q.metadata["page"], *q.gold_titles)}
        assert not pages & gold and not {said for _, said in spans} & (answers | gold)
        assert not {q.text for q in task.questions} & {q.text for q in kept}
        asked = task.questions[::40]
        names = [sorted(gold)[n % len(gold)] for n in range(len(asked))]
        found = task.retriever.search_for([q.id for q in asked], names, 10)
        assert not {norm(hit.passage.title) for hits in found for hit in hits} & gold
        assert all(e.reward == 1.0 for e in played(task.asking(asked), "span-oracle"))
