"""Pipelines: what is read and refused, the estimate, the report, and whole ones with a small model, also killed."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import yaml
from linked_pages import wiki_pages
from safetensors.torch import save_file

from searchgym.cli.pipeline import timing
from searchgym.cli.pipeline.pipeline import Pipeline, load_pipeline
from searchgym.cli.pipeline.report import write_report
from searchgym.cli.pipeline.stages import ORDER, run_stage
from searchgym.cli.pipeline.timing import Speeds, expected, for_this_machine, measure
from searchgym.cli.pipeline.work import Work, opened
from searchgym.cli.training.train_pipeline import is_pipeline, train_pipeline
from searchgym.corpora.passages import read_passages, write_corpus
from searchgym.corpora.questions import read_questions, write_questions
from searchgym.errors import (
    CardError,
    DataError,
    DataMissingError,
    RunExistsError,
    SearchGymError,
    UnknownNameError,
    UsageError,
)
from searchgym.options import dump
from searchgym.options.cards import list_cards
from searchgym.questions.worlds import build_world
from searchgym.questions.worlds.schema import WorldSpec
from searchgym.records import Passage, Question, SupportingFact
from searchgym.rollout.loading import load_model
from searchgym.train.learner.lora import adapter_config, adapter_weights, add_adapter
from searchgym.train.recipe.options import LoraOptions

TINY = [
    "model=tiny", "questions.n=300", "demonstrations.masked=8", "demonstrations.reading=16",
    "demonstrations.searching=16",
    "demonstrations.values=[learner.frozen_layers=0, optimizer.autocast=null]", "selection.pool=10",
    "selection.attempts=2", "selection.low=0", "selection.high=1", "test=6",
    "reinforce.values=[steps=2, rollout.questions=2, rollout.attempts=2, rollout.resample=0, learner.frozen_layers=0,"
    " validation.every=2, validation.questions=4, optimizer.autocast=null]",  # some CPUs emulate bfloat16
]  # fmt: skip
"""Values with which a pipeline takes seconds; eight questions are the fewest that are trained on."""


@pytest.fixture
def documents(tmp_path):
    folder = tmp_path / "documents"
    folder.mkdir()
    for passage in build_world(WorldSpec("simple", size=60, seed=3, split="train")).passages:
        name = re.sub(r"\W", "_", passage.title)
        (folder / f"{name}.md").write_text(f"---\ntitle: {passage.title}\n---\n{passage.text}\n")
    return folder


@pytest.mark.parametrize("name", sorted(list_cards("pipelines")))
def test_shipped_pipelines_are_read_and_told_from_recipes(name, tmp_path):
    assert is_pipeline(name) and not is_pipeline("tiny-grpo")
    pipeline = load_pipeline(name, ["corpus=demo", "questions.n=7", "env_options={top_k: 2}"])
    assert pipeline.spec.n == 7 and pipeline.top_k == 2
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({"name": "x", "summary": "y", "reinforce": {}}))
    assert is_pipeline(str(file))


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "values, kind, said",
    [
        (["corpus=nowhere/at/all"], DataMissingError, "no such corpus file"),
        (["hold_out=[none.jsonl]"], DataMissingError, "check hold_out"),
        (["model=smollm3"], DataMissingError, "smollm3: no such folder"),
        (["reinforce.values=[stepz=3]"], UnknownNameError, "did you mean 'steps'"),
        (["reinforce.recipe=smol-read"], CardError, "has method supervised: policy"),
        (["demonstrations.values=[lora.ranks=3]"], UnknownNameError, "did you mean 'lora.rank'"),
        ([], UsageError, "smol-own needs your documents: searchgym train smol-own corpus=DIR"),
        (["corpus=x", "modle=y"], UnknownNameError, "did you mean 'model'"),
        (["corpus=x", "test=0"], CardError, "test: expected at least 1 or a string, got 0"),
        (["corpus=x", "demonstrations.reading=-1"], CardError, "demonstrations.reading: expected at least 0, got -1"),
        (["corpus=x", "questions.shares=[1]"], CardError, "shares are three numbers"),
        (["corpus=x", "questions.shapes=[chian]"], CardError, "did you mean 'chain'"),
        (["corpus=x", "selection.low=0.9"], CardError, "0 <= low <= high <= 1"),
        (["corpus"], CardError, "expected key=value"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_loaded(values, kind, said):
    named = not values or any(value.startswith("corpus") for value in values)
    with pytest.raises(kind, match=re.escape(said)):
        load_pipeline("smol-own", values if named else ["corpus=demo", *values])


def test_a_folder_without_documents_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(DataError, match="holds no documents"):
        load_pipeline("smol-own", [f"corpus={tmp_path}"])


@pytest.mark.slow
@pytest.mark.parametrize("pages", [["A page about nothing."], []])
def test_a_corpus_without_questions_is_told_before_the_model_is_timed(pages, tmp_path, capsys):
    write_corpus(tmp_path / "notes.jsonl", [Passage(str(n), f"Page {n}", text) for n, text in enumerate(pages)])
    with pytest.raises(SearchGymError):
        train_pipeline("smol-own", [f"corpus={tmp_path / 'notes.jsonl'}", "model=tiny"], tmp_path / "own", False, False)
    assert "timing" not in capsys.readouterr().err


def test_files_are_named_by_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "page.md").write_text("# A page")
    (tmp_path / "eval.jsonl").touch()
    pipeline = load_pipeline("smol-own", ["corpus=./notes", "hold_out=[eval.jsonl]", "model=tiny"])
    assert (pipeline.corpus, pipeline.hold_out) == (str(tmp_path / "notes"), [str(tmp_path / "eval.jsonl")])
    assert (pipeline.model, load_pipeline("smol-own", ["corpus=demo"]).corpus) == ("tiny", "demo")


@pytest.mark.slow
def test_an_adapter_is_timed_as_a_whole_model_is(tmp_path):
    saved = tmp_path / "adapter"
    model, _ = load_model("tiny")
    add_adapter(model, LoraOptions(rank=2), 0)
    saved.mkdir()
    save_file(adapter_weights(model.state_dict()), saved / "adapter_model.safetensors")
    written = {**adapter_config(LoraOptions(rank=2)), "base_model_name_or_path": "tiny"}
    (saved / "adapter_config.json").write_text(json.dumps(written))
    speeds = measure(str(saved), "float32")
    assert min(speeds.read, speeds.written, speeds.learnt) > 0 and speeds.read > speeds.written


@pytest.mark.slow_cases
@pytest.mark.parametrize(("emulated", "given", "dtype"), [
    (False, [], "bfloat16"),
    (True, [], "float32"),
    (True, ["optimizer.autocast=bfloat16"], "bfloat16"),
])  # fmt: skip
def test_a_cpu_that_emulates_bfloat16_trains_and_samples_in_float32(monkeypatch, emulated, given, dtype):
    monkeypatch.setattr(timing, "emulates_bfloat16", lambda: emulated)
    values = ["corpus=demo", f"reinforce.values=[{', '.join(['steps=3', *given])}]"]
    asked = load_pipeline("smol-own", values)
    pipeline = for_this_machine(asked)
    assert (pipeline.dtype, pipeline.recipe.steps) == (dtype, 3)
    assert (pipeline == asked) is not emulated
    assert pipeline.demonstrations.values == (["optimizer.autocast=null"] if emulated else [])


def test_the_estimate_by_hand():
    pipeline = load_pipeline(
        "smol-own",
        ["corpus=demo", "demonstrations.masked=3", "demonstrations.reading=10", "demonstrations.searching=4",
         "selection.pool=10",
         "selection.attempts=2", "test=5", "reinforce.values=[steps=3, rollout.questions=2, rollout.attempts=2,"
         " validation.every=3, validation.questions=6]"],
    )  # fmt: skip
    # an episode reads 900 tokens at 90 a second and writes 60 at 6: 20 s; learning it takes 900 / 45 = 20 s
    found = expected(pipeline, Speeds(read=90, written=6, learnt=45))
    assert found["filler"] == pytest.approx(3 * 20)
    assert found["reader"] == pytest.approx(10 * 350 / 45)
    assert found["searcher"] == pytest.approx(4 * 20)
    assert found["selected"] == pytest.approx(10 * 2 * 1.5 * 20)
    assert found["reinforced"] == pytest.approx(3 * (4 * 20 + 4 * 20) + 2 * 6 * 20)
    assert found["scores"] == pytest.approx(3 * 5 * 20)


def work(out, **values):
    pipeline = Pipeline(name="p", summary="s", corpus="c", **values)
    return Work(pipeline, out, lambda *_: None, None, lambda _: None)


def test_a_folder_is_taken_up_only_by_its_own_pipeline(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="nothing to resume"), opened(work(out), resume=True):
        pass
    with opened(work(out), resume=False):
        (out / "stages.json").write_text(json.dumps({"questions": {"train": 3, "seconds": 1.0}}))
    with pytest.raises(RunExistsError, match="--resume continues it"), opened(work(out), resume=False):
        pass
    with pytest.raises(UsageError, match="another seed, test"), opened(work(out, seed=1, test=3), resume=True):
        pass
    again = work(out)
    with opened(again, resume=True):
        assert again.done == {"questions": {"train": 3, "seconds": 1.0}}
        with pytest.raises(RunExistsError, match="in use"), opened(work(out), resume=True):
            pass
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    with pytest.raises(RunExistsError, match="holds files but not a pipeline"), opened(work(other), resume=True):
        pass


def test_the_report_has_every_score_and_what_was_left_out(tmp_path):
    scores = {"n": 4, "em": 0.5, "em_ci95": [0.25, 0.75], "f1": 0.625, "searches": 1.5, "title_recall": [0.25, 0.5],
              "legal": 1.0}  # fmt: skip
    done = {name: {"seconds": 90.0} for name in ORDER}
    done["reinforced"]["left_out"] = "3 questions are too few"
    done["scores"]["scores"] = {"before": scores, "closed book": scores | {"title_recall": None, "legal": None}}
    done["adapter"]["adapter"] = "out/adapter"
    text = write_report(work(tmp_path).pipeline, done, tmp_path).read_text()
    assert "| before | 0.500 | 0.250 to 0.750 | 0.625 | 1.50 | 0.500 | 1.000 |" in text
    assert "| closed book | 0.500 | 0.250 to 0.750 | 0.625 | 1.50 |  |  |" in text
    assert "| reinforcement learning | 1.5 | 3 questions are too few |" in text
    assert "--model out/adapter --max-tokens 64 --dtype bfloat16" in text


# -- questions of well-linked pages, and of one's own --------------------------------------------------------------


def questions_stage(tmp_path, pages, *values):
    """Runs the first stage of `smol-own` on pages; returns what it did, its folder, and what it said."""
    write_corpus(tmp_path / "wiki.jsonl", pages)
    pipeline = load_pipeline("smol-own", [f"corpus={tmp_path / 'wiki.jsonl'}", "model=tiny", *values])
    told = list[str]()
    work = Work(pipeline, tmp_path / "own", lambda *_: None, None, told.append)
    with opened(work, resume=False):
        run_stage(work, "questions")
    return work, told


def gold_pages(file):
    return {title for question in read_questions(file) for title in question.gold_titles}


@pytest.mark.slow
def test_a_wiki_in_one_piece_gives_a_test_whose_pages_are_not_practised(tmp_path):
    """Its pages are one component of links, of which earlier versions made one split and then no test."""
    work, told = questions_stage(tmp_path, wiki_pages(40))
    did = work.done["questions"]
    asked = read_questions(work.out / "test" / "questions.jsonl")
    assert len(asked) >= 5 and did["test"] > 10 and did["train"] > 60
    files = [work.questions(split) for split in ("train", "validation", "test")]
    train, validation, test = map(gold_pages, files)
    assert not train & test and not train & validation and not validation & test
    assert did["crossing"] > did["cut_links"] > 20
    assert any(f"{did['crossing']} questions that cross are left out" in line for line in told)


@pytest.mark.slow
def test_questions_of_ones_own_are_the_test(tmp_path):
    pages = wiki_pages(40)
    facts = (SupportingFact(pages[3].title, 0), SupportingFact(pages[4].title, 1))
    own = tmp_path / "mine.jsonl"
    write_questions(own, [Question("mine", "Which fund paid?", ("the copper fund",), supporting_facts=facts)])
    work, _ = questions_stage(tmp_path, pages, f"test={own}")
    did = work.done["questions"]
    assert (did["test"], did["held_out_pages"]) == (0, 2) and did["train"] > 60 and did["validation"] > 5
    held = {pages[3].title, pages[4].title}
    assert not held & (gold_pages(work.questions("train")) | gold_pages(work.questions("validation")))
    assert len(list(read_passages(work.out / "corpus.jsonl"))) == 38  # practice searches these, the test all 40
    task = work.test_task()
    assert [question.id for question in task.questions] == ["mine"]
    assert {page.title for page in task.retriever.passages()} >= held
    assert (work.pipeline.own_test, work.pipeline.tests) == (str(own), 1)


def test_a_missing_or_empty_file_of_test_questions_is_refused_at_once(tmp_path):
    with pytest.raises(DataMissingError, match=r"none\.jsonl"):
        load_pipeline("smol-own", ["corpus=demo", "test=none.jsonl"])
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(SearchGymError, match=r"none\.jsonl"):
        load_pipeline("smol-own", ["corpus=demo", f"test={tmp_path / 'none.jsonl'}"])


@pytest.mark.slow
def test_a_folder_whose_questions_failed_can_be_used_again(tmp_path):
    few = wiki_pages(40)[:3]
    with pytest.raises(DataError, match="gives no questions for test"):
        questions_stage(tmp_path, few, "questions.shapes=[cloze]")
    assert not list((tmp_path / "own").glob("*questions*"))
    with pytest.raises(DataError, match="gives no questions"):
        questions_stage(tmp_path, few, "questions.shapes=[cloze-chain]")  # other values, the same folder
    work, _ = questions_stage(tmp_path, wiki_pages(40), "questions.n=300")
    assert work.done["questions"]["test"] > 0
    with pytest.raises(RunExistsError, match="--resume continues it"):
        questions_stage(tmp_path, wiki_pages(40))


@pytest.mark.slow
def test_a_folder_in_use_is_told_before_anything_is_loaded(tmp_path):
    (tmp_path / "file").touch()
    command = [sys.executable, "-X", "importtime", "-m", "searchgym", "train", "smol-own", "corpus=demo", "--out"]
    told = subprocess.run([*command, tmp_path], capture_output=True, text=True)
    assert told.returncode == 2 and "holds files but not a pipeline: choose another --out" in told.stderr
    assert not re.search(r"\b(torch|transformers|numba|searchgym\.cli\.pipeline\.pipeline)$", told.stderr, re.M)


# -- whole pipelines -----------------------------------------------------------------------------------------------


def command(documents, out, *more):
    return [sys.executable, "-m", "searchgym", "train", "smol-own", f"corpus={documents}", *TINY, "--out", out, *more]


def started(arguments, home):
    environment = {**os.environ, "SEARCHGYM_HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*map(str, arguments)], stderr=subprocess.PIPE, text=True, env=environment)


def killed_at(arguments, home, mark):
    """Runs a command until its standard error has a line that begins with `mark`, and kills it there."""
    process = started(arguments, home)
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith(mark):
            process.send_signal(signal.SIGKILL)
            break
    process.stderr.close()
    assert process.wait() == -signal.SIGKILL, "".join(seen)


def without_seconds(out):
    stages = json.loads((out / "stages.json").read_text())
    text = json.dumps([{k: v for k, v in did.items() if k != "seconds"} for did in stages.values()])
    return list(stages), text.replace(str(out), "OUT")


@pytest.mark.study
def test_a_pipeline_that_was_killed_twice_ends_as_one_that_was_not(documents, tmp_path):
    whole = started(command(documents, tmp_path / "whole"), tmp_path / "home")
    said = whole.stderr.read()
    whole.stderr.close()
    assert whole.wait() == 0, said
    assert re.search(
        r"^about \d.* in all, .*: filler .*, reader .*, searcher .*, selected .*, reinforced .*, scores ", said, re.M
    )
    out = tmp_path / "killed"
    killed_at(command(documents, out), tmp_path / "home", "stage 7 of 11: searcher")
    killed_at(command(documents, out, "--resume"), tmp_path / "home", "step 1/2 · reward")
    resumed = [sys.executable, "-m", "searchgym", "train", "smol-own", "--out", out, "--resume"]
    last = started(resumed, tmp_path / "home")  # its values are in the folder
    said = last.stderr.read()
    last.stderr.close()
    assert last.wait() == 0, said
    assert "stage 8" not in said and "stage 9 of 11: reinforced" in said
    assert without_seconds(out) == without_seconds(tmp_path / "whole")
    assert list(ORDER) == without_seconds(out)[0]
    rows = json.loads((out / "stages.json").read_text())["scores"]["scores"]
    assert rows["before"]["n"] == 6 and set(rows) == {"before", "practised", "closed book"} | (
        {"reinforced"} if "reinforced" in rows else set()
    )
    assert json.loads((out / "adapter" / "made.json").read_text())["pipeline"]["model"] == "tiny"
    assert (out / "adapter" / "adapter_model.safetensors").is_file() and not (out / "adapter" / "optimizer.pt").exists()
    assert "| before |" in (out / "report.md").read_text()


@pytest.mark.slow
def test_documents_that_give_too_little_leave_stages_out(tmp_path):
    """A few pages about single facts, no split for validation: the run ends well and says what was left out."""
    folder = tmp_path / "few"
    folder.mkdir()
    for number, passage in enumerate(build_world(WorldSpec("simple", size=60, seed=3, split="train")).passages[:30]):
        (folder / f"{number}.md").write_text(f"---\ntitle: {passage.title}\n---\n{passage.text}\n")
    values = [
        "questions.shares=[0.7,0,0.3]",
        "demonstrations.masked=0",
        "demonstrations.reading=8",
        "demonstrations.searching=0",
        "test=3",
    ]
    arguments = [*command(folder, tmp_path / "out"), *values, "selection.high=0.01", "selection.low=0.01"]
    process = started(arguments, tmp_path / "home")
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0, said
    stages = json.loads((tmp_path / "out" / "stages.json").read_text())
    assert stages["searcher"]["left_out"] == "0 demonstrations are too few"
    assert "no question's pass rate is in 0.01 to 0.01" in stages["reinforced"]["left_out"]
    assert set(stages["scores"]["scores"]) == {"before", "practised", "closed book"}
    assert "no question's pass rate" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.study)])
def test_a_wiki_in_one_piece_is_trained_on_and_tested(count, tmp_path):
    folder, out = tmp_path / "wiki", tmp_path / "out"
    folder.mkdir()
    for number, passage in enumerate(wiki_pages(count)):
        (folder / f"{number}.md").write_text(f"---\ntitle: {passage.title}\n---\n{passage.text}\n")
    process = started(command(folder, out, "demonstrations.masked=0"), tmp_path / "home")
    said = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0, said
    did = json.loads((out / "stages.json").read_text())
    assert did["questions"]["test"] > 0 and did["questions"]["crossing"] > 0
    assert f"{did['questions']['crossing']} questions that cross are left out" in said
    pages = [gold_pages(out / "questions" / "questions" / f"{split}.jsonl") for split in ("train", "test")]
    assert not pages[0] & pages[1]
    assert all(row["n"] == 6 for row in did["scores"]["scores"].values())


def test_a_pipeline_is_read_back_from_its_folder_with_its_values(documents, tmp_path):
    pipeline = for_this_machine(load_pipeline("smol-own", [f"corpus={documents}", *TINY]))
    (tmp_path / "pipeline.yaml").write_text(dump(pipeline))
    assert for_this_machine(load_pipeline(str(tmp_path / "pipeline.yaml"))) == pipeline
