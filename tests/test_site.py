"""The documentation site: its hooks by hand, and the whole of it, built without network, link by link."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
from browser import chromium

from searchgym.train.recipe.listing import credit_terms, recipe_options

pytestmark = pytest.mark.slow  # of pages, scripts and the machinery of tests, which a change of code seldom breaks

ROOT = Path(__file__).parents[1]
OFFLINE = """
import socket, sys
def refused(*_):
    raise OSError("the site was to be built without network")
socket.socket.connect = socket.getaddrinfo = refused
from mkdocs.__main__ import cli
cli()
"""


def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_lead_to_pages_or_become_text() -> None:
    turn = hooks().with_links
    readme, page = ("README.md", "index.md"), ("docs/do/a.md", "do/a.md")
    assert turn("[a](docs/do/train.md#x)", *readme) == "[a](do/train.md#x)"
    assert turn("[s](../../SECURITY.md), [`e`](b.md)", *page) == "[s](../security.md), [`e`](b.md)"
    assert turn("[m](../reference/metrics.md#x)", *page) == "[m](../reference/metrics.md#x)"
    assert turn("[b](README.md)", "eval/leaderboard/README.md", "leaderboard-rows.md") == "[b](leaderboard-rows.md)"
    assert turn("![p](docs/pictures/demo.png)", *readme) == "![p](pictures/demo.png)"
    assert (
        turn('<source srcset="docs/a.png"><img src="docs/b.png">', *readme)
        == '<source srcset="a.png"><img src="b.png">'
    )
    assert turn("see [the Makefile](Makefile)", *readme) == "see the Makefile"
    assert turn("[out](https://a.invalid/b), [here](#c)", *page) == "[out](https://a.invalid/b), [here](#c)"
    assert turn("[gone](nowhere.md)", *readme) == "[gone](nowhere.md)"  # the strict build then fails
    assert turn("```\n[a](docs/b.md)\n```", *readme) == "```\n[a](docs/b.md)\n```"
    assert turn("with [A](among other artists)", *page) == "with [A]&#40;among other artists)"


def test_a_notebook_is_its_text_and_code_without_the_badge() -> None:
    text = """{"cells": [
        {"cell_type": "markdown", "source": ["# One\\n", "[![b](https://x.invalid/b.svg)](https://x.invalid) then"]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": [{"text": "1"}]}]}"""
    assert hooks().notebook(text) == "# One\nthen\n\n```python\nprint(1)\n```\n"


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", text, re.MULTILINE)
    site = hooks()
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} | set(
        site.ELSEWHERE.values()
    )
    pages |= {f"api/{package}.md" for package in site.PACKAGES} | set(site.GENERATED)
    assert sorted(named) == sorted(pages)
    assert all((ROOT / source).exists() for source in site.ELSEWHERE)


def test_the_reference_has_every_public_name() -> None:
    site = hooks()
    for package in site.PACKAGES:
        file = ROOT / "searchgym" / Path(*package.split(".")) / "__init__.py"
        assert "__all__" in file.read_text(encoding="utf-8")
        page = site.reference(package)
        module = importlib.import_module(f"searchgym.{package}")
        assert re.findall(r"^::: (\S+)$", page, re.MULTILINE) == [
            f"searchgym.{package}.{name}" for name in sorted(module.__all__, key=str.lower)
        ]
    assert ast.parse((ROOT / "docs" / "site.py").read_text(encoding="utf-8"))


class Page(HTMLParser):
    """Links, anchors and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") in {"stylesheet", "icon", "preload"}:
            self.loaded.append(given["href"])
        if tag in {"script", "img", "source", "iframe"}:
            self.loaded += [given[name] for name in ("src", "srcset") if given.get(name)]


def broken(site: Path) -> list[str]:
    """Returns one line for each link of a site that leads nowhere, and each file that is loaded from elsewhere."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in page.loaded and parts.scheme != "data":
                    found.append(f"{path.name} loads {target}")
                continue
            other = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            other = other / "index.html" if other.is_dir() else other
            if not other.is_file():
                found.append(f"{path.name}: {target}")
            elif parts.fragment and other.suffix == ".html":
                anchors = pages[next(own for own in pages if own.resolve() == other)].anchors
                if unquote(parts.fragment) not in anchors:
                    found.append(f"{path.name}: {target}, an anchor that is not there")
    return found


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="x">a</h1><a href="b.html#y"></a><a href="#x"></a><a href="c.html"></a>')
    (tmp_path / "b.html").write_text('<img src="https://x.invalid/p.png"><a href="a.html#x"></a>')
    assert sorted(broken(tmp_path)) == [
        "a.html: b.html#y, an anchor that is not there",
        "a.html: c.html",
        "b.html loads https://x.invalid/p.png",
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, built without network."""
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-c", OFFLINE, "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_built_without_network_and_every_link_leads_somewhere(built: Path) -> None:
    assert broken(built) == []
    reference = (built / "api" / "envs.html").read_text(encoding="utf-8")
    assert "Registers a new environment with Gymnasium in one call." in reference
    assert not list(built.rglob("*.py")) and not list(built.rglob("__pycache__"))
    index = (built / "search" / "search_index.json").read_text(encoding="utf-8")
    assert '"studies/field.html' in index and '"studies/log/20' not in index


def test_the_generated_pages_have_each_option_term_and_command(built: Path) -> None:
    options = (built / "reference" / "options.html").read_text(encoding="utf-8")
    assert all(f"<code>{option.name}</code>" in options for option in recipe_options())
    terms = (built / "reference" / "terms.html").read_text(encoding="utf-8")
    assert all(f"<code>{term.name}</code>" in terms for term in credit_terms())
    commands = (built / "reference" / "commands.html").read_text(encoding="utf-8")
    assert all(f'id="searchgym-{name}"' in commands for name in ("eval", "train", "serve-retriever", "model-merge"))


def test_search_works_from_disk(built: Path) -> None:
    with chromium() as browser:
        page = browser.new_page()
        page.goto((built / "do" / "train.html").as_uri())
        page.focus("[data-md-component=search-query]")
        page.keyboard.type("staleness")
        page.wait_for_selector(".md-search-result__item", timeout=20_000)
        links = [link.get_attribute("href") or "" for link in page.locator(".md-search-result__link").all()]
    assert any("reference/options.html" in link for link in links), links
