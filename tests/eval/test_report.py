"""Reports: every figure of their tables by hand, what bad and hostile runs do to them, and what is drawn."""

import dataclasses
import datetime
import json
import math
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from browser import HOSTILE
from made_runs import RECORD, Parsed, episode, evaluation, training, write_episodes

from searchgym.agents.base import load_agent
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import DataError, DataMissingError, UsageError
from searchgym.eval import decomposition
from searchgym.eval.decomposition import decompose
from searchgym.eval.report import evaluations, questions, trainings
from searchgym.eval.report import figures as drawing
from searchgym.eval.report.blocks import Code, Heading, Items, Picture, ReportPage, Table, TextBlock
from searchgym.eval.report.episodes import EpisodeSample
from searchgym.eval.report.html import to_html
from searchgym.eval.report.markdown import to_markdown
from searchgym.eval.report.runs import read
from searchgym.eval.report.write import report_page, write_report
from searchgym.eval.run_folder import read_finished
from searchgym.eval.runner import evaluate
from searchgym.records import Answer, Call, Hit, Passage, Searched

ARTEFACTS = Path(__file__).parents[1] / "upgrade" / "0.1.0"
TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "p",
        "code",
        "ul",
        "ol",
        "li",
        "b",
        "i",
        "div",
    ),
    *("table", "thead", "tbody", "tr", "th", "td", "figure", "picture", "source", "img", "figcaption", "details"),
    *("summary", "span", "bdi", "dl", "dt", "dd", "pre"),
}
"""Every tag that a page has."""


@pytest.fixture(autouse=True)
def figures(request, monkeypatch):
    """Draws nothing, which takes most of a report's time, unless a test asks for ``real_figures``."""
    if "real_figures" not in request.fixturenames:
        stub = lambda draw, series, count, title, text, *how: Picture(b"<svg/>", b"<svg />", title, text)  # noqa: E731
        monkeypatch.setattr(drawing, "_picture", stub)


@pytest.fixture
def real_figures():
    """Asks for figures that are drawn."""


def page_of(*paths, **options):
    return Parsed(to_html(report_page(list(paths), **options)))


def interval(values):
    """The 95 % percentile bootstrap interval of a mean, one resample at a time."""
    rng, means = np.random.default_rng(0), []
    for _ in range(1000):
        means.append(sum(values[i] for i in rng.integers(len(values), size=len(values))) / len(values))
    means.sort()

    def at(q):
        place = q * 999
        low = math.floor(place)
        return means[low] + (means[min(low + 1, 999)] - means[low]) * (place - low)

    return at(0.025), at(0.975)


# -- tables --------------------------------------------------------------------------------------------------------


def test_the_table_of_evaluations_by_hand(tmp_path):
    first = evaluation(tmp_path / "one", [1.0, 0.0, 0.0, 1.0])
    second = evaluation(tmp_path / "two", [1.0, 1.0, 1.0, 1.0], record={"models": {"a": ["m1", "s"], "b": ["m2", "s"]}})
    other = evaluation(tmp_path / "three", [0.0, 1.0], record={"questions_sha256": "2" * 64})
    table, apart = page_of(first, second, other).tables
    head, *rows = table
    low, high = interval([0.0, 1.0, 1.0, 0.0])
    shared = {"agent": "searcher", "questions": "4", "searches": "1.00", "tokens written": "5", "tokens read": "100"}
    shared |= {"gold pages found": "0.500", "legal": "1.000"}
    assert [dict(zip(head, row, strict=True)) for row in rows] == [
        shared
        | {"#": "1", "run": "one", "models": "model-a", "EM (95 %)": "0.500 (0.100 to 0.900)"}
        | {"F1 (95 %)": "0.500 (0.200 to 0.800)", "EM minus first run (95 %)": ""},
        shared
        | {"#": "2", "run": "two", "models": "m1, m2", "EM (95 %)": "1.000 (0.100 to 0.900)"}
        | {"F1 (95 %)": "1.000 (0.200 to 0.800)"}
        | {"EM minus first run (95 %)": f"+0.500 ({low:+.3f} to {high:+.3f})" + ", not distinguishable" * (low <= 0)},
    ]
    assert [row[1] for row in apart[1:]] == ["three"]  # other questions: another table, with nothing to compare
    assert "EM minus first run (95 %)" not in apart[0]


