"""Makes the pictures of the documentation: `make pictures`, which is `python -m support.pictures docs/pictures`.

Eight brokers, some topics, a producer and a group; then a broker dies, and a reassignment moves partitions while its
throttle makes it slow; at the end the recording of the death. Each picture is of the real page in a headless Chromium.
"""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from playwright.sync_api import Browser, Page, sync_playwright

from klamm.recording.reader import Recording
from klamm.testing import Cluster
from support.browser import PATIENCE_MS, launch
from support.clusters import KLAMM
from support.processes import ManagedProcess

TOPICS = {"orders": 48, "payments": 24, "clicks": 96, "audit-log": 12, "users": 24, "returns": 36}
CONFIGS = {"audit-log": {"min.insync.replicas": "2", "retention.ms": "31536000000", "compression.type": "zstd"}}
VICTIM = 5
# The death of a broker is seen after it. On a busy machine the others must not lose their sessions.
SESSION_MS = 12_000
# Enough for the sparklines to have a shape.
SAMPLES_MS = 12_000
MOVED = range(12)
VALUE = json.dumps(
    {
        "order": 9007199254740993,
        "customer": {"name": "Frieda", "inn": "Herrenhof"},
        "items": [{"article": "lamp", "count": 2}, {"article": "letter", "count": 1}],
        "note": "x" * 200,
    }
)


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as temporary,
        Cluster(brokers=8, zookeeper_session_timeout_ms=SESSION_MS) as cluster,
        load(cluster),
        # One address: commands on the page show it.
        cockpit(Path(temporary), "--bootstrap-server", cluster.bootstrap.partition(",")[0]) as url,
        sync_playwright() as playwright,
    ):
        browser = launch(playwright)
        page = opened(browser, url, color_scheme="light")
        page.locator("#groups tbody tr").wait_for()
        page.wait_for_timeout(SAMPLES_MS)
        controller_answers(page)
        picture(page, directory / "now.png")
        # What a failover does is seen by a page that was open before.
        dark = opened(browser, url, color_scheme="dark")
        cluster.kill(VICTIM)
        dark.locator("#brokers .down").wait_for()
        dark.locator("#findings .problem", has_text=f"Broker {VICTIM} is named").wait_for()
        controller_answers(dark)
        picture(dark, directory / "failover.png")
        show(dark, "why", "#problems .condition")
        picture(dark, directory / "why.png")
        show(dark, f"why/orders/{partition_on(cluster, VICTIM)}", "#story tbody tr")
        dark.set_viewport_size({"width": 1280, "height": 1500})
        picture(dark, directory / "partition.png")
        cluster.start(VICTIM)
        page.locator(".tile.good", has_text="8 of 8").wait_for()
        page.locator(".counts tfoot", has_text=re.compile(r"all\s*290\s*580")).wait_for()
        file = cluster.record(Path(temporary) / "failover.klamm")
        reassign(cluster, Path(temporary))
        page.locator("#work .step").first.wait_for()
        # The map has replicas that are being added.
        page.locator(".counts tfoot td:nth-child(6)", has_text=re.compile("[1-9]")).wait_for()
        controller_answers(page)
        picture(page, directory / "reassignment.png")
        page.locator("#map-by-lag").click()
        # All lags are known, and those of the copies that the throttle holds back are large.
        page.locator(".counts tfoot td:nth-child(8)", has_text=re.compile("^0$")).wait_for()
        page.locator(".counts tfoot td:nth-child(5)", has_text=re.compile("[1-9]")).wait_for()
        controller_answers(page)
        picture(page, directory / "lag.png")
        show(page, "topics", "#topics td.number")
        # Rates are known from the second look on.
        page.locator("#topics td", has_text="/s").first.wait_for()
        picture(page, directory / "topics.png")
        show(page, "topics/audit-log", "#configs-set tbody tr")
        picture(page, directory / "configs.png")
        show(page, "topics/orders/0?limit=4", "#records .record")
        picture(page, directory / "records.png")
        show(page, "groups/billing", "#lag tbody tr")
        picture(page, directory / "group.png")
        phone = opened(browser, url, color_scheme="light", viewport={"width": 360, "height": 780})
        picture(phone, directory / "phone.png")
        with cockpit(Path(temporary), str(file)) as recorded:
            traveller = opened(browser, recorded, color_scheme="light", viewport={"width": 1280, "height": 640})
            show(traveller, "travel", "#entries tr")
            travel(traveller, file)
            picture(traveller, directory / "travel.png")
        browser.close()


