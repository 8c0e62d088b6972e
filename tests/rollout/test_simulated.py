"""Pages that a writer makes up: the schedule, marks, faults, the policy as its own engine, and the leaderboard."""

import asyncio
import dataclasses
import re

import numpy as np
import pytest
from credit_terms import terms_of

from searchgym.agents.base import load_agent
from searchgym.cli.evaluation.printed import print_scores
from searchgym.envs import find_env, load_task
from searchgym.errors import CardError, RetrieverError, UsageError
from searchgym.eval.compare import check_comparable
from searchgym.eval.run_folder import read_finished
from searchgym.eval.runner import evaluate
from searchgym.protocol import get_protocol
from searchgym.questions.worlds.build import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import (
    Call,
    Context,
    Episode,
    Hit,
    Passage,
    Question,
    Searched,
    Span,
    Triple,
    simulated_share,
)
from searchgym.retrieval.cards import find_retriever
from searchgym.rollout.api.sampler import ASSISTANT, MessageFormat, messages_of
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import Model
from searchgym.rollout.sampler import Sampled
from searchgym.rollout.simulated.engine import SimulatedRetriever, open_engine
from searchgym.rollout.simulated.paragraphs import ParagraphWriter
from searchgym.rollout.simulated.ssrl import written
from searchgym.rollout.simulated.writers import ModelWriter, Wanted, pages_in
from searchgym.testing.fakes import HOSTILE_REPLIES
from searchgym.train.algorithms.samples import samples_from
from searchgym.train.credit.credit import Credit
from searchgym.train.credit.evidence import fetched_gains, supported
from searchgym.train.credit.terms.ssrl_form import SsrlForm, form_of
from searchgym.train.recipe.load import load_recipe

QUESTIONS = build_world(WorldSpec("simple", 60, 1, "train")).questions[:8]
CARD = find_retriever({"kind": "simulated", "model": "test_simulated:Kinds", "pages": 2, "end": 0.5})


class Kinds:
    """A writer that says what was wanted of it."""

    def __init__(self, found=None):
        self.found, self.wanted = found, []

    def write(self, wanted):
        self.wanted += wanted
        return [["a page", "another", "a third"][: one.pages] for one in wanted] if self.found is None else self.found


class Scripted:
    """A sampler of messages with the given replies, in order."""

    version, max_context = 0, 10**6

    def __init__(self, *replies):
        self.replies, self.asked = list(replies), []

    def sample(self, requests):
        self.asked += [messages_of(request.ids) for request in requests]
        texts = [self.replies.pop(0) for _ in requests]
        return [Sampled(np.array([*map(ord, t)], np.int32), np.full(len(t), -1, np.float32), "stop") for t in texts]

    def close(self):
        pass


def model(*replies):
    sampler = Scripted(*replies)
    return Model.over("policy", sampler, MessageFormat(get_protocol("tags"))), sampler


def test_noise_grows_by_zerosearchs_formula():
    """b = 4, from 0 to 0.5: at half of the steps (2 - 1) / 3 of it, 1/6."""
    retriever = SimulatedRetriever(CARD, Kinds())
    chances = []
    for step in (None, 0, 50, 100, 200):
        retriever.at_step(step, 100)
        chances.append(retriever.probability)
    assert chances == pytest.approx([0, 0, 1 / 6, 0.5, 0.5])


def test_the_share_of_noisy_pages_is_the_schedules():
    retriever = SimulatedRetriever(CARD, Kinds())
    queries = [f"query {n}" for n in range(2000)]
    retriever.at_step(100, 100)
    hits = retriever.search_for(["x"] * 2000, queries, 3)
    noisy = sum(own[0].passage.id.startswith("simulated:noisy/") for own in hits)
    assert abs(noisy / 2000 - 0.5) < 0.04
    assert retriever.search_for(["x"], queries[:1], 3) == hits[:1], "drawn by seed, step and query alone"
    retriever.at_step(None, 100)
    clean = retriever.search_for(["x"] * 50, queries[:50], 3)
    assert all(hit.passage.id.startswith("simulated:useful/") for own in clean for hit in own)


def test_pages_are_marked_and_counted():
    retriever = SimulatedRetriever(CARD, Kinds(), QUESTIONS)
    (hits,) = retriever.search_for([QUESTIONS[0].id], ["q"], 3)
    assert [hit.score for hit in hits] == [1, 0.5] and len({hit.passage.id for hit in hits}) == 2
    real = Hit(Passage("7", "T", "t"), 1.0)
    assert simulated_share([Searched(1, "q", tuple(hits)), Searched(2, "q", (real, real))]) == 0.5
    assert simulated_share([]) == 0


