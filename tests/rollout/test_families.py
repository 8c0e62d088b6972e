"""Prompts, five turns, end ids and stops of chat templates of many families, beside what transformers makes of them."""

from __future__ import annotations

import copy
import io
import json
import re
from datetime import datetime
from functools import cache, partial
from typing import get_args

import numpy as np
import pytest
from families import CASES, FAMILIES, Kind, family_tokenizer
from made_models import SENTENCES
from tokenizers import AddedToken, Tokenizer

from searchgym.agents.base import load_agent
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import UsageError
from searchgym.protocol import DEFAULT, get_protocol, list_dialects
from searchgym.records import Answer, Invalid, Search
from searchgym.rollout.foreign.model_check import check_model
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.sampler import Sampled
from searchgym.rollout.tokens import TokenFormat
from searchgym.rollout.vllm.tool_calls import tool_template
from searchgym.train.demonstrations.play import WrittenSampler, run_written

DATE = datetime(2026, 11, 27)
EACH = pytest.mark.parametrize(("name", "kind"), CASES)
DIALECTS = ("tags", *list_dialects())
MATRIX = [
    (name, kind, dialect)
    for name, kind in CASES
    for dialect in (DIALECTS if kind == FAMILIES[name].kinds[0] else ("tags", DEFAULT))
]
EACH_WITH_DIALECTS = pytest.mark.parametrize(("name", "kind", "dialect"), MATRIX)
THOUGHT = re.compile(r"<think>\n.*?</think>\n\n", re.DOTALL)


def protocol_of(dialect):
    return get_protocol("tags") if dialect == "tags" else get_protocol("tool_calls", dialect=dialect)


@cache
def form_of(name, kind, dialect="tags"):
    return TokenFormat(
        family_tokenizer(name, kind), protocol_of(dialect), True, FAMILIES[name].arguments, date=str(DATE.date())
    )


def rendered(name, kind, messages):
    """Ids that transformers makes of a conversation and the start of the model's next turn."""
    return rendered_by(family_tokenizer(name, kind), messages, **FAMILIES[name].arguments)


def rendered_by(tokenizer, messages, **arguments):
    """The same by a tokenizer."""
    given = arguments | {"add_generation_prompt": True, "return_dict": False, "strftime_now": DATE.strftime}
    return tokenizer.apply_chat_template(messages, tokenize=True, **given)


def asks(text):
    return {"role": "user", "content": text}


@EACH
@pytest.mark.parametrize("text", ["The gull", "Who founded Beta?", "Line one.\nLine two: café – 東京", "a"])
def test_a_prompt_has_the_ids_of_the_whole_rendered_text(name, kind, text):
    family, form = FAMILIES[name], form_of(name, kind)
    ids = form.prompt_ids(text).tolist()
    assert ids == rendered(name, kind, [asks(text)])
    assert ids.count(family_tokenizer(name, kind).bos_token_id) == family.bos
    assert form.thought_after(None) == form.thought_after("eos") == family.thought


@EACH
def test_blanks_around_a_prompt_go_where_the_template_drops_them(name, kind):
    form, family = form_of(name, kind), FAMILIES[name]
    bare, padded = form.prompt_ids("The gull").tolist(), form.prompt_ids("  \n The gull\n ").tolist()
    if family.trims:
        assert padded == bare == rendered(name, kind, [asks("  \n The gull\n ")])
    elif family.stripping:
        assert padded == form.prompt_ids("The gull\n ").tolist() == rendered(name, kind, [asks("  \n The gull\n ")])
    else:
        assert "  \n The gull\n " in form.decode(padded)


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("qwen3", {"enable_thinking": False}, "assistant\n<think>\n\n</think>\n\n"),
        ("llama3", {"date_string": "26 Jul 2024"}, "Today: 26 Jul 2024"),
        ("llama3", {}, "Today: 27 Nov 2026"),
        ("granite", {}, "Today is November 27, 2026."),
        ("gpt_oss", {"reasoning_effort": "medium"}, "Today: 2026-11-27\nReasoning: medium"),
    ],
)
def test_arguments_and_the_date_are_in_the_prompt(name, arguments, shown):
    tokenizer = family_tokenizer(name)
    form = TokenFormat(tokenizer, get_protocol("tags"), True, arguments, date="2026-11-27")
    ids = form.prompt_ids("The gull").tolist()
    assert ids == rendered_by(tokenizer, [asks("The gull")], **arguments)
    assert shown in form.decode(ids)
    assert form.thought_after(None) == ""


