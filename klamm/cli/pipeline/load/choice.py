"""The choice of what `klamm pipeline load` counts, from its options."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import typer

from klamm.cli.pipeline.load.text import parse_time, parse_window
from klamm.cli.shared.patterns import expression
from klamm.spark.pipelines.load_options import MAX_CHOSEN_WINDOWS, MAX_GIVEN_WINDOWS, LoadOptions
from klamm.spark.pipelines.load_windows import fitting

EARLIEST: Final = "earliest"
DEFAULT_SPAN_MS: Final = 3_600_000


@dataclass(frozen=True)
class Choice:
    """`options` are for the count; `now_ms` is the time of the call, in milliseconds since 1970."""

    matches: Callable[[str], bool]
    options: LoadOptions
    now_ms: int


def choose(
    topic: str, start_time: str | None, end_time: str | None, window: str | None, hot_keys: int = 0, *, now_ms: int
) -> Choice:
    """Raises typer.BadParameter."""
    names = expression(topic, "--topic")
    end_ms = None if end_time is None else parse_time(end_time, "--end-time")
    start_ms = _start(start_time, now_ms if end_ms is None else end_ms, now_ms)
    window_ms = None if window is None else parse_window(window)
    options = _options(start_ms, end_ms, window_ms, hot_keys, now_ms)
    return Choice(names.fullmatch, options, now_ms)


def _start(start_time: str | None, end_ms: int, now_ms: int) -> int | None:
    if start_time == EARLIEST:
        return None
    if start_time is None:
        return max(0, min(end_ms, now_ms) - DEFAULT_SPAN_MS)
    start_ms = parse_time(start_time, "--start-time")
    if start_ms >= end_ms:
        raise typer.BadParameter(f"{start_time} is not before the end", param_hint="--start-time")
    return start_ms


def _options(
    start_ms: int | None, end_ms: int | None, window_ms: int | None, hot_keys: int, now_ms: int
) -> LoadOptions:
    """If no width is given, the windows fit the time span, or without a given start the batches that are found."""
    if window_ms is not None:
        return LoadOptions(start_ms, end_ms, window_ms, MAX_GIVEN_WINDOWS, hot_keys)
    span_ms = 0 if start_ms is None else (now_ms if end_ms is None else end_ms) - start_ms
    width_ms = fitting(span_ms, MAX_CHOSEN_WINDOWS - 1)
    return LoadOptions(start_ms, end_ms, width_ms, MAX_CHOSEN_WINDOWS, hot_keys)
