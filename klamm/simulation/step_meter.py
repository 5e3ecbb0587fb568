"""Whether each step on a loop does no more than its share.

Virtual time does not see how long a step takes, and a processor's time would differ from run to run. So work is counted
where it leaves the program: what a step reads from the disk (what waits for the disk; looking for what is in memory is
cheap), writes to it, syncs, and does to names. Work off the loop counts for nobody.

What must stay true: the counts depend on the seed only.
"""

from collections.abc import Iterator
from contextlib import contextmanager

# Reading: some headers of batches, a few small files. Whoever walks through a log does it off the loop.
MAX_READ_BYTES = 64 * 1024
# Syncing: one log with all its files, as flush.messages asks for after an append; not one after another.
MAX_SYNCS = 24
# All operations: making the logs of a few partitions.
MAX_OPERATIONS = 1_500

_SYNCS = ("sync", "sync_directory")


class StepMeter:
    """Counts one step after another."""

    def __init__(self) -> None:
        self._is_off_the_loop = False
        self._read_bytes = self._syncs = self._operations = 0

    def operation(self, name: str) -> None:
        """A file or a name was touched."""
        if not self._is_off_the_loop:
            self._operations += 1
            self._syncs += name in _SYNCS

    def read(self, size_bytes: int) -> None:
        """So many bytes were read that may not have been in memory."""
        if not self._is_off_the_loop:
            self._read_bytes += size_bytes

    @contextmanager
    def off_the_loop(self) -> Iterator[None]:
        """What happens inside would be done by another thread."""
        self._is_off_the_loop = True
        try:
            yield
        finally:
            self._is_off_the_loop = False

    def step_ended(self) -> str | None:
        """What the step has done too much of, if anything; the next one begins."""
        if not self._operations:
            return None
        read_bytes, syncs, operations = self._read_bytes, self._syncs, self._operations
        self._read_bytes = self._syncs = self._operations = 0
        if read_bytes > MAX_READ_BYTES:
            return f"reads {read_bytes} bytes from the disk, allowed are {MAX_READ_BYTES}"
        if syncs > MAX_SYNCS:
            return f"syncs {syncs} files, allowed are {MAX_SYNCS}"
        if operations > MAX_OPERATIONS:
            return f"does {operations} operations on files, allowed are {MAX_OPERATIONS}"
        return None
