"""Log lines about events that clients and other programs cause at any rate. Each line is written once, and repetitions
are counted.

What must stay true:
- The first event of a kind is logged at once. Its repetitions are counted, and the count is logged within `WINDOW_S`.
- Other programs cannot fill the log or the memory: at most `MAX_NEW_LINES` lines of a window are new, and at most
  `MAX_REMEMBERED` lines of at most `MAX_CHARACTERS` are remembered. One line counts the excess.
"""

import asyncio
import logging
import re

WINDOW_S = 60
MAX_NEW_LINES = 50
MAX_REMEMBERED = 500
MAX_CHARACTERS = 1_000

_NUMBER = re.compile(r"\d+")


class RepeatedLines:
    """The repeated lines of one logger, at level WARNING. `close` writes the pending counts."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        # By subject and line without numbers: the line, and its repetitions since it was last written. The least
        # recently used lines come first.
        self._lines: dict[tuple[str, str], tuple[str, int]] = {}
        self._new_lines = self._others = 0
        self._timer: asyncio.TimerHandle | None = None

    def warn(self, subject: str, what: str) -> None:
        """Logs that `what` happened because of `subject`. Lines that differ only in numbers in `what`, such as
        positions or durations, are repetitions."""
        subject, what = subject[:MAX_CHARACTERS], what[:MAX_CHARACTERS]
        key = subject, _NUMBER.sub("0", what)
        known = self._lines.pop(key, None)
        if known is not None:
            self._lines[key] = known[0], known[1] + 1
        elif self._new_lines < MAX_NEW_LINES:
            self._new_lines += 1
            line = f"{subject}: {what}"
            self._lines[key] = line, 0
            self._logger.warning("%s", line)
            if len(self._lines) > MAX_REMEMBERED:
                oldest = next(iter(self._lines))
                self._others += self._lines.pop(oldest)[1]
        else:
            self._others += 1
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._end_window)

    def close(self) -> None:
        """Ends the window."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_window()

    def _end_window(self) -> None:
        self._timer, self._new_lines = None, 0
        for key, (line, count) in self._lines.items():
            if count:
                self._logger.warning("%s (%d more)", line, count)
                self._lines[key] = line, 0
        if self._others:
            self._logger.warning("%d more lines of this kind are left out", self._others)
            self._others = 0
