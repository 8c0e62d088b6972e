"""Evaluation on a user's own questions, on the files of ``SEARCHGYM_DATA``, and under other budgets."""

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from support import command_line, json_of

from searchgym.agents.base import load_agent, with_max_tokens
from searchgym.cli.evaluation.notes import model_notes
from searchgym.cli.evaluation.printed import print_scores
from searchgym.corpora.folders import bundled_file
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import DataMissingError, UsageError
from searchgym.rollout.folders import model_folder
from searchgym.train.loop.assembly import load_tasks
from searchgym.train.recipe.load import load_recipe

QUESTIONS, CORPUS = bundled_file("demo/questions.json"), bundled_file("demo/corpus.jsonl")


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs ``searchgym ARGS`` in an empty folder; returns (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SEARCHGYM_DATA", raising=False)
    return command_line(monkeypatch, capsys)


@pytest.fixture
def real(tmp_path, monkeypatch):
    """A folder of evaluation data, laid out as ``SEARCHGYM_DATA`` is."""
    folder = tmp_path / "real" / "hotpotqa"
    folder.mkdir(parents=True)
    shutil.copy(QUESTIONS, folder / "questions.json")
    pages = {row["title"]: [row["text"]] for row in map(json.loads, CORPUS.read_text().splitlines())}
    (folder / "corpus.json").write_text(json.dumps(pages))
    return folder.parent


# -- own questions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", [["--corpus", CORPUS], ["--distractors"]], ids=["corpus", "distractors"])
def test_own_questions_need_no_environment(cli, search):
    status, out, err = cli("eval", "--questions", QUESTIONS, *search, "--agent", "oracle", "--json")
    assert status == 0, err
    scores = json.loads(out)
    assert (scores["env"], scores["n"]) == ("own/questions", 12)
    assert Path(scores["out"]).name.startswith("questions_oracle_")
    assert scores["em"] == (1.0 if search == ["--corpus", CORPUS] else scores["em"])


def test_what_is_missing_beside_own_questions_is_named(cli):
    assert "which environment? Give its ID" in cli("eval", "--agent", "oracle")[2]
    status, _, err = cli("eval", "--questions", QUESTIONS, "--agent", "oracle")
    assert (status, "nothing to search: give --corpus, --retriever or --distractors" in err) == (2, True)


def test_an_unknown_environment_with_questions_gets_the_command_without_it(cli):
    typed = ["--questions", "q a.json", "--retriever", "http://127.0.0.1:9", "--agent", "oracle"]
    status, _, err = cli("eval", "Mine", *typed)
    assert status == 2
    assert "unknown environment 'Mine'" in err
    command = "searchgym eval --questions 'q a.json' --retriever http://127.0.0.1:9 --agent oracle"
    assert err.strip().endswith(f"Your own questions need no environment: {command}")


def test_eval_prints_the_first_questions_with_answers_in_the_width(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "48")
    status, out, err = cli("eval", "Demo", "--agent", "closed-book", "--out", "run")
    assert status == 0, err
    printed = out[out.index("the first 3 of 12 questions") :].splitlines()
    assert printed[2:5] == [
        "question  In which town was the surveyor who ...",
        "gold      Dunmere",
        "answer    wrong: (empty)",
    ]
    assert [line.split()[0] for line in printed if line][1:] == ["question", "gold", "answer"] * 3
    assert max(map(len, printed)) <= 48
    right = cli("eval", "Demo", "--agent", "oracle", "--limit", "3")[1]
    assert right.count("answer    right: ") == 3
    assert "the questions\n" in right


def test_resumed_has_a_printed_name_and_no_row_where_it_is_0(capsys):
    scores = {"n": 1, "splits": {}, "legal_by_role": {}, "refused": [], "notes": {}, "legal": None, "em": 1.0}
    scores |= {"full_contexts": 0, "answered": 1.0, "retriever_errors": 0}
    for value, printed in ((2.0, True), (0.0, False)):
        print_scores("t", scores | {"resumed": value, "resumed_ci95": [value, value]})
        out = capsys.readouterr().out
        assert ("continued after a stop string" in out, "resumed" in out) == (printed, False)


def test_an_oracle_without_gold_pages_is_noted(cli):
    Path("notes").mkdir()
    Path("notes/bo.txt").write_text("Bo lives in Rome.")
    row = {"question": "Where does Bo live?", "answers": ["Rome"]}
    for facts, noted in ((None, True), ([["bo", 0]], False)):
        Path("q.json").write_text(json.dumps([row | {"supporting_facts": facts}]))
        status, _, err = cli("eval", "--questions", "q.json", "--corpus", "notes/", "--agent", "oracle")
        assert status == 0, err
        note = (
            "the questions name no gold pages: on them agent oracle searches nothing and only repeats the gold answers"
        )
        assert (note in err) == noted


def test_a_model_of_worlds_is_noted_on_other_questions():
    folders = [model_folder(name) for name in ("tiny", "tiny", "smollm2-searcher")] + ["http://127.0.0.1:9#tiny"]
    demo = load_task(find_env("Demo"))
    (note,) = model_notes(folders, demo)
    assert note == "tiny was trained on generated worlds only: on other text try --model smollm2-searcher"
    as_file = demo.asking([dataclasses.replace(demo.questions[0], id="simple-train-1-1380")])
    assert list(model_notes(folders, as_file)) == []


# -- evaluation data -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_evaluation_looks_into_searchgym_data(cli, real, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_DATA", str(real))
    status, out, err = cli("eval", "HotpotQA", "--agent", "oracle", "--json")
    assert status == 0, err
    assert (json.loads(out)["n"], json.loads(out)["em"]) == (12, 1.0)
    assert f"{real / 'hotpotqa'} (SEARCHGYM_DATA)" in err
    own = json.loads(QUESTIONS.read_text())[:2]
    for path, number in ((Path("home/data/hotpot_dev_distractor_v1.json"), 2), (Path("given.json"), 1)):
        path.parent.mkdir(parents=True, exist_ok=True)  # the data folder comes first, --questions before it
        path.write_text(json.dumps(own[:number]))
        given = ["--questions", path] if number == 1 else []
        status, out, err = cli("eval", "HotpotQA", "--agent", "oracle", "--corpus", CORPUS, *given, "--json")
        assert (status, json.loads(out)["n"], "SEARCHGYM_DATA" in err) == (0, number, False)


def test_nothing_is_trained_on_searchgym_data(cli, real, monkeypatch):
    def unreachable(source, streaming):
        raise DataMissingError("the hub cannot be reached")

    monkeypatch.setenv("SEARCHGYM_DATA", str(real))
    monkeypatch.setattr("searchgym.corpora.hub.hub_rows", unreachable)
    for load in (
        lambda: load_task(find_env("HotpotQA")),
        lambda: load_tasks(load_recipe("tiny-grpo", ["env=HotpotQA", "env_options={}"])),
    ):
        with pytest.raises(DataMissingError, match="HotpotQA-v0 has no questions"):
            load()


# -- what is not here ----------------------------------------------------------------------------------------------


def lines_of(cli, *command):
    """The lines of the error of a command, without the folder of the data, which may be long."""
    status, _, err = cli(*command)
    assert status == 2
    return [line.replace(os.environ["SEARCHGYM_HOME"], "HOME") for line in err.splitlines()]


def test_missing_questions_are_told_in_three_lines(cli, monkeypatch):
    def unreachable(source, streaming):
        raise DataMissingError("the data set could not be loaded (the hub cannot be reached: " + "x" * 300, source)

    monkeypatch.setattr("searchgym.corpora.hub.hub_rows", unreachable)
    what, source, place = lines_of(cli, "eval", "HotpotQA", "--agent", "oracle")
    assert what == (
        "error: searchgym/HotpotQA-v0 has no questions: hotpot_dev_distractor_v1.json is not here "
        "(HotpotQA, 7,405 questions)"
    )
    assert source == "  get it from https://hotpotqa.github.io (the hub: the data set could not be loaded)"
    assert place == (
        "  put it at HOME/data/hotpot_dev_distractor_v1.json, or pass questions=PATH; to evaluate: or "
        "SEARCHGYM_DATA=DIR with hotpotqa/questions.json"
    )


@pytest.mark.parametrize(
    ("paragraphs", "instead"), [(True, "; or search each question's own paragraphs: distractors=True"), (False, "")]
)
def test_a_missing_corpus_is_told_in_three_lines(cli, paragraphs, instead):
    rows = json.loads(QUESTIONS.read_text())
    kept = rows if paragraphs else [{name: row[name] for name in row if name != "context"} for row in rows]
    Path("q.json").write_text(json.dumps(kept))
    assert lines_of(cli, "eval", "HotpotQA", "--agent", "oracle", "--questions", "q.json") == [
        "error: corpus 'wiki-18' is not here (wiki-18.jsonl.gz)",
        f"  get it by `searchgym corpus get wiki-18`{instead}",
        "  it belongs at HOME/data/wiki-18.jsonl.gz, or indexed at HOME/indexes/wiki-18; or pass corpus=PATH",
    ]


@pytest.mark.slow
def test_the_list_says_which_data_are_here(cli, real, monkeypatch):
    def ready(kind):
        return {row.get("id", row.get("name")): row["ready"] for row in json_of(cli("list", kind, "--json"))[kind]}

    envs = ready("envs")
    assert {envs[f"searchgym/{name}-v0"] for name in ("Demo", "World", "Report")} == {"yes"}
    assert (envs["searchgym/HotpotQA-v0"], envs["searchgym/Corpus-v0"]) == ("no", "no corpus")
    assert {name for name, here in ready("suites").items() if here == "yes"} == {"worlds"}
    assert ready("corpora") == {"demo": "yes", "wiki-18": "no"}
    data = Path(os.environ["SEARCHGYM_HOME"], "data")
    data.mkdir(parents=True)
    (data / "hotpot_dev_distractor_v1.json").touch()
    assert ready("envs")["searchgym/HotpotQA-v0"] == "no corpus"
    (data / "wiki-18.jsonl.gz").touch()
    assert ready("envs")["searchgym/HotpotQA-v0"] == ready("corpora")["wiki-18"] == "yes"
    assert ready("envs")["searchgym/NQ-v0"] == "no questions"
    shutil.rmtree(data)
    monkeypatch.setenv("SEARCHGYM_DATA", str(real))
    assert ready("envs")["searchgym/HotpotQA-v0"] == "yes"  # an evaluation takes them
    assert ready("suites")["multihop"] == "no" == ready("suites")["wiki-real"]  # 2WikiMultihopQA is not there


@pytest.mark.parametrize("name", ["worlds", "Worlds"])
def test_a_suite_in_place_of_an_environment_is_called_one(cli, name):
    for command in (
        ["play", name],
        ["train", "tiny-grpo", f"env={name}"],
        ["demonstrate", name, "--model", "tiny", "--out", "x"],
    ):
        status, _, err = cli(*command)
        assert status == 2 and f"{name} is a suite of environments, which `searchgym eval worlds` runs" in err, err


# -- budgets -------------------------------------------------------------------------------------------------------


def test_every_budget_is_an_option_and_is_recorded(cli):
    options = {"top-k": 2, "max-turns": 4, "max-queries": 3, "max-observation-words": 7, "retriever-deadline": 9.0}
    typed = [text for name, value in options.items() for text in (f"--{name}", value)]
    status, _, err = cli("eval", "Demo", "--agent", "single-search", "--out", "run", *typed)
    assert status == 0, err
    run, scores = (json.loads(Path("run", name).read_text()) for name in ("run.json", "scores.json"))
    assert [run[name] for name in ("top_k", "max_turns", "max_queries", "max_observation_words")] == [2, 4, 3, 7]
    assert scores["observation_words"] <= 7 + 2  # the tags around the pages
    assert cli("eval", "Demo", "--agent", "oracle", "--max-observation-words", 0)[0] == 2


@pytest.mark.slow
def test_further_retrievers_are_an_option_and_are_recorded(cli):
    typed = ("eval", "Demo", "--agent", "single-search", "--out")
    status, _, err = cli(*typed, "run", "--retrievers", "{web: {corpus: demo}, notes: bm25}")
    assert status == 0, err
    run = json.loads(Path("run", "run.json").read_text())
    assert list(run["sources"]) == ["web", "notes"] and run["sources"]["web"] == run["sources"]["notes"]
    assert cli(*typed, "plain")[0] == 0
    assert json.loads(Path("plain", "run.json").read_text())["sources"] == {}
    for given, said in (
        ("web", "retrievers= is a mapping such as {'web': 'bm25'}, got str"),
        ("{Web: bm25}", "retrievers= has the name 'Web'"),
        ("{web: }", "retrievers.web is empty"),
        ("{web: bm26}", "did you mean 'bm25'"),
        ("{web", "--retrievers: cannot be read as YAML"),
    ):
        status, _, err = cli(*typed, "refused", "--retrievers", given)
        assert (status in (1, 2), said in err, Path("refused").exists()) == (True, True, False), err


def test_max_tokens_limits_every_role_and_is_recorded():
    agent = load_agent("jade")
    limited = with_max_tokens(agent, 5)
    assert {role.max_tokens for role in limited.roles.values()} == {5}
    assert limited.source == f"{agent.source}, max_tokens 5"
    assert with_max_tokens(agent, None) is agent
    with pytest.raises(UsageError, match="leave out max_tokens"):
        with_max_tokens(load_agent("oracle"), 5)


ENDS = """
import asyncio, sys
async def end():
    sys.exit(0)
class AtOnce:
    async def run(self, question, io): sys.exit(0)
class InATask:
    async def run(self, question, io): await asyncio.create_task(end())
class Cancelled:
    async def run(self, question, io): raise asyncio.CancelledError
def reward(state): sys.exit(0)
"""


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--agent", "AtOnce", "SystemExit: 0"),
        ("--agent", "InATask", "SystemExit: 0"),
        ("--agent", "Cancelled", "CancelledError"),
        ("--reward", "reward", "reward raised RuntimeError on question 'demo-"),
    ],
)
def test_code_that_ends_the_program_fails_the_command(option, value, said, cli, tmp_path, monkeypatch):
    (tmp_path / "ends.py").write_text(ENDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ends", raising=False)
    agent = [] if option == "--agent" else ["--agent", "single-search"]
    try:
        status, out, err = cli("eval", "Demo", *agent, option, f"ends:{value}", "--out", "run")
    except RuntimeError as error:  # with a traceback, as of any other error of the user's code
        status, out, err = 1, "", f"{error}"
    assert (status, out, said in err) == (1, "", True)
    assert not Path("run/scores.json").exists()
