"""The view Now and the map of partitions, as a browser shows them. The cluster is an imagined one."""

import json
import re
from collections.abc import Generator
from typing import Any

import pytest

from klamm.cockpit.live.document import KAFKA_SHOWS_LESS
from klamm.cockpit.map_lags import PIECE_ROWS
from klamm.cockpit.page_json import encoded_json
from klamm.cockpit.partition_map import PartitionMap
from klamm.controller.events import ControllerState
from klamm.controller.state_change_log import PARTITION_STATE_NAMES, REPLICA_STATE_NAMES
from klamm.controller.states import VALID_PREVIOUS_PARTITION_STATES, VALID_PREVIOUS_REPLICA_STATES
from klamm.coordinator.groups.group import GroupState
from klamm.coordinator.transactions.states import STATE_NAMES
from klamm.diagnosis.cluster_view import PartitionView
from support.browser import Pages, wait_until
from support.cockpit import (
    LEADER,
    OFFLINE,
    OUT_OF_SYNC,
    FixedSource,
    PageServer,
    encoded_map,
    map_of,
    now_document,
    partition_map,
)

BROKERS = 3
TOPICS = [("audit", 4), ("orders", 60), ("users", 6)]
HOSTILE = "<img src=x onerror=alert(1)></script><!-- {{now}} \u202e\u2028&quot;"
SEEN = HOSTILE.replace("\u202e", "\\u202e").replace("\u2028", "\\u2028")


@pytest.fixture(scope="module")
def server() -> Generator[PageServer]:
    with PageServer(FixedSource(now_document(BROKERS))) as server:
        yield server


@pytest.fixture(autouse=True)
def cluster(server: PageServer) -> None:
    """The same cluster for each test."""
    server.source.document = now_document(BROKERS)
    head, cells = partition_map(BROKERS, TOPICS, replication_factor=2)
    cells[5 * BROKERS : 6 * BROKERS] = bytes((0, OFFLINE, OFFLINE))  # orders-1
    server.map_bytes = encoded_map(head, cells)
    server.source.partitions = PartitionMap()


def map_is_drawn(page: Any) -> None:
    page.locator("#map-readout", has_text="audit-0").wait_for()
    page.evaluate("() => new Promise(requestAnimationFrame)")


def cell_colours(page: Any, *places: tuple[int, int]) -> list[list[int]]:
    """The colours in a corner of cells, (partition, broker) each, where neither pattern nor letter is."""
    script = """async (places) => {
        await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
        const { layout, cellContext, cells } = cockpit.heat;
        const { data } = cellContext.getImageData(0, 0, cells.width, cells.height);
        return places.map(([partition, broker]) => {
            const [x, y] = layout.place(partition);
            const pixel = 4 * ((y - cockpit.heat.top() + broker * layout.cell + 1) * cells.width + x + 1);
            return [...data.slice(pixel, pixel + 3)];
        });
    }"""
    return page.evaluate(script, places)


def colour_of(page: Any, name: str) -> list[int]:
    return page.evaluate("name => coloursOf(document.body, [name])[0]", name)


# -- what Now says --------------------------------------------------------------------------------------------------


