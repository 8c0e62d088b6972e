"""The browser of the tests sees what it is there to see: scripts that run, requests that leave."""

import pytest
from browser import HOSTILE, INSTALL, chromium, watch


@pytest.mark.slow
def test_a_page_that_takes_hostile_text_for_markup_is_caught(tmp_path):
    file = tmp_path / "page.html"
    file.write_text(f"<html><body>{''.join(HOSTILE[:11])}</body></html>", encoding="utf-8")
    with chromium() as browser:
        page = browser.new_page()
        seen = watch(page)
        page.goto(file.as_uri())
        page.get_by_text("click me").first.click()
        page.wait_for_timeout(500)
    assert {"script", "closed", "onerror", "onload", "href"} <= set(seen.fired)
    assert "https://elsewhere.invalid/pixel.png" in seen.elsewhere()


@pytest.mark.slow
def test_a_page_of_plain_text_is_not(tmp_path):
    file = tmp_path / "page.html"
    file.write_text("<html><body><script>document.title = 'ran'</script>plain</body></html>", encoding="utf-8")
    with chromium() as browser:
        page = browser.new_page()
        seen = watch(page)
        page.goto(file.as_uri())
        assert page.title() == "ran"
    assert (seen.fired, seen.elsewhere(), seen.requests) == ([], [], [file.as_uri()])


def test_a_missing_browser_fails_with_the_command(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.fail.Exception, match=INSTALL), chromium():
        pass