def test_differences_are_decomposed_as_compare_does(tmp_path):
    def rows(ems, evidence):
        return [
            {"id": f"q{n}", "em": em, "f1": em, "searches": 1.0, "golds": ["x"], "answers": ["x" if em else None],
             "evidence": [pages]}
            for n, (em, pages) in enumerate(zip(ems, evidence, strict=True))
        ]  # fmt: skip

    low = rows([1.0, 0.0, 0.0, 1.0], ["all", "none", "none", "some"])
    high = rows([1.0] * 4, ["all", "all", "none", "some"])
    made = {"a": low, "b": high, "c": low}
    runs = [evaluation(tmp_path / name, [row["em"] for row in its], rows=its) for name, its in made.items()]
    page = page_of(*runs)
    head, *cells = page.tables[1]
    assert head == ["run", "term", "meaning", "EM", "95 % low", "high"] + ["least", "most"] * ("least" in head)
    found = decompose([read_finished(runs[0]).rows], [read_finished(runs[1]).rows])
    shown = [dict(zip(head, row, strict=True)) for row in cells]
    expected = [dict(zip(decomposition.HEAD, row, strict=True)) for row in found.rows()]
    assert [{name: row.get(name, "") for name in decomposition.HEAD} for row in shown[: len(expected)]] == expected
    assert [row["run"] for row in shown] == ["b"] * len(expected) + ["c"] * len(expected)
    assert {row["EM"] for row in shown[len(expected) :]} == {"0.0000"}
    assert "EM minus first run by cause (4 questions):" in page.text
    told = page_of(*(evaluation(tmp_path / name, [1.0, 0.0]) for name in ("d", "e")))
    assert len(told.tables) == 1 and "is not decomposed: none of the questions names its gold pages" in told.text


def test_the_scores_of_an_unfinished_run_are_those_of_its_episodes(tmp_path):
    run = evaluation(tmp_path / "cut", [], finished=False)
    made = [episode("q0", 1.0, queries=("a", "b"), read=50), episode("q1", 0.0), episode("q2", 0.0), episode("q3", 1.0)]
    write_episodes(run / "episodes.jsonl", made[:3])
    with (run / "episodes.jsonl").open("a") as file:
        file.write('{"id": "q3#0", "quest')
    page = page_of(run)
    ((head, row),) = page.tables
    low, high = interval([1.0, 0.0, 0.0])
    cells = dict(zip(head, row, strict=True))
    assert cells["EM (95 %)"] == f"0.333 ({low:.3f} to {high:.3f})"
    assert "F1 (95 %)" not in head and "F1 equals EM in every run." in page.text  # no column repeats another
    assert (cells["questions"], cells["searches"], cells["tokens written"]) == ("3", "1.33", "5")
    assert cells["tokens read"] == "83"  # (50 + 100 + 100) / 3
    assert "unfinished: the scores are those of 3 of 4 episodes" in page.text
    assert "the last line of episodes.jsonl is incomplete and was skipped (line 4)" in page.text


def opening(*paths):
    """The text above the note on how the page was made."""
    block = report_page(list(paths), sample=0).blocks[0]
    parts = block.parts if isinstance(block, TextBlock) else [text for _, (text,) in block.items]
    return list(parts)


def dated(run, day):
    """Sets the time of all files of a run to noon of a day; returns the run."""
    noon = datetime.datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()
    for file in run.iterdir():
        os.utime(file, (noon, noon))
    return run


