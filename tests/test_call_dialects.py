"""Dialects of tool calls: what each reads, what is refused with which reason, where a response ends."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchgym.cli.evaluation.evaluate import with_dialect
from searchgym.cli.options import TaskChoice
from searchgym.errors import CardError, UnknownNameError, UsageError
from searchgym.protocol import check, detect, get_protocol, list_dialects
from searchgym.records import Answer, Invalid, More, Open, Search
from searchgym.rollout.foreign.dialects import chosen_dialect

P = {name: get_protocol("tool_calls", dialect=name) for name in list_dialects()}
HERMES = P["hermes"]
A, B = Search(("a",)), Search(("b",))
JSON = '{"name": "search", "arguments": {"query": "a"}}'
SECOND = '{"name": "search", "arguments": {"query": "b"}}'
LLAMA = '{"name": "search", "parameters": {"query": "a"}}'
XML = "<function=search>\n<parameter=query>\na\n</parameter>\n</function>"
FENCE = '```tool_code\nsearch(query="a")\n```'
CHANNEL = '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "a"}<|call|>'


def call(body):
    return f"<tool_call>\n{body}\n</tool_call>"


READ = [
    ("hermes", call(JSON.replace('"a"', '"what does </tool_call> mean"')), Search(("what does </tool_call> mean",))),
    ("hermes", call('{"name":"search","arguments":"{\\"query\\": \\"a\\"}"}'), A),
    ("hermes", call(JSON + "\n" + SECOND), A),
    ("hermes", call(f"[{JSON}, {SECOND}]"), A),
    ("hermes", call(SECOND) + call(JSON), B),
    ("hermes", call(LLAMA), A),
    ("hermes", call(f'{{"type": "function", "function": {JSON}}}'), A),
    ("hermes", call(f"```json\n{JSON}\n```"), A),
    ("hermes", call('{"name": "search", "arguments": {"query": "a\nb"}}'), Search(("a\nb",))),
    ("hermes", call('{"name": "search", "arguments": {"query": "a", "query": "b"}}'), B),
    ("hermes", call('{"name": "search", "arguments": {"query": "{[\\"}"}}'), Search(('{["}',))),
    ("hermes", call('{"name": "search", "arguments": {"query": "a", "more": {"x": [{}, []]}}}'), A),
    ("hermes", f"<tool_call>{JSON}", A),
    ("hermes", f"<tool_call>{JSON}}}</tool_call>", A),
    ("hermes", f"a <tool_call> b <answer>x</answer> {JSON}", Answer("x")),
    ("hermes", f"<answer>x</answer>{call(JSON)}", Answer("x")),
    ("qwen3_coder", call(XML), A),
    ("qwen3_coder", XML, A),
    ("qwen3_coder", call(XML + "\n" + XML.replace("\na\n", "b")), A),
    (
        "qwen3_coder",
        call(XML.replace("\na\n", "</tool_call> </parameter> b")),
        Search(("</tool_call> </parameter> b",)),
    ),
    ("qwen3_coder", call(XML.replace("\na\n", '["a", "b"]')), Search(("a", "b"))),
    ("llama3", LLAMA, A),
    ("llama3", f"<|python_tag|>{LLAMA}; {SECOND}", A),
    ("llama3", f"```json\n{LLAMA}\n```", A),
    ("mistral", f"[TOOL_CALLS] [{JSON}, {SECOND}]", A),
    ("mistral", '[TOOL_CALLS]search[ARGS]{"query": "a"}', A),
    ("mistral", '[TOOL_CALLS]search[CALL_ID]x1[ARGS]{"query": "a"}[TOOL_CALLS]search[ARGS]{"query": "b"}', A),
    ("mistral", '[TOOL_CALLS]search{"query": "[TOOL_CALLS]"}', Search(("[TOOL_CALLS]",))),
    ("mistral", "I could use [TOOL_CALLS] here. <answer>x</answer>", Answer("x")),
    ("gemma", FENCE, A),
    ("gemma", "```tool_code\nprint(default_api.search('a'))\n```", A),
    ("gemma", '```tool_code\nr = search(query="""a ``` \\"b\\" """)\n```', Search(('a ``` "b"',))),
    ("gemma", '```tool_code\n# find it\nsearch("a")\n```', A),
    ("gemma", "```tool_code\n[search(query=[\"a\", 'b'])]\n```", Search(("a", "b"))),
    ("gemma", f"```json\n{LLAMA}\n```", A),
    ("gpt_oss", CHANNEL, A),
    ("gpt_oss", '<|start|>assistant to=functions.search<|channel|>commentary json<|message|>{"query": "a"}', A),
    ("gpt_oss", f"<|channel|>analysis<|message|>{CHANNEL} no<|end|><|start|>assistant{CHANNEL}", A),
    ("gpt_oss", "<|channel|>final<|message|><answer>x</answer><|return|>", Answer("x")),
]