@EACH
def test_a_response_ends_by_the_end_of_text_or_of_the_turn(name, kind):
    tokenizer, ends = family_tokenizer(name, kind), FAMILIES[name].ends
    assert form_of(name, kind).end_ids == tuple(tokenizer.convert_tokens_to_ids(list(ends)))


# -- five turns ------------------------------------------------------------------------------------------------------


def search(dialect, turn):
    """A reply that searches."""
    return "I look. " + protocol_of(dialect).write(Search((f"who founded Beta {turn}",)))


def conversation(dialect):
    """Six user texts and five replies, as messages."""
    messages = [asks("The gull: who founded Beta?")]
    for turn in range(5):
        messages.append({"role": "assistant", "content": search(dialect, turn)})
        messages.append(asks(protocol_of(dialect).result(f"Doc 1(Title: Beta) The gull {turn}, café.").strip()))
    return messages


@EACH_WITH_DIALECTS
@pytest.mark.parametrize("ends", [True, False])
def test_five_turns_are_the_ids_of_the_whole_conversation(name, kind, dialect, ends):
    """What a model would write is read off the whole; replies are spliced as sampled, never encoded again.

    `ends` says whether the model ends its turn itself, always so with tags: there a reply that a stop string cuts goes
    on in its turn (the test below).
    """
    finish = "eos" if ends or dialect == "tags" else "stop"
    family, form, messages = FAMILIES[name], form_of(name, kind, dialect), conversation(dialect)
    encode = partial(family_tokenizer(name, kind), add_special_tokens=False)
    wholes = [rendered(name, kind, messages[: 2 * turn + 1]) for turn in range(6)]
    closing, end = list(form.closing_ids), form.end_ids[0]
    context, opened = form.prompt_ids(messages[0]["content"]).tolist(), len(encode(family.thought)["input_ids"])
    for turn in range(5):
        start = len(wholes[turn]) - opened
        text = wholes[turn + 1][start : index_of(closing, wholes[turn + 1], start)]
        text = encode("Hm.</think>\n\n")["input_ids"] + text if opened else text
        ended = closing if closing[-1] in form.end_ids else [end]  # gpt-oss ends its turn otherwise than its messages
        reply = [*text, *ended] if finish == "eos" else text
        assert f"who founded Beta {turn}" in form.response_text(reply)
        observation = form.observation_ids(messages[2 * turn + 2]["content"] + "\n", finish).tolist()
        context += [*reply, *observation]
        shown = [closing[-1] if i == end else i for i in context] if ended != closing else context
        if opened:
            assert THOUGHT.sub("", form.decode(shown)) == form.decode(wholes[turn + 1])
        else:
            assert shown == wholes[turn + 1]


def index_of(part, ids, start):
    """Position in ids, from `start` on, at which a part begins."""
    return next(at for at in range(start, len(ids)) if ids[at : at + len(part)] == part)


@EACH
def test_with_tags_a_reply_goes_on_in_its_turn(name, kind):
    """The text after a stop has the ids that it has within a text: no blank before it."""
    form = form_of(name, kind)
    encode = partial(family_tokenizer(name, kind), add_special_tokens=False)
    for before, text in (("x", get_protocol("tags").result("The gull.")), (">", "The gull"), (">", " a")):
        joint = encode(before + text)["input_ids"]
        assert [*encode(before)["input_ids"], *form.observation_ids(text, "stop")] == joint


@pytest.mark.slow_cases
@EACH_WITH_DIALECTS
def test_only_what_was_sampled_is_trained_in_an_episode(name, kind, dialect):
    rules = {"protocol": "tags"} if dialect == "tags" else {"protocol": "tool_calls", "dialect": dialect}
    task = load_task(find_env("searchgym/Demo-v0"), **rules)
    form, question = form_of(name, kind, dialect), task.questions[0]
    texts = [*(search(dialect, turn) for turn in range(3)), "<answer>Beta</answer>"]
    # A thought that the prompt leaves open is closed before each action.
    said = [
        ("Hm.</think>\n\n" if form.thought_after("stop" if n else None) else "") + text for n, text in enumerate(texts)
    ]
    replies = [form.reply_ids(text, "stop" if n else None) for n, text in enumerate(said)]
    left = list(replies)

    class Sampler(WrittenSampler):
        """Replies in order."""

        def reply(self, request):
            return Sampled(ids := left.pop(0), np.zeros(len(ids), np.float32), "stop")

    (episode,) = run_written(task, load_agent("search-r1"), Sampler(), form, [question], training=True)
    spans = episode.tokens(0)
    assert [span.ids.tolist() for span in spans if span.logp is not None] == [ids.tolist() for ids in replies]
    assert [span.kind for span in spans] == ["prompt", *["model", "observation"] * 3, "model"]
    assert all(call.text.endswith(text) for call, text in zip(episode.calls, texts, strict=True))
    assert episode.answer == Answer("Beta")


