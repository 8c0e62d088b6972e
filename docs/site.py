"""Hooks of the documentation site: pages that lie elsewhere in the repository, links to them, and the reference.

mkdocs.yml names this file. Markdown stays as it reads in the repository; links are turned as a page is built:

- a link to a file of the repository leads to its page, or becomes plain text where the site has none;
- entries of the raw record are pages that the site's search leaves out;
- notebooks become pages of their texts and code, without what they print;
- the reference has a page for each public package, made from the docstrings of the names in its ``__all__``.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT: Final = Path(__file__).parents[1]
ELSEWHERE: Final = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
    "eval/leaderboard/README.md": "leaderboard-rows.md",
    "studies/README.md": "studies/index.md",
    "studies/log/README.md": "studies/log/index.md",
    "studies/real_questions/README.md": "studies/real_questions.md",
    "studies/real_questions/headroom.md": "studies/headroom.md",
    "studies/real_training/README.md": "studies/real_training.md",
    "studies/real_training/selfplay.md": "studies/selfplay_real.md",
    "studies/real_models/README.md": "studies/real_models.md",
    "studies/sample_questions/README.md": "studies/sample_questions.md",
    "studies/search_r1_row/README.md": "studies/search_r1_row.md",
    "studies/own_corpus/README.md": "studies/own_corpus.md",
    "studies/methods/README.md": "studies/methods.md",
    "studies/methods/rejection.md": "studies/rejection.md",
    "studies/field/README.md": "studies/field.md",
    "studies/methods/estimators.md": "studies/estimators.md",
    "studies/methods/curriculum.md": "studies/curriculum.md",
    "studies/methods/selfplay.md": "studies/selfplay_worlds.md",
    "studies/selfplay/README.md": "studies/proposals.md",
    "studies/masked/README.md": "studies/masked.md",
    "studies/methods/teams.md": "studies/teams.md",
    "studies/methods/mask.md": "studies/mask.md",
    "studies/methods/agents.md": "studies/agents.md",
    "studies/methods/calls.md": "studies/calls.md",
    "studies/methods/trees.md": "studies/trees.md",
    "studies/several_samples/README.md": "studies/several_samples.md",
    "studies/methods/one_training_each.md": "studies/one_training_each.md",
    "studies/cosearch/README.md": "studies/cosearch.md",
    "studies/long_horizon/README.md": "studies/long_horizon.md",
    "studies/judges/README.md": "studies/judges.md",
    "studies/corpus_audit/README.md": "studies/corpus_audit.md",
    "studies/deep_research/README.md": "studies/deep_research.md",
    "studies/completeness/README.md": "studies/completeness.md",
    "studies/partial_rollouts/README.md": "studies/partial_rollouts.md",
    "studies/sample_questions/questions-read.md": "questions-read.md",
    "studies/masked/masked-spans-read.md": "masked-spans-read.md",
    "studies/selfplay/selfplay-questions.md": "selfplay-questions.md",
    "studies/real_training/real-text-episodes.md": "real-text-episodes.md",
    "studies/real_models/episodes-read.md": "episodes-read.md",
    "notebooks/01_step_an_environment.ipynb": "notebook-1.md",
    "notebooks/02_questions_from_your_documents.ipynb": "notebook-2.md",
    "notebooks/03_read_a_run.ipynb": "notebook-3.md",
    "notebooks/04_selfplay.ipynb": "notebook-4.md",
}
"""Files outside docs/ to their pages."""
RECORD: Final = {
    path.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "studies" / "log").glob("20*.md"))
}
"""Entries of the raw record, to pages that no menu lists and no search finds."""
PICTURES: Final = {
    path.relative_to(ROOT).as_posix(): path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "studies").glob("*/*.png"))
}
"""Pictures of studies, to their places on the site."""
ALL: Final = ELSEWHERE | RECORD | PICTURES
GENERATED: Final = ("reference/options.md", "reference/terms.md", "reference/commands.md")
"""Pages that are made from the code when the site is built."""
UNSEARCHED: Final = "---\nsearch:\n  exclude: true\n---\n\n"
PACKAGES: Final = (
    "scoring",
    "scoring.judges",
    "corpora",
    "retrieval",
    "questions",
    "questions.worlds",
    "envs",
    "agents",
    "rollout",
    "train",
    "eval",
    "eval.report",
    "testing",
    "adapters.trl",
)
"""Packages of the reference."""
LINK: Final = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)")
SOURCE: Final = re.compile(r'(?P<name>src|srcset)="(?P<target>[^"]+)"')
BLOCK: Final = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
ASIDE: Final = re.compile(r"\]\((?=\w+ \w)")
"""Pattern of a bracketed word before words in parentheses, which no link can be."""


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages and pictures that do not lie in docs/."""
    from mkdocs.structure.files import File

    for source, page in ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=notebook(text) if source.endswith(".ipynb") else text))
    for source, page in RECORD.items():
        files.append(File.generated(config, page, content=UNSEARCHED + (ROOT / source).read_text(encoding="utf-8")))
    for source, picture in PICTURES.items():
        files.append(File.generated(config, picture, abs_src_path=str(ROOT / source)))
    for package in PACKAGES:
        files.append(File.generated(config, f"api/{package}.md", content=reference(package)))
    for page, make in zip(GENERATED, (options_page, terms_page, commands_page), strict=True):
        files.append(File.generated(config, page, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns the links of a page; pages made from docstrings have none to the repository."""
    name = page.file.src_uri
    if name.startswith("api/") or name in GENERATED:
        return markdown
    sources = {page: source for source, page in ALL.items()}
    return with_links(markdown, sources.get(name, f"docs/{name}"), name)


def with_links(markdown: str, source: str, page: str) -> str:
    """Returns Markdown with its links turned, except for those in blocks of code.

    Args:
        markdown: Text of a page.
        source: Its file, relative to the repository.
        page: Its page, relative to the site.
    """

    def link(match: re.Match[str]) -> str:
        target = turned(match["target"], source, page)
        return match["text"] if target is None else f"{match['image']}[{match['text']}]({target})"

    def picture(match: re.Match[str]) -> str:
        return f'{match["name"]}="{turned(match["target"], source, page) or match["target"]}"'

    parts = BLOCK.split(markdown)
    parts[::2] = [SOURCE.sub(picture, LINK.sub(link, ASIDE.sub("]&#40;", text))) for text in parts[::2]]
    return "".join(parts)


def turned(target: str, source: str, page: str) -> str | None:
    """Returns a link's target on the site, None for a file of the repository that has no page on the site.

    Args:
        target: Target as written, relative to its file.
        source: The file with the link, relative to the repository.
        page: Its page, relative to the site.
    """
    path, mark, anchor = target.partition("#")
    if not path or ":" in path:
        return target
    file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    other = ALL.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else None)
    if other:
        return posixpath.relpath(other, posixpath.dirname(page) or ".") + mark + anchor
    return None if (ROOT / file).exists() else target


def notebook(text: str) -> str:
    """Returns a notebook's texts and code as Markdown; the first cell's badge, an image from elsewhere, is left out."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\[!\[[^\]]*\]\([^)]*\)\]\([^)]*\)\s*", "", source))
        elif cell["cell_type"] == "code":
            parts.append(f"```python\n{source}\n```")
    return "\n\n".join(parts) + "\n"


