"""Credit by evidence: VPR, CaRR's and LongTraceRL's mixing and the oracle, each worked by hand."""

import dataclasses

import numpy as np
import pytest
from advantage_options import advantage_options
from credit_terms import terms_of

from searchgym.cli.pipeline.controls import OracleAnswers, OracleCredit, OracleSearches
from searchgym.errors import CardError, DataError
from searchgym.records import (
    Call,
    Context,
    Episode,
    Hit,
    Opened,
    Paragraph,
    Passage,
    Question,
    Searched,
    Span,
    SupportingFact,
    Triple,
)
from searchgym.train.algorithms.advantages import assign_advantages, call_returns
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.evidence import connected, fetched_gains, named_entities, new_pages, supported
from searchgym.train.credit.term import CreditContext
from searchgym.train.recipe.load import load_recipe

PAGES = {
    "Zor": "Zor is a film. The director of Zor is Ulo Bel.",
    "Ulo Bel": "Ulo Bel is a painter. The mother of Ulo Bel is Ada Bel.",
    "Ada Bel": "Ada Bel is a sailor. The town of Ada Bel is Rox.",
    "Kim": "Kim is a film.",
}
CHAIN = Question(
    "q",
    "Which town is the mother of the director of Zor from?",
    ("Rox",),
    supporting_facts=tuple(SupportingFact(title) for title in ("Zor", "Ulo Bel", "Ada Bel")),
    evidences=(
        Triple("Zor", "director", "Ulo Bel"), Triple("Ulo Bel", "mother", "Ada Bel"), Triple("Ada Bel", "town", "Rox"),
    ),
)  # fmt: skip
COMPARED = Question(
    "q",
    "Which is older, Zor or Kim?",
    ("Kim",),
    supporting_facts=(SupportingFact("Zor"), SupportingFact("Kim")),
    evidences=(Triple("Zor", "year", "1901"), Triple("Kim", "year", "1900")),
)


def attempt(number, reward, *turns, stop="answer"):
    """Returns an episode of the monolithic agent: a search per turn, given by the titles it finds, then an answer."""
    logp = np.full(2, -1, np.float32)
    spans, calls, searches = [Span("prompt", np.array([1], np.int32))], [], []
    for turn, titles in enumerate([*turns, None], start=1):
        text = f"<search>{' '.join(titles)}</search>" if titles is not None else "<answer>Rox</answer>"
        place = sum(len(span.ids) for span in spans)
        spans.append(Span("model", np.array([2, 3], np.int32), logp))
        calls.append(Call(0, place, place + 2, "searcher", "policy", turn, text=text))
        spans.append(Span("observation", np.array([4], np.int32)))
        if titles is not None:
            hits = tuple(Hit(Passage(title, title, PAGES[title]), 1.0) for title in titles)
            searches.append(Searched(turn, " ".join(titles), hits))
    return Episode(
        f"q#{number}", "q", "a", "env", number, "g", contexts=[Context(None, 0, spans)], calls=calls,
        searches=searches, reward=reward, stop_reason=stop,
    )  # fmt: skip


def credit(*names, question=CHAIN, **options):
    return Credit(terms_of(*names, **options), CreditContext(question=lambda episode: question))


WHOLE = (["Zor", "Kim"], ["Zor"], ["Ulo Bel"], ["Ada Bel"])
"""Four searches, the second of which finds nothing new."""


def test_pages_count_for_the_turn_that_finds_them_first():
    assert new_pages(attempt(0, 1.0, *WHOLE), CHAIN) == {1: 1, 2: 0, 3: 1, 4: 1}
    opened = dataclasses.replace(attempt(0, 1.0, ["Zor"], ["Kim"]), opens=[Opened(2, "Ulo Bel", "Ulo Bel", 1, 1, 1)])
    assert new_pages(opened, CHAIN) == {1: 1, 2: 1}
    assert new_pages(attempt(0, 1.0, ["Zor"]), Question("q", "?", ("a",))) == {1: 0}


def test_vpr_by_hand():
    rows = credit("outcome", "vpr").allocate([attempt(0, 1.0, *WHOLE), attempt(1, 0.0, ["Kim"], ["Zor", "Ulo Bel"])])
    assert rows == [[1, 0, 1, 1, 1], [0, 1, 0]]


