"""Runs as logs for Inspect's viewer: read back by Inspect, compared with the lines of the run's own files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from browser import HOSTILE
from inspect_ai.log import read_eval_log, resolve_sample_attachments, resolve_sample_events_data, write_eval_log
from support import command_line, json_of

import searchgym
from searchgym.agents.base import load_agent
from searchgym.cli.evaluation import view as command
from searchgym.corpora.files import iter_jsonl
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import DataError, DataMissingError, SearchGymError, UsageError
from searchgym.eval.rows import call_rows
from searchgym.eval.runner import evaluate
from searchgym.eval.viewing import server
from searchgym.eval.viewing.explain import explain_run
from searchgym.eval.viewing.log import LOG, count_of, fingerprint, kept_log, write_log
from searchgym.eval.viewing.samples import sample_of
from searchgym.eval.viewing.saved import SavedRun, Viewed, find_runs, open_run
from searchgym.options.cards import cards_folder
from searchgym.packages import install_command
from searchgym.records import Answer, Call, Context, Episode, Hit, Opened, Passage, Question, Searched, Span
from searchgym.rollout.loading import load_tokenizer
from searchgym.rollout.storage import EpisodeWriter
from searchgym.train.recipe.load import load_recipe, read_recipe

ARTEFACTS = Path(__file__).parents[1] / "upgrade" / "0.1.0"
DEMO = Path(searchgym.__file__).parent / "demo"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An evaluation of a scripted agent on the bundled questions."""
    out = tmp_path_factory.mktemp("runs") / "demo"
    evaluate(load_task(find_env("Demo")), load_agent("single-search"), out)
    return out


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    return command_line(monkeypatch, capsys)


