import asyncio
import contextlib
import subprocess
import sys
import threading

import pytest
from support import CARD, QUESTIONS, FailingRetriever, TitleRetriever

from searchgym.agents.base import LoadedAgent
from searchgym.envs.task import load_task
from searchgym.errors import EpisodeError, RewardError, UsageError
from searchgym.records import Answer, Question, Search
from searchgym.rollout.batcher import Batcher, Queries, Turnstile, retrieval_batcher
from searchgym.rollout.engine import Engine

MANY = [Question(f"q{i}", "Alpha?", ("x",)) for i in range(100)]


class TwoSearches:
    async def run(self, question, io):
        await io.step(Search(("Alpha",)))
        await io.step(Search(("Beta",)))
        await io.step(Answer("x"))


class Endless:
    async def run(self, question, io):
        while True:
            await io.step(Search(("Alpha",)))


class LeavesEarly:
    async def run(self, question, io):
        await io.step(Search(("Alpha",)))


class Draws:
    async def run(self, question, io):
        await io.step(Answer(str(io.rng.integers(10**9))))


def run(agent, questions=MANY, retriever=None, concurrency=64, seed=0, **options):
    task = load_task(CARD, questions=questions, retriever=retriever or TitleRetriever(), **options)
    engine, episodes = Engine(task, LoadedAgent("test", agent), concurrency=concurrency, seed=seed), []
    asyncio.run(engine.run(task.questions, episodes.append))
    return engine, episodes


def test_queries_of_concurrent_episodes_share_calls():
    retriever = TitleRetriever()
    engine, episodes = run(TwoSearches(), retriever=retriever, concurrency=100)
    assert len(episodes) == 100
    assert [len(call) for call in retriever.calls] == [100, 100]
    assert (engine.retrieval.calls, engine.retrieval.sizes) == (2, 200)
    assert all([s.turn for s in e.searches] == [1, 2] and e.scores["em"] == 1.0 for e in episodes)


def test_concurrency_changes_nothing_but_the_batches():
    wanted = {e.id: e for e in run(TwoSearches(), concurrency=100)[1]}
    for concurrency in (1, 7):
        assert {e.id: e for e in run(TwoSearches(), concurrency=concurrency)[1]} == wanted


def test_attempts_at_a_question_are_a_group_of_their_step():
    """The same question asked in two steps makes two groups, and episodes of different ids."""
    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever())
    engine, episodes = Engine(task, LoadedAgent("test", TwoSearches())), []
    for step in ("3", "4"):
        asyncio.run(engine.run(QUESTIONS[:2], episodes.append, attempts=2, group=step))
    found = sorted((e.group_uid, e.id) for e in episodes)
    assert found == [(f"{s}/{q}", f"{q}#{n}@{s}") for s in "34" for q in ("q0", "q1") for n in (0, 1)]


def test_an_endless_workflow_ends_with_its_budget():
    episodes = run(Endless(), QUESTIONS)[1]
    assert [(e.stop_reason, e.turns, len(e.searches)) for e in episodes] == [("turns", 5, 4)] * 3


def test_a_workflow_that_leaves_early_is_unanswered_and_scores_zero():
    episodes = run(LeavesEarly(), QUESTIONS)[1]
    assert [(e.stop_reason, e.answer, e.reward) for e in episodes] == [(None, None, 0.0)] * 3


def test_a_failing_retriever_ends_the_episode_and_is_counted():
    episodes = run(TwoSearches(), QUESTIONS, FailingRetriever(), retriever_deadline=0.01)[1]
    assert {e.stop_reason for e in episodes} == {"retriever_error"}
    assert all("on fire" in e.error and e.scores == {"em": 0.0, "f1": 0.0} and e.turns == 1 for e in episodes)


def test_a_hanging_retriever_is_abandoned():
    release = threading.Event()

    class Hanging(TitleRetriever):
        def search(self, queries, k):
            release.wait(60)
            return super().search(queries, k)

    episodes = run(TwoSearches(), QUESTIONS, Hanging(), retriever_deadline=0.05)[1]
    release.set()
    assert {e.stop_reason for e in episodes} == {"retriever_error"}


def test_generators_depend_on_seed_and_question_only():
    def answers(**options):
        return {e.question_id: e.answer.text for e in run(Draws(), QUESTIONS, **options)[1]}

    assert answers() == answers(concurrency=1)
    assert answers(seed=1) != answers()
    assert len(set(answers().values())) == 3


def test_faults_of_agents_and_rewards_stop_the_run_as_themselves():
    class Broken:
        async def run(self, question, io):
            raise KeyError("bug")

    class UsesErrors:
        async def run(self, question, io):
            raise EpisodeError("not over")

    with pytest.raises(KeyError, match="bug"):
        run(Broken(), QUESTIONS)
    with pytest.raises(EpisodeError, match="not over"):
        run(UsesErrors(), QUESTIONS)
    with pytest.raises(RewardError, match="returned nan"):
        run(TwoSearches(), QUESTIONS, reward=lambda state: float("nan"))
    with pytest.raises(UsageError, match="at least 1"):
        run(TwoSearches(), QUESTIONS, concurrency=0)
    with pytest.raises(UsageError, match="must not be negative"):
        run(TwoSearches(), QUESTIONS, seed=-1)