def test_the_first_sentence_has_the_numbers_and_the_date(tmp_path):
    low = dated(evaluation(tmp_path / "low", [1.0, 0.0, 0.0, 0.0]), "2026-03-01")
    high = dated(evaluation(tmp_path / "high", [1.0, 1.0, 1.0, 1.0]), "2026-03-02")
    oracle = dated(evaluation(tmp_path / "a", [1.0] * 4, record={"agent": "evidence-oracle"}), "2026-03-09")
    assert opening(low) == [
        "EM on 4 questions of test/Tiny-v0: “low” 0.250 (95 % interval 0.100 to 0.900). Date: 2026-03-01."
    ]
    start, end = interval([0.0, 1.0, 1.0, 1.0])
    assert opening(oracle, low, high) == [
        "EM on 4 questions of test/Tiny-v0: “high” 1.000 (95 % interval 0.100 to 0.900), the best of 2 runs; "
        f"“low”, the first run, 0.250; difference +0.750 ({start:+.3f} to {end:+.3f}). Date: 2026-03-01 to 2026-03-02."
    ]
    learnt = training(tmp_path / "s0", 0, [0.1, 0.3], {0: 0.2, 2: 0.4})
    assert opening(low, learnt)[1:] == ["Training tiny-grpo (s0): validation EM 0.200 before, 0.400 after 2 steps."]
    assert opening(learnt) == opening(low, learnt)[1:]
    assert opening(evaluation(tmp_path / "cut", [], finished=False))[0].startswith("1 run; page made by")


def test_oracles_have_a_table_of_their_own_and_come_last(tmp_path):
    first = evaluation(tmp_path / "an-oracle", [1.0] * 4, record={"agent": "oracle-queries"})
    page = page_of(first, evaluation(tmp_path / "honest", [1.0, 0.0, 0.0, 0.0]))
    results, oracles = page.tables
    assert [row[:2] for row in results[1:]] == [["1", "honest"]]
    assert [row[:2] for row in oracles[1:]] == [["2", "an-oracle"]]
    assert oracles[1][oracles[0].index("EM minus first run (95 %)")].startswith("+0.750")
    assert evaluations.ORACLES in page.text


def test_f1_that_repeats_em_is_said_in_words(tmp_path):
    same = {"f1_ci95": [0.1, 0.9]}
    page = page_of(*(evaluation(tmp_path / name, [1.0, 0.0, 1.0, 0.0], scores=same) for name in ("one", "two")))
    assert "F1 (95 %)" not in page.tables[0][0] and "F1 equals EM in every run." in page.text
    assert page.tables[0][0][:3] == ["#", "run", "EM (95 %)"]


def test_attempts_are_averaged_by_question(tmp_path):
    file = tmp_path / "rollouts.jsonl"
    write_episodes(file, [episode("q0", float(n == 0), attempt=n) for n in range(4)] + [episode("q1", 1.0)])
    ((head, row),) = page_of(file).tables
    assert dict(zip(head, row, strict=True))["EM (95 %)"].startswith("0.625 (")  # (1/4 + 1) / 2
    assert "models" not in head and "legal" not in head  # nothing tells them


