"""What the page shows is of now, or says that it is not: clusters that go away, changes that come at a bad time,
streams that end or fall silent, maps that cannot be read. The cluster is an imagined one."""

import re
from collections.abc import Generator
from typing import Any

import pytest

from klamm.cockpit.partition_map import PartitionMap
from klamm.diagnosis.cluster_view import PartitionView
from support.browser import Pages, wait_until
from support.cockpit import (
    LEADER,
    OFFLINE,
    OUT_OF_SYNC,
    UNUSED,
    FixedSource,
    PageServer,
    encoded_map,
    map_of,
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
    server.source.document = now_document(BROKERS)
    head, cells = partition_map(BROKERS, TOPICS, replication_factor=2)
    server.map_bytes = encoded_map(head, cells)
    server.source.partitions = PartitionMap()


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
    wait_until(page, "heard === 3")
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
    wait_until(page, "heard === 1")
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


def test_a_stream_that_is_silent_is_opened_again(
    server: PageServer, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "beats", False)
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


# -- clusters that go away -------------------------------------------------------------------------------------------

NO_ANSWER = "no broker answers (broker 1: connection refused)."


def gone_document(**changes: Any) -> dict[str, Any]:
    """Neither a broker nor ZooKeeper answers; what was known is of half a minute before."""
    document = now_document(BROKERS)
    at_ms = document["time_ms"] - 30_000
    lapsed = {"at_ms": at_ms, "why_not": NO_ANSWER}
    document |= {
        "live": {"state": "lost", "text": "neither a broker nor ZooKeeper answers", "since_ms": at_ms},
        "readings": dict.fromkeys(("registrations", "status", "partitions", "findings", "groups"), lapsed),
        "events": None,
        "machines": None,
        "states": {"now": None, "over_time": [], "why_not": NO_ANSWER},
        "work": {"reassignments": None, "deletions": None, "elections": None, "why_not": NO_ANSWER},
        "findings": [{"kind": "no_answer", "text": "None of 3 brokers answers.", "is_problem": True}],
        "why_not": NO_ANSWER,
    }
    document["controller"] |= {"is_known": False}
    for broker in document["brokers"]:
        broker |= {"alive": False, "state": "silent", "trouble": "connection refused", "answered_ms": at_ms}
    return document | changes


# What a person would take for the present.
CLAIMS = ("alive", "healthy", "Nothing", "nothing to do", "all can be", "in sync 1", "0 offline")


def assert_nothing_is_claimed(page: Any, view: str) -> None:
    page.keyboard.press(view)
    page.locator("main > *").first.wait_for()
    shown = page.locator("main").inner_text()
    assert [each for each in CLAIMS if each in shown] == []


def test_a_cluster_that_is_gone_is_unknown_on_every_view(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    counts(page, 70, 70, 0, 0)
    page.locator("#connection", has_text="live").wait_for()
    server.publish("now", gone_document())
    page.locator("#connection[data-state=lost]", has_text="neither a broker nor ZooKeeper answers").wait_for()
    since = page.evaluate("words.when(cockpit.now.live.since_ms)")
    banner = page.get_by_role("alert")
    assert banner.inner_text().startswith(
        f"Neither a broker nor ZooKeeper answers since {since}. What is shown is of then"
    )
    tiles = page.locator(".tile.unknown").all_inner_texts()
    assert [each.split("\n")[:2] for each in tiles] == [
        [label, "unknown"]
        for label in ("Controller", "Event in progress", "Event queue", "Partitions", "Lag of groups")
    ]
    assert f"120 at {since}" in tiles[3]
    assert "0 of 3\nno answer: 1, 2, 3" in page.locator(".tile.bad").inner_text()
    page.locator(".map.old").wait_for()
    assert f"As it was at {since}. It is not known now: {NO_ANSWER}" in page.locator("#map .why-not").first.inner_text()
    assert page.locator("#findings .badge").all_inner_texts() == ["1 problem", "problem"]
    assert "Other findings: not known now" in page.locator("#findings").inner_text()
    assert page.locator("#brokers tbody .badge").all_inner_texts() == ["controller", *["no answer"] * 3]
    assert f"it answered last at {since}" in page.locator("#brokers").inner_text()
    assert_nothing_is_claimed(page, "1")
    assert_nothing_is_claimed(page, "2")
    assert "What is wrong with partitions now is not known." in page.locator("#problems").inner_text()
    assert banner.is_visible()
    # It comes back.
    server.publish("now", now_document(BROKERS))
    page.locator("#connection", has_text="live").wait_for()
    page.keyboard.press("1")
    page.locator(".map:not(.old)").wait_for()
    assert banner.is_hidden() and page.locator(".tile.unknown").count() == 0


def test_a_page_without_a_word_from_the_cockpit_knows_nothing(
    server: PageServer, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "beats", False)
    page = pages.open(server.url)
    counts(page, 70, 70, 0, 0)
    page.locator("#connection", has_text="live").wait_for()
    page.route("**/events", lambda route: route.fulfill(status=503))
    page.clock.install()
    page.clock.run_for(10_000)
    page.locator("#connection[data-state=lost]").wait_for()
    page.clock.run_for(200)
    page.locator(".map.old").wait_for()
    assert page.locator(".tile.unknown").count() == 6
    assert set(page.locator("#brokers tbody td .badge").all_inner_texts()) == {"unknown"}
    assert page.get_by_role("alert").inner_text().startswith("Nothing comes from klamm cockpit since ")
    assert_nothing_is_claimed(page, "1")
    assert_nothing_is_claimed(page, "2")
    assert "503" in pages.faults[0]
    pages.faults.clear()


def test_a_cluster_without_zookeeper_is_partly_known(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    page.locator("#connection", has_text="live").wait_for()
    live = {"state": "partly", "text": "ZooKeeper does not answer", "since_ms": now_document()["time_ms"]}
    server.publish("now", now_document(BROKERS, live=live))
    page.locator("#connection[data-state=partly]", has_text="ZooKeeper does not answer").wait_for()
    assert page.get_by_role("alert").inner_text().startswith("ZooKeeper does not answer since ")
    assert page.locator(".tile.unknown").count() == 0


def test_a_replica_that_is_offline_on_a_live_broker_is_not_said_to_be_on_a_failed_disk(
    server: PageServer, pages: Pages
) -> None:
    head, cells = partition_map(BROKERS, TOPICS, replication_factor=2)
    cells[:BROKERS] = bytes((LEADER, UNUSED, 0))
    server.map_bytes = encoded_map(head, cells)
    short = PartitionView(1, 0, (1, 2), (1,), offline=(2,))
    server.source.partitions = map_of({"audit": {0: short}}, (1, 2))
    page = pages.open(server.url)
    counts(page, 70, 69, 0, 0, 0, 0, 1)
    page.keyboard.press("2")
    behind = page.locator('[data-kind="behind"]')
    behind.wait_for()
    assert (
        "its log directory has failed, or the controller has not used it since the broker came back"
        in behind.inner_text()
    )


def test_what_is_wrong_is_read_again_when_rows_have_changed(server: PageServer, pages: Pages) -> None:
    led = PartitionView(1, 0, (1, 2), (1, 2))
    server.source.partitions = map_of({"audit": {0: led}}, (1, 2))
    page = pages.open(server.url)
    page.locator("#connection", has_text="live").wait_for()
    page.keyboard.press("2")
    page.locator('[data-kind="behind"]').wait_for(state="detached")
    server.source.partitions = map_of({"audit": {0: led._replace(isr=(1,))}}, (1, 2))
    with page.expect_request("**/api/problems"):
        server.publish("partitions", {"version": 1, "sequence": 1, "rows": [0], "cells": [f"{LEADER}{OUT_OF_SYNC}0"]})
        server.publish("now", now_document(BROKERS))
    behind = page.locator('[data-kind="behind"]')
    behind.wait_for()
    assert "Under-replicated: the replica on 2 lags behind" in behind.inner_text()
    assert behind.get_by_role("link", name="audit-0").get_attribute("href") == "#why/audit/0"


def test_groups_that_no_broker_lists_are_not_said_to_be_none(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    page.locator("#groups", has_text="billing").wait_for()
    page.locator("#connection", has_text="live").wait_for()
    server.publish("now", now_document(BROKERS, groups=[], groups_hidden=1))
    page.locator("#groups", has_text="1 partition of __consumer_offsets has no leader").wait_for()
    assert "There is no group" not in page.locator("#groups").inner_text()
    assert "others are not known" in page.locator(".tile", has_text="Lag of groups").inner_text()


def test_the_numbers_beside_the_map_are_of_the_map(server: PageServer, pages: Pages) -> None:
    totals = {"topics": 3, "partitions": 70, "offline": 0, "under_replicated": 0, "reassigning": 0}
    head, cells = partition_map(BROKERS, TOPICS, replication_factor=2)
    server.map_bytes = encoded_map(head | {"totals": totals}, cells)
    page = pages.open(server.url)
    page.locator(".tile", has_text="70").get_by_text("0 offline, 0 under-replicated").wait_for()
    page.locator("#connection", has_text="live").wait_for()
    after = totals | {"offline": 1, "under_replicated": 1}
    rows = {"rows": [0, 1], "cells": [f"{OFFLINE}00", f"{LEADER}{OUT_OF_SYNC}0"]}
    server.publish("partitions", {"version": 1, "sequence": 1, "totals": after, **rows})
    page.locator(".tile.bad", has_text="1 offline, 1 under-replicated").wait_for()
    # Findings of an older map say so, and no more once they are of this one.
    of = {"findings_of": {"version": 1, "sequence": 0}}
    server.publish("now", now_document(BROKERS, **of))
    page.locator("#findings header", has_text="being read again").wait_for()
    server.publish("now", now_document(BROKERS, findings_of={"version": 1, "sequence": 1}))
    page.locator("#findings header", has_text="being read again").wait_for(state="detached")
    page.locator("#findings header .note").wait_for(state="detached")
