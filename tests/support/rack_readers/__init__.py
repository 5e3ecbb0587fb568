"""Consumers with a client.rack, in processes of their own, that say which replica they read from (KIP-392)."""

import sys
from pathlib import Path

from support.oracles import SMALL_HEAP
from support.processes import ManagedProcess

HERE = Path(__file__).parent
READERS = ("librdkafka", "java")


class RackReader:
    """Reads the partition 0 of a topic from its beginning, until it has `count` records."""

    def __init__(
        self, reader: str, jars: Path, directory: Path, bootstrap: str, topic: str, *, rack: str, count: int
    ) -> None:
        command: list[str | Path] = (
            [sys.executable, HERE / "rack_reader.py"]
            if reader == "librdkafka"
            else ["java", *SMALL_HEAP, "-cp", f"{jars}/*", HERE / "RackReader.java"]
        )
        self._process = ManagedProcess(
            reader, [*command, bootstrap, topic, rack, str(count)], directory / f"{reader}-{rack}.log"
        )

    def wait_until(self, follower: int, count: int) -> None:
        """Waits until it has so many records, and reads from this follower; -1 is the leader."""
        self._process.wait_for(rf"^@ {follower} {count}$")

    def finish(self) -> None:
        """Returns when it has read all; it must have found each offset once, in order."""
        assert self._process.wait() == 0, self._process.tail()

    def kill(self) -> None:
        self._process.kill()
