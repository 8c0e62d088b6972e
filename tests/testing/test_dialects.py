"""The conformance set of dialects: its files, its runner against parsers with planted faults, this project's parser."""

import ast
import dataclasses
import importlib.util
import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from dialect_oracle import MARKERS, Oracle

from searchgym.protocol import Protocol, get_protocol
from searchgym.protocol.thoughts import awaited
from searchgym.testing.dialects import DIALECTS, KINDS, __main__, load, runner, vllm_parsers
from searchgym.testing.dialects.parsers import searchgym_parse
from searchgym.testing.dialects.runner import DialectTable, run

FOLDER = Path(runner.__file__).parent
sys.path.insert(0, str(FOLDER.parents[2] / "benchmarks"))
from dialect_fuzz import BOUND, Row, fuzz, measure, stopped_at  # noqa: E402


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_file_keeps_the_form_that_the_runner_describes(dialect):
    data = json.loads((FOLDER / f"{dialect}.json").read_text(encoding="utf-8"))
    assert (data.keys(), data["dialect"]) == ({"dialect", "description", "cases"}, dialect)
    cases = load(dialect)
    assert len(cases) >= 40
    assert {case.kind for case in cases} == set(KINDS) - {"prefix"}
    for case in cases:
        ((key, value),) = case.expect.items()
        assert case.id.startswith(f"{dialect}-") and isinstance(case.text, str) and isinstance(case.note, str)
        if key == "search":
            assert isinstance(value, list) and value and all(q and q == q.strip() for q in value), case.id
        else:
            assert key in ("answer", "refused") and isinstance(value, str), case.id
            assert value or key == "answer", case.id
        assert (case.complete_at is not None) == (case.kind == "plain"), case.id


def test_ids_and_texts_are_unique():
    cases = [case for dialect in DIALECTS for case in load(dialect)]
    assert [name for name, number in Counter(case.id for case in cases).items() if number > 1] == []
    texts = Counter((case.dialect, case.text) for case in cases)
    assert [text for text, number in texts.items() if number > 1] == []


def test_files_and_names_of_dialects_are_the_same():
    assert sorted(file.stem for file in FOLDER.glob("*.json")) == sorted(DIALECTS)


def test_a_plain_parser_written_for_this_test_passes_the_set():
    table = run(Oracle().parse)
    assert [(failure.case.id, failure.got) for failure in table.failures] == []
    assert table.passed == table.total
    assert min(table.total[dialect, "prefix"] for dialect in DIALECTS) > 300


# -- planted faults -------------------------------------------------------------------------------------------------


class BlindToThoughts(Oracle):
    def visible(self, text):
        return text


class BlindToThePrompt(Oracle):
    def visible(self, text):
        return super().visible("<think></think>" + text)


class ActsInOpenThoughts(Oracle):
    def visible(self, text):
        shown = super().visible(text)
        return shown if any(close in text for close in MARKERS.values()) else text


class NestsThoughts(Oracle):
    def visible(self, text):
        return re.sub(r"<think>.*</think>", "", text, flags=re.DOTALL) if text.count("<think>") > 1 else text


class IgnoresCase(Oracle):
    def visible(self, text):
        return super().visible(re.sub("(?i)(</?)think>", r"\1think>", text))


class ReadsLookAlikes(Oracle):
    def parse(self, dialect, text):
        return super().parse(dialect, text.replace("\uff1c", "<").replace("\uff1e", ">").replace("\u200b", ""))


class EndsAtTheFirstClosingTag(Oracle):
    def call_of_hermes(self, text):
        found = re.search(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)
        return found and (found.start(), self.read(self.json(found[1])))


class StrictJson(Oracle):
    strict = True


class FirstOfTwoKeys(Oracle):
    pairs = staticmethod(lambda pairs: dict(reversed(pairs)))


class AddsBraces(Oracle):
    def json(self, text):
        return super().json(text) or super().json(text.split("</tool_call>")[0].rstrip() + "}")


class ReadsPython(Oracle):
    def json(self, text):
        try:
            return super().json(text) or ast.literal_eval(text.split("</tool_call>")[0].strip())
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None


class KnowsEveryTool(Oracle):
    def read(self, call):
        return super().read(call | {"name": "search"} if isinstance(call, dict) else call)


class TagsInQueries(Oracle):
    def search(self, queries):
        return {"search": [queries]} if isinstance(queries, str) and "<answer>" in queries else super().search(queries)


class OneQuery(Oracle):
    def search(self, queries):
        return super().search(queries[:1] if isinstance(queries, list) else queries)


