"""Finding texts in open pages, citing pages, and the token budget."""

import asyncio
import time

import pytest
from gymnasium.utils.env_checker import check_env
from support import CARD, step_alike

from searchgym.agents import load_agent
from searchgym.envs.core import begin
from searchgym.envs.pages.cite import QUOTE_WORDS
from searchgym.envs.pages.find import MAX_TEXT_CHARS, MOST_WINDOWS
from searchgym.envs.single import SearchEnv
from searchgym.envs.task import load_task
from searchgym.envs.vector import SearchVectorEnv
from searchgym.errors import DataError, UsageError
from searchgym.eval.scores import score_episodes
from searchgym.protocol import get_protocol
from searchgym.records import Answer, Cite, Cited, Find, Invalid, Passage, Question, SupportingFact
from searchgym.retrieval.index.index import build_in_memory
from searchgym.rollout.engine import Engine
from searchgym.rollout.storage import EpisodeWriter, read_episodes
from searchgym.scoring.citations import GoldSpan, gold_spans_of, score_citations
from searchgym.text import estimate_tokens

FILLER = " ".join(f"word{number}" for number in range(200))
NAMES = ["Alma", "Bela", "Cora", "Dina"]
PASSAGES = [
    passage
    for name in NAMES
    for passage in (
        Passage(f"{name}-1", name, f"{name} is a town. {FILLER}"),
        Passage(f"{name}-2", name, f"Its archive holds {len(name)}{name.count('a')} lamps in the north hall. {FILLER}"),
    )
]
FACT = "Its archive holds 41 lamps in the north hall."
QUESTIONS = [
    Question(
        f"q{n}",
        f"How many lamps does the archive of {name} hold?",
        (f"4{name.count('a')}",),
        supporting_facts=(SupportingFact(name),),
        metadata={
            "gold_spans": [{"title": name, "text": f"Its archive holds 4{name.count('a')} lamps in the north hall."}]
        },
    )
    for n, name in enumerate(NAMES)
]
OPTIONS = {
    "browse": True, "find": True, "cite": True, "snippet_words": 5, "max_observation_words": 40, "max_turns": 100,
    "top_k": 2,
}  # fmt: skip


def task(passages=PASSAGES, **options):
    return load_task(CARD, questions=QUESTIONS, retriever=build_in_memory(passages), **(OPTIONS | options))


def played(env, *actions):
    env.reset(seed=0, options={"question_id": "q0"})
    return [env.step(action)[0] for action in actions]


@pytest.mark.parametrize("name", ["tags", "tool_calls", "propose"])
@pytest.mark.parametrize(
    "action", [Find("some & words"), Cite("Alma (town)", "a quote | with a bar"), Answer("x", confidence=0.85)]
)
def test_written_actions_are_read_back(name, action):
    protocol = get_protocol(name, browse=True, find=True, cite=True)
    assert protocol.parse(protocol.write(action)) == action
    for example in (Find("some words"), Cite("its title", "a sentence of it")):
        assert protocol.write(example) in protocol.instructions()


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<find> </find>", Invalid("the text to find is empty")),
        ("<cite>Alma</cite>", Invalid("a citation is: title or id | quote")),
        ("<cite> | a quote</cite>", Invalid("a citation is: title or id | quote")),
        ("<cite>Alma | <find>x</cite>", Invalid("<cite> holds another tag")),
        ("<think><find>x</find></think><find>y</find>", Find("y")),
    ],
)
def test_tags(text, action):
    assert get_protocol("tags", browse=True, find=True, cite=True).parse(text) == action


@pytest.mark.parametrize(
    ("body", "action"),
    [
        ('{"name": "find", "arguments": {"text": 3}}', Invalid("text is not a non-empty string")),
        ('{"name": "cite", "arguments": {"page": "Alma"}}', Invalid("quote is not a non-empty string")),
        ('{"name": "cite", "arguments": {"quote": "Alma"}}', Invalid("page is no title or id")),
        ('{"name": "fetch", "arguments": {}}', Invalid("the tools are search, open, more, find and cite")),
    ],
)
def test_tool_calls(body, action):
    protocol = get_protocol("tool_calls", browse=True, find=True, cite=True)
    assert protocol.parse(f"<tool_call>{body}</tool_call>") == action


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Paris\nConfidence: 85%", Answer("Paris", confidence=0.85)),
        ("Paris\n\n confidence: 7.5 % ", Answer("Paris", confidence=0.075)),
        ("Paris\nConfidence: 850%", Answer("Paris\nConfidence: 850%")),
        ("Paris, Confidence: 85%", Answer("Paris, Confidence: 85%")),
        ("Confidence: 85%", Answer("Confidence: 85%")),
        ("Paris\nConfidence: 10%\nConfidence: 90%", Answer("Paris\nConfidence: 10%", confidence=0.9)),
        ("Paris\nConfidence: NaN%", Answer("Paris\nConfidence: NaN%")),
    ],
)
def test_the_last_line_may_state_a_confidence(text, answer):
    assert get_protocol("tags").parse(f"<answer>{text}</answer>") == answer


