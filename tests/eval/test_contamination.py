"""Training questions among evaluation questions: planted copies are found, clean sets are not flagged."""

import json

import pytest

from searchgym.corpora.questions import read_questions
from searchgym.eval.contamination import find_copies, measure_contamination
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Question

TEMPLATES = ("Who directed the film {}?", "When was {} born?", "Which country is {} from?", "Where did {} die?")
NAMES = ("Casablanca", "Alice Munro", "Bob Marley", "Chinua Achebe", "Doris Lessing", "Ed Wood", "Frida Kahlo")
TRAINING = [form.format(name) for form in TEMPLATES for name in NAMES]

EVALUATION = [
    Question(f"e{number}", text, ("x",))
    for number, text in enumerate(
        [
            "Which magazine was started first, Arthur's Magazine or First for Women?",
            "The Oberoi family is part of a hotel company that has a head office in what city?",
            "What nationality was the husband of Margaret Atwood?",
            "Who directed the film Stalker?",
        ]
    )
]


@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        ("Which magazine was started first, Arthur's Magazine or First for Women?", "exact"),
        ("which magazine was started first arthurs magazine or first for women", "exact"),
        ("  Which  magazine was started first: Arthur's Magazine, or the First for Women ??", "exact"),
        ("Which magazine was started earlier, Arthur's Magazine or First for Women?", "near"),
        ("Arthur's Magazine or First for Women, which magazine was the one started first?", "near"),
        ("So, which magazine was started first: First for Women or Arthur's Magazine?", "near"),
    ],
)
def test_planted_copies_are_found(planted, kind):
    (copy,) = find_copies([*TRAINING, planted], EVALUATION)
    assert (copy.id, copy.kind, copy.training) == ("e0", kind, planted)
    assert copy.similarity == 1.0 if kind == "exact" else 0.8 <= copy.similarity <= 1.0


@pytest.mark.parametrize(
    "other",
    [
        "Who directed the film Solaris?",  # another entity in the same words
        "What nationality was the wife of Graeme Gibson?",
        "Which magazine was started first, Time or Life?",
        "The Oberoi family is part of what?",
    ],
)
def test_questions_about_others_are_no_copies(other):
    assert find_copies([*TRAINING, other], EVALUATION) == []


def test_the_same_entity_asked_something_else_is_no_copy():
    asked = [Question("b", "When was Gabriel Garcia Marquez born?", ("1927",))]
    assert find_copies([*TRAINING, "Where was Gabriel Garcia Marquez born?"], asked) == []


def test_clean_worlds_are_not_flagged_and_a_planted_third_is_found():
    train = [q.text for q in build_world(WorldSpec(size=300, seed=1, split="train")).questions]
    held = build_world(WorldSpec(size=150, seed=0, split="validation")).questions
    assert find_copies(train, held) == []
    planted = [question.text.replace("?", " ?").upper() for question in held[::3]]
    assert [copy.id for copy in find_copies([*train, *planted], held)] == [question.id for question in held[::3]]


def test_every_near_copy_that_a_search_through_all_pairs_finds_is_found():
    """The candidates are drawn by rare words; all pairs by a formula of their own must give the same."""
    from math import log

    from searchgym.scoring import normalise_answer

    held = build_world(WorldSpec(size=100, seed=1, split="train")).questions
    train = [" ".join(w for n, w in enumerate(q.text.split()) if n % 7 != at % 7) for at, q in enumerate(held)]
    bags = [frozenset(normalise_answer(text).split()) for text in dict.fromkeys(map(normalise_answer, train))]
    own = [frozenset(normalise_answer(q.text).split()) for q in held]
    everything = [*bags, *own]
    weight = {w: 1 + log(len(everything) / sum(w in bag for bag in everything)) for bag in everything for w in bag}

    def alike(a, b):
        return sum(weight[w] for w in a & b) / sum(weight[w] for w in a | b)

    asks = {"when", "where", "why", "how"}
    expected = {
        q.id for q, a in zip(held, own, strict=True) if any(a & asks == b & asks and alike(a, b) >= 0.8 for b in bags)
    }
    assert {copy.id for copy in find_copies(train, held)} == expected
    assert 10 < len(expected) < 90


def test_what_copies_do_to_a_score():
    em = {"e0": 1.0, "e1": 0.0, "e2": 1.0, "e3": 0.0}
    found = measure_contamination([*TRAINING, EVALUATION[0].text], EVALUATION, em)
    assert (found["exact"], found["near"], found["em_copies"]) == (1, 0, 1.0)
    assert found["em_others"] == pytest.approx(1 / 3)
    assert found["copies"][0]["id"] == "e0"
    clean = measure_contamination(TRAINING, EVALUATION, em)
    assert (clean["exact"], clean["near"], clean["em_copies"], clean["em_others"]) == (0, 0, None, 0.5)
    json.dumps(found)


def test_real_questions_do_not_contain_each_other(real_data):
    hotpot = read_questions(real_data / "hotpotqa" / "questions.json")
    dev = [row["question"] for row in json.loads((real_data / "hotpotqa" / "dev_simplified.json").read_text())]
    wiki = read_questions(real_data / "2wikimultihopqa" / "questions.json")
    assert find_copies([q.text for q in wiki], hotpot) == []
    assert find_copies(dev, hotpot) == []
    assert len(find_copies([*dev, *(q.text for q in hotpot[:7])], hotpot)) == 7


EDITS = {
    "a word dropped": lambda words, at: [w for n, w in enumerate(words) if n != at],
    "a word put in": lambda words, at: [*words[:at], "exactly", *words[at:]],
    "two parts exchanged": lambda words, at: [*words[at:], *words[:at]],
    "a word doubled": lambda words, at: [*words[: at + 1], *words[at:]],
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("edit", EDITS)
def test_edited_real_questions_are_found(real_data, edit):
    hotpot = read_questions(real_data / "hotpotqa" / "questions.json")
    dev = [row["question"] for row in json.loads((real_data / "hotpotqa" / "dev_simplified.json").read_text())]
    edited = []
    for number, question in enumerate(hotpot):
        words = question.text.split()
        edited.append(" ".join(EDITS[edit](words, number % len(words))))
    found = find_copies([*dev, *edited], hotpot)
    assert len(found) >= 95, sorted({q.id for q in hotpot} - {copy.id for copy in found})
