"""Writes recordings of failed tests: for the pytest plugin, for test cases of unittest, and for every other `with`
block of a cluster that ends with an error.

What must stay true: a recording that cannot be written does not hide the failure of the test.
"""

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from klamm.testing.cluster_errors import ClusterError

Write: TypeAlias = Callable[[Path], Path]
"""`Cluster.record`. Raises ClusterError."""

# The maximum length of a recording's file name, without number and suffix.
MAX_NAME: Final = 100
# Without pytest, a process writes at most this many: hypothesis repeats a failing block many times.
MOST_NOTED: Final = 20
_PYTEST_PLUGIN: Final = "klamm.testing.pytest_plugin"


class Recordings:
    """The recordings of a process, in `directory` or in a new temporary directory."""

    def __init__(self, directory: str | None = None) -> None:
        self._directory = None if directory is None else Path(directory)
        self._names: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return self._names.total()

    def lines(self, name: str, writers: Iterable[Write]) -> Iterator[str]:
        """Writes recordings into files named after the test; yields for each the command that opens it, or why it could
        not be written."""
        try:
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="klamm-recordings-"))
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            yield f"no directory for recordings: {error}"
            return
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[-MAX_NAME:].strip("-")
        for write in writers:
            self._names[name] += 1
            suffix = f"-{self._names[name]}" if self._names[name] > 1 else ""
            try:
                yield f"klamm cockpit {write(self._directory / f'{name}{suffix}.klamm')}"
            except ClusterError as error:
                yield str(error)


_recordings = Recordings()


def note_recording(error: BaseException, write: Write, name: str = "cluster") -> None:
    """Records the cluster whose test has failed with this error, and adds a note to the error on how to open the file.

    Under pytest, the test's report says that instead. An exception that ends the program or skips a test is no failure.
    """
    from unittest import SkipTest

    is_failure = isinstance(error, Exception) and not isinstance(error, SkipTest)
    if is_failure and _PYTEST_PLUGIN not in sys.modules and _recordings.count < MOST_NOTED:
        for line in _recordings.lines(name, [write]):
            error.add_note(line)