def test_pages_are_searched_and_cited_only_where_they_can_be_opened():
    with pytest.raises(UsageError, match="find needs pages that can be opened: set browse"):
        get_protocol("tags", find=True)
    with pytest.raises(UsageError, match="cite needs pages"):
        task(browse=False, find=False)
    plain = task(find=False, cite=False)
    env = SearchEnv(plain)
    played(env, "<search>Alma</search>")
    for action in (Find("lamps"), Cite("Alma", FACT)):
        assert isinstance(begin(env.state, action, plain.rules)[0].action, Invalid)


def test_a_found_text_is_shown_amid_its_neighbours():
    env = SearchEnv(task())
    nothing_open, _, seen, missing, after = played(
        env, "<find>lamps</find>", "<open>Alma</open>", "<find>LAMPS  in</find>", "<find>Bela</find>", "<more></more>"
    )
    assert "No page has been opened yet" in nothing_open
    assert "Page(Title: Alma, 11 parts) holds the text 1 times" in seen and "[part 6] ... word" in seen and FACT in seen
    assert "The page Alma does not hold that text: Bela" in missing
    assert "part 7 of 11" in after  # reading goes on after the part with the first match
    record = env.state.opens[2]
    assert (record.text, record.matches, record.part, record.parts, record.title) == ("LAMPS  in", 1, 6, 11, "Alma")


def test_a_text_to_find_may_be_absurd():
    many = [Passage("m", "Many", " ".join(["lamp"] * 10_000))]
    env = SearchEnv(task(many))
    started = time.perf_counter()
    _, often, long, letter = played(
        env, "<open>Many</open>", "<find>lamp</find>", f"<find>{'x' * 1_000_000}</find>", "<find>l</find>"
    )
    assert time.perf_counter() - started < 5
    assert f"holds the text 10000 times, the first {MOST_WINDOWS} are shown" in often
    assert often.count("[part") == letter.count("[part") == MOST_WINDOWS
    assert len(often.split()) < 40 + 40
    assert f"at most {MAX_TEXT_CHARS} characters, this one has 1000000" in long
    assert [opened.matches for opened in env.state.opens] == [0, 10_000, 0, 10_000]
    assert len(env.state.opens[2].text) == MAX_TEXT_CHARS


def test_citations_are_checked_when_they_are_written():
    env = SearchEnv(task())
    cite = f"<cite>Alma | {FACT}</cite>"
    early, _, good, by_id, short, unsaid, unknown, long = played(
        env, cite, "<open>Alma</open>", cite, f"<cite>Alma-2 | {FACT.upper()}</cite>", "<cite>Alma | 41 lamps</cite>",
        "<cite>Alma | Its archive holds 42 lamps</cite>", f"<cite>Zora | {FACT}</cite>",
        f"<cite>Alma | {FILLER}</cite>",
    )  # fmt: skip
    assert "does not count: the page has not been opened" in early
    assert "Cited: Alma" in good and "Cited: Alma" in by_id
    assert "a quote has 3 to 60 words" in short and "a quote has 3 to 60 words" in long
    assert "does not hold that quote word for word" in unsaid
    assert "No page is called Zora" in unknown
    assert [not cited.fault for cited in env.state.cites] == [False, True, True, False, False, False, False]
    env.reset(seed=0, options={"question_id": "q0"})
    assert "has not been opened" in env.step(cite)[0]  # the page was opened in another episode
    assert max(QUOTE_WORDS) == 60


GOLDS = [GoldSpan("Alma", FACT), GoldSpan("Bela", "")]
HAND: list[tuple[list[tuple[str, str, bool]], float, float]] = [
    # citations as (title, quote, valid), precision, recall
    ([], 0.0, 0.0),
    ([("Alma", FACT, True)], 1.0, 0.5),
    ([("Alma", FACT, True), ("Bela", "any words there", True)], 1.0, 1.0),
    ([("Alma", FACT, False)], 0.0, 0.0),
    ([("Alma", FACT, True)] * 3, 1.0, 0.5),
    ([("Alma", FACT, True), ("Alma", FACT.upper(), True)], 1.0, 0.5),
    ([("Alma", "archive holds 41 lamps in", True)], 1.0, 0.5),  # 5 of 9 words
    ([("Alma", "archive holds 41 lamps", True)], 0.0, 0.0),  # 4 of 9 words
    ([("Alma", "archive holds 42 lamps in the north hall", True)], 0.0, 0.0),  # another number
    ([("Alma", f"is a town. {FACT} word0", True)], 1.0, 0.5),  # more than the sentence
    ([("Alma", "lamps in the north hall. word0", True)], 0.0, 0.0),  # a part, and words outside it
    ([("Cora", FACT, True)], 0.0, 0.0),  # another page that says the same
    ([("Bela", "any words there", True)], 1.0, 0.5),
    ([("Bela", "any words there", True), ("Bela", "other words there", True)], 1.0, 0.5),
    ([("Cora", "any words there", True), ("Alma", FACT, True)], 0.5, 0.5),
    ([("Alma", FACT, True), ("Zora", FACT, False)], 0.5, 0.5),
    ([("alma", FACT, True)], 0.0, 0.0),  # titles keep their case
    ([(" Alma ", FACT, True)], 1.0, 0.5),
    ([("Alma", FACT, True), ("Bela", "any words there", False)], 0.5, 0.5),
    ([("Alma", "word0 word1 word2", True), ("Bela", "any words there", True), ("Cora", "a b c", True)], 1 / 3, 0.5),
]


