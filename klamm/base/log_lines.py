"""Writes lines of Kafka's log files in batches.

A controller that is elected in a large cluster, and the brokers that it informs, write a line for every partition. One
call of `logging` for each line would take longer than the work itself.

What must stay true: a batch is one log record, and each line has the time at which it was made.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

# Log4j's level below DEBUG.
TRACE = 5
# How many lines are written at once, in about a millisecond.
BATCH = 500

# Both the controller and the brokers write state-change.log.
STATE_CHANGE_LOGGER = logging.getLogger("state.change.logger")


class Line(NamedTuple):
    """One line of a log file, without its layout."""

    logger: logging.Logger
    level: int
    time_ms: int
    text: str


class LogLines:
    """Lines of one logger and level. It is the message of one log record."""

    __slots__ = ("lines",)

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines

    def __str__(self) -> str:
        return "\n".join(line.text for line in self.lines)


def write_lines(lines: Iterable[Line]) -> None:
    """Writes all lines without filtering: filtered lines would split a batch. Callers check `LineBatch.wants` first."""
    for (logger, level), group in groupby(lines, key=itemgetter(0, 1)):
        logger.log(level, LogLines(list(group)))


class LineBatch:
    """Lines of one logger, each beginning with `prefix`. Every `BATCH` lines are written, and the rest by `flush`.

    `now_ms` is the wall clock.
    """

    def __init__(self, logger: logging.Logger, now_ms: Callable[[], int], prefix: str) -> None:
        self._logger = logger
        self._now_ms = now_ms
        self._prefix = prefix
        self._lines: list[Line] = []

    def wants(self, level: int) -> bool:
        """Whether lines of this level are written. Call it before formatting a line."""
        return self._logger.isEnabledFor(level)

    def add(self, level: int, text: str) -> None:
        self._lines.append(Line(self._logger, level, self._now_ms(), self._prefix + text))
        if len(self._lines) >= BATCH:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        write_lines(lines)