def test_the_writer_sees_the_answer_only_if_the_card_says_so():
    for answers in (True, False):
        writer = Kinds()
        retriever = SimulatedRetriever(dataclasses.replace(CARD, answers=answers), writer, QUESTIONS)
        retriever.search_for([QUESTIONS[0].id, "proposed"], ["q", "r"], 1)
        assert [one.question for one in writer.wanted] == [QUESTIONS[0] if answers else None, None]
        assert [one.pages for one in writer.wanted] == [1, 1]


@pytest.mark.parametrize("found", [None, [], [["a"], ["b"]], [[1]], ["page"], [None], "pages"])
def test_a_writer_that_writes_something_else_is_a_fault(found):
    class Broken(Kinds):
        def write(self, wanted):
            return found

    with pytest.raises(RetrieverError, match="writer"):
        SimulatedRetriever(CARD, Broken()).search_for(["x"], ["q"], 3)


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        ("Doc 1: Zor is a film.\nDoc 2: Its director\nis Ulo.", ["Zor is a film.", "Its director is Ulo."]),
        ("Sure!\n**Document 1:** one\nDoc 2) two\nDoc 3: three", ["one", "two"]),
        ("one\n\ntwo", ["one", "two"]),
        ("", []),
        ("Doc 1:\nDoc 2:", []),
        ("Doc 1: " + "word " * 50, ["word " * 9 + "word"]),
    ],
)  # fmt: skip
def test_documents_are_found_in_a_reply(text, pages):
    found = [page.strip("* ") for page in pages_in(text, 2, 5)]
    assert found == pages


def test_a_model_writes_useful_and_noisy_pages():
    own, sampler = model("Doc 1: good", "Doc 1: bad")
    writer = ModelWriter(own, 0.8)
    question = QUESTIONS[0]
    assert writer.write([Wanted("q1", question, True, 3, 9, 1), Wanted("q2", None, False, 3, 9, 2)]) == [
        ["good"],
        ["bad"],
    ]
    first, second = (messages[0]["content"] for messages in sampler.asked)
    assert "must be useful" in first and question.answers[0] in first and first.endswith("Query: q1")
    assert "must be noise" in second and "answer:" not in second and "about 9 words" in second


def test_paragraphs_stand_in_for_a_model():
    question = next(q for q in QUESTIONS if q.kind == "single")
    title = question.gold_titles[0]
    useful, noisy = ParagraphWriter().write(
        [Wanted(title, question, True, 3, 40, 1), Wanted(title, question, False, 3, 40, 1)]
    )
    gold = next(p.text.strip() for p in question.paragraphs if p.supporting)
    assert useful[0] == gold and gold not in noisy and len(noisy) == 3
    assert ParagraphWriter().write([Wanted(title, None, True, 3, 40, 1)]) == [[]]


@pytest.mark.parametrize(
    ("card", "says"),
    [
        ({"kind": "simulated"}, "model: missing key"),
        ({"kind": "simulated", "model": "tiny", "end": 2}, "end: expected at most 1, got 2"),
        ({"kind": "simulated", "model": "tiny", "page": 2}, "did you mean 'pages'"),
    ],
)
def test_cards_are_strict(card, says):
    with pytest.raises(CardError, match=says):
        find_retriever(card)


def test_it_is_neither_wrapped_nor_without_a_writer():
    inner = {"kind": "simulated", "model": "test_simulated:Kinds"}
    with pytest.raises(UsageError, match="simulated engine"):
        load_task(find_env("World-v0"), questions={"size": 60}, retriever={"kind": "cache", "of": inner})
    with pytest.raises(UsageError, match="has no write"):
        open_engine(find_retriever({"kind": "simulated", "model": "builtins:list"}), ())


def episodes_of(agent, task, models=None):
    found = []
    asyncio.run(Engine(task, agent, models).run(task.questions[:3], found.append))
    return found


def test_episodes_and_scores_are_marked():
    card = {"kind": "simulated", "model": "searchgym.rollout.simulated.paragraphs:ParagraphWriter", "words": 60}
    task = load_task(find_env("World-v0"), questions={"size": 60}, retriever=card)
    for episode in episodes_of(load_agent("oracle"), task):
        assert (episode.reward, episode.scores["simulated"]) == (1.0, 1.0)
    real = load_task(find_env("World-v0"), questions={"size": 60})
    assert all("simulated" not in episode.scores for episode in episodes_of(load_agent("oracle"), real))


