"""The journal of sampled responses: what is read back, left out, and removed."""

import asyncio
import json

import numpy as np
import pytest

from searchgym.rollout.batcher import Batcher, Turnstile
from searchgym.rollout.replay.journal import END, Journal
from searchgym.rollout.sampler import Sampled, SampleRequest, Sampling


def request(episode="q#0", ids=(1, 2), seed=7, **sampling):
    return SampleRequest(np.array(ids, np.int32), Sampling(**sampling), seed, episode)


def reply(*ids, version=3):
    return Sampled(np.array(ids, np.int32), -np.array(ids, np.float32) / 3, "stop", version)


def same(one, two):
    return (one.ids.tobytes(), one.logp.tobytes(), one.finish, one.version) == (
        two.ids.tobytes(),
        two.logp.tobytes(),
        two.finish,
        two.version,
    )


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "sampled")
    journal.start(0)
    return journal


def written(journal, *pairs, step=0, greedy=False, complete=False):
    page = journal.open(step, greedy)
    for one, two in pairs:
        page.of("policy").record([one], [two])
    page.close(complete)
    (path,) = journal.folder.glob(f"step-{step:06d}-*")
    return path


def again(journal):
    journal = Journal(journal.folder, journal.whole)
    journal.start(0)
    return journal


def recalled(journal, *requests, step=0, greedy=False, key="policy"):
    """What the next rollout of a step has for requests."""
    page = journal.open(step, greedy)
    replies = page.of(key).recall(requests)
    page.close(False)
    return replies


def test_a_response_is_read_back_bit_for_bit(journal):
    written(journal, (request(), reply(5, 6, 7)))
    (stored,) = recalled(again(journal), request())
    assert same(stored, reply(5, 6, 7))


@pytest.mark.parametrize(
    "other",
    [
        request("q#1"),
        request(ids=(1, 3)),
        request(ids=(1,)),
        request(seed=8),
        request(max_tokens=9),
        request(temperature=0.5),
        request(top_p=0.5),
        request(stop=("x",)),
    ],
)
def test_a_request_that_differs_in_anything_is_sampled(journal, other):
    written(journal, (request(), reply(5)))
    assert recalled(again(journal), other) is None


def test_another_key_or_rollout_is_sampled(journal):
    written(journal, (request(), reply(5)))
    journal = again(journal)
    assert recalled(journal, request(), key="critic") is None
    assert recalled(journal, request()) is None  # a second round of the same step
    assert recalled(journal, request(), greedy=True) is None
    assert recalled(journal, request(), step=1) is None


def test_a_batch_is_recalled_as_a_whole_or_not_at_all(journal):
    written(journal, (request(), reply(5)))
    page = again(journal).open(0, False)
    assert page.of("policy").recall([request(), request("q#1")]) is None
    page.of("policy").record([request(), request("q#1")], [reply(5), reply(6)])
    reuse = page.close(True)
    assert (reuse.reused, reuse.sampled, reuse.repeated) == (0, 2, 1)


