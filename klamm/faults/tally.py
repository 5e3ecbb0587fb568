"""How often a fault was asked whether it strikes, and how often it struck.

A tally counts for its own server. Where the number of a request decides (`once`, `on_call`, `times`), the servers of
the cluster count together: `Turns` gives each request a number that no other server gives again.

What must stay true: no server waits for another one to get a number. A server that is paused or killed holds nothing.
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
        """The fault was asked whether it strikes."""
        self.calls += 1

    def struck(self, **details: Json) -> None:
        """The fault has struck. The details (topic, partition, offset, client_id, ...) stand in the history."""
        self.hits += 1
        self._on_strike(self, details)

    def turns(self, name: str) -> "Turns":
        """A count of this fault, by name, that all servers share."""
        if name not in self._turns:
            os.makedirs(self._own_directory, exist_ok=True)
            self._turns[name] = Turns(os.path.join(self._own_directory, name))
        return self._turns[name]

    def first(self, name: str, value: int) -> int:
        """The value that any server gave first under this name: one that starts again has the fault as it began."""
        os.makedirs(self._own_directory, exist_ok=True)
        path = os.path.join(self._own_directory, name)
        with suppress(FileExistsError):
            os.symlink(str(value), path)  # A link has its target from the moment at which it exists.
        return int(os.readlink(path))

    @property
    def _own_directory(self) -> str:
        return os.path.join(self._directory, str(self.number))

    @property
    def is_wanted(self) -> bool:
        """Whether the owner still wants the fault. A server sees that even while no command can reach its loop."""
        return wish_path(self._own_directory).exists()

    def close(self) -> None:
        """The fault has ended."""
        for turns in self._turns.values():
            turns.close()


def wish_path(directory: str | Path) -> Path:
    """A file that exists as long as the owner wants a fault; `directory` is the fault's own."""
    return Path(directory) / "wanted"


class Turns:
    """Numbers from 1 on; each is given once among all processes that share the file.

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