def test_trainings_of_one_recipe_are_one_row_and_one_band(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(trainings, "panels", lambda series, *rest, **options: drawn.extend(series))
    runs = [
        training(tmp_path / "s0", 0, [0.1, 0.3], {0: 0.2, 2: 0.4}),
        training(tmp_path / "s1", 1, [0.2, 0.7], {0: 0.2, 2: 0.7}),
        training(tmp_path / "other", 0, [0.5], name="tiny-ppo"),
    ]
    (table,) = page_of(*runs).tables
    head, group, alone = table
    cells = dict(zip(head, group, strict=True))
    assert (cells["recipe"], cells["runs"], cells["seeds"], cells["steps"]) == ("tiny-grpo", "s0, s1", "0, 1", "2")
    assert (cells["validation"], cells["before"], cells["after"]) == ("em", "0.200", "0.550")
    assert (cells["lowest to highest"], cells["reward, last step"]) == ("0.400 to 0.700", "0.500")
    assert cells["tokens generated"] == "200"
    assert dict(zip(head, alone, strict=True))["before"] == ""
    assert [one.name for one in drawn] == ["tiny-grpo", "tiny-ppo (other)"]
    assert drawn[0].panels["reward of sampled episodes, training questions"] == [
        (1.0, pytest.approx(0.15), 0.1, 0.2), (2.0, pytest.approx(0.5), 0.3, 0.7)
    ]  # fmt: skip
    assert drawn[0].panels["em of greedy episodes, validation questions"][1] == (2.0, pytest.approx(0.55), 0.4, 0.7)


def test_a_figure_shows_the_validation_by_kind(tmp_path, monkeypatch):
    folders = [
        training(tmp_path / "s0", 0, [0.1, 0.3], {0: 0.2, 2: 0.4}),
        training(tmp_path / "s1", 1, [0.2, 0.7], {0: 0.2, 2: 0.7}),
        training(tmp_path / "other", 0, [0.5], {0: 0.5}, name="tiny-ppo"),
    ]
    kinds = ({"chain": 0.0, "fact": 0.4}, {"chain": 0.2, "fact": 0.8}, {"fact": 0.5})
    for folder, ems in zip(folders, kinds, strict=True):
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines[-1] |= {f"validation/em/{kind}": em for kind, em in ems.items()}
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    titles = [block.alt for block in report_page(folders).blocks if isinstance(block, Picture)]
    assert titles == ["Training curves by step", "EM of the validation by kind of question"]
    drawn, how = [], []

    def panels(series, *rest, **options):
        drawn.append(series)
        how.append(options)

    monkeypatch.setattr(trainings, "panels", panels)
    page_of(*folders)
    assert [one.name for one in drawn[1]] == ["chain", "fact"] and how[1] == {"integer": True, "numbered": False}
    chain, fact = (one.panels for one in drawn[1])
    assert chain == {"1  tiny-grpo": [(2.0, pytest.approx(0.1), 0.0, 0.2)]}
    assert fact["1  tiny-grpo"] == [(2.0, pytest.approx(0.6), 0.4, 0.8)]
    assert fact["2  tiny-ppo (other)"] == [(1.0, 0.5, 0.5, 0.5)]


def test_what_the_figures_of_evaluations_show(tmp_path, monkeypatch):
    drawn = {}
    for name in ("scatter", "bars", "panels"):
        monkeypatch.setattr(evaluations, name, lambda series, *rest, name=name, **how: drawn.setdefault(name, series))
    page_of_blocks = report_page([evaluation(tmp_path / "one", [1.0, 0.0, 1.0, 1.0])], sample=0)
    assert page_of_blocks.title == "Report of one"
    assert drawn["scatter"][0].panels == {"searches": [(1.0, 0.75, 0.1, 0.9)], "tokens": [(105.0, 0.75, 0.1, 0.9)]}
    low, high = interval([1.0, 0.0])
    assert drawn["bars"][0].panels == {
        "1 hop\n2 questions": [(0.0, 0.5, pytest.approx(low), pytest.approx(high))],
        "2 hops\n2 questions": [(0.0, 1.0, 1.0, 1.0)],
    }
    (recall,) = drawn["panels"][0].panels.values()
    assert recall == [(1.0, 0.25, 0.0, 0.5), (2.0, 0.5, 0.25, 0.75)]


def test_a_real_evaluation_and_its_episodes(tmp_path):
    task = load_task(find_env("Demo"))
    scores = evaluate(task, load_agent("single-search"), tmp_path / "demo")
    page = page_of(tmp_path / "demo", sample=4)
    head, row = page.tables[0]
    cells = dict(zip(head, row, strict=True))
    low, high = scores["em_ci95"]
    assert cells["EM (95 %)"] == f"{scores['em']:.3f} ({low:.3f} to {high:.3f})"
    assert cells["gold pages found"] == f"{scores['gold_found']:.3f}"
    assert sum(tag == "details" for tag, _ in page.tags) == 4
    assert sum(question.text in page.text for question in task.questions) == 4
    assert "4 of 12 episodes." in page.text


# -- episodes ------------------------------------------------------------------------------------------------------


def test_the_sample_depends_on_ids_alone_and_is_half_right():
    made = [episode(f"q{n}", float(n % 4 == 0)) for n in range(200)]
    chosen = []
    for order in (made, made[::-1]):
        sample = EpisodeSample(20)
        for one in order:
            sample.add(one)
        chosen.append([one.id for one in sample.chosen()])
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) == 20
    right = {one.id for one in made if one.scores["em"]}
    assert [id in right for id in chosen[0]] == [False] * 10 + [True] * 10