@pytest.mark.parametrize(("name", "text", "action"), READ)
def test_what_each_dialect_reads(name, text, action):
    assert P[name].parse(text) == action


REFUSED = [
    ("hermes", call(JSON[:-1]), "its last } is missing"),
    ("hermes", call(JSON.replace('"', "'")), "strings stand in double quotes"),
    ("hermes", call(JSON.replace('a"}}', "a}}")), "its last string never closes"),
    ("hermes", call("search for a") + "<answer>x</answer>", "not JSON"),
    ("hermes", call('{"name": "search", "arguments": {"query": a}}'), """not JSON after 'guments": {"query": '"""),
    ("hermes", call("[" * 100_000), "not JSON"),
    ("hermes", call('{"a": ' * 50_000 + "1" + "}" * 50_000), "nested too deeply"),
    ("hermes", call('{"name": "search", "arguments": {"query": %s}}' % ("1" * 5000)), "a number is too long"),
    ("hermes", call('{"name": "python", "arguments": {}}'), "the only tool is search"),
    ("hermes", call('{"name": "search", "arguments": {"q": "a"}}'), "query is not"),
    ("hermes", call('{"name": "search", "arguments": "a"}'), 'is not {"name": ..., "arguments": {...}}'),
    ("hermes", call('{"name": "search", "arguments": {"query": "<answer>x</answer>"}}'), "holds another tag"),
    ("hermes", f"<answer>{call(JSON)}</answer>", "holds another tag"),
    ("hermes", call(XML), "dialect qwen3_coder"),
    ("hermes", LLAMA, "dialect llama3"),
    ("hermes", f"<|python_tag|>{LLAMA}", "dialect llama3"),
    ("hermes", f"[TOOL_CALLS] [{JSON}]", "dialect mistral"),
    ("hermes", CHANNEL, "dialect gpt_oss"),
    ("hermes", FENCE, "dialect gemma"),
    ("qwen3_coder", call(JSON), "dialect hermes"),
    ("qwen3_coder", call(XML.replace("</parameter>", "")), "write </parameter>"),
    ("qwen3_coder", call(XML.replace("</function>", "")), "write </function>"),
    ("llama3", call(JSON), "dialect hermes"),
    ("llama3", f"[TOOL_CALLS] [{JSON}]", "dialect mistral"),
    ("llama3", LLAMA[:-1], "its last } is missing"),
    ("llama3", '{"name": "search", "parameters": "a"}', 'is not {"name": ..., "parameters": {...}}'),
    ("mistral", f"[TOOL_CALLS] [{JSON}", "its last ] is missing"),
    ("mistral", call(JSON), "dialect hermes"),
    ("gemma", FENCE.replace('a"', "a"), "never closes"),
    ("gemma", "```tool_code\n1 + 1\n```", "no call of a function"),
    ("gemma", "```tool_code\nsearch(query=f(x))\n```", "not Python after"),
    ("gpt_oss", CHANNEL.replace("}", ""), "its last } is missing"),
    ("gpt_oss", CHANNEL.replace("search", "python"), "the only tool is search"),
]


@pytest.mark.parametrize(("name", "text", "reason"), REFUSED)
def test_what_each_dialect_refuses_and_why(name, text, reason):
    action = P[name].parse(text)
    assert isinstance(action, Invalid)
    assert reason in action.reason


def test_a_refusal_of_another_dialect_shows_the_right_form():
    form = P["mistral"].write(Search(("your query",)))
    assert form == '[TOOL_CALLS][{"name": "search", "arguments": {"query": "your query"}}]'
    assert P["mistral"].parse(call(JSON)).reason == f"tool calls in the dialect hermes are not read here: write {form}"
    assert "dialect hermes" in get_protocol("tags").parse(call(JSON)).reason


WRITTEN = {
    "hermes": call(JSON),
    "qwen3_coder": call(XML),
    "llama3": LLAMA,
    "mistral": f"[TOOL_CALLS][{JSON}]",
    "gemma": FENCE,
    "gpt_oss": CHANNEL,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_how_each_dialect_writes_and_shows_results(name):
    protocol = P[name]
    assert protocol.write(A) == WRITTEN[name]
    assert protocol.write(Search(("your query",))) in protocol.instructions()
    before, after = protocol.dialect.result
    assert protocol.result("page") == f"\n\n{before}page\n{after}\n\n"
    assert before in protocol.instructions()


PLAIN = st.text(alphabet=st.characters(exclude_characters="<>"), min_size=1).filter(
    lambda s: s.strip() == s and "THINK]" not in s  # no marker of a thought, wherever it stands
)


@pytest.mark.parametrize("name", list_dialects())
@given(PLAIN, PLAIN)
def test_what_is_written_is_read_back(name, one, two):
    protocol = get_protocol("tool_calls", browse=True, sources=("web",), dialect=name)
    for action in (Search((one,)), Search((one, two)), Search((one,), "web"), Open(one), More(), Answer("x")):
        assert protocol.parse(protocol.write(action)) == action
        assert protocol.ended(protocol.write(action))


PIECES = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<answer>",
        "</answer>",
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        "\\",
        ",",
        ":",
        "\n",
        " x ",
    ),
    *(JSON, LLAMA, XML, FENCE, CHANNEL, "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```tool_code", "```", "search("),
    *("<function=search>", "<parameter=query>", "</parameter>", "</function>", "to=functions.search", "<|message|>"),
    *('{"name": "search", "arguments": {"query": "', '"}}', "query=", '"""', "[THINK]", "[/THINK]"),
]


