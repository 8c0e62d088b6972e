import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_models import CHATML, HEADERS, STYLES, tiny_tokenizer

from searchgym.errors import UsageError
from searchgym.protocol import get_protocol
from searchgym.rollout.api.sampler import MessageFormat
from searchgym.rollout.foreign import templates
from searchgym.rollout.tokens import ContextText, TokenFormat, end_ids

CHAT_STYLES = [style for style, (template, _) in STYLES.items() if template]
BASE_STYLES = [style for style, (template, _) in STYLES.items() if not template]
MARKUP = ["<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|endoftext|>", "</search>", "\n\n", "<think>", " "]
TEXT = st.lists(st.text(max_size=8) | st.sampled_from(MARKUP), max_size=6).map("".join)
FORMATS = {
    (style, name): TokenFormat(tiny_tokenizer(style), get_protocol(name), style in CHAT_STYLES)
    for style in STYLES
    for name in ("tags", "tool_calls")
}


def specials(tokenizer):
    return {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}


def told(text):
    """Text as a tokenizer can hold it."""
    return text.encode("utf-8", "replace").decode()


# -- prompts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", CHAT_STYLES)
@pytest.mark.parametrize("text", ["Who founded Beta?", "Line one.\nLine two: café – 東京"])
def test_a_chat_prompt_is_what_the_template_makes_of_a_user_message(style, text):
    tokenizer = tiny_tokenizer(style)
    expected = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    ids = FORMATS[style, "tags"].prompt_ids(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == expected


def test_a_base_prompt_is_the_text_after_the_id_that_begins_texts():
    for style in BASE_STYLES:
        tokenizer = tiny_tokenizer(style)
        bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        plain = tokenizer("Who founded Beta?", add_special_tokens=False)["input_ids"]
        assert FORMATS[style, "tags"].prompt_ids("Who founded Beta?").tolist() == bos + plain
    assert tiny_tokenizer("base with bos").bos_token_id is not None


# -- observations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", list(STYLES))
@pytest.mark.parametrize("finish", ["stop", "length"])
def test_with_tags_the_raw_text_goes_on_in_the_models_turn(style, finish):
    text = "\n\n<information>Doc 1(Title: Beta) Beta.\n</information>\n\n"
    ids = FORMATS[style, "tags"].observation_ids(text, finish)
    assert ids.tolist() == tiny_tokenizer(style)(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("style", BASE_STYLES)
def test_a_base_model_gets_the_raw_text_with_tool_calls_too(style):
    expected = tiny_tokenizer(style)("\n\nhello\n", add_special_tokens=False)["input_ids"]
    assert FORMATS[style, "tool_calls"].observation_ids("\n\nhello\n", "eos").tolist() == expected


@pytest.mark.parametrize("style", ["qwen2", "llama", "merging"])
def test_a_conversation_of_turns_is_what_the_template_makes_of_it(style):
    """For a template that rewrites nothing, splicing and rendering give the same ids."""
    tokenizer = tiny_tokenizer(style)
    fmt = FORMATS[style, "tool_calls"]
    said = '<tool_call>\n{"name": "search"}\n</tool_call>'
    spoken = np.array(tokenizer(said, add_special_tokens=False)["input_ids"], np.int32)
    turns = [
        {"role": "user", "content": "Who founded Beta?"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "<tool_response>Beta.</tool_response>"},
    ]
    rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
    end = end_ids(tokenizer)[-1]  # the template's
    for emitted, finish in [([], "stop"), ([], "length"), ([end], "eos")]:
        observation = fmt.observation_ids("\n\n<tool_response>Beta.</tool_response>\n\n", finish)
        spliced = [*fmt.prompt_ids("Who founded Beta?"), *spoken, *emitted, *observation]
        assert spliced == rendered


def test_a_template_that_drops_thoughts_leaves_them_in_spliced_history():
    tokenizer, fmt = tiny_tokenizer("qwen3"), FORMATS["qwen3", "tool_calls"]
    said = "<think>Beta first.</think>\n\nI search."
    turns = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "page"},
    ]
    rendered = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert "Beta first" not in rendered  # the trap is real
    spoken = tokenizer(said, add_special_tokens=False)["input_ids"]
    spliced = [*fmt.prompt_ids("Q"), *spoken, *fmt.observation_ids("page", "stop")]
    assert fmt.decode(spliced) == rendered.replace("I search.", said)


def test_a_chat_model_that_ends_its_turn_gets_a_user_turn_with_tags_too():
    tags, calls = FORMATS["qwen2", "tags"], FORMATS["qwen2", "tool_calls"]
    assert tags.observation_ids("x", "eos").tolist() == calls.observation_ids("x", "eos").tolist()
    assert tags.decode(tags.observation_ids("x", "eos")).startswith("\n<|im_start|>user\nx<|im_end|>")


