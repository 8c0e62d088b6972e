"""The command line, as a person types it: in this process, and once in its own for Ctrl-C."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_models import tiny_qwen2, tiny_tokenizer
from support import command_line, json_of

from searchgym.corpora.folders import bundled_file
from searchgym.rollout.storage import read_episodes

QUESTIONS, CORPUS = bundled_file("demo/questions.json"), bundled_file("demo/corpus.jsonl")


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Runs ``searchgym ARGS``; returns (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    return command_line(monkeypatch, capsys)


@pytest.mark.slow
def test_every_command_has_help(cli):
    for command in ([], ["list"], ["play"], ["eval"], ["demo"], ["retrieval"], ["corpus"], ["corpus", "get"],
                    ["corpus", "convert"], ["corpus", "chunk"], ["corpus", "inspect"], ["index"], ["index", "build"],
                    ["index", "inspect"], ["index", "search"]):  # fmt: skip
        status, out, _ = cli(*command, "--help")
        assert status == 0
        assert "Usage: searchgym" in out


@pytest.mark.slow
def test_list(cli):
    assert len(json_of(cli("list", "--json"))["envs"]) >= 8
    assert {row["name"] for row in json_of(cli("list", "agents", "--json"))["agents"]} >= {"oracle", "random"}
    assert "wiki-18" in cli("list", "corpora")[1]
    assert json_of(cli("list", "environments", "--json")) == json_of(cli("list", "--json"))
    recipes = {row["name"]: row for row in json_of(cli("list", "recipes", "--json"))["recipes"]}
    assert recipes["tiny-grpo"]["steps"] == 20 and "GRPO" in recipes["tiny-grpo"]["summary"]
    assert {row["name"] for row in json_of(cli("list", "models", "--json"))["models"]} == {
        "qwen-searcher",
        "smollm2-grpo",
        "smollm2-searcher",
        "tiny",
        "tiny-teams",
        "qwen2.5-coder-0.5b",
        "qwen2.5-coder-1.5b",
        "smollm2",
    }
    status, _, err = cli("list", "env")
    assert (status, "did you mean 'envs'" in err) == (2, True)


# -- eval ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_eval_prints_scores_and_writes_a_new_folder_each_time(cli):
    scores = json_of(cli("eval", "Demo", "--agent", "oracle", "--json"))
    assert (scores["n"], scores["em"], scores["f1"], scores["sp_f1"]) == (12, 1.0, 1.0, 1.0)
    assert (scores["env"], scores["agent"]) == ("searchgym/Demo-v0", "oracle")
    assert (Path(scores["out"]) / "scores.json").exists()
    status, out, err = cli("eval", "searchgym/Demo-v0", "--agent", "closed-book")
    assert status == 0
    assert "n/a" not in out
    assert (
        "not measured: sp_*, joint_* (the agent names no supporting evidence); evidence_by_tokens (no model was asked, "
        "or the questions name no gold pages); response_tokens, read_tokens, legal (no model was asked)" in out
    )
    assert "title_recall by turn 1 to 5" in out
    assert "95 % interval" in out
    (bridge,) = [line for line in out.splitlines() if "type bridge" in line]
    assert bridge.split()[2:4] == ["9", "0.0000"]
    assert "run folder: runs/eval/Demo-v0_closed-book_" in err
    assert len(list(Path("runs/eval").iterdir())) == 2


def test_eval_takes_files_limits_and_rules(cli):
    options = ["--questions", QUESTIONS, "--corpus", CORPUS, "--limit", 5, "--top-k", 1, "--max-turns", 2]
    scores = json_of(cli("eval", "HotpotQA", "--agent", "oracle", *options, "--json"))
    assert (scores["n"], scores["em"], scores["turns"], len(scores["title_recall"])) == (5, 1.0, 2.0, 2)
    own = json_of(cli("eval", "Demo", "--agent", "evidence-oracle", "--distractors", "--json"))
    assert own["em"] == 1.0


@pytest.mark.slow
def test_eval_refuses_resumes_and_overwrites(cli):
    command = ["eval", "Demo", "--agent", "oracle", "--out", "run"]
    assert cli(*command)[0] == 0
    status, out, err = cli(*command)
    assert (status, out) == (2, "")
    assert "holds a run" in err
    assert cli(*command, "--resume")[0] == 0
    assert cli(*command, "--overwrite")[0] == 0
    status, _, err = cli("eval", "Demo", "--agent", "oracle", "--resume")
    assert (status, "need --out" in err) == (2, True)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["Hotpot", "--agent", "oracle"], 2, "did you mean 'HotpotQA'"),
        (["Demo", "--agent", "orakle"], 2, "did you mean 'oracle'"),
        (["Demo", "--agent", "oracle", "--model", "x"], 2, "no roles that ask a model"),
        (["Demo", "--agent", "oracle", "--questions", "none.json"], 2, "none.json"),
        (["Demo", "--agent", "oracle", "--corpus", "none.jsonl"], 2, "none.jsonl"),
        (["Demo", "--agent", "oracle", "--top-k", "0"], 2, "top_k: expected above 0, got 0"),
        (["Demo", "--agent", "oracle", "--reward", "best"], 2, "unknown reward"),
        (["Demo", "--agent", "oracle", "--aliases", "x.json"], 2, "is for 2WikiMultihopQA"),
    ],
)
def test_eval_says_what_is_wrong_in_one_line(cli, args, status, message):
    got, out, err = cli("eval", *args)
    assert (got, out) == (status, "")
    assert message in err
    assert "Traceback" not in err
    assert not Path("runs").exists()


SLOW_AGENT = """
import os, signal
from searchgym import Answer, Search

