"""Conformance suite for samplers: `SamplerTests` checks what episodes and the learner expect of every sampler."""

from __future__ import annotations

import random
import typing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from searchgym.errors import UsageError
from searchgym.rollout.sampler import Finish, Sampled, Sampler, SampleRequest, Sampling, StreamingSampler

FINISHES = typing.get_args(Finish)


class SamplerTests:
    """Checks of the contract of `searchgym.rollout.sampler.Sampler`, and of `StreamingSampler` where it applies.

    A subclass defines `make_sampler`, `vocabulary`, `decode` and, if weights can be loaded, `new_weights`.
    """

    vocabulary: int = 0
    """Size of the vocabulary: prompts consist of token ids below this number."""
    tolerance: float = 1e-5
    """Maximum difference of a log-prob between batches, to allow for rounding."""
    max_tokens: int = 12
    """Maximum length of most responses, in tokens."""
    draws: bool = True
    """Whether responses at temperature 1 depend on the seed; false for a sampler with fixed replies."""
    largest_context: int = 4096
    """Largest `max_context` at which a full context is checked; filling a longer one takes too long."""

    def make_sampler(self) -> Sampler:
        """Returns a new sampler, always with the same weights; each check closes the samplers that it made."""
        raise NotImplementedError(f"{type(self).__name__} must define make_sampler(self)")

    def decode(self, ids: list[int]) -> str:
        """Decodes token ids to the text that the sampler searches for stop strings."""
        raise NotImplementedError(f"{type(self).__name__} must define decode(self, ids)")

    def new_weights(self) -> Mapping[str, Any] | None:
        """Returns weights that change the tokens of greedy sampling; None if the sampler has no weights."""
        return None

    # -- requests --------------------------------------------------------------------------------------------------

    def close(self, sampler: Sampler) -> None:
        """Closes a sampler that `make_sampler` returned; override it if the sampler is shared."""
        sampler.close()

    def prompts(self, number: int) -> list[npt.NDArray[np.int32]]:
        """Returns prompts of several lengths, some with a common prefix."""
        assert self.vocabulary > 0, f"{type(self).__name__} must set vocabulary"
        rng = np.random.default_rng(0)
        shared = rng.integers(0, self.vocabulary, 20)
        tails = [rng.integers(0, self.vocabulary, 1 + 5 * n) for n in range(number)]
        rows = [np.concatenate([shared, row]) if n % 3 == 0 else row for n, row in enumerate(tails)]
        return [row.astype(np.int32) for row in rows]

    def requests(self, number: int = 6, seed: int = 0, **sampling: Any) -> list[SampleRequest]:
        """Returns requests with consecutive seeds, starting at `seed`."""
        how = replace(Sampling(self.max_tokens), **sampling)
        return [SampleRequest(ids, how, seed + n) for n, ids in enumerate(self.prompts(number))]

    def mixed(self) -> list[SampleRequest]:
        """Returns one batch of requests with several temperatures, values of top_p and maximum lengths."""
        most = self.max_tokens
        kinds = [Sampling(most), Sampling(most, 0.7), Sampling(most, 0.0), Sampling(most, top_p=0.5), Sampling(1)]
        prompts = enumerate(self.prompts(2 * len(kinds)))
        return [SampleRequest(ids, kinds[n % len(kinds)], n) for n, ids in prompts]

    def sample(self, sampler: Sampler, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Samples and checks the form of each reply."""
        version = sampler.version
        replies = sampler.sample(requests)
        assert isinstance(replies, list) and len(replies) == len(requests), (
            f"{len(requests)} requests: expected a list with one reply for each, got {replies!r:.200}"
        )
        for request, reply in zip(requests, replies, strict=True):
            self.check_reply(request, reply, version)
        return replies

    def check_reply(self, request: SampleRequest, reply: Sampled, version: int) -> None:
        """Checks the types, lengths and values of a reply's fields; see `Sampled`."""
        most, count = request.sampling.max_tokens, len(reply.ids)
        for name, row, kind in (("ids", reply.ids, np.int32), ("logp", reply.logp, np.float32)):
            got = f"{row.shape} {row.dtype}"
            assert row.dtype == kind and row.shape == (count,), f"{name} must be ({count},) {kind.__name__}, got {got}"
        assert count <= most, f"a response has at most max_tokens={most} tokens, got {count}"
        assert count > 0 or reply.finish == "context", f"a response without a token ends by 'context': {reply!r:.200}"
        assert np.isfinite(reply.logp).all(), f"log-probs are finite, got {reply.logp!r:.200}"
        assert (reply.logp <= self.tolerance).all(), f"log-probs are at most 0, got {reply.logp!r:.200}"
        assert reply.finish in FINISHES, f"finish must be one of {FINISHES}, got {reply.finish!r}"
        full = count == most
        assert reply.finish != "length" or full, f"finish is 'length' after {count} of {most} tokens"
        assert reply.version == version, f"a reply names the sampler's version, {version}; got {reply.version}"

    def same(self, actual: Sequence[Sampled], expected: Sequence[Sampled], when: str) -> None:
        """Checks that replies have the same tokens and finish reasons, and log-probs within `tolerance`."""
        for number, (reply, other) in enumerate(zip(actual, expected, strict=True)):
            ids = (reply.ids.tolist(), other.ids.tolist())
            assert ids[0] == ids[1], f"{when}, request {number} gets other tokens: {ids[0]}, before {ids[1]}"
            assert reply.finish == other.finish, f"{when}, request {number}: {reply.finish!r}, before {other.finish!r}"
            apart = float(np.abs(reply.logp - other.logp).max(initial=0.0))
            assert apart <= self.tolerance, f"{when}, request {number}: log-probs differ by {apart:g}"

    # -- tokens ----------------------------------------------------------------------------------------------------

    def test_replies_have_their_form(self) -> None:
        """Checks that each request gets one reply in order, with int32 ids and float32 log-probs of equal length."""
        sampler = self.make_sampler()
        self.sample(sampler, self.mixed())
        for most in (1, 3):
            self.sample(sampler, self.requests(max_tokens=most))
        none = sampler.sample([])
        assert none == [], f"no requests are answered by an empty list, got {none!r:.200}"
        assert type(sampler.max_context) is int and sampler.max_context > 0, f"max_context: {sampler.max_context!r}"
        self.close(sampler)

    def test_temperature_0_is_the_likeliest_whatever_the_seed(self) -> None:
        """Checks that greedy sampling ignores the seed and equals sampling with a tiny top_p (log-probs of 0)."""
        sampler = self.make_sampler()
        greedy = self.sample(sampler, self.requests(temperature=0.0))
        self.same(self.sample(sampler, self.requests(temperature=0.0)), greedy, "at temperature 0 again")
        self.same(
            self.sample(sampler, self.requests(temperature=0.0, seed=99)), greedy, "at temperature 0, other seeds"
        )
        if self.draws:
            for reply, other in zip(self.sample(sampler, self.requests(top_p=1e-9)), greedy, strict=True):
                seen = (reply.ids.tolist(), other.ids.tolist())
                assert seen[0] == seen[1], f"a tiny top_p leaves the likeliest token: {seen[0]}, greedily {seen[1]}"
                apart = float(np.abs(reply.logp).max(initial=0.0))
                assert apart <= self.tolerance, (
                    f"log-probs are computed after top_p: 0 if one token is left, got {reply.logp!r:.200}"
                )
        self.close(sampler)

    def test_seeds_decide_what_is_drawn(self) -> None:
        """Checks that equal seeds give equal responses, and different seeds different ones."""
        sampler, other = self.make_sampler(), self.make_sampler()
        first = self.sample(sampler, self.requests())
        self.same(self.sample(sampler, self.requests()), first, "with the same seeds")
        self.same(self.sample(other, self.requests()), first, "with the same seeds in a new sampler")
        changed = [reply.ids.tolist() for reply in self.sample(sampler, self.requests(seed=1000))]
        assert not self.draws or changed != [reply.ids.tolist() for reply in first], "other seeds draw the same tokens"
        for one in (sampler, other):
            self.close(one)

    def test_a_batch_is_its_requests_one_by_one(self) -> None:
        """Checks that a reply does not depend on the other requests of its batch; see `tolerance` for log-probs."""
        sampler, requests = self.make_sampler(), self.mixed()
        together = self.sample(sampler, requests)
        self.same([self.sample(sampler, [request])[0] for request in requests], together, "asked one by one")
        self.same(self.sample(sampler, requests[::-1])[::-1], together, "asked in reversed order")
        sampler.forget()
        self.same(self.sample(sampler, requests), together, "after forget()")
        self.close(sampler)

    def test_global_generators_are_left_alone(self) -> None:
        """Checks that the sampler does not use the global generators of `random` and `numpy.random`."""
        sampler = self.make_sampler()
        before = (random.getstate(), str(np.random.get_state()))
        self.sample(sampler, self.mixed())
        assert before == (random.getstate(), str(np.random.get_state())), "a global random generator was used"
        self.close(sampler)

    # -- ends ------------------------------------------------------------------------------------------------------

    def test_a_stop_string_ends_a_response_after_its_token(self) -> None:
        """Checks that a response ends with the whole token that completes a stop string."""
        sampler, request = self.make_sampler(), self.requests(4)[3]
        free = self.sample(sampler, [request])[0].ids.tolist()
        texts = [self.decode(free[: n + 1]) for n in range(len(free))]
        starts = sorted({0, len(texts[-1]) // 3, 2 * len(texts[-1]) // 3})
        stops = [texts[-1][at : at + size] for at in starts for size in (1, 3)]
        for stop in filter(None, [*stops, "\x00 not in there \x00"]):
            if "\N{REPLACEMENT CHARACTER}" in stop:
                continue
            sampling = Sampling(self.max_tokens, stop=(stop, "\x00 nor this \x00"))
            reply = self.sample(sampler, [SampleRequest(request.ids, sampling, request.seed)])[0]
            expected = free[: next((n + 1 for n, text in enumerate(texts) if stop in text), len(free))]
            got = reply.ids.tolist()
            assert got == expected, f"with stop string {stop!r}: expected tokens {expected} of {free}, got {got}"
            ends = ("stop", "eos") if stop in texts[-1] else ("eos", "length", "context")
            assert reply.finish in ends, f"with stop string {stop!r}: finish must be in {ends}, got {reply.finish!r}"
        self.close(sampler)

    def test_a_full_context_ends_a_response(self) -> None:
        """Checks that prompt and response have at most `max_context` tokens together, and the finish reason."""
        sampler = self.make_sampler()
        if (size := sampler.max_context) <= self.largest_context:
            row = np.resize(self.prompts(6)[5], size)
            for left in (0, 2):
                reply = self.sample(sampler, [SampleRequest(row[: size - left], Sampling(left + 5, 0.0))])[0]
                assert len(reply.ids) <= left, f"{size - left} of {size} tokens: got {len(reply.ids)} more"
                ends = ("eos", "context") if left else ("context",)
                assert reply.finish in ends, f"{left} tokens are left: finish must be in {ends}, got {reply.finish!r}"
        self.close(sampler)

    # -- weights, streams, closing ---------------------------------------------------------------------------------

    def test_an_update_changes_what_is_sampled_and_the_version(self) -> None:
        """Checks that replies after `update` come from the new weights and carry their version."""
        sampler, weights = self.make_sampler(), self.new_weights()
        version = sampler.version + 7
        if weights is None:
            self.refuses_weights(sampler, version)
        else:
            before = self.sample(sampler, self.requests(temperature=0.0))
            sampler.update(weights, version)
            assert sampler.version == version, f"after update(..., {version}) the version is {sampler.version}"
            after = self.sample(sampler, self.requests(temperature=0.0))
            changed = [reply.ids.tolist() for reply in after] != [reply.ids.tolist() for reply in before]
            assert changed, "after update() the same tokens are sampled: does a cache hold the old ones?"
            sampler.forget()
            self.same(self.sample(sampler, self.requests(temperature=0.0)), after, "after update() and forget()")
        self.close(sampler)

    def refuses_weights(self, sampler: Sampler, version: int) -> None:
        """Checks that a sampler without weights refuses an update."""
        try:
            sampler.update({}, version)
        except UsageError:
            return
        raise AssertionError("a sampler without weights must refuse update() with UsageError")

    def test_a_stream_gives_what_a_call_gives(self) -> None:
        """Checks that requests added to a running batch get the same replies, each delivered once under its key."""
        sampler, requests = self.make_sampler(), self.mixed()
        if isinstance(sampler, StreamingSampler):
            todo, replies = list(enumerate(requests)), dict[int, Sampled]()

            def pull() -> list[tuple[int, SampleRequest]]:
                new, todo[:2] = todo[:2], []
                return new

            def deliver(key: int, reply: Sampled) -> None:
                assert key not in replies, f"request {key} is delivered twice"
                replies[key] = reply

            expected = self.sample(sampler, requests)
            sampler.stream(pull, deliver)
            missing = sorted(set(range(len(requests))) - replies.keys())
            assert not missing, f"requests {missing} of a stream were never delivered"
            self.same([replies[n] for n in range(len(requests))], expected, "streamed")
        self.close(sampler)

    def test_close_can_be_called_twice(self) -> None:
        """Checks that closing a sampler twice is harmless."""
        sampler = self.make_sampler()
        self.close(sampler)
        self.close(sampler)
