"""Replies of servers in episodes: what acts, what is thought, what a stop string cut, and what is no response."""

import asyncio
import time
from dataclasses import replace

import pytest
from model_server import SAYS, choice_of, serves
from support import CARD, PASSAGES, TitleRetriever

from searchgym.adapters.hosts import chat_model
from searchgym.agents.base import load_agent
from searchgym.envs.task import load_task
from searchgym.errors import UsageError
from searchgym.protocol import get_protocol
from searchgym.records import Invalid, Question
from searchgym.rollout.api.replies import ServerReply, Settled, first_end, read_choice, settle
from searchgym.rollout.api.sampler import ApiOptions
from searchgym.rollout.engine import Engine
from searchgym.rollout.models import find_models, opened_models

TAGS, TOOLS = get_protocol("tags"), get_protocol("tool_calls")
QUESTION = Question("q", "What is the capital of Italy?", ("Rome",))
DOUBT = "<think>maybe <search>Alpha</search> <answer>Paris</answer> no</think><answer>Rome</answer> or <answer>Nice"


def task_of(protocol="tags", **options):
    retriever = TitleRetriever(PASSAGES)
    return load_task(CARD, questions=[QUESTION], retriever=retriever, protocol=protocol, max_turns=3, **options)


def play(replies, *, spec="", protocol="tags", options=None, **how):
    """Runs one episode over a server; returns it, the sampler's usage and the requests."""
    task, agent = task_of(protocol, **(options or {})), load_agent("search-r1")
    with serves(replies, **how) as (url, asked):
        named = dict.fromkeys(agent.roles, f"{url}#m{spec}")
        with opened_models(named, task.rules.protocol) as models:
            episode = asyncio.run(Engine(task, agent, models).episode(QUESTION))
            (usage,) = {id(model): model.sampler.usage for model in models.values()}.values()
    return episode, usage, asked


def play_hosted(replies, protocol="tags", **how):
    """Runs one episode with a model of a host; returns it, and the stop strings of each request."""
    task, agent, asked = task_of(protocol), load_agent("search-r1"), []

    async def chat(messages, sampling):
        asked.append(sampling.stop)
        turn = sum(message["role"] == "assistant" for message in messages)
        return read_choice(choice_of(replies[turn], sampling.stop, **how), sampling.stop, task.rules.protocol)

    models = {role: chat_model(role, chat, task.rules.protocol) for role in agent.roles}
    return asyncio.run(Engine(task, agent, models).episode(QUESTION)), asked


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("server", SAYS)
def test_a_stop_string_in_a_thought_does_not_end_the_response(server, apart):
    """The answer after the thought counts; the cost is a second request, without stop strings."""
    episode, usage, asked = play([DOUBT], server=server, apart=apart)
    assert (episode.answer.text, episode.reward, episode.searches, episode.turns) == ("Rome", 1.0, [], 1)
    assert episode.calls[0].text == DOUBT.partition(" or ")[0]
    assert ["stop" in body for body in asked] == [True, False]
    assert {name: value for name, value in asked[0].items() if name != "stop"} == asked[1]
    assert (usage.requests, usage.repeated, usage.prompt_tokens, usage.completion_tokens) == (2, 1, 200, 20)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("server", SAYS)
def test_the_same_of_a_hosts_model(server, apart):
    episode, asked = play_hosted([DOUBT], server=server, apart=apart)
    assert (episode.answer.text, episode.searches) == ("Rome", [])
    assert asked == [TAGS.stop_strings, ()]


@pytest.mark.parametrize("server", SAYS)
def test_a_thought_that_the_servers_template_opens(server, capsys):
    """Nothing in the text says so before the thought closes, only the option."""
    text = DOUBT.removeprefix("<think>")
    episode, usage, _ = play([text], spec="?thinks=true", server=server)
    assert (episode.answer.text, usage.repeated) == ("Rome", 1)
    assert episode.calls[0].text == DOUBT.partition(" or ")[0]
    assert "note: m at http://127.0.0.1" in (told := capsys.readouterr().err)
    assert "1 of 2 requests repeated one cut by a stop string in a thought or call" in told


