"""The scorers against golden cases worked by hand from the official definitions."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.errors import ScoringError, UnknownNameError, UsageError
from searchgym.records import Answer, Paragraph, Question, SupportingFact, Triple
from searchgym.scoring import (
    SCORERS,
    UNANSWERABLE_SUFFIX,
    aggregate,
    answer_overlap,
    check_ids,
    cover_match,
    exact_match,
    f1_score,
    golds_with_words,
    mean_scores,
    musique_f1_score,
    normalise_answer,
    score_predictions,
    score_question,
    word_cover_match,
)


def facts(*pairs):
    return tuple(SupportingFact(title, sentence) for title, sentence in pairs)


# -- normalisation, EM and F1 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  The  Beatles! ", "beatles"),
        ("a an THE", ""),
        ("", ""),
        ("?!.", ""),
        ("AC/DC", "acdc"),  # punctuation is deleted, not replaced by a space
        ("AC DC", "ac dc"),
        ("A.N. Other", "other"),  # punctuation goes first and leaves an article
        ("a-n-other", "another"),
        ("the_end", "theend"),
        ("Vitamin A", "vitamin"),
        ("theatre", "theatre"),
        ("1990–1991", "1990–1991"),  # only ASCII punctuation is deleted
        ("1990-1991", "19901991"),
        ("“Help!”", "“help”"),
        ("‘the’ end", "‘ ’ end"),  # a typographic quote is a word boundary
        ("Beyoncé", "beyoncé"),
        ("Tom &amp; Jerry", "tom amp jerry"),  # HTML stays
        ("x\u00a0\ty\u2003z", "x y z"),
        ("a\u0301", "\u0301"),  # a combining accent is no word character, so this a is an article
        ("İ", "i̇"),
        ("Straße", "straße"),  # lower case, not case folding
        ("Léa", "léa"),  # é is a word character
    ],
)
def test_normalise_answer(text, expected):
    assert normalise_answer(text) == expected


@pytest.mark.parametrize("text", [None, 3, b"paris", ["paris"]])
def test_only_text_can_be_scored(text):
    with pytest.raises(ScoringError, match=f"got {type(text).__name__}"):
        normalise_answer(text)


@pytest.mark.parametrize("score", [exact_match, f1_score, cover_match, word_cover_match, musique_f1_score])
def test_a_string_is_not_a_sequence_of_golds(score):
    with pytest.raises(UsageError, match="pass"):
        score("a", "paris")
    assert score("paris", []) == 0.0


@pytest.mark.parametrize(
    ("prediction", "golds", "em", "f1", "musique_f1", "cover"),
    [
        ("The Eiffel Tower", ["eiffel tower."], 1.0, 1.0, 1.0, 1.0),
        ("in Paris, France", ["Paris"], 0.0, 0.5, 0.5, 1.0),  # P 1/3, R 1
        ("Paris", ["in Paris, France"], 0.0, 0.5, 0.5, 0.0),
        ("new york new york", ["new york"], 0.0, 2 / 3, 2 / 3, 1.0),  # two of four words, repeats count once
        ("york new", ["new york"], 0.0, 1.0, 1.0, 0.0),
        ("no", ["nobody"], 0.0, 0.0, 0.0, 0.0),
        ("nobody", ["no"], 0.0, 0.0, 0.0, 1.0),  # substring of characters
        ("yes indeed", ["yes"], 0.0, 0.0, 2 / 3, 1.0),  # the closed-answer rule
        ("yes", ["yes indeed"], 0.0, 0.0, 2 / 3, 0.0),
        ("noanswer given", ["noanswer"], 0.0, 0.0, 2 / 3, 1.0),
        ("Yes.", ["yes"], 1.0, 1.0, 1.0, 1.0),
        ("no answer", ["noanswer"], 0.0, 0.0, 0.0, 0.0),
        ("no answer", ["no reply"], 0.0, 0.5, 0.5, 0.0),
        ("", ["Paris"], 0.0, 0.0, 0.0, 0.0),
        ("", ["the"], 1.0, 0.0, 1.0, 1.0),  # both normalise to nothing
        ("Paris", ["The"], 0.0, 0.0, 0.0, 1.0),
        ("NYC", ["New York", "nyc"], 1.0, 1.0, 1.0, 1.0),
        ("yes", ["no", "yes"], 1.0, 1.0, 1.0, 1.0),
        ("1990–1991", ["1990-1991"], 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_answers_by_hand(prediction, golds, em, f1, musique_f1, cover):
    assert exact_match(prediction, golds) == em
    assert f1_score(prediction, golds) == f1
    assert musique_f1_score(prediction, golds) == musique_f1
    assert cover_match(prediction, golds) == cover


@pytest.mark.parametrize(
    ("prediction", "golds", "cover"),
    [
        ("It is Paris, I think", ["Paris"], 1.0),
        ("nobody", ["no"], 0.0),
        ("I do not know.", ["no"], 0.0),
        ("well, no.", ["No"], 1.0),
        ("in 1912", ["19", "12"], 0.0),
        ("new big york", ["new york"], 0.0),
        ("york new", ["new york"], 0.0),
        ("in the old town, new the York", ["New York"], 1.0),  # articles are not words
        ("the band The Band", ["a band"], 1.0),
        ("", ["the"], 0.0),
        ("Paris", ["The", "!"], 0.0),
        ("Paris", ["London", "paris"], 1.0),
    ],
)
def test_covers_of_whole_words_by_hand(prediction, golds, cover):
    assert word_cover_match(prediction, golds) == cover


def test_the_largest_numbers_come_from_different_golds():
    # against "b": P 1/2, R 1, F1 2/3; against "b c d e f": P 1, R 2/5, F1 4/7
    assert answer_overlap("b c", ["b", "b c d e f"]) == (0.0, 2 / 3, 1.0, 1.0)


def test_golds_without_words_are_left_out_of_what_rewards_compare_with():
    golds = ["The The", "Rome", "!!!", "", "A.N.", "–"]
    assert golds_with_words(golds) == ["Rome", "–"]
    for text in ("", "the", "?!", "A.N."):
        assert (exact_match(text, golds), cover_match(text, golds)) == (1.0, 1.0)  # as the official scripts say
        assert (exact_match(text, golds_with_words(golds)), cover_match(text, golds_with_words(golds))) == (0.0, 0.0)
    with pytest.raises(UsageError, match="pass"):
        golds_with_words("paris")


@pytest.mark.parametrize(
    ("scorer", "em"),
    [("hotpotqa", 1.0), ("2wiki", 1.0), ("musique", 1.0), ("flashrag", 1.0), ("search_r1", 1.0), ("kilt", 0.0)],
)
def test_an_empty_answer_to_a_gold_without_words_has_the_official_score(scorer, em):
    question = Question("q", "Which band?", ("The The",))
    assert score_question(question, Answer(""), scorer)["em"] == em
    assert score_question(question, None, scorer)["em"] == 0.0


TEXT = st.one_of(
    st.text(max_size=30), st.lists(st.sampled_from(["yes", "no", "the", "a", "b", "b.", "B", "é", "–"])).map(" ".join)
)


@pytest.mark.slow
@given(TEXT, st.lists(TEXT, min_size=1, max_size=3))
def test_answer_properties(prediction, golds):
    overlap = answer_overlap(prediction, golds)
    _, f1, precision, recall = answer_overlap(prediction, golds[:1])
    assert f1 == (2 * precision * recall / (precision + recall) if precision else 0.0)  # to the bit, as the scripts
    assert all(0.0 <= value <= 1.0 for value in (*overlap, musique_f1_score(prediction, golds)))
    assert overlap.em == exact_match(prediction, golds)
    assert cover_match(prediction, golds) >= overlap.em
    assert overlap.f1 <= musique_f1_score(prediction, golds)
    if overlap.em:
        assert musique_f1_score(prediction, golds) == 1.0
        assert overlap.f1 == 1.0 or normalise_answer(prediction) == ""
    assert answer_overlap(prediction, golds[::-1]) == overlap
    for score in (exact_match, f1_score, musique_f1_score):
        assert score(prediction, golds[:1]) == score(golds[0], [prediction])


# -- HotpotQA ----------------------------------------------------------------------------------------------------------

HOTPOT = Question("h", "?", ("New York City",), aliases=("NYC",), supporting_facts=facts(("A", 0), ("B", 1)))


def test_hotpotqa_by_hand():
    answer = Answer("York City", supporting_facts=facts(("A", 0), ("A", 0), ("C", 0)))
    scores = score_question(HOTPOT, answer, "hotpotqa")
    assert scores == {
        "em": 0.0,
        "f1": pytest.approx(0.8),
        "precision": 1.0,
        "recall": 2 / 3,
        "sp_em": 0.0,
        "sp_f1": 0.5,
        "sp_precision": 0.5,  # the repeated pair counts once
        "sp_recall": 0.5,
        "joint_em": 0.0,
        "joint_f1": pytest.approx(2 * 0.5 * (1 / 3) / (0.5 + 1 / 3)),
        "joint_precision": 0.5,
        "joint_recall": pytest.approx(1 / 3),
    }
    assert score_question(HOTPOT, Answer("NYC"), "hotpotqa")["em"] == 0.0  # aliases are not HotpotQA's


def test_hotpotqa_all_right_and_titles_verbatim():
    right = score_question(HOTPOT, Answer("new york city", supporting_facts=facts(("B", 1), ("A", 0))), "hotpotqa")
    assert set(right.values()) == {1.0}
    more = score_question(HOTPOT, Answer("x", supporting_facts=facts(("B", 1), ("A", 0), ("A", 1))), "hotpotqa")
    assert (more["sp_em"], more["sp_precision"], more["sp_recall"]) == (0.0, 2 / 3, 1.0)
    lower = score_question(HOTPOT, Answer("new york city", supporting_facts=facts(("b", 1), ("a", 0))), "hotpotqa")
    assert (lower["sp_em"], lower["sp_f1"], lower["joint_f1"], lower["f1"]) == (0.0, 0.0, 0.0, 1.0)


def test_what_was_not_produced_is_none_and_what_is_unknown_is_absent():
    for supporting in (None, facts(("A", None))):  # pages without sentences are not sentence-level support
        scores = score_question(HOTPOT, Answer("x", supporting_facts=supporting), "hotpotqa")
        assert {key for key, value in scores.items() if value is None} == {
            f"{part}_{metric}" for part in ("sp", "joint") for metric in ("em", "f1", "precision", "recall")
        }
    produced = score_question(HOTPOT, Answer("x", supporting_facts=()), "hotpotqa")
    assert (produced["sp_em"], produced["sp_f1"], produced["sp_precision"]) == (0.0, 0.0, 0.0)
    for gold in (None, facts(("A", None))):
        question = Question("q", "?", ("x",), supporting_facts=gold)
        assert set(score_question(question, Answer("x", facts(("A", 0))), "hotpotqa")) == {
            "em",
            "f1",
            "precision",
            "recall",
        }


def test_empty_support_on_both_sides():
    question = Question("q", "?", ("x",), supporting_facts=())
    scores = score_question(question, Answer("x", supporting_facts=()), "hotpotqa")
    assert (scores["sp_em"], scores["sp_f1"], scores["joint_em"], scores["joint_f1"]) == (1.0, 0.0, 1.0, 0.0)


def test_no_answer_is_zero_even_where_nothing_would_match():
    question = Question("q", "?", ("A",), supporting_facts=facts(("T", 0)))
    assert score_question(question, Answer(""), "hotpotqa")["em"] == 1.0
    assert score_question(question, None, "hotpotqa")["em"] == 0.0
    assert score_question(question, None, "hotpotqa")["sp_em"] is None


# -- 2WikiMultihopQA ---------------------------------------------------------------------------------------------------

ALIASES = {"Q1": frozenset({"J. Doe", "Johnny"}), "Q2": frozenset({"United Kingdom", "British"})}
WIKI = Question(
    "w",
    "?",
    ("UK",),
    supporting_facts=facts(("Film", 0), ("John Doe", 1)),
    evidences=(Triple("Film", "director", "John Doe"), Triple("John Doe", "country", "UK")),
    evidence_ids=(Triple("Q9", "director", "Q1"), Triple("Q1", "country", "Q2")),
    answer_id="Q2",
)


def test_2wiki_all_right_through_aliases():
    answer = Answer(
        "British!",
        supporting_facts=facts(("FILM", 0), ("john doe", 1)),
        evidences=(Triple("film", "Director.", "J Doe"), Triple("JOHNNY", "country", "united  kingdom")),
    )
    right = score_question(WIKI, answer, "2wiki", ALIASES)
    assert set(right.values()) == {1.0}
    assert len(right) == 16
    without = score_question(WIKI, answer, "2wiki")
    assert (without["em"], without["sp_em"], without["evidence_em"], without["joint_em"]) == (0.0, 1.0, 0.0, 0.0)


def test_2wiki_partial_by_hand():
    answer = Answer("UK", facts(("Film", 0), ("film", 0), ("X", 2)), (Triple("Film", "director", "John Doe"),))
    scores = score_question(WIKI, answer, "2wiki", ALIASES)
    # duplicates by case survive: 2 of 3 predicted pairs hit; the one gold pair not found makes recall 2 / (2 + 1)
    assert (scores["sp_precision"], scores["sp_recall"]) == (2 / 3, 2 / 3)
    assert (scores["evidence_precision"], scores["evidence_recall"], scores["evidence_f1"]) == (1.0, 0.5, 2 / 3)
    assert scores["joint_recall"] == pytest.approx(1 / 3)
    assert scores["joint_f1"] == pytest.approx(4 / 9)  # P 2/3, R 1/3


def test_2wiki_gold_titles_that_differ_by_case_are_missed_twice():
    question = Question("q", "?", ("x",), supporting_facts=facts(("X", 0), ("x", 0), ("Y", 0)))
    scores = score_question(question, Answer("x", facts(("y", 0))), "2wiki")
    assert (scores["sp_precision"], scores["sp_recall"], scores["sp_f1"]) == (1.0, 1 / 3, 0.5)


def test_2wiki_an_extra_triple_is_no_exact_match():
    answer = Answer("UK", evidences=(*WIKI.evidences, Triple("Film", "year", "1999")))
    scores = score_question(WIKI, answer, "2wiki", ALIASES)
    assert (scores["evidence_em"], scores["evidence_precision"], scores["evidence_recall"]) == (0.0, 2 / 3, 1.0)


def test_2wiki_two_spellings_of_one_triple_exceed_one():
    question = dataclasses.replace(WIKI, evidences=WIKI.evidences[1:], evidence_ids=WIKI.evidence_ids[1:])
    evidences = (Triple("John Doe", "country", "UK"), Triple("Johnny", "country", "British"))
    scores = score_question(question, Answer("UK", evidences=evidences), "2wiki", ALIASES)
    assert (scores["evidence_em"], scores["evidence_precision"], scores["evidence_recall"]) == (0.0, 1.0, 2.0)
    assert scores["evidence_f1"] == pytest.approx(4 / 3)
    repeated = score_question(question, Answer("UK", evidences=evidences[:1] * 2), "2wiki", ALIASES)
    assert repeated["evidence_em"] == 1.0


def test_2wiki_evidence_keeps_articles_and_may_be_empty():
    question = Question("q", "?", ("x",), evidences=(Triple("The End", "is", "a"),))
    assert score_question(question, Answer("x", evidences=(Triple("End", "is", "a"),)), "2wiki")["evidence_em"] == 0.0
    assert score_question(question, Answer("x", evidences=(Triple("the end", "is", "A"),)), "2wiki")["evidence_em"] == 1
    empty = dataclasses.replace(question, evidences=())
    scores = score_question(empty, Answer("x", evidences=()), "2wiki")
    assert (scores["evidence_em"], scores["evidence_f1"]) == (1.0, 0.0)
    assert "joint_em" not in scores  # no gold sentences, so no joint metric


def test_2wiki_needs_support_and_evidence_for_joint():
    scores = score_question(WIKI, Answer("UK", facts(("Film", 0))), "2wiki")
    assert scores["sp_precision"] == 1.0
    assert scores["evidence_em"] is None
    assert scores["joint_em"] is None


def test_2wiki_refuses_what_it_cannot_align():
    broken = dataclasses.replace(WIKI, evidence_ids=WIKI.evidence_ids[:1])
    with pytest.raises(ScoringError, match=r"'w'.*relations"):
        score_question(broken, Answer("UK", evidences=()), "2wiki", ALIASES)
    with pytest.raises(UsageError, match="takes no entity aliases"):
        score_question(WIKI, Answer("UK"), "hotpotqa", ALIASES)


# -- MuSiQue -----------------------------------------------------------------------------------------------------------


def musique_question(name="m", answerable=True, supporting=(1, 3), count=5):
    paragraphs = tuple(Paragraph(f"P{i}", ("x",), i in supporting) for i in range(count))
    suffix = "" if answerable else UNANSWERABLE_SUFFIX
    return Question(name + suffix, "?", ("Rome",), ("yes Roma",), paragraphs=paragraphs, answerable=answerable)


def test_musique_answerable_by_hand():
    scores = score_question(musique_question(), Answer("Roma", paragraphs=(1, 1, 2, 99)), "musique")
    assert scores == {"em": 0.0, "f1": 2 / 3, "sp_em": 0.0, "sp_f1": 0.4, "sufficiency": None}  # P 1/3, R 1/2
    assert score_question(musique_question(), Answer("yes"), "musique")["f1"] == 2 / 3  # no closed-answer rule
    nothing = score_question(musique_question(supporting=()), Answer("Rome", paragraphs=()), "musique")
    assert (nothing["em"], nothing["sp_em"], nothing["sp_f1"]) == (1.0, 1.0, 1.0)
    assert score_question(musique_question(), Answer("Rome"), "musique")["sp_f1"] is None
    assert score_question(musique_question(), Answer("Rome", paragraphs=()), "musique")["sp_f1"] == 0.0


def test_musique_full_groups_by_hand():
    questions, predictions = [], {}
    for name, first, second in (("a", True, False), ("b", True, True), ("c", False, False), ("d", True, False)):
        pair = [musique_question(name), musique_question(name, answerable=False)]
        questions += pair[::-1]
        text = "of Rome" if name == "d" else "Rome"
        predictions[pair[0].id] = Answer(text, paragraphs=(1,), answerable=first)
        predictions[pair[1].id] = Answer("Rome", paragraphs=(1, 3), answerable=second)
    scores = score_predictions(predictions, questions, "musique")
    f1 = 2 / 3  # of both "of Rome" and paragraph 1 alone
    assert scores == {
        "em": 0.75,
        "f1": pytest.approx((3 + f1) / 4),
        "sp_em": 0.0,
        "sp_f1": f1,
        "group_sufficiency": 0.5,  # pairs a and d
        "group_answer_sufficiency_em": 0.25,
        "group_answer_sufficiency_f1": pytest.approx((1 + f1) / 4),
        "group_support_sufficiency_em": 0.0,
        "group_support_sufficiency_f1": pytest.approx(f1 / 2),
    }
    silent = {name: dataclasses.replace(answer, answerable=None) for name, answer in predictions.items()}
    unscored = score_predictions(silent, questions, "musique")
    assert unscored["group_answer_sufficiency_f1"] is None
    assert unscored["em"] == 0.75
    with pytest.raises(ScoringError, match=r"1 of MuSiQue's questions have no twin.*'a#unanswerable'"):
        score_predictions({q.id: predictions[q.id] for q in questions[1:]}, questions[1:], "musique")


def test_musique_answerable_only_has_no_group_metrics():
    assert set(score_predictions({"m": Answer("Rome")}, [musique_question()], "musique")) == {
        "em",
        "f1",
        "sp_em",
        "sp_f1",
    }


@pytest.mark.parametrize(("name", "answerable"), [("m", False), ("m" + UNANSWERABLE_SUFFIX, True)])
def test_musique_ids_must_tell_twins_apart(name, answerable):
    question = Question(name, "?", ("Rome",), answerable=answerable)
    with pytest.raises(ScoringError, match="the reader must end the ids"):
        score_question(question, Answer("Rome"), "musique")


# -- FlashRAG and Search-R1 --------------------------------------------------------------------------------------------


def test_flashrag_and_search_r1_by_hand():
    question = Question("q", "?", ("Paris", "City of Light"), aliases=("Lutetia",))
    assert score_question(question, Answer("Paris, the city"), "flashrag") == {
        "em": 0.0,
        "f1": 2 / 3,  # with "Paris": P 1/2, R 1
        "precision": 0.5,
        "recall": 1.0,
        "acc": 1.0,
    }
    assert score_question(question, Answer("Paris, the city"), "search_r1") == {"em": 0.0, "sub_em": 1.0}
    assert score_question(question, Answer("Lutetia"), "search_r1") == {"em": 0.0, "sub_em": 0.0}
    assert score_question(question, Answer("the city of light."), "search_r1") == {"em": 1.0, "sub_em": 1.0}


# -- data sets ---------------------------------------------------------------------------------------------------------


def random_rows(count):
    rng = random.Random(7)
    words = ["yes", "no", "the", "a", "paris", "london", "–", "é"]
    questions = [
        Question(f"q{i}", "?", (" ".join(rng.choices(words, k=3)),), supporting_facts=facts(("A", 0), ("B", i % 3)))
        for i in range(count)
    ]
    support = [None, (), facts(("A", 0)), facts(("B", 1), ("A", 0), ("C", 5))]
    answers = {q.id: Answer(" ".join(rng.choices(words, k=2)), rng.choice(support)) for q in questions}
    return questions, answers


def test_kilt_by_hand():
    question = Question("q", "?", ("The Dunmere", "yes"))
    for text, em, f1, accuracy in [
        ("The Dunmere", 1.0, 1.0, 1.0),
        (" dunmere. ", 1.0, 1.0, 0.0),
        ("dunmere town", 0.0, 2 / 3, 0.0),
        ("yes sir", 0.0, 2 / 3, 0.0),  # no rule for yes and no
        ("the", 0.0, 0.0, 0.0),
        (" ", 0.0, 0.0, 0.0),
    ]:
        expected = {"em": em, "f1": pytest.approx(f1), "accuracy": accuracy}
        assert score_question(question, Answer(text), "kilt") == expected, text
    band = Question("q", "?", ("The The",))
    assert score_question(band, Answer("A the"), "kilt") == {"em": 1.0, "f1": 0.0, "accuracy": 0.0}
    assert score_question(band, Answer(""), "kilt") == score_question(band, None, "kilt")
    assert set(score_question(band, None, "kilt").values()) == {0.0}


@pytest.mark.parametrize("scorer", ["hotpotqa", "2wiki", "musique", "flashrag", "search_r1", "kilt"])
def test_batches_and_order_change_no_bit(scorer):
    questions, answers = random_rows(125)
    whole = score_predictions(answers, questions, scorer)
    assert whole["em"] == sum(exact_match(answers[q.id].text, q.answers) for q in questions) / 125
    for size in (1, 7, 124, 125):
        rows = {}
        for start in range(0, 125, size):
            batch = questions[start : start + size]
            rows |= {q.id: score_question(q, answers[q.id], scorer) for q in batch}
        assert aggregate(rows, scorer) == whole
        assert mean_scores(list(rows.values())) == whole
    shuffled = random.Random(1).sample(questions, 125)
    assert score_predictions(dict(reversed(answers.items())), shuffled, scorer) == whole


def test_mean_is_over_questions_not_batches():
    rows = [{"em": 1.0}] * 124 + [{"em": 0.0}]
    assert mean_scores(rows) == {"em": 124 / 125}


def test_mean_counts_none_as_zero_and_leaves_absent_keys_out():
    rows = [{"em": 1.0, "sp": None, "x": None}, {"em": 0.0, "sp": 0.5, "x": None}, {"em": 1.0}]
    assert mean_scores(rows) == {"em": 2 / 3, "sp": 0.25, "x": None}
    with pytest.raises(ScoringError, match="there are no scores"):
        mean_scores([])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_mean_is_exact_in_any_order(values, rng):
    shuffled = rng.sample(values, len(values))
    means = [mean_scores([{"f1": value} for value in order])["f1"] for order in (values, shuffled)]
    assert means[0].hex() == means[1].hex() == (math.fsum(values) / len(values)).hex()


def test_ids_must_match_one_to_one():
    questions = [Question("a", "?", ("x",)), Question("b", "?", ("x",))]
    check_ids(["b", "a"], questions)
    check_ids({"a": 1, "b": 2}, questions)
    check_ids(["a"], questions, missing="zero")
    for ids, message in [
        (["a"], "1 questions without a prediction.*'b'"),
        (["a", "b", "a"], "1 ids predicted more than once.*'a'"),
        (["a", "b", "c"], "1 predicted ids without a question.*'c'"),
    ]:
        with pytest.raises(ScoringError, match=message):
            check_ids(ids, questions)
    with pytest.raises(ScoringError, match="'c'"):
        check_ids(["c"], questions, missing="zero")
    with pytest.raises(ScoringError, match=r"1 question ids that stand twice.*'a'"):
        check_ids(["a"], [questions[0]] * 2)


def test_missing_predictions_count_zero_where_asked():
    questions = [HOTPOT, dataclasses.replace(HOTPOT, id="h2", answers=("A",))]
    predictions = {"h": Answer("new york city", facts(("A", 0), ("B", 1)))}
    scores = score_predictions(predictions, questions, "hotpotqa", missing="zero")
    assert set(scores.values()) == {0.5}
    with pytest.raises(ScoringError, match="'h2'"):
        score_predictions(predictions, questions, "hotpotqa")


def test_unknown_scorers():
    with pytest.raises(UnknownNameError, match="did you mean 'hotpotqa'"):
        score_question(HOTPOT, Answer("x"), "hotpot")
    with pytest.raises(UnknownNameError):
        aggregate({"h": {"em": 1.0}}, "squad")
    for name, score in SCORERS.items():
        assert score(Question("q", "?", ("x",)), Answer("X."))["em"] == 1.0, name
