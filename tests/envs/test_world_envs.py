import gymnasium
import pytest

from searchgym.envs.cards import EnvCard
from searchgym.envs.registration import registered
from searchgym.envs.task import load_task
from searchgym.errors import UsageError
from searchgym.options import name_of
from searchgym.options.cards import find_card, list_cards, load_card

CARDS = [load_card(EnvCard, path) for path in list_cards("envs").values()]
WORLDS = [card for card in CARDS if name_of(card.questions) == "world"]


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path))
    return tmp_path


def test_the_cards_say_how_many_questions_there_are():
    assert {"searchgym/World-v0", "searchgym/WorldFull-v0"} <= {card.id for card in WORLDS} <= set(registered())
    for card in WORLDS:  # questions of kind open are counted in tests/questions
        assert (card.questions.count, card.questions.split_name) == (500, card.questions.split)


def test_a_world_is_generated_once_and_played(own_home):
    env = gymnasium.make("searchgym/World-v0", questions={"seed": 7, "size": 30}).unwrapped
    assert len(env.task.questions) == 30
    assert (env.task.card.questions.seed, env.task.split) == (7, "validation")
    (folder,) = (path for path in (own_home / "worlds").iterdir() if path.name != ".lock")
    question = env.task.questions[0]
    env.reset(seed=0, options={"question_id": question.id})
    info = env.step(f"<search>{question.gold_titles[0]}</search>")[4]
    assert info["hits"][0]["title"] == question.gold_titles[0]
    assert env.step(f"<answer>{question.answers[0]}</answer>")[1] == 1.0
    again = gymnasium.make("searchgym/World-v0", questions={"seed": 7, "size": 30}).unwrapped
    assert again.task.questions == env.task.questions
    assert [path for path in (own_home / "worlds").iterdir() if path.name != ".lock"] == [folder]


def test_a_world_in_the_distractor_setting_and_with_an_own_retriever():
    card = load_card(EnvCard, find_card("envs", "world"))
    task = load_task(card, questions={"size": 20}, distractors=True)
    (hits,) = task.retriever.search_for([task.questions[0].id], [task.questions[0].gold_titles[0]], 3)
    assert hits[0].passage.title == task.questions[0].gold_titles[0]
    seen = []
    load_task(card, questions={"size": 20}, retriever=lambda passages: seen.extend(passages) or task.retriever)
    assert len(seen) > 80


@pytest.mark.parametrize(
    ("name", "world", "message"),
    [
        ("World", {"sede": 7}, "did you mean 'seed'"),
        ("World", {"level": "hard"}, "got 'hard'"),
        ("World", {"size": 3}, "too small"),
        ("World", 7, "a mapping such as"),
        ("World", {"kind": "worlds"}, "unknown question source 'worlds'; did you mean 'world'"),
        ("World", {"kind": "world", "n": 3}, r"questions\.n: unknown key"),
        ("Demo", {"seed": 7}, r"questions\.seed: unknown key"),
    ],
)
def test_bad_worlds(name, world, message):
    with pytest.raises(UsageError, match=message):
        gymnasium.make(f"searchgym/{name}-v0", questions=world)