def test_the_call_that_acted_is_paid_not_a_trial_answer_of_its_turn():
    episode = attempt(0, 1.0, ["Zor"])
    trial = dataclasses.replace(episode.calls[0], prefix=True)
    episode = dataclasses.replace(episode, calls=[trial, episode.calls[0], trial, episode.calls[1]])
    assert credit("vpr").allocate([episode]) == [[0, 1, 0, 0]]


def test_turns_are_compared_with_the_same_turn_of_other_attempts():
    """VPR: first turns have verdicts 1, 0, 1, second ones (search, search, answer) 0, 1, 0.5, and no reward goes back.

    Centred over three: first turns mean 2/3, second 1/2; the third turn has two attempts, 1 and 0.
    """
    group = [
        attempt(0, 1.0, ["Zor"], ["Zor"]),
        attempt(1, 0.0, ["Kim"], ["Ulo Bel"]),
        attempt(2, 0.5, ["Zor"]),
    ]
    rows = credit("outcome", "vpr").rewards(group)
    samples = [s for e, given in zip(group, rows, strict=True) for s in samples_from(e, rewards=given.total)]
    options = advantage_options(normalise="role-turn", chain="none", std="none")
    assert call_returns(samples, options) == [[1, 0, 1], [0, 1, 0], [1, 0.5]]
    made, _ = assign_advantages(samples, options)
    by_call = [[float(s.advantage[call.start]) for call in s.calls] for s in made]
    assert by_call[0] == pytest.approx([1 / 3, -0.5, 0.5])
    assert by_call[1] == pytest.approx([-2 / 3, 0.5, -0.5])
    assert by_call[2] == pytest.approx([1 / 3, 0.0])


def test_measures_by_hand():
    """Zor and Ada Bel are found, what lies between is not: the fact about Zor has no way to the answer."""
    gap = attempt(0, 1.0, ["Zor"], ["Ada Bel"])
    assert (supported(CHAIN, gap), connected(CHAIN, gap)) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert connected(CHAIN, attempt(0, 1.0, *WHOLE)) == 1
    assert named_entities(CHAIN, gap) == pytest.approx(3 / 4)  # Zor, Ada Bel and Rox, not Ulo Bel
    one = attempt(0, 1.0, ["Zor"])
    assert (supported(COMPARED, one), connected(COMPARED, one)) == (0, 0)  # the page does not give the year
    dated = dataclasses.replace(COMPARED, evidences=(Triple("Zor", "director", "Ulo Bel"), COMPARED.evidences[1]))
    assert connected(dated, one) == 0.5  # its facts do not all hang together with the answer


@pytest.mark.parametrize(
    ("where", "scaled", "total"),
    [
        ("right", False, [0.7 + 0.3, 0.7 + 0.1, 0.0, 0.35 + 0.3]),
        ("wrong", False, [1.0, 1.0, 0.2, 0.5]),
        ("wrong", True, [1.0, 1.0, 0.2, 0.5]),
        ("all", False, [0.7 + 0.3, 0.7 + 0.1, 0.2, 0.35 + 0.3]),
    ],
)
def test_evidence_is_mixed_as_in_carr(where, scaled, total):
    """Shares 1, 1/3, 2/3 and 1, a = 0.3; the first two are right, the third is wrong, the last has F1 0.5."""
    group = [
        attempt(0, 1.0, *WHOLE),
        attempt(1, 1.0, ["Zor"], ["Ada Bel"]),
        attempt(2, 0.0, ["Ulo Bel"], ["Ada Bel"]),
        attempt(3, 0.5, *WHOLE),
    ]
    rows = credit("outcome", evidence={"where": where, "scaled": scaled}).allocate(group)
    assert [row[-1] for row in rows] == pytest.approx(total)
    assert all(value == 0 for row in rows for value in row[:-1])


def test_evidence_may_be_scaled_by_the_largest_of_the_group():
    group = [attempt(0, 1.0, ["Zor"], ["Ada Bel"]), attempt(1, 0.0, ["Ulo Bel"], ["Ada Bel"]), attempt(2, 0.0)]
    rows = credit("outcome", evidence={"where": "all", "scaled": True}).allocate(group)
    assert [row[-1] for row in rows] == pytest.approx([0.7 + 0.15, 0.3, 0.0])
    assert credit(evidence={"where": "wrong", "scaled": True}).allocate([group[2]]) == [[0.0]]


