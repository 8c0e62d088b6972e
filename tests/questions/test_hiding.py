"""The source page is never among the hits: by hand, over random corpora, and through environments."""

import random

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linked_pages import linked_pages

import searchgym  # noqa: F401
from searchgym.corpora.passages import write_corpus
from searchgym.corpora.questions import write_questions
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import RetrieverError, UsageError
from searchgym.questions.masked.generate import SearchLimits, generate
from searchgym.questions.masked.hiding import Hidden, HidingRetriever, hidden_from, hiding
from searchgym.questions.masked.spec import MaskedSpec
from searchgym.records import Hit, Passage, Question, SupportingFact, title_key
from searchgym.retrieval.index.index import build_in_memory
from searchgym.retrieval.retriever import QuestionRetriever, Retriever
from searchgym.text import norm

WORDS = ("lamp", "stair", "north", "quiet", "river", "glass")


class Everything:
    """Returns its passages in their order for any query, as a retriever that always finds the source first."""

    in_process = True

    def __init__(self, passages):
        self.pages, self.asked = list(passages), []

    def search(self, queries, k):
        self.asked.append((list(queries), k))
        return [[Hit(page, 1.0) for page in self.pages[:k]] for _ in queries]


def question(id, ids=(), title=""):
    hidden = {"hidden": {"ids": list(ids), "title": title}} if ids or title else {}
    return Question(id, f"text {id}", ("a",), metadata=hidden)


# -- the wrapper ---------------------------------------------------------------------------------------------------


def test_hits_are_filled_up_with_the_next_ones():
    pages = [Passage(str(n), f"T{n}", "text") for n in range(40)]
    inner = Everything(pages)
    wrapped = HidingRetriever(inner, {"a": Hidden(frozenset(map(str, range(20)))), "b": Hidden(title="T1")})
    first, second = wrapped.search_for(["a", "b"], ["x", "y"], 3)
    assert [hit.passage.id for hit in first] == ["20", "21", "22"]
    assert [hit.passage.id for hit in second] == ["0", "2", "3"]
    # one hit more is asked for; only the query that lacks hits is asked again, for twice as many each time
    assert inner.asked == [(["x", "y"], 4), (["x"], 8), (["x"], 16), (["x"], 32)]
    alone = HidingRetriever(Everything(pages), wrapped.hidden).search_for(["b"], ["y"], 3)
    assert alone == [second]
    assert isinstance(wrapped, QuestionRetriever) and not isinstance(wrapped, Retriever)


def test_a_corpus_of_nothing_else_gives_no_hit():
    pages = [Passage("1", "T", "text"), Passage("2", "T", "other")]
    assert HidingRetriever(Everything(pages), {"a": Hidden(title="T")}).search_for(["a"], ["x"], 5) == [[]]


def test_an_unknown_question_is_an_error_and_not_a_leak():
    with pytest.raises(RetrieverError, match="'b' is not in this environment"):
        HidingRetriever(Everything([]), {"a": Hidden()}).search_for(["b"], ["x"], 1)


def test_questions_that_hide_nothing_leave_the_retriever_alone():
    inner = Everything([])
    assert hiding(inner, [question("a"), question("b")]) is inner
    assert isinstance(hiding(inner, [question("a"), question("b", ["1"])]), HidingRetriever)


@pytest.mark.parametrize("said", ["p1", [], {}, {"ids": "p1", "title": ""}, {"ids": [1], "title": ""}, {"ids": []}])
def test_metadata_of_another_form_is_refused(said):
    with pytest.raises(UsageError, match="question 'q': hidden must be"):
        hidden_from(Question("q", "text", ("a",), metadata={"hidden": said}))


def test_hits_that_depend_on_the_question_already_are_refused():
    class Distractors:
        def search_for(self, question_ids, queries, k):
            return [[] for _ in queries]

    with pytest.raises(UsageError, match="one corpus for all questions"):
        hiding(Distractors(), [question("a", ["1"])])


# -- properties ----------------------------------------------------------------------------------------------------


@st.composite
def corpora(draw):
    """Small corpora with titles and texts that repeat, empty ones too."""
    text = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
    rows = draw(st.lists(st.tuples(st.sampled_from(("", "A", "B (film)", "C")), text), min_size=1, max_size=12))
    rows.append(("D", "lamp"))  # an index needs a word
    return [Passage(f"p{number}", title, said) for number, (title, said) in enumerate(rows)]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(corpora(), st.integers(1, 6), st.lists(st.sampled_from(WORDS), min_size=1, max_size=4), st.randoms())