class KeepsBlanks(Oracle):
    def search(self, queries):
        result = super().search(queries)
        return {"search": [queries]} if result is not None and isinstance(queries, str) and queries else result


class AnswersFirst(Oracle):
    def call(self, dialect, text):
        return None if "<answer>" in text else super().call(dialect, text)


class Raises(Oracle):
    def json(self, text):
        return json.loads(re.sub("</tool_call>.*", "", text))


class AnswersTheRest(Oracle):
    """A prefix that is cut is taken as an answer."""

    def parse(self, dialect, text):
        cut = text.startswith("<answer>") and "</answer>" not in text
        return {"answer": text[8:]} if cut else super().parse(dialect, text)


FAULTS = {
    BlindToThoughts: {"thought", "page"},
    BlindToThePrompt: {"thought"},
    ActsInOpenThoughts: {"thought"},
    NestsThoughts: {"thought", "page"},
    IgnoresCase: {"thought"},
    ReadsLookAlikes: {"hostile", "thought"},
    EndsAtTheFirstClosingTag: {"nested"},
    StrictJson: {"form"},
    FirstOfTwoKeys: {"form"},
    AddsBraces: {"wrong", "prefix"},
    ReadsPython: {"wrong"},
    KnowsEveryTool: {"wrong"},
    TagsInQueries: {"hostile"},
    OneQuery: {"form", "wrong"},
    KeepsBlanks: {"form"},
    AnswersFirst: {"form", "page", "wrong"},
    Raises: {"cut", "hostile", "prefix"},
    AnswersTheRest: {"cut", "prefix"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_fails_on_texts_of_its_kinds(fault):
    table = run(fault().parse, ["hermes"])
    failed = {kind for kind in KINDS if table.passed["hermes", kind] < table.total["hermes", kind]}
    assert failed >= FAULTS[fault]
    assert len(table.failures) == sum(table.total.values()) - sum(table.passed.values())


@pytest.mark.parametrize(
    "result",
    [
        None,
        "refused",
        {},
        {"refused": False},
        {"refused": ""},
        {"search": "who wrote Emma"},
        {"refused": 1, "answer": ""},
    ],
)
def test_a_result_of_another_form_never_passes(result):
    table = run(lambda dialect, text: result, ["tags"])
    assert (sum(table.passed.values()), len(table.failures)) == (0, sum(table.total.values()))


def test_a_table_counts_and_is_80_columns_wide():
    table = run(lambda dialect, text: {"refused": True})
    for dialect in DIALECTS:
        refused = Counter(case.kind for case in load(dialect) if "refused" in case.expect)
        assert {kind: table.passed[dialect, kind] for kind in KINDS if kind != "prefix"} == {
            kind: refused[kind] for kind in KINDS if kind != "prefix"
        }
        assert table.passed[dialect, "prefix"] == table.total[dialect, "prefix"]  # a cut text may be refused
    text = str(table)
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) == 1 + len(DIALECTS)
    assert str(DialectTable()).split() == ["dialect", *KINDS]


def test_an_exception_is_a_failure_that_names_it():
    def raises(dialect, text):
        raise KeyError("query")

    table = run(raises, ["tags"])
    assert {failure.got for failure in table.failures} == {"raised KeyError: 'query'"}


def test_the_folder_runs_under_another_name_without_this_package(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "conformance", ignore=shutil.ignore_patterns("__pycache__"))
    spec = importlib.util.spec_from_file_location("conformance", tmp_path / "conformance" / "__init__.py")
    package = importlib.util.module_from_spec(spec)
    sys.modules["conformance"] = package
    try:
        spec.loader.exec_module(package)
        assert package.run(Oracle().parse, ["tags"]).failures == []
        assert sys.modules["conformance.runner"].__file__.startswith(str(tmp_path))
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "conformance"]:
            del sys.modules[name]
    lines = ast.walk(ast.parse((FOLDER / "runner.py").read_text()))
    roots = {line.module.split(".")[0] for line in lines if isinstance(line, ast.ImportFrom)}
    assert roots <= set(sys.stdlib_module_names)