def test_a_template_without_special_tokens_ends_turns_by_the_end_of_text():
    fmt = FORMATS["plain", "tool_calls"]
    assert fmt.end_ids == (tiny_tokenizer("plain").eos_token_id,)
    for finish in ("eos", "stop"):
        expected = "\n\n### Question:\npage\n\n### Reply:\n"
        assert fmt.decode(fmt.observation_ids("page", finish)) == expected


def test_marks_after_a_later_user_turn_are_its_own():
    tokenizer = tiny_tokenizer("qwen2")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['content'] }}{{ ' (first)' if loop.first }}<|im_end|>{% endfor %}"
    )
    fmt = TokenFormat(tokenizer, get_protocol("tool_calls"), chat=True)
    assert fmt.decode(fmt.prompt_ids("Q")) == "<|im_start|>Q (first)<|im_end|>"
    assert fmt.decode(fmt.observation_ids("page", "stop")) == "<|im_end|><|im_start|>page<|im_end|>"


# -- thoughts that templates open -------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", ["<think>\n", "[THINK]", "<think>\nHm,"])
@pytest.mark.parametrize("name", ["tags", "tool_calls"])
def test_an_open_thought_at_the_end_of_a_prompt_is_told(opening, name):
    tokenizer = tiny_tokenizer("qwen2")
    tokenizer.chat_template = CHATML.replace("assistant\n{%", f"assistant\n{opening}{{%")
    fmt = TokenFormat(tokenizer, get_protocol(name), chat=True)
    assert fmt.decode(fmt.prompt_ids("Q")).endswith(opening)
    for finish in (None, "eos", "stop", "length"):
        shown = fmt.prompt_ids("Q") if finish is None else fmt.observation_ids("page", finish)
        opened = fmt.decode(shown).endswith(opening)
        assert fmt.thought_after(finish) == (opening if opened else "")
        assert opened == (name == "tool_calls" or finish in (None, "eos"))


def test_no_thought_is_open_after_a_closed_one_or_without_a_template():
    tokenizer = tiny_tokenizer("qwen2")
    tokenizer.chat_template = (
        CHATML.replace("assistant\n{%", "assistant\n{% if enable_thinking is defined and not enable_thinking %}"
        "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{%").replace("helpful", "<think>helpful")
    )  # fmt: skip
    open_, closed = (TokenFormat(tokenizer, get_protocol("tags"), True, a) for a in ({}, {"enable_thinking": False}))
    for finish in (None, "eos"):
        assert (open_.thought_after(finish), closed.thought_after(finish)) == ("<think>\n", "")
        assert FORMATS["base", "tags"].thought_after(finish) == ""
        assert FORMATS["qwen2", "tags"].thought_after(finish) == ""
        assert MessageFormat(get_protocol("tags")).thought_after(finish) == ""


# -- end ids and stop strings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("qwen2", ["<|im_end|>"]),
        ("llama", ["<|end_of_text|>", "<|eot_id|>"]),
        ("plain", ["<|endoftext|>"]),
        ("base", ["<|endoftext|>"]),
    ],
)
def test_end_ids_are_the_end_of_text_and_the_templates_end_of_turn(style, names):
    tokenizer = tiny_tokenizer(style)
    assert list(end_ids(tokenizer)) == [tokenizer.convert_tokens_to_ids(name) for name in names]


def test_stop_strings_are_the_closing_tags_of_the_protocol():
    assert FORMATS["qwen2", "tags"].stop == ("</search>", "</answer>")
    assert FORMATS["qwen2", "tool_calls"].stop == ("</tool_call>", "</answer>")


# -- text stays text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", list(STYLES))
def test_a_page_that_spells_special_tokens_makes_none(style):
    tokenizer = tiny_tokenizer(style)
    page = "before " + " ".join(tokenizer.decode([i]) for i in sorted(specials(tokenizer))) + " after"
    assert specials(tokenizer).intersection(tokenizer(page)["input_ids"])  # the trap is real
    for name in ("tags", "tool_calls"):
        fmt = FORMATS[style, name]
        for make in (fmt.prompt_ids, lambda text, fmt=fmt: fmt.observation_ids(text, "stop")):
            own = [i for i in make(page) if i in specials(tokenizer)]
            assert own == [i for i in make("harmless") if i in specials(tokenizer)]
            assert page in fmt.decode(make(page))


