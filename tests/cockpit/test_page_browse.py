"""The views Why, Topics and Groups in a browser, on a real cluster whose content is hostile."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from typing import Any
from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support.browser import Pages

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[2J\u2028"
SEEN = "<img src=x onerror=alert(1)>\\u202e\\u001b[2J\\u2028"


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=2, properties={"auto.leader.rebalance.enable": "false"}, helper=klamm_helper) as running:
        running.create_topic("orders", partitions=1, replication_factor=2)
        producer = Producer({"bootstrap.servers": running.bootstrap})
        for number in range(60):
            value = json.dumps({"number": number, "deep": {"list": [1, 2]}, "text": HOSTILE})
            producer.produce("orders", value, key=HOSTILE, headers=[(HOSTILE, HOSTILE.encode())])
        producer.flush(120)
        consumer = Consumer(
            {
                "bootstrap.servers": running.bootstrap,
                "group.id": HOSTILE,
                "client.id": HOSTILE,
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["orders"])
        while not consumer.assignment():
            consumer.poll(0.1)
        consumer.commit(offsets=[TopicPartition("orders", 0, 5)], asynchronous=False)
        yield running
        consumer.close()


def served(cluster: Cluster, *options: str) -> Generator[str]:
    """The address of `klamm cockpit`."""
    command = [sys.executable, "-m", "klamm.cli.main", "cockpit", "--bootstrap-server", cluster.bootstrap, "--json"]
    command += ["--zookeeper", cluster.zookeeper, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Generator[str]:
    yield from served(cluster, "--allow-changes")


@pytest.fixture
def url_to_look(cluster: Cluster) -> Generator[str]:
    yield from served(cluster)


def go(page: Any, view: str) -> None:
    page.evaluate("(hash) => { location.hash = hash; }", view)


def nothing_was_injected(page: Any) -> None:
    assert page.locator("main img, main script").count() == 0
    text = page.locator("main").inner_text()
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u2028\u2029\x1b]", text)


def test_records_are_browsed_by_offset_with_json_folded_and_names_made_visible(pages: Pages, url: str) -> None:
    page = pages.open(url)
    go(page, "topics")
    page.get_by_role("link", name="orders", exact=True).click()
    page.locator("#partitions").wait_for()
    page.locator("#configs summary").click()
    page.locator("#configs", has_text="min.insync.replicas").wait_for()
    go(page, "topics/orders/0?offset=3&limit=2")
    records = page.locator("#records .record")
    records.first.wait_for()
    assert records.count() == 2
    first = records.first
    assert first.locator("header strong").inner_text() == "3"
    assert SEEN in first.locator("dd").first.inner_text()
    assert first.locator("dt.header").inner_text().endswith(SEEN)
    assert first.locator("pre.json details").count() == 2
    assert '"number": 3,' in first.locator("pre.json").inner_text()
    nothing_was_injected(page)
    page.get_by_role("link", name="later").click()
    page.locator("#records .record header strong", has_text=re.compile("^5$")).wait_for()
    page.get_by_role("link", name="earlier").click()
    page.locator("#records .record header strong", has_text=re.compile("^4$")).wait_for()


def test_a_group_shows_its_members_and_lag_whatever_its_name(pages: Pages, url: str) -> None:
    page = pages.open(url)
    go(page, "groups")
    page.locator("#groups", has_text=SEEN).wait_for()
    go(page, f"groups/{quote(HOSTILE, safe='')}")
    page.locator("#lag", has_text="orders-0").wait_for()
    assert page.locator(".view-head h2").inner_text() == SEEN
    assert page.locator(".tile", has_text="records, in").locator("strong").inner_text() == "55"
    assert SEEN in page.locator("#members").inner_text()
    nothing_was_injected(page)


def without_preferred_leader(cluster: Cluster) -> int:
    """The other replica leads orders-0, and both are in sync. Returns the preferred leader."""
    preferred = cluster.replicas("orders", 0)[0]
    if cluster.leader("orders", 0) == preferred:
        cluster.restart(preferred)
    cluster.until(lambda: len(cluster.isr("orders", 0)) == 2)
    return preferred


def test_without_allow_changes_there_is_no_button_but_the_reason_and_the_command(
    cluster: Cluster, url_to_look: str, pages: Pages
) -> None:
    # `pages` comes last, so it ends first: a page whose server has gone asks again, and is refused.
    without_preferred_leader(cluster)
    page = pages.open(url_to_look)
    go(page, "why/orders/0")
    # The page looks again by itself until the controller has seen the broker come back.
    page.locator(".remedies code", has_text="klamm elect preferred --topic orders --partition 0").wait_for()
    assert "klamm cockpit was started without --allow-changes" in page.locator(".actions").inner_text()
    assert page.locator(".actions button").count() == 0
    assert page.locator("main button").all_inner_texts() == ["Look again", "copy"]


def test_why_shows_the_story_and_a_confirmed_election_helps(cluster: Cluster, pages: Pages, url: str) -> None:
    preferred = without_preferred_leader(cluster)
    page = pages.open(url)
    go(page, "why")
    page.locator("#problems .condition, #problems [data-kind]").first.wait_for()
    page.get_by_label("Topic").fill("orders")
    page.get_by_role("button", name="Why?").click()
    page.locator('[data-kind="off_preferred"]').wait_for()
    page.locator(".remedies code", has_text="klamm elect preferred --topic orders --partition 0").wait_for()
    assert page.locator("#story tbody tr").count() > 0
    page.get_by_role("button", name="Elect the preferred leader").click()
    page.locator("dialog .what").wait_for()
    assert f"-> {preferred}" in page.locator("dialog .what").inner_text()
    assert cluster.leader("orders", 0) != preferred
    page.get_by_role("button", name="Do it").click()
    page.locator("dialog", has_text=f"Broker {preferred} leads orders-0.").wait_for()
    assert cluster.leader("orders", 0) == preferred
    page.get_by_role("button", name="Close").click()
    page.locator('[data-kind="healthy"]').wait_for()
    page.go_back()
    page.get_by_role("heading", name="What is wrong now").wait_for()


def test_the_map_shows_the_lag_of_a_real_follower(cluster: Cluster, pages: Pages, url: str) -> None:
    leader = cluster.leader("orders", 0)
    assert leader is not None
    page = pages.open(url)
    page.get_by_role("button", name="colour by lag").click()
    page.get_by_label("Find a topic").fill("orders")
    said = f"orders-0: leader {leader}; {1 - leader} is 0 records behind"
    page.locator("#map-readout", has_text=said).wait_for()


def test_the_views_fit_a_phone(pages: Pages, url: str) -> None:
    page = pages.open(url, width=360, height=740)
    for view, shown in (
        ("topics", "#topics"),
        ("topics/orders/0", "#records .record"),
        ("why/orders/0", "#why"),
        ("groups", "#groups"),
    ):
        go(page, view)
        page.locator(shown).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, view
