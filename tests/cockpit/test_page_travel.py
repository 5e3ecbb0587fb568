"""Time travel as a browser shows it: the slider, keys, playing, and the two marks."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from klamm.cockpit.recorded.cluster import RecordedCluster
from klamm.recording.reader import Recording
from support.browser import Pages
from support.cockpit import PageServer
from support.recordings import write_failover


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("recording") / "failover.klamm"
    return {"path": path, **write_failover(path)}


@pytest.fixture(scope="module")
def server(numbers: dict[str, Any]) -> Generator[PageServer]:
    with PageServer(RecordedCluster(Recording(Path(numbers["path"])))) as server:
        yield server


def at(page: Any, entry: int) -> None:
    """Returns when the moment after this entry is shown."""
    page.locator("#moment-time", has_text=f"entry {entry} of 10").wait_for()


def test_keys_move_through_a_recording_and_two_marks_are_compared(
    pages: Pages, server: PageServer, numbers: dict[str, Any]
) -> None:
    page = pages.open(f"{server.url}#travel")
    at(page, 10)
    page.locator("#view").focus()
    page.keyboard.press("ArrowLeft")
    at(page, 9)
    page.keyboard.press("Shift+ArrowLeft")
    at(page, numbers["1 leads"])
    page.keyboard.press("a")
    page.keyboard.press("n")
    at(page, numbers["1 dies"])
    page.keyboard.press("p")
    at(page, numbers["1 leads"])
    page.locator("#entries tr", has_text="has leader 2").click()
    at(page, numbers["2 leads"])
    page.keyboard.press("b")
    page.locator("#difference-words li", has_text="moved from leader 1 to 2").wait_for()
    words = page.locator("#difference-words li").all_text_contents()
    assert words == [
        "Broker 1 is no longer registered.",
        "1 partition moved from leader 1 to 2: t-0.",
        "Broker 1 left the ISR of 1 partition.",
    ]
    assert page.locator("#difference-table tbody tr").count() == 2
    assert page.locator("#entries tr.chosen").get_attribute("aria-current") == "true"


def test_playing_goes_from_mark_to_mark_to_the_end(pages: Pages, server: PageServer, numbers: dict[str, Any]) -> None:
    page = pages.open(f"{server.url}#travel", width=360, height=700)
    at(page, 10)
    page.locator("#moment").fill(str(numbers["1 leads"]))
    at(page, numbers["1 leads"])
    page.locator("button", has_text="play").click()
    at(page, numbers["2 leads"])
    page.locator("button", has_text="play").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_recording_is_not_live_and_offers_no_commands(
    pages: Pages, server: PageServer, numbers: dict[str, Any]
) -> None:
    page = pages.open(f"{server.url}#travel")
    at(page, 10)
    assert page.locator("#connection").inner_text() == "a recording"
    assert page.locator("nav a").all_inner_texts() == ["1\nNow", "2\nWhy", "3\nTravel"]
    page.locator("#moment").fill(str(numbers["no leader"]))
    at(page, numbers["no leader"])
    for view in ("#why/t/0", "#why", "#now"):
        page.evaluate("(hash) => { location.hash = hash; }", view)
        page.locator("main > *").first.wait_for()
        if view == "#why/t/0":
            page.locator(".condition").first.wait_for()
        assert page.locator(".command, .actions button").count() == 0
    assert page.locator("#lost").is_hidden()
