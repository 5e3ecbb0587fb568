"""The load as one page of HTML, with its plots as SVG. Pure.

What must stay true: the page needs no other file, no network and no script, and is readable on dark and light screens.
Every text that comes from a cluster is escaped.
"""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Final

from klamm.base.words import size_text
from klamm.cli.pipeline.load.figures import Figures, PartitionFigures
from klamm.cli.pipeline.load.text import (
    hot_text,
    key_rows,
    notes,
    rate_text,
    sample_line,
    skew_text,
    time_text,
    window_text,
)

if TYPE_CHECKING:
    from klamm.spark.pipelines.load_windows import Windows

WIDTH: Final = 960
BAR_HEIGHT, BAR_GAP, CELL_HEIGHT = 20, 8, 16
LABEL_WIDTH: Final = 230
VALUE_WIDTH: Final = 180
MAX_BROKERS, MAX_ROWS, MAX_COLUMNS, MAX_TOPICS = 100, 40, 96, 100
# At most this many empty windows in a row are drawn; more become one gap.
MAX_EMPTY_WINDOWS: Final = 12
SHADES: Final = 5

STYLE: Final = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1c2530; --quiet: #5b6673; --line: #d9dee4;
  --leader: #1f6fb2; --follower: #9cc3e4; --heat: #c2410c; --card: #f5f7f9; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --ink: #e6eaef; --quiet: #9aa5b1; --line: #343c46;
  --leader: #5aa9e6; --follower: #2f5878; --heat: #fb923c; --card: #1d232a; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 1000px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .5rem; }
p { margin: .4rem 0; } .quiet { color: var(--quiet); }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .5rem 1rem; }
.tile b { display: block; font-size: 1.3rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th { color: var(--quiet); font-weight: 500; } .name { text-align: left; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--ink); font-size: 12px; }
svg text.quiet { fill: var(--quiet); } .leader { fill: var(--leader); } .follower { fill: var(--follower); }
.heat { fill: var(--heat); } .empty { fill: var(--card); } .rule { stroke: var(--quiet); stroke-dasharray: 3 3; }
.scroll { overflow-x: auto; }
.note { border-left: 3px solid var(--heat); padding-left: .8rem; }
"""


def page(found: Figures, cluster: str) -> str:
    """The whole document; `cluster` is the address that was asked."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Load of {escape(cluster)}</title><style>{STYLE}</style></head><body>",
            *_head(found, cluster),
            *_brokers(found),
            *_heat_map(found),
            *_topics(found),
            *_hot_keys(found),
            "</body></html>",
            "",
        ]
    )


def _head(found: Figures, cluster: str) -> Iterator[str]:
    yield f"<h1>Load of {escape(cluster)}</h1>"
    if found.start_ms is not None:
        yield f'<p class="quiet">{time_text(found.start_ms)} to {time_text(found.end_ms)} UTC</p>'
    tiles = [
        ("records", f"{found.records:,}"),
        ("batches", f"{found.batches:,}"),
        ("written by producers", size_text(found.size_bytes)),
        ("rate", rate_text(sum(each.bytes_in_per_s for each in found.partitions))),
        ("partitions", f"{len(found.partitions):,}"),
        ("brokers", f"{len(found.brokers):,}"),
    ]
    yield '<div class="tiles">'
    for name, value in tiles:
        yield f'<div class="tile"><b>{value}</b><span class="quiet">{name}</span></div>'
    yield "</div>"
    for note in notes(found):
        yield f'<p class="note">{escape(note)}</p>'


# -- brokers ----------------------------------------------------------------------------------------------------------