@pytest.fixture
def old(tmp_path, monkeypatch):
    """Small runs as the working folder, whose recipes name code that could be imported."""
    shutil.copytree(ARTEFACTS, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    monkeypatch.syspath_prepend(ARTEFACTS.parent)
    monkeypatch.delitem(sys.modules, "artefact_parts", raising=False)
    return tmp_path / "old"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def export(folder, model=None, **options):
    """Writes the log of a run beside it; returns it as Inspect reads it, and the notes."""
    run = open_run(folder, **options)
    write_log(run, folder / LOG, fingerprint(folder), model)
    return read_eval_log(str(folder / LOG), resolve_attachments="full"), run.notes


def tools(sample):
    return [event for event in sample.events if event.event == "tool"]


# -- what a log holds ----------------------------------------------------------------------------------------------


def test_a_log_has_what_the_files_of_the_run_have(run, cli):
    (row,) = json_of(cli("view", run, "--export-only", "--json"))["logs"]
    log = read_eval_log(row["log"], resolve_attachments="full")
    episodes = {episode["question_id"]: episode for episode in lines(run / "episodes.jsonl")}
    asked = {question["_id"]: question for question in json.loads((DEMO / "questions.json").read_text())}
    scores = json.loads((run / "scores.json").read_text())
    assert (row["run"], row["episodes"], row["bytes"]) == (str(run), 12, kept_log(run).stat().st_size)
    assert {sample.id for sample in log.samples} == episodes.keys() == asked.keys()
    assert len(log.samples) == 12
    for sample in log.samples:
        episode, question = episodes[sample.id], asked[sample.id]
        values = {name: score.value for name, score in sample.scores.items()}
        assert values == {
            **episode["scores"],
            "reward": episode["reward"],
            "searches": len(episode["searches"]),
            "turns": episode["turns"],
            "invalid": 0,
            "tokens": 0,
        }
        assert (sample.input, sample.target[0], sample.epoch) == (question["question"], question["answer"], 1)
        assert {score.answer for score in sample.scores.values()} == {episode["answer"]["text"]}
        meta = sample.metadata
        assert (meta["question_id"], meta["episode"], meta["stop_reason"]) == (sample.id, episode["id"], "answer")
        assert [tool.arguments for tool in tools(sample)] == [{"query": s["query"]} for s in episode["searches"]]
        for tool, search in zip(tools(sample), episode["searches"], strict=True):
            assert [hit["title"] for hit in tool.metadata["hits"]] == [h["passage"]["title"] for h in search["hits"]]
            assert all(hit["passage"]["text"] in tool.result for hit in search["hits"])
        assert [m.text for m in sample.messages if m.role == "tool"] == [tool.result for tool in tools(sample)]
    means = {score.name: score.metrics["mean"].value for score in log.results.scores}
    assert (means["em"], means["f1"]) == (pytest.approx(scores["em"]), pytest.approx(scores["f1"]))
    assert any(tools(sample) for sample in log.samples)
    assert log.eval.viewer.trust_content is False


def test_a_score_that_the_first_episode_lacks_has_its_column(run):
    """An episode at a question without an answer has no EM; the mean is over the others."""
    episodes = lines(run / "episodes.jsonl")
    right = [episode["scores"]["em"] for episode in episodes[1:]]
    episodes[0]["scores"] = {}
    (run / "episodes.jsonl").write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    log, _ = export(run)
    columns = [column.id for column in log.eval.viewer.task_samples_view.columns]
    assert [column for column in columns if "em" in column or "f1" in column] == ["score__em__em", "score__f1__f1"]
    (em,) = [score for score in log.results.scores if score.name == "em"]
    assert em.metrics["mean"].value == pytest.approx(sum(right) / 11)
    assert (em.scored_samples, em.unscored_samples) == (11, 1)


def test_several_attempts_are_epochs(tmp_path):
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        for attempt in range(3):
            writer.write(Episode(f"q@7#{attempt}", "q@7", "a", "test/None-v0", attempt, scores={"em": float(attempt)}))
    log, notes = export(tmp_path)
    assert [(s.id, s.epoch, s.scores["em"].value) for s in log.samples] == [("q@7", n + 1, n) for n in range(3)]
    assert log.samples[0].metadata["stop_reason"] == "unfinished"
    assert "texts of the questions are left out" in notes[0]
    assert "--questions FILE" in log.samples[0].input


def team_episode(text="x"):
    """Two roles in two turns: a plan, a search, an answer; the second call of the first context saw the first."""
    spans = [
        Span("prompt", np.array([1, 2], np.int32)),
        Span("model", np.array([3, 4], np.int32), np.array([-1, -2], np.float32)),
        Span("observation", np.array([5], np.int32)),
        Span("model", np.array([6], np.int32), np.array([-0.5], np.float32)),
    ]
    other = [Span("prompt", np.array([7], np.int32)), Span("model", np.array([8], np.int32), np.zeros(1, np.float32))]
    calls = [
        Call(0, 2, 4, "plan", "big", 1, text=f"plan {text}"),
        Call(1, 1, 2, "search", "small", 1, text=f"search {text}", legal=False),
        Call(0, 5, 6, "plan", "big", 2, text=f"answer {text}"),
    ]
    hit = Hit(Passage("p", f"title {text}", f"page {text}"), 2.0)
    return Episode(
        "q#1@4",
        "q",
        "team",
        "test/Team-v0",
        1,
        contexts=[Context(None, 0, spans), Context(None, 0, other)],
        calls=calls,
        searches=[Searched(1, f"query {text}", (hit,))],
        turns=2,
        answer=Answer(f"gold {text}"),
        stop_reason="answer",
        reward=1.0,
        scores={"em": 1.0, "f1": math.nan},
    )


def team_sample(text="x"):
    """The sample of the team's episode, with rewards and advantages by hand."""
    episode = team_episode(text)
    terms = {"outcome": [1.0, 0.0, 1.0], "format": [0.0, -0.5, 0.25]}
    advantages = {
        "q#1@4/0": np.array([0.5, 1.5], np.float32),
        "q#1@4/1": np.array([-2.0], np.float32),
        "q#1@4/2": np.array([3.0], np.float32),
    }
    calls = call_rows(episode, terms, advantages, ["big"])
    question = Question("q", f"Who is {text}?", (f"gold {text}",), metadata={"hops": 3})
    viewed = Viewed(episode, question, "3", "bridge", 4, calls)
    sample = sample_of(viewed, lambda key, ids: f"{key}:{'-'.join(map(str, ids))}")
    return resolve_sample_events_data(resolve_sample_attachments(sample, "full"))


def test_looks_at_pages_are_tool_calls_in_their_turns():
    episode = replace(team_episode(), opens=[
        Opened(2, "Page x", "Page x", 7, 1, 3), Opened(3, "", "Page x", 7, 2, 3), Opened(4, "Nowhere"),
    ])  # fmt: skip
    sample = sample_of(Viewed(episode, None, None, None, None, ()), lambda key, ids: "")
    tools = [(event.function, event.arguments, event.result) for event in sample.events if event.event == "tool"]
    assert tools == [
        ("search", {"query": "query x"}, "[1] title x (score 2)\npage x"),
        ("open", {"page": "Page x"}, "Page x, part 1 of 3"),
        ("more", {}, "Page x, part 2 of 3"),
        ("open", {"page": "Nowhere"}, "(no page was shown)"),
    ]
    assert sample.scores["opens"].value == 3
    assert [message.tool_calls[0].id for message in sample.messages if getattr(message, "tool_calls", None)] == [
        "search-0", "open-0", "open-1", "open-2",
    ]  # fmt: skip


def test_calls_of_a_team_by_hand():
    sample = team_sample()
    assert (sample.id, sample.epoch) == ("q@4", 2)
    assert (sample.metadata["hops"], sample.metadata["type"], sample.metadata["step"]) == ("3", "bridge", 4)
    assert sample.metadata["not_finite"] == {"f1": "nan"}
    assert {name: score.value for name, score in sample.scores.items()} == {
        "em": 1.0,
        "reward": 1.0,
        "searches": 1,
        "turns": 2,
        "invalid": 0,
        "tokens": 4,
    }
    rows = [
        (row["role"], row["model"], row["turn"], row["legal"], row["tokens"], row["reward"], row.get("advantage"))
        for row in sample.metadata["calls"]
    ]
    assert rows == [  # the advantage is the mean over the call's tokens; the key "small" is not trained
        ("plan", "big", 1, True, 2, 1.0, 1.0),
        ("search", "small", 1, False, 1, -0.5, None),
        ("plan", "big", 2, True, 1, 1.25, 3.0),
    ]
    assert sample.metadata["calls"][2]["reward_by_term"] == {"outcome": 1.0, "format": 0.25}
    order = [event.event for event in sample.events]
    turn_1 = ["span_begin", "model", "info", "model", "info", "tool", "span_end"]
    assert order == [*turn_1, "span_begin", "model", "info", "span_end"]
    models = [event for event in sample.events if event.event == "model"]
    assert [(m.role, m.output.completion) for m in models] == [
        ("plan", "plan x"),
        ("search", "search x"),
        ("plan", "answer x"),
    ]
    seen = [[(m.role, m.text) for m in event.input] for event in models]
    assert seen == [
        [("user", "big:1-2")],
        [("user", "small:7")],
        [("user", "big:1-2"), ("assistant", "big:3-4"), ("user", "big:5")],
    ]
    spoken = [(message.role, message.text) for message in sample.messages]
    assert spoken == [
        ("user", "Who is x?"),
        ("assistant", "plan x"),
        ("assistant", "search x"),
        ("tool", "[1] title x (score 2)\npage x"),
        ("assistant", "answer x"),
    ]
    assert sample.messages[2].tool_calls[0].arguments == {"query": "query x"}
    assert not sample.messages[1].tool_calls


@pytest.mark.parametrize("text", [*HOSTILE, "\x00\x1b[31m", "attachment://0123456789abcdef"])
def test_hostile_text_stays_text(text):
    written = json.loads(team_sample(text).model_dump_json())
    assert written["input"] == f"Who is {text}?"
    assert written["scores"]["em"]["answer"] == f"gold {text}"
    assert written["messages"][3]["content"] == f"[1] title {text} (score 2)\npage {text}"


def test_a_run_of_hostile_episodes_is_read_back(tmp_path):
    texts = [*HOSTILE, "\ud800 half", "\x00\x1b[31m", "attachment://0123456789abcdef0123456789abcdef"]
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        for text in texts:
            hit = Hit(Passage("p", text, text * 40), math.nan)
            episode = Episode(f"{text}#0", text, text, text, searches=[Searched(1, text, (hit,))], turns=2)
            episode.answer, episode.scores = Answer(text), {"em": math.nan, "f1": math.inf, "own": 2.0}
            writer.write(episode)
    log, _ = export(tmp_path)
    assert len(log.samples) == len(texts)
    answers = {sample.scores["own"].answer for sample in log.samples}
    assert {text for text in texts if "\ud800" not in text} < answers  # UTF-8 has no half characters
    for sample in log.samples:
        queries = [tool.arguments["query"] for tool in tools(sample)]
        assert queries == [sample.scores["own"].answer]
        assert sample.scores.keys() == {"own", "reward", "searches", "turns", "invalid", "tokens"}
        assert sample.metadata["not_finite"] == {"em": "nan", "f1": "inf"}


# -- runs of trainings ---------------------------------------------------------------------------------------------


def test_code_that_a_recipe_names_is_not_run_unasked(old):
    """A training of an earlier version, with an agent, a reward and here a term of its own: nothing is imported."""
    recipe = Path("run-policy/recipe.yaml")
    recipe.write_text(recipe.read_text().replace("credit:\n", "credit:\n  artefact_parts:searched: 1\n"))
    log, notes = export(Path("run-policy"), "./model")
    assert "artefact_parts" not in sys.modules
    assert any("'artefact_parts:searched' names code" in note and "--run-code" in note for note in notes)
    episodes = {row["id"]: row for row in lines(Path("run-policy/episodes.jsonl"))}
    advantages = {row["call"]: row["advantage"] for row in lines(Path("run-policy/episodes.advantages.jsonl"))}
    assert {sample.metadata["episode"] for sample in log.samples} == episodes.keys()
    shown = {}
    for sample in log.samples:
        assert sample.metadata["step"] == int(sample.metadata["episode"].rpartition("@")[2])
        for row in sample.metadata["calls"]:
            assert "reward" not in row
            if "advantage" in row:
                shown[f"{sample.metadata['episode']}/{row['call']}"] = row["advantage"]
    assert shown == pytest.approx({call: float(np.mean(value)) for call, value in advantages.items()})
    first, episode = log.samples[0].events[1], episodes[log.samples[0].metadata["episode"]]
    offset, count = episode["contexts"][0]["spans"][0]["ids"]
    ids = np.frombuffer(Path("run-policy/episodes.tokens.bin").read_bytes(), "<i4", count, offset)
    assert [message.text for message in first.input] == [load_tokenizer("./model").decode(ids.tolist())]


def test_rewards_of_a_training_are_those_of_show(old):
    run = open_run(Path("run-team"), run_code=True)
    seen = {viewed.episode.id: viewed.calls for viewed in run}
    assert len(seen) > 4
    for id in [*seen][::3]:
        _, calls = explain_run(Path("run-team"), id)
        assert seen[id] == calls
    assert any(call.reward for calls in seen.values() for call in calls)


def test_a_run_with_an_agent_of_its_own_has_its_rewards_without_it(old):
    """The roles are in the card, and a term that scores nothing needs no reward."""
    _, calls = explain_run(Path("run-team"))
    run = open_run(Path("run-team"))
    assert calls in [viewed.calls for viewed in run]
    assert "artefact_parts" not in sys.modules


def test_an_explanation_imports_what_the_users_own_recipe_names_too(old):
    """And nothing else: the run may name other code than the recipe that is given with it."""
    file = Path("run-policy/recipe.yaml")
    file.write_text(file.read_text().replace("credit:\n", "credit:\n  waypoint: 1\n"))  # so that the reward is loaded
    recipe = read_recipe(file)
    _, calls = explain_run(Path("run-policy"), recipe=replace(recipe, steps=7))
    assert calls[0].parts.keys() == {"outcome", "waypoint"}
    assert "artefact_parts" in sys.modules
    for other in (None, replace(recipe, env_options={}), replace(recipe, credit=load_recipe("tiny-grpo").credit)):
        with pytest.raises(UsageError, match="'artefact_parts:searched' names code"):
            explain_run(Path("run-policy"), recipe=other)


EVIL = "theirs.evil:search"
TOOL = {"kind": "tool", "function": EVIL}
PLACES = {  # where a recipe may name code: what is changed, and whether it is needed to look at the run
    "reward": ({"env_options": {"reward": EVIL}}, True),
    "reward beside that of validation": (
        {"env_options": {"reward": EVIL}, "validation": {"env_options": {"reward": "em"}}},
        True,
    ),
    "reward of validation": ({"validation": {"env_options": {"reward": EVIL}}}, False),
    "retriever": ({"env_options": {"retriever": TOOL}}, False),
    "retriever beside that of validation": (
        {"env_options": {"retriever": TOOL}, "validation": {"env_options": {"retriever": "bm25"}}},
        False,
    ),
    "further retriever": ({"env_options": {"retrievers": {"web": TOOL}}}, False),
    "further retriever, nested": (
        {"env_options": {"retrievers": {"web": {"corpus": "demo", "retriever": {"kind": "cache", "of": TOOL}}}}},
        False,
    ),
    "engine": ({"env_options": {"retrievers": {"web": {"kind": "simulated", "model": EVIL}}}}, False),
    "term": ({"credit": {"outcome": 1, "theirs.evil:Paid": 1}}, True),
    "judge": ({"judge": EVIL, "credit": {"outcome": 1, "waypoint": 1, "rubric": 1}}, False),
    # not known when this was mended
    "agent by its class": ({"agent": "theirs.evil:Agent"}, None),  # it has no roles, so no rewards of calls
    "environment by its card": ({"env": "theirs/env.yaml"}, True),
    "retriever by its card": ({"env_options": {"retriever": "theirs/tool.yaml"}}, False),
    "hybrid of cards": ({"env_options": {"retriever": {"kind": "hybrid", "of": ["bm25", "theirs/tool.yaml"]}}}, False),
    "index that names a tool": ({"env_options": {"corpus": "theirs/index", "browse": True}}, False),
}


@pytest.mark.slow_cases
@pytest.mark.parametrize("place", PLACES)
def test_code_is_imported_from_no_place_of_a_recipe(place, old, monkeypatch):
    change, needed = PLACES[place]
    theirs = old / "theirs"
    (theirs / "index").mkdir(parents=True)
    code = """open('canary', 'w').close()
from searchgym.train import Term
from dataclasses import dataclass
def search(*given):
    return 0.5
@dataclass(frozen=True, slots=True, kw_only=True)
class Paid(Term):
    def of_episode(self, episode, context):
        return [0.5] * len(episode.calls)
"""
    (theirs / "evil.py").write_text(code)
    (theirs / "tool.yaml").write_text(yaml.safe_dump(TOOL))
    card = yaml.safe_load((cards_folder("envs") / "demo.yaml").read_text()) | {"reward": EVIL}
    (theirs / "env.yaml").write_text(yaml.safe_dump(card))
    data = yaml.safe_load(Path("run-policy/recipe.yaml").read_text()) | {"env_options": {"top_k": 1}}
    data["credit"] = {"outcome": 1, "waypoint": 1}  # which looks at the question, so that the environment is loaded
    data["validation"]["env_options"] = {}
    for name, value in change.items():
        data[name] = data[name] | value if isinstance(value, dict) else value
    Path("run-policy/recipe.yaml").write_text(yaml.safe_dump(data))
    before = find_env("Demo")
    run = open_run(Path("run-policy"))
    calls = [call for viewed in run for call in viewed.calls]
    refused = [
        note for note in run.notes if re.search("'theirs.evil:(search|Paid)' names code", note) and "--run-code" in note
    ]
    assert not Path("canary").exists()
    assert bool(refused) == bool(needed)
    assert any(call.parts for call in calls) == (needed is False)
    assert find_env("Demo") is before  # no card of theirs is registered in the place of one that ships
    if needed is None:
        return
    saved = SavedRun.read(Path("run-policy"))
    episode = next(iter(saved.episodes.values()))
    if not needed:
        assert saved.terms(episode).keys() == {"outcome", "waypoint"}
        return
    with pytest.raises(UsageError, match=r"'theirs\.evil:(search|Paid)' names code.*--run-code"):
        saved.terms(episode)
    assert not Path("canary").exists()
    sys.modules.pop("theirs.evil", None)
    assert any(call.parts for viewed in open_run(Path("run-policy"), run_code=True) for call in viewed.calls)
    assert Path("canary").exists()


# -- what can be wrong ---------------------------------------------------------------------------------------------


def test_a_run_that_is_going_on_is_shown_up_to_its_last_whole_line(run):
    whole = (run / "episodes.jsonl").read_bytes()
    (run / "episodes.jsonl").write_bytes(whole[:-40])
    log, notes = export(run)
    assert len(log.samples) == 11
    assert notes[-1].startswith("the last line of episodes.jsonl is incomplete and was skipped (line 12)")


def test_a_bad_line_is_an_error_and_leaves_no_log(run):
    rows = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (run / "episodes.jsonl").write_bytes(b"".join([*rows[:4], b'{"id": 3}\n', *rows[5:]]))
    with pytest.raises(DataError, match=r"episodes.jsonl:5: not an episode"):
        export(run)
    assert sorted(file.name for file in run.iterdir() if "eval" in file.name or file.name.startswith(".view")) == []


@pytest.mark.parametrize(
    "record",
    [{"env": 7}, {"env": "searchgym/World-v0", "models": [1], "questions": "many", "samples": "x", "seconds": "y"}],
)
def test_a_strange_record_leaves_out_texts_alone(run, record):
    (run / "run.json").write_text(json.dumps(record | {"questions_sha256": 5}))
    forget_texts(run)
    log, notes = export(run)
    assert len(log.samples) == 12
    assert notes[0].startswith("texts of the questions are left out: ")


def test_strange_advantages_are_an_error_with_the_file(run):
    (run / "episodes.advantages.jsonl").write_text('{"call": "x", "advantage": "much"}\n')
    with pytest.raises(DataError, match=r"episodes\.advantages\.jsonl: not advantages of calls"):
        export(run)


def test_two_episodes_of_one_name_are_refused(run):
    rows = (run / "episodes.jsonl").read_bytes()
    (run / "episodes.jsonl").write_bytes(rows + rows.splitlines(keepends=True)[0])
    with pytest.raises(DataError, match="occurs twice"):
        export(run)


def test_half_a_line_alone_is_no_run(tmp_path):
    (tmp_path / "episodes.jsonl").write_text('{"id": "q#0", "ques')
    with pytest.raises(DataMissingError, match="no complete episode yet"):
        export(tmp_path)


def test_runs_are_found_in_and_below_a_folder(run, tmp_path):
    shutil.copytree(run, tmp_path / "suite" / "b")
    shutil.copytree(run, tmp_path / "suite" / "a")
    (tmp_path / "suite" / "empty").mkdir()
    (tmp_path / "suite" / "empty" / "episodes.jsonl").touch()
    found = find_runs([tmp_path / "suite", run / "episodes.jsonl", run])
    assert found == [tmp_path / "suite" / "a", tmp_path / "suite" / "b", run]
    for wrong, message in ((tmp_path / "suite" / "empty", "log.episodes_every"), (tmp_path / "nothing", "no such run")):
        with pytest.raises(DataMissingError, match=message):
            find_runs([wrong])


def test_a_log_is_written_again_only_if_the_run_is_another(run, cli):
    log = kept_log_of(run, cli)
    first = log.stat().st_ino
    assert kept_log_of(run, cli).stat().st_ino == first
    rows = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (run / "episodes.jsonl").write_bytes(b"".join(rows[:-1]))
    assert kept_log_of(run, cli).stat().st_ino != first
    assert count_of(log, fingerprint(run, None, None, False)) == 11
    log.write_bytes(log.read_bytes()[:-100])
    assert count_of(log, fingerprint(run, None, None, False)) is None
    kept_log_of(run, cli)
    assert count_of(log, fingerprint(run, None, None, False)) == 11


def kept_log_of(run, cli):
    """Shows a run; returns its log."""
    (row,) = json_of(cli("view", run, "--export-only", "--json"))["logs"]
    return Path(row["log"])


def lying(run, log):
    """Makes a log that says something else of a run than its episodes, with the fingerprint that the run has."""
    write_log(open_run(run), log, fingerprint(run, None, None, False))
    read = read_eval_log(str(log))
    for sample in read.samples:
        sample.input = "FORGED question"
    write_eval_log(read, str(log))
    assert count_of(log, fingerprint(run, None, None, False)) == 12  # it would be taken


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", [LOG, "episodes.eval", ".eval"])
def test_a_log_that_a_run_brings_is_not_shown(name, run, cli):
    lying(run, run / name)
    brought = (run / name).read_bytes()
    log = kept_log_of(run, cli)
    assert log.parent.parent == run.parent / "home"
    assert not [sample for sample in read_eval_log(str(log)).samples if "FORGED" in str(sample.input)]
    assert (run / name).read_bytes() == brought  # nor is it touched


def test_a_log_that_lies_where_logs_are_to_go_is_not_shown(run, cli, tmp_path):
    """A variant: ``--out .`` in a folder of somebody else's, whose log has the name and the fingerprint."""
    lying(run, tmp_path / f"{tmp_path.name}-run.{LOG}")
    (row,) = json_of(cli("view", run, "--export-only", "--json", "--out", tmp_path))["logs"]
    assert Path(row["log"]) == tmp_path / f"{tmp_path.name}-run.{LOG}"
    assert not [sample for sample in read_eval_log(row["log"]).samples if "FORGED" in str(sample.input)]


def test_another_run_with_the_same_sizes_and_times_is_another(run, cli):
    """A variant: an archive keeps times, so that its files can have those of a run that was shown before."""
    kept_log_of(run, cli)
    episodes = run / "episodes.jsonl"
    stat = episodes.stat()
    episodes.write_bytes(episodes.read_bytes().replace(b'"stop_reason": "answer"', b'"stop_reason": "unknow"'))
    os.utime(episodes, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (episodes.stat().st_size, episodes.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)
    assert {sample.metadata["stop_reason"] for sample in read_eval_log(str(kept_log_of(run, cli))).samples} == {
        "unknow"
    }


def test_runs_of_one_name_have_logs_of_their_own(run, tmp_path, monkeypatch):
    """A variant: a run of theirs that is called as one of yours."""
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    other = Path(shutil.copytree(run, tmp_path / "theirs" / run.name))
    assert kept_log(run) != kept_log(other)
    assert kept_log(run) == kept_log(tmp_path / "theirs" / ".." / run.name)


def forget_texts(run):
    """Makes an evaluation as earlier versions wrote it, without the texts of its questions."""
    rows = [row for _, row in iter_jsonl(run / "questions.jsonl")]
    kept = [{name: value for name, value in row.items() if name not in ("question", "golds")} for row in rows]
    (run / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))


def test_other_questions_of_the_same_ids_are_not_shown(run, tmp_path):
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"questions_sha256": "0" * 64}))
    log, notes = export(run)
    assert notes == []  # the run recorded the texts of its own questions
    assert all(sample.input.endswith("?") and sample.target for sample in log.samples)
    forget_texts(run)
    log, notes = export(run)
    assert any("are not those that were asked; --questions FILE" in note for note in notes)
    assert all("--questions FILE" in sample.input for sample in log.samples)
    again, notes = export(run, questions=DEMO / "questions.json")
    assert notes == []
    assert all(sample.input.endswith("?") for sample in again.samples)