def test_the_example_of_the_docs_prints_its_table(capsys):
    page = (FOLDER.parents[2] / "docs" / "extend" / "testing.md").read_text()
    section = page[page.index("## A parser\n") :]
    code, table = re.findall(r"^```(?:python|text)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    exec(compile(code, "docs/extend/testing.md", "exec"), {})
    assert capsys.readouterr().out == table


# -- this project's parser ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_this_parser_reads_every_text_of_a_dialect_rightly(dialect):
    assert [(failure.case.id, failure.text, failure.got) for failure in run(searchgym_parse, [dialect]).failures] == []


def test_the_command_prints_a_table_and_the_failures(monkeypatch, capsys):
    monkeypatch.setattr(__main__, "searchgym_parse", lambda dialect, text: {"refused": text == ""})
    monkeypatch.setattr(sys, "argv", ["dialects", "--failures"])
    assert __main__.main() == 1
    table, _, failures = capsys.readouterr().out.partition("\n\n")
    assert [line.split()[0] for line in table.splitlines()[1:]] == list(DIALECTS)
    assert max(map(len, table.splitlines())) <= 80
    assert "tags-search\n  text     '<search>who wrote Emma</search>'\n" in failures


def test_the_command_prints_vllm_beside_this_parser(monkeypatch, capsys):
    monkeypatch.setattr(__main__, "searchgym_parse", Oracle().parse)
    monkeypatch.setattr(__main__, "vllm_parse", EndsAtTheFirstClosingTag().parse)
    monkeypatch.setattr(__main__, "not_read", lambda: {"tags": "no parser", "gemma": "another form"})
    monkeypatch.setattr(sys, "argv", ["dialects", "--parser", "vllm"])
    assert __main__.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines].count("vllm") == len(DIALECTS) - 2
    assert lines[-2:] == ["tags: no parser", "gemma: another form"]
    assert max(map(len, lines)) <= 80


@pytest.mark.engine
@pytest.mark.filterwarnings("default")  # vLLM and its imports raise warnings that we cannot mend
@pytest.mark.parametrize("dialect", vllm_parsers.PARSERS)
def test_the_parsers_of_vllm_read_the_plain_texts(dialect):
    pytest.importorskip("vllm")
    reasons = vllm_parsers.not_read()
    assert vllm_parsers.PARSERS.keys() | reasons.keys() == set(DIALECTS)
    if dialect in reasons:
        pytest.skip(reasons[dialect])
    plain = [case for case in load(dialect) if case.kind == "plain"]
    assert [vllm_parsers.vllm_parse(dialect, case.text) for case in plain] == [case.expect for case in plain]


# -- the fuzz -------------------------------------------------------------------------------------------------------


class EndsWithAnAction(Protocol):
    """Reads of a text what a stream would hold."""

    def ended(self, text):
        return not awaited(text) and self.before_action(text) != text

    def parse(self, text):
        streamed = stopped_at(self, text)
        return super().parse(text if streamed is None else streamed)


class EndsInThoughts(Protocol):
    def ended(self, text):
        return True


class RaisesAtNul(EndsWithAnAction):
    def parse(self, text):
        assert "\x00" not in text
        return super().parse(text)


class Quadratic(EndsWithAnAction):
    def parse(self, text):
        sum(text[start:].count("z") for start in range(0, len(text), 50))
        return super().parse(text)


def counted(kind, dialect="tags", texts=1500):
    row, examples = Row(dialect, texts), []
    given = get_protocol("tags")
    fuzz(row, kind(*(getattr(given, field.name) for field in dataclasses.fields(given))), 1, examples)
    return row, examples


def test_the_fuzz_passes_what_is_right_and_counts_planted_faults():
    row, examples = counted(EndsWithAnAction)
    assert (row.raised, row.streamed, row.fails, examples) == (0, 0, False, [])
    assert min(row.acted, row.stopped) > 50
    row, examples = counted(EndsInThoughts)
    assert row.streamed > 20 and row.fails and len(examples) == 5
    row, examples = counted(RaisesAtNul)
    assert row.raised > 20 and row.fails and "AssertionError" in examples[0]


def test_the_fuzz_draws_the_same_texts_for_a_seed():
    assert counted(EndsWithAnAction, texts=200) == counted(EndsWithAnAction, texts=200)


def test_the_fuzz_measures_time_that_grows_faster_than_the_text():
    row = Row("tags", 0)
    measure(row, Quadratic("tags", ("<information>", "</information>")), 1, ["words"])
    assert row.slowest > 3 * BOUND and row.family.startswith("words") and row.fails


def test_a_stream_ends_at_the_first_stop_string_outside_thoughts():
    text = "<think><search>a</search></think> <search>b</search> <answer>c</answer>"
    assert stopped_at(get_protocol("tags"), text) == "<think><search>a</search></think> <search>b</search>"
    assert stopped_at(get_protocol("tags"), "<think><search>a</search>") is None