def _brokers(found: Figures) -> Iterator[str]:
    yield "<h2>Brokers: bytes written to their replicas</h2>"
    skew = found.broker_skew
    yield f'<p class="quiet">As replicas are placed now; {skew_text(skew.max_to_mean, skew.gini)}.</p>'
    rows = found.brokers[:MAX_BROKERS]
    most = max([1, *(each.size_bytes for each in found.brokers)])
    mean = sum(each.size_bytes for each in found.brokers) / max(1, len(found.brokers))
    left, room = 80, WIDTH - 80 - VALUE_WIDTH
    height = len(rows) * (BAR_HEIGHT + BAR_GAP) + 26
    yield f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Bytes of each broker">'
    yield f'<rect class="leader" x="{left}" y="4" width="12" height="12"/>'
    yield f'<text x="{left + 17}" y="14">as leader</text>'
    yield f'<rect class="follower" x="{left + 90}" y="4" width="12" height="12"/>'
    yield f'<text x="{left + 107}" y="14">as follower</text>'
    yield f'<text class="quiet" x="{left + 190}" y="14">dashed: the mean</text>'
    for place, each in enumerate(rows):
        top = 26 + place * (BAR_HEIGHT + BAR_GAP)
        middle = top + BAR_HEIGHT / 2 + 4
        led, followed = (room * size / most for size in (each.leader_bytes, each.follower_bytes))
        tip = (
            f"broker {each.broker}: leads {each.leads} partitions with {size_text(each.leader_bytes)},"
            f" follows {each.follows} with {size_text(each.follower_bytes)}"
        )
        yield f'<g><title>{tip}</title><text x="{left - 8}" y="{middle}" text-anchor="end">broker {each.broker}</text>'
        yield f'<rect class="leader" x="{left}" y="{top}" width="{led:.1f}" height="{BAR_HEIGHT}"/>'
        yield f'<rect class="follower" x="{left + led:.1f}" y="{top}" width="{followed:.1f}" height="{BAR_HEIGHT}"/>'
        text = f"{size_text(each.size_bytes)}, {rate_text(each.bytes_in_per_s)}"
        yield f'<text x="{left + led + followed + 8:.1f}" y="{middle}">{text}</text></g>'
    x = left + room * mean / most
    yield f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="22" y2="{height}"/></svg>'
    yield from _rest(len(found.brokers), MAX_BROKERS, "brokers")


# -- partitions and time ----------------------------------------------------------------------------------------------


def columns(windows: Sequence[int]) -> list[int | None]:
    """The windows of a plot's columns, ascending; None stands for a gap that is too wide to be drawn."""
    numbers = sorted(windows)
    found: list[int | None] = list(numbers[:1])
    for before, after in pairwise(numbers):
        if after - before - 1 > MAX_EMPTY_WINDOWS:
            found.append(None)
            found.append(after)
        else:
            found += range(before + 1, after + 1)
    return found


def _heat_map(found: Figures) -> Iterator[str]:
    yield "<h2>Partitions over time: bytes</h2>"
    largest = sorted(found.partitions, key=lambda each: (-each.size_bytes, each.partition))[:MAX_ROWS]
    rows = [(each, _plotted(each.windows)) for each in largest]
    width_ms = _common_width(found, [windows for _, windows in rows])
    for _, windows in rows:
        windows.widen(width_ms)
    shown = columns(list({number for _, windows in rows for number in windows.cells}))
    if not shown:
        yield '<p class="quiet">No batch has a time.</p>'
        return
    most = max(traffic.size_bytes for _, windows in rows for traffic in windows.cells.values())
    cell_width = (WIDTH - LABEL_WIDTH) / len(shown)
    top, height = 24, 24 + len(rows) * CELL_HEIGHT + 34
    yield f'<p class="quiet">A column is {window_text(width_ms)}; a blank column is a longer time without batches.</p>'
    yield f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Bytes of each partition in each window of time">'
    yield from _legend(most)
    for place, (each, windows) in enumerate(rows):
        y = top + place * CELL_HEIGHT
        name = _shortened(str(each.partition))
        yield f'<text x="{LABEL_WIDTH - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>'
        for column, number in enumerate(shown):
            if number is not None:
                yield _cell(each, windows, number, most, LABEL_WIDTH + column * cell_width, y, cell_width)
    yield from _times(shown, width_ms, cell_width, top + len(rows) * CELL_HEIGHT + 16)
    yield "</svg>"
    yield from _rest(len(found.partitions), MAX_ROWS, "partitions")


def _plotted(windows: "Windows") -> "Windows":
    """A copy whose windows the plot may widen."""
    return type(windows)(windows.width_ms, dict(windows.cells))


def _common_width(found: Figures, rows: "Sequence[Windows]") -> int:
    """The width of windows at which a plot has room for all of them."""
    if not rows:
        return found.window_ms
    every = type(rows[0])(found.window_ms, {})
    for each in rows:
        every.merge(each)
    while len(columns(list(every.cells))) > MAX_COLUMNS and len(every.cells) > 1:
        every.limit(len(every.cells) - 1)
    return every.width_ms


