"""The trace of a run: one line per event. Two runs are the same when their traces are equal.

A line is `<virtual time in microseconds> <where> <what> <details>`. It must not contain values that differ between two
Python processes (addresses, hashes, real time).
"""

import hashlib
from collections.abc import Callable

from klamm.base.checksum import crc32c
from klamm.base.environment import Buffer

CONTEXT_LINES = 3


def checksum(data: Buffer) -> str:
    """The CRC32C of some bytes, as text for a trace."""
    return f"{crc32c(data):08x}"


class FrameTracer:
    """Finds the frames in one direction of a connection: a 4-byte size and that many bytes, as Kafka and ZooKeeper do.

    `found(size_bytes, checksum)` is called for each frame when its last byte arrives. Other streams have no frames.
    """

    def __init__(self, found: Callable[[int, str], None]) -> None:
        self._found = found
        self._head = b""
        self._missing = 0
        self._size = 0
        self._crc = 0
        self._framed = True

    def feed(self, data: bytearray) -> None:
        """The next bytes of the stream."""
        position, end = 0, len(data)
        while position < end and self._framed:
            if not self._missing:
                head = self._head + data[position : position + 4 - len(self._head)]
                position += len(head) - len(self._head)
                if len(head) < 4:
                    self._head = head
                    break
                self._head = b""
                self._size = self._missing = int.from_bytes(head, signed=True)
                self._crc = 0
                self._framed = self._size > 0
            else:
                taken = data[position : position + self._missing]
                position += len(taken)
                self._crc = crc32c(taken, self._crc)
                self._missing -= len(taken)
                if not self._missing:
                    self._found(self._size, f"{self._crc:08x}")


class Trace:
    """The lines of a run, in order."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self._clock_us = clock_us
        self.lines: list[str] = []
        self.on_event: Callable[[str, str, tuple[object, ...]], None] | None = None
        """Called with the arguments of each `add`. It may not change the run."""

    def add(self, where: str, what: str, *details: object) -> None:
        """Adds a line. `where` is a node or a connection."""
        if self.on_event is not None:
            self.on_event(where, what, details)
        line = f"{self._clock_us():>12} {where} {what}"
        for detail in details:
            line += f" {detail!s}"
        self.lines.append(line)

    def hash(self) -> str:
        """SHA-256 over all lines, in hexadecimal."""
        return trace_hash(self.lines)


def trace_hash(lines: list[str]) -> str:
    """SHA-256 over the lines of a trace, in hexadecimal."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def first_difference(one: list[str], other: list[str]) -> str | None:
    """The first difference of two traces, with the lines before; None when they are equal."""
    if one == other:
        return None
    shorter = min(len(one), len(other))
    number = next((number for number in range(shorter) if one[number] != other[number]), shorter)
    before = [f"  {line}" for line in one[max(0, number - CONTEXT_LINES) : number]]
    parted = [f"{sign} {lines[number]}" for sign, lines in (("-", one), ("+", other)) if number < len(lines)]
    return "\n".join([f"the traces part at line {number + 1} of {len(one)} and {len(other)}:", *before, *parted])
