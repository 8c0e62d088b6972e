"""Every code block and command of the README and of the pages to start, do and extend, executed page by page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import doc_blocks
import gymnasium
import pytest
from made_pages import PAGES

ROOT = Path(__file__).parents[1]
PAGES_RUN = [
    "README.md",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for name in ("start", "do", "extend")
        for path in (ROOT / "docs" / name).glob("*.md")
    ),
]


def elsewhere(page):
    """Path of the test that runs a page instead, None if this one does."""
    match = doc_blocks.ELSEWHERE.search((ROOT / page).read_text(encoding="utf-8"))
    return match and match["test"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with documents and questions on them, in which a page is run."""
    (tmp_path / "notes").mkdir()
    for number, page in enumerate(PAGES):
        (tmp_path / "notes" / f"{number:02}.md").write_text(f"# {page.title}\n\n{page.text}\n")
    director = next(page for page in PAGES if "director" in page.text and "(" in page.text)
    year = director.text.split("(")[1].split(" – ")[0].split()[-1]
    questions = [{"id": "q1", "question": f"In which year was {director.title} born?", "answers": [year]}]
    (tmp_path / "questions.json").write_text(json.dumps(questions))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SEARCHGYM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SEARCHGYM_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    modules, environments = set(sys.modules), set(gymnasium.registry)
    yield tmp_path
    for name in set(gymnasium.registry) - environments:
        del gymnasium.registry[name]
    for name in set(sys.modules) - modules:  # files of a page: another page may have one of the same name
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


LONG = {"docs/do/agents.md"}
"""Pages whose blocks take over 40 seconds, and train what the tests of other files train: not in CI."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.study) if page in LONG else page
        for page in PAGES_RUN
        if not elsewhere(page)
    ],
)
def test_the_blocks_of_a_page_run(page, folder):
    doc_blocks.PageRun(page).run()


def test_pages_run_elsewhere_are_named_by_their_test():
    for page in PAGES_RUN:
        test = elsewhere(page)
        assert test is None or Path(page).name in (ROOT / test).read_text(encoding="utf-8")


PAGE = """# A page

```python
value = 41
```

`a/b.txt`:

```text
text
```

```bash
searchgym list \\
  --json  # a comment
cat a/b.txt | grep text && searchgym --version
pip install '.[train]'
make test
```

<!-- blocks: parse -->
```bash
searchgym train tiny-grpo steps=1 --out runs/x
```

```python
assert value == 41
```
"""


@pytest.fixture
def page(folder, monkeypatch):
    monkeypatch.setattr(doc_blocks, "ROOT", folder)
    (folder / "Makefile").write_text("test:\n\tfalse\n")
    (folder / "setup.cfg").write_text((ROOT / "setup.cfg").read_text())
    return folder / "page.md"


def test_blocks_share_names_files_and_folder(page):
    page.write_text(PAGE)
    run = doc_blocks.PageRun("page.md")
    run.run()
    assert (run.ran, Path("a/b.txt").read_text(), Path("runs").exists()) == (7, "text\n", False)


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("value == 41", "value == 42", r"page\.md:26: AssertionError"),
        ("searchgym list", "searchgym lost", r"page\.md:13: AssertionError: searchgym lost.*status 2"),
        ("grep text", "grep other", "grep other"),
        ("[train]", "[trane]", "no extra 'trane'"),
        ("make test", "make tests", "CalledProcessError"),
        ("steps=1", "stepz=1", "stepz"),
        ("--out runs/x", "--oot runs/x", "--oot"),
        ("train tiny-grpo", "trian tiny-grpo", "no command 'trian'"),
    ],
)
def test_a_wrong_block_fails(page, right, wrong, message):
    page.write_text(PAGE.replace(right, wrong))
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        doc_blocks.PageRun("page.md").run()