def _cell(each: PartitionFigures, windows: "Windows", number: int, most: int, x: float, y: float, width: float) -> str:
    traffic = windows.cells.get(number)
    where = f'x="{x:.2f}" y="{y}" width="{max(width - 1, width * 0.8):.2f}" height="{CELL_HEIGHT - 1}"'
    if traffic is None:
        return f'<rect class="empty" {where}/>'
    begin = time_text(number * windows.width_ms)
    tip = f"{each.partition}, {begin}: {size_text(traffic.size_bytes)}, {traffic.records} records"
    opacity = _opacity(traffic.size_bytes / most)
    return f'<rect class="heat" fill-opacity="{opacity:.2f}" {where}><title>{escape(tip)}</title></rect>'


def _opacity(share: float) -> float:
    """Grows with the square root, so that small partitions can be told apart beside a large one."""
    return 0.1 + 0.9 * sqrt(share)


def _legend(most: int) -> Iterator[str]:
    yield f'<text class="quiet" x="{LABEL_WIDTH}" y="13">a little</text>'
    for shade in range(SHADES):
        opacity = _opacity((shade / (SHADES - 1)) ** 2)
        x = LABEL_WIDTH + 48 + 18 * shade
        yield f'<rect class="heat" fill-opacity="{opacity:.2f}" x="{x}" y="3" width="17" height="12"/>'
    yield f'<text class="quiet" x="{LABEL_WIDTH + 54 + 18 * SHADES}" y="13">{size_text(most)};'
    yield " the middle shade is a quarter of that</text>"


def _times(shown: Sequence[int | None], width_ms: int, cell_width: float, y: float) -> Iterator[str]:
    """The times below the first column, below the first column after each gap, and below others that have room."""
    free_from = 0.0
    for column, number in enumerate(shown):
        x = LABEL_WIDTH + column * cell_width
        if number is None or x < free_from or x > WIDTH - 60:
            continue
        date, _, time = time_text(number * width_ms).partition(" ")
        yield f'<text class="quiet" x="{x:.1f}" y="{y}">{time}</text>'
        yield f'<text class="quiet" x="{x:.1f}" y="{y + 14}">{date}</text>'
        free_from = x + 90


def _shortened(name: str) -> str:
    return name if len(name) <= 34 else f"{name[:15]}...{name[-16:]}"


# -- tables -----------------------------------------------------------------------------------------------------------


def _topics(found: Figures) -> Iterator[str]:
    yield "<h2>Topics: skew of their partitions</h2>"
    yield '<p class="quiet">Hot partitions have at least 1.5 times the mean of their topic.</p>'
    rows = [
        [
            each.topic,
            f"{each.partitions}",
            f"{each.records:,}",
            size_text(each.size_bytes),
            f"{each.skew.max_to_mean:.2f}",
            f"{each.skew.gini:.2f}",
            hot_text(each),
        ]
        for each in found.topics[:MAX_TOPICS]
    ]
    yield from _table(["topic", "partitions", "records", "bytes", "max/mean", "Gini", "hot partitions"], rows, {0, 6})
    yield from _rest(len(found.topics), MAX_TOPICS, "topics")


def _hot_keys(found: Figures) -> Iterator[str]:
    if not found.hot_keys:
        return
    yield "<h2>Keys with the most records</h2>"
    yield f'<p class="quiet">{escape(sample_line(found))}</p>'
    yield from _table(["partition", "key", "records", "at least", "at most"], key_rows(found), {0, 1})


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], names: set[int]) -> Iterator[str]:
    def line(tag: str, cells: Sequence[str]) -> str:
        kinds = (' class="name"' if place in names else "" for place in range(len(cells)))
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))

    yield f'<div class="scroll"><table><thead><tr>{line("th", header)}</tr></thead><tbody>'
    for row in rows:
        yield f"<tr>{line('td', row)}</tr>"
    yield "</tbody></table></div>"


def _rest(count: int, shown: int, what: str) -> Iterator[str]:
    if count > shown:
        yield f'<p class="quiet">{shown} of {count} {what}; --json has all of them.</p>'
