"""Submissions: what is refused, field by field; replays; the table and its page."""

import dataclasses
import functools
import gzip
import json
import shutil
from pathlib import Path

import pytest
from made_submissions import card_of, edit_manifest, make_run, read_rows, submit, write_rows

from searchgym.agents.base import load_agent
from searchgym.corpora.folders import bundled_file
from searchgym.corpora.passages import read_passages
from searchgym.errors import DataError, RunExistsError, SubmissionError, UsageError
from searchgym.eval.leaderboard.check import agent_of, check_submission
from searchgym.eval.leaderboard.manifest import EPISODES, MANIFEST, PREDICTIONS, SubmissionManifest, read_manifest
from searchgym.eval.leaderboard.replay import RERUN, replay_episodes, run_again
from searchgym.eval.leaderboard.submission import (
    About,
    Reported,
    folder_name,
    read_reported,
    runs_of,
    write_reported,
    write_submission,
)
from searchgym.eval.leaderboard.table import build_board
from searchgym.eval.leaderboard.tasks import Tasks
from searchgym.eval.report.board import board_page
from searchgym.eval.report.markdown import escaped, to_markdown
from searchgym.options.cards import list_cards
from searchgym.rollout.models import Model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, its suite's card, tasks that are loaded once, and a good submission."""
    folder = tmp_path_factory.mktemp("made")
    card = card_of(folder)
    run = make_run(folder / "run", card)
    return run, card, Tasks(cards=[card]), submit(run, card, folder / "good")


@pytest.fixture
def sub(made, tmp_path):
    """A copy of the good submission, to be tampered with."""
    shutil.copytree(made[3], tmp_path / "sub")
    return tmp_path / "sub"


def refused(made, folder, field, match=""):
    """Checks that a submission is refused for a field; returns the error."""
    with pytest.raises(SubmissionError, match=match or field) as caught:
        check_submission(folder, made[2])
    assert caught.value.field == field
    return caught.value


def replayed(made, folder):
    """Checks a submission, then repeats all of its episodes."""
    checked = check_submission(folder, made[2])
    return replay_episodes(checked, agent_of(checked.manifest, None), None)


def test_a_good_submission_gives_its_scores_again(made):
    checked = check_submission(made[3], made[2])
    assert checked.scores["em"] == pytest.approx(4 / 12)
    assert json.loads(json.dumps(checked.scores)) == json.loads((made[0] / "scores.json").read_text())
    assert replayed(made, made[3]) == {"episodes": 12, "searches": 12}


def test_the_texts_of_passages_stay_in_the_corpus(made):
    (row, *_) = read_rows(made[3])
    assert all(hit["passage"]["text"] == "" for search in row["searches"] for hit in search["hits"])
    assert row["contexts"] == []
    assert all(hit.passage.text for hit in check_submission(made[3], made[2]).scored.episodes[0].searches[0].hits)


# -- the manifest, edited by hand ----------------------------------------------------------------------------------

OTHER = {int: 7, float: 7.5, str: "other", dict: {"other": "0"}, type(None): "http://other"}