def test_a_sample_is_filled_and_of_a_training_is_from_its_last_step():
    sample = EpisodeSample(4)
    for one in [episode(f"q{n}", 0.0) for n in range(5)] + [episode("r", 1.0)]:
        sample.add(one)
    assert [one.scores["em"] for one in sample.chosen()] == [0.0, 0.0, 0.0, 1.0]
    for step in (7, 8, 7):
        sample.add(dataclasses.replace(episode("q0", 0.0), id=f"q0#0@{step}"))
    assert [one.id for one in sample.chosen()] == ["q0#0@8"]


def test_long_texts_are_cut_and_say_so(tmp_path):
    file = tmp_path / "episodes.jsonl"
    passage = Passage("p", "t" * 5000, "x" * 5000)
    searches = [Searched(1, "w" * 5000, (Hit(passage, 1.0),) * 12)] * 70
    write_episodes(file, [episode("q0", 1.0, text="y" * 5000, searches=searches)])
    page = to_html(report_page([file]))
    assert len(page) < 1_500_000
    assert "(2,000 more characters)" in page and "(4,400 more characters)" in page
    assert "11 more outputs and searches" in page


@pytest.mark.slow
def test_names_and_curves_without_end_are_cut(tmp_path):
    record = {name: name * 10**6 for name in ("env", "agent", "dataset")} | {"models": {"a": ["m" * 10**6, "s"]}}
    rows = [{"id": f"q{n}", "hops": str(n), "em": 1.0} for n in range(3000)]
    scores = {"title_recall": [0.5] * 10**6, "title_recall_ci95": None}
    run = evaluation(tmp_path / "run", [1.0] * 4, record=record, rows=rows, scores=scores)
    learnt = training(tmp_path / "t", 10**900, [0.5], name="n" * 10**5)
    assert len(to_html(report_page([run, learnt], sample=1))) < 30_000


# -- bad input -----------------------------------------------------------------------------------------------------


def test_runs_without_episodes_or_scores(tmp_path):
    empty = evaluation(tmp_path / "empty", [], finished=False)
    started = training(tmp_path / "started", 0, [])
    (started / "metrics.jsonl").unlink()
    page = page_of(empty, started)
    assert page.text.count("it has no episodes") == 2
    assert "it has no metrics: no step has ended" in page.text
    assert not [tag for tag, _ in page.tags if tag in ("img", "details")]


def test_numbers_that_are_none_are_left_empty(tmp_path):
    scores = {"em": math.nan, "em_ci95": [math.nan, 1.0], "searches": math.inf, "read_tokens": 10**400, "legal": "<b>"}
    scores |= {"title_recall": [math.nan, "x", None], "title_recall_ci95": 3, "f1_ci95": [0.1]}
    run = evaluation(tmp_path / "run", [1.0, 0.0, 1.0, 0.0], scores=scores)
    learnt = training(tmp_path / "t", 0, [0.5, math.nan, 0.7], {0: math.inf, 2: 0.3})
    page = page_of(run, learnt)
    head, row = page.tables[0]
    cells = dict(zip(head, row, strict=True))
    assert "EM (95 %)" not in cells and cells["F1 (95 %)"] == "0.500"
    assert not {"searches", "tokens read", "legal"} & cells.keys()
    assert not re.search(r"\bnan\b|\binf\b", page.text)
    odd = tmp_path / "odd.jsonl"
    write_episodes(odd, [episode("q0", math.nan, reward=math.nan, scores={"em": math.nan, "f1": math.inf})])
    assert "no score" in page_of(odd).text


def test_damage_is_named_with_file_and_line(tmp_path):
    run = evaluation(tmp_path / "run", [1.0, 0.0, 1.0, 0.0])
    lines = (run / "episodes.jsonl").read_text().splitlines(keepends=True)
    (run / "episodes.jsonl").write_text(lines[0] + '{"id": 3}\n' + lines[1])
    with pytest.raises(DataError, match=r"run/episodes\.jsonl:2: not an episode"):
        report_page([run])
    (run / "episodes.jsonl").write_text("".join(lines))
    (run / "questions.jsonl").write_text('{"id": "q0", "em": NaN}\n')
    with pytest.raises(DataError, match=r"questions\.jsonl:1: em: expected a number, got nan"):
        report_page([run])
    for name, content in (("run.json", "[]"), ("scores.json", "[1]")):
        run = evaluation(tmp_path / name, [1.0, 0.0, 1.0, 0.0])
        (run / name).write_text(content)
        with pytest.raises(DataError, match="damaged"):
            report_page([run])
    learnt = training(tmp_path / "t", 0, [0.5])
    (learnt / "recipe.yaml").write_text("- a list")
    with pytest.raises(DataError, match=r"recipe\.yaml: damaged: expected a recipe"):
        report_page([learnt])


