"""Checks that each step on a loop does only a limited amount of work.

Virtual time does not show how long a step takes, and CPU time would differ from run to run. So the meter counts a
step's disk operations: reads that may wait for the disk (reads from memory are cheap), writes, syncs, and changes of
names. Work off the loop is not counted.

What must stay true: the counts depend on the seed only.
"""

from collections.abc import Iterator
from contextlib import contextmanager

# Reads: some headers of batches, a few small files. Walking through a log belongs off the loop.
MAX_READ_BYTES = 64 * 1024
# Syncs: one log with all its files, as flush.messages requires after an append; not several logs.
MAX_SYNCS = 24
# All operations: creating the logs of a few partitions.
MAX_OPERATIONS = 1_500

_SYNCS = ("sync", "sync_directory")


class StepMeter:
    """Counts the work of one step after another."""

    def __init__(self) -> None:
        self._is_off_the_loop = False
        # The counts of the current step. A step without an operation is not judged.
        self.operations = 0
        self._read_bytes = self._syncs = 0

    def operation(self, name: str) -> None:
        """A file or a name was touched."""
        if not self._is_off_the_loop:
            self.operations += 1
            self._syncs += name in _SYNCS

    def read(self, size_bytes: int) -> None:
        """Bytes were read that may not have been in memory."""
        if not self._is_off_the_loop:
            self._read_bytes += size_bytes

    @contextmanager
    def off_the_loop(self) -> Iterator[None]:
        """Work inside this context represents work of another thread, and is not counted."""
        self._is_off_the_loop = True
        try:
            yield
        finally:
            self._is_off_the_loop = False

    def step_ended(self) -> str | None:
        """Ends the step; returns a description of the limit that it exceeded, if any."""
        read_bytes, syncs, operations = self._read_bytes, self._syncs, self.operations
        self._read_bytes = self._syncs = self.operations = 0
        if read_bytes > MAX_READ_BYTES:
            return f"reads {read_bytes} bytes from the disk, allowed are {MAX_READ_BYTES}"
        if syncs > MAX_SYNCS:
            return f"syncs {syncs} files, allowed are {MAX_SYNCS}"
        if operations > MAX_OPERATIONS:
            return f"does {operations} operations on files, allowed are {MAX_OPERATIONS}"
        return None
