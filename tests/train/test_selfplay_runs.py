"""Self-play as users run it: the command, and a training that is killed again and again."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_pages import made_pages
from toy_training import QUESTIONS, exact, toy_recipe, toy_trainer

from searchgym.cli.practice.selfplay import fewer_searches
from searchgym.corpora.files import iter_jsonl
from searchgym.corpora.passages import write_corpus
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.eval.viewing.saved import SavedRun
from searchgym.records import Question, SupportingFact
from searchgym.train.loop.assembly import load_tasks
from searchgym.train.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
SMALL = [
    "steps=4",
    "rollout.questions=4",
    "rollout.attempts=4",
    "validation.every=0",
    "checkpoint.every=1",
    "optimizer.warmup_steps=1",
    "env_options={questions: {split: train, size: 60, seed: 1}}",
]
FILES = ("proposed.jsonl", "episodes.jsonl", "episodes.tokens.bin", "episodes.advantages.jsonl")


class Counting:
    """A source of questions whose state is the number of questions so far."""

    def __init__(self):
        self.drawn, self.seen, self.name, self.proposes = 0, [], "proposer", True

    def draw(self, step, count):
        self.drawn += count
        self.seen.append((step, self.drawn))
        return list(QUESTIONS[:count])

    def more(self, step, round, count, drawn):
        return []

    def learn(self, step, questions, episodes):
        return {"drawn": float(self.drawn)}

    def state(self):
        return {"drawn": self.drawn}

    def restore(self, state):
        self.drawn = state["drawn"]


@pytest.mark.slow
def test_a_training_saves_the_state_of_its_source_of_questions(tmp_path):
    toy_trainer(tmp_path / "run", toy_recipe(steps=4), questions=Counting()).run()
    source = Counting()
    result = toy_trainer(tmp_path / "run", toy_recipe(steps=6), questions=source, resume=True).run()
    assert source.seen == [(4, 20), (5, 24)]
    assert [row["proposer/drawn"] for row in result.rows[1:]] == [4, 8, 12, 16, 20, 24]


def command(*arguments):
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "searchgym", *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(*arguments):
    process = command(*arguments)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Folder of a run of self-play, and what its command printed."""
    whole = tmp_path_factory.mktemp("whole") / "run"
    return whole, json.loads(finished("selfplay", "tiny-selfplay", *SMALL, "--out", str(whole), "--json"))


@pytest.mark.slow
def test_self_play_killed_three_times_gives_the_same_bits(played, tmp_path):
    (whole, printed), parts = played, tmp_path / "parts"
    assert len(printed["first"]) == len(printed["last"]) == 5
    assert [third["valid"] for third in printed["proposer"]] == ["1.000"] * 3
    for step in (2, 4, 4):
        process = command("selfplay", "tiny-selfplay", *SMALL, "--out", str(parts), "--json", *resumed(parts))
        while lines(parts / "proposed.jsonl") < 4 * step and process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(signal.SIGKILL)
        process.communicate()
    finished("selfplay", "tiny-selfplay", *SMALL, "--out", str(parts), "--json", *resumed(parts))
    rows = [exact([row for _, row in iter_jsonl(run / "metrics.jsonl")]) for run in (whole, parts)]
    assert rows[0] == rows[1]
    for name in FILES:
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name
    weights = [run / "checkpoints" / "last" / "model.safetensors" for run in (whole, parts)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def steps_of(searches, hops):
    """Returns rows of metrics, one for each number of searches."""
    return [{"rollout/searches": value, "proposer/hops": hops} for value in searches]


@pytest.mark.parametrize(
    ("searches", "hops", "told"),
    [
        ([2.0, 2.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 1.2, True),
        ([2.0, 2.0, 1.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 2.1, False),  # questions need more than is searched for
        ([2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.6, 1.6], 1.2, False),  # it came back
        ([1.0] * 10, 1.2, False),
        ([2.0], 1.2, False),
        ([], 1.2, False),
    ],
)
def test_a_solver_that_stops_searching_for_questions_of_one_page_is_told(searches, hops, told):
    assert fewer_searches(steps_of(searches, hops)) == told


def lines(path):
    """Returns the number of lines of a file that may not exist yet."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def resumed(folder):
    """Returns the option to go on with a run that has begun."""
    return ["--resume"] if (folder / "recipe.yaml").is_file() else []


@pytest.mark.slow
def test_proposed_questions_are_kept_and_explain_their_episodes(played):
    asked = {question.id: question for question in read_questions(played[0] / "proposed.jsonl")}
    saved = SavedRun.read(played[0])
    assert {episode.question_id for episode in saved.episodes.values()} == asked.keys()
    episode = next(iter(saved.episodes.values()))
    assert set(saved.terms(episode)) == {"outcome", "waypoint"}


@pytest.mark.slow
def test_the_large_recipe_validates_on_pages_that_are_not_proposed(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    pages = made_pages(directors=9)
    write_corpus("corpus.jsonl", pages)
    held = [page.title for page in pages[:4]]
    facts = tuple(SupportingFact(title, 0) for title in held)
    write_questions("evaluation.jsonl", [Question("e", "Who?", ("x",), supporting_facts=facts)])
    recipe = load_recipe("qwen2.5-7b-selfplay")
    task, validation = load_tasks(recipe)
    proposer = recipe.proposer.source(task, recipe.env_options, recipe.seed)
    assert validation.questions and {q.metadata["split"] for q in validation.questions} == {"validation"}
    assert validation.retriever.corpus_sha256 == task.retriever.corpus_sha256
    asked = {title for question in validation.questions for title in question.gold_titles}
    proposed = {q.gold_titles for arm in proposer._ground.arms for q in _of_arm(proposer._ground, arm)}
    assert proposed and not asked & set().union(*proposed) and not set(held) & (asked | set().union(*proposed))


def _of_arm(ground, arm):
    questions = (ground.question(arm, walk, 0) for walk in itertools.islice(ground.walks(arm), 20))
    return [question for question in questions if not isinstance(question, str)]
