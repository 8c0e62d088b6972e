"""Validation inside a training: the likeliest token every time, in the environment and on the questions of its own."""

import dataclasses
import json
from contextlib import closing

import pytest
import test_run
import torch
from transformers import AutoModelForCausalLM

from searchgym.corpora.questions import question_row
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.records import Answer, Search
from searchgym.testing.selfcheck.watched import WatchedSampler
from searchgym.train.loop.assembly import assemble, trainer_of
from searchgym.train.recipe.load import load_recipe

recipe = test_run.recipe  # a fixture: a recipe on the bundled questions with a small random model


class Noting:
    """Stands around a rollout and keeps, of each call, its kind, questions, requests, replies and episodes."""

    def __init__(self, rollout, sampler):
        self.rollout, self.sampler, self.seen = rollout, sampler, []
        self.give_up = rollout.give_up

    def __call__(self, questions, attempts, step, greedy):
        self.sampler.exchanges = []
        episodes = self.rollout(questions, attempts, step, greedy)
        self.seen.append((greedy, attempts, questions, self.sampler.exchanges, episodes))
        return episodes


@pytest.fixture
def calls(recipe, tmp_path):
    """The calls of a run whose validation has other questions, another reward and other hits than its training."""
    own = [
        dataclasses.replace(question, id=f"own-{question.id}", text=f"Tell me: {question.text}")
        for question in load_task(find_env("searchgym/Demo-v0")).questions[:6]
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps(question_row(question)) + "\n" for question in own))
    card = tmp_path / "agent" / "card.yaml"
    card.write_text(card.read_text().replace("test_run:OneTurn", "test_validation_in_training:Searching"))
    options = [f"validation.env_options={{reward: em, top_k: 1, questions: {file}}}"]
    loaded = load_recipe(str(recipe), options)
    parts = assemble(loaded, tmp_path / "run", WatchedSampler)
    noting = Noting(parts.rollout, parts.sampler)
    with closing(parts):
        trainer_of(loaded, dataclasses.replace(parts, rollout=noting), tmp_path / "run").run()
    return noting.seen


def likeliest(model, exchanges):
    """The share of sampled tokens that are the likeliest under a model."""
    hits = []
    for request, reply in exchanges:
        ids = torch.tensor([[*request.ids, *reply.ids]])
        with torch.no_grad():
            best = model(input_ids=ids).logits[0, len(request.ids) - 1 : -1].argmax(-1)
        hits += (best.numpy() == reply.ids).tolist()
    return sum(hits) / len(hits)


class Searching:
    """Searches once, whatever the model writes, and answers with the model's text."""

    async def run(self, question, io):
        chat = io.open("searcher", question=question.text)
        await chat.generate()
        observation = await io.step(Search((question.text,)))
        chat.observe(observation.text)
        await io.step(Answer((await chat.generate()).text))


def test_validation_is_greedy_and_has_its_own_environment(calls, tmp_path):
    start = AutoModelForCausalLM.from_pretrained(tmp_path / "model")  # equal rewards: the weights stay
    assert [call[0] for call in calls] == [True, False, False, True]  # before the first step, and after the last
    for greedy, attempts, questions, exchanges, episodes in calls:
        assert likeliest(start, exchanges) == 1 if greedy else likeliest(start, exchanges) < 0.5
        searches = [search for episode in episodes for search in episode.searches]
        assert {len(search.hits) for search in searches} == {1 if greedy else 3}
        assert attempts == (1 if greedy else 4)
        assert all(question.id.startswith("own-") == greedy for question in questions)
        # by exact match in validation; in training by the number of searches
        assert [e.reward for e in episodes] == [e.scores["em"] if greedy else 1.0 for e in episodes]
