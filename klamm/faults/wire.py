"""The lines between an agent (in a server) and its control (in the process that owns the cluster): JSON, one a line.

An agent connects to its control, sends `{"event": "hello", "server": 0}` and obeys the commands that it gets:

| command     | with                                         | answer                                              |
|-------------|----------------------------------------------|-----------------------------------------------------|
| `addresses` | `of`: `[[server, host, port], ...]`          | null                                                |
| `install`   | `fault`: 7, `of`: a Fault, `instead_of`: 6   | the counts of fault 6, which has ended, or null     |
| `remove`    | `fault`: 7                                   | its last counts, `[calls, hits]`, or null           |
| `perform`   | `of`: an Action                              | the result                                          |
| `count`     |                                              | `[[fault, calls, hits], ...]`                       |
| `begin`     |                                              | null; the active faults hold, the server may start  |

A command is `{"id": 1, "command": "count", ...}`. Its answer is `{"id": 1, "result": ...}` or `{"id": 1, "error":
"sentence"}`, with `"elsewhere": true` if another server, or this one later, can perform the action. Answers and events
are in the order in which they happen. Events are `{"event": "struck", "fault": 7, "calls": 3, "hits": 1, "details":
{...}}`, `counted` with the last counts of a fault in a server that stops, and those of `entries.REPORTED`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The longest line. A fault is far shorter.
MAX_LINE_BYTES = 1024 * 1024
SOCKET = "control"
# The path in an address has 108 bytes on Linux and 104 elsewhere, including the terminating zero.
_MAX_PATH_BYTES = 103


class FaultError(Exception):
    """A command could not be carried out; the message is one sentence with the reason."""


class Elsewhere(FaultError):
    """This server cannot perform the action now, and has done nothing. Another server can, or this one later."""


@contextmanager
def socket_path(directory: str | Path) -> Iterator[str]:
    """The path of the control's socket in this directory, shortened to fit into an address. Raises FaultError."""
    path = os.path.join(directory, SOCKET)
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield path
        return
    if sys.platform != "linux":
        raise FaultError(f"the path of a socket may have {_MAX_PATH_BYTES} bytes here, too few for {path}")
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
