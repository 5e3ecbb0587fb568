"""The load as lines of text, and the times and widths of the options. Pure."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from klamm.base.words import size_text, table_lines
from klamm.cli.pipeline.load.figures import BrokerFigures, Figures, TopicFigures, key_text

TOP: Final = 10
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_window(text: str) -> int:
    """Milliseconds for "30s", "5m", "1h" or "1d". Raises typer.BadParameter."""
    match = re.fullmatch("([1-9][0-9]{0,5})([smhd])", text, re.ASCII)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a number with s, m, h or d, such as 5m", param_hint="--window")
    return int(match[1]) * _UNITS_MS[match[2]]


def parse_time(text: str, option: str) -> int:
    """Milliseconds since 1970 for "2021-02-03T04:05:06.789" or a shorter form, in UTC or with Z or +05:30 at its end.

    Raises typer.BadParameter.
    """
    try:
        moment = datetime.fromisoformat(text)
        found = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        found = -1
    if found < 0:
        form = "2021-02-03T04:05:06, which is UTC, or a part of it; Z, +hh or +hh:mm may follow"
        raise typer.BadParameter(f"{text!r} is not of the form {form}", param_hint=option)
    return found


def window_text(width_ms: int) -> str:
    """The largest unit that fits: 300000 is 5m."""
    unit = next(unit for unit in ("d", "h", "m", "s") if width_ms % _UNITS_MS[unit] == 0)
    return f"{width_ms // _UNITS_MS[unit]}{unit}"


def time_text(timestamp_ms: int) -> str:
    """A time in UTC: 2021-02-03 04:05:06. A time beyond the calendar stays a number."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=timestamp_ms):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return f"{timestamp_ms} ms"


def rate_text(bytes_per_s: float) -> str:
    return f"{size_text(round(bytes_per_s))}/s"


def report_lines(found: Figures) -> Iterator[str]:
    """The report for a person."""
    yield sum_line(found)
    yield ""
    yield from table(
        ["broker", "leads", "follows", "leader bytes", "follower bytes", "written", "of all"],
        [_broker_row(each, found) for each in found.brokers],
    )
    yield f"Brokers: {skew_text(found.broker_skew.max_to_mean, found.broker_skew.gini)}."
    yield ""
    yield from table(
        ["topic", "partitions", "records", "bytes", "max/mean", "gini", "hot partitions"],
        [_topic_row(each) for each in found.topics[:TOP]],
    )
    yield from _more(len(found.topics), "topics")
    yield ""
    largest = sorted(found.partitions, key=lambda each: (-each.bytes_in_per_s, each.partition))
    yield from table(
        ["partition", "replicas", "records", "bytes", "rate"],
        [
            [
                str(each.partition),
                ",".join(map(str, each.replicas)),
                str(each.records),
                size_text(each.size_bytes),
                rate_text(each.bytes_in_per_s),
            ]
            for each in largest[:TOP]
        ],
    )
    yield from _more(len(largest), "partitions")
    if found.hot_keys:
        yield ""
        yield from table(["partition", "key", "records", "at least", "at most"], key_rows(found))
        yield sample_line(found)
    yield from notes(found)


def sum_line(found: Figures) -> str:
    span = "no time" if found.start_ms is None else f"{time_text(found.start_ms)} to {time_text(found.end_ms)} UTC"
    return (
        f"{found.records} records in {found.batches} batches of {size_text(found.size_bytes)},"
        f" {len(found.partitions)} partitions, {span}, windows of {window_text(found.window_ms)}."
    )


def sample_line(found: Figures) -> str:
    if found.sampled_records == found.records:
        return "The keys of all records were counted."
    share = 100 * found.sampled_records / found.records
    return (
        f"The keys of {found.sampled_records} records were counted, {share:.1f} % of all; the bounds hold with 95 %"
        " confidence."
    )


def skew_text(max_to_mean: float, gini: float) -> str:
    return f"the largest has {max_to_mean:.2f} times the mean, Gini {gini:.2f}"


def key_rows(found: Figures) -> list[list[str]]:
    return [
        [
            str(each.partition),
            key_text(each.key),
            str(round(each.records.records)),
            str(round(each.records.low)),
            str(round(each.records.high)),
        ]
        for each in found.hot_keys
    ]


def hot_text(each: TopicFigures) -> str:
    return ", ".join(f"{partition} ({ratio:.1f}x)" for partition, ratio in each.hot) or "-"


def notes(found: Figures) -> Iterator[str]:
    """The facts that a reader must know to understand the numbers."""
    if not found.batches and not found.failures:
        yield "No batch has a time in this span; --start-time earliest counts all that logs have."
    cut = [each for each in found.partitions if each.is_cut]
    if cut:
        yield f"{len(cut)} partitions have lost records of this time to retention; their rates begin with what is left."
    corrupt = sum(each.corrupt_batches for each in found.partitions)
    if corrupt:
        yield f"{corrupt} corrupt batches are not counted; klamm verify replicas names them."
    untimed = sum(each.untimed_batches for each in found.partitions)
    if untimed:
        yield f"{untimed} batches have no timestamp; they count, and are in no window."
    for what, reason in found.failures:
        yield f"{what}: {reason}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table whose columns are as wide as their widest cell; names are left-aligned, numbers right-aligned."""
    numbers = [column for column, title in enumerate(header) if title not in _TEXT_COLUMNS]
    yield from table_lines([header, *rows], numbers)


_TEXT_COLUMNS: Final = {"topic", "partition", "replicas", "key", "hot partitions"}


def _broker_row(each: BrokerFigures, found: Figures) -> list[str]:
    total = sum(broker.size_bytes for broker in found.brokers)
    return [
        str(each.broker),
        str(each.leads),
        str(each.follows),
        size_text(each.leader_bytes),
        size_text(each.follower_bytes),
        rate_text(each.bytes_in_per_s),
        f"{100 * each.size_bytes / total if total else 0:.1f} %",
    ]


def _topic_row(each: TopicFigures) -> list[str]:
    return [
        each.topic,
        str(each.partitions),
        str(each.records),
        size_text(each.size_bytes),
        f"{each.skew.max_to_mean:.2f}",
        f"{each.skew.gini:.2f}",
        hot_text(each),
    ]


def _more(count: int, what: str) -> Iterator[str]:
    if count > TOP:
        yield f"... and {count - TOP} more {what}; --json has all of them."
