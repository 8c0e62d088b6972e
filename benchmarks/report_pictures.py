"""Pictures of a report for the documentation, light and dark; needs playwright and headless Chromium.

python benchmarks/report_pictures.py runs/report.html --out docs/pictures/report [--height 1760] [--json]

writes docs/pictures/report-light.png and docs/pictures/report-dark.png.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final, Literal

from searchgym.cli.output import emit_rows

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from browser import chromium  # type: ignore[import-not-found]  # noqa: E402  # pyright: ignore

SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")


def main() -> None:
    """Takes the pictures, and prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="the report")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "pictures" / "report", help="beginning of the pictures' names"
    )
    parser.add_argument("--width", type=int, default=1300, help="width in pixels")
    parser.add_argument("--height", type=int, default=1760, help="height in pixels")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    with chromium() as browser:
        for scheme in SCHEMES:
            print(f"{scheme} ...", file=sys.stderr)
            page = browser.new_page(color_scheme=scheme, viewport={"width": args.width, "height": args.height})
            page.goto(args.page.resolve().as_uri())
            file = args.out.with_name(f"{args.out.name}-{scheme}.png")
            page.screenshot(path=file)
            page.close()
            rows.append({"file": str(file), "kB": round(file.stat().st_size / 1e3)})
    emit_rows(rows, args.json, "results", "pictures")


if __name__ == "__main__":
    main()
