"""`searchgym doctor --model`: what is found of made-up families of templates and tokenizers, without weights."""

import json

import pytest
from made_models import CHATML, HEADERS, tiny_tokenizer
from support import command_line

from searchgym.errors import UnknownNameError
from searchgym.protocol import joined
from searchgym.rollout.foreign.model_check import check_model
from searchgym.rollout.tokens import ContextText, TokenFormat

THINKS = CHATML.replace(
    "<|im_start|>assistant\n{% endif %}",
    "<|im_start|>assistant\n{% if enable_thinking | default(true) %}<think>\n{% endif %}{% endif %}",
)
DATED = CHATML.replace("You are a helpful assistant.", "Today: {{ strftime_now('%d %b %Y') }}.")
SHOUTS = CHATML.replace("{{ message['content'] }}", "{{ message['content'] | upper }}")
TWICE = CHATML.replace("{{ message['content'] }}", "{{ message['content'] }}{{ message['content'] }}")


@pytest.fixture
def saved(tmp_path):
    """Saves a tokenizer of a style, with another template and added tags if so asked; returns its folder as text."""

    def save(style, template=None, tags=()):
        tokenizer = tiny_tokenizer(style)
        tokenizer.chat_template = template or tokenizer.chat_template
        tokenizer.add_tokens(list(tags))
        tokenizer.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


def found(report):
    """What each check found, and its state."""
    return {row.check: (row.state, row.found) for row in report.findings}


@pytest.mark.parametrize("style", ["qwen2", "llama", "merging"])
def test_a_plain_chat_model_passes_every_check(style, saved):
    report = check_model(saved(style))
    states = {row.check: row.state for row in report.findings}
    assert set(states.values()) == {"ok"}
    assert not report.refused
    rows = found(report)
    assert rows["tool_calls: history"][1] == "equal to apply_chat_template's"
    assert rows["tags: prompt ids"][1] == "equal to apply_chat_template's"


def test_a_template_without_special_tokens_is_encoded_with_the_text(saved):
    """The template has one token for the full stop and the line ends after it."""
    report = check_model(saved("plain"))
    assert found(report)["tags: prompt ids"] == ("ok", "equal to apply_chat_template's")
    assert not report.refused


def test_a_tokenizer_that_adds_a_blank_is_refused(saved, monkeypatch):
    """As SentencePiece does before a text that is encoded alone."""
    folder = saved("qwen2")
    plain = TokenFormat.encode
    monkeypatch.setattr(TokenFormat, "encode", lambda self, texts: plain(self, [blank(text) for text in texts]))
    report = check_model(folder)
    state, said = found(report)["tags: prompt ids"]
    assert report.refused and state == "refused"
    assert said.endswith("by apply_chat_template; use the tokenizer that belongs to the model")


def blank(text):
    return ContextText(f" {joined(text.parts)}", text.finish)


def test_end_ids_and_the_beginning_of_text_are_named(saved):
    rows = found(check_model(saved("llama")))
    assert [part.split()[1] for part in rows["end ids"][1].split(", ")] == ["<|end_of_text|>", "<|eot_id|>"]
    assert rows["beginning of text"][1].endswith("<|begin_of_text|>, 1 in a prompt")
    report = check_model(saved("llama", "{{ bos_token }}" + HEADERS))
    assert found(report)["beginning of text"] == ("note", rows["beginning of text"][1].replace("1 in", "2 in"))


def test_a_base_model_has_no_checks_of_a_template(saved):
    rows = found(check_model(saved("base")))
    assert rows["template"][1].startswith("none: a base model")
    assert not {"arguments", "date", "tags: prompt ids"} & rows.keys()
    assert rows["tool_calls: turns"][0] == "ok"


def test_a_thought_that_the_template_opens_and_its_argument(saved):
    folder = saved("qwen2", THINKS)
    rows = found(check_model(folder))
    assert rows["thought"] == ("note", r"the prompt opens '<think>\n'")
    assert rows["arguments"][1] == "enable_thinking"
    assert rows["tags: turns"][0] == "ok"
    rows = found(check_model(folder, {"enable_thinking": False}))
    assert rows["thought"] == ("ok", "not opened")
    assert rows["arguments"][1] == "enable_thinking=False"
    assert rows["tool_calls: history"] == ("ok", "equal to apply_chat_template's")
    with pytest.raises(UnknownNameError, match="did you mean 'enable_thinking'"):
        check_model(folder, {"enable_thinkin": False})


def test_a_date_that_the_template_shows(saved):
    folder = saved("qwen2", DATED)
    rows = found(check_model(folder, {"date": "2026-11-27"}))
    assert rows["date"][0] == "note" and rows["date"][1].startswith("shows 2026-11-27")
    assert rows["tags: prompt ids"][0] == "ok"  # on any day


def test_tags_that_are_added_tokens_are_told_from_those_of_several(saved):
    rows = found(check_model(saved("qwen2", tags=["<search>", "</search>"])))
    single, _, several = rows["tags: markers"][1].partition("; ")
    assert single == "one token: <search>, </search>"
    assert several.startswith("several tokens: <answer> ")


def test_a_template_that_rewrites_old_turns_is_told(saved):
    assert found(check_model(saved("qwen3")))["tool_calls: history"][0] == "note"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (SHOUTS, "does not contain each message once"),
        (TWICE, "does not contain each message once"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate.*leave it out: a base model then"),
        ("{% for %}", "cannot render"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_once_with_a_reason(template, said, saved):
    report = check_model(saved("qwen2", template))
    assert report.refused
    (refusal,) = [row for row in report.findings if row.state == "refused"]
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(refusal.found)


def test_without_a_tokenizer_the_model_is_refused(tmp_path):
    report = check_model(str(tmp_path))
    assert report.refused and "no tokenizer" in report.findings[0].found


def test_the_command_prints_a_table_of_80_columns(saved, monkeypatch, capsys):
    run = command_line(monkeypatch, capsys)
    folder = saved("qwen2", "{{ raise_exception('" + "no way " * 30 + "') }}")
    status, out, _ = run("doctor", "--model", folder)
    assert status == 1
    assert "refused" in out and max(map(len, out.splitlines())) <= 80
    status, out, err = run("doctor", "--model", saved("qwen2", THINKS), "--template", "enable_thinking=false", "--json")
    assert status == 0, err
    report = json.loads(out)
    assert report["refused"] is False
    assert {"check": "thought", "state": "ok", "found": "not opened"} in report["findings"]