def test_scores_of_a_run_and_comparisons_say_who_wrote_the_pages(tmp_path, capsys):
    card = {"kind": "simulated", "model": "searchgym.rollout.simulated.paragraphs:ParagraphWriter", "words": 60}
    world = {"size": 20}
    for name, options in (("written", {"retriever": card}), ("real", {})):
        evaluate(load_task(find_env("World-v0"), questions=world, **options), load_agent("oracle"), tmp_path / name)
    written, real = (read_finished(tmp_path / name) for name in ("written", "real"))
    assert written.scores["simulated"] == 1 and "simulated" not in real.scores
    for pair in ((written, real), (real, written)):
        (note,) = [note for note in check_comparable(pair) if "model wrote" in note]
        assert note.startswith(f"{written.name}: a model wrote 100% of its hits")
    assert not any("model wrote" in note for note in check_comparable([written, written]))
    print_scores("World", written.scores)
    assert "of an episode's hits were written by a model, not retrieved" in " ".join(capsys.readouterr().out.split())
    print_scores("World", real.scores)
    assert "written by a model" not in " ".join(capsys.readouterr().out.split())


# -- the policy as its own engine ----------------------------------------------------------------------------------


def ssrl_episode(*replies):
    own, sampler = model(*replies)
    task = load_task(find_env("World-v0"), questions={"size": 60})
    (episode,) = _one(task, own)
    return episode, sampler


def _one(task, own):
    found = []
    engine = Engine(task, load_agent("ssrl"), {"searcher": own, "engine": own}, training=True)
    asyncio.run(engine.run(task.questions[:1], found.append))
    return found


def test_the_policy_writes_its_own_pages():
    episode, sampler = ssrl_episode(
        "<think>a</think><search>Zor</search>", "Zor is <b>a</b> film.</information> more", "<answer>x</answer>"
    )
    (searched,) = episode.searches
    (hit,) = searched.hits
    assert (searched.query, hit.passage.text) == ("Zor", "Zor is  a  film.")
    assert hit.passage.id == "simulated:ssrl/1-0" and episode.scores["simulated"] == 1
    assert [(call.role, call.prefix) for call in episode.calls] == [
        ("searcher", False), ("engine", True), ("searcher", False),
    ]  # fmt: skip
    shown = sampler.asked[2][-1]["content"]
    assert "<information>" in shown and "Zor is  a  film." in shown and "more" not in shown
    assert episode.turns == 2


@pytest.mark.slow_cases
@pytest.mark.parametrize("text", [text for text in HOSTILE_REPLIES if text])
def test_whatever_it_writes_as_an_engine_is_a_page_without_tags(text):
    """No text of the engine's acts: the episode goes on with the searcher's own answer."""
    episode, _ = ssrl_episode("<search>Zor</search>", text, "<answer>x</answer>")
    (searched,) = episode.searches
    assert not any(
        tag in hit.passage.text for hit in searched.hits for tag in ("<search>", "<answer>", "</information>")
    )
    assert (episode.answer.text, episode.turns, episode.stop_reason) == ("x", 2, "answer")
    assert [call.legal for call in episode.calls if call.role == "searcher"] == [True, True]


def test_what_it_writes_as_an_engine_is_not_trained_on():
    """SSRL masks information: it is an observation in the searcher's sequence, and the fork leaves the batch."""
    episode, _ = ssrl_episode("<search>Zor</search>", "a page</information>", "<answer>x</answer>")
    credit = Credit(terms_of("outcome", "ssrl-form"))
    counted = [s for s in samples_from(episode) if credit.trains_prefixes or not all(call.prefix for call in s.calls)]
    (sample,) = counted
    trained = "".join(chr(i) for i in sample.ids[sample.mask] if i < ASSISTANT)
    assert trained == "<search>Zor</search><answer>x</answer>"


def test_pages_of_its_own_are_no_evidence():
    """A policy that writes what a question's facts say would pay itself."""
    fact = Triple("Zor", "mother", "Ada Bel")
    question = Question("q", "Who is the mother of Zor?", ("Ada Bel",), evidences=(fact,))

    def found(id):
        hit = Hit(Passage(id, "", "The mother of Zor is Ada Bel."), 1.0)
        return Episode("e", "q", "a", "e", searches=[Searched(1, "Zor", (hit,))])

    assert supported(question, found("page")) == 1
    assert supported(question, found("simulated:ssrl/1-0")) == 0
    ranking = Call(0, 1, 2, "ranker", "policy", 2, ranked=(0,))
    assert fetched_gains(question, found("page"), ranking) == [1]
    assert fetched_gains(question, found("simulated:ssrl/1-0"), ranking) == [0]
    wordless = dataclasses.replace(question, answers=("The",))  # a word of the page, and no evidence for the answer
    assert fetched_gains(wordless, found("page"), ranking) == [0]


