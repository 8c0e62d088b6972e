"""The wrapper that lets a model answer again from its pages, what it leaves out, and the score of second answers."""

import pytest
from support import run_team
from test_knowing import TURNS, trained

from searchgym.agents.teams.reread import Reread
from searchgym.cli.evaluation.printed import _remarks
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import UsageError
from searchgym.eval.evidence import completeness, trial_scores
from searchgym.records import Answer, Call, Episode, Question

SECOND = "<answer>Dunmere</answer>"


def test_the_reader_answers_from_the_pages_alone_before_the_answer_counts():
    episode, prompts = run_team("search-r1-reread", {"searcher": TURNS, "reader": ["<answer>Ulm</answer>"]})
    assert [(call.role, call.prefix, call.turn, call.answer) for call in episode.calls] == [
        ("searcher", False, 1, None), ("searcher", False, 2, "Dunmere"), ("reader", True, 2, "Ulm"),
    ]  # fmt: skip
    assert (episode.answer.text, episode.turns, episode.notes) == ("Dunmere", 2, {"pages_left_out": 0.0})
    pages = [hit.passage for search in episode.searches for hit in search.hits]
    assert all(f"Doc{n}(Title: {page.title})" in prompts[2] for n, page in enumerate(pages, start=1))
    assert "from these pages alone" in prompts[2] and "<search>" not in prompts[2]
    assert episode.calls[2].context != episode.calls[0].context


def test_without_pages_there_is_no_second_answer():
    episode, _ = run_team("search-r1-reread", {"searcher": [SECOND]})
    assert [call.role for call in episode.calls] == ["searcher"] and not episode.notes


def test_each_page_is_shown_once_and_those_beyond_the_limit_are_counted():
    task = load_task(find_env("searchgym/Demo-v0"))
    hits = task.retriever.search(["Sarn Islands", "Dunmere"], 3)

    class Io:
        notes, documents = {}, ""

        def note(self, name, value):
            self.notes[name] = value

        def open(self, role, **fields):
            self.documents = fields["documents"]
            raise KeyError(role)

    for words, left in ((1500, 0), (60, None)):
        io = Io()
        with pytest.raises(KeyError):
            Reread("searchgym.agents.monolithic:Monolithic", passage_words=40, words=words).answer_from_pages(
                task.questions[0], [*hits[0], *hits[1], *hits[0]], io
            ).send(None)
        different = len({hit.passage.id for found in hits for hit in found})
        shown = io.documents.count("(Title: ")
        assert shown + io.notes["pages_left_out"] == different and shown >= 1
        assert io.notes["pages_left_out"] == left if left is not None else io.notes["pages_left_out"] > 0
    with pytest.raises(UsageError, match="passage_words is 9, words is 5"):
        Reread("searchgym.agents.monolithic:Monolithic", passage_words=9, words=5)


def test_it_wraps_teams_too():
    wrapped = Reread("searchgym.agents.jade:Jade", {"passage_words": 50})
    assert type(wrapped.agent).__name__ == "Jade" and wrapped.agent.passage_words == 50


@pytest.mark.parametrize("training", [True, False])
def test_saas_gives_a_trial_answer_in_training_too(training):
    episode = trained("saas", [SECOND], training)
    assert [(call.role, call.prefix) for call in episode.calls] == [("knower", True), ("searcher", False)]


# -- the score -----------------------------------------------------------------------------------------------------

GOLD = {"q": Question("q", "?", ("Ulm",)), "twin": Question("twin", "?", ("Ulm",), answerable=False)}


def answered(first, second, question="q", **fields):
    """Returns an episode with an answer and, unless it is None, a second one."""
    calls = (
        [] if second is None else [Call(0, 0, 0, turn=2, role="reader", model_key="policy", prefix=True, answer=second)]
    )
    return Episode("e", question, "a", "env", calls=calls, answer=first and Answer(first), **fields)


def test_completeness_of_episodes():
    episodes = [
        answered("Ulm", "ulm."), answered("Ulm", "Bonn"), answered("Ulm", None), answered("Bonn", "Ulm"),
        answered(None, "x"), answered("Ulm", "Ulm", "twin"), answered("Ulm", "Ulm", stop_reason="retriever_error"),
    ]  # fmt: skip
    score = completeness(episodes, GOLD)
    assert score == {"n": 5, "right": 0.6, "again": 0.4, "both": 0.2, "of_right": pytest.approx(1 / 3)}
    assert trial_scores(episodes, GOLD) == {"completeness": score}
    (line,) = _remarks({"completeness": score})
    assert line.startswith("completeness: 0.4000 of 5 episodes answer right again from their pages alone, 0.6000")


def test_without_second_answers_there_is_no_score():
    assert completeness([], GOLD) is completeness([answered("Ulm", None)], GOLD) is None
    assert completeness([answered("Bonn", "x")], GOLD)["of_right"] is None
