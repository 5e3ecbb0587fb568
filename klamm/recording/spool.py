"""Keeps the versions of a cluster's znodes in memory until a recording is written.

What must stay true: adding a version is an append; versions are compressed in chunks. Memory is bounded by about
MAX_BYTES; later versions are dropped, and `dropped` counts them.
"""

from collections.abc import Iterator
from typing import Final

import zstandard

from klamm.base import json_bytes
from klamm.recording.entries import Json, znode_entry
from klamm.znodes.watch import Znode

CHUNK_ZNODES: Final = 1_000
CHUNK_BYTES: Final = 4 * 1024 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024


class Spool:
    """Versions of znodes with their times, ascending. One thread adds; any thread reads."""

    def __init__(self) -> None:
        self.dropped = 0
        # The chunks, and the newer versions. Both are replaced together, so a reader sees each version once.
        self._kept: tuple[list[bytes], list[tuple[int, Znode]]] = ([], [])
        self._chunks_bytes = self._newest_bytes = 0

    def add(self, at_ms: int, znode: Znode) -> None:
        """Keeps a version, or counts it as dropped."""
        if self._chunks_bytes > MAX_BYTES:
            self.dropped += 1
            return
        chunks, newest = self._kept
        newest.append((at_ms, znode))
        self._newest_bytes += len(znode.data or b"")
        if len(newest) >= CHUNK_ZNODES or self._newest_bytes >= CHUNK_BYTES:
            lines = json_bytes.encode([(at_ms, znode_entry(each)) for at_ms, each in newest])
            chunk = zstandard.ZstdCompressor(level=1).compress(lines)
            self._kept = ([*chunks, chunk], [])
            self._chunks_bytes += len(chunk)
            self._newest_bytes = 0

    def entries(self) -> Iterator[tuple[int, Json]]:
        """(time in milliseconds, entry) of all versions so far."""
        chunks, newest = self._kept
        for chunk in chunks:
            for at_ms, entry in json_bytes.decode(zstandard.ZstdDecompressor().decompress(chunk)):
                yield at_ms, entry
        for at_ms, znode in list(newest):
            yield at_ms, znode_entry(znode)