@pytest.mark.parametrize(
    ("texts", "score"),
    [
        (["<think>a</think><search>q</search>", "<think>b</think><answer>x</answer>"], 1),
        (["<think>a</think><answer>x</answer>"], 0.5),
        (["<think>a</think><search>q</search>", "<answer>x</answer>"], 0.5 * 1 / 2),
        (["<think>a</think><think>b</think><think>c</think><answer>x</answer>"], 1 / 3),
        (["<search>q</search><think>a</think><answer>x</answer>"], 0),
        (["<think>a</think>"], 0),
        (["<think> </think><answer>x</answer>"], 0),
        (["<think>a</think><b>c</b><answer>x</answer>"], 0),
        (["<think>a</think><search>q\nr</search><answer>x</answer>"], 0),
        (["<think>a</think>" * 9 + "<answer>x</answer>"], 0),
        ([""], 0),
    ],
)
def test_the_form_by_hand(texts, score):
    assert form_of(texts) == pytest.approx(score)


@pytest.mark.parametrize(
    "text",
    [
        "<think>a<search>q</search><think>b</answer>",  # a thought that is not closed
        "<think> x </answer>",  # two tags that open and close nothing
        "<think>a</think><answer>x</think></answer>",
        "<think>a<search>q</search></think><answer>x</answer>",  # a search within a thought
        "<think>a</think></think><answer>x</answer>",
        "<think>a</think><search>q<answer>x</answer>",
        "<think>a</think></search>q<search><answer>x</answer>",  # closed before it is opened
        "<think>a</think><search>q</answer><answer>x</answer>",
        "<think>a</think><answer>x</answer><answer>y</answer>",
        "<think>a</think><answer>x</answer><think>b</think></answer>",
        "<think>a</think><information>p</information><answer>x</answer>",  # pages are the environment's to give
        "<think>a</think><b class=c>d<answer>x</answer>",
        "<think>a</think >b<answer>x</answer>",
        "<think>a</think><search> </search><answer>x</answer>",
        "<think>a</think><search>q\nr</search><answer>x</answer>",
        "<think>your thoughts</think><answer>x</answer>",
        "<think>a</think><search>your query</search><think>b</think><answer>x</answer>",
        "<think>a</think><search>Your Query here</search><think>b</think><answer>x</answer>",
        "<think>a</think><answer>your answer</answer>",
        "<think>Search with <search>your query</search></think><answer>your answer</answer>",  # the prompt again
    ],
)
def test_a_broken_form_scores_nothing(text):
    assert form_of([text]) == 0
    assert form_of([text[: len(text) // 2], text[len(text) // 2 :]]) == 0


def test_placeholders_of_the_prompt_are_those_that_score_nothing():
    """A model that copies what its instructions show has learnt nothing from them."""
    shown = get_protocol("tags").instructions()
    assert re.findall(r"<(\w+)>(your \w+)</", shown) == [("search", "your query"), ("answer", "your answer")]
    kept = "<think>a</think><search>my query</search><think>b</think><answer>their answer</answer>"
    assert form_of([kept]) == 1


def test_the_form_is_a_credit_term():
    span = Span("model", np.array([1], np.int32), np.array([-1], np.float32))
    context = Context(None, 0, [Span("prompt", np.array([0], np.int32)), span])
    call = Call(0, 1, 2, "searcher", "policy", 1, text="<think>a</think><answer>x</answer>")
    assert SsrlForm().rewards([Episode("e", "q", "a", "e", contexts=[context], calls=[call])], None) == [[0.5]]
    assert written("<b>a</b></information> rest") == "a"


def test_the_recipe_loads():
    recipe = load_recipe("tiny-zerosearch")
    card = find_retriever(recipe.env_options["retriever"])
    assert (card.kind, card.start, card.end, card.base) == ("simulated", 0.0, 0.5, 4)


@pytest.mark.slow
def test_smollm2_writes_pages():
    """One real run: pages of a language model, marked, and read by an agent."""
    pytest.importorskip("gguf")
    card = {"kind": "simulated", "model": "smollm2", "pages": 2, "words": 15}
    task = load_task(find_env("World-v0"), questions={"size": 60}, retriever=card, retriever_deadline=300.0)
    (hits,) = task.retriever.search_for([task.questions[0].id], ["Where is Paris?"], 3)
    task.retriever.writer.close()
    assert 1 <= len(hits) <= 2 and all(len(hit.passage.text.split()) <= 30 for hit in hits)
    assert all(hit.passage.id.startswith("simulated:useful/") for hit in hits)