def test_what_stands_behind_the_models_name():
    options = ApiOptions.of("http://a.b/v1#org/name?thinks=true")
    assert (options.url, options.model, options.thinks) == ("http://a.b/v1", "org/name", True)
    assert not ApiOptions.of("http://a.b/v1#name").thinks
    with pytest.raises(UsageError, match=r"only \?thinks=true may follow, got \?think"):
        find_models({"r": "http://a.b/v1#name?think"})
    with pytest.raises(UsageError, match=r"which model of this server\? Write http://a.b#NAME"):
        find_models({"r": "http://a.b#?thinks=true"})
    with pytest.raises(UsageError, match="two servers have models with the same name"):
        find_models({"r": "http://a.b/v1#name", "s": "http://a.b/v1#name?thinks=true"})


def test_thoughts_without_stop_strings_cost_one_request():
    texts = ["<think>who?</think><search>Alpha</search> <information>x", "<think>so</think>\n<answer>Rome</answer>"]
    for server in SAYS:
        episode, usage, asked = play(texts, server=server)
        assert [search.query for search in episode.searches] == ["Alpha"]
        assert (episode.answer.text, usage.requests, usage.repeated, usage.notes()) == ("Rome", 2, 0, [])
        assert asked[1]["messages"][1]["content"] == "<think>who?</think><search>Alpha</search>"


@pytest.mark.parametrize("server", SAYS)
def test_a_thought_that_never_closes_is_refused(server):
    texts = ["<think>it is <answer>Paris</answer> I think", "<answer>Rome</answer>"]
    episode, usage, asked = play(texts, server=server)
    assert (episode.answer.text, episode.invalid, usage.repeated) == ("Rome", 1, 1)
    assert "the thought never closes: write </think>" in asked[2]["messages"][2]["content"]


PROSE = [
    "I could use <search> for this, but I know it is Rome.",
    "I would write <answer> tags.",
    "Use `<search>` to find it.",
    "It is Rome (no <search> needed).",
    "<search> is not needed here, I know it is Rome.",
    "I know it.\n<answer> tags hold it.",
    "<search>, then <answer>, that is how it works.",
    "<answer>.",
    "<search> in two lines\nis no query",
    "<search>",
    "<think>I could <search></think>I know it from <answer> tags",
    "It is Rome.",
]
ACTIONS = [
    ("<search>Alpha", "<search>Alpha</search>"),
    ("<think>hm</think><search>Alpha", "<think>hm</think><search>Alpha</search>"),
    ("[THINK]hm[/THINK]<search>Alpha", "[THINK]hm[/THINK]<search>Alpha</search>"),
    ("I need a page.\n\n<search>\nAlpha\n", "I need a page.\n\n<search>\nAlpha\n</search>"),
    ("Let me look. <search> who was J. R. Smith Jr.", "Let me look. <search> who was J. R. Smith Jr.</search>"),
    ("**Answer:** <answer>Rome.", "**Answer:** <answer>Rome.</answer>"),
    ("- <answer>Rome", "- <answer>Rome</answer>"),
    ("So:\n<answer> Rome, in Italy.\nIt is old.", "So:\n<answer> Rome, in Italy.\nIt is old.</answer>"),
    ("<search>is Rome the capital of Italy?", "<search>is Rome the capital of Italy?</search>"),
    ("<search>.NET", "<search>.NET</search>"),
]


@pytest.mark.parametrize("text", PROSE)
@pytest.mark.parametrize("server", ["silent", "vllm", "sglang"])
def test_prose_that_names_a_tag_is_no_action(text, server):
    """The server ends it where the text ends, not at a stop string."""
    episode, usage, _ = play([text, text, text], server=server)
    assert (episode.answer, episode.searches, episode.invalid, usage.repeated) == (None, [], 3, 0)
    assert [call.text for call in episode.calls] == [text] * 3


@pytest.mark.parametrize(("text", "whole"), ACTIONS)
def test_an_action_gets_the_closing_tag_that_the_server_cut_off(text, whole):
    reply = read_choice(choice_of(whole, TAGS.stop_strings, "silent"), TAGS.stop_strings, TAGS)
    assert reply.text == text
    settled = settle(reply, TAGS.stop_strings, TAGS)
    assert (settled.text, settled.stopped, settled.cut) == (whole, True, False)
    assert not isinstance(TAGS.parse(whole), Invalid)


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_a_server_that_names_the_stop_string_is_believed(server):
    """In the middle of a sentence too, and in two lines."""
    episode, usage, _ = play(["I will say <answer> tags.\nand more</answer> now"], server=server)
    assert (episode.answer.text, usage.requests) == ("tags.\nand more", 1)


