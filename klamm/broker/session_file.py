"""`zookeeper-session`: a file in a log directory with the ids of the ZooKeeper sessions that its broker had last.

A broker that was killed leaves its registration behind until its session expires, and Kafka's broker cannot start again
until then. The new process here holds the lock of the same log directory, so the old one is surely dead: what the
sessions in this file own is its own leftover and can be replaced at once.

What must stay true: the file names a session before that session owns anything. A file that is missing, unreadable or
cannot be written costs only the wait for the expiry, so none of it is an error.
"""

import logging
import re
import struct

from klamm.environment import FileSystem

FILE_NAME = "zookeeper-session"
_CONTENT = re.compile(rb"version: 0\nsession_ids:((?: 0x[0-9a-f]{1,16})*)\n")

_log = logging.getLogger(__name__)


def read_session_ids(file_system: FileSystem, directory: str) -> list[int]:
    """The ids in the directory's file; none when there is no such file or it cannot be understood."""
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
        _log.warning("%s is passed over: it is not of the form 'version: 0', 'session_ids: 0x...'", path)
        return []
    # ZooKeeper's ids are signed; as text they are 64 bits.
    return [struct.unpack(">q", int(text, 16).to_bytes(8))[0] for text in match[1].split()]


def write_session_ids(file_system: FileSystem, directory: str, session_ids: list[int]) -> None:
    """Replaces the directory's file, durably."""
    text = "".join(f" 0x{struct.pack('>q', session_id).hex()}" for session_id in session_ids)
    try:
        file_system.replace_file(f"{directory}/{FILE_NAME}", f"version: 0\nsession_ids:{text}\n".encode())
    except OSError as error:
        _log.warning("%s/%s cannot be written: %s", directory, FILE_NAME, error)
