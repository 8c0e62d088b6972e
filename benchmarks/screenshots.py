"""Pictures of pages for the documentation, light and dark, by the system's Chromium; needs playwright.

python benchmarks/screenshots.py runs/report.html --out docs/report [--height 1400] [--json]

writes docs/report-light.png and docs/report-dark.png.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from searchgym.cli.output import emit_rows

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def main() -> None:
    """Takes the pictures, and prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", help="file or URL")
    parser.add_argument("--out", type=Path, required=True, help="beginning of the names of the pictures")
    parser.add_argument("--width", type=int, default=1100, help="width in pixels")
    parser.add_argument("--height", type=int, default=1400, help="height in pixels")
    parser.add_argument("--top", type=int, default=0, help="pixels of the page to leave out at its top")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    address = args.page if "://" in args.page else Path(args.page).resolve().as_uri()
    rows = []
    for scheme, content in pictures(address, args.width, args.height, args.top).items():
        file = args.out.with_name(f"{args.out.name}-{scheme}.png")
        file.write_bytes(content)
        rows.append({"file": str(file), "kB": round(len(content) / 1e3)})
    emit_rows(rows, args.json, "results", "pictures")


def pictures(address: str, width: int, height: int, top: int) -> dict[str, bytes]:
    """Returns a picture of a page for each colour scheme."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        sys.exit("no Chromium: apt-get install --no-install-recommends chromium")
    taken = {}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
            page.goto(address)
            page.evaluate(f"window.scrollTo(0, {top})")
            taken[scheme] = page.screenshot()
            page.close()
        browser.close()
    return taken


if __name__ == "__main__":
    main()