def test_logs_go_where_they_are_asked_to(run, cli, tmp_path):
    (row,) = json_of(cli("view", run, "--export-only", "--json", "--out", tmp_path / "logs"))["logs"]
    assert Path(row["log"]).parent == tmp_path / "logs"
    assert not (run / LOG).exists()
    twins = [tmp_path / "a" / "same" / "run", tmp_path / "b" / "same" / "run"]
    for twin in twins:
        shutil.copytree(run, twin)
    status, _, err = cli("view", *twins, "--export-only", "--out", tmp_path / "logs")
    assert (status, "two runs have the same name" in err) == (2, True)


# -- the command and the viewer ------------------------------------------------------------------------------------


def test_without_the_extra_the_command_says_how_to_install_it(run, cli, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("inspect_ai", "searchgym.eval.viewing"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    status, _, err = cli("view", run, "--export-only")
    assert (status, err.startswith("loading ...\nerror: the viewer needs inspect-ai (")) == (2, True)
    assert err.strip().endswith(install_command("view"))


def test_a_wrong_folder_is_an_error_before_anything_is_loaded(cli, tmp_path):
    status, _, err = cli("view", tmp_path / "nothing")
    assert (status, err.startswith(f"loading ...\nerror: {tmp_path / 'nothing'}: no such run")) == (2, True)


def test_a_port_in_use_is_refused(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port} .*give another --port"):
            server.viewer([("run", run / LOG)], port).__enter__()


def test_a_viewer_that_does_not_start_says_why(run, monkeypatch):
    monkeypatch.setattr(server, "COMMAND", ("-c", "import sys; sys.exit('no licence')"))
    with pytest.raises(SearchGymError, match="inspect view did not start: no licence"):
        server.viewer([("run", run / LOG)], 0).__enter__()


def test_a_request_to_end_the_command_ends_the_viewer(run, cli, monkeypatch):
    ended = []

    @contextlib.contextmanager
    def viewer(logs, port):
        def wait():
            assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
            signal.raise_signal(signal.SIGTERM)

        yield SimpleNamespace(url="http://127.0.0.1:1/", port=1, wait=wait)
        ended.append(logs)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(server, "viewer", viewer)
    status, _, err = cli("view", run, "--no-browser")
    assert (status, len(ended)) == (0, 1), err
    assert err.startswith("loading ...\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_without_a_display_the_address_is_said(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(command.webbrowser, "open", lambda url: pytest.fail("a browser was opened"))
    assert command._open("http://127.0.0.1:1/") is False