class Raises:
    """Raises an error where an agent's own code may: at once, behind an action, or in a task that it awaits."""

    def __init__(self, error, where):
        self.error, self.where = error, where

    async def run(self, question, io):
        if self.where == "task":
            await asyncio.ensure_future(self.fails())
        if self.where == "later":
            await io.step(Search(("Alpha",)))
        await self.fails()

    async def fails(self):
        raise self.error


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (asyncio.CancelledError("over"), "at once"),
        (asyncio.CancelledError("over"), "later"),
        (asyncio.CancelledError("over"), "task"),
        (SystemExit(0), "at once"),
        (SystemExit(0), "later"),  # out of a task asyncio raises it in the loop: the command line catches that
        (GeneratorExit("over"), "at once"),
    ],
)
def test_a_workflow_ends_neither_the_program_nor_its_episode_unseen(error, where):
    with pytest.raises(RuntimeError, match=f"{type(error).__name__}: ") as raised:
        run(Raises(error, where), QUESTIONS, concurrency=1)
    assert "in agent test, question 'q0'" in raised.value.__notes__


@pytest.mark.parametrize("error", [SystemExit(0), asyncio.CancelledError(), GeneratorExit()])
def test_a_reward_does_not_either(error):
    def reward(state):
        raise error

    with pytest.raises(RewardError, match=f"raised RuntimeError on question 'q0': {type(error).__name__}"):
        run(TwoSearches(), QUESTIONS, concurrency=1, reward=reward)


def test_a_run_that_is_cancelled_is_cancelled():
    """By whoever runs it; workflows that wait see the same exception as that of a task of their own."""
    task = load_task(CARD, questions=QUESTIONS, retriever=TitleRetriever())

    class Waits:
        async def run(self, question, io):
            await asyncio.Event().wait()

    async def main():
        running = asyncio.create_task(Engine(task, LoadedAgent("test", Waits())).run(QUESTIONS, print))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        await running

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def test_an_episode_takes_one_action_at_a_time():
    class AtOnce:
        async def run(self, question, io):
            await asyncio.gather(*(io.step(Search(("Alpha",))) for _ in range(8)))

    with pytest.raises(EpisodeError, match="one action at a time"):
        run(AtOnce(), QUESTIONS)


def test_a_batch_holds_at_most_max_queries():
    retriever = TitleRetriever()

    async def main():
        batcher = retrieval_batcher(retriever, 3, 1.0, max_queries=4)
        found = await asyncio.gather(*(batcher.ask(Queries(f"q{i}", ("Alpha", "Beta"))) for i in range(5)))
        wide = await batcher.ask(Queries("q", tuple("abcdef")))
        return found, wide

    found, wide = asyncio.run(main())
    assert [len(call) for call in retriever.calls] == [4, 4, 2, 6]
    assert all([hits[0].passage.title for hits in own] == ["Alpha", "Beta"] for own in found)
    assert len(wide) == 6


def test_a_failing_call_fails_its_batch_and_not_the_next():
    calls = []

    def call(requests):
        calls.append(requests)
        if len(calls) == 1:
            raise OSError("gone")
        return [request * 2 for request in requests]

    async def main():
        batcher = Batcher(call)
        first = await asyncio.gather(*(batcher.ask(n) for n in range(3)), return_exceptions=True)
        return first, await asyncio.gather(*(batcher.ask(n) for n in range(3)))

    first, second = asyncio.run(main())
    assert [str(error) for error in first] == ["gone"] * 3
    assert second == [0, 2, 4]
    assert calls == [[0, 1, 2], [0, 1, 2]]


def test_calls_of_a_server_may_be_under_way_at_once():
    class Server(TitleRetriever):
        calls_at_once = 2

        def search(self, queries, k):
            together.wait(60)  # two calls must be under way for either to end
            return super().search(queries, k)

    together, retriever = threading.Barrier(2), Server()

    async def main():
        batcher = retrieval_batcher(retriever, 3, 60.0, max_queries=1)
        return await asyncio.gather(*(batcher.ask(Queries(f"q{i}", ("Alpha",))) for i in range(6)))

    assert [own[0][0].passage.title for own in asyncio.run(main())] == ["Alpha"] * 6
    assert len(retriever.calls) == 6


def test_streamed_requests_join_and_leave_the_running_batch():
    order = []

    def stream(pull, deliver):
        running = {}
        while new := [*pull(), *running.items()]:
            running = dict(new)
            done = [key for key, text in new if text != "long" or order == ["a", "b"]]
            for key in done:
                order.append(running.pop(key))
                deliver(key, order[-1].upper())

    async def main():
        batcher = Batcher(lambda requests: 1 / 0, stream=stream)
        long = asyncio.create_task(batcher.ask("long"))
        short = [await batcher.ask("a"), await batcher.ask("b")]
        replies = [*short, await long, await batcher.ask("next")]
        assert batcher.calls <= 2  # the last one may still have joined the stream of the others
        return replies, batcher.sizes

    assert asyncio.run(main()) == (["A", "B", "LONG", "NEXT"], 4)
    assert order == ["a", "b", "long", "next"]


