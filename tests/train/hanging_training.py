"""Trains the bandit with a sampler that stops answering in the third step: ``hanging_training.py OUT SECONDS``."""

import sys
import threading
from pathlib import Path

from toy_training import BanditRollout, toy_model, toy_recipe, toy_trainer


class Hanging(BanditRollout):
    def __call__(self, questions, attempts, step, greedy):
        if step == 2 and not greedy:
            threading.Event().wait()
        return super().__call__(questions, attempts, step, greedy)


model = toy_model()
seconds = float(sys.argv[2])
recipe = toy_recipe(deadline={"rollout": seconds}, validation={"every": 0}, checkpoint={"every": 0})
rollout = Hanging(model)
toy_trainer(Path(sys.argv[1]), recipe, model=model, rollout=rollout, publish=rollout.publish).run()
