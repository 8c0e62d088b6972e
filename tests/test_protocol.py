import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.protocol import MAX_ACTION_CHARS, get_protocol, split_thoughts
from searchgym.records import Answer, Hit, Invalid, Passage, Search
from searchgym.text import count_words, cut_words, skip_words

TAGS, TOOLS = get_protocol("tags"), get_protocol("tool_calls")
CALL = '{"name": "search", "arguments": {"query": %s}}'


def kind(action):
    return type(action).__name__


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("<search>river Ase</search>", Search(("river Ase",))),
        ("<search>\n two \n words\t</search>", Search(("two \n words",))),
        ("<answer> Beijing </answer>", Answer("Beijing")),
        ("<answer></answer>", Answer("")),
        ("so <search>a</search><answer>b</answer>", Search(("a",))),
        ("<answer>b</answer><search>a</search>", Answer("b")),
        ("<search>a</search><search>b</search>", Search(("a",))),
        ("<search>a</search> the tail of a token", Search(("a",))),
        ("<search>never closed <answer>x</answer>", Answer("x")),
        ("</search><search>a</search>", Search(("a",))),
        ("<think><answer>no</answer></think><answer>yes</answer>", Answer("yes")),
        ("no, <search>b</search> is wrong</think><search>a</search>", Search(("a",))),
        ("<think>a <think>b</think><search>a</search>", Search(("a",))),
        ("<search>naïve 漢字 \x00</search>", Search(("naïve 漢字 \x00",))),
        ("<search>a < b > c</search>", Search(("a < b > c",))),
    ],
)
def test_tags_read_the_first_complete_action(text, action):
    assert TAGS.parse(text) == action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no complete action"),
        ("I think it is Paris.", "no complete action"),
        ("<search>open", "no complete action"),
        ("<SEARCH>a</SEARCH>", "no complete action"),
        ("<search></search>", "query is empty"),
        ("<search> \n </search>", "query is empty"),
        ("<search><answer>x</answer></search>", "holds another tag"),
        ("<answer><search>x</search></answer>", "holds another tag"),
        ("<search>a<search>b</search></search>", "holds another tag"),
        ("<think><answer>x</answer></think>", "no complete action"),
        ("x" * (MAX_ACTION_CHARS + 1), "at most"),
    ],
)
def test_tags_refuse_the_rest_with_a_reason(text, reason):
    action = TAGS.parse(text)
    assert isinstance(action, Invalid)
    assert reason in action.reason


@pytest.mark.parametrize(
    ("body", "action"),
    [
        (CALL % '"a b"', Search(("a b",))),
        (CALL % '["a", "b"]', Search(("a", "b"))),
        ('{"arguments": {"query": "é\\n", "k": 3}, "name": "search"}', Search(("é",))),
    ],
)
def test_tool_calls_are_read(body, action):
    assert TOOLS.parse(f"<think>hm</think><tool_call>\n{body}\n</tool_call>") == action


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not JSON"),
        ("{'name': 'search'}", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("1" * 5000, "not JSON"),
        ("[]", "the tool call is not"),
        ('{"name": "search"}', "the tool call is not"),
        ('{"name": "search", "arguments": "x"}', "the tool call is not"),
        ('{"name": "python", "arguments": {}}', "only tool is search"),
        (CALL % '""', "query is not"),
        (CALL % "[]", "query is not"),
        (CALL % "[1]", "query is not"),
        (CALL % "null", "query is not"),
        (CALL % '{"a": 1}', "query is not"),
        (CALL % '"<answer>gold</answer>"', "holds another tag"),
    ],
)
def test_tool_calls_refuse_the_rest(body, reason):
    action = TOOLS.parse(f"<tool_call>{body}</tool_call>")
    assert isinstance(action, Invalid)
    assert reason in action.reason


def test_tool_calls_answer_in_a_tag_and_ignore_search_tags():
    assert TOOLS.parse("<search>x</search><answer>y</answer>") == Answer("y")


@given(st.text(alphabet=st.characters(exclude_characters="<>"), min_size=1).filter(lambda s: s.strip() == s and s))
def test_write_and_parse_are_inverse(text):
    for protocol in (TAGS, TOOLS):
        assert protocol.parse(protocol.write(Search((text,)))) == Search((text,))
        assert protocol.parse(protocol.write(Answer(text))) == Answer(text)
    assert TOOLS.parse(TOOLS.write(Search((text, "b")))) == Search((text, "b"))


