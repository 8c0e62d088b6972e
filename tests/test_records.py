import numpy as np
import pytest

from searchgym.errors import UsageError
from searchgym.records import Answer, Context, Episode, Paragraph, Question, Search, Span, SupportingFact, title_key


def span(kind, ids, logp=None):
    return Span(kind, np.array(ids, np.int32), None if logp is None else np.array(logp, np.float32))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Simon &amp; Garfunkel", "Simon & Garfunkel"),
        ("Beyonc\u00e9", "Beyonce\u0301"),
        (" A  B ", "A B"),
        ("A\u00a0B", "A B"),
    ],
)
def test_titles_that_are_the_same_page(one, other):
    assert title_key(one) == title_key(other)


def test_titles_that_are_not():
    assert title_key("Paris") != title_key("paris")


def test_gold_titles_come_in_order_without_repeats():
    facts = (SupportingFact("B", 0), SupportingFact("A &amp; C", 2), SupportingFact("B", 1), SupportingFact("A & C", 0))
    assert Question("q", "?", ("a",), supporting_facts=facts).gold_titles == ("B", "A & C")


def test_gold_titles_of_marked_paragraphs_and_of_nothing():
    pages = (Paragraph("A", ("x",)), Paragraph("B", ("y", " z"), supporting=True))
    question = Question("q", "?", ("a",), paragraphs=pages)
    assert question.gold_titles == ("B",)
    assert pages[1].text == "y z"
    assert Question("q", "?", ("a",)).gold_titles is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Question("q", "?", ()), "question 'q' has no gold answer"),
        (lambda: Question("q", "?", "valve"), "answers must be a tuple of strings, got 'valve'"),
        (lambda: Question("q", "?", ["valve"]), "answers must be a tuple of strings"),
        (lambda: Question("q", "?", ("a",), aliases=(1,)), "aliases must be a tuple of strings"),
        (lambda: Question("q", "?", ("", "Rome")), r"question 'q': a text of answers is blank: \('', 'Rome'\)"),
        (lambda: Question("q", "?", ("Rome",), aliases=("\u00a0",)), "question 'q': a text of aliases is blank"),
        (lambda: Search("query"), r'a search is Search\(\("query",\)\), got \'query\''),
        (lambda: Search(()), "a search is Search"),
        (lambda: Answer(42), "an answer is text, got int 42"),
    ],
)
def test_records_refuse_what_could_not_be_scored(build, message):
    with pytest.raises(UsageError, match=message):
        build()


def test_golds_are_answers_then_aliases_without_repeats():
    assert Question("q", "?", ("a", "b"), aliases=("b", "c")).golds == ("a", "b", "c")


def test_a_fork_inherits_the_tokens_before_it():
    root = Context(None, 0, [span("prompt", [1, 2]), span("model", [3, 4, 5], [-0.1, -0.2, -0.3])])
    child = Context(0, 4, [span("observation", [9])])
    grandchild = Context(1, 5, [span("model", [7], [-1.0])])
    episode = Episode("q#0", "q", "a", "e", contexts=[root, child, grandchild])
    assert episode.tokens(2) == [
        span("prompt", [1, 2]),
        span("model", [3, 4], [-0.1, -0.2]),
        span("observation", [9]),
        span("model", [7], [-1.0]),
    ]
    assert episode.tokens(0) == root.spans


def test_a_fork_past_the_end_of_its_parent_is_refused():
    episode = Episode("q#0", "q", "a", "e", contexts=[Context(None, 0, [span("prompt", [1])]), Context(0, 2)])
    with pytest.raises(ValueError, match="forks 1 tokens past the end"):
        episode.tokens(1)


def test_spans_compare_bit_for_bit():
    assert span("model", [1], [float("nan")]) == span("model", [1], [float("nan")])
    assert span("model", [1], [0.0]) != span("model", [1], [-0.0])
    assert span("model", [1]) != span("model", [1], [0.0])
    assert span("model", [1]) != span("prompt", [1])
    assert span("model", [1]) != "model"
