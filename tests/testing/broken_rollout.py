"""Agents and samplers that each violate one clause of their contract."""

import random

from subjects import Hashed, Reads, Weightless

from searchgym.records import Answer, Search
from searchgym.rollout.sampler import Sampled

# -- agents --------------------------------------------------------------------------------------------------------


class Leaves:
    async def run(self, question, io):
        await io.step(Search((question.text,)))


class Undeclared:
    async def run(self, question, io):
        await io.step(Answer((await io.generate("judge", question=question.text)).text))


class FirstLetter(Reads):
    async def run(self, question, io):
        reply = await io.generate("reader", question=question.text, page="none")
        await io.step(Answer(reply.text[0]))


class FirstPage:
    async def run(self, question, io):
        found = await io.step(Search((question.text,)))
        if not found.done:
            await io.step(Answer(found.hits[0].passage.title if question.id == "q0" else ""))


class NeedsHits:
    async def run(self, question, io):
        found = await io.step(Search(("Alpha",)))
        await io.step(Answer(found.hits[0].passage.title if io.turns_left < 5 else ""))


class Insists(Reads):
    async def run(self, question, io):
        while io.turns_left >= 0:
            try:
                await super().run(question, io)
                break
            except Exception:
                continue


class Counting:
    count = 0

    async def run(self, question, io):
        self.count += 1
        await io.step(Answer(str(self.count)))


class Shares:
    async def run(self, question, io):
        self.question = question
        await io.step(Search((question.text,)))
        if io.turns_left:
            await io.step(Answer(self.question.id))


class Cheats(Reads):
    async def run(self, question, io):
        reply = await io.generate("reader", question=question.text, page=question.answers[0])
        await io.step(Answer(reply.text))


AGENTS = [
    ("test_every_episode_ends_within_its_budget", Leaves, "must end by 'answer' or 'turns', got None after 1 turns"),
    ("test_it_asks_only_roles_that_it_declares", Undeclared, "agent reads has no role 'judge'"),
    ("test_hostile_replies_are_survived", FirstLetter, "agent reads .* raised IndexError"),
    ("test_hostile_pages_are_survived", FirstPage, "agent reads .* raised IndexError"),
    ("test_a_retriever_that_fails_ends_the_episode", NeedsHits, "agent reads .* raised IndexError"),
    ("test_a_full_context_ends_the_episode", Insists, "NeverReturnsError: the agent continued 100 times"),
    ("test_the_same_replies_give_the_same_episodes", Counting, "differs when the same agent runs again"),
    ("test_episodes_do_not_depend_on_each_other", Shares, "differs when all run at once"),
    ("test_its_models_are_never_told_the_gold_answer", Cheats, "depends on the gold answer"),
]


# -- samplers ------------------------------------------------------------------------------------------------------


class Doubles(Hashed):
    def respond(self, request, seed):
        reply = super().respond(request, seed)
        return Sampled(reply.ids, reply.logp.astype("float64"), reply.finish, reply.version)


class Lukewarm(Hashed):
    def choose(self, logits, how, noise):
        return super().choose(logits if how.temperature else logits + noise * logits[::-1], how, noise)


class Uncut(Hashed):
    def choose(self, logits, how, noise):
        token, chance = super().choose(logits, how, noise)
        return token, chance * 0.9


class OneSeed(Hashed):
    def respond(self, request, seed):
        return super().respond(request, 0)


class ByPosition(Hashed):
    def sample(self, requests):
        return [self.respond(request, request.seed + n) for n, request in enumerate(requests)]


class Global(Hashed):
    def respond(self, request, seed):
        random.random()
        return super().respond(request, seed)


class CutsStops(Hashed):
    def respond(self, request, seed):
        reply = super().respond(request, seed)
        n = len(reply.ids) - (reply.finish == "stop" and len(reply.ids) > 1)
        return Sampled(reply.ids[:n], reply.logp[:n], reply.finish, reply.version)


class Unbounded(Hashed):
    def respond(self, request, seed):
        self.max_context = 10**9
        try:
            return super().respond(request, seed)
        finally:
            self.max_context = 64


class KeepsWeights(Hashed):
    def update(self, state, version):
        self.version = version


class KeepsVersion(Hashed):
    def update(self, state, version):
        self.weight = state["weight"]


class DropsJoiners(Hashed):
    def stream(self, pull, deliver):
        for key, request in pull():
            deliver(key, self.sample([request])[0])
        while pull():
            pass


class ClosesOnce(Hashed):
    def close(self):
        assert not self.closed, "closed twice"
        self.closed = True


SAMPLERS = [
    ("test_replies_have_their_form", Doubles, r"logp must be \(\d+,\) float32, got \(\d+,\) float64"),
    ("test_temperature_0_is_the_likeliest_whatever_the_seed", Lukewarm, "at temperature 0, other seeds, request"),
    (
        "test_temperature_0_is_the_likeliest_whatever_the_seed",
        Uncut,
        "log-probs are computed after top_p: 0 if one token",
    ),
    ("test_seeds_decide_what_is_drawn", OneSeed, "other seeds draw the same tokens"),
    ("test_a_batch_is_its_requests_one_by_one", ByPosition, "asked one by one, request . gets other tokens"),
    ("test_global_generators_are_left_alone", Global, "a global random generator was used"),
    ("test_a_stop_string_ends_a_response_after_its_token", CutsStops, "with stop string .* expected tokens"),
    ("test_a_full_context_ends_a_response", Unbounded, "64 of 64 tokens: got 5 more"),
    ("test_an_update_changes_what_is_sampled_and_the_version", KeepsWeights, "the same tokens are sampled"),
    ("test_an_update_changes_what_is_sampled_and_the_version", KeepsVersion, "after update.* 10. the version is 3"),
    ("test_an_update_changes_what_is_sampled_and_the_version", Weightless, "there are no weights"),
    ("test_a_stream_gives_what_a_call_gives", DropsJoiners, "requests .2, 3.* of a stream were never delivered"),
    ("test_close_can_be_called_twice", ClosesOnce, "closed twice"),
]
