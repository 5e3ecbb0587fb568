"""What the cockpit's page costs a browser at 100,000 partitions on 8 brokers: script time a frame, first paint, memory.

The page is the real one, in a headless Chromium; its cluster is an imagined one, so that only the page is measured.
Script time is the CPU time of the outermost script events of the renderer's main thread in Chromium's trace, added up
for each frame. Memory is the proportional set size of the renderer process, and the JavaScript heap after a collection.
`--against` takes the directory of another version's script and style sheet and measures both in turns.

    .venv/bin/python bench/cockpit.py
    .venv/bin/python bench/cockpit.py --partitions 10000 --json page.json
    .venv/bin/python bench/cockpit.py --against ../before/klamm/cockpit/static --rounds 3
"""

import argparse
import json
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from playwright.sync_api import Browser, Page, Route, sync_playwright
from rich.console import Console
from rich.table import Table
from sides import ROOT  # noqa: F401  # puts the tests' support on the path

from klamm.base import json_bytes
from klamm.cockpit import server as cockpit_server
from klamm.cockpit.map_lags import PIECE_ROWS
from support.browser import PATIENCE_MS, launch
from support.cockpit import FixedSource, PageServer, encoded_map, now_document, partition_map

BROKERS = 8
PARTITIONS_PER_TOPIC = 100
FRAMES = 60
TARGET_MS = 8
FIRST_PAINT_TARGET_MS = 1000

SCRIPT = {
    "FunctionCall",
    "EvaluateScript",
    "FireAnimationFrame",
    "EventDispatch",
    "TimerFire",
    "RunMicrotasks",
    "MinorGC",
    "MajorGC",
}
FRAME = "AnimationFrame"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    head, cells = partition_map(
        BROKERS, [(f"topic-{n:05}", PARTITIONS_PER_TOPIC) for n in range(given.partitions // PARTITIONS_PER_TOPIC)]
    )
    sides: dict[str, Any] = {"this version": cockpit_server.STATIC}
    if given.against is not None:
        sides = {"the other version": given.against, **sides}
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    with sync_playwright() as playwright:
        for _ in range(given.rounds):
            for side, static in sides.items():
                source = FixedSource(now_document(BROKERS))
                with (
                    patch.object(cockpit_server, "STATIC", static),
                    PageServer(source, encoded_map(head, cells)) as server,
                ):
                    browser = launch(playwright)
                    found[side].append(measure(browser, server, head["rows"]))
                    browser.close()
    results = {side: together(rounds) for side, rounds in found.items()}
    for side, each in results.items():
        show(side, each, head["rows"])
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1))


