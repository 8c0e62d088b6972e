"""Scripted judges and models for the tests of judging."""

import numpy as np

from searchgym.options import loaded, read
from searchgym.protocol import get_protocol
from searchgym.rollout.api.sampler import MessageFormat, messages_of
from searchgym.rollout.judge import PromptedJudge
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampled
from searchgym.scoring.judges.judge import Checked, Judge


class Replies:
    """A sampler that replies with what a function makes of each prompt; an exception is raised."""

    version, max_context = 0, 10**6

    def __init__(self, reply):
        self.reply, self.asked = reply, []

    def sample(self, requests):
        rows = []
        for request in requests:
            (message,) = messages_of(request.ids)
            self.asked.append(message["content"])
            text = self.reply(message["content"]) if callable(self.reply) else self.reply
            if isinstance(text, Exception):
                raise text
            ids = np.array([*map(ord, text)], np.int32)
            rows.append(Sampled(ids, np.zeros(len(ids), np.float32), "stop"))
        return rows

    def close(self):
        pass


def find_judge(given):
    """Returns the judge that a recipe names, ready to be asked."""
    return loaded(read(Judge, given, "judge")).open({})


def asks_model(reply):
    """Returns a judge that asks a scripted model."""
    return Checked(PromptedJudge(Model.over("judge", Replies(reply), MessageFormat(get_protocol("tags")))))


class Returns:
    """A user's judge that gives whatever it was made with, or raises it."""

    in_process = True

    def __init__(self, found):
        self.found = found

    def _give(self):
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found

    def verify(self, question, answer, pages):
        return self._give()

    def meets(self, question, answer, criteria):
        return self._give()

    def better(self, question, answers, criteria):
        return self._give()
