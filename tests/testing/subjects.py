"""Small subjects that keep their contracts; `test_suites` breaks each of them in every way that a suite names."""

import zlib

import numpy as np
from support import CARD

from searchgym.agents.base import LoadedAgent
from searchgym.agents.roles import Role
from searchgym.envs.single import SearchEnv
from searchgym.envs.vector import SearchVectorEnv
from searchgym.errors import UsageError
from searchgym.records import Answer, Hit, Search
from searchgym.retrieval.retriever import check_request
from searchgym.rollout.sampler import Sampled
from searchgym.rollout.transformers.running_batch import StopMatcher, uniforms
from searchgym.testing import AgentTests, EnvironmentTests, RetrieverTests, SamplerTests, hostile_queries
from searchgym.testing.fakes import HOSTILE_ACTIONS, PASSAGES, QUESTIONS, Pages


class Words:
    """A retriever that counts common words."""

    in_process = True

    def search(self, queries, k):
        check_request(queries, k)
        return [self.find(query)[:k] for query in queries]

    def find(self, query):
        words = set(query.lower().split())
        hits = [Hit(page, float(len(words & set(page.text.lower().split())))) for page in PASSAGES]
        return sorted((hit for hit in hits if hit.score), key=lambda hit: -hit.score)


class Retrievers(RetrieverTests):
    subject = Words
    queries = ("who was born in 1901", "founded by", "the capital of Beta.", "nothing like it", "was")
    passages = PASSAGES
    lexical = pickled = True
    hostile = tuple(text for text in hostile_queries("born").values() if len(text) < 1000)

    def make_retriever(self):
        return self.subject()


class Environments(EnvironmentTests):
    subject = SearchEnv
    hostile = tuple(action for action in HOSTILE_ACTIONS if len(action) < 1000)

    def options(self, retriever=None):
        return {"questions": QUESTIONS, "retriever": retriever or Pages(PASSAGES), "retriever_deadline": 0.01}

    def make_env(self, retriever=None):
        return self.subject(CARD, **self.options(retriever))

    def make_vector(self, number):
        return SearchVectorEnv(CARD, number, **self.options())


class Reads:
    """A workflow that searches, shows the first page to its one role, and answers with what that says."""

    async def run(self, question, io):
        found = await io.step(Search((question.text,)))
        if not found.done:
            page = found.hits[0].passage.text if found.hits else "none"
            reply = await io.generate("reader", question=question.text, page=page)
            await io.step(Answer(reply.text))


class Agents(AgentTests):
    subject = Reads

    def make_agent(self):
        return LoadedAgent("reads", self.subject(), {"reader": Role("reader", "{question} {page}", 50)})


class Hashed:
    """A sampler over 32 letters whose logits are drawn from a hash of the last tokens and of its one weight."""

    max_context, vocabulary = 64, 32

    def __init__(self):
        self.version, self.weight, self.closed = 3, 0, False

    def sample(self, requests):
        return [self.respond(request, request.seed) for request in requests]

    def respond(self, request, seed):
        how, ids, logp, finish = request.sampling, request.ids.tolist(), [], "length"
        matcher, start = StopMatcher(decode, how.stop), len(request.ids)
        for noise in uniforms(seed, how.max_tokens):
            if len(ids) >= self.max_context:
                finish = "context"
                break
            token, chance = self.choose(self.logits(ids), how, noise)
            ids.append(token)
            logp.append(np.log(chance))
            if matcher.complete(ids[start:]):
                finish = "stop"
                break
        return Sampled(np.array(ids[start:], np.int32), np.array(logp, np.float32), finish, self.version)

    def logits(self, ids):
        text = f"{ids[-4:]} {self.weight}".encode()
        return 3 * np.random.default_rng(zlib.crc32(text)).standard_normal(self.vocabulary)

    def choose(self, logits, how, noise):
        p = np.exp(logits / (how.temperature or 1))
        p /= p.sum()
        if how.temperature == 0:
            return int(p.argmax()), p.max()
        order = np.argsort(-p)
        size = int((np.cumsum(p[order]) < how.top_p).sum()) + 1
        p[order[size:]] = 0
        p /= p.sum()
        token = min(int((np.cumsum(p) <= noise).sum()), int(np.flatnonzero(p)[-1]))
        return token, p[token]

    def stream(self, pull, deliver):
        while new := pull():
            for key, request in new:
                deliver(key, self.sample([request])[0])

    def update(self, state, version):
        self.weight, self.version = state["weight"], version

    def forget(self):
        pass

    def close(self):
        self.closed = True


class Weightless(Hashed):
    """The same without weights, and without a stream."""

    stream = None

    def update(self, state, version):
        raise UsageError("there are no weights")


def decode(ids):
    return "".join(chr(97 + i) for i in ids)


class Samplers(SamplerTests):
    subject = Hashed
    vocabulary = Hashed.vocabulary

    def make_sampler(self):
        return self.subject()

    def decode(self, ids):
        return decode(ids)

    def new_weights(self):
        return {"weight": 1}
