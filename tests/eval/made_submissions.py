"""Submissions made by scripted models on the bundled environment, for tests of the leaderboard."""

from __future__ import annotations

import dataclasses
import gzip
import json

import numpy as np

from searchgym.agents.base import load_agent
from searchgym.corpora.files import sha256_file
from searchgym.eval.leaderboard.manifest import EPISODES, PREDICTIONS, digest
from searchgym.eval.leaderboard.submission import About, write_submission
from searchgym.eval.leaderboard.tasks import Tasks
from searchgym.eval.runner import EvalOptions, evaluate
from searchgym.protocol import joined
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampled

SUITE = "name: small\nsummary: the bundled questions\nparts:\n  - env: Demo\n    n: 12\n"


class Characters:
    """Token format of one id per character."""

    continues = False

    def goes_on(self, finish):
        return False

    def thought_after(self, finish):
        return ""

    def encode(self, texts):
        return [np.array([ord(c) for c in joined(text.parts)], np.int32) for text in texts]

    def response_text(self, ids):
        return "".join(map(chr, ids))


class Says:
    """Sampler that searches, writes nonsense now and then, and answers; every third question gets its right answer."""

    def __init__(self, task, right=3):
        self.said, self.right = {}, right
        self.golds = {f"{q.id}#{n}": q for q in task.questions for n in range(4)}

    def sample(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        question, number = self.golds[request.episode], self.said.get(request.episode, 0)
        self.said[request.episode] = number + 1
        at = int(question.id[-2:])
        gold = question.answers[0]
        answer = f"<answer>{gold}{'' if at % self.right == 0 else ' x'}</answer>"
        texts = [f"<search>{question.gold_titles[0]}</search>", *(["hm"] if at % 2 else []), answer]
        ids = np.array([ord(c) for c in texts[min(number, len(texts) - 1)]], np.int32)
        return Sampled(ids, np.zeros(len(ids), np.float32), "eos")

    def close(self):
        """Nothing is open."""


def card_of(folder):
    """Writes the card of the small suite; returns its path."""
    (folder / "small.yaml").write_text(SUITE)
    return folder / "small.yaml"


def make_run(folder, card, agent="search-r1", right=3, samples=1, **rules):
    """Evaluates an agent with a scripted model on the small suite; returns the run's folder."""
    tasks = Tasks(cards=[card])
    task = tasks.base("small", "Demo")
    task = dataclasses.replace(task, rules=dataclasses.replace(task.rules, **rules))
    loaded = load_agent(agent)
    model = Model.over("scripted", Says(task, right), Characters(), sha256="0" * 64)
    models = dict.fromkeys(loaded.roles, model)
    options = EvalOptions(temperature=0.7 if samples > 1 else 0.0, samples=samples)
    evaluate(task, loaded, folder, models, options)
    return folder


def submit(run, card, out, name="a row", by="a tester", seed=None):
    """Makes a submission of a run of the small suite."""
    return write_submission(run, "small", "Demo", About(name, by, training_seed=seed), out, Tasks(cards=[card]))


def edit_manifest(folder, seal=True, **fields):
    """Changes fields of a manifest, given as FIELD=value; makes their seals again if asked."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest.update(fields)
    if seal:
        manifest["seal"] = {name: digest(value) for name, value in manifest.items() if name != "seal"}
    file.write_text(json.dumps(manifest))


def read_rows(folder, name=EPISODES):
    """Returns the rows of a file of a submission."""
    data = (folder / name).read_bytes()
    return [json.loads(line) for line in (gzip.decompress(data) if name.endswith(".gz") else data).splitlines()]


def write_rows(folder, rows, name=EPISODES, seal=True):
    """Writes the rows of a file of a submission, and its sum into the manifest if asked."""
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    if seal:
        sums = {file: sha256_file(folder / file) for file in (EPISODES, PREDICTIONS)}
        edit_manifest(folder, files=sums)
