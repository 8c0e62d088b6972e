"""Documentation is run: code blocks as they stand, the notebook cell by cell."""

import asyncio
import re
import sys
from pathlib import Path

import doc_blocks
import gymnasium
import nbformat
import pytest
from made_pages import FIRST, LAST, PAGES
from nbclient import NotebookClient

from searchgym import packages
from searchgym.agents.base import load_agent
from searchgym.envs.cards import EnvCard
from searchgym.envs.registration import find_env
from searchgym.envs.task import load_task
from searchgym.errors import CardError, UsageError
from searchgym.eval.viewing.explain import explain_run
from searchgym.eval.viewing.saved import SavedRun
from searchgym.options import kinds
from searchgym.options.cards import find_card, load_card
from searchgym.questions.generate import generate
from searchgym.questions.graphs.packs import load_pack
from searchgym.questions.question_source import QuestionSource
from searchgym.questions.spec import GeneratedSpec
from searchgym.records import Passage
from searchgym.retrieval.cards import RetrieverCard
from searchgym.rollout.engine import Engine
from searchgym.train.loop.assembly import load_tasks, train
from searchgym.train.recipe.load import load_recipe, with_code

ROOT = Path(__file__).parent.parent
EXTEND = sorted(path.name for path in (ROOT / "docs/extend").glob("*.md") if path.name != "testing.md")
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


def of_language(page, language):
    """Texts of a page's blocks in one language."""
    return [block.text for block in doc_blocks.blocks((ROOT / page).read_text()) if block.language == language]


def python_blocks(page):
    return of_language(page, "python")


def yaml_blocks(page):
    return of_language(page, "yaml")


def test_own_corpus_in_under_twenty_lines(tmp_path, monkeypatch):
    (code,) = python_blocks("docs/do/own_documents.md")
    assert len([line for line in code.splitlines() if line.strip()]) < 20
    notes = tmp_path / "notes"
    notes.mkdir()
    for number in range(60):
        text = f"# Pump {number}\n\nPump {number} stands in hall {number % 7}. Its valve is valve B-{number}.\n" * 3
        (notes / f"pump-{number:02}.md").write_text(text)
    monkeypatch.chdir(tmp_path)
    scope = {}
    exec(compile(code, "docs/do/own_documents.md", "exec"), scope)
    assert scope["terminated"]
    assert scope["reward"] == pytest.approx(1.0 - 0.1)
    assert scope["env"].unwrapped.state.searches[0].hits[0].passage.title == "Pump 17"
    del gymnasium.registry["Mine/Notes-v0"]