@pytest.mark.parametrize(
    "field", [field.name for field in dataclasses.fields(SubmissionManifest) if field.name != "seal"]
)
def test_an_edit_by_hand_is_refused_by_the_name_of_the_field(made, sub, field):
    value = json.loads((sub / MANIFEST).read_text()).get(field)
    others = {"training_seed": 3, "models": {"x": {"name": "y"}}, "date": "2020-01-01", "template": {"x": {"y": 1}}}
    other = others.get(field, OTHER[type(value)])
    edit_manifest(sub, seal=False, **{field: other})
    refused(made, sub, field)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("format", "searchgym submission 0", "format"),
        ("name", "two\nlines", "name"),
        ("name", " ", "name"),
        ("name", "x" * 121, "name"),
        ("by", "\x1b[31mred", "by"),
        ("by", "\u202eturned", "by"),
        ("date", "2999-01-01", "date"),
        ("date", "yesterday", "date"),
        ("url", "javascript:alert(1)", "url"),
        ("suite", "nope", "suite"),
        ("suite", "/etc/passwd.yaml", "suite"),
        ("part", "nope", "part"),
        ("env", "searchgym/World-v0", "env"),
        ("dataset", "HotpotQA", "dataset"),
        ("split", "test", "split"),
        ("questions", 11, "questions"),
        ("questions", 0, "questions"),
        ("questions_sha256", "0" * 64, "questions_sha256"),
        ("corpus_sha256", "0" * 64, "corpus_sha256"),
        ("retriever", {"retriever": "BM25Retriever", "corpus": None}, "corpus_sha256"),
        ("protocol", "json", "protocol"),
        ("scorer", "musique", "scorer"),
        ("reward", "reward_f1", "reward"),
        ("top_k", 1, "top_k"),
        ("top_k", 0, "top_k"),
        ("max_turns", 2, "max_turns"),
        ("max_observation_words", 20, "max_observation_words"),
        ("agent", "rag", "workflow"),
        ("agent", "my-own", "agent"),
        ("workflow", "os:system", "workflow"),
        ("prompts", {"searcher": "0" * 64}, "prompts"),
        ("models", {}, "models"),
        ("models", {"searcher": {"name": "another"}}, "models"),
        ("models", {"searcher": {"name": "tiny", "sha256": "0" * 64}}, "models"),
        ("temperature", -1.0, "temperature"),
        ("temperature", float("nan"), "manifest.json: manifest: temperature: expected a finite number, got nan"),
        ("samples", 2, "samples"),
        ("seed", 1, "seed"),
        ("training_seed", -1, "training_seed"),
        ("seconds", float("inf"), "manifest.json: manifest: seconds: expected a finite number, got inf"),
        ("commit", "HEAD", "commit"),
        ("hardware", {"gpu": ["H100"]}, "hardware"),
        ("files", {EPISODES: "0" * 64}, "files"),
        ("files", {PREDICTIONS: "0" * 64, EPISODES: "0" * 64}, PREDICTIONS),
        ("files", {EPISODES: "0" * 64, "../run/run.json": "0" * 64}, "files"),
    ],
)
def test_a_field_that_the_data_contradict_is_refused_though_it_is_sealed(made, sub, field, value, named):
    edit_manifest(sub, **{field: value})
    with pytest.raises(SubmissionError) as caught:
        check_submission(sub, made[2])
    assert (caught.value.field, named in str(caught.value)) == (named.split(":")[0], True)


def test_a_reward_of_another_name_is_refused(made, sub):
    rows = read_rows(sub)
    rows[0]["reward"] = 0.5
    write_rows(sub, rows)
    refused(made, sub, "reward", "reward 0.5, reward_em gives")


@pytest.mark.parametrize("key", ["em", "f1_ci95", "searches", "legal", "splits", "title_recall", "invented"])
def test_a_score_that_differs_is_refused_by_its_name(made, sub, key):
    scores = json.loads((sub / MANIFEST).read_text())["scores"]
    changed = {"f1_ci95": [0.9, 1.0], "title_recall": [1.0] * 5, "splits": {}, "invented": 1.0}.get(key, 0.9)
    edit_manifest(sub, scores=scores | {key: changed})
    with pytest.raises(SubmissionError) as caught:
        check_submission(sub, made[2])
    assert caught.value.field.startswith(f"scores.{key}")


def test_unknown_keys_and_other_forms_are_refused(made, sub):
    text = json.loads((sub / MANIFEST).read_text())
    for bad in (text | {"scorez": {}}, {"format": text["format"]}, [], text | {"top_k": "3"}):
        (sub / MANIFEST).write_text(json.dumps(bad))
        refused(made, sub, MANIFEST)
    (sub / MANIFEST).write_text("{")
    refused(made, sub, MANIFEST, "not JSON")
    (sub / MANIFEST).unlink()
    refused(made, sub, MANIFEST, "not the folder of a submission")


# -- episodes and predictions --------------------------------------------------------------------------------------


def test_a_changed_file_is_refused_by_its_name(made, sub):
    for name in (EPISODES, PREDICTIONS):
        rows = read_rows(sub, name)
        write_rows(sub, rows[:-1], name, seal=False)
        refused(made, sub, name, "is not the file that the manifest names")
        shutil.copy(made[3] / name, sub / name)
    (sub / PREDICTIONS).unlink()
    refused(made, sub, PREDICTIONS, "no such file")


