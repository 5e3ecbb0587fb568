"""The log files that a broker keeps open.

A log file is opened at its first use and stays open, so that an append or a read need not open it. When the process is
short of descriptors, a file that was not used lately is closed until its next use.

What must stay true:
- A file that a read off the loop is using is not closed.
- Closing a file loses nothing: no writes wait in it, and a sync opens the files itself.
- Connections come first: for a new connection, log files are closed down to the last `MIN_OPEN_FILES`.
- A use costs nothing here: the holder notes it in `was_used`. Opening a file checks a few other files at most.

All methods run on the loop's thread.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

# At least this many log files may stay open, whatever the number of connections.
MIN_OPEN_FILES = 64
# After this many openings, one more file may be open: connections may have ended since.
_OPENINGS_PER_GROWTH = 64
# At most this many files are checked. The last of them is closed even if it was used.
_LOOKS = 16


class OpenFile(Protocol):
    """The holder of an open file."""

    was_used: bool

    def close_if_idle(self) -> bool:
        """Closes the file and calls `OpenFiles.closed`. Returns False, and leaves it open, while it is in use."""


class OpenFiles:
    """The holders of open files; the first is checked next. `is_short` says whether the last opened file has one of the
    descriptors that should stay free."""

    def __init__(self, is_short: Callable[[], bool]) -> None:
        self._is_short = is_short
        self._open: OrderedDict[OpenFile, None] = OrderedDict()
        # The most open files; None until descriptors are short for the first time. The next file gets the descriptor of
        # a closed file, so `is_short` alone would not show that there are still too many.
        self._most: int | None = None
        self._openings = 0

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, holder: OpenFile) -> None:
        """`holder` has just opened its file."""
        if self._is_short():
            self._most = len(self._open)
            self._openings = 0
        if self._most is not None:
            self._openings += 1
            if self._openings % _OPENINGS_PER_GROWTH == 0:
                self._most += 1
            if len(self._open) >= self._most:
                self._close_one()
        self._open[holder] = None

    def closed(self, holder: OpenFile) -> None:
        """`holder` has closed its file."""
        self._open.pop(holder, None)

    def make_room(self) -> bool:
        """Closes a file for a connection. Returns whether a file was closed."""
        if len(self._open) <= MIN_OPEN_FILES or not self._close_one():
            return False
        self._most = len(self._open)
        return True

    def _close_one(self) -> bool:
        """Closes the first file that was not used since its last check."""
        for looks_left in range(min(_LOOKS, len(self._open)), 0, -1):
            holder = next(iter(self._open))
            if (not holder.was_used or looks_left == 1) and holder.close_if_idle():
                return True
            holder.was_used = False
            self._open.move_to_end(holder)
        return False