@EACH
def test_a_written_reply_has_the_ids_that_the_template_gives_it(name, kind):
    form = form_of(name, kind, DEFAULT)
    messages = [asks("The gull"), {"role": "assistant", "content": "The gull is white."}, asks("Why?")]
    whole, prompt = rendered(name, kind, messages), form.prompt_ids("The gull").tolist()
    opened = len(form._tokenizer(FAMILIES[name].thought, add_special_tokens=False)["input_ids"])
    reply = form.reply_ids("The gull is white.", None).tolist()
    pieces = [*prompt[: len(prompt) - opened], *reply, *form.observation_ids("Why?", "stop")]
    assert form.decode(pieces) == form.decode(whole)
    assert pieces == whole


@pytest.mark.slow_cases
@EACH
def test_the_check_of_a_model_finds_nothing_to_refuse(name, kind, tmp_path):
    family_tokenizer(name, kind).save_pretrained(tmp_path)
    findings = {own.check: own for own in check_model(str(tmp_path), FAMILIES[name].arguments).findings}
    assert [own for own in findings.values() if own.state == "refused"] == []
    assert findings["tags: prompt ids"].found == findings["tool_calls: prompt ids"].found
    assert findings["tags: prompt ids"].found == "equal to apply_chat_template's"
    ids = form_of(name, kind).end_ids
    assert re.findall(r"\d+ ", findings["end ids"].found)[0] == f"{ids[0]} "


# -- seams -----------------------------------------------------------------------------------------------------------


@EACH
def test_a_character_cut_at_the_limit_stays_as_it_was_sampled(name, kind):
    form = form_of(name, kind, DEFAULT)
    whole = form.reply_ids("A gull, 鷗", "stop")
    cut = whole[:-1]
    assert form.response_text(whole).endswith("鷗")
    assert form.response_text(cut).endswith("\ufffd")
    assert get_protocol("tool_calls").parse(form.response_text(cut)) == Invalid("no complete action was found")
    again = form.observation_ids("Go on.", "length")
    assert again[: len(form.closing_ids)].tolist() == list(form.closing_ids)


@EACH
def test_pages_make_no_marks_and_no_tags_in_any_place(name, kind):
    """Text between tags that the grammar wrote itself is encoded for its place too."""
    tokenizer = copy.deepcopy(family_tokenizer(name, kind))
    tags = ["<information>", "</information>", "<answer>", "</answer>"]
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    protocol, known = get_protocol("tags"), tokenizer.added_tokens_decoder
    form = TokenFormat(tokenizer, protocol, True, FAMILIES[name].arguments, date=str(DATE.date()))
    spelled = " ".join(known[i].content for i in sorted(form.marks))
    for finish in ("stop", "eos"):
        clean, hostile = (
            form.observation_ids(protocol.parts(protocol.result(page)), finish).tolist()
            for page in ("The gull", f"The gull {spelled}")
        )
        marks = [
            [known[i].content for i in ids if i in form.marks and i != tokenizer.unk_token_id]
            for ids in (clean, hostile)
        ]
        assert marks[0] == marks[1]
        assert {"<information>", "</information>"} <= set(marks[0])
    joint = tokenizer("x" + protocol.result("The gull"), add_special_tokens=False)["input_ids"]
    bare = protocol.parts(protocol.result("The gull <answer>"))
    shown = form.observation_ids(bare, "stop").tolist()
    at = shown.index(tokenizer.convert_tokens_to_ids("<information>"))
    start = joint.index(tokenizer.convert_tokens_to_ids("<information>"))
    assert shown[at : at + 3] == joint[start : start + 3]


@pytest.mark.parametrize("kind", get_args(Kind)[1:])
def test_a_base_model_reads_texts_as_its_tokenizer_makes_them(kind):
    """With its blank at the start, and none where text goes on after a response."""
    tokenizer = family_tokenizer("gemma" if kind == "never" else "phi3" if kind == "legacy" else "llama2", kind)
    form = TokenFormat(tokenizer, get_protocol("tags"), chat=False)
    whole = tokenizer("The gull\nWho?", add_special_tokens=False)["input_ids"]
    prompt, rest = form.prompt_ids("The gull\n").tolist(), form.observation_ids("Who?", "stop").tolist()
    assert [*prompt, *rest] == [tokenizer.bos_token_id, *whole]