def test_a_cut_gzip_is_refused(made, sub):
    data = (sub / EPISODES).read_bytes()
    (sub / EPISODES).write_bytes(data[: len(data) // 2])
    edit_manifest(sub, files=sums(sub))
    refused(made, sub, EPISODES, "damaged gzip data")


def sums(folder):
    from searchgym.corpora.files import sha256_file

    return {name: sha256_file(folder / name) for name in (EPISODES, PREDICTIONS)}


def change(rows, **fields):
    """Changes fields of the first episode."""
    rows[0] |= fields
    return rows


def answered(text):
    return {"text": text, "supporting_facts": None, "evidences": None, "paragraphs": None, "answerable": None}


def search_of(rows, **fields):
    """Changes the first search of the first episode."""
    rows[0]["searches"][0] |= fields
    return rows


TAMPERED = {
    "a question left out": (lambda rows: rows[1:], EPISODES, "questions without a prediction"),
    "a question twice": (lambda rows: [*rows, rows[0]], EPISODES, "ids predicted more than once"),
    "another split": (lambda rows: change(rows, question_id="hotpot-7"), EPISODES, "without a question"),
    "a second attempt": (lambda rows: change(rows, attempt=1), EPISODES, "attempt 1 of 1"),
    "another agent": (lambda rows: change(rows, agent="jade"), "agent", "has 'jade', expected 'search-r1'"),
    "another environment": (lambda rows: change(rows, env="x"), "env", "expected 'searchgym/Demo-v0'"),
    "another seed": (lambda rows: change(rows, seed=4), "seed", "has 4, expected 0"),
    "an answer changed": (lambda rows: change(rows, answer=answered("Dunmere")), EPISODES, "but its answer scores"),
    "its own scores": (lambda rows: change(rows, scores={"em": 1.0, "f1": 1.0}), EPISODES, "but its answer scores"),
    "an answer of a million": (
        lambda rows: change(rows, answer=answered("x" * 10**6)),
        EPISODES,
        "1,000,000 characters",
    ),
    "an answer that is a list": (lambda rows: change(rows, answer=answered(["x"])), EPISODES, "not an episode"),
    "a reward that is none": (lambda rows: change(rows, reward=float("nan")), "reward", "gives"),
    "no reason to stop": (lambda rows: change(rows, stop_reason="turns"), EPISODES, "with an answer"),
    "more turns": (lambda rows: change(rows, turns=9), "max_turns", "9 turns"),
    "fewer turns": (lambda rows: change(rows, turns=1, invalid=0), "max_turns", "an answer: 1 turns"),
    "more words": (lambda rows: change(rows, observation_words=3, invalid=0), "max_observation_words", "its hits show"),
    "more hits": (lambda rows: search_of(rows, hits=rows[0]["searches"][0]["hits"] * 2), "top_k", "more than 3 hits"),
    "a search too late": (lambda rows: search_of(rows, turn=5), "max_turns", "searches in turns"),
    "a call of another": (lambda rows: call_of(rows, model_key="gpt"), "models", "a call of 'gpt' as 'searcher'"),
    "another role": (lambda rows: call_of(rows, role="judge"), "models", "as 'judge'"),
    "no call at all": (lambda rows: change(rows, calls=[]), EPISODES, "has no call of a model"),
    "an invented passage": (lambda rows: passage_of(rows, id="p999"), EPISODES, "no passage of the corpus"),
    "a title changed": (lambda rows: passage_of(rows, title="Gold"), EPISODES, "is called"),
    "an invented passage with a text": (
        lambda rows: passage_of(rows, id="forged", text="of its own"),
        EPISODES,
        "'forged' is no passage of the corpus",
    ),
    "a title changed, with the text of the corpus": (
        lambda rows: passage_of(rows, title="Gold", text=texts_of_demo()[hit_of(rows)["id"]]),
        EPISODES,
        "is called",
    ),
    "a text changed": (lambda rows: passage_of(rows, text="The answer is Dunmere."), EPISODES, "has another text"),
    "a text with a word more": (
        lambda rows: passage_of(rows, text=texts_of_demo()[hit_of(rows)["id"]] + " Dunmere"),
        EPISODES,
        "has another text",
    ),
    "the text of another passage": (
        lambda rows: passage_of(
            rows, text=next(iter(set(texts_of_demo().values()) - {texts_of_demo()[hit_of(rows)["id"]]}))
        ),
        EPISODES,
        "has another text",
    ),
    "an id with a blank more": (lambda rows: passage_of(rows, id=hit_of(rows)["id"] + " "), EPISODES, "no passage"),
    "pages opened": (
        lambda rows: change(rows, opens=[{"turn": 1, "target": "Gold", "title": "Gold", "place": 0}]),
        EPISODES,
        r"has \[Opened",
    ),
    "an older version": (lambda rows: change(rows, searches=None), EPISODES, "not an episode"),
    "an unknown field": (lambda rows: change(rows, tokens=3), EPISODES, "not an episode"),
    "tokens": (lambda rows: change(rows, contexts=[{"parent": None, "fork": 0, "spans": []}]), EPISODES, "expected"),
    "a group": (lambda rows: change(rows, group_uid="g"), EPISODES, "has 'g'"),
}


def call_of(rows, **fields):
    rows[0]["calls"][0] |= fields
    return rows


def hit_of(rows):
    return rows[0]["searches"][0]["hits"][0]["passage"]


def passage_of(rows, **fields):
    hit_of(rows).update(fields)
    return rows


@functools.cache
def texts_of_demo():
    """Id to text of the passages of the bundled corpus."""
    return {passage.id: passage.text for passage in read_passages(bundled_file("demo/corpus.jsonl"))}


def test_a_submission_may_hold_the_texts_of_its_passages(made, sub):
    rows = read_rows(sub)
    for row in rows:
        for search in row["searches"]:
            for hit in search["hits"]:
                hit["passage"]["text"] = texts_of_demo()[hit["passage"]["id"]]
    write_rows(sub, rows)
    assert check_submission(sub, made[2]).scores == check_submission(made[3], made[2]).scores


@pytest.mark.slow_cases
@pytest.mark.parametrize("kind", TAMPERED)
def test_tampered_episodes_are_refused(made, sub, kind):
    tamper, field, match = TAMPERED[kind]
    write_rows(sub, tamper(read_rows(sub)))
    refused(made, sub, field, match)


PREDICTED = {
    "an id left out": (lambda rows: rows[1:], "id 'demo-01' is missing, of 1"),
    "an id twice": (lambda rows: [*rows, rows[0]], "id 'demo-01' stands twice"),
    "another split": (lambda rows: change(rows, id="hotpot-7"), "id 'hotpot-7': no episode of this question"),
    "an answer that is null": (lambda rows: change(rows, answer=None), "answer: None, its episode has"),
    "an answer that is a list": (lambda rows: change(rows, answer=["x"]), "answer: expected text"),
    "an answer that is no number": (lambda rows: change(rows, answer=float("nan")), "answer: expected text"),
    "an answer of a million": (lambda rows: change(rows, answer="x" * 10**6), "its episode has"),
    "HTML for an answer": (lambda rows: change(rows, answer="<script>alert(1)</script>"), "its episode has"),
    "a field more": (lambda rows: change(rows, em=1.0), "em: 1.0, its episode has None"),
    "fewer searches": (lambda rows: change(rows, n_search=0), "n_search: 0, its episode has 1"),
    "a row that is no object": (lambda rows: [[1], *rows], "expected a JSON object"),
}


@pytest.mark.parametrize("kind", PREDICTED)
def test_tampered_predictions_are_refused(made, sub, kind):
    tamper, match = PREDICTED[kind]
    write_rows(sub, tamper(read_rows(sub, PREDICTIONS)), PREDICTIONS)
    refused(made, sub, PREDICTIONS, match)


# -- replays -------------------------------------------------------------------------------------------------------


def forge(made, sub, edit):
    """Edits every episode, and makes scores, predictions and manifest agree, as who knows the program would."""
    from searchgym.envs.core import State
    from searchgym.envs.reward import score_rewards
    from searchgym.eval.leaderboard.episodes import load_episodes, prediction
    from searchgym.eval.scores import score_each, summarise
    from searchgym.records import Answer

    task = made[2].base("small", "Demo")
    rows = read_rows(sub)
    for row in rows:
        question = task.by_id[row["question_id"]]
        edit(row, question)
        state = State(question, answer=Answer(row["answer"]["text"]), stop_reason="answer")
        row["scores"] = {name: reward(state) for name, reward in score_rewards().items()}
        row["reward"] = row["scores"]["em"]
    write_rows(sub, rows)
    episodes = load_episodes(sub, task)
    scores = summarise(score_each(task, episodes))
    write_rows(sub, [prediction(e, task.by_id[e.question_id]) for e in episodes], PREDICTIONS)
    edit_manifest(sub, scores=scores, files=sums(sub))
    return scores


def gold_answer(row, question):
    row["answer"]["text"] = question.answers[0]


def gold_hits(row, question):
    """Invents a search that finds the gold pages at once, and an output that answers right."""
    gold_answer(row, question)
    hits = row["searches"][0]["hits"]
    row["searches"][0]["hits"] = [hit | {"score": 9.0 - n} for n, hit in enumerate(reversed(hits))]
    row["calls"][-1]["text"] = f"<answer>{question.answers[0]}</answer>"


def other_query(row, question):
    row["searches"][0]["query"] = "a query that no output holds"


def test_invented_answers_pass_the_check_and_are_refused_by_a_replay(made, sub):
    assert forge(made, sub, gold_answer)["em"] == 1.0
    assert check_submission(sub, made[2]).scores["em"] == 1.0
    with pytest.raises(SubmissionError, match=r"answer was Answer.*the workflow gives Answer"):
        replayed(made, sub)


def test_invented_hits_are_refused_by_a_replay(made, sub):
    forge(made, sub, gold_hits)
    assert check_submission(sub, made[2]).scores["em"] == 1.0
    with pytest.raises(SubmissionError, match=r"query '.*' returned \["):
        replayed(made, sub)


def test_an_invented_query_is_refused_by_a_replay(made, sub):
    forge(made, sub, other_query)
    with pytest.raises(SubmissionError, match="a query that no output holds"):
        replayed(made, sub)


def test_a_folder_with_the_name_of_an_agent_that_ships_is_not_its_agent(made, tmp_path, monkeypatch):
    """Neither for the check nor for the replay, in a working folder of somebody else's."""
    (tmp_path / "search-r1").mkdir()
    (tmp_path / "search-r1" / "card.yaml").write_text("name: search-r1\nsummary: ''\nworkflow: theirs:Evil\n")
    (tmp_path / "theirs.py").write_text("open('canary', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    assert replayed(made, made[3]) == {"episodes": 12, "searches": 12}
    assert agent_of(read_manifest(made[3]), None).source == load_agent("search-r1").source
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(("field", "value"), [("turn", 4), ("legal", False), ("answer", "invented")])
def test_what_a_call_says_of_itself_is_repeated(made, sub, field, value):
    rows = read_rows(sub)
    rows[1]["calls"][-1][field] = value
    write_rows(sub, rows)
    with pytest.raises(SubmissionError):
        replayed(made, sub)


def test_another_number_of_hits_is_refused_by_a_replay(made, sub):
    edit_manifest(sub, top_k=5)
    assert check_submission(sub, made[2]).manifest.top_k == 5
    with pytest.raises(SubmissionError, match=r"returned \["):
        replayed(made, sub)


def test_another_retriever_is_refused_by_a_replay(made, sub):
    retriever = json.loads((sub / MANIFEST).read_text())["retriever"]
    edit_manifest(sub, retriever=retriever | {"k1": 1.5})
    with pytest.raises(SubmissionError) as caught:
        replayed(made, sub)
    assert caught.value.field == "retriever"


def test_another_protocol_is_refused_by_a_replay(made, sub):
    edit_manifest(sub, protocol="tool_calls")
    with pytest.raises(SubmissionError, match="queries was"):
        replayed(made, sub)


def test_without_the_agent_only_searches_are_repeated(made, tmp_path):
    card, run = made[1], tmp_path / "run"
    shutil.copytree(made[0], run)
    record = json.loads((run / "run.json").read_text()) | {"agent": "mine", "workflow": "evil:Agent()"}
    (run / "run.json").write_text(json.dumps(record))
    lines = [json.loads(line) | {"agent": "mine"} for line in (run / "episodes.jsonl").read_text().splitlines()]
    (run / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder = submit(run, card, tmp_path / "sub")
    checked = check_submission(folder, made[2])
    assert agent_of(checked.manifest, None) is None
    assert replay_episodes(checked, None, 5) == {"episodes": 0, "searches": 5}
    own = agent_of(checked.manifest, load_agent("search-r1"))  # the user names it
    assert replay_episodes(checked, own, None)["episodes"] == 12


@pytest.mark.slow_cases
@pytest.mark.parametrize("agent", ["rag", "ircot", "search-r1-few-shot", "random", "single-search", "m-ask", "jade"])
def test_every_kind_of_agent_is_repeated_exactly(made, tmp_path, agent):
    run = make_run(tmp_path / "run", made[1], agent)
    folder = submit(run, made[1], tmp_path / "sub")
    assert replayed(made, folder)["episodes"] == 12


def test_several_samples_and_full_budgets_are_repeated(made, tmp_path):
    run = make_run(tmp_path / "run", made[1], samples=3, max_turns=2, top_k=2)
    folder = submit(run, made[1], tmp_path / "sub")
    checked = check_submission(folder, made[2])
    assert (checked.manifest.samples, checked.manifest.max_turns, checked.scores["n"]) == (3, 2, 12)
    assert replay_episodes(checked, agent_of(checked.manifest, None), None)["episodes"] == 36


# -- run again -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_repetition_is_recorded_for_these_episodes_only(made, sub):
    from made_submissions import Characters, Says

    checked = check_submission(sub, made[2])

    def again(right, sha256="0" * 64):
        model = Model.over("scripted", Says(checked.task, right), Characters(), sha256=sha256)
        return run_again(checked, load_agent("search-r1"), {"searcher": model})

    with pytest.raises(SubmissionError, match="the weights here are not those of scripted"):
        again(3, "1" * 64)
    with pytest.raises(SubmissionError, match=r"scores.em: the submission has 0.3333, run again it is 0.5000"):
        again(2)
    assert not (sub / RERUN).exists()
    assert again(3)["answers_equal"] == 12
    (board,) = build_board([sub], made[2]).tracks
    assert board.rows[0].rerun
    shutil.rmtree(sub)
    shutil.copytree(submit(make_run(sub.parent / "other", made[1], right=2), made[1], sub.parent / "new"), sub)
    (sub / RERUN).write_text(json.dumps({"episodes_sha256": checked.manifest.files[EPISODES]}))
    assert not build_board([sub], made[2]).tracks[0].rows[0].rerun  # a record of other episodes


# -- the board -----------------------------------------------------------------------------------------------------


@pytest.fixture
def board_of(made, tmp_path):
    """Returns a function that makes submissions of (name, right, training seed, rules) and builds their board."""

    def build(*rows):
        for number, (name, right, seed, rules) in enumerate(rows):
            run = make_run(tmp_path / f"run{number}", made[1], right=right, **rules)
            submit(run, made[1], tmp_path / "board" / f"{number}", name, seed=seed)
        return build_board([tmp_path / "board"], made[2])

    return build


@pytest.mark.slow
def test_rows_are_ranked_within_their_track_only(board_of):
    board = board_of(("low", 6, None, {}), ("high", 1, None, {}), ("more hits", 2, None, {"top_k": 5}))
    assert [[row.manifest.name for row in track.rows] for track in board.tracks] == [["high", "low"], ["more hits"]]
    gap = board.tracks[0].to_best["low"]
    assert (gap.mean, gap.verdict) == (pytest.approx(2 / 12 - 1), "worse")
    assert board.tracks[1].to_best == {}
    page = to_markdown(board_page(board))
    assert page.count("### Demo") == 2
    assert "| 1 | high | 1.000 (1.000 to 1.000) |  |" in page and "| recomputed |" in page
    assert page.splitlines()[2].startswith(
        "- small, Demo: “high” has the best EM, 1.000 (95 % interval 1.000 to 1.000), on 12 questions; "
        f"second of 2 is “low” with 0.167, difference {gap}. Newest submission: "
    )


@pytest.mark.slow
def test_a_mean_over_parts_needs_one_retriever_and_one_set_of_budgets(made, tmp_path):
    card = tmp_path / "two.yaml"
    part = "  - env: Demo\n    n: 12\n    name: {}\n"
    card.write_text("name: two\nsummary: s\nparts:\n" + part.format("A") + part.format("B"))
    tasks, run = Tasks(cards=[card]), made[0]
    other = make_run(tmp_path / "other", made[1], top_k=5)
    for place, own, where in (("1", run, "A"), ("2", run, "B"), ("3", other, "A"), ("4", run, "B")):
        name = "alike" if place in "12" else "k 5 in one part"
        write_submission(own, "two", where, About(name, "me"), tmp_path / "board" / place, tasks)
    page = to_markdown(board_page(build_board([tmp_path / "board"], tasks)))
    assert page.count("EM, mean over parts |") == 1
    assert "| alike | 0.333 | 0.333 | 0.333 |" in page
    assert "| k 5 in one part | 0.333 | 0.333 |" not in page


@pytest.mark.slow
def test_equal_rows_are_not_distinguishable(board_of):
    board = board_of(("one", 3, None, {}), ("two", 3, None, {}))
    assert board.tracks[0].to_best["two"].verdict == "not distinguishable"
    assert "not distinguishable" in to_markdown(board_page(board))


@pytest.mark.slow
def test_training_seeds_make_one_row_with_an_interval_over_seeds(board_of):
    from scipy.stats import t

    board = board_of(("ours", 2, 0, {}), ("ours", 3, 1, {}), ("ours", 6, 2, {}))
    (row,) = board.tracks[0].rows
    values = [6 / 12, 4 / 12, 2 / 12]
    assert row.mean("em") == pytest.approx(sum(values) / 3)
    half = t.ppf(0.975, 2) * (1 / 6) / 3**0.5
    assert row.over_seeds("em") == (pytest.approx(1 / 3 - half), pytest.approx(1 / 3 + half))
    assert row.questions["demo-06"]["em"] == 1.0
    assert row.questions["demo-02"]["em"] == pytest.approx(1 / 3)


@pytest.mark.slow
def test_two_submissions_of_one_name_are_refused(board_of):
    board = board_of(("ours", 2, None, {}), ("ours", 3, None, {}), ("seeds", 3, 1, {}), ("seeds", 3, 1, {}))
    assert [error.field for error in board.refused] == ["name", "name"]
    assert "two submissions of one name" in str(board.refused[0])


def test_seeds_of_one_row_must_be_of_one_method(board_of):
    board = board_of(("ours", 2, 0, {}), ("ours", 3, None, {}))
    assert [error.field for error in board.refused] == ["training_seed"]


def test_a_name_that_exists_is_refused_and_nothing_is_lost(made, tmp_path):
    folder = submit(made[0], made[1], tmp_path / "sub")
    before = (folder / MANIFEST).read_bytes()
    with pytest.raises(RunExistsError, match="two submissions of one name"):
        submit(made[0], made[1], folder)
    assert (folder / MANIFEST).read_bytes() == before
    assert not list(tmp_path.glob(".*"))


HOSTILE = "<script>alert(1)</script> | [x](javascript:alert(1)) `code` <img src=x onerror=alert(1)> **b**"


def test_hostile_names_are_shown_and_never_read_as_markup(made, tmp_path):
    submit(made[0], made[1], tmp_path / "board" / "a", name=HOSTILE, by="<b>me</b>")
    write_reported(
        Reported(format="searchgym reported 1", name=HOSTILE, by="x", suite="small", part="Demo", source=HOSTILE,
                 differs="<iframe>", em=0.5), tmp_path / "board" / "b")  # fmt: skip
    page = to_markdown(board_page(build_board([tmp_path / "board"], made[2])))
    for bad in ("<script", "<img", "<iframe", " [x]", " `code`", " **b**"):
        assert bad not in page
    assert page.count("&lt;script&gt;") == 4
    tables = [line for line in page.splitlines() if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in tables}
    assert widths == {13, 8}  # no cell broke its row


def test_hostile_answers_are_only_data(made, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(made[0], run)
    lines = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    for line in lines:
        line["answer"]["text"], line["scores"], line["reward"] = HOSTILE, {"em": 0.0, "f1": 0.0}, 0.0
    (run / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder = submit(run, made[1], tmp_path / "board" / "sub")
    assert check_submission(folder, made[2]).scores["em"] == 0.0
    assert "alert" not in to_markdown(board_page(build_board([folder], made[2])))


def test_reported_rows_are_apart_and_checked(tmp_path, made):
    row = Reported(format="searchgym reported 1", name="Paper", by="us", suite="small", part="Demo", source="arXiv 1",
                   differs="k 5, EM of another scorer", em=0.433)  # fmt: skip
    folder = write_reported(row, tmp_path / "board" / "paper")
    board = build_board([tmp_path / "board"], made[2])
    assert (board.tracks, [r.name for r in board.reported]) == ([], ["Paper"])
    assert "## Reported only" in to_markdown(board_page(board))
    for field, value, named in (
        ("em", 43.3, "reported.json: reported: em: expected at most 1, got 43.3"),
        ("em", float("nan"), "reported.json: reported: em: expected a finite number, got nan"),
        ("source", " ", "source"),
        ("name", "a\nb", "name"),
        ("differs", "", "differs"),
    ):
        with pytest.raises(SubmissionError) as caught:
            write_reported(dataclasses.replace(row, **{field: value}), tmp_path / "bad")
        assert (caught.value.field, named in str(caught.value)) == (named.split(":")[0], True)
        assert not (tmp_path / "bad").exists()
    (folder / "reported.json").write_text("{}")
    with pytest.raises(SubmissionError, match="missing key"):
        read_reported(folder)


def test_what_is_refused_is_named_and_the_rest_is_shown(made, sub, tmp_path):
    shutil.copytree(made[3], tmp_path / "board" / "good")
    edit_manifest(sub, seal=False, by="somebody else")
    shutil.move(sub, tmp_path / "board" / "bad")
    board = build_board([tmp_path / "board"], made[2])
    assert [error.field for error in board.refused] == ["by"]
    assert len(board.tracks[0].rows) == 1


# -- submissions of runs -------------------------------------------------------------------------------------------


def test_runs_that_make_no_submission(made, tmp_path):
    run, card = made[:2]
    with pytest.raises(UsageError, match="is no run of a suite: give --suite and --part"):
        runs_of(run)
    assert runs_of(run, "small", "Demo") == {("small", "Demo"): run}
    with pytest.raises(UsageError, match="holds no finished run"):
        runs_of(tmp_path, "small", "Demo")
    other = tmp_path / "run"
    shutil.copytree(run, other)
    record = json.loads((run / "run.json").read_text())
    for change in ({"questions_sha256": "0" * 64}, {"env": "searchgym/World-v0"}):
        (other / "run.json").write_text(json.dumps(record | change))
        with pytest.raises(DataError, match="evaluate the suite"):
            submit(other, card, tmp_path / "sub")
    del record["prompts"]
    (other / "run.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match="lacks prompts: damaged"):
        submit(other, card, tmp_path / "sub")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_names_of_folders():
    assert folder_name("Search-R1, tiny (GRPO)") == "search-r1-tiny-grpo"
    assert folder_name("../../etc", 3) == "etc_seed3"
    with pytest.raises(UsageError, match="no letter or digit"):
        folder_name("…")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a|b", "a\\|b"), ("<b>&amp;", "&lt;b&gt;&amp;amp;"), ("x\ny", "x y"), ("[a](b)", "\\[a\\](b)")],
)
def test_escaping(text, expected):
    assert escaped(text) == expected


# -- the leaderboard that ships ------------------------------------------------------------------------------------


def test_the_shipped_agents_are_known_to_replays():
    assert {"search-r1", "m-ask", "jade", "oracle", "evidence-oracle"} <= set(list_cards("agents"))


@pytest.mark.slow
def test_a_gzip_that_unpacks_to_much_is_refused(made, sub):
    (sub / EPISODES).write_bytes(gzip.compress(b"{" + b" " * (1 << 27)))
    edit_manifest(sub, files=sums(sub))
    refused(made, sub, EPISODES, "unpacks to more than 100 times its size")


BOARD = Path(__file__).parent.parent.parent / "eval" / "leaderboard"


def test_the_shipped_leaderboard_is_small():
    files = [path for path in BOARD.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 5_000_000
    assert len({read_manifest(path.parent).name for path in BOARD.rglob(MANIFEST)}) >= 8


def test_a_shipped_row_is_recomputed_and_repeated():
    checked = check_submission(BOARD / "worlds" / "World" / "single-search")
    assert checked.scores["em"] == pytest.approx(0.122)
    assert replay_episodes(checked, load_agent("single-search"), 20)["episodes"] == 20


OPEN_THOUGHTS = {
    "WorldFull/jade-tiny-teams-after-ppo_seed0", "WorldFull/jade-tiny-teams-before-training",
    *(f"WorldFull/search-r1-tiny-after-grpo_seed{seed}" for seed in range(3)),
}  # fmt: skip
"""Rows recorded when a thought that never closes was read as the output: another action, or another notice."""


@pytest.mark.slow
def test_every_shipped_row_is_recomputed_and_the_page_is_that_of_the_rows():
    board = build_board([BOARD])
    assert (board.refused, board.absent) == ([], [])
    assert [len(track.rows) >= 8 for track in board.tracks] == [True, True]
    assert to_markdown(board_page(board)) == (BOARD / "README.md").read_text(encoding="utf-8")
    other = set()
    for member in (member for track in board.tracks for row in track.rows for member in row.members):
        try:
            assert replay_episodes(member, load_agent(member.manifest.agent), 10)["episodes"] == 10
        except SubmissionError:
            other.add("/".join(member.folder.parts[-2:]))
    assert other == OPEN_THOUGHTS


def test_pages_that_a_model_wrote_make_no_row(made, sub, tmp_path):
    """Neither of a run, nor of a submission that says nothing of it, nor of one that names such a retriever."""
    run = tmp_path / "run"
    shutil.copytree(made[0], run)
    rows = [json.loads(line) for line in (run / "episodes.jsonl").read_text().splitlines()]
    own = next(row for row in rows if row["searches"] and row["searches"][0]["hits"])
    own["searches"][0]["hits"][0]["passage"]["id"] = "simulated:useful/1"
    (run / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="written by a model"):
        submit(run, made[1], tmp_path / "row")
    rows = read_rows(sub)
    hit = next(hit for row in rows for searched in row["searches"] for hit in searched["hits"])
    hit["passage"] |= {"id": "simulated:useful/1", "text": "a page"}
    write_rows(sub, rows)
    refused(made, sub, "retriever", "pages that a model wrote")
    edit_manifest(sub, retriever={"kind": "simulated", "model": "m"})
    refused(made, sub, "retriever", "searches the corpus of the track")


def test_searches_of_a_further_retriever_make_no_row(made, sub, tmp_path):
    """Neither of a run whose record names one, nor of a submission in which one was asked."""
    run = tmp_path / "run"
    shutil.copytree(made[0], run)
    record = json.loads((run / "run.json").read_text())
    assert record["sources"] == {}
    (run / "run.json").write_text(json.dumps(record | {"sources": {"web": {"kind": "bm25"}}}))
    with pytest.raises(DataError, match="sources web: the leaderboard has no track with further retrievers"):
        submit(run, made[1], tmp_path / "row")
    rows = read_rows(sub)
    next(searched for row in rows for searched in row["searches"])["source"] = "web"
    write_rows(sub, rows)
    refused(made, sub, "retriever", "a search of a further retriever")