@pytest.mark.parametrize("name", list_dialects())
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_where_a_response_ends_its_action_is_that_of_the_whole(name, text):
    protocol, whole = P[name], P[name].parse(text)
    first = next((end for end in range(len(text) + 1) if protocol.ended(text[:end])), None)
    begun = "[/THINK]" in text and "[THINK]" not in text.split("[/THINK]")[0]  # a thought that began in the prompt
    if first is not None and not begun:
        assert protocol.parse(text[:first]) == whole
    for several in ("all", "refuse"):
        get_protocol("tool_calls", dialect=name, several=several).parse(text)


@pytest.mark.parametrize(
    ("name", "text", "ended"),
    [
        ("hermes", call(JSON), True),
        ("hermes", '<tool_call>{"name": "search", "arguments": {"query": "what does </tool_call>', False),
        ("hermes", '<tool_call>{"name": "search", "arguments": {"query": "<answer>x</answer>', False),
        ("hermes", "<think><answer>x</answer>", False),
        ("hermes", "<think></think><answer>x</answer>", True),
        ("hermes", "the tag <tool_call> and <answer>x</answer>", False),
        ("hermes", "no opening </answer>", False),
        ("hermes", "the tag <tool_call> and no opening </answer>", False),
        ("hermes", call(JSON[:-1]), True),
        ("qwen3_coder", "<tool_call>\n<function=search>\n<parameter=query>what is </tool_call>", False),
        ("qwen3_coder", call(XML), True),
        ("mistral", f"[TOOL_CALLS] [{JSON}] then <answer>x</answer>", True),
        ("gpt_oss", "<|channel|>final<|message|><answer>x</answer>", True),
    ],
)
def test_whether_a_response_is_over(name, text, ended):
    assert P[name].ended(text) is ended


def test_an_unclosed_tag_before_an_answer_keeps_the_response_open():
    tags = get_protocol("tags")
    assert not tags.ended("<search>a <answer>x</answer>")
    assert tags.ended("<search>a <answer>x</answer></search>")
    assert tags.ended("a <answer>x</answer>")


def test_stop_strings_are_those_that_the_model_does_not_write_as_its_end():
    stops = {name: protocol.stop_strings for name, protocol in P.items()}
    ends = ("</answer>",)
    closed = ("</tool_call>", "</answer>")
    assert stops == dict.fromkeys(("gemma", "gpt_oss", "llama3", "mistral"), ends) | {
        "hermes": closed, "qwen3_coder": closed,
    }  # fmt: skip
    assert get_protocol("tool_calls", several="all").stop_strings == ends


@pytest.mark.parametrize(
    ("several", "text", "action"),
    [
        ("all", call(JSON) + call(SECOND), Search(("a", "b"))),
        ("all", call(JSON + SECOND), Search(("a", "b"))),
        ("all", call(f"[{SECOND}, {JSON}]"), Search(("b", "a"))),
        ("all", call(JSON), A),
        ("all", f"<answer>x</answer>{call(JSON)}", Answer("x")),
        ("all", call(JSON) + "<answer>x</answer>", "only searches"),
        ("all", call(JSON) + call(JSON[:-1]), "its last } is missing"),
        ("all", call(JSON) + call('{"name": "more", "arguments": {}}'), "only searches"),
        ("all", call(JSON) + call(JSON.replace('"}}', '", "source": "web"}}')), "one source"),
        ("refuse", call(JSON) + call(SECOND), "2 tool calls"),
        ("refuse", call(JSON), A),
        ("refuse", call(JSON) + "<answer>x</answer>", "an answer besides"),
        ("first", call(JSON) + call(JSON[:-1]), A),
    ],
)
def test_several_calls_in_one_response(several, text, action):
    protocol = get_protocol("tool_calls", browse=True, sources=("web",), several=several)
    got = protocol.parse(text)
    assert got == action or (isinstance(got, Invalid) and isinstance(action, str) and action in got.reason)
    assert protocol.ended(text) is (several == "first" or text.startswith("<answer>"))


