"""Behaviours in the oracle's demonstrations: what each writes, and where a question gives no occasion."""

import pytest
from credit_terms import terms_of
from test_demonstrations import OWN, form, task_of, turns

from searchgym.errors import UnknownNameError, UsageError
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.term import CreditContext
from searchgym.train.demonstrations.behaviours import WRITERS
from searchgym.train.demonstrations.oracle import demonstrate_search

__all__ = ["form"]
FIRST, SECOND, LAST = "<search> Bellowick</search>", "<search> Ivo Plint</search>", "<answer> Quessim</answer>"
TWO = {
    "verification": [
        FIRST,
        SECOND,
        "<think> I check this before I answer.</think><search> Quessim</search>",
        LAST,
    ],
    "authority": [
        FIRST,
        f"<think> The page Bellowick (film) is about this itself: I trust it most.</think>{SECOND}",
        f"<think> The page Ivo Plint is about this itself: I trust it most.</think>{LAST}",
    ],
    "adaptation": [
        f"<search> {OWN[0].text}</search>",
        f"<think> That asks too much at once: I search for one name.</think>{FIRST}",
        SECOND,
        LAST,
    ],
    "judgement": [
        FIRST,
        f"<judge>Yes</judge>{FIRST}",
        f"<judge>No</judge>{SECOND}",
        f"<judge>Yes</judge>{LAST}",
    ],
    "recovery": [
        FIRST,
        f"<think> The answer is Ivo Plint. No, this is only a step: the question asks for more.</think>{SECOND}",
        LAST,
    ],
}


@pytest.mark.parametrize("behaviour", WRITERS)
def test_what_each_behaviour_writes(form, behaviour):
    shown = demonstrate_search(task_of(OWN[:1]), form, 1, behaviours=[behaviour])
    assert turns(shown.episodes[0]) == TWO[behaviour]
    assert shown.counts == {"kept": 1, "early": 0, behaviour: 1}
    assert shown.episodes[0].scores["em"] == 1 and all(call.legal for call in shown.episodes[0].calls)


def test_without_occasion_a_question_shows_another_behaviour_or_none(form):
    one = demonstrate_search(task_of(OWN[1:2]), form, 1, behaviours=["recovery"])
    assert turns(one.episodes[0]) == ["<search> Farrowend</search>", "<answer> 1950</answer>"]
    assert one.counts == {"kept": 1, "early": 0}
    other = demonstrate_search(task_of(OWN[1:2]), form, 1, behaviours=["recovery", "adaptation"])
    assert other.counts["adaptation"] == 1
    older = demonstrate_search(task_of(OWN[2:3]), form, 1, behaviours=["verification"])
    check = "<think> I check this before I answer.</think><search> Bellowick</search>"
    assert turns(older.episodes[0])[-2:] == [check, "<answer> Bellowick</answer>"]


def test_early_answers_show_behaviours_too(form):
    """They are learnt whatever the answer; what was taken for a mistake is here the answer."""
    behaviours = sorted(WRITERS)
    shown = demonstrate_search(task_of(OWN[:1]), form, 1, early=1.0, behaviours=behaviours, seed=1)
    (episode,) = shown.episodes
    assert episode.scores["em"] == 0 and shown.counts["recovery"] == 0
    assert sum(shown.counts[name] for name in behaviours) == 1


def test_all_behaviours_take_turns_in_a_world(form):
    from searchgym.envs.registration import find_env
    from searchgym.envs.task import load_task

    shown = demonstrate_search(load_task(find_env("World")), form, 60, behaviours=sorted(WRITERS))
    assert min(shown.counts[name] for name in WRITERS) >= 5
    assert sum(shown.counts[name] for name in WRITERS) == 60


def test_reseek_is_shown_judgements_that_are_right(form):
    shown = demonstrate_search(task_of(OWN[:2]), form, 2, agent="reseek")
    assert [episode.agent for episode in shown.episodes] == ["reseek"] * 2
    assert TWO["judgement"] in map(turns, shown.episodes) and shown.counts["judgement"] == 2
    context = CreditContext({}, lambda _, text: 0.0, lambda own: task_of(OWN[:2]).find(own.question_id))
    for row in Credit(terms_of("judgement"), context).allocate(shown.episodes):
        assert row[-1] == pytest.approx(0.4)


def test_who_shows_no_behaviours(form):
    with pytest.raises(UnknownNameError, match="did you mean 'verification'"):
        demonstrate_search(task_of(), form, 1, behaviours=["verificaton"])
    with pytest.raises(UsageError, match="only search-r1 has behaviours"):
        demonstrate_search(task_of(), form, 1, agent="m-ask", behaviours=["verification"])