def together(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbers of all rounds: frames as one list, the others as medians; the 95 % of each round shows the noise."""
    frames_of = {name: summary([each["frames"][name] for each in rounds]) for name in rounds[0]["frames"]}
    others = {name: statistics.median(each[name] for each in rounds) for name in rounds[0] if name != "frames"}
    return {"frames": frames_of, **others}


def summary(rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    busy = sorted(time for times in rounds for time in times)
    return {
        "frames": len(busy),
        "median_ms": statistics.median(busy),
        "p95_ms": percentile_95(busy),
        "most_ms": busy[-1],
        "p95_of_rounds_ms": [percentile_95(sorted(times)) for times in rounds],
    }


def percentile_95(ordered: Sequence[float]) -> float:
    return ordered[int(0.95 * (len(ordered) - 1))]


def busy_document(number: int, *, items: int = 0) -> dict[str, Any]:
    """A document of a cluster at work, in which everything that is measured has changed since the one before; with so
    many groups and reassignments, and the lag or the step of each."""
    document = now_document(BROKERS)
    time_ms = document["time_ms"] + number * 1000
    for broker in document["brokers"]:
        broker["loop_lag_ms"] = 0.3 + (number * 7 + broker["id"]) % 11 / 10
        broker["memory_bytes"] += number * 100_000
        broker["bytes_in_per_s"] = 1_000_000 + (number * 37 + broker["id"]) % 97 * 10_000
        broker["bytes_out_per_s"] = 2_000_000 + (number * 53 + broker["id"]) % 89 * 10_000
        broker["queue_size"] = (number + broker["id"]) % 4
    document["events"]["event_for_ms"] = 40 + number
    document["events"]["queue_size"] = number % 5
    document["states"]["over_time"] = [
        entry
        for step in range(40)
        for entry in ([time_ms - 1500 * (40 - step), "IsrChange"], [time_ms - 1500 * (40 - step) + 20 + number, "Idle"])
    ]
    document["totals"]["under_replicated"] = number
    document["machines"]["replicas"]["OfflineReplica"] = number
    groups = [{"group": f"group-{each:03}", "state": "Stable", "members": 3} for each in range(items)]
    document["groups"] = [
        {**each, "lag": (number * 31 + index * 17) % 1000} for index, each in enumerate([*document["groups"], *groups])
    ]
    moving = document["work"]["reassignments"][0]
    for each in range(items):
        changing = {"partition": each, "step": f"{number + each} of 200 MB are copied"}
        document["work"]["reassignments"].append({**moving, "topic": "moving", **changing})
    return {**document, "time_ms": time_ms}


def measure(browser: Browser, server: PageServer, rows: int) -> dict[str, Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(server.url)
    page.locator("#map-readout", has_text="topic-00000-0").wait_for()
    page.locator("#connection", has_text="live").wait_for()
    first_paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    sequence = 0

    def change(count: int) -> None:
        nonlocal sequence
        sequence += 1
        step = max(1, rows // count)
        changed = list(range(sequence % step, rows, step))[:count]
        kinds = ("21100000", "42100000", "04213000")
        cells = [kinds[(sequence + row) % len(kinds)] for row in changed]
        server.publish("partitions", {"version": 1, "sequence": sequence, "rows": changed, "cells": cells})
        page.wait_for_function("sequence => cockpit.heat.map.sequence === sequence", arg=sequence)
        frames(page, 2)

    def look(document: Mapping[str, Any]) -> None:
        server.publish("now", document)
        page.wait_for_function("time_ms => cockpit.now.time_ms === time_ms", arg=document["time_ms"])
        frames(page, 2)

    def looks(document: Callable[[int], Mapping[str, Any]]) -> None:
        for number in range(20):
            look(document(number))

    def quiet(number: int) -> dict[str, Any]:
        return now_document(BROKERS, time_ms=now_document()["time_ms"] + number * 1000)

    phases: dict[str, Callable[[], object]] = {
        "scrolling, cells of 1 px": lambda: scroll(page),
        "scrolling, cells of 4 px": lambda: scroll(page, zoom=3),
        "scrolling, cells of 16 px": lambda: scroll(page, zoom=4),
        "100 partitions change": lambda: [change(100) for _ in range(20)],
        f"{rows // BROKERS:,} partitions change at once": lambda: [change(rows // BROKERS) for _ in range(5)],
        "a new Now document, only time passes": lambda: looks(quiet),
        "a new Now document of a busy cluster": lambda: looks(busy_document),
        "... with 100 groups and reassignments": lambda: looks(lambda number: busy_document(number, items=100)),
        "moving the cursor": lambda: walk(page),
        "zooming out": lambda: zoom_out(page),
        "followers' lags fill the map": lambda: fill_lags(page, rows),
        "... scrolling meanwhile": lambda: scroll(page),
    }
    results: dict[str, Any] = {"first_paint_ms": first_paint, "frames": {}}
    for name, act in phases.items():
        results["frames"][name] = traced(browser, page, act)
    session = context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    results["document_parse_ms"] = parse_ms(page, busy_document(1, items=100))
    results["heap_bytes"] = session.send("Runtime.getHeapUsage")["usedSize"]
    results["renderer_bytes"] = renderer_bytes(browser)
    return results


def frames(page: Page, count: int) -> None:
    page.evaluate("async (count) => { while (count--) await new Promise(requestAnimationFrame); }", count)


def parse_ms(page: Page, document: Mapping[str, Any]) -> float:
    """How long the browser parses the JSON of a document: the mean of many times, as its clock is coarse."""
    return page.evaluate(
        """(text) => {
            const begin = performance.now();
            for (let time = 0; time < 200; time += 1) JSON.parse(text);
            return (performance.now() - begin) / 200;
        }""",
        json_bytes.encode(document).decode(),
    )


def scroll(page: Page, zoom: int = 0) -> None:
    """Scrolls a few lines a frame."""
    page.evaluate(
        """async ([steps, zoom]) => {
            for (; zoom > 0; zoom -= 1) cockpit.heat.zoomBy(1);
            const { scroller } = cockpit.heat;
            scroller.scrollTop = 0;
            for (let step = 0; step < steps; step += 1) {
                await new Promise(requestAnimationFrame);
                scroller.scrollTop += 37;
            }
        }""",
        [FRAMES, zoom],
    )


def zoom_out(page: Page) -> None:
    """To cells of a pixel, a step a frame."""
    page.evaluate(
        """async () => {
            while (cockpit.heat.zoom > 1) {
                cockpit.heat.zoomBy(-1);
                await new Promise(requestAnimationFrame);
            }
        }"""
    )


def fill_lags(page: Page, rows: int) -> None:
    """Colours by lag, and returns when the lags of all partitions that can be seen are there."""
    if not page.locator("#map-by-lag").count():
        return  # Another version of the page.

    def answer(route: Route) -> None:
        first = int(route.request.url.rpartition("=")[2]) * PIECE_ROWS
        lags = [
            (row * 7919 + broker * 104_729) % 20_000
            for row in range(first, min(first + PIECE_ROWS, rows))
            for broker in range(BROKERS)
        ]
        route.fulfill(
            body=json_bytes.encode({"version": 1, "first": first, "lags": lags}), content_type="application/json"
        )

    page.route("**/api/lags/map?*", answer)
    page.locator("#map-by-lag").click()
    page.wait_for_function("() => cockpit.heat.lagReader.due() === null || cockpit.heat.lagReader.readAt.size >= 100")


def walk(page: Page) -> None:
    page.locator(".map-scroller").focus()
    for _ in range(FRAMES):
        page.keyboard.press("ArrowDown")


def traced(browser: Browser, page: Page, act: Callable[[], object]) -> list[float]:
    """What the frames cost while `act` runs, those without script left out."""
    browser.start_tracing(page=page, categories=["devtools.timeline", "toplevel", "v8", "__metadata"])
    act()
    frames(page, 2)
    times = script_ms(json.loads(browser.stop_tracing())["traceEvents"])
    return [time for time in times if time > 0]


def script_ms(events: Sequence[Mapping[str, Any]]) -> list[float]:
    """The script time of each frame of the page's main thread."""
    begins = sorted(
        (each for each in events if (each["name"], each["ph"]) == (FRAME, "b")), key=lambda each: each["ts"]
    )
    threads = {(each["pid"], each["tid"]) for each in begins}
    begin_us = [each["ts"] for each in begins]
    spent = [0.0] * (len(begins) + 1)
    ends: dict[tuple[int, int], float] = {}
    scripts = [each for each in events if each.get("ph") == "X" and each["name"] in SCRIPT]
    for each in sorted(scripts, key=lambda each: (each["ts"], -each["dur"])):
        thread = (each["pid"], each["tid"])
        if thread not in threads or each["ts"] < ends.get(thread, 0):
            continue  # Another process, or inside the event before.
        ends[thread] = each["ts"] + each["dur"]
        spent[bisect_right(begin_us, each["ts"])] += each.get("tdur", each["dur"]) / 1000
    return spent


def renderer_bytes(browser: Browser) -> int:
    """The proportional set size of the largest renderer process, which is the page's."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    sizes = [0]
    for process in found:
        if process["type"] == "renderer":
            rollup = Path(f"/proc/{process['id']}/smaps_rollup").read_text()
            sizes += [int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")]
    return max(sizes)


def show(side: str, results: Mapping[str, Any], rows: int) -> None:
    table = Table(title=f"The cockpit's page at {rows:,} partitions on {BROKERS} brokers, {side}: script time a frame")
    table.add_column("while")
    for title in ("frames", "median, ms", "95 %, ms", "of rounds", "most, ms", "target, ms"):
        table.add_column(title, justify="right")
    for name, found in results["frames"].items():
        median, p95, most = (f"{found[key]:.1f}" for key in ("median_ms", "p95_ms", "most_ms"))
        of_rounds = f"{min(found['p95_of_rounds_ms']):.1f} to {max(found['p95_of_rounds_ms']):.1f}"
        table.add_row(name, str(found["frames"]), median, p95, of_rounds, most, str(TARGET_MS))
    console = Console(width=120)
    console.print(table)
    console.print(f"first paint {results['first_paint_ms']:.0f} ms (target {FIRST_PAINT_TARGET_MS} ms)")
    console.print(f"parsing a document with 100 groups and reassignments {results['document_parse_ms']:.2f} ms")
    console.print(f"JavaScript heap {results['heap_bytes'] / 1e6:.1f} MB")
    console.print(f"renderer {results['renderer_bytes'] / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
