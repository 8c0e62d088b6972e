"""Inspect's viewer in a real browser: sort, filter, open an episode, find its searches; hostile text runs nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from browser import chromium, watch

from searchgym.eval.viewing.log import LOG, fingerprint, write_log
from searchgym.eval.viewing.saved import open_run
from searchgym.eval.viewing.server import viewer
from searchgym.rollout.storage import read_episodes

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from viewing import hostile, make_run

pytestmark = pytest.mark.slow
N = 60


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "run"
    make_run(folder, N)
    opened = open_run(folder, folder.with_name("questions.jsonl"))
    assert write_log(opened, folder / LOG, fingerprint(folder)) == N
    assert opened.notes == []
    return folder


def rows_of(page):
    """The cells of the rows that are on the screen, by the name of their column."""
    return page.evaluate(
        """() => {
            const names = {};
            for (const head of document.querySelectorAll('[role=columnheader]'))
                names[head.getAttribute('aria-colindex')] = head.innerText.trim().toLowerCase();
            return [...document.querySelectorAll('[role=row]')].map(row => Object.fromEntries(
                [...row.querySelectorAll('[role=gridcell]')].map(
                    cell => [names[cell.getAttribute('aria-colindex')], cell.innerText.trim()])
            )).filter(row => row.id);
        }"""
    )


@pytest.fixture(scope="module")
def shown(run):
    with viewer([("run", run / LOG)], 0) as running, chromium() as browser:
        yield running, browser


@pytest.fixture
def page(shown):
    running, browser = shown
    page = browser.new_page(viewport={"width": 2000, "height": 3000})
    seen = watch(page)
    page.goto(running.url)
    page.get_by_text(f"{N} Samples", exact=True).wait_for()
    page.locator("[role=gridcell]").first.wait_for()
    yield page
    page.wait_for_timeout(300)
    host = running.url.split("/")[2]
    assert seen.elsewhere(host) == []
    assert seen.fired == []
    assert any(host in url for url in seen.requests)
    page.close()


def test_the_list_has_the_numbers_of_the_episodes_and_sorts(page, run):
    episodes = {episode.question_id: episode for episode in read_episodes(run / "episodes.jsonl")}
    rows = rows_of(page)
    assert len(rows) > 20
    for row in rows:
        episode = episodes[row["id"]]
        assert (float(row["em"]), int(row["searches"])) == (episode.scores["em"], len(episode.searches))
        assert row["answer"].replace("\n", " ") == episode.answer.text
    page.get_by_role("columnheader", name="searches").click()
    page.locator("[role=columnheader][aria-sort=ascending]").wait_for()
    searches = [int(row["searches"]) for row in rows_of(page)]
    assert searches == sorted(searches)
    assert searches[0] == min(len(episode.searches) for episode in episodes.values())
    assert [row["searches"] for row in rows_of(page)] != [row["searches"] for row in rows]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("em == 1", lambda e: e.scores["em"] == 1),
        ("searches > 1 and em == 0", lambda e: len(e.searches) > 1 and e.scores["em"] == 0),
        ('metadata.stop_reason == "answer" and metadata.hops == "2"', lambda e: True),
        ('metadata.question_id == "q-7"', lambda e: e.question_id == "q-7"),
    ],
)
def test_the_list_is_filtered(page, run, text, fits):
    wanted = {episode.question_id for episode in read_episodes(run / "episodes.jsonl") if fits(episode)}
    page.locator("[contenteditable=true]").first.click()
    page.keyboard.insert_text(text)
    page.wait_for_timeout(1500)
    assert page.get_by_text(f"{len(wanted)} Samples", exact=True).count() == 1
    assert {row["id"] for row in rows_of(page)} <= wanted


def test_an_episode_shows_its_searches_hits_calls_and_rewards(page, run):
    episode = next(e for e in read_episodes(run / "episodes.jsonl") if e.question_id == "q-15")
    assert len(episode.searches) == 3
    page.get_by_role("gridcell", name="q-15", exact=True).click()
    page.get_by_text("STEP: turn 1").first.wait_for()
    page.wait_for_timeout(1500)
    text = page.inner_text("body")
    for search in episode.searches:
        assert search.query in text
        for hit in search.hits[:1]:
            assert f"{hit.passage.title} (score {hit.score:g})" in text
    for call in episode.calls:
        assert call.text in text
    assert "model call (searcher)" in text.lower()
    assert '"reward_by_term"' in text
    for tab in ("#messages", "#scoring", "#metadata", "#json"):
        if page.locator(tab).count():
            page.locator(tab).first.click()
            page.wait_for_timeout(700)
    for number in range(14):  # every hostile text, once in each place
        page.goto(page.url.rpartition("/sample/")[0] + f"/sample/q-{number}/1/")
        page.wait_for_timeout(250)
    assert hostile(13) in page.inner_text("body")


def test_the_viewer_serves_this_machine_alone(shown):
    running, _ = shown
    assert running.url.startswith("http://127.0.0.1:")
    request = urllib.request.Request(f"http://127.0.0.1:{running.port}/api/logs", headers={"Host": "elsewhere.invalid"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as reply:
        assert reply.code in (400, 403, 421)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_interrupted_and_leaves_no_viewer(run, end):
    command = [sys.executable, "-m", "searchgym", "view", str(run), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if " at http://127.0.0.1:" in line)
        url = said.split(" at ")[1].split(" ")[0]
        assert said.startswith(f"{N} episodes at ")
        with urllib.request.urlopen(url) as reply:
            assert reply.status == 200
        process.send_signal(end)
        assert process.wait(20) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)
