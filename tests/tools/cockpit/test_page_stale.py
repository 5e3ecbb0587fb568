"""What the page shows is of now, or says that it is not: changes that come at a bad time, streams that end or fall
silent, maps that cannot be read. The cluster is an imagined one."""

import re
from collections.abc import Generator
from typing import Any

import pytest

from support.browser import Pages
from support.cockpit import (
    LEADER,
    OFFLINE,
    OUT_OF_SYNC,
    FixedSource,
    PageServer,
    encoded_map,
    now_document,
    partition_map,
)

BROKERS = 3
TOPICS = [("audit", 4), ("orders", 60), ("users", 6)]


@pytest.fixture(scope="module")
def server() -> Generator[PageServer]:
    with PageServer(FixedSource(now_document(BROKERS))) as server:
        yield server


@pytest.fixture(autouse=True)
def cluster(server: PageServer) -> None:
    head, cells = partition_map(BROKERS, TOPICS, replication_factor=2)
    server.map_bytes = encoded_map(head, cells)


def counts(page: Any, *expected: int) -> None:
    """Waits until the map has so many leaders, and replicas in sync, out of sync and offline."""
    text = r"all\s*" + r"\s*".join(map(str, expected))
    page.locator(".counts tfoot", has_text=re.compile(text)).wait_for()


def count_events(page: Any) -> None:
    page.evaluate("window.heard = 0; cockpit.listeners.push((name) => { if (name === 'partitions') heard += 1; })")


def hold_first_map(page: Any) -> list[Any]:
    """The route of the next request for the map, which waits; later ones do not."""
    held: list[Any] = []
    page.route("**/api/partitions", lambda route: route.continue_() if held else held.append(route))
    return held


def test_a_change_that_comes_while_the_map_is_read_is_drawn(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    counts(page, 70, 70, 0, 0)
    page.locator("#connection", has_text="live").wait_for()
    count_events(page)
    held = hold_first_map(page)
    head, cells = partition_map(BROKERS, TOPICS, replication_factor=2)
    server.map_bytes = encoded_map(head | {"version": 2}, cells)
    with page.expect_request("**/api/partitions"):
        server.publish("partitions", {"version": 2, "sequence": 0, "rows": [], "cells": []})
    # The answer has been made, and is on its way.
    server.publish("partitions", {"version": 2, "sequence": 1, "rows": [0], "cells": [f"{OUT_OF_SYNC}{OFFLINE}0"]})
    server.publish("partitions", {"version": 2, "sequence": 2, "rows": [1], "cells": [f"{LEADER}{OFFLINE}0"]})
    page.wait_for_function("heard === 3")
    held[0].continue_()
    counts(page, 69, 68, 1, 2)


def test_a_map_of_another_version_that_comes_while_one_is_read_is_read_too(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    counts(page, 70, 70, 0, 0)
    page.locator("#connection", has_text="live").wait_for()
    count_events(page)
    held = hold_first_map(page)
    with page.expect_request("**/api/partitions"):
        server.publish("missed", {"events": 1})
    old = server.map_bytes
    head, cells = partition_map(BROKERS, [*TOPICS, ("views", 30)], replication_factor=2)
    server.map_bytes = encoded_map(head | {"version": 2}, cells)
    server.publish("partitions", {"version": 2, "sequence": 0, "rows": [], "cells": []})
    page.wait_for_function("heard === 1")
    held[0].fulfill(body=old, content_type="application/octet-stream")
    counts(page, 100, 100, 0, 0)


def test_a_page_that_lacks_changes_when_its_stream_opens_reads_the_map_again(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    counts(page, 70, 70, 0, 0)
    page.locator("#connection", has_text="live").wait_for()
    head, cells = partition_map(BROKERS, TOPICS, replication_factor=2)
    cells[:BROKERS] = bytes((OUT_OF_SYNC, OFFLINE, 0))
    server.map_bytes = encoded_map(head | {"sequence": 1}, cells)
    server.publish("partitions", {"version": 1, "sequence": 1, "rows": [], "cells": []})
    counts(page, 69, 69, 1, 1)


def test_a_map_that_cannot_be_read_is_said_not_to_be_of_now_and_read_again(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    page.clock.install()
    counts(page, 70, 70, 0, 0)
    page.locator("#connection", has_text="live").wait_for()
    page.route("**/api/partitions", lambda route: route.fulfill(status=500, json={"error": "the disk is full"}))
    server.publish("missed", {"events": 1})
    page.clock.run_for(100)
    page.locator("#map .why-not", has_text="The map is not of now: the disk is full").wait_for()
    page.unroute("**/api/partitions")
    head, cells = partition_map(BROKERS, [*TOPICS, ("views", 30)], replication_factor=2)
    server.map_bytes = encoded_map(head | {"version": 2}, cells)
    page.clock.run_for(6_000)
    page.locator("#map .note", has_text="100 partitions on 3 brokers").wait_for()
    page.clock.run_for(100)
    page.locator("#map .why-not", has_text="not of now").wait_for(state="detached")
    [fault] = pages.faults
    assert "500" in fault
    pages.faults.clear()


def test_a_stream_that_is_refused_is_tried_again(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    page.clock.install()
    page.locator("#connection", has_text="live").wait_for()
    page.route("**/events", lambda route: route.fulfill(status=503))
    page.evaluate(
        "for (const hidden of [true, false]) {"
        " Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page.locator("#connection[data-state=lost]", has_text="takes no more pages").wait_for()
    page.unroute("**/events")
    page.clock.run_for(6_000)
    page.locator("#connection", has_text="live").wait_for()
    [fault] = pages.faults
    assert "503" in fault
    pages.faults.clear()


def test_a_stream_that_is_silent_is_opened_again(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    page.clock.install()
    counts(page, 70, 70, 0, 0)
    page.locator("#connection", has_text="live").wait_for()
    head, cells = partition_map(BROKERS, [*TOPICS, ("views", 30)], replication_factor=2)
    server.map_bytes = encoded_map(head | {"version": 2}, cells)
    page.evaluate(
        "window.states = []; new MutationObserver(() => states.push(document.getElementById('connection').textContent))"
        ".observe(document.getElementById('connection'), { childList: true })"
    )
    with page.expect_request("**/events"), page.expect_request("**/api/partitions"):
        page.clock.run_for(40_000)
    page.locator("#connection", has_text="live").wait_for()
    assert "klamm cockpit is silent; trying again." in page.evaluate("states")
    page.clock.run_for(100)
    page.locator("#map .note", has_text="100 partitions on 3 brokers").wait_for()