@pytest.mark.parametrize(("server", "answer"), [("vllm", None), ("sglang", None), ("silent", "Rome")])
def test_a_server_that_names_no_stop_string_is_believed_too(server, answer):
    """The model ended the text itself, without the closing tag."""
    episode, _, _ = play(["So:\n<answer>Rome"] * 3, server=server)
    assert (episode.answer.text if episode.answer else None) == answer


def test_other_words_of_a_server_are_none():
    """A reason that is no stop string that was sent, such as another API's, leaves the guess."""
    choice = {"message": {"content": "I write <answer> tags."}, "finish_reason": "stop", "stop_reason": "end_turn"}
    assert read_choice(choice, TAGS.stop_strings, TAGS).ended_by is None
    assert read_choice(choice | {"stop_reason": "</answer>"}, TAGS.stop_strings, TAGS).ended_by == "</answer>"
    assert read_choice(choice | {"finish_reason": "length"}, TAGS.stop_strings, TAGS).ended_by == ""


def test_calls_of_tools_get_their_tag_back_if_an_object_stands_there():
    cut = '<tool_call>\n{"name": "search", "arguments": {"query": "Alpha"}}\n'
    assert settle(ServerReply(cut), TOOLS.stop_strings, TOOLS).text == cut + "</tool_call>"
    prose = "<tool_call> tags would help, but it is Rome"
    assert settle(ServerReply(prose), TOOLS.stop_strings, TOOLS).text == prose


def test_a_role_may_have_stop_strings_of_its_own():
    assert settle(ServerReply("<plan>a\nb"), ("</plan>",), TAGS) == Settled("<plan>a\nb</plan>", True)
    assert (
        settle(ServerReply("<think></plan></think>a</plan>b"), ("</plan>",), TAGS).text
        == "<think></plan></think>a</plan>"
    )
    assert settle(ServerReply("a", ended_by="\n\n"), ("\n\n",), TAGS).text == "a\n\n"
    assert settle(ServerReply("<plan>a"), (), TAGS).text == "<plan>a"


def message(finish="stop", **fields):
    return {"message": {"role": "assistant", "content": None, **fields}, "finish_reason": finish}


