"""Snapshots of the whole tree, written while the server works, and the recovery from them and the logs.

A snapshot is called `snapshot.<its zxid, 16 hex digits>`. It is exact: the tree as it was after that transaction,
captured copy-on-write (`tree.Capture`) and written in slices. Its first block has the sessions, then come blocks of
znodes, and an empty block ends it. The two newest snapshots are kept, and the logs that the older one needs, so that
one unreadable snapshot loses nothing.

What must stay true:
- A snapshot gets its name only after its contents have been synced and the log is durable up to its zxid.
- Logs are removed only when two newer snapshots exist, or their transactions are in the older of the two.
- Recovery never skips a transaction: missing or damaged data, other than the torn tail of the newest log, makes the
  server refuse to start.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from klamm.base.environment import Environment, File, FileSystem
from klamm.zookeeper.server.blocks import (
    HEADER_BYTES,
    LOG_MAGIC,
    MAX_BLOCK_BYTES,
    SNAPSHOT_MAGIC,
    CorruptDataError,
    encode_block,
    encode_header,
    next_block,
    read_blocks,
    read_salt,
)
from klamm.zookeeper.server.records import (
    decode_batch,
    decode_nodes,
    decode_snapshot_start,
    encode_node,
    encode_snapshot_start,
)
from klamm.zookeeper.server.transaction_log import PREFIX as LOG_PREFIX
from klamm.zookeeper.server.tree import Capture, NodeImage, ZnodeTree

SNAPSHOT_PREFIX: Final = "snapshot."
NODES_PER_SLICE: Final = 500  # about two milliseconds of the loop's time
WRITE_BYTES: Final = 1024 * 1024

_log = logging.getLogger(__name__)


def _numbered(names: list[str], prefix: str) -> dict[int, str]:
    """The names with this prefix, by the zxid in them, ascending."""
    found = {}
    for name in names:
        if name.startswith(prefix):
            try:
                found[int(name.removeprefix(prefix), 16)] = name
            except ValueError:
                continue
    return dict(sorted(found.items()))


# -- writing --------------------------------------------------------------------------------------------------------


async def write_snapshot(
    environment: Environment, directory: str, capture: Capture, is_wanted: Callable[[], bool]
) -> str | None:
    """Writes the captured tree to a temporary file and syncs it. Returns its path; raises OSError.

    The file counts only once `publish_snapshot` has given it its name. When `is_wanted` becomes false, stops early and
    returns None. (Cancelling would close the file under a thread that writes to it.)
    """
    path = f"{directory}/{SNAPSHOT_PREFIX}{capture.zxid:016x}.tmp"
    salt = environment.random.getrandbits(32)
    file = await environment.run_long(_create, environment.file_system, path)
    try:
        start = encode_snapshot_start(capture.zxid, capture.last_session_id, capture.sessions)
        chunk = bytearray(encode_header(SNAPSHOT_MAGIC, salt) + encode_block(start, salt))
        position = 0
        while images := capture.take(NODES_PER_SLICE):
            if not is_wanted():
                return None
            for payload in _payloads(images):
                chunk += encode_block(payload, salt)
                if len(chunk) >= WRITE_BYTES:
                    position += await environment.run_long(file.write, position, chunk)
                    chunk = bytearray()
            await asyncio.sleep(0)
        chunk += encode_block(b"", salt)
        await environment.run_long(file.write, position, chunk)
        await environment.run_long(file.sync)
    finally:
        file.close()
    return path


def _payloads(images: list[NodeImage]) -> Iterator[bytes]:
    """The znodes as payloads of blocks: no larger than `WRITE_BYTES`, or of a single znode."""
    records: list[bytes] = []
    size = 0
    for image in images:
        record = encode_node(image)
        if records and size + len(record) > WRITE_BYTES:
            yield b"".join(records)
            records, size = [], 0
        records.append(record)
        size += len(record)
    yield b"".join(records)


def _create(file_system: FileSystem, path: str) -> File:
    file = file_system.open(path, create=True)
    file.truncate(0)
    return file


def publish_snapshot(file_system: FileSystem, path: str) -> None:
    """Gives a written snapshot its name, and removes superfluous files. Blocking."""
    directory, _, name = path.rpartition("/")
    file_system.rename(path, path.removesuffix(".tmp"))
    file_system.sync_directory(directory)
    names = file_system.list_directory(directory)
    snapshots = list(_numbered(names, SNAPSHOT_PREFIX).items())
    for _, name in snapshots[:-2]:
        file_system.remove(f"{directory}/{name}")
    if len(snapshots) < 2:
        return
    oldest_kept = snapshots[-2][0]
    logs = list(_numbered(names, LOG_PREFIX).items())
    for (_, name), (next_first_zxid, _) in itertools.pairwise(logs):
        if next_first_zxid <= oldest_kept + 1:
            file_system.remove(f"{directory}/{name}")


# -- recovery -------------------------------------------------------------------------------------------------------


class Recovered(NamedTuple):
    """The tree with every durable transaction, and how much was replayed since its snapshot."""

    tree: ZnodeTree
    transactions: int
    log_bytes: int
    logs: int


def recover(file_system: FileSystem, directory: str) -> Recovered:
    """Reads the newest snapshot and replays the logs. Cuts a torn tail. Blocking.

    Raises CorruptDataError when acknowledged writes would be missing, and OSError.
    """
    names = file_system.list_directory(directory)
    for name in names:
        if name.startswith(SNAPSHOT_PREFIX) and name.endswith(".tmp"):
            file_system.remove(f"{directory}/{name}")
    tree = _newest_snapshot(file_system, directory, names)
    snapshot_zxid, log_bytes, replayed = tree.zxid, 0, 0
    logs = list(_numbered(names, LOG_PREFIX).items())
    for index, (first_zxid, name) in enumerate(logs):
        is_newest = index == len(logs) - 1
        if not is_newest and logs[index + 1][0] <= tree.zxid + 1:
            continue  # the snapshot has all of it
        if first_zxid > tree.zxid + 1:
            raise CorruptDataError(
                f"{directory}: transactions {tree.zxid + 1} to {first_zxid - 1} are missing, before {name}"
            )
        log_bytes += _replay(file_system, f"{directory}/{name}", tree, is_newest)
        replayed += 1
    file_system.sync_directory(directory)
    return Recovered(tree, tree.zxid - snapshot_zxid, log_bytes, replayed)


def _newest_snapshot(file_system: FileSystem, directory: str, names: list[str]) -> ZnodeTree:
    unreadable = []
    for name in reversed(_numbered(names, SNAPSHOT_PREFIX).values()):
        path = f"{directory}/{name}"
        try:
            return _read_snapshot(path, file_system.read_file(path))
        except (CorruptDataError, ValueError) as error:
            _log.error("%s is not readable and left out: %s", path, error)
            unreadable.append(name)
    if unreadable and 1 not in _numbered(names, LOG_PREFIX):
        raise CorruptDataError(f"{directory}: none of its snapshots is readable: {', '.join(unreadable)}")
    return ZnodeTree()


def _read_snapshot(path: str, data: bytes) -> ZnodeTree:
    salt = read_salt(data, SNAPSHOT_MAGIC)
    if salt is None:
        raise CorruptDataError(f"{path} has no valid header")
    payloads = [payload for _, payload in read_blocks(data, salt)]
    if len(payloads) < 2 or payloads[-1] != b"":
        raise CorruptDataError(f"{path} is damaged or not complete")
    zxid, last_session_id, sessions = decode_snapshot_start(payloads[0])
    images: list[NodeImage] = []
    for payload in payloads[1:-1]:
        images += decode_nodes(payload)
    return ZnodeTree.restore(zxid, last_session_id, sessions, images)


def _replay(file_system: FileSystem, path: str, tree: ZnodeTree, is_newest: bool) -> int:
    """Applies the log's transactions that the tree lacks. Returns the size of the log."""
    data = file_system.read_file(path)
    salt = read_salt(data, LOG_MAGIC)
    if salt is None:
        # The header is synced before any batch is written, so a file without one has no batch.
        if is_newest and len(data) <= HEADER_BYTES:
            file_system.remove(path)
            file_system.sync_directory(path.rpartition("/")[0])
            return 0
        raise CorruptDataError(f"{path} has no valid header")
    end = HEADER_BYTES
    for block_end, payload in read_blocks(data, salt):
        try:
            for zxid, time_ms, txn in decode_batch(payload):
                if zxid > tree.zxid:
                    tree.apply(txn, zxid, time_ms)
        except (CorruptDataError, KeyError, ValueError) as error:
            # The checksum is right, so a faulty program wrote this block, or it belongs to another directory.
            raise CorruptDataError(
                f"{path}: the batch after byte {end} does not fit the state before it: {error!r}"
            ) from None
        end = block_end
    if end < len(data):
        _check_torn_tail(path, data, end, salt, is_newest)
    if is_newest:
        # The process may have been killed between a write and its sync. Clients will see the transactions read here, so
        # they must be durable from now on.
        file = file_system.open(path)
        try:
            file.truncate(end)
            file.sync()
        finally:
            file.close()
    return end


def _check_torn_tail(path: str, data: bytes, end: int, salt: int, is_newest: bool) -> None:
    """Raises CorruptDataError unless the bytes after the last valid batch are the rest of a write torn by a crash."""
    if not is_newest:
        raise CorruptDataError(f"{path} is damaged at byte {end}, and newer transactions exist")
    if len(data) - end > MAX_BLOCK_BYTES:
        behind = "more than a batch"
    elif (position := next_block(data, end + 1, salt)) is not None:
        behind = f"a valid batch at byte {position}"
    else:
        _log.warning("%s: a crash tore the last write; cut at byte %d of %d", path, end, len(data))
        return
    raise CorruptDataError(
        f"{path} is damaged at byte {end}, with {behind} behind it: this is no torn tail, and cutting the file here "
        "would lose acknowledged writes. Restore the file from a copy."
    )
