"""`zookeeper-session`: a file in a log directory with the ids of its broker's last ZooKeeper sessions.

    version: 1
    boot_id: 6e5f1c1e-50a3-4fb4-a9a5-6b2ae2d6a2b5
    session_ids: 0x100004f3c2a0001 0x100004f3c2a0000

A broker that was killed leaves its registration behind until its session expires, and Kafka's broker cannot start again
until then. A new klamm process holds the lock of the same log directory, so the old process is surely dead, and a
registration owned by the sessions in this file can be replaced.

What must stay true:
- Only the registration of a session since the machine's last start (`Environment.boot_id`) is replaced at once. A
  machine that lost power has lost its unsynced writes. If the broker replaced its registration before the old session
  expires, a controller elected in that moment would find the broker alive as the former leader, and let it continue to
  lead with a shorter log. So the broker waits for the expiry of older sessions.
- The file names a session before that session owns a znode.
- A missing, unreadable or unwritable file is not an error: it only means that a start is refused until the old session
  expires.
"""

import logging
import re
import struct
from typing import NamedTuple

from klamm.base.environment import FileSystem

FILE_NAME = "zookeeper-session"
_UNKNOWN_BOOT = "unknown"
_CONTENT = re.compile(rb"version: 1\nboot_id: ([!-~]{1,64})\nsession_ids:((?: 0x[0-9a-f]{1,16})*)\n")
# Version 0 has no boot id.
_CONTENT_VERSION_0 = re.compile(rb"version: 0\n()session_ids:((?: 0x[0-9a-f]{1,16})*)\n")

_log = logging.getLogger(__name__)


class NotedSessions(NamedTuple):
    """The ids of a broker's former sessions, the latest first, and whether all began after the machine's last start."""

    ids: list[int]
    are_of_this_boot: bool


def read_sessions(file_system: FileSystem, directory: str, boot_id: str | None) -> NotedSessions:
    """Reads the directory's file; returns no ids if the file is missing or invalid. If either boot id is unknown, no
    session counts as of this boot."""
    path = f"{directory}/{FILE_NAME}"
    nothing = NotedSessions([], False)
    try:
        content = file_system.read_file(path)
    except FileNotFoundError:
        return nothing
    except OSError as error:
        _log.warning("%s cannot be read: %s", path, error)
        return nothing
    match = _CONTENT.fullmatch(content) or _CONTENT_VERSION_0.fullmatch(content)
    if match is None:
        _log.warning("%s is ignored: it is not of the form 'version: 1', 'boot_id: ...', 'session_ids: 0x...'", path)
        return nothing
    # ZooKeeper's ids are signed; as text they are 64 bits.
    ids = [struct.unpack(">q", int(text, 16).to_bytes(8))[0] for text in match[2].split()]
    return NotedSessions(ids, boot_id is not None and match[1] == boot_id.encode())


def write_sessions(file_system: FileSystem, directory: str, boot_id: str | None, session_ids: list[int]) -> None:
    """Replaces the directory's file, durably."""
    text = "".join(f" 0x{struct.pack('>q', session_id).hex()}" for session_id in session_ids)
    content = f"version: 1\nboot_id: {boot_id or _UNKNOWN_BOOT}\nsession_ids:{text}\n"
    try:
        file_system.replace_file(f"{directory}/{FILE_NAME}", content.encode())
    except OSError as error:
        _log.warning("%s/%s cannot be written: %s", directory, FILE_NAME, error)