def test_trainings_have_the_texts_of_bundled_questions():
    page = page_of(*(ARTEFACTS / name for name in ("eval-cut", "run-policy", "run-team", "run-adapter")))
    assert "eval-cut: unfinished" in page.text
    assert len(page.tables) == 2
    assert sum(question.text in page.text for question in load_task(find_env("Demo")).questions) == 2


def test_folders_without_runs_are_refused(tmp_path):
    with pytest.raises(DataMissingError, match="no such run"):
        report_page([tmp_path / "nothing"])
    (tmp_path / "other").mkdir()
    with pytest.raises(DataMissingError, match=r"no run: neither it nor a folder in it has run\.json, recipe\.yaml or"):
        report_page([tmp_path / "other"])


def test_a_folder_of_runs_and_a_suite_in_its_order(tmp_path):
    for name in ("b", "a", "c"):
        evaluation(tmp_path / "runs" / name, [1.0, 0.0, 1.0, 0.0])
    assert [row[1] for row in page_of(tmp_path / "runs").tables[0][1:]] == ["a", "b", "c"]
    (tmp_path / "runs" / "suite.json").write_text(json.dumps({"suite": "x", "parts": ["c", ["x"], "../../etc", "a"]}))
    page = page_of(tmp_path / "runs")
    assert [row[1] for row in page.tables[0][1:]] == ["c", "a", "b"]
    assert str(tmp_path) not in page.text  # where a machine keeps its runs is nobody's business


def shows_only_the_id(folder, id, env="searchgym/World-v0", **options):
    run = training(folder, 0, [0.5], env=env, env_options=options)
    write_episodes(run / "episodes.jsonl", [episode(id, 1.0)])
    return f"question {id}" in page_of(run).text


@pytest.mark.slow
def test_a_recipe_of_others_opens_no_file_and_nothing_is_guessed(tmp_path):
    id = load_task(find_env("World")).questions[0].id
    assert not shows_only_the_id(tmp_path / "usual", id)
    assert shows_only_the_id(tmp_path / "file", id, questions="secret.jsonl")
    assert shows_only_the_id(tmp_path / "env", id, env=str(tmp_path / "card.yaml"))
    for number, world in enumerate(("x", {"size": "x"}, {"size": 0}, {"level": "<b>"})):
        assert shows_only_the_id(tmp_path / str(number), id, questions=world)


def test_no_huge_world_is_generated_for_its_texts(tmp_path, monkeypatch):
    world = {"split": "train", "size": 40, "seed": 1}
    id = load_task(find_env("World"), questions=world).questions[0].id
    assert not shows_only_the_id(tmp_path / "small", id, questions=world)
    monkeypatch.setattr(questions, "LARGEST", 39)
    assert shows_only_the_id(tmp_path / "large", id, questions=world)


def test_the_questions_of_a_generated_world_are_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    world = {"questions": {"split": "train", "size": 40, "seed": 1}}
    question = load_task(find_env("World"), **world).questions[3]
    run = training(tmp_path / "run", 0, [0.5], env="searchgym/World-v0", env_options=world)
    write_episodes(run / "episodes.jsonl", [episode(question.id, 1.0)])
    text = page_of(run).text
    assert question.text in text and question.answers[0] in text


# -- hostile text --------------------------------------------------------------------------------------------------