@pytest.mark.parametrize("harm", ["half a line", "a digit", "no JSON", "another list"])
def test_a_damaged_line_is_sampled_again(journal, harm):
    path = written(journal, (request(), reply(5)), (request("q#1"), reply(6)))
    first, last = path.read_bytes().splitlines(keepends=True)
    damaged = {
        "half a line": last[: len(last) // 2],
        "a digit": last.replace(b'"version":3', b'"version":4').replace(b'"version": 3', b'"version": 4'),
        "no JSON": b"\xff\xfe\n",
        "another list": b"[1, 2]\n",
    }[harm]
    assert damaged != last
    path.write_bytes(first + damaged)
    assert recalled(again(journal), request()) is not None
    assert recalled(again(journal), request("q#1")) is None


def test_a_checkpoint_removes_what_it_contains(journal):
    for step, greedy in ((0, True), (0, False), (1, False), (2, True), (2, False)):
        journal.open(step, greedy).close(True)
    journal.saved(2)
    assert [path.name for path in journal.folder.glob("step-*")] == ["step-000002-0.jsonl"]


def test_a_run_without_a_checkpoint_keeps_its_first_validation(journal):
    written(journal, (request(), reply(5)), greedy=True)
    assert recalled(again(journal), request(), greedy=True) is not None


def test_an_older_checkpoint_uses_nothing_of_a_later_one(journal):
    journal.saved(4)
    written(journal, (request(), reply(5)), step=4)
    journal.start(2)
    assert not list(journal.folder.glob("step-*"))
    assert json.loads((journal.folder / "base.json").read_text()) == {"step": 2}


@pytest.mark.parametrize("complete", [True, False])
def test_whole_rollouts_only(journal, complete):
    journal.whole = True
    path = written(journal, (request(), reply(5)), complete=complete)
    assert path.read_bytes().endswith(END) == complete
    assert (recalled(again(journal), request()) is not None) == complete


def test_a_resumed_rollout_counts_seconds_from_its_first_start(journal, monkeypatch):
    clock = iter([100.0, 103.0, 200.0, 201.0, 300.0])
    monkeypatch.setattr("searchgym.rollout.replay.journal.time.monotonic", lambda: next(clock))
    written(journal, (request(), reply(5)))
    page = (journal := again(journal)).open(0, False)
    page.of("policy").record([request("q#1")], [reply(6)])
    page.close(False)
    page = again(journal).open(0, False)
    page.of("policy").recall([request("q#1")])
    assert page.close(False).seconds == 4.0  # three before the stop, one after it


def test_episodes_that_outlast_their_step_find_all_files(journal):
    journal.lasting = 1
    written(journal, (request(), reply(5)), step=3)
    half = journal.path_of(4)
    half.write_bytes(b'{"request": "cut')
    page = journal.open_all(3)
    assert page.of("policy").recall([request()]) is not None
    page.roll(half)
    page.of("policy").record([request("q#1")], [reply(6)])
    page.close(False)
    journal.saved(4)  # an episode of step 3 may still run
    page = journal.open_all(5)
    assert page.of("policy").recall([request(), request("q#1")]) is not None
    page.close(False)
    journal.saved(5)
    assert not journal.path_of(3).exists() and half.exists()


class Store(dict):
    """A memory of replies, in which a key is its own request."""

    def recall(self, requests):
        return [self[one] for one in requests] if self.keys() >= set(requests) else None

    def record(self, requests, replies):
        self.update(zip(requests, replies, strict=True))


@pytest.mark.parametrize("canonical", [False, True])
def test_a_batcher_calls_only_for_what_is_not_stored(canonical):
    calls, cleared = [], []

    def call(requests):
        calls.append(sorted(requests))
        return [one * 10 for one in requests]

    async def answers():
        batcher = Batcher(call)
        batcher.memory, batcher.before = Store({1: 10, 2: 20}), lambda: cleared.append(len(calls))
        turnstile = Turnstile()
        if canonical:
            turnstile.add(batcher)

        async def episode(first, second):
            with turnstile.episode():
                return [await batcher.ask(first, (str(first), 0)), await batcher.ask(second, (str(second), 0))]

        return await asyncio.gather(episode(1, 3), episode(2, 4)), batcher.memory

    replies, store = asyncio.run(answers())
    assert replies == [[10, 30], [20, 40]]
    assert store == {1: 10, 2: 20, 3: 30, 4: 40}
    assert sorted(one for batch in calls for one in batch) == [3, 4]
    assert cleared == ([0] if canonical else [])


def test_a_canonical_batch_of_which_a_reply_is_missing_is_called_as_a_whole():
    calls = []

    def call(requests):
        calls.append(list(requests))
        return [one * 10 for one in requests]

    async def answers():
        batcher, turnstile = Batcher(call), Turnstile()
        batcher.memory = Store({1: 10})
        turnstile.add(batcher)

        async def episode(one):
            with turnstile.episode():
                return await batcher.ask(one, (str(one), 0))

        return await asyncio.gather(episode(1), episode(2))

    assert asyncio.run(answers()) == [10, 20]
    assert calls == [[1, 2]]
