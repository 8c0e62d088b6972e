"""Reports in a real browser: light, dark and printed; hostile runs run nothing and fetch nothing."""

import base64
import re
from pathlib import Path

import pytest
from browser import chromium, watch
from made_runs import evaluation, training
from test_report import hostile_runs

from searchgym.eval.leaderboard.table import build_board
from searchgym.eval.report.board import board_page
from searchgym.eval.report.html import to_html
from searchgym.eval.report.write import write_report

BOARD = Path(__file__).parents[2] / "eval" / "leaderboard"
COLUMN = """name => [...document.querySelectorAll('table')].flatMap(table => {
  const heads = [...table.querySelectorAll('th')];
  const place = heads.findIndex(head => new RegExp(name).test(head.textContent));
  return place < 0 ? [] : [...table.rows].map(row => {
    const box = row.cells[place].getBoundingClientRect();
    return [box.left, box.right];
  });
})"""
"""Script that returns the left and right ends of the cells of a column, in pixels."""
DARK, LIGHT = "rgb(18, 22, 28)", "rgb(255, 255, 255)"


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    runs = [
        evaluation(folder / name, em) for name, em in (("one", [1.0, 0.0, 1.0, 1.0]), ("two", [0.0, 0.0, 1.0, 0.0]))
    ]
    runs.append(training(folder / "learnt", 0, [0.2, 0.4, 0.6], {0: 0.1, 3: 0.5}))
    return write_report(runs, folder / "report.html")


def shown_images(page):
    """The address of the image that each figure shows, which of its two the page's colours decide."""
    images = page.locator("figure img")
    assert images.count() == 4
    assert images.evaluate_all("all => all.every(image => image.complete && image.naturalWidth > 100)")
    return images.evaluate_all("all => all.map(image => image.currentSrc)")


def ground(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.slow
def test_light_dark_and_print(browser, report):
    seen = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        asked = watch(page)
        page.goto(report.as_uri())
        seen[scheme] = (ground(page), shown_images(page))
        assert asked.elsewhere() == [] and asked.fired == []
        page.emulate_media(media="print")
        assert ground(page) == LIGHT  # paper is light, whatever the screen was
        seen[f"{scheme} printed"] = (ground(page), shown_images(page))
        pdf = page.pdf(format="A4")
        assert pdf.startswith(b"%PDF") and len(pdf) > 20_000
        page.close()
    assert (seen["light"][0], seen["dark"][0]) == (LIGHT, DARK)
    assert not set(seen["light"][1]) & set(seen["dark"][1])
    assert seen["dark printed"] == seen["light printed"] == seen["light"]
    for scheme, ink in (("light", "#1b1f24"), ("dark", "#e6e9ed")):
        for address in seen[scheme][1]:
            assert ink in base64.b64decode(address.split(",", 1)[1]).decode()


@pytest.mark.slow
def test_an_episode_opens_without_a_script(browser, report):
    page = browser.new_page(java_script_enabled=False)
    page.goto(report.as_uri())
    first = page.locator("details").first
    assert not first.locator("dl").is_visible()
    first.locator("summary").click()
    assert first.locator("dl").is_visible()
    assert "a query" in first.locator("pre").nth(0).inner_text()
    page.close()


@pytest.mark.slow
def test_a_page_is_no_wider_than_a_phone_or_paper(browser, report):
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # a wide table scrolls in its own box
    page.set_viewport_size({"width": 720, "height": 1000})  # A4 with margins of a centimetre
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    page.close()


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """The leaderboard that ships, as a page."""
    file = tmp_path_factory.mktemp("board") / "board.html"
    file.write_text(to_html(board_page(build_board([BOARD]))), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def wide_report(tmp_path_factory):
    """A report in which every column has content: several runs with long names, an oracle, two trainings."""
    folder, scores = tmp_path_factory.mktemp("wide"), {"response_tokens": 12345.0, "read_tokens": 1234567.0}
    runs = [
        evaluation(
            folder / name, em, scores=scores, record={"agent": agent, "models": {"a": ["a-model-7b-instruct", 0]}}
        )
        for name, em, agent in (
            ("before-training-on-worlds", [1.0, 0.0, 1.0, 1.0], "search-r1-few-shot"),
            ("after-training-on-worlds", [0.0, 0.0, 1.0, 0.0], "ai-searchplanner"),
            ("evidence-oracle", [1.0] * 4, "evidence-oracle"),
        )
    ]
    runs += [training(folder / f"seed-{seed}", seed, [0.2, 0.4, 0.6], {0: 0.1, 3: 0.5 + seed / 10}) for seed in (0, 1)]
    return write_report(runs, folder / "report.html")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report", "wide_report", "board"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_em_is_seen_on_a_phone_without_scrolling(browser, name, scheme, request):
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme=scheme)
    page.goto(request.getfixturevalue(name).as_uri())
    cells = page.evaluate(COLUMN, "^EM( \\(95 %\\)|, mean over parts)$")
    assert len(cells) >= 3
    assert all(left >= 0 and right <= 390 for left, right in cells)
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report", "wide_report", "board"])
@pytest.mark.parametrize("width", [1300, 1400])
def test_no_column_is_cut_on_a_desk(browser, name, width, request):
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(request.getfixturevalue(name).as_uri())
    boxes = page.evaluate("[...document.querySelectorAll('.wide')].map(box => [box.scrollWidth, box.clientWidth])")
    assert boxes and all(content <= box for content, box in boxes)
    cut = "[...document.querySelectorAll('th, td')].filter(cell => cell.scrollWidth > cell.clientWidth).length"
    assert page.evaluate(cut) == 0
    page.close()


@pytest.mark.slow
def test_nothing_of_a_hostile_run_runs_or_fetches(browser, tmp_path):
    file = write_report(hostile_runs(tmp_path), tmp_path / "report.html")
    page = browser.new_page()
    seen = watch(page)
    page.goto(file.as_uri())
    count = page.locator("summary").count()
    assert count == 8
    for place in range(count):
        page.locator("summary").nth(place).click()
    page.mouse.move(300, 300)
    page.wait_for_timeout(300)
    assert page.locator("script, iframe, object, embed, link, base, form, a").count() == 0
    assert "fired('onerror')" in page.locator("body").inner_text()
    assert (seen.fired, seen.elsewhere()) == ([], [])
    page.close()


@pytest.mark.slow
def test_the_policy_holds_even_if_markup_came_through(browser, report, tmp_path):
    """The second wall: a script and an image in the page's own markup neither run nor are fetched."""
    markup = "<script>fired('in')</script><img src=https://elsewhere.invalid/a.png onerror=\"fired('on')\">"
    broken = tmp_path / "broken.html"
    broken.write_text(re.sub("<h1>", f"{markup}<h1>", report.read_text(), count=1))
    page = browser.new_page()
    seen, refused = watch(page), {}
    page.on("requestfailed", lambda request: refused.update({request.url: request.failure}))
    page.goto(broken.as_uri())
    page.wait_for_timeout(300)
    assert seen.fired == []
    assert [refused.get(url) for url in seen.elsewhere()] == ["csp"]  # stopped by the policy before it left
    page.close()