def hostile_runs(folder):
    """Runs in which every text that a run can hold is hostile."""
    everything = "\n".join((*HOSTILE, "\x1b[31m\x00\ud800\u202e", "$x_{1}$ _hidden"))
    passage = Passage(everything, everything, everything)
    made = [
        dataclasses.replace(
            episode(f"q{n}", float(n % 2)),
            id=f"{everything}#{n}",
            agent=everything,
            calls=[Call(0, 1, 5, everything, everything, 1, text=everything)],
            searches=[Searched(1, everything, (Hit(passage, math.nan),))],
            answer=Answer(everything),
            error=everything,
        )
        for n in range(4)
    ]
    record = dict.fromkeys(("env", "dataset", "split", "agent", "scorer"), everything)
    record |= {"models": {everything: [everything, 1]}}
    rows = [
        {"id": f"q{n}", "question": everything, "golds": [everything, 3], "hops": everything if n else "1", "em": 1.0}
        for n in range(4)
    ]
    first = evaluation(folder / "<img src=x onerror=fired(1)>", [1.0, 0.0, 1.0, 0.0], record=record, rows=rows)
    (first / "episodes.jsonl").unlink()
    write_episodes(first / "episodes.jsonl", made)
    second = evaluation(folder / "$\\frac{$ [x](javascript:fired(2))", [1.0] * 4, record=record, rows=rows)
    third = training(folder / "'\"><script>fired(3)<", 0, [0.5], name=everything, validation={"metric": everything})
    return [first, second, third]


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_nothing_hostile_becomes_markup(tmp_path):
    page = to_html(report_page(hostile_runs(tmp_path)))
    page.encode()
    parsed = Parsed(page)
    assert {tag for tag, _ in parsed.tags} <= TAGS
    for _, attrs in parsed.tags:
        assert not [name for name in attrs if name.startswith("on")]
        for name in ("href", "src", "srcset", "action", "formaction", "data", "poster"):
            assert attrs.get(name, "data:image/svg+xml;base64,").startswith("data:image/svg+xml;base64,")
    for text in HOSTILE:
        assert text in parsed.text
    (policy,) = [attrs["content"] for tag, attrs in parsed.tags if attrs.get("http-equiv")]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", page)
    assert "\N{REPLACEMENT CHARACTER}[31m" in parsed.text


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_the_figures_hold_no_text_of_a_run(tmp_path):
    page = report_page(hostile_runs(tmp_path))
    pictures = [block for block in page.blocks if hasattr(block, "dark")]
    assert len(pictures) >= 4
    for picture in pictures:
        for drawn in (picture.light, picture.dark):
            assert drawn.startswith(b"<?xml") and b"fired" not in drawn and b"<script" not in drawn
        assert picture.light != picture.dark


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
def test_the_same_runs_give_the_same_bytes(tmp_path):
    runs = [training(tmp_path / "t", 0, [0.5, 0.6])]
    assert to_html(report_page(runs)) == to_html(report_page(runs))


def test_markdown_of_blocks():
    blocks = [
        Heading("A | b"), TextBlock(["see ", Code("a`b"), " <now>"]), Items([("T.", ["x"]), ("", ["*y*"])]),
        Table(["h|"], [["a\nb"]]),
    ]  # fmt: skip
    assert to_markdown(ReportPage("*T*", blocks)) == (
        "# \\*T\\*\n\n## A \\| b\n\nsee `ab` &lt;now&gt;\n\n- **T.** x\n- \\*y\\*\n\n| h\\| |\n|---|\n| a b |\n"
    )


# -- packages and files --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("real_figures")
@pytest.mark.parametrize(
    ("package", "message"), [("jinja2", "pages in HTML need Jinja2"), ("matplotlib", "figures need")]
)
def test_a_missing_package_is_named_with_the_command(package, message, tmp_path, monkeypatch):
    run = evaluation(tmp_path / "run", [1.0, 0.0, 1.0, 0.0])
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"{message}.*: pip install Jinja2 matplotlib"):
        write_report([run], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        evaluation(Path("runs") / name, [1.0, 0.0, 1.0, 0.0])
    text = (Path(__file__).parents[2] / "docs" / "do" / "report.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(compile(code, "docs/do/report.md", "exec"), {})
    assert Parsed(Path("report.html").read_text()).tables[0][2][1] == "two"


def test_a_run_that_is_being_written_is_read_and_not_touched(tmp_path):
    run = evaluation(tmp_path / "run", [1.0], finished=False)
    with (run / "episodes.jsonl").open("ab") as file:
        file.write(b'{"half')
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    data = read(run, "run", 5)
    assert (data.episodes, len(data.sample), data.record) == (1, 1, RECORD)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
