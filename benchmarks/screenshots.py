"""Screenshots of the viewer, of a page of tokens and of the documentation site, for the documentation.

    searchgym demo
    python benchmarks/screenshots.py runs/demo --out docs/pictures [--json]
    make site
    python benchmarks/screenshots.py site --out docs/pictures [--json]

Takes the training of a demonstration: its list of episodes, then one episode and its tokens; or two pages of the built
site. Needs the extra `view`, playwright and headless Chromium (Debian's package ``chromium``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from searchgym.cli.output import emit_rows
from searchgym.eval.viewing.explain import explain_run
from searchgym.eval.viewing.saved import SavedRun
from searchgym.records import Episode

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from browser import chromium  # type: ignore[import-not-found]  # noqa: E402  # pyright: ignore

SIZE: Final[dict[str, Any]] = {"width": 1400, "height": 700}
TALL: Final[dict[str, Any]] = {"width": 1100, "height": 1250}


def main() -> None:
    """Takes the pictures and prints their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of a demonstration, or of the built site")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object")
    args = parser.parse_args()
    site = (args.folder / "index.html").is_file()
    pictures = take_site(args.folder, args.out) if site else take(args.folder / "train", args.out)
    rows = [{"picture": str(picture), "kB": round(picture.stat().st_size / 1000)} for picture in pictures]
    if args.json:
        print(json.dumps({"results": rows}))
    else:
        emit_rows(rows, False, "results")


def example_of(run: Path) -> Episode:
    """Returns the first episode of a training that searched twice, was right and has an advantage above 0."""
    for episode in SavedRun.read(run).episodes.values():
        _, calls = explain_run(run, episode.id)
        if len(episode.searches) > 1 and episode.reward == 1 and all((call.advantage or 0) > 0 for call in calls):
            return episode
    raise SystemExit(f"{run}: no right episode with two searches and an advantage above 0")


def take(run: Path, out: Path) -> list[Path]:
    """Takes the pictures of a training run."""
    from searchgym.eval.viewing.server import viewer

    episode = example_of(run)
    with tempfile.TemporaryDirectory(prefix="searchgym-pictures-") as folder:
        page_file = Path(folder) / "tokens.html"
        command = [sys.executable, "-m", "searchgym"]
        subprocess.run([*command, "show", str(run), "--episode", episode.id, "--html", str(page_file)], check=True)
        exported = [*command, "view", str(run), "--export-only", "--out", folder, "--json"]
        result = subprocess.run(exported, check=True, capture_output=True, text=True)
        (row,) = json.loads(result.stdout)["logs"]
        pictures = [out / f"viewing-{name}.png" for name in ("list", "episode", "tokens")]
        print("taking pictures ...", file=sys.stderr)
        with viewer([("demo", Path(row["log"]))], 0) as shown, chromium() as browser:
            page = browser.new_page(viewport=SIZE)
            page.goto(shown.url)
            page.locator("[role=gridcell]").first.wait_for()
            page.locator("[contenteditable=true]").first.click()
            page.keyboard.insert_text('searches > 1 and metadata.hops == "2"')
            page.keyboard.press("Escape")
            page.get_by_role("columnheader", name="searches").click()
            page.wait_for_timeout(2000)
            page.screenshot(path=pictures[0])
            page.set_viewport_size(TALL)
            sample = f"{episode.question_id}@{episode.id.rpartition('@')[2]}/{episode.attempt + 1}"
            page.goto(f"{shown.url}/sample/{sample.replace('@', '%40')}/")
            page.get_by_text("STEP: turn 1").first.wait_for()
            page.wait_for_timeout(1500)
            page.screenshot(path=pictures[1])
            page.goto(page_file.as_uri())
            page.screenshot(path=pictures[2])
    return pictures


def take_site(site: Path, out: Path) -> list[Path]:
    """Takes pictures of the first page of the built site and of one page of its reference, without a network."""
    pictures = []
    print("taking pictures ...", file=sys.stderr)
    with chromium() as browser:
        page = browser.new_page(viewport=SIZE)
        for name, file in (("home", "index.html"), ("reference", "reference/envs.html")):
            page.goto((site / file).resolve().as_uri())
            pictures.append(out / f"site-{name}.png")
            page.screenshot(path=pictures[-1])
    return pictures


if __name__ == "__main__":
    main()
