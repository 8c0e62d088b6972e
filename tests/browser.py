"""A real headless Chromium for tests of pages, and a record of what a page asked for and ran.

The browser is the system's own (Debian's package ``chromium``), driven by playwright; `make test-slow` installs it
where it may. Texts of `HOSTILE` call ``fired(...)`` if anything runs them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
INSTALL = "apt-get install --no-install-recommends chromium"
HOSTILE = (
    "<script>fired('script')</script>",
    "</script></style></title></textarea><script>fired('closed')</script>",
    "<img src=x onerror=\"fired('onerror')\">",
    "<svg onload=\"fired('onload')\"></svg>",
    "<iframe srcdoc=\"<script>parent.fired('srcdoc')</script>\"></iframe>",
    "<details open ontoggle=\"fired('ontoggle')\">x</details>",
    "<a href=\"javascript:fired('href')\">click me</a>",
    "[click me](javascript:fired('markdown'))",
    "![x](https://elsewhere.invalid/pixel.png)",
    '<img src="https://elsewhere.invalid/pixel.png">',
    "<link rel=stylesheet href=https://elsewhere.invalid/a.css><style>@import 'https://elsewhere.invalid/b.css';</style>",
    '<meta http-equiv=refresh content="0;url=https://elsewhere.invalid/">',
    '" onmouseover="fired(\'quote\')" x="',
    "' onfocus='fired(1)' autofocus='",
    "{{ 7 * 7 }} ${fired('template')} {% raw %}",
)
"""Texts that run a script or fetch from another host if a page takes them for markup, links or templates."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Starts a headless Chromium for the block; a test fails, and says how to install it, where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("no playwright to drive a browser: pip install 'searchgym[dev]'", pytrace=False)
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail(f"no Chromium ({', '.join(NAMES)}): {INSTALL}", pytrace=False)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Seen:
    """What a page did since `watch`."""

    requests: list[str] = field(default_factory=list)
    """URLs that the page and its frames asked for, in order."""
    fired: list[str] = field(default_factory=list)
    """Hostile texts that ran, by the word that they gave to ``fired``; dialogs and new windows too."""

    def elsewhere(self, host: str = "") -> list[str]:
        """Returns the requests to another host than ``host:port``; by default all but those for files."""
        local = ("data", "blob", "about") if host else ("data", "blob", "about", "file")
        parts = {url: urlsplit(url) for url in self.requests}
        return [url for url, part in parts.items() if part.scheme not in local and part.netloc != host]


def watch(page: Page) -> Seen:
    """Records every request of a page and every hostile text that runs in it; call it before the page is opened."""
    seen = Seen()
    page.expose_function("fired", lambda word="?": seen.fired.append(str(word)))

    def dialog(box) -> None:
        seen.fired.append(f"dialog: {box.message}")
        box.dismiss()

    def popup(window) -> None:
        seen.fired.append(f"window: {window.url}")

    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("dialog", dialog)
    page.on("popup", popup)
    return seen