def test_now_says_what_the_controller_does_and_what_is_wrong(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    tiles = page.locator(".tiles")
    for text in ("broker 1", "epoch 7, for 3 min 12 s", "BrokerChange", "for 240 ms", "the oldest waits for 180 ms"):
        assert text in tiles.inner_text()
    assert "2 of 3" in tiles.inner_text()
    assert "down: 2" in tiles.inner_text()
    assert "IsrChangeNotification for 180 ms" in page.get_by_role("list", name="The event queue").inner_text()
    brokers = page.locator("#brokers").inner_text()
    for text in ("controller", "2 waiting", "LeaderAndIsr for 31 ms", "it is not registered", "3.8 MB/s"):
        assert text in brokers
    work = page.locator("#work").inner_text()
    assert "adds 3, removes 2" in work
    assert "waits for: the answers of broker 2" in work
    assert "1,204" in page.locator("#groups").inner_text()
    findings = page.get_by_role("region", name="Findings")
    assert "2 partitions have no leader" in findings.inner_text()
    assert findings.get_by_role("button", name="Copy klamm partitions --offline").is_visible()


def test_the_state_machines_show_counts_and_the_changes_that_the_stream_brings(
    server: PageServer, pages: Pages
) -> None:
    page = pages.open(server.url)
    page.locator("#connection", has_text="live").wait_for()
    change = {"kind": "partition", "from": "OnlinePartition", "to": "OfflinePartition", "leader": None, "why": ""}
    more = {"topic": "orders", "failed": False, "event": "BrokerChange", "time_ms": 1_700_000_100_500}
    records = [change | more | {"partition": number} for number in range(12)]
    ended = {"kind": "event", "event": "BrokerChange", "state": "BrokerChange", "outcome": "processed"}
    records.append(ended | {"queue_time_ms": 4, "processing_time_ms": 900, "time_ms": 1_700_000_100_900})
    server.publish("record", {"records": records})
    server.publish("now", now_document(BROKERS, time_ms=1_700_000_101_000))
    page.locator("#records", has_text="12 partitions Online → Offline, because of BrokerChange").wait_for()
    assert "BrokerChange processed in 900 ms, after 4.0 ms in the queue" in page.locator("#records").inner_text()
    row = page.get_by_role("table", name="Partitions").get_by_role("row", name=re.compile("^Online"))
    assert row.inner_text().split() == ["Online", "118", "·", "12"]
    lane = page.locator(".lanes tr", has_text="BrokerChange")
    assert lane.inner_text().split()[:3] == ["BrokerChange", "now", "2"]


def test_every_state_is_explained(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    meanings = page.evaluate("cockpit.meanings")
    assert all(meaning.endswith(".") for states in meanings.values() for meaning in states.values())
    tables = page.evaluate("cockpit.tables")
    shown = {
        "The controller's states": tables["CONTROLLER_STATES"],
        "States of partitions": tables["PARTITION_MACHINE"],
        "States of replicas": tables["REPLICA_MACHINE"],
        "Replicas in the map": page.evaluate("cockpit.heat.layer.states.slice(1).map(({ words }) => words)"),
        "Brokers": page.evaluate("Object.values(cockpit.tables.BROKER_STATES).map(([text]) => text)"),
        "Groups": [state.value for state in GroupState],
        "Transactions": list(STATE_NAMES.values()),
    }
    assert meanings.keys() == shown.keys()
    assert {of: set(states) - meanings[of].keys() for of, states in shown.items()} == {of: set() for of in shown}
    # As a tooltip, and in a list for those who use no pointer.
    title = page.get_by_role("columnheader", name="out of sync").get_attribute("title")
    assert title == meanings["Replicas in the map"]["out of sync"]
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("States of replicas").click()
    assert "Its broker was asked to delete it." in page.get_by_role("dialog").inner_text()


def test_the_tables_of_states_are_those_of_the_controller(server: PageServer, pages: Pages) -> None:
    tables = pages.open(server.url).evaluate("cockpit.tables")
    assert tables["PIECE_ROWS"] == PIECE_ROWS
    assert tables["CONTROLLER_STATES"] == [state.label for state in ControllerState]

    def short(name: str) -> str:
        return re.sub(r"^Replica(?=Deletion)|(Partition|Replica)$", "", name)

    for table, names, valid in (
        (tables["PARTITION_MACHINE"], PARTITION_STATE_NAMES, VALID_PREVIOUS_PARTITION_STATES),
        (tables["REPLICA_MACHINE"], REPLICA_STATE_NAMES, VALID_PREVIOUS_REPLICA_STATES),
    ):
        expected = {short(names[to]): {short(names[each]) for each in before} for to, before in valid.items()}
        assert {to: set(before) for to, before in table.items()} == expected


def test_what_is_not_known_is_said_in_a_sentence(server: PageServer, pages: Pages) -> None:
    why_not = "Apache Kafka's controller tells nothing over HTTP."
    nothing = {"events": None, "machines": None, "states": {"now": None, "over_time": [], "why_not": why_not}}
    server.source.document = now_document(BROKERS, **nothing, why_not=why_not, groups=[])
    page = pages.open(server.url)
    assert "tells nothing over HTTP" in page.locator("#states").inner_text()
    assert "tells nothing over HTTP" in page.locator("#machines").inner_text()
    assert "There is no group." in page.locator("#groups").inner_text()


def test_what_only_klamm_tells_is_absent_on_clusters_of_apache_kafka(server: PageServer, pages: Pages) -> None:
    nothing = {"events": None, "machines": None, "states": {"now": None, "over_time": [], "why_not": KAFKA_SHOWS_LESS}}
    document = now_document(BROKERS, **nothing, why_not=KAFKA_SHOWS_LESS)
    document["cluster"]["kind"] = "kafka-zookeeper"
    document["work"] |= {"deletions": None, "elections": None, "why_not": KAFKA_SHOWS_LESS}
    for broker in document["brokers"]:
        broker["why_not"] = "JMX only"
    server.source.document = document
    page = pages.open(server.url)
    map_is_drawn(page)
    assert page.locator(".tile dt").all_inner_texts() == ["Controller", "Brokers", "Partitions", "Lag of groups"]
    assert page.locator("#states, #machines, #records, .measured, .sending").count() == 0
    assert page.locator("main").inner_text().count("JMX") == 1
    assert page.locator("#brokers thead th").all_inner_texts() == ["Broker", "State"]


def test_earlier_records_are_shown_on_demand(server: PageServer, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    of_all = {"controller": 1, "epoch": 7, "kind": "controller", "time_ms": 1_700_000_000_000}
    change = {"kind": "partition", "from": "OnlinePartition", "to": "OfflinePartition", "topic": "t", "partition": 0}
    change |= {"leader": None, "leader_epoch": None, "isr": None, "failed": False, "why": "", "event": "BrokerChange"}
    kept = [of_all | change | {"sequence": number} for number in range(1_000)]
    kept += [of_all | {"sequence": number, "text": f"record {number}"} for number in range(1_000, 1_300)]
    monkeypatch.setattr(server.source, "followed", lambda: kept)
    page = pages.open(server.url)
    feed = page.locator("#records .feed li")
    page.locator("#records", has_text="The brokers still have 800 earlier records.").wait_for()
    feed.filter(has_text="200 partitions Online → Offline, because of BrokerChange").wait_for()
    assert (feed.count(), feed.first.inner_text().endswith("record 1299")) == (301, True)
    page.locator("#connection", has_text="live").wait_for()
    server.publish("record", {"records": [of_all | {"sequence": 1_300, "text": "the newest"}], "left_out": 0})
    server.publish("now", now_document(BROKERS, time_ms=1_700_000_101_000))
    page.locator("#records .feed li", has_text="the newest").wait_for()
    for left in ("500 earlier records", "no earlier record"):
        page.locator("#earlier").click()
        page.locator("#records", has_text=left).wait_for()
    # Alike in a row are one line, also across answers.
    feed.filter(has_text="1,000 partitions").wait_for()
    assert feed.count() == 302


def test_what_was_read_long_ago_says_so_and_hints_are_counted(server: PageServer, pages: Pages) -> None:
    hint = {"kind": "hint", "text": "Brokers run different versions.", "advice": "", "command": "", "is_problem": False}
    findings = [*now_document()["findings"], hint, hint]
    read_ms = {"groups": 47_000, "findings": 14_000}
    time_ms = now_document()["time_ms"]
    readings = {name: {"at_ms": time_ms - age_ms, "why_not": None} for name, age_ms in read_ms.items()}
    server.source.document = now_document(BROKERS, findings=findings, readings=readings)
    page = pages.open(server.url)
    assert "2, read 45 s ago" in page.locator("#groups header").inner_text()
    assert page.locator("#findings header").inner_text().split("\n") == ["Findings", "1 problem", "2 hints"]


def test_a_command_of_a_finding_names_the_cluster(pages: Pages) -> None:
    source = FixedSource(now_document(BROKERS))
    with PageServer(source, reach=("--bootstrap-server", "host 1:9092")) as server:
        findings = pages.open(server.url).get_by_role("region", name="Findings")
        copied = findings.locator("button[data-copy]").get_attribute("data-copy")
        assert copied == "klamm partitions --offline --bootstrap-server 'host 1:9092'"
        assert findings.locator("code").inner_text() == copied
        pages.close()  # Before the server: a page whose stream ends opens it again.


def test_records_of_a_later_version_are_shown_as_they_are(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    page.locator("#connection", has_text="live").wait_for()
    of_all = {"sequence": 1, "time_ms": 1_700_000_100_500, "controller": 1, "epoch": 9}
    kinds = [of_all | {"kind": kind} for kind in ("request", "controller", "__proto__", "soothsaying")]
    text = of_all | {"kind": "controller", "text": "Nul \0 and \u202e"}
    server.publish("record", {"records": [*kinds, text], "left_out": 0})
    server.publish("now", now_document(BROKERS, time_ms=1_700_000_101_000))
    page.locator("#records", has_text='"kind":"request"').wait_for()
    assert "Nul \\u0000 and \\u202e" in page.locator("#records").inner_text()


def test_integers_of_records_are_shown_exactly(server: PageServer, pages: Pages) -> None:
    most, odd = 2**63 - 1, 2**53 + 1
    lags = [{"group": "a", "state": "Stable", "members": 1, "lag": most}, {"group": "b", "members": 1, "lag": 2}]
    server.source.document = now_document(BROKERS, groups=lags)
    page = pages.open(server.url)
    assert "9,223,372,036,854,775,807" in page.locator("#groups").inner_text()
    assert "9,223,372,036,854,775,809" in page.locator(".tiles").inner_text()
    empty = {"kind": "empty", "size_bytes": 0, "text": "", "is_cut": False}
    record = {"offset": 0, "timestamp_ms": most, "timestamp_type": "CreateTime", "key": empty, "value": empty}
    batch = {"base_offset": 0, "last_offset": 0, "compression": "none", "size_bytes": 70, "producer_epoch": 0}
    found = {
        "records": [record | {"headers": [], "more_headers": 0, "mark": "", "batch": 0}],
        "batches": [batch | {"producer_id": odd, "is_transactional": False, "error": None}],
        "topic": "t",
        "partition": 0,
    }
    found |= {"start": 0, "next_offset": 1, "end_offset": 1, "log_start_offset": 0, "high_watermark": 1, "stop": ""}
    answer = encoded_json(found | {"last_stable_offset": 1})
    page.route("**/api/records?*", lambda route: route.fulfill(body=answer, content_type="application/json"))
    page.evaluate("() => { location.hash = '#topics/t/0'; }")
    page.locator(".record", has_text=f"{most} ms since 1970").wait_for()
    assert f"producer {odd} epoch 0" in page.locator(".record").inner_text()


def test_names_of_the_cluster_are_shown_as_text(server: PageServer, pages: Pages) -> None:
    document = json.loads(json.dumps(now_document(BROKERS)).replace('"orders', json.dumps(HOSTILE)[:-1]))
    document["cluster"]["id"] = HOSTILE
    document["groups"][0]["group"] = document["brokers"][0]["rack"] = document["findings"][0]["text"] = HOSTILE
    document["live"] = {"state": "lost", "text": HOSTILE, "since_ms": None}
    server.source.document = document
    server.map_bytes = encoded_map(*partition_map(BROKERS, [(HOSTILE, 5)]))
    page = pages.open(server.url)
    page.locator("#map-readout", has_text=f"{SEEN}-0").wait_for()
    assert page.locator("img").count() == 0
    assert SEEN in str(page.locator("#groups").text_content())
    assert SEEN in str(page.locator("#work").text_content())
    assert str(page.get_by_role("alert").text_content()).startswith(SEEN)
    # Neither what is shown nor what is read out has a character that moves, hides or reorders others.
    everything = "() => document.body.innerText + [...document.querySelectorAll('[title], [aria-label]')].map((each) =>"
    everything += " each.title + each.ariaLabel).join() + document.title"
    assert not {"\u202e", "\u2028"} & set(page.evaluate(everything))
    page.keyboard.press("2")
    page.locator("#why-findings", has_text=SEEN).wait_for()
    assert not {"\u202e", "\u2028"} & set(page.evaluate(everything))


def test_links_on_pages_of_other_sites_lead_here(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    page.locator("#connection", has_text="live").wait_for()
    links = f'<a href="{server.url}#groups">token</a> <a href="{server.origin}/#why/orders/3">bookmark</a>'
    wiki = "http://wiki.example/"
    page.context.route(f"{wiki}*", lambda route: route.fulfill(body=links, content_type="text/html"))
    for text, shown in (("token", "#groups"), ("bookmark", "#why/orders/3")):
        page.goto(wiki)
        page.get_by_text(text).click()
        page.wait_for_url(f"{server.origin}/{shown}")
        page.locator("#connection", has_text="live").wait_for()
    pages.requests[:] = [url for url in pages.requests if not url.startswith(wiki)]
    # The imagined cluster has neither groups nor a story.
    pages.faults[:] = [fault for fault in pages.faults if "400 (Bad Request)" not in fault]


# -- the map ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_map_has_the_colours_of_its_cells(server: PageServer, pages: Pages, scheme: Any) -> None:
    page = pages.open(server.url, color_scheme=scheme)
    map_is_drawn(page)
    assert page.get_by_text("70 partitions on 3 brokers").is_visible()
    expected = {"leader": (0, 0), "isr": (0, 1), "none": (0, 2), "offline": (5, 1)}
    shown = dict(zip(expected, cell_colours(page, *expected.values()), strict=True))
    assert shown == {name: colour_of(page, f"cell-{name}") for name in expected}
    offline = page.get_by_role("table", name="Replicas of each broker by state").get_by_role(
        "row", name=re.compile("^2")
    )
    assert offline.inner_text().split()[4] == "1"


def test_a_change_draws_its_cells_and_counts(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    map_is_drawn(page)
    page.locator("#connection", has_text="live").wait_for()
    server.publish("partitions", {"version": 1, "sequence": 1, "rows": [0], "cells": [f"{OUT_OF_SYNC}{LEADER}0"]})
    page.locator(".counts tfoot", has_text=re.compile(r"all\s*69\s*68\s*1\s*2")).wait_for()
    assert cell_colours(page, (0, 0), (0, 1)) == [colour_of(page, "cell-behind"), colour_of(page, "cell-leader")]
    assert page.locator("#map-readout").inner_text() == "audit-0: leader 2; out of sync 1"
    # What the page has already changes nothing; after a gap the whole map is read again.
    head, cells = partition_map(BROKERS, TOPICS, replication_factor=1)
    server.map_bytes = encoded_map(head | {"sequence": 9}, cells)
    server.publish("partitions", {"version": 1, "sequence": 1, "rows": [1], "cells": ["444"]})
    server.publish("partitions", {"version": 1, "sequence": 9, "rows": [1], "cells": ["444"]})
    page.locator(".counts tfoot", has_text=re.compile(r"all\s*70\s*0\s*0\s*0")).wait_for()


def test_the_map_is_not_emptied_when_only_what_is_below_it_grows(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    map_is_drawn(page)
    script = """async () => {
        const copy = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
        const isDrawn = () => {
            copy.clearRect(0, 0, 300, 150);
            copy.drawImage(cockpit.heat.cells, 0, 0);
            // An emptied canvas is black.
            return copy.getImageData(0, 0, 300, 150).data.some((value, index) => index % 4 < 3 && value > 0);
        };
        const seen = [isDrawn()];
        cockpit.heat.readout.style.minHeight = "9em";
        for (let frame = 0; frame < 6; frame += 1) {
            await new Promise(requestAnimationFrame);
            seen.push(isDrawn());
        }
        return seen;
    }"""
    assert page.evaluate(script) == [True] * 7


def test_the_map_shows_how_far_followers_are_behind(server: PageServer, pages: Pages) -> None:
    head, cells = partition_map(BROKERS, [("orders", 1200)], replication_factor=2)
    cells[2 * BROKERS : 3 * BROKERS] = bytes((OFFLINE, 0, LEADER))  # orders-2
    server.map_bytes = encoded_map(head, cells)
    page = pages.open(server.url)
    asked: list[int] = []
    behind = {1: 0, 2: 1, 4: 1204, 5: 123_456, 500: 99}

    def answer(route: Any) -> None:
        first = PIECE_ROWS * int(route.request.url.rpartition("=")[2])
        asked.append(first)
        lags = [behind.get(row, 0) for row in range(first, min(first + PIECE_ROWS, 1200)) for _ in range(BROKERS)]
        lags[3 * BROKERS : 4 * BROKERS] = [-1] * BROKERS  # orders-3
        route.fulfill(json={"version": 1, "first": first, "lags": lags})

    page.route("**/api/lags/map?*", answer)
    page.locator("#map-readout", has_text="orders-0").wait_for()
    assert asked == []
    page.get_by_role("button", name="colour by lag").click()
    assert page.get_by_role("button", name="colour by lag").get_attribute("aria-pressed") == "true"
    # Two pieces: all other followers are not behind.
    page.locator(".counts tfoot", has_text=re.compile(r"all\s*1,200\s*1,194\s*1\s*1\s*1\s*1\s*2")).wait_for()
    assert sorted(set(asked)) == [0, PIECE_ROWS]
    page.evaluate("while (cockpit.heat.zoom < 16) cockpit.heat.zoomBy(1)")
    # (partition, broker): the leader, 0, 1,204 and 123,456 records behind, offline, not known.
    places = {"cell-leader": (0, 0), "cell-lag-0": (1, 2), "cell-lag-2": (4, 2), "cell-lag-3": (5, 0)}
    places |= {"cell-offline": (2, 0), "cell-unread": (3, 1)}
    shown = dict(zip(places, cell_colours(page, *places.values()), strict=True))
    assert shown == {name: colour_of(page, name) for name in places}
    page.locator(".map-scroller").focus()
    readout, said = page.locator("#map-readout"), []
    for _ in range(5):
        page.keyboard.press("ArrowRight")
        said.append(readout.inner_text())
    assert said == [
        "orders-1: leader 2; 3 is 0 records behind",
        "orders-2: leader 3; 1 is offline",
        "orders-3: leader 1; how far 2 is behind is not known",
        "orders-4: leader 2; 3 is 1,204 records behind",
        "orders-5: leader 3; 1 is 123,456 records behind",
    ]
    page.keyboard.press("n")
    assert readout.inner_text() == "orders-500: leader 3; 1 is 99 records behind"
    # A follower that takes over leads in the picture, too; then the colours are those of states again.
    page.locator("#connection", has_text="live").wait_for()
    server.publish("partitions", {"version": 1, "sequence": 1, "rows": [500], "cells": [f"{LEADER}0{OFFLINE}"]})
    page.locator("#map-readout", has_text="orders-500: leader 1; 3 is offline").wait_for()
    page.keyboard.press("l")
    assert readout.inner_text() == "orders-500: leader 1; offline 3"
    assert page.evaluate("cockpit.heat.layer === cockpit.heat.map")
    # Why there are no lags is said.
    refused = pages.open(server.url)
    refused.locator("#map-readout", has_text="orders-0").wait_for()
    refused.get_by_role("button", name="colour by lag").click()
    refused.locator(".why-not", has_text="Lags cannot be read: A recording has no records").wait_for()
    [fault] = pages.faults
    assert "400" in fault
    pages.faults.clear()


def test_the_keyboard_alone_is_enough(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    map_is_drawn(page)
    keyboard, readout = page.keyboard, page.locator("#map-readout")
    keyboard.press("?")
    assert "next and the previous partition with a problem" in page.get_by_role("dialog").inner_text()
    keyboard.press("Escape")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    keyboard.press("d")
    keyboard.press("d")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    for _ in range(20):
        keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role')") == "application":
            break
    keyboard.press("ArrowRight")
    assert readout.inner_text() == "audit-1: leader 2; in sync 3"
    keyboard.press("n")
    assert readout.inner_text() == "orders-1: no leader; offline 2, 3"
    keyboard.press("End")
    assert readout.inner_text().startswith("orders-59")
    size = page.locator(".map-tools output").inner_text()
    keyboard.press("-")
    assert page.locator(".map-tools output").inner_text() != size
    story = {"source": "a test", "left_out": 0, "entries": [], "why_no_more": ""}
    why = {"topic": "orders", "partition": 59, "leader": 2, "leader_epoch": 0, "isr": [2], "conditions": []}
    page.route("**/api/why?*", lambda route: route.fulfill(json={**why, "replicas": [], "story": story}))
    keyboard.press("Enter")
    page.wait_for_url("**/#why/orders/59")
    page.get_by_role("heading", name="orders-59").wait_for()
    keyboard.press("1")
    page.wait_for_url("**/#now")
    page.locator("#map-readout", has_text="orders-59").wait_for()


def test_why_begins_with_what_is_wrong_now_grouped_by_reason(server: PageServer, pages: Pages) -> None:
    led, leaderless = PartitionView(1, 0, (1, 2), (1, 2)), PartitionView(-1, 0, (2, 3), (2,))
    server.source.partitions = map_of({"orders": {0: led, 1: leaderless}}, [1])
    page = pages.open(server.url)
    page.keyboard.press("2")
    offline = page.locator('[data-kind="offline"]')
    offline.wait_for()
    assert "Without a leader: brokers 2, 3 are not live" in offline.inner_text()
    assert offline.get_by_role("link", name="orders-1").get_attribute("href") == "#why/orders/1"
    deleting = page.locator('[data-kind="deleting"]')
    assert "old" in deleting.inner_text()
    assert "the answers of broker 2" in deleting.inner_text()
    assert "klamm partitions --offline" in page.locator("#why-findings code").inner_text()


def test_a_phone_scrolls_in_one_direction_only(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url, width=360, height=740, has_touch=True)
    map_is_drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert page.evaluate("document.body.scrollWidth") == 360
    page.locator("#brokers .measured").first.wait_for()
    # Numbers of the brokers' cards are not cut.
    assert page.locator("#brokers .measured").evaluate_all(
        "(cells) => cells.every((cell) => cell.scrollWidth <= cell.clientWidth)"
    )


def test_focus_and_scroll_positions_outlive_a_new_document(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    map_is_drawn(page)
    page.locator("#connection", has_text="live").wait_for()
    page.get_by_role("button", name="Copy klamm partitions --offline").focus()
    page.get_by_text("Why", exact=True).click()
    page.get_by_role("button", name="Copy klamm partitions --offline").focus()
    server.publish("now", now_document(BROKERS, groups=[]))
    page.locator("#groups", has_text="There is no group.").wait_for()
    assert page.evaluate("document.activeElement.dataset.copy") == "klamm partitions --offline"
    assert page.get_by_text("orders-1: not alive: broker 2").is_visible()


# -- what a new document costs ----------------------------------------------------------------------------------------

# Nothing is left that waits for a frame.
SETTLED = "stale.size === 0"


def show_document(server: PageServer, page: Any, document: dict[str, Any]) -> None:
    server.publish("now", document)
    wait_until(page, f"cockpit.now.time_ms === {document['time_ms']}")
    wait_until(page, SETTLED)


def test_a_new_document_touches_only_the_panels_whose_data_have_changed(
    server: PageServer, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "beats", False)
    page = pages.open(server.url)
    map_is_drawn(page)
    page.locator("#connection", has_text="live").wait_for()
    page.evaluate(
        """() => {
            window.touched = new Set();
            new MutationObserver((changes) => changes.forEach(({ target }) => {
                const element = target.nodeType === Node.ELEMENT_NODE ? target : target.parentElement;
                const tile = element?.closest(".tile dt, .tile");
                touched.add(tile?.querySelector("dt").textContent ?? element?.closest("section")?.id);
            })).observe(document.getElementById("view"),
                { subtree: true, childList: true, characterData: true, attributes: true });
        }"""
    )
    document = now_document(BROKERS, time_ms=1_700_000_101_000)
    document["groups"][1]["lag"] = 7
    document["work"]["deletions"][0]["deleted"] = 3
    show_document(server, page, document)
    # With the time the age of the controller changes.
    assert page.evaluate("[...touched].sort()") == ["Controller", "Lag of groups", "groups", "work"]


def test_what_documents_leave_behind_is_what_the_last_one_makes_alone(
    server: PageServer, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents that grow and shrink, and panels that appear and vanish."""
    monkeypatch.setattr(server, "beats", False)
    page = pages.open(server.url)
    map_is_drawn(page)
    page.locator("#connection", has_text="live").wait_for()
    many = [{"group": f"g{n}", "state": "Stable", "members": n, "lag": n} for n in range(40)]
    moving = now_document()["work"]["reassignments"][0]
    moves = {**now_document()["work"], "reassignments": [{**moving, "partition": n} for n in range(40)]}
    nothing = {"now": None, "over_time": [], "why_not": "silence"}
    variants: list[dict[str, Any]] = [
        {"groups": many, "work": moves},
        {"groups": many[::-3], "trouble": "no broker answers"},
        {"machines": None, "events": None, "states": nothing, "why_not": "silence", "groups": None, "work": None},
        {"brokers": [], "totals": None, "findings": [], "controller": {"id": None, "why_not": "none"}},
        {"brokers": now_document(12)["brokers"], "groups": many},
        {"brokers": now_document(2)["brokers"][::-1]},
        {"states": None, "machines": {"partitions": {}, "replicas": {}}},
    ]
    shown = "() => document.querySelector('.now').innerHTML"
    for number, variant in enumerate([*variants, *variants[::-1], *variants[::2]]):
        show_document(server, page, now_document(BROKERS, time_ms=1_700_000_200_000 + number * 1000) | variant)
        left = page.evaluate(shown)
        page.evaluate("cockpit.route()")
        assert left == page.evaluate(shown), variant


def test_the_states_are_drawn_by_the_clock_of_the_controller(server: PageServer, pages: Pages) -> None:
    page = pages.open(server.url)
    page.locator("#connection", has_text="live").wait_for()
    ahead = now_document()["time_ms"] + 3_600_000
    states = {"now": "Idle", "time_ms": ahead, "over_time": [[ahead - 5_000, "IsrChange"], [ahead - 4_900, "Idle"]]}
    show_document(server, page, now_document(BROKERS, time_ms=1_700_000_101_000, states=states, events=None))
    lane = page.locator(".lanes tr", has_text="IsrChange")
    assert lane.inner_text().split() == ["IsrChange", "1", "100", "ms"]
    # A controller with another clock: a state that came as a record moves with it.
    ended = {"kind": "event", "event": "BrokerChange", "state": "BrokerChange", "outcome": "processed", "epoch": 7}
    ended |= {"queue_time_ms": 4, "processing_time_ms": 900, "time_ms": ahead - 2_000}
    server.publish("record", {"records": [ended]})
    later = {"states": {"now": "Idle", "time_ms": ahead - 7_199_000, "over_time": []}, "events": None}
    later["controller"] = now_document()["controller"] | {"epoch": 8}
    show_document(server, page, now_document(BROKERS, time_ms=1_700_000_102_000, **later))
    assert page.locator(".lanes tr", has_text="BrokerChange").inner_text().split() == ["BrokerChange", "1", "900", "ms"]


# -- hidden pages -----------------------------------------------------------------------------------------------------


def hide(page: Any, is_hidden: bool) -> None:
    """As when a tab is left or chosen; a headless browser has all its pages in sight."""
    page.evaluate(
        """(isHidden) => {
            Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


def test_hidden_pages_hold_no_stream_so_that_a_seventh_one_opens(server: PageServer, pages: Pages) -> None:
    first = page = pages.open(server.url)
    for _ in range(7):
        map_is_drawn(page)
        page.locator("#connection", has_text="live").wait_for()
        hide(page, is_hidden=True)
        page = page.context.new_page()
        page.goto(server.origin)
    map_is_drawn(page)
    page.locator("#connection", has_text="live").wait_for()
    # What came meanwhile reaches a page that is shown again, though no change of the map follows.
    head, cells = partition_map(BROKERS, TOPICS, replication_factor=1)
    server.map_bytes = encoded_map(head | {"sequence": 9}, cells)
    assert first.locator("#connection").inner_text() == "paused while hidden"
    hide(first, is_hidden=False)
    first.locator("#connection", has_text="live").wait_for()
    first.locator(".counts tfoot", has_text=re.compile(r"all\s*70\s*0\s*0\s*0")).wait_for()