class Interrupts:
    count = 0
    async def run(self, question, io):
        Interrupts.count += 1
        await io.step(Search((question.text,)))
        if Interrupts.count == 7 and os.environ.get("INTERRUPT"):
            os.kill(os.getpid(), signal.SIGINT)
        await io.step(Search((question.text,)))
        await io.step(Answer("yes"))
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_done_and_resume_goes_on(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW_AGENT)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    env = os.environ | {"PYTHONPATH": path, "SEARCHGYM_HOME": str(tmp_path / "home"), "INTERRUPT": "1"}
    # A process that was started in the background by a shell ignores SIGINT: this one must not.
    start = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from searchgym.cli import main; main()"
    command = [sys.executable, "-c", start, "eval", "Demo", "--agent", "slow:Interrupts", "--concurrency", "1"]
    cut = subprocess.run([*command, "--out", "run"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert cut.returncode == 130, cut.stderr
    assert "--out run --resume" in cut.stderr
    assert len(list(read_episodes(tmp_path / "run" / "episodes.jsonl"))) == 6
    assert not (tmp_path / "run" / "scores.json").exists()
    del env["INTERRUPT"]
    whole = subprocess.run(
        [*command, "--out", "whole", "--json"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    rest = subprocess.run(
        [*command, "--out", "run", "--resume", "--json"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert rest.returncode == 0, rest.stderr
    scores, wanted = json.loads(rest.stdout), json.loads(whole.stdout)
    assert (scores.pop("out"), wanted.pop("out")) == ("run", "whole")
    assert scores == wanted
    assert scores["n"] == 12


@pytest.mark.slow
def test_eval_of_a_model_by_path(cli, tmp_path):
    tiny_qwen2(max_position_embeddings=4096).save_pretrained(tmp_path / "tiny")
    tiny_tokenizer().save_pretrained(tmp_path / "tiny")
    cli("--version")  # takes what saving printed
    command = ["eval", "Demo", "--agent", "search-r1", "--limit", 2, "--max-turns", 2, "--json"]
    scores = json_of(cli(*command, "--model", tmp_path / "tiny"))
    assert (scores["n"], scores["turns"]) == (2, 2.0)
    assert scores["response_tokens"] > 0
    (episode, _) = read_episodes(Path(scores["out"]) / "episodes.jsonl")
    assert sum(call.end - call.start for call in episode.calls) > 0
    run = json.loads((Path(scores["out"]) / "run.json").read_text())
    assert run["models"]["searcher"][0] == "tiny"
    status, _, err = cli(*command)
    assert (status, "no model for role searcher" in err) == (2, True)
    status, _, err = cli(*command, "--model", tmp_path / "none")
    assert (status, "no such folder" in err) == (2, True)


@pytest.mark.slow
def test_two_processes_cannot_write_one_folder(cli, tmp_path):
    import fcntl

    command = ["eval", "Demo", "--agent", "closed-book", "--out", "run"]
    assert cli(*command)[0] == 0
    with (tmp_path / "run" / ".lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for flag in ("--resume", "--overwrite"):
            status, _, err = cli(*command, flag)
            assert (status, "is in use by another process" in err) == (2, True)
    assert cli(*command, "--resume")[0] == 0


@pytest.mark.slow
def test_own_agents_rewards_and_cards_are_found_where_one_works(cli, tmp_path):
    (tmp_path / "ownmodule.py").write_text(
        "from searchgym import Answer\n\ndef one(state):\n    return 1.0\n\n"
        "class Says:\n    async def run(self, question, io):\n        await io.step(Answer('yes'))\n\n"
        "class Breaks:\n    async def run(self, question, io):\n        await io.step('<search>x</search>')\n"
    )
    (tmp_path / "own.yaml").write_text(
        "id: Mine/Own-v0\nsummary: mine\ncorpus: demo\nreward: ownmodule:one\n"
        "questions: {kind: dataset, dataset: mine, "
        "split: all, size: 12, file: x.json, get: here, bundled: demo/questions.json}\n"
    )
    scores = json_of(cli("eval", "own.yaml", "--agent", "ownmodule:Says", "--json"))
    assert (scores["env"], scores["n"], scores["reward"]) == ("Mine/Own-v0", 12, 1.0)
    status, _, err = cli("eval", "Demo", "--agent", "ownmodule:Breaks")
    assert (status, "convert text with protocol.parse" in err) == (2, True)


@pytest.mark.slow
def test_version_module_and_no_arguments(cli):
    assert cli("--version")[1].startswith("searchgym 0.")
    status, out, _ = cli()
    assert (status, "Usage: searchgym" in out) == (2, True)
    assert cli("-h")[1] == out


@pytest.mark.slow
def test_a_documents_folder_is_a_corpus(cli, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# Herring\n\nSmoked over beech wood.\n")
    assert json_of(cli("index", "search", "notes", "beech", "--json"))["hits"][0]["title"] == "Herring"
    (index,) = (tmp_path / "home" / "indexes").iterdir()
    (index / "passages.jsonl").unlink()  # a damaged cache is built anew
    assert json_of(cli("index", "search", "notes", "beech", "--json"))["hits"][0]["title"] == "Herring"


def test_the_list_is_plain_text_of_80_columns(cli):
    out = cli("list")[1]
    assert "searchgym/2WikiMultihopQA-v0" in out
    assert out.isascii() and max(map(len, out.splitlines())) <= 80


# -- play ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_play(cli):
    typed = "s mapped the Sarn Islands\nwhat?\n<search>Ilse Marrow</search>\na Dunmere\n"
    status, out, err = cli("play", "Demo", "--question", "demo-01", "--json", stdin=typed)
    assert status == 0
    outcome = json.loads(out)
    assert (outcome["reward"], outcome["turn"], outcome["searches"], outcome["gold"]) == (1.0, 3, 2, ["Dunmere"])
    assert "Doc 1(Title:" in err
    assert cli("play", "Demo", stdin="q\n")[0] == 130
    assert cli("play", "Demo", stdin="")[0] == 130


# -- corpus, index, retrieval --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_from_documents_to_hits(cli, tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("# Herring\n\nSmoked over beech wood in Lod.\n")
    (notes / "b.txt").write_text("The Mire river. " * 120)
    assert json_of(cli("corpus", "convert", "notes", "--out", "all.jsonl", "--json"))["passages"] == 2
    assert json_of(cli("corpus", "chunk", "notes", "--out", "chunks.jsonl", "--words", 100, "--json"))["passages"] == 5
    assert json_of(cli("corpus", "inspect", "chunks.jsonl", "--json"))["passages"] == 5
    built = json_of(cli("index", "build", "chunks.jsonl", "--out", "idx", "--json"))
    assert (built["passages"], len(built["corpus_sha256"])) == (5, 64)
    hits = json_of(cli("index", "search", "idx", "beech wood", "--top-k", 2, "--json"))["hits"]
    assert [hit["title"] for hit in hits] == ["Herring"]
    assert "Herring" in cli("index", "search", "idx", "beech wood")[1]
    assert json_of(cli("index", "search", "idx", "zzz", "--json"))["hits"] == []
    assert json_of(cli("index", "inspect", "idx", "--verify", "--json"))["passages"] == 5
    for again in (
        ["corpus", "convert", "notes", "--out", "all.jsonl"],
        ["index", "build", "chunks.jsonl", "--out", "idx"],
    ):
        status, _, err = cli(*again)
        assert (status, "overwrite" in err) == (2, True)
        assert cli(*again, "--overwrite")[0] == 0


@pytest.mark.slow
def test_bad_lines_are_refused_or_reported(cli, tmp_path):
    lines = CORPUS.read_text().splitlines()
    (tmp_path / "bad.jsonl").write_text("\n".join([lines[0], "{broken", lines[1], '{"id": 3}', lines[2]]) + "\n")
    status, _, err = cli("corpus", "convert", "bad.jsonl", "--out", "good.jsonl")
    assert (status, "bad.jsonl:2" in err) == (1, True)
    assert not Path("good.jsonl").exists()
    assert cli("index", "build", "bad.jsonl", "--out", "idx", "--skip-bad", 1)[0] == 1
    assert not Path("idx").exists()
    status, out, err = cli("corpus", "convert", "bad.jsonl", "--out", "good.jsonl", "--skip-bad", 2, "--json")
    assert json.loads(out) == {"passages": 3, "left_out": 2, "out": "good.jsonl"}
    assert "bad.jsonl:2" in err
    assert "bad.jsonl:4" in err


@pytest.mark.slow
def test_bad_questions_are_refused_or_reported(cli, tmp_path):
    rows = json.loads(QUESTIONS.read_text())
    del rows[3]["answer"]
    (tmp_path / "bad.json").write_text(json.dumps(rows))
    command = ["eval", "Demo", "--agent", "oracle", "--questions", "bad.json"]
    status, _, err = cli(*command)
    assert (status, "bad.json: item 4" in err) == (1, True)
    status, out, err = cli(*command, "--skip-bad", 1, "--json")
    assert (status, json.loads(out)["n"], "left out: bad.json: item 4" in err) == (0, 11, True)
    found = json_of(cli("retrieval", "--questions", "bad.json", "--corpus", CORPUS, "--skip-bad", 1, "--json"))
    assert (found["n"], found["without_hits"]) == (11, 0)


@pytest.mark.slow
def test_corpus_get_downloads_by_card_and_checks(cli, tmp_path):
    from searchgym.corpora.files import sha256_file

    card = 'name: mine\nsummary: s\nsource: here\nlicence: none\nfile: mine.jsonl\nurl: {}\nsha256: "{}"\n'
    (tmp_path / "mine.yaml").write_text(card.format(CORPUS.as_uri(), sha256_file(CORPUS)))
    got = json_of(cli("corpus", "get", "mine.yaml", "--json"))
    assert (Path(got["path"]).read_bytes(), got["checked"]) == (CORPUS.read_bytes(), True)
    assert cli("corpus", "get", "mine.yaml")[0] == 2
    (tmp_path / "mine.yaml").write_text(card.format(CORPUS.as_uri(), "0" * 64))
    status, _, err = cli("corpus", "get", "mine.yaml", "--overwrite")
    assert (status, "0" * 64 in err) == (1, True)
    assert Path(got["path"]).read_bytes() == CORPUS.read_bytes()
    assert cli("corpus", "get", "demo")[0] == 2


@pytest.mark.slow
def test_retrieval_of_questions_and_of_a_run(cli):
    files = ["--out", "run.trec", "--qrels-out", "qrels.trec"]
    searched = json_of(cli("retrieval", "--questions", QUESTIONS, "--corpus", CORPUS, "--top-k", 20, *files, "--json"))
    scored = json_of(cli("retrieval", "--run", "run.trec", "--qrels", "qrels.trec", "--top-k", 20, "--json"))
    assert searched == scored
    assert 0.5 < searched["recall@3"] <= searched["recall@20"] <= 1.0
    again = json_of(
        cli("retrieval", "--questions", QUESTIONS, "--corpus", CORPUS, "--qrels", "qrels.trec", "--top-k", 20, "--json")
    )
    assert again == searched
    for wrong in ([], ["--run", "run.trec"], ["--questions", QUESTIONS]):
        assert cli("retrieval", *wrong)[0] == 2
    Path("other.trec").write_text("another 0 1 1\n")
    status, out, err = cli("retrieval", "--questions", QUESTIONS, "--corpus", CORPUS, "--qrels", "other.trec")
    assert (status, out, "1 of 1 judged queries are not in" in err) == (1, "", True)


# -- real questions ------------------------------------------------------------------------------------------------


@pytest.fixture
def hotpot(real_data):
    folder = real_data / "hotpotqa"
    return ["--questions", folder / "questions.json", "--corpus", folder / "corpus.json"]


@pytest.mark.slow
def test_agents_on_real_questions(cli, hotpot):
    em = {}
    for agent in ("oracle", "evidence-oracle", "single-search", "closed-book"):
        scores = json_of(cli("eval", "HotpotQA", "--agent", agent, *hotpot, "--json"))
        assert scores["n"] == 100
        em[agent] = scores["em"]
    assert em["oracle"] == 1.0
    assert em["evidence-oracle"] >= 0.95
    assert em["single-search"] <= 0.10
    assert em["closed-book"] <= 0.10


@pytest.mark.slow
def test_question_only_retrieval_on_real_questions(cli, hotpot):
    scores = json_of(cli("retrieval", *hotpot, "--json"))
    assert scores["recall@5"] == pytest.approx(0.755, abs=0.01)
    assert scores["recall@20"] == pytest.approx(0.935, abs=0.01)


@pytest.mark.slow
def test_permuted_passages_are_noticed(real_data):
    """The evidence oracle is a check of the index: with passages permuted after indexing it must fall to about 0."""
    import asyncio

    from searchgym.agents.base import load_agent
    from searchgym.corpora.passages import read_passages
    from searchgym.corpora.questions import read_questions
    from searchgym.envs.registration import find_env
    from searchgym.envs.task import load_task
    from searchgym.records import Hit
    from searchgym.retrieval.index.index import build_in_memory
    from searchgym.rollout.engine import Engine

    passages = list(read_passages(real_data / "hotpotqa" / "corpus.json"))
    questions = read_questions(real_data / "hotpotqa" / "questions.json")
    index = build_in_memory(passages)
    place = {passage.id: n for n, passage in enumerate(passages)}

    class Permuted:
        def search(self, queries, k):
            return [
                [Hit(passages[place[h.passage.id] - 7], h.score) for h in hits] for hits in index.search(queries, k)
            ]

    em = {}
    for name, retriever in (("whole", index), ("permuted", Permuted())):
        task = load_task(find_env("HotpotQA"), questions=questions, retriever=retriever)
        episodes = []
        asyncio.run(Engine(task, load_agent("evidence-oracle")).run(task.questions, episodes.append))
        em[name] = sum(e.scores["em"] for e in episodes) / len(episodes)
    assert em["whole"] >= 0.95
    assert em["permuted"] <= 0.02
