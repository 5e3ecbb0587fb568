"""`zookeeper-session`: a file in a log directory with the ids of the ZooKeeper sessions that its broker had last.

    version: 1
    boot_id: 6e5f1c1e-50a3-4fb4-a9a5-6b2ae2d6a2b5
    session_ids: 0x100004f3c2a0001 0x100004f3c2a0000

A broker that was killed leaves its registration behind until its session expires, and Kafka's broker cannot start again
until then. The new process here holds the lock of the same log directory, so the old one is surely dead: what the
sessions in this file own is its own leftover and can be replaced at once.

What must stay true:
- Only sessions since the machine's last start count (`Environment.boot_id`). A machine that lost power has lost what it
  had not synced. If the broker replaced its registration within the session, a controller that takes over in that
  moment would find it alive as the leader that it was, and let it lead on with the shorter log.
- The file names a session before that session owns anything.
- A file that is missing, unreadable or cannot be written costs only the wait for the expiry, so none of it is an error.
"""

import logging
import re
import struct

from klamm.environment import FileSystem

FILE_NAME = "zookeeper-session"
_CONTENT = re.compile(rb"version: 1\nboot_id: ([!-~]{1,64})\nsession_ids:((?: 0x[0-9a-f]{1,16})*)\n")
# It did not say since when the machine had been running.
_VERSION_0 = b"version: 0\n"

_log = logging.getLogger(__name__)


def read_session_ids(file_system: FileSystem, directory: str, boot_id: str | None) -> list[int]:
    """The ids in the directory's file; none when it is of another boot of the machine, when either boot is unknown, and
    when there is no such file or it cannot be understood."""
    path = f"{directory}/{FILE_NAME}"
    try:
        content = file_system.read_file(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        _log.warning("%s cannot be read: %s", path, error)
        return []
    match = _CONTENT.fullmatch(content)
    if match is None:
        if not content.startswith(_VERSION_0):
            _log.warning(
                "%s is passed over: it is not of the form 'version: 1', 'boot_id: ...', 'session_ids: 0x...'", path
            )
        return []
    if boot_id is None or match[1] != boot_id.encode():
        _log.info("%s is passed over: it was written before the machine was started", path)
        return []
    # ZooKeeper's ids are signed; as text they are 64 bits.
    return [struct.unpack(">q", int(text, 16).to_bytes(8))[0] for text in match[2].split()]


def write_session_ids(file_system: FileSystem, directory: str, boot_id: str | None, session_ids: list[int]) -> None:
    """Replaces the directory's file, durably. Without a boot id nobody could use it, and it stays as it is."""
    if boot_id is None:
        return
    text = "".join(f" 0x{struct.pack('>q', session_id).hex()}" for session_id in session_ids)
    content = f"version: 1\nboot_id: {boot_id}\nsession_ids:{text}\n"
    try:
        file_system.replace_file(f"{directory}/{FILE_NAME}", content.encode())
    except OSError as error:
        _log.warning("%s/%s cannot be written: %s", directory, FILE_NAME, error)
