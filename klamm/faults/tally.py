"""Counts the calls of a fault, which ask whether it strikes, and its strikes.

A tally counts for its own server. If the number of a request decides (`once`, `on_call`, `times`), the servers of the
cluster count together: `Turns` gives each request a number that is unique among all servers.

What must stay true: no server waits for another server to get a number, not even for a paused or killed one.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from klamm.faults.commands import Json, Server

OnStrike = Callable[["Tally", Mapping[str, Json]], None]


class Tally:
    """Counts for one installed fault in one `server`. `number` is the fault's; `directory` is that of the Control."""

    def __init__(self, number: int, directory: str, on_strike: OnStrike, server: Server = 0) -> None:
        self.number = number
        self.server = server
        self.calls = 0
        self.hits = 0
        self._on_strike = on_strike
        self._directory = directory
        self._turns: dict[str, Turns] = {}

    def asked(self) -> None:
        """Counts a call."""
        self.calls += 1

    def struck(self, **details: Json) -> None:
        """Counts a strike. Its details (topic, partition, offset, client_id, ...) appear in the history."""
        self.hits += 1
        self._on_strike(self, details)

    def turns(self, name: str) -> "Turns":
        """A count of this fault, by name, that all servers share."""
        if name not in self._turns:
            os.makedirs(self._own_directory, exist_ok=True)
            self._turns[name] = Turns(os.path.join(self._own_directory, name))
        return self._turns[name]

    def first(self, name: str, value: int) -> int:
        """The first value that any server stored under this name, so that a fault survives a restart of the server."""
        os.makedirs(self._own_directory, exist_ok=True)
        path = os.path.join(self._own_directory, name)
        with suppress(FileExistsError):
            os.symlink(str(value), path)  # A link is created together with its target, so no reader sees a part.
        return int(os.readlink(path))

    @property
    def _own_directory(self) -> str:
        return os.path.join(self._directory, str(self.number))

    @property
    def is_wanted(self) -> bool:
        """Whether the owner still wants the fault. Works even while no command can reach the server's loop."""
        return wish_path(self._own_directory).exists()

    def close(self) -> None:
        """Closes the tally when the fault has ended."""
        for turns in self._turns.values():
            turns.close()


def wish_path(directory: str | Path) -> Path:
    """The file that exists as long as the owner wants a fault; `directory` is the fault's own."""
    return Path(directory) / "wanted"


class Turns:
    """Numbers from 1 on. Each number is given to only one of the processes that share the file.

    The file grows by one byte for each number: appending is atomic, and the position after it is the number.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def take(self) -> int:
        """The next number."""
        os.write(self._descriptor, b".")
        return os.lseek(self._descriptor, 0, os.SEEK_CUR)

    def close(self) -> None:
        os.close(self._descriptor)
