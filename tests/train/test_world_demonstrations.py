"""Demonstrations from generated worlds: turns by hand, what the engine adds, and the test of reading."""

import dataclasses
import random
from types import SimpleNamespace

import numpy as np
import pytest
from played_worlds import TAGS_PROTOCOL, episodes, token_format, tokenizer, world

from searchgym.agents.base import load_agent
from searchgym.errors import UsageError
from searchgym.protocol import get_protocol
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Hop, Question, SupportingFact, Triple
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.tokens import TokenFormat
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.demonstrations.play import first_prompt, play
from searchgym.train.demonstrations.worlds import (
    ReadingTest,
    demonstrate,
    demonstrate_all,
    gold_sentences,
    world_task,
)

CHAIN = Question(
    "q",
    "When was the mayor of Ador born?",
    ("1849",),
    kind="compositional",
    hops=(Hop("Who is the mayor of Ador?", "Bemar"), Hop("When was #1 born?", "1849")),
    evidences=(Triple("Ador", "mayor", "Bemar"), Triple("Bemar", "born", "1849")),
    supporting_facts=(SupportingFact("Ador", 1), SupportingFact("Bemar", 2)),
)
PAIR = Question(
    "p",
    "Do Cubop and Dehum play in the same city?",
    ("no",),
    kind="comparison",
    hops=(Hop("Where does Cubop play?", "Ador"), Hop("Where does Dehum play?", "Edorf")),
    evidences=(Triple("Cubop", "home", "Ador"), Triple("Dehum", "home", "Edorf")),
    supporting_facts=(SupportingFact("Cubop", 1), SupportingFact("Dehum", 1)),
)


SAID = ["The mayor of Ador is Bemar.", "Bemar was born in 1849."]


def test_turns_by_hand():
    assert demonstrate(CHAIN, SAID).turns == (
        "<think> Who is the mayor of Ador?</think><search> Ador</search>",
        "<think> Who is the mayor of Ador? The mayor of Ador is Bemar. When was Bemar born?</think>"
        "<search> Bemar</search>",
        "<think> When was Bemar born? Bemar was born in 1849.</think><answer> 1849</answer>",
    )
    assert demonstrate(PAIR, ["Cubop plays in Ador.", "Dehum plays in Edorf."]).turns[-1] == (
        "<think> Where does Dehum play? Dehum plays in Edorf. Cubop plays in Ador.</think><answer> no</answer>"
    )
    stopped = demonstrate(CHAIN, SAID, early=True)
    assert stopped.early
    assert stopped.turns == (
        "<think> Who is the mayor of Ador?</think><search> Ador</search>",
        "<think> Who is the mayor of Ador? The mayor of Ador is Bemar.</think><answer> Bemar</answer>",
    )


def test_a_question_without_decomposition_is_refused():
    with pytest.raises(UsageError, match="'bare' has no hops with evidences"):
        demonstrate(Question("bare", "Who?", ("x",)), ["A page."])
    with pytest.raises(UsageError, match="'q' has no hops with evidences and quotes"):
        demonstrate(CHAIN, SAID[:1])


@pytest.mark.parametrize(("level", "split"), [("simple", "train"), ("simple", "test"), ("full", "test")])
def test_quotes_hold_the_facts(level, split):
    made = build_world(WorldSpec(level, size=40, seed=5, split=split))
    pages = {passage.title: passage for passage in made.passages}
    for question in made.questions:
        quotes = gold_sentences(question, pages)
        for quote, fact, title in zip(quotes, question.evidences, question.gold_titles, strict=True):
            assert fact.object in quote or level == "full"  # there it may stand by an alias
            assert quote in pages[title].text  # facts over two sentences stand one after the other


def test_early_stops_are_as_many_as_asked():
    made = build_world(WorldSpec("simple", size=200, seed=5, split="train"))
    single = made.questions
    multi_hop = [q for q in made.questions if q.kind != "single"]
    made = dataclasses.replace(made, questions=tuple(multi_hop))
    shares = [np.mean([d.early for d in demonstrate_all(made, p, random.Random(0))]) for p in (0, 0.65, 1)]
    assert shares[0] == 0
    # four standard errors of a share of 0.65 among about 160 questions
    assert shares[1] == pytest.approx(0.65, abs=4 * (0.65 * 0.35 / len(multi_hop)) ** 0.5)
    assert shares[2] == 1
    singles = dataclasses.replace(made, questions=tuple(q for q in single if q.kind == "single"))
    assert not any(d.early for d in demonstrate_all(singles, 1.0, random.Random(0)))


def test_right_where_complete_and_wrong_where_stopped_early():
    for written, episode in episodes(0.65):
        assert episode.reward == (0.0 if written.early else 1.0)
        assert (episode.stop_reason, episode.invalid, episode.turns) == ("answer", 0, len(written.turns))
    assert {written.early for written, _ in episodes(0.65)} == {True, False}


def test_observations_are_what_the_retriever_finds():
    index, card = build_in_memory(world().passages), world_task(world()).card
    for written, episode in episodes(0.65):
        (context,) = episode.contexts
        seen = [token_format().decode(span.ids) for span in context.spans if span.kind == "observation"]
        queries = [turn.split("<search> ")[1].removesuffix("</search>") for turn in written.turns[:-1]]
        assert queries == list(written.question.gold_titles[: len(queries)])
        hits = [index.search([query], card.top_k) for query in queries]
        assert seen == [TAGS_PROTOCOL.observation(found, card.max_observation_words) for found in hits]


def test_masks_hold_the_turns_and_nothing_else():
    end = tokenizer().convert_tokens_to_ids("</answer>")
    for written, episode in episodes(0.65):
        (sample,) = samples_from(episode, "demonstration")
        assert token_format().decode(sample.ids[sample.mask]) == "".join(written.turns)
        assert (sample.ids[-1], sample.mask[-1], sample.kind) == (end, True, "demonstration")
        prompt = first_prompt(load_agent("search-r1"), token_format(), written.question)
        np.testing.assert_array_equal(sample.ids[: len(prompt)], prompt)
        assert not sample.mask[: len(prompt)].any()


def test_demonstrations_are_played_with_tags_and_once_per_question():
    with pytest.raises(UsageError, match="written with tags"):
        play(world_task(world()), [], TokenFormat(tokenizer(), get_protocol("tool_calls"), chat=True))
    with pytest.raises(UsageError, match="the same question"):
        play(world_task(world()), demonstrate_all(world(), 0, random.Random(0))[:1] * 2, token_format())


def test_saying_nothing_reads_nothing():
    """Of golds without words, for which the official scripts would give 1."""

    class Silent:
        def sample(self, requests):
            return [SimpleNamespace(ids=request.ids) for request in requests]

    test = object.__new__(ReadingTest)
    test.task = SimpleNamespace(questions=[dataclasses.replace(CHAIN, answers=("The The",))])
    test._form = SimpleNamespace(stop=(), protocol=TAGS_PROTOCOL, response_text=lambda ids: "<answer>the</answer>")
    test._given = [np.array([1], np.int32)]
    assert test.scores(Silent()) == [0.0]