PIECES = [
    "<search>",
    "</search>",
    "<answer>",
    "</answer>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "{",
    '"',
]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text()), max_size=30).map("".join))
def test_parsing_never_raises_and_is_deterministic(text):
    for protocol in (TAGS, TOOLS):
        action = protocol.parse(text)
        assert action == protocol.parse(text)
        if isinstance(action, Search):
            assert all(query and query == query.strip() for query in action.queries)


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("a <search>x</search> b <search>y</search>", "a "),
        ("<think>maybe <search>w</search></think>so <search>x</search>", "<think>maybe <search>w</search></think>so "),
        ("a<think>b</think><think>c</think><answer>x</answer>", "a<think>b</think><think>c</think>"),
        ("<answer>open <search>x</search><think>c</think>", "<answer>open "),
        ("no <think>action</think>", "no <think>action</think>"),
    ],
)
def test_what_stands_before_the_first_action(text, before):
    assert TAGS.before_action(text) == before


@pytest.mark.parametrize("piece", ["<think>", "</think>", "<search>", "</answer>", "<think></think>", "<", "\x00"])
def test_megabytes_of_one_tag_take_linear_time(piece):
    text = piece * (MAX_ACTION_CHARS // len(piece))
    start = time.process_time()
    assert isinstance(TAGS.parse(text), Invalid)
    assert time.process_time() - start < 2.0  # quadratic scanning of these takes minutes


def test_thoughts():
    assert split_thoughts("a<think>b</think>c<think>d</think>") == ("b\nd", "ac")
    assert split_thoughts("a<think>b") == ("b", "a")
    assert get_protocol("tags", keep_thoughts=True).history("<think>x</think>y") == "<think>x</think>y"
    assert get_protocol("tags", keep_thoughts=False).history("<think>x</think>y") == "y"


@pytest.mark.parametrize(
    ("text", "limit", "cut"),
    [
        ("a  b\nc d", 3, "a  b\nc"),
        ("a b", 2, "a b"),
        ("a b ", 2, "a b "),
        (" a b c ", 1, " a"),
        ("a\u2003b\u00a0c é d", 2, "a\u2003b\u00a0c é"),
        ("a\tb\r\nc", 2, "a\tb"),
        ("", 1, ""),
        ("東京は日本の首都である。", 3, "東京は"),  # each character is a word
        ("「東京」、日本", 2, "「東京」、"),  # marks belong to the word before them, at the start to the first
        ("コンピュータを使う", 2, "コンピュータを"),  # a run of katakana is one word
        ("我喜欢iPhone手机 2024年很好", 5, "我喜欢iPhone手"),
        ("我喜欢iPhone手机 2024年很好", 7, "我喜欢iPhone手机 2024"),
        ("我用「iPhone」手机", 3, "我用「iPhone」手"),
        ("ภาษา ไทย", 4, "ภาษา"),  # letters: words would take a dictionary
        ("Tokyo (東京, Tōkyō) is", 3, "Tokyo (東京,"),
        ("—— 東 ——", 2, "—— 東"),
    ],
)
def test_words_are_cut(text, limit, cut):
    assert cut_words(text, limit) == cut


def test_words_are_counted_by_hand():
    counts = {
        "東京は日本の首都である。": 11,
        "我喜欢iPhone手机 2024年很好": 10,
        "Ein Fluß (東京)": 4,
        "。。。": 1,
        "한국어 텍스트": 2,
    }
    assert {text: count_words(text) for text in counts} == counts


@given(st.text(alphabet="a 東、é\nカ"), st.integers(1, 5))
def test_what_is_cut_and_what_is_skipped_are_the_whole(text, number):
    assert count_words(cut_words(text, number)) == min(number, count_words(text))
    both = cut_words(text, number), skip_words(text, number)
    assert "".join("".join(both).split()) == "".join(text.split())
    assert count_words(both[1]) == max(0, count_words(text) - number)


@given(st.text(alphabet="ab é\n\t\r"), st.integers(1, 5))
def test_words_are_cut_as_split_counts_them(text, limit):
    assert cut_words(text, limit).split() == text.split()[:limit]


def test_observation_has_the_form_of_search_r1_and_is_cut_by_words():
    hits = [Hit(Passage("0", "T", "one two three"), 2.0), Hit(Passage("1", "U", "four"), 1.0)]
    expected = "\n\n<information>Doc 1(Title: T) one two three\nDoc 2(Title: U) four\n</information>\n\n"
    assert TAGS.observation([hits], 100) == expected
    assert TAGS.observation([hits], 4) == "\n\n<information>Doc 1(Title: T) one\n</information>\n\n"
    assert TOOLS.observation([[]], 100) == "\n\n<tool_response>No results.\n</tool_response>\n\n"


def test_a_notice_names_the_reason_and_the_grammar():
    notice = TAGS.notice("the query is empty")
    assert "the query is empty" in notice
    assert "<search>your query</search>" in notice
