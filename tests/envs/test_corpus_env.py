"""``Corpus-v0``: questions of one's own corpus, generated at first use."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from made_pages import PAGES

import searchgym  # noqa: F401
from searchgym.errors import CardError, DataError, DataWarning, UsageError

ROOT = Path(__file__).parent.parent.parent

DATA = os.environ.get("SEARCHGYM_DATA", "")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    notes = tmp_path / "notes"
    notes.mkdir()
    for number, page in enumerate(PAGES[:60]):
        (notes / f"{number}.md").write_text(f"# {page.title}\n\n{page.text}\n")
    return notes


@pytest.mark.slow
def test_sixty_documents_become_an_environment(folder):
    env = gymnasium.make("searchgym/Corpus-v0", corpus=folder, questions={"n": 60})
    _question, info = env.reset(seed=1)
    gold = env.unwrapped.task.find(info["question_id"])
    for query in gold.metadata["queries"]:
        _, reward, ended, _, info = env.step(f"<search>{query}</search>")
        assert (reward, ended) == (0.0, False)
    _, reward, ended, _, _ = env.step(f"<answer>{gold.answers[0]}</answer>")
    assert (reward, ended) == (1.0, True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(env.unwrapped, skip_render_check=True)


@pytest.mark.slow
def test_a_vector_equals_singles_and_the_cache_is_used(folder, monkeypatch):
    options = {"corpus": folder, "questions": {"n": 60}}
    vector = gymnasium.make_vec("searchgym/Corpus-v0", num_envs=3, **options)
    from searchgym.questions import storage

    monkeypatch.setattr(storage, "write_set", None)  # generated once, then read
    together, _ = vector.reset(seed=[4, 5, 6])
    apart = [gymnasium.make("searchgym/Corpus-v0", **options).reset(seed=seed)[0] for seed in (4, 5, 6)]
    assert list(together) == apart


@pytest.mark.slow
def test_splits_and_errors(folder):
    train = gymnasium.make("searchgym/Corpus-v0", corpus=folder, questions={"n": 60}).unwrapped.task.questions
    test = gymnasium.make("searchgym/Corpus-v0", corpus=folder, questions={"n": 60, "split": "test"}).unwrapped.task
    assert not {t for q in train for t in q.gold_titles} & {t for q in test.questions for t in q.gold_titles}
    with pytest.raises(UsageError, match=r"pass corpus=PATH, on the command line --corpus PATH \(a file or"):
        gymnasium.make("searchgym/Corpus-v0")
    with pytest.raises((UsageError, CardError), match="splitt"):
        gymnasium.make("searchgym/Corpus-v0", corpus=folder, questions={"splitt": "test"})
    with pytest.raises(UsageError, match=r"questions\.n: unknown key"):
        gymnasium.make("searchgym/World-v0", questions={"n": 3})
    for old in ("world", "generated", "masked", "open_answers"):
        with pytest.raises(UsageError, match=rf"{old}= is an old spelling: write questions=\{{\.\.\.\}}"):
            gymnasium.make("searchgym/World-v0", **{old: {"n": 3}})


@pytest.mark.slow
def test_documents_without_people_or_works(tmp_path, monkeypatch):
    """This repository's own docs: no pack knows them, so sentences with a hidden link ask about them."""
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    (tmp_path / "docs").mkdir()
    for page in (ROOT / "docs").rglob("*"):
        if page.suffix in (".md", ".png"):
            shutil.copy(page, tmp_path / "docs")
    with pytest.warns(DataWarning, match=r"left out: \d+ \.png"):
        env = gymnasium.make("searchgym/Corpus-v0", corpus=tmp_path / "docs", questions={"n": 50, "split": "all"})
    kinds = [question.kind for question in env.unwrapped.task.questions]
    assert kinds.count("cloze") + kinds.count("cloze-chain") > len(kinds) / 2
    assert env.reset(seed=0)[0]


def test_a_corpus_that_nothing_can_be_asked_about(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("# A\n\nNothing.\n")
    with pytest.raises(DataError, match="gives no questions: 1 passages"):
        gymnasium.make("searchgym/Corpus-v0", corpus=tmp_path / "notes")


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="SEARCHGYM_DATA is not set")
def test_sixty_real_pages(tmp_path, monkeypatch):
    """Pages of films and their directors that are no gold page of an evaluation question."""
    from searchgym.corpora.questions import read_questions
    from searchgym.questions.graphs.links import find_links
    from searchgym.questions.source import components, hold_out
    from searchgym.records import Passage

    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    rows = json.loads((Path(DATA) / "2wikimultihopqa" / "corpus.json").read_text())
    pages = [Passage(str(n), row["title"], row["text"]) for n, row in enumerate(rows)]
    kept = [q for name in ("hotpotqa", "2wikimultihopqa") for q in read_questions(Path(DATA) / name / "questions.json")]
    out = hold_out(pages, [t for q in kept for t in q.gold_titles], [a for q in kept for a in q.golds]).pages
    edges = [(link.source, link.target) for link in find_links(pages).links if not out & {link.source, link.target}]
    chosen = [number for group in components(len(pages), edges)[1:] if len(group) > 2 for number in group][:60]
    (tmp_path / "notes").mkdir()
    for number in chosen:
        (tmp_path / "notes" / f"{number}.md").write_text(f"# {pages[number].title}\n\n{pages[number].text}\n")
    env = gymnasium.make("searchgym/Corpus-v0", corpus=tmp_path / "notes", questions={"n": 80, "split": "all"})
    questions = env.unwrapped.task.questions
    assert len(questions) >= 40
    assert sum(question.metadata["hops"] > 1 for question in questions) >= 10