# -- a model of sentencepiece ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model file that the package sentencepiece trains, and the package's own reader of it."""
    package, file = pytest.importorskip("sentencepiece"), io.BytesIO()
    package.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES, "The gull is white. [INST] [/INST]"] * 20),
        model_writer=file,
        vocab_size=340,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        minloglevel=2,
    )
    folder = tmp_path_factory.mktemp("sentencepiece")
    (folder / "tokenizer.model").write_bytes(file.getvalue())
    return folder, package.SentencePieceProcessor(model_proto=file.getvalue())


@pytest.mark.parametrize("name", ["llama2", "zephyr", "mistral_v01"])
@pytest.mark.parametrize("legacy", [True, False])
def test_a_model_of_sentencepiece_has_the_ids_of_its_own_reader(trained, name, legacy):
    """The reader takes special tokens as ids, so the text between them is compared."""
    folder, reader = trained
    settings = {"tokenizer_class": "LlamaTokenizer", "legacy": legacy} | FAMILIES[name].names
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = family_tokenizer(name).chat_template
    form = TokenFormat(tokenizer, get_protocol("tags"), True)
    ids = form.prompt_ids("The gull is white?").tolist()
    text = tokenizer.apply_chat_template([asks("The gull is white?")], tokenize=False, add_generation_prompt=True)
    assert ids == rendered_by(tokenizer, [asks("The gull is white?")])
    if legacy:  # else no blank is put after special tokens, as the reader would
        pieces = [reader.encode(piece) for piece in re.split("<s>|</s>", text) if piece]
        assert [i for i in ids if i not in (1, 2)] == [i for piece in pieces for i in piece]
    page = "\n\n<information>The gull.\n</information>\n\n"
    start = len(reader.encode("x"))
    assert form.observation_ids(page, "stop").tolist() == reader.encode("x" + page)[start:]


# -- what is refused -------------------------------------------------------------------------------------------------


def changed(name, template=None, **state):
    """A family's tokenizer of its own, with another template or with other parts in its file."""
    tokenizer = copy.deepcopy(family_tokenizer(name))
    tokenizer.chat_template = template or tokenizer.chat_template
    if state:
        file = json.loads(tokenizer.backend_tokenizer.to_str())
        tokenizer._tokenizer = Tokenizer.from_str(json.dumps(file | state))
    return tokenizer


def test_a_template_that_changes_blanks_is_refused():
    template = "{% for m in messages %}{{ m.content | replace('\\n', ' ') }}<|im_end|>{% endfor %}"
    with pytest.raises(UsageError, match=r"changes texts: for ' .nsentinelofauser"):
        TokenFormat(changed("chatml", template), get_protocol("tags"), True)


def test_a_tokenizer_that_adds_an_id_to_every_text_is_refused():
    class Adding(type(family_tokenizer("llama3"))):
        """Ignores that nothing may be added."""

        def __call__(self, text, **options):
            made = super().__call__(text, **options)
            return {"input_ids": [self.bos_token_id, *made["input_ids"]]}

        def _encode_plus(self, *args, **options):
            return super()._encode_plus(*args, **options)

    tokenizer = changed("llama3")
    tokenizer.__class__ = Adding
    with pytest.raises(UsageError, match=r"llama3: Adding adds '<.begin_of_text.>' to every text although told not"):
        TokenFormat(tokenizer, get_protocol("tags"), True)


@pytest.mark.parametrize("name", ["zephyr", "gemma"])
def test_tools_are_not_served_where_the_template_would_gain_blanks(name):
    form = form_of(name, FAMILIES[name].kinds[0])
    if name == "gemma":
        assert tool_template(form, "search-r1")
        return
    with pytest.raises(UsageError, match="--tools needs a tokenizer that puts no blank before texts"):
        tool_template(form, "search-r1")


def test_a_slow_tokenizer_that_puts_blanks_is_refused():
    class Slow(type(family_tokenizer("zephyr"))):
        """Takes no part of the library."""

        def _encode_plus(self, *args, **options):
            return super()._encode_plus(*args, **options)

    tokenizer = changed("zephyr")
    tokenizer.__class__ = Slow
    with pytest.raises(UsageError, match=r"zephyr: Slow puts a blank before every text.* use the fast tokenizer"):
        TokenFormat(tokenizer, get_protocol("tags"), True)