def test_the_source_is_never_found_and_all_else_is(pages, k, words, rng):
    """Against the same search with the page taken out of its answer by hand."""
    source = rng.choice(pages)
    title = title_key(source.title)
    hidden = {page.id for page in pages if page.id == source.id or (title and title_key(page.title) == title)}
    inner = build_in_memory(pages)
    wrapped = HidingRetriever(inner, {"q": Hidden(frozenset([source.id]), title)})
    for query in (" ".join(words), source.text, source.title, f"{source.title} {source.text}"):
        (hits,) = wrapped.search_for(["q"], [query], k)
        (whole,) = inner.search([query], len(pages))
        assert hits == [hit for hit in whole if hit.passage.id not in hidden][:k]


@pytest.mark.slow_cases
@pytest.mark.parametrize("seed", range(12))
def test_the_source_is_never_among_the_hits_of_generated_tasks(seed):
    """Random corpora with parts and copies of pages; the texts that find the source best are asked."""
    rng = random.Random(seed)
    pages = linked_pages(8, seed)
    copied = [Passage(f"copy{n}", "", p.text) for n, p in enumerate(rng.sample(pages, 6))]
    parts = [Passage(f"part{n}", p.title, "Of the later years little is known.") for n, p in enumerate(pages[:4])]
    pages += copied
    index = build_in_memory(pages + parts)
    spec = MaskedSpec(n=60, seed=seed, source="hidden", split="all")
    made = generate(pages, spec, SearchLimits(), build_in_memory(pages))
    questions = [question for own in made.questions.values() for question in own]
    assert questions
    task = load_task(find_env("searchgym/MaskedSpan-v0"), questions=questions, retriever=index)
    by_id = {page.id: page for page in pages + parts}
    for asked in task.questions:
        own = asked.metadata["page"]
        source = next(page for page in pages if page.title == own)
        queries = [asked.text, source.text, own, f"{own} {asked.answers[0]}", *asked.metadata["queries"]]
        for hits in task.retriever.search_for([asked.id] * len(queries), queries, 5):
            assert all(hit.passage.title != own and by_id[hit.passage.id].text != source.text for hit in hits)
            assert hits


@pytest.mark.slow
def test_an_environment_never_shows_the_source(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    (tmp_path / "notes").mkdir()
    for page in linked_pages(10):
        (tmp_path / "notes" / f"{page.id}.md").write_text(f"# {page.title}\n\n{page.text}\n")
    options = {"corpus": tmp_path / "notes", "questions": {"source": "hidden", "split": "all"}}
    env = gymnasium.make("searchgym/MaskedSpan-v0", **options)
    for asked in env.unwrapped.task.questions:
        env.reset(options={"question_id": asked.id})
        for query in (asked.text, asked.metadata["page"], asked.answers[0]):
            _, _, _, _, info = env.step(f"<search>{query}</search>")
            assert info["hits"]
        titles = [hit.passage.title for search in env.unwrapped.state.searches for hit in search.hits]
        assert titles and asked.metadata["page"] not in titles
    with pytest.raises(UsageError, match="browse would open the pages that searches hide"):
        gymnasium.make("searchgym/MaskedSpan-v0", browse=True, **options)


@pytest.mark.slow
def test_pages_of_evaluation_questions_are_in_no_task_and_no_hit(tmp_path):
    pages = linked_pages(10)
    painters = [page for page in pages if "painter" in page.text]
    kept = [Question("e", "Who?", (painters[1].title,), supporting_facts=(SupportingFact(painters[0].title),))]
    write_questions(tmp_path / "eval.jsonl", kept)
    names = {norm(painters[0].title), norm(painters[1].title)}
    write_corpus(tmp_path / "corpus.jsonl", pages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
        for source in ("kept", "hidden"):
            spec = {"source": source, "split": "all", "hold_out": [str(tmp_path / "eval.jsonl")]}
            task = load_task(
                find_env("searchgym/MaskedSpan-v0"), corpus=str(tmp_path / "corpus.jsonl"), questions=spec, top_k=40
            )
            for asked in task.questions:
                said = {norm(part) for part in asked.answers[0].split(";")}
                assert not names & {norm(asked.metadata["page"]), *map(norm, asked.gold_titles), *said}
            (hits,) = task.retriever.search_for([task.questions[0].id], ["painter critic lived"], 40)
            assert len(hits) >= 20 and not names & {norm(hit.passage.title) for hit in hits}