def test_longtracerl_counts_entities_of_the_text():
    group = [attempt(0, 1.0, ["Zor"], ["Ada Bel"])]
    ((*_, last),) = credit("outcome", evidence={"measure": "entities", "share": 0.5}).allocate(group)
    assert last == pytest.approx(0.5 + 0.5 * 0.75)


def test_questions_without_facts_keep_the_outcome():
    plain = Question("q", "?", ("Rox",))
    assert credit("outcome", "evidence", question=plain).allocate([attempt(0, 1.0, ["Zor"])]) == [[0, 1.0]]


def oracle_rows(*group, question=CHAIN, term=OracleCredit):
    return term().rewards(group, CreditContext(question=lambda episode: question))


def test_an_oracle_approves_of_finding_searches_and_grounded_answers():
    group = (
        attempt(0, 1.0, *WHOLE),
        attempt(1, 1.0, ["Zor"]),
        attempt(2, 0.0, *WHOLE[2:], ["Zor"]),
        attempt(3, 0.0, *WHOLE, stop="turns"),
    )
    assert oracle_rows(*group) == [[1, 0, 1, 1, 1], [1, 0], [1, 1, 1, 0], [1, 0, 1, 1, 0]]
    assert oracle_rows(*group, term=OracleSearches) == [[1, 0, 1, 1, 0], [1, 0], [1, 1, 1, 0], [1, 0, 1, 1, 0]]
    assert oracle_rows(*group, term=OracleAnswers) == [[0, 0, 0, 0, 1], [0, 0], [0, 0, 0, 0], [0, 0, 0, 0, 0]]
    with pytest.raises(DataError, match="names no gold page"):
        oracle_rows(attempt(0, 1.0), question=Question("q", "?", ("Rox",)))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["credit={outcome: 1, vpr: 1}"], "advantage.normalise is all"),
        (["credit={outcome: 1}", "advantage.chain=none"], "advantage.normalise is all"),
        (["credit={outcome: 1, evidence: {share: 1}}"], "evidence.share: expected below 1, got 1"),
        (["credit={outcome: 1, evidence: {share: 0}}"], "evidence.share: expected above 0, got 0"),
        (["credit={outcome: 1, evidence: {scaled: true}}"], "credit.evidence: scaled needs where wrong or all"),
        (
            ["credit={outcome: 1, evidence: {measure: facts}}"],
            "evidence.measure: got 'facts'. Known: connected, entities",
        ),
        (["credit={outcome: {where: all}}"], "outcome.where: unknown key"),
        (["credit={gain: 1, evidence: 1}", "advantage.chain=episode", "advantage.normalise=role"], "same again"),
        (["credit={gain: 1}", "advantage.estimator=tree"], "use it with normalise all"),
        (["advantage.estimator=tree", "advantage.estimator.std=none"], "estimator.std: unknown key"),
        (
            [
                *("advantage.chain=none", "advantage.normalise=role", "loss.kl_coef=0.1"),
                *("loss.kl_in=reward", "loss.kl_estimator=k1"),
            ],
            "does not pass on the KL penalty",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(values, said):
    with pytest.raises(CardError, match=said):
        load_recipe("tiny-grpo", values)


def test_gae_passes_rewards_back_whatever_the_chain():
    with pytest.raises(CardError, match="gae passes rewards back"):
        load_recipe("tiny-ppo", ["advantage.chain=none"])


def test_another_passage_of_a_gold_page_is_no_evidence():
    """MuSiQue's titles repeat: of two paragraphs of one title, one may be gold."""
    texts = {"history": "Zor was founded.", "sport": "Zor has a team."}
    pages = tuple(Paragraph("Zor", (text,), name == "sport") for name, text in texts.items())
    question = Question("q", "?", ("x",), paragraphs=pages)
    hits = {name: Hit(Passage(name, "Zor", text), 1.0) for name, text in texts.items()}
    searches = [Searched(1, "Zor", (hits["history"],)), Searched(2, "Zor", (hits["history"], hits["sport"]))]
    episode = Episode("e", "q", "a", "e", searches=searches)
    assert new_pages(episode, question) == {1: 0, 2: 1}
    assert fetched_gains(question, episode, Call(0, 1, 2, "ranker", "policy", 3, ranked=(0, 1))) == [0, 1]
    cut = Hit(Passage("c", "Zor", "Zor has"), 1.0)  # a corpus that cuts pages otherwise: the title decides
    other = Episode("e", "q", "a", "e", searches=[Searched(1, "Zor", (cut,))])
    assert new_pages(other, question) == {1: 1}