def call(name, arguments):
    return {"type": "function", "id": "1", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("protocol", ["tags", "tool_calls"])
@pytest.mark.parametrize("arguments", ['{"query": "Alpha"}', {"query": "Alpha"}, '{"query": ["Alpha"]}'])
def test_calls_that_a_server_reads_out_of_the_text_act(protocol, arguments):
    called = message("tool_calls", reasoning="I say </think> often", tool_calls=[call("search", arguments)])
    episode, usage, asked = play([called, "<answer>Rome</answer>"], protocol=protocol)
    assert [search.query for search in episode.searches] == ["Alpha"]
    assert (episode.answer.text, episode.invalid, usage.unread) == ("Rome", 0, {})
    said = asked[1]["messages"][1]["content"]
    assert said.startswith("<think>I say </ think> often</think>")
    assert episode.calls[0].text == said


def test_pages_are_opened_by_calls_too():
    browsing = get_protocol("tags", browse=True, sources=("web",))
    calls = [call("open", '{"page": "Alpha"}'), call("more", ""), call("search", '{"query": "a", "source": "web"}')]
    read = read_choice(message(content="hm ", tool_calls=calls), browsing.stop_strings, browsing)
    assert (read.text, read.unread) == ("hm <open>Alpha</open>\n<more></more>\n<web_search>a</web_search>", ())
    assert settle(read, browsing.stop_strings, browsing).text == "hm <open>Alpha</open>"
    assert settle(ServerReply("<more>"), browsing.stop_strings, browsing).text == "<more></more>"
    assert settle(ServerReply("<more> of it"), browsing.stop_strings, browsing).text == "<more> of it"


@pytest.mark.parametrize("query", ["a </tool_call> b", "a </answer> b", "<search>", 'a "quoted" <think> part'])
def test_a_querys_markup_does_not_change_the_call(query):
    called = message("tool_calls", tool_calls=[call("search", {"query": query})])
    text = read_choice(called, TAGS.stop_strings, TAGS).text
    assert text == f"<search>{query}</search>"


NOTHING = [
    (message(), "nothing"),
    (message(content=""), "nothing"),
    (message(refusal="I cannot help"), "refusal"),
    (message("tool_calls", tool_calls=[call("get_weather", "{}")]), "tool get_weather"),
    (message("tool_calls", tool_calls=[call("search", '{"query": ')]), "tool search"),
    (message("tool_calls", tool_calls=[call("open", '{"page": "Alpha"}')]), "tool open"),
    (message("tool_calls", tool_calls=["search"]), "tool "),
    (message("content_filter", function_call={"name": "search"}), "function_call"),
]


@pytest.mark.parametrize(("choice", "name"), NOTHING)
def test_a_reply_without_a_response_is_counted_and_named(choice, name, capsys):
    episode, usage, _ = play([choice] * 3)
    assert (episode.invalid, episode.answer, dict(usage.unread)) == (3, None, {name.strip(): 3})
    assert f"3 of 3 replies: no response, but {name.strip()}\n" in capsys.readouterr().err


def test_thoughts_apart_that_nothing_follows_stay_open():
    """The server says that its end of text ended them, or the limit did: no second request helps."""
    for finish in ("stop", "length"):
        choice = message(finish, reasoning_content="it is <answer>Paris</answer>") | {"stop_reason": None}
        episode, usage, _ = play([choice, "<answer>Rome</answer>"])
        assert (episode.answer.text, episode.invalid, usage.repeated) == ("Rome", 1, 0)
        assert episode.calls[0].text == "<think>it is <answer>Paris</answer>"


def test_text_behind_the_first_action_is_no_part_of_the_response():
    """Servers that ignore stop strings would else write the pages themselves."""
    text = "<search>Alpha</search>\n<information>made up</information>\n<answer>Paris</answer>"
    done = message(content=text) | {"stop_reason": None}
    episode, usage, asked = play([done, "<answer>Rome</answer>"])
    assert asked[1]["messages"][1]["content"] == "<search>Alpha</search>"
    assert (episode.answer.text, usage.requests) == ("Rome", 2)


@pytest.mark.parametrize("server", SAYS)
def test_a_call_that_quotes_its_closing_tag_is_read_whole(server):
    text = '<tool_call>\n{"name": "search", "arguments": {"query": "Alpha </tool_call> tags"}}\n</tool_call> <answer>x'
    episode, usage, _ = play([text, "<answer>Rome</answer>"], protocol="tool_calls", server=server)
    assert [search.query for search in episode.searches] == ["Alpha </tool_call> tags"]
    assert (episode.answer.text, usage.repeated) == ("Rome", 1)


def test_a_call_is_over_where_the_protocol_says_so():
    """A grammar may say that a stop string stands inside a call; the request is then repeated as for thoughts."""

    class Quoting(type(TAGS)):
        def ended(self, text):
            return not text.endswith("b</search>")

    quoting = Quoting(**{name: getattr(TAGS, name) for name in TAGS.__slots__})
    whole = "<search>a b</search> c</search> d"
    assert whole[: first_end(whole, quoting.stop_strings, quoting)] == "<search>a b</search> c</search>"
    assert settle(ServerReply("<search>a b"), quoting.stop_strings, quoting).cut
    assert (
        settle(ServerReply(whole, ended_by=""), quoting.stop_strings, quoting).text == "<search>a b</search> c</search>"
    )


@pytest.mark.parametrize(
    "piece", ["<search>", "</answer>", "<think></answer></think>", "<answer>. ", "\n", "</think>", ". "]
)
def test_a_long_text_of_one_piece_is_settled_in_linear_time(piece):
    text = piece * (2**18 // len(piece))
    start = time.process_time()
    for reply in (
        ServerReply(text),
        ServerReply(text + "<search> is"),
        replace(ServerReply(text), ended_by="</answer>"),
    ):
        settle(reply, TAGS.stop_strings, TAGS)
    assert time.process_time() - start < 2.0  # quadratic scanning of these takes minutes


def test_the_answer_of_a_settled_text():
    """`settle` and `Protocol.parse` agree on what the action is."""
    for text in (DOUBT, "<search>a</search><answer>b</answer>", "x</answer><answer>y</answer> <search>z</search>"):
        end = first_end(text, TAGS.stop_strings, TAGS)
        assert not isinstance(TAGS.parse(text), Invalid)
        assert TAGS.parse(text[:end]) == TAGS.parse(text) != TAGS.parse(text[: end - 1])