def reference(package: str) -> str:
    """Returns the page of a public package: its own docstring, and an entry for every name in its ``__all__``."""
    file = ROOT / "searchgym" / Path(*package.split(".")) / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    lists = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]
    ]
    names = ast.literal_eval(lists[0])
    head = f"# searchgym.{package}\n\n{ast.get_docstring(tree)}\n"
    return "\n".join([head, *(f"::: searchgym.{package}.{name}\n" for name in sorted(names, key=str.lower))])


def options_page() -> str:
    """Returns the page of every option of a recipe, by section."""
    from searchgym.train.recipe.listing import recipe_options

    lines = ["# Options of a recipe", "", "`searchgym list options WORD` prints those whose name contains a word.", ""]
    section = ""
    for option in recipe_options():
        name = option.name.split(".")[0] if "." in option.name else "general"
        if name != section:
            section = name
            lines += ["", f"## {section}", "", "| option | type | default | meaning |", "|---|---|---|---|"]
        lines.append(row(f"`{option.name}`", option.type, f"`{option.default}`", option.text))
    return "\n".join(lines) + "\n"


def terms_page() -> str:
    """Returns the page of every credit term, with its options."""
    from searchgym.train.recipe.listing import credit_terms

    lines = ["# Credit terms", "", "A recipe adds them up under `credit`; `searchgym list terms` prints them.", ""]
    lines += ["| term | options | meaning |", "|---|---|---|"]
    lines += [row(f"`{term.name}`", f"`{term.options}`" if term.options else "", term.text) for term in credit_terms()]
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Returns the page of every command, as its ``--help`` prints it."""
    import typer
    from typer.core import TyperGroup

    from searchgym.cli import app

    lines = ["# Commands", ""]

    def add(command: Any, context: Any, words: str) -> None:
        lines.extend([f"## {words}", "", "```text", command.get_help(context), "```", ""])
        if isinstance(command, TyperGroup):
            for name in command.list_commands(context):
                entry = command.get_command(context, name)
                add(entry, entry.context_class(entry, info_name=name, parent=context), f"{words} {name}")

    root: Any = typer.main.get_command(app)
    add(root, root.context_class(root, info_name="searchgym", terminal_width=100), "searchgym")
    return "\n".join(lines)


def row(*cells: str) -> str:
    """Returns a row of a Markdown table."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"