@contextlib.contextmanager
def load(cluster: Cluster) -> Iterator[None]:
    """Records for all topics, and a group that reads some of them."""
    for name, partitions in TOPICS.items():
        cluster.create_topic(name, partitions=partitions, configs=CONFIGS.get(name))
    is_over = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20, "log_level": 0})
        while not is_over.wait(0.02):
            for name, partitions in TOPICS.items():
                for number in range(20):
                    with contextlib.suppress(BufferError):  # The machine is busy: fewer records will do.
                        producer.produce(name, key=f"guest-{number}", value=VALUE, partition=number % partitions)
            producer.poll(0)
        producer.flush(5)

    def consume() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe(["orders", "payments"])
        while not is_over.is_set():
            consumer.consume(200, 0.2)
        consumer.close()

    threads = [threading.Thread(target=work) for work in (produce, consume)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def cockpit(directory: Path, *arguments: str) -> Iterator[str]:
    """The address of `klamm cockpit`."""
    command = [str(KLAMM), "cockpit", *arguments, "--json"]
    process = ManagedProcess("klamm cockpit", command, directory / "cockpit.log")
    try:
        yield process.wait_for(r'"url": "([^"]+)"').group(1)
    finally:
        process.stop()


def opened(browser: Browser, url: str, **options: Any) -> Page:
    """A page in a context of its own. The printed address works more than once."""
    page = browser.new_context(**{"viewport": {"width": 1280, "height": 1100}} | options).new_page()
    page.set_default_timeout(4 * PATIENCE_MS)
    page.goto(url)
    page.locator("#map-readout", has_text="-0").wait_for()
    return page


def show(page: Page, view: str, part: str) -> None:
    """Goes to a view, and waits until this part of it is there."""
    page.evaluate("(hash) => { location.hash = hash; }", view)
    page.locator(part).first.wait_for()


def controller_answers(page: Page) -> None:
    """Waits until the controller has told what it does, which on a busy machine may not come in time, and all of the
    page shows it."""
    page.locator(".tile", has_text="Event queue").locator("strong", has_text=re.compile(r"^\d")).wait_for()
    page.locator("#states .current").wait_for()


def picture(page: Page, file: Path) -> None:
    """A picture of what can be seen of the page, without empty space below it."""
    bottom = page.evaluate("Math.ceil(document.getElementById('view').lastElementChild.getBoundingClientRect().bottom)")
    assert page.viewport_size is not None
    size = page.viewport_size
    height = min(size["height"], bottom + 16)
    page.screenshot(path=file, animations="disabled", clip={"x": 0, "y": 0, "width": size["width"], "height": height})
    print(f"{file}: {file.stat().st_size:,} bytes")


def partition_on(cluster: Cluster, broker: int) -> int:
    """A partition of `orders` that this broker led before it died."""
    return next(each for each in range(TOPICS["orders"]) if cluster.replicas("orders", each)[0] == broker)


def travel(page: Page, file: Path) -> None:
    """Marks the moments before and after the broker's death, and waits for what differs between them."""
    with Recording(file) as recording:
        gone = next(
            each.number
            for each in recording.entries(0, recording.count)
            if each.entry.get("text") == f"broker {VICTIM} is no longer registered"
        )
        back = next(
            each.number
            for each in recording.entries(gone, recording.count)
            if str(each.entry.get("text")).startswith(f"broker {VICTIM} is registered")
        )
    for entry, mark in ((gone - 1, "a"), (back - 1, "b")):
        page.locator("#moment").fill(str(entry))
        page.locator("#moment-time", has_text=f"entry {entry} of").wait_for()
        page.locator("#view").press(mark)
    page.locator("#difference-words li").first.wait_for()
    page.evaluate("scrollTo(0, 0)")


def reassign(cluster: Cluster, directory: Path) -> None:
    """Moves partitions of `clicks` with a throttle that keeps them moving while the picture is taken."""
    partitions = [
        {"topic": "clicks", "partition": number, "replicas": [(number + step) % 8 for step in (3, 5, 6)]}
        for number in MOVED
    ]
    plan = directory / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    options = ["--reassignment-json-file", str(plan), "--throttle", "1000", "--no-wait", "--yes"]
    command = [str(KLAMM), "reassign", "execute", "--bootstrap-server", cluster.bootstrap, *options]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