def test_a_new_dialect_of_a_known_notation_is_one_file(tmp_path):
    card = tmp_path / "angle.yaml"
    card.write_text(
        "name: angle\nsummary: s\nsource: none\nnotation: json\nopenings: ['<<CALL ']\nseparator: ' WITH '\n"
        "closing: '>>'\ncall: '<<CALL {name} WITH {arguments}>>'\nresult: ['<<', '>>']\n"
    )
    protocol = get_protocol("tool_calls", dialect=str(card))
    assert protocol.write(A) == '<<CALL search WITH {"query": "a"}>>'
    assert protocol.parse('<<CALL search WITH {"query": "a >> b"}>>') == Search(("a >> b",))
    assert protocol.stop_strings == (">>", "</answer>")
    card.write_text(card.read_text().replace("{arguments}", "x"))
    get_protocol.__globals__["load_dialect"].cache_clear()
    with pytest.raises(CardError, match=r"\{name\} and \{arguments\} must stand in it"):
        get_protocol("tool_calls", dialect=str(card))


def test_wrong_names_of_dialects():
    with pytest.raises(UnknownNameError, match="qwen3_coder"):
        get_protocol("tool_calls", dialect="qwen3-coder")
    with pytest.raises(UsageError, match="choose protocol 'tool_calls'"):
        get_protocol("tags", dialect="llama3")
    with pytest.raises(UsageError, match="name the dialect"):
        get_protocol("tool_calls", dialect="auto")


TEMPLATES = {
    "hermes": "<|im_start|>{{ x }} return JSON within <tool_call></tool_call>",
    "qwen3_coder": "<|im_start|>system <tool_call>\n<function=example>\n<parameter=a>",
    "llama3": "<|start_header_id|>ipython<|end_header_id|>{{ x }}",
    "mistral": "[INST] {{ x }}[/INST][TOOL_CALLS]",
    "gemma": "<start_of_turn>user\n{{ x }}<end_of_turn>",
    "gpt_oss": "<|start|>assistant<|channel|>final<|message|>",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_dialect_of_a_template(name):
    assert detect(TEMPLATES[name])[0] == name
    assert not check(name, TEMPLATES[name])
    others = [other for other in TEMPLATES if other != name]
    assert all(f"choose dialect {name!r}" in check(other, TEMPLATES[name]) for other in others)
    assert detect("{{ messages }}") == (
        "hermes", "the chat template shows no dialect, so calls are written as hermes's, the default",
    )  # fmt: skip
    assert not check(name, "{{ messages }}")


def test_auto_reads_the_files_of_the_models(tmp_path, capsys):
    for name, template in TEMPLATES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (tmp_path / "gemma" / "chat_template.jinja").write_text(TEMPLATES["mistral"])
    assert chosen_dialect("auto", [tmp_path / "llama3", "http://a/v1#m"])[0] == "llama3"
    name, (why,) = chosen_dialect("auto", [tmp_path / "gemma"])
    assert name == "mistral" and "[TOOL_CALLS]" in why
    assert chosen_dialect("llama3", [tmp_path / "llama3"]) == ("llama3", [])
    (note,) = chosen_dialect("llama3", [tmp_path / "hermes"])[1]
    assert "not the model's" in note
    asked = TaskChoice(protocol="tool_calls", dialect="auto")
    assert with_dialect(asked, "demo", {"searcher": tmp_path / "llama3"}).dialect == "llama3"
    assert "<|start_header_id|>" in capsys.readouterr().err
    assert with_dialect(TaskChoice(), "demo", {"searcher": tmp_path / "llama3"}) == TaskChoice()
    for models in ([], [tmp_path / "hermes", tmp_path / "mistral"]):
        with pytest.raises(UsageError, match="name it"):
            chosen_dialect("auto", models)


HOSTILE = [
    *("<tool_call>", "<tool_call>{", "[", '{"name": ', '{"name": "x"} ', '"', "<tool_call><function=a><parameter=b>"),
    *(
        "</parameter> ",
        "[TOOL_CALLS]a[ARGS]",
        "```tool_code\nsearch(",
        "a.",
        "to=functions.a<|message|>",
        "\n",
        "\\",
        "'",
    ),
]


@pytest.mark.parametrize("name", list_dialects())
def test_hostile_texts_take_linear_time(name):
    def seconds(text, repeats):
        times = []
        for _ in range(repeats):
            start = time.process_time()
            P[name].parse(text)
            times.append(time.process_time() - start)
        return min(times)

    for head in ("", '<tool_call>{"a": [', '```tool_code\nsearch(query=["'):
        short, long = (sum(seconds((head + p * n)[:n], r) for p in HOSTILE) for n, r in ((1000, 3), (20_000, 1)))
        assert long < 20 * short * 2 + 0.05  # quadratic scanning is 20 times slower yet