@pytest.mark.slow
@given(TEXT)
@settings(max_examples=60, deadline=None)
def test_text_is_encoded_as_by_the_tokenizers_class(text):
    """Also where the tokenizer's file asks to cut and to pad, which must not reach prompts."""
    cutting = tiny_tokenizer("qwen2")
    cutting.backend_tokenizer.enable_truncation(3)
    cutting.backend_tokenizer.enable_padding(length=64)
    formats = [(FORMATS[style, "tags"], tiny_tokenizer(style)) for style in STYLES]
    formats += [(TokenFormat(cutting, get_protocol("tags"), True), tiny_tokenizer("qwen2"))]
    for form, tokenizer in formats:
        plain = tokenizer(told(text), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert form.observation_ids(text, "stop").tolist() == plain


FINISH = st.sampled_from([None, "eos", "stop", "length"])


@given(
    st.sampled_from(sorted(FORMATS)), st.lists(st.tuples(st.lists(st.tuples(TEXT, st.booleans())), FINISH), max_size=5)
)
@settings(max_examples=60, deadline=None)
def test_texts_have_the_same_ids_together_and_alone(key, texts):
    fmt = FORMATS[key]
    alone = [fmt.prompt_ids(parts) if end is None else fmt.observation_ids(parts, end) for parts, end in texts]
    together = fmt.encode([ContextText(parts, end) for parts, end in texts])
    assert [ids.tolist() for ids in together] == [ids.tolist() for ids in alone]


def test_half_a_surrogate_pair_becomes_a_question_mark():
    fmt = FORMATS["base", "tags"]
    assert fmt.decode(fmt.observation_ids("a\ud800b", "stop")) == "a?b"


@settings(max_examples=150, deadline=None)
@given(
    key=st.sampled_from(sorted(FORMATS)),
    prompt=TEXT,
    turns=st.lists(
        st.tuples(
            st.lists(st.integers(0, 340), min_size=1, max_size=12),  # any ids at all, not only canonical ones
            st.sampled_from(["eos", "stop", "length"]),
            TEXT,
        ),
        max_size=4,
    ),
)
def test_what_was_sampled_is_never_encoded_again(key, prompt, turns):
    fmt = FORMATS[key]
    special = fmt._special
    clean = fmt.observation_ids("", "stop")
    context = [fmt.prompt_ids(prompt)]
    for sampled, finish, observation in turns:
        response = np.array([*sampled, *(fmt.end_ids[-1:] if finish == "eos" else ())], np.int32)
        start = sum(map(len, context))
        context += [response, fmt.observation_ids(observation, finish)]
        ids = np.concatenate(context)
        assert ids.dtype == np.int32
        assert ids[start : start + len(response)].tolist() == response.tolist()
        if finish != "eos":  # the marks around the text, and nothing in it
            assert sum(int(i) in special for i in context[-1]) == sum(int(i) in special for i in clean)
        raw = not fmt.chat or (fmt.protocol.name == "tags" and finish != "eos")
        shown = told(observation if raw else observation.strip())
        assert shown in fmt.decode(context[-1])
    trims = STYLES[key[0]][0] == HEADERS
    assert (told(prompt).strip() if trims else told(prompt)) in fmt.decode(context[0])


# -- responses -------------------------------------------------------------------------------------------------------


def test_response_text_leaves_out_what_ends_a_turn():
    tokenizer, fmt = tiny_tokenizer("qwen2"), FORMATS["qwen2", "tags"]
    ids = tokenizer("<search>Beta</search>\n\n", add_special_tokens=False)["input_ids"]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert fmt.response_text([*ids, end]) == "<search>Beta</search>\n\n"
    assert fmt.response_text([end, *ids, end, end]) == "<|im_end|><search>Beta</search>\n\n"
    assert fmt.decode(np.array([*ids, end])) == "<search>Beta</search>\n\n<|im_end|>"
    assert fmt.response_text([]) == ""


def test_a_token_that_reaches_past_a_tag_keeps_its_line_ends():
    fmt = FORMATS["merging", "tags"]
    ids = fmt.reply_ids("<search>Beta</search>\n\n", None)
    assert fmt.decode(ids[-1:]) == "</search>\n\n"  # the trap is real
    page = fmt.observation_ids(fmt.protocol.result("x"), "stop")
    assert fmt.decode([*ids, *page]).startswith("<search>Beta</search>\n\n\n\n<information>x")


def test_the_shared_tokenizer_is_left_as_it_was():
    tokenizer = tiny_tokenizer("qwen2")
    fmt = TokenFormat(tokenizer, get_protocol("tags"), chat=True)
    fmt.observation_ids("<|im_end|>", "stop")
    assert tokenizer("<|im_end|>")["input_ids"] == [tokenizer.convert_tokens_to_ids("<|im_end|>")]


# -- bad input -------------------------------------------------------------------------------------------------------


def test_chat_without_a_template_is_refused():
    with pytest.raises(UsageError, match=r"no chat template.*chat=False"):
        TokenFormat(tiny_tokenizer("base"), get_protocol("tags"), chat=True)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('only system messages') }}", "cannot render 1 messages: only system messages"),
        ("{{ messages[0]['content'] }}", "does not contain each message once"),
        (
            "{% for m in messages %}{{ m['content'] }}{{ m['content'] }}{% endfor %}",
            "does not contain each message once",
        ),
        ("{% for m in messages %}{{ m['content'] | upper }}{% endfor %}", "does not contain each message once"),
    ],
)
def test_a_template_that_cannot_be_taken_apart_is_refused(template, message):
    tokenizer = tiny_tokenizer("qwen2")
    tokenizer.chat_template = template
    with pytest.raises(UsageError, match=message):
        TokenFormat(tokenizer, get_protocol("tags"), chat=True)