def test_a_failing_stream_reaches_those_under_way_and_the_next_one_works():
    def stream(pull, deliver):
        for key, request in pull():
            if request == "bad":
                raise OSError("gone")
            deliver(key, request)

    async def main():
        batcher = Batcher(lambda requests: 1 / 0, stream=stream)
        asked = (batcher.ask(text) for text in ("good", "bad", "late"))
        return await asyncio.gather(*asked, return_exceptions=True), await batcher.ask("next")

    (good, bad, late), following = asyncio.run(main())
    assert (good, str(bad), str(late), following) == ("good", "gone", "gone", "next")


def test_a_stream_that_forgets_a_request_is_a_fault_of_the_stream():
    async def main():
        await Batcher(lambda requests: 1 / 0, stream=lambda pull, deliver: pull()).ask(1)

    with pytest.raises(RuntimeError, match="1 requests got no reply"):
        asyncio.run(main())


def test_a_stream_ends_when_nobody_waits_for_it_any_more():
    ended = threading.Event()

    def stream(pull, deliver):
        try:
            while True:
                pull()
        finally:
            ended.set()

    async def main():
        await asyncio.wait_for(Batcher(lambda requests: 1 / 0, stream=stream).ask(1), timeout=0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert ended.wait(60)


def test_a_batcher_works_again_after_a_cancelled_call():
    batcher = Batcher(lambda requests: [request * 2 for request in requests])

    async def given_up():
        asking = asyncio.create_task(batcher.ask(1))
        await asyncio.sleep(0)  # it has asked; the call has not begun
        assert not asking.done()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(given_up())
    assert asyncio.run(asyncio.wait_for(batcher.ask(2), timeout=60)) == 4


def test_a_call_of_a_loop_that_was_closed_is_not_waited_for():
    started, end = threading.Event(), threading.Event()

    def call(requests):
        started.set()
        return [end.wait(60) and request * 2 for request in requests]

    batcher, left = Batcher(call), asyncio.new_event_loop()
    asking = left.create_task(batcher.ask(1))
    left.run_until_complete(asyncio.sleep(0))
    left.run_until_complete(left.run_in_executor(None, started.wait, 60))
    left.close()
    end.set()
    assert asyncio.run(asyncio.wait_for(batcher.ask(2), timeout=60)) == 4
    assert not asking.done()
    for task in (asking, *batcher._under_way):
        task._log_destroy_pending = False  # it is what this test is about, and no fault


def test_a_call_with_too_few_replies_is_a_fault_of_the_call():
    async def main():
        batcher = Batcher(lambda requests: requests[:1])
        return await asyncio.gather(batcher.ask(1), batcher.ask(2), return_exceptions=True)

    assert [str(error) for error in asyncio.run(main())] == ["2 requests got 1 replies"] * 2


@pytest.mark.parametrize("turnstile", [True, False])
def test_a_call_that_raises_stop_iteration_does_not_hang(turnstile):
    """A future takes no StopIteration: a sampler of a list that is used up would be waited for without end."""
    batcher = Batcher(lambda requests: [next(iter(()))])
    if turnstile:
        gate = Turnstile()
        gate.add(batcher)

    async def ask():
        with gate.episode() if turnstile else contextlib.nullcontext():
            await asyncio.wait_for(batcher.ask("x"), 5)

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(ask())


def test_an_interrupt_does_not_wait_for_a_call_that_is_under_way():
    release = threading.Event()

    async def main():
        batcher = Batcher(lambda requests: [release.wait(60)])
        await asyncio.wait_for(batcher.ask(1), timeout=0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(main())  # with a joined thread this would take a minute
    release.set()


ENDING = """
import asyncio, atexit, sys, threading
from searchgym import threads
from searchgym.rollout.batcher import Batcher

exiting, never = threading.Event(), threading.Event()

def stream(pull, deliver):
    for key, request in pull():
        deliver(key, request)
    exiting.wait(60)
    never.wait(60 if sys.argv[1] == "hangs" else 0.2)  # like freeing what the sampler held, in many small parts
    sys.stdout.write("freed")
    sys.stdout.flush()

threads.GRACE = 0.1 if sys.argv[1] == "hangs" else 60
assert asyncio.run(Batcher(len, stream=stream).ask(5)) == 5
atexit.register(exiting.set)  # called before what was registered earlier
"""


@pytest.mark.slow_cases
@pytest.mark.parametrize(("case", "printed"), [("frees", "freed"), ("hangs", "")])
def test_the_exit_waits_for_freeing_threads_not_hanging_ones(case, printed):
    ended = subprocess.run([sys.executable, "-c", ENDING, case], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, printed, "")


LEAVING = """
import atexit, threading
from searchgym import threads

threads.GRACE = 0.1
threads.start(threading.Event().wait, "hangs")
atexit.register(print, "cleaned up", end="")
threads.leave(130)
"""


@pytest.mark.slow
def test_a_hanging_thread_keeps_no_program_from_its_status():
    ended = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "cleaned up", "")