@pytest.mark.slow
def test_questions_from_documents(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    (tmp_path / "notes").mkdir()
    for number, page in enumerate(PAGES[:60]):
        (tmp_path / "notes" / f"{number}.md").write_text(f"# {page.title}\n\n{page.text}\n")
    monkeypatch.chdir(tmp_path)
    (env,) = python_blocks("docs/do/questions.md")
    pack, triples = python_blocks("docs/do/packs.md")
    assert len([line for line in env.splitlines() if line.strip()]) < 10
    scope = {}
    exec(compile(env, "docs/do/questions.md", "exec"), scope)
    assert (scope["reward"], scope["terminated"]) == (1.0, True)
    card, _ = yaml_blocks("docs/do/packs.md")
    Path("rivers.yaml").write_text(card)
    exec(compile(pack, "docs/do/packs.md", "exec"), scope)
    assert set(scope["facts"]) == {
        ("Upper Tarn", "mouth", "Great Ister"),
        ("Upper Tarn", "length", "81 km"),
        ("Upper Tarn", "country", "Norland"),
        ("Great Ister", "length", "412 km"),
        ("Great Ister", "country", "Norland"),
    }
    Path("triples.tsv").write_text("".join("\t".join(fact) + "\n" for fact in scope["facts"]))
    exec(compile(triples, "docs/do/packs.md", "exec"), scope)
    assert scope["answers"] == ["412 km"]


@pytest.mark.slow
def test_the_pack_of_another_language(tmp_path):
    """Forty painters, each taught by the one seven places on: chains and comparisons in German."""
    (tmp_path / "maler.yaml").write_text(yaml_blocks("docs/do/packs.md")[1])
    names = [f"{first} {last}" for first in FIRST for last in LAST][:40]
    pages = [
        Passage(
            str(n),
            name,
            f"{name} war eine schwedische Malerin, geboren {1850 + n} und unterrichtet von {names[(n + 7) % 40]}.",
        )
        for n, name in enumerate(names)
    ]
    made = generate(pages, load_pack(str(tmp_path / "maler.yaml")), GeneratedSpec(n=60, shapes=("chain", "comparison")))
    asked = {question.text: question.answers[0] for question in made.split("train")}
    assert {question.kind for question in made.split("train")} == {"chain", "comparison"}
    for n, name in enumerate(names):
        taught = f"In welchem Jahr wurde der Mensch, der {name} unterrichtete, geboren?"
        assert asked.get(taught, "") in ("", str(1850 + (n + 7) % 40))
    assert sum(text.startswith("In welchem Jahr wurde der Mensch") for text in asked) > 5
    assert all(re.match("In welchem Jahr|Von wem|Wer wurde früher geboren", text) for text in asked)


def test_the_retrievers_of_the_docs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    episode, built, tool = python_blocks("docs/do/retrieval.md")
    scope = {}
    exec(compile(episode, "docs/do/retrieval.md", "exec"), scope)
    assert "Teskel" in scope["observation"] and scope["env"].unwrapped.task.retriever.misses == 1
    exec(compile(built, "docs/do/retrieval.md", "exec"), scope)
    assert [hit.passage.title for hit in scope["hits"]] == ["Gull", "Heron"]
    exec(compile(tool, "docs/do/retrieval.md", "exec"), scope)
    assert [hit.passage.title for hit in scope["hits"]] == ["Result 0", "Result 1", "Result 2"]


def test_the_retriever_of_the_docs_searches(tmp_path, monkeypatch):
    page = (ROOT / "docs/reference/retrievers.md").read_text()
    table = page[page.index("| kind | retriever") : page.index("## Fields")]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == sorted(
        kinds(RetrieverCard)
    )  # the table of kinds is complete
    (code,) = python_blocks("docs/extend/retriever.md")
    (tmp_path / "titles.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for card in ({"kind": "titles:TitlesCard"}, {"kind": "cache", "of": {"kind": "titles:TitlesCard", "least": 1}}):
        env = gymnasium.make("searchgym/Demo-v0", retriever=card)
        env.reset(seed=0)
        env.step("<search>teskel river</search>")
        hits = env.unwrapped.state.searches[0].hits
        assert hits and all({"teskel", "river"} & set(hit.passage.title.lower().split()) for hit in hits)
    with pytest.raises(CardError, match="least: expected at least 1, got 0"):
        gymnasium.make("searchgym/Demo-v0", retriever={"kind": "titles:TitlesCard", "least": 0})


@pytest.mark.slow_cases
@pytest.mark.parametrize("number", [0, 1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_suites_of_the_docs_pass(number):
    scope = {"__name__": "docs_testing"}
    exec(compile(python_blocks("docs/extend/testing.md")[number], "docs/extend/testing.md", "exec"), scope)
    (suite,) = (value for name, value in scope.items() if name.startswith("Test"))
    checks = [name for name in dir(suite) if name.startswith("test_")]
    assert len(checks) >= 9
    for check in checks:
        getattr(suite(), check)()


def test_the_first_episode_of_the_readme():
    scope = {}
    exec(compile(python_blocks("README.md")[0], "README.md", "exec"), scope)
    assert (scope["reward"], scope["terminated"]) == (1.0, True)


@pytest.mark.parametrize("page", EXTEND)
def test_an_extend_page_is_short_and_has_its_order(page):
    """What you write, the file, how it is named, how it is tested: in 30 lines, code of less than 40 in one file."""
    text = (ROOT / "docs/extend" / page).read_text()
    assert re.match(r"# Extend: (a|an) [a-z ]+\n\nYou write one file", text)
    assert len([line for line in text.splitlines() if line.strip()]) <= 30
    places = [re.search(part, text).start() for part in ("You write", ":\n\n```", "name", "[Tt]ests? it")]
    assert places == sorted(places)
    assert f"docs/extend/{page}" in (ROOT / "ARCHITECTURE.md").read_text()


def test_the_estimator_of_the_docs_compares(tmp_path, monkeypatch):
    code, check = python_blocks("docs/extend/estimator.md")
    (tmp_path / "median.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "median", raising=False)
    override = "advantage.estimator={kind: 'median:Median', scale: 0.5}"
    assert with_code(load_recipe("tiny-grpo", [override])).advantage.estimator.scale == 0.5
    assert with_code(load_recipe("tiny-grpo", ["advantage.estimator=median:Median"])).advantage.estimator.scale == 1
    scope = vars(sys.modules["median"])
    exec(compile(check, "docs/extend/estimator.md", "exec"), scope)
    scope["test_the_median_attempt_gets_nothing"]()


def test_the_agent_of_the_docs_runs(tmp_path, monkeypatch):
    (code,) = python_blocks("docs/extend/agent.md")
    (card,) = yaml_blocks("docs/extend/agent.md")
    (tmp_path / "follows.py").write_text(code)
    (tmp_path / "follows").mkdir()
    (tmp_path / "follows" / "card.yaml").write_text(card)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "follows", raising=False)  # another test may have one of the same name
    task = load_task(load_card(EnvCard, find_card("envs", "demo")))
    for name in ("follows:FollowsTitles", "./follows"):
        episodes = []
        asyncio.run(Engine(task, load_agent(name)).run(task.questions, episodes.append))
        assert len(episodes) == 12
        assert all(episode.stop_reason == "answer" for episode in episodes)


def test_the_environment_of_the_docs_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (line,) = re.findall(r"^`({.*})`", (ROOT / "docs/extend/environment.md").read_text(), re.MULTILINE)
    for folder in ("home/data", "notes"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "home/data/notes.jsonl").write_text(f"{line}\n")
    for number in range(20):
        (tmp_path / "notes" / f"{number}.md").write_text(f"# Pump {number}\n\nPump {number} has valve B-{number}.\n")
    (card,), (module,) = yaml_blocks("docs/extend/environment.md"), python_blocks("docs/extend/environment.md")
    (tmp_path / "notes.yaml").write_text(card)
    (tmp_path / "notes.py").write_text(module)
    assert load_recipe("tiny-grpo", ["env=./notes.yaml"]).env == "./notes.yaml"
    assert load_task(find_env("./notes.yaml")).questions[0].answers == ("B-17",)
    for name in ("Mine/Notes-v0", "notes:Mine/Pumps-v0"):
        env = gymnasium.make(name)
        env.reset(seed=0)
        observation, *_ = env.step("<search>pump 17 valve</search>")
        assert "Pump 17 has valve B-17" in observation
        assert env.step("<answer>B-17</answer>")[1:3] == (1.0, True)
    del gymnasium.registry["Mine/Notes-v0"], gymnasium.registry["Mine/Pumps-v0"]


@pytest.mark.slow
def test_the_credit_term_and_the_estimator_of_the_docs_train(tmp_path, monkeypatch):
    """Each in one file of less than 40 lines; rewards are counted once more from the recorded hits."""
    (code,) = python_blocks("docs/extend/term.md")
    (tmp_path / "pages.py").write_text(code)
    (tmp_path / "median.py").write_text(python_blocks("docs/extend/estimator.md")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["steps=1", "rollout.questions=1", "rollout.attempts=2", "validation.every=0"]
    options += [
        "log.curve=false",
        "log.tensorboard=false",
        "credit={outcome: 1, pages:NewGoldPages: {weight: 0.2, vain: -0.5}}",
        "advantage.estimator={kind: 'median:Median', scale: 2.0}",
    ]
    options += ["env_options={questions: {split: train, size: 40, seed: 1}}"]
    train(load_recipe("tiny-grpo", options), tmp_path / "run")
    saved = SavedRun.read(tmp_path / "run", run_code=True)
    (task, *_) = load_tasks(saved.recipe)
    assert any(episode.searches for episode in saved.episodes.values())
    for episode in saved.episodes.values():
        gold = set(task.find(episode.question_id).gold_titles)
        found, vain = set(), 0
        for search in episode.searches:
            new = gold & {hit.passage.title for hit in search.hits} - found
            found, vain = found | new, vain + (not new)
        terms = saved.terms(episode)
        assert sum(terms["pages:NewGoldPages"]) == pytest.approx(0.2 * (len(found) / len(gold) - 0.5 * vain))
        assert sum(terms["outcome"]) == episode.reward


@pytest.mark.slow
def test_the_question_source_of_the_docs_is_asked_and_trained_on(tmp_path, monkeypatch):
    page = (ROOT / "docs/extend/question_source.md").read_text()
    (code,) = python_blocks("docs/extend/question_source.md")
    assert len([line for line in page.splitlines() if line.strip()]) <= 30 and len(code.splitlines()) < 40
    table = (ROOT / "docs/reference/cards.md").read_text()
    table = table[table.index("| kind | questions") : table.index("| `module:Class` | [your own]")]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(kinds(QuestionSource))
    (tmp_path / "openings.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    asked = {}
    for split in ("train", "validation"):
        source = {"kind": "openings:Openings", "words": 8, "split": split}
        env = gymnasium.make("searchgym/Demo-v0", corpus="demo", questions=source).unwrapped
        assert (env.task.split, env.task.card.questions.title) == (split, "openings:Openings")
        asked[split] = {question.id: question for question in env.task.questions}
        question, info = env.reset(seed=0)
        hits = env.step(f"<search>{question}</search>")[4]["hits"]
        assert asked[split][info["question_id"]].answers[0] in [hit["title"] for hit in hits]
    assert asked["train"].keys().isdisjoint(asked["validation"]) and sum(map(len, asked.values())) == 25
    options = re.findall(r"'((?:validation\.)?env_options=.*)'", page.replace("'validation", "\n'validation"))
    assert len(options) == 2
    options += ["steps=1", "rollout.questions=2", "rollout.attempts=2", "validation.every=1", "validation.questions=2"]
    train(load_recipe("tiny-grpo", [*options, "log.curve=false", "log.tensorboard=false"]), tmp_path / "run")
    trained = {episode.question_id for episode in SavedRun.read(tmp_path / "run").episodes.values()}
    assert trained and trained <= asked["train"].keys()
    with pytest.raises(UsageError, match=r"questions\.words: expected at least 1, got 0"):
        gymnasium.make("searchgym/Demo-v0", corpus="demo", questions={"kind": "openings:Openings", "words": 0})
    with pytest.raises(UsageError, match="makes its questions from a corpus of yours: pass corpus="):
        gymnasium.make("searchgym/Demo-v0", questions={"kind": "openings:Openings"})


@pytest.fixture
def team_of_the_docs(tmp_path, monkeypatch):
    """The team of docs/do/agents.md in the working folder, its files by name."""
    page = (ROOT / "docs/do/agents.md").read_text().partition("## Train a team")[2]
    files = dict(re.findall(r"`([\w./]+)`:\n\n```\w+\n(.*?)^```", page, re.DOTALL | re.MULTILINE))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return files


def test_the_team_of_the_docs_is_short_and_loads(team_of_the_docs):
    files = team_of_the_docs
    assert sorted(files) == ["checked.yaml", "checked/card.yaml", "checked/reader.md", "checked/verifier.md", "team.py"]
    lines = [line for text in files.values() for line in text.splitlines() if line.strip()]
    assert len(lines) < 60
    recipe = load_recipe("checked.yaml")
    assert sorted(load_agent(recipe.agent).roles) == ["reader", "verifier"]


@pytest.mark.slow
@pytest.mark.usefixtures("team_of_the_docs")
def test_the_team_of_the_docs_trains(tmp_path):
    recipe = load_recipe("checked.yaml", ["log.tensorboard=false"])
    result = train(recipe, tmp_path / "run")
    row = result.rows[1]
    assert row["learner/reader/updates"] == 1  # the tiny model knows this prompt
    assert row["role/reader/legal"] > 0.5
    assert "role/verifier/legal" in row
    episode, calls = explain_run(tmp_path / "run")
    assert {call.role for call in calls} == {"reader", "verifier"}
    assert all(call.parts["outcome"] == episode.reward for call in calls)
    assert all(call.parts["format"] == (0 if call.legal else -0.5) for call in calls)


@pytest.mark.filterwarnings("default")  # the notebook client warns about its own sockets and loops
@pytest.mark.parametrize(
    "notebook",
    [
        "01_step_an_environment.ipynb",
        *(pytest.param(name, marks=pytest.mark.slow) for name in NOTEBOOKS if not name.startswith("01")),
    ],
)
def test_notebooks_run(notebook):
    page = nbformat.read(ROOT / "notebooks" / notebook, as_version=4)
    NotebookClient(page, timeout=120, resources={"metadata": {"path": str(ROOT)}}).execute()
    assert sum(cell.cell_type == "code" for cell in page.cells) > 5


def test_the_page_about_opening_pages(capsys):
    (code,) = python_blocks("docs/do/browsing.md")
    exec(code, {})
    search, opened, more = capsys.readouterr().out.split("</information>")[:3]
    assert "Doc 1(Title: Orrin Vale) Orrin Vale is a harbour town on the north coast of the\n" in search
    assert "Page(Title: Orrin Vale, part 1 of 2)" in opened and "part 2 of 2) Works, which" in more


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_notebooks_open_in_colab_and_install(notebook):
    badge, install, *_ = nbformat.read(ROOT / "notebooks" / notebook, as_version=4).cells
    assert "](https://colab.research.google.com/github/" in badge.source and f"`notebooks/{notebook}`" in badge.source
    assert '%pip install -q "..[notebooks]"' in install.source


def test_pages_name_no_package_index_that_does_not_have_searchgym():
    """A page says what works: once searchgym is published, `packages.PUBLISHED` and the pages change together."""
    assert not packages.PUBLISHED
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("notebooks/*.ipynb")]
    wrong = re.compile(r"pip install (?!--find-links )[^`\n]*?searchgym(\[|\b(?![-/]))")
    found = {page.name: wrong.findall(page.read_text("utf-8")) for page in pages if page.name != "CHANGELOG.md"}
    assert not any(found.values()), found


def test_masked_spans_of_documents(tmp_path, monkeypatch):
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    (tmp_path / "notes").mkdir()
    for number, page in enumerate(PAGES[:60]):
        (tmp_path / "notes" / f"{number}.md").write_text(f"# {page.title}\n\n{page.text}\n")
    monkeypatch.chdir(tmp_path)
    (code,) = python_blocks("docs/do/masked_spans.md")
    scope = {}
    exec(compile(code, "docs/do/masked_spans.md", "exec"), scope)
    assert (scope["reward"], scope["terminated"]) == (1.0, True)
