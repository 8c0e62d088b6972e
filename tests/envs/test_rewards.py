"""What the built-in rewards pay: nothing for an answer of articles and punctuation alone."""

import math
import re
from dataclasses import dataclass

import pytest
from support import CARD, TitleRetriever

from searchgym.corpora.questions import write_questions
from searchgym.envs.cards import EnvCard
from searchgym.envs.core import State
from searchgym.envs.reward import Reward, get_reward, reward_name, score_episode, unpaid
from searchgym.envs.single import SearchEnv
from searchgym.envs.task import load_task
from searchgym.errors import CardError, UnknownNameError, UsageError
from searchgym.options import kinds
from searchgym.options.cards import find_card, load_card
from searchgym.records import Answer, Question
from searchgym.train.loop.assembly import assemble
from searchgym.train.recipe.load import load_recipe


def state(golds, text):
    return State(Question("q", "What is it?", golds), answer=Answer(text), stop_reason="answer")


@pytest.mark.parametrize("text", ["", " \t", "the", "A.N.", "?!", "a an The", "\u00a0", '"The."'])
@pytest.mark.parametrize("gold", ["The The", "A", "!!!", "A.N."])
@pytest.mark.parametrize("name", kinds(Reward))
def test_an_answer_without_words_earns_nothing(name, gold, text):
    assert get_reward(name)(state((gold,), text)) == 0.0


@pytest.mark.parametrize("gold", ["The The", "A", "!!!"])
@pytest.mark.parametrize("name", kinds(Reward))
def test_a_gold_without_words_makes_no_other_answer_right(name, gold):
    texts = ("Rome", "Paris is a city, the one", "the a !!!")
    assert [get_reward(name)(state((gold, "Rome"), text)) for text in texts] == [1.0, 0.0, 0.0]


def test_an_agent_that_says_nothing_earns_nothing_in_an_episode():
    env = SearchEnv(load_task(CARD, questions=[Question("q", "Who?", ("The The",))], retriever=TitleRetriever()))
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("<answer></answer>")
    assert (reward, terminated, info["em"], info["f1"]) == (0.0, True, 0.0, 0.0)


def test_golds_that_no_reward_pays_are_counted_and_named():
    questions = [
        Question("q1", "?", ("The The",)), Question("q2", "?", ("Rome",)), Question("q3", "?", ("Rome",), ("A.N.",)),
        *(Question(f"q{n}", "?", ("!!!",)) for n in range(4, 9)),
    ]  # fmt: skip
    (note,) = unpaid(questions)
    assert note == (
        "7 of 8 questions have a gold answer of only articles and punctuation, which earns no reward: "
        "'The The' (q1), 'A.N.' (q3), '!!!' (q4), ..."
    )
    assert unpaid(questions[1:2]) == []


def test_a_training_says_which_golds_it_cannot_reward(tmp_path, capsys):
    """Before models are loaded."""
    asked = {"train": ("The The", "Rome"), "validation": ("!!!",)}
    for name, golds in asked.items():
        write_questions(tmp_path / f"{name}.jsonl", [Question(f"{name}{n}", "?", (g,)) for n, g in enumerate(golds)])
    chosen = [f"env_options={{questions: {tmp_path / 'train.jsonl'}}}", "env=searchgym/Demo-v0", "agent=nobody",
              f"validation.env_options={{questions: {tmp_path / 'validation.jsonl'}}}"]  # fmt: skip
    with pytest.raises(UnknownNameError, match="nobody"):
        assemble(load_recipe("tiny-grpo", chosen), tmp_path / "run")
    err = capsys.readouterr().err
    assert "note: 1 of 2 questions have" in err and "'The The' (train0)" in err
    assert "note: 1 of 1 questions have" in err and "'!!!' (validation0)" in err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("emm", "unknown reward 'emm'; did you mean 'em'"),
        ({"kind": "emm"}, "reward: unknown reward 'emm'; did you mean 'em'"),
        ({"kind": "em", "share": 1}, "share: unknown key"),
        ({}, "missing key kind, one of coverage, em, f1, recall, rubric"),
        ("test_rewards:Share", "reward test_rewards:Share: share: missing key"),
        ({"kind": "test_rewards:Share", "share": "half"}, "share: expected a number, got 'half'"),
        ({"kind": "test_rewards:Share", "share": math.nan}, "share: expected a finite number"),
        ({"kind": "test_rewards:state"}, "must be one class, a frozen dataclass that inherits Reward"),
        ({"kind": "no_module_x:Share"}, "cannot load 'no_module_x:Share'"),
        (3, "reward= is a function or the name of one, got int"),
    ],
)
def test_rewards_that_cannot_work_are_refused(given, said):
    with pytest.raises((CardError, UsageError), match=re.escape(said)):
        get_reward(given)


@dataclass(frozen=True)
class Share(Reward):
    """A user's reward with an option that must be given."""

    share: float

    def of_answer(self, text, question):
        return self.share


def test_rewards_are_written_into_records_with_their_options():
    assert reward_name(get_reward("em")) == reward_name(get_reward({"kind": "em"})) == "reward_em"
    assert reward_name(get_reward({"kind": "test_rewards:Share", "share": 0.5})) == "test_rewards:Share{'share': 0.5}"
    assert reward_name(get_reward("searchgym.train.selfplay.text:reward_kept")) == "reward_kept"


def test_a_card_names_a_reward_with_options(tmp_path):
    text = find_card("envs", "demo").read_text() + "reward: {kind: 'test_rewards:Share', share: 0.5}\n"
    (tmp_path / "card.yaml").write_text(re.sub(r"^reward: \w+\n|^id: .*", "", text, flags=re.M) + "id: Mine/Share-v0\n")
    task = load_task(load_card(EnvCard, tmp_path / "card.yaml"))
    assert score_episode(task.reward, state(("Rome",), "Paris")) == (0.5, {"em": 0.0, "f1": 0.0})
    assert score_episode(task.reward, state(("Rome",), "the"))[0] == 0.0