@pytest.mark.parametrize(("cites", "precision", "recall"), HAND)
def test_citations_by_hand(cites, precision, recall):
    records = [Cited(1, title, quote, title if valid else "", "" if valid else "why") for title, quote, valid in cites]
    scores = score_citations(records, GOLDS)
    assert (scores.precision, scores.recall) == pytest.approx((precision, recall))


def test_a_citation_with_a_fault_supports_nothing():
    assert GOLDS[0].supported_by(Cited(1, "Alma", FACT, "Alma"))
    assert not GOLDS[0].supported_by(Cited(1, "Alma", FACT, "Alma", "the page has not been opened."))


def test_gold_spans_come_from_the_metadata_or_the_gold_pages():
    assert gold_spans_of(QUESTIONS[0]) == [GoldSpan("Alma", "Its archive holds 41 lamps in the north hall.")]
    assert gold_spans_of(Question("q", "?", ("x",), supporting_facts=(SupportingFact("Bela"),))) == [
        GoldSpan("Bela", "")
    ]
    assert gold_spans_of(Question("q", "?", ("x",))) == []
    with pytest.raises(DataError, match="question 'q': gold_spans: expected"):
        gold_spans_of(Question("q", "?", ("x",), metadata={"gold_spans": [{"title": "Alma"}]}))


def test_past_the_token_budget_only_citing_and_answering_are_left():
    env = SearchEnv(task(token_budget=150))
    info = env.reset(seed=0, options={"question_id": "q0"})[1]
    assert info["tokens_left"] == 150
    spent = 0
    for action in ("<open>Alma</open>", "<search>Alma</search>"):
        observation, *_, info = env.step(action)
        spent += estimate_tokens(observation)
        assert info["tokens_left"] == max(150 - spent, 0)
    assert spent > 150
    for action in ("<search>Alma</search>", "<open>Alma</open>", "<more></more>", "<find>lamps</find>"):
        assert "the 150 tokens that may be read are used up: answer" in env.step(action)[0]
    assert "Cited" in env.step(f"<cite>Alma | {FACT}</cite>")[0]
    *_, info = env.step("<answer>41</answer>")
    assert (info["em"], info["cites"], len(env.state.searches)) == (1.0, 1, 1)


def test_estimated_tokens():
    assert estimate_tokens("In 1912, the lighthouses burnt.") == 1 + 4 + 1 + 1 + 2 + 1 + 1
    assert estimate_tokens(" \n") == 0


def test_the_usual_checks_and_the_vector_environment():
    small = task(token_budget=400, faults=[{"kind": "rate-limit", "rate": 0.5}])
    check_env(SearchEnv(small), skip_render_check=True)
    texts = [
        *["<search>{}</search>"] * 2,
        "<open>{}</open>",
        "<find>lamps</find>",
        f"<cite>{{}} | {FACT}</cite>",
        "<find>nowhere</find>",
        "<answer>41\nConfidence: 50%</answer>",
    ]
    vector, singles = SearchVectorEnv(small, 3), [SearchEnv(small) for _ in range(3)]
    ids = ["q0", "q1", "q3"]
    vector.reset(options={"question_ids": ids})
    for env, id in zip(singles, ids, strict=True):
        env.reset(options={"question_id": id})
    for text in texts:
        actions = [text.format(NAMES[int(id[1])]) for id in ids]
        step_alike(vector, singles, actions, ["opens", "cites", "tokens_left"])
    assert [(state.opens, state.cites) for state in vector.states] == [
        (env.state.opens, env.state.cites) for env in singles
    ]


def episodes_of(small, agent):
    episodes = []
    asyncio.run(Engine(small, load_agent(agent)).run(small.questions, episodes.append))
    return episodes


def test_the_research_oracle_cites_what_it_reads(tmp_path):
    small = task()
    episodes = episodes_of(small, "research-oracle")
    scores = score_episodes(small, episodes)
    names = ("em", "citations", "citation_precision", "citation_recall", "opens", "gold_found")
    assert [scores[name] for name in names] == [1.0, 1.0, 1.0, 1.0, 2.0, 1.0]
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        for episode in episodes:
            writer.write(episode)
    assert [(e.opens, e.cites) for e in read_episodes(tmp_path / "episodes.jsonl")] == [
        (e.opens, e.cites) for e in episodes
    ]
    assert score_episodes(small, episodes_of(small, "research-snippets"))["em"] == 0.0
    assert "citations" not in score_episodes(task(cite=False), episodes_of(task(cite=False), "research-oracle"))