@pytest.mark.parametrize("rest", ["<|im_start|>user\n", "\nuser: "])
def test_an_end_of_turn_that_the_tokenizer_does_not_know_is_refused(rest):
    """Whatever special token comes next is not taken for it."""
    tokenizer = tiny_tokenizer("qwen2")
    tokenizer.chat_template = "{% for m in messages %}" + rest + "{{ m['content'] }}<|turn_end|>\n{% endfor %}"
    with pytest.raises(UsageError, match=r"ends turns with '<\|turn_end\|>', which the tokenizer does not know as one"):
        TokenFormat(tokenizer, get_protocol("tags"), chat=True)


def test_a_tokenizer_that_cannot_encode_marks_as_text_is_refused():
    class Stubborn(type(tiny_tokenizer("qwen2"))):
        """Ignores the switch, as some tokenizers outside transformers do."""

        def __call__(self, text, **options):
            self._tokenizer.encode_special_tokens = False
            return {"input_ids": self._tokenizer.encode(text, add_special_tokens=False).ids}

    tokenizer = copy.deepcopy(tiny_tokenizer("qwen2"))
    tokenizer.__class__ = Stubborn
    with pytest.raises(UsageError, match=r"encodes the text '<\|.*' as a special token"):
        TokenFormat(tokenizer, get_protocol("tags"), chat=True)


# -- template arguments and dates ------------------------------------------------------------------------------------

DATED = CHATML.replace("You are a helpful assistant.", "{{ strftime_now('%d %b %Y') }} {{ mood | default('calm') }}")


def test_template_arguments_and_the_date_are_in_prompts_and_observations():
    tokenizer = tiny_tokenizer("qwen2")
    tokenizer.chat_template = DATED.replace("assistant\n", "assistant\n{{ mood }}>")
    fmt = TokenFormat(tokenizer, get_protocol("tool_calls"), True, {"mood": "glad"}, date="2027-01-02")
    expected = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Q"}], add_generation_prompt=True, tokenize=False, mood="glad"
    )
    shown = fmt.decode(fmt.prompt_ids("Q"))
    assert "system\n02 Jan 2027 glad<|im_end|>" in shown
    assert shown.partition("<|im_end|>")[2] == expected.partition("<|im_end|>")[2]
    assert fmt.decode(fmt.observation_ids("x", "stop")).endswith("assistant\nglad>")


def test_without_a_date_templates_are_told_the_day_this_process_began(monkeypatch):
    monkeypatch.setattr(templates, "TODAY", "2026-02-03")
    tokenizer = tiny_tokenizer("qwen2")
    tokenizer.chat_template = DATED
    fmt = TokenFormat(tokenizer, get_protocol("tags"), True)
    assert "system\n03 Feb 2026 calm<|im_end|>" in fmt.decode(fmt.prompt_ids("Q"))


def test_end_ids_of_a_template_that_needs_an_argument():
    tokenizer = tiny_tokenizer("llama")
    tokenizer.chat_template = "{% if not mood %}{{ raise_exception('no mood') }}{% endif %}" + HEADERS
    with pytest.raises(UsageError, match="no mood"):
        end_ids(tokenizer)
    fmt = TokenFormat(tokenizer, get_protocol("tags"), True, {"mood": "glad"})
    assert fmt.end_ids == end_ids(tokenizer, {"mood": "glad"}) == FORMATS["llama", "tags"].end_ids


@pytest.mark.parametrize(
    ("arguments", "date", "message"),
    [
        ({"messages": []}, None, "template arguments: messages cannot be set"),
        ({"mood": {1, 2}}, None, "expected values of JSON"),
        ({}, "27 Nov 2026", "the date of templates is '27 Nov 2026': expected one such as 2026-11-27"),
    ],
)
def test_arguments_that_no_template_can_have_are_refused(arguments, date, message):
    with pytest.raises(UsageError, match=message):
        TokenFormat(tiny_tokenizer("qwen2"), get_protocol("tags"), True, arguments, date=date)
