"""Transactions, sessions and znodes as bytes: the content of the blocks of logs and snapshots. Pure.

The format is klamm's own (numbers big-endian, strings and data with a 4-byte size in front, -1 for null data).

What must stay true: an encoded value decodes to the same value, and decoding other bytes raises `CorruptDataError`.
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from klamm.base.slices import Slices, Steps, in_one_go
from klamm.zookeeper.messages import OPEN_ACL, Acl
from klamm.zookeeper.server.blocks import CorruptDataError
from klamm.zookeeper.server.transactions import (
    CheckVersionTxn,
    CloseSessionTxn,
    CreateSessionTxn,
    CreateTxn,
    DeleteTxn,
    MultiTxn,
    NodeTxn,
    SetAclTxn,
    SetDataTxn,
    Txn,
)
from klamm.zookeeper.server.tree import NodeImage, SessionState

T = TypeVar("T")

# Nearly all znodes have one of a few short ACLs; a long one is encoded each time.
MAX_CACHED_ENTRIES = 8
MAX_CACHED_CHARACTERS = 100

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_BATCH = struct.Struct(">qI")
_RECORD = struct.Struct(">Iq")
_SET_DATA = struct.Struct(">bii")
_CREATE = struct.Struct(">bqii")
_CREATE_START = struct.Struct(">qi")
_SESSION = struct.Struct(">qi")
_NODE_STAT = struct.Struct(">qqqqqiiiq")
_SNAPSHOT_START = struct.Struct(">qqI")

_CREATE_KIND: Final = 1
_DELETE_KIND: Final = 2
_SET_DATA_KIND: Final = 3
_SET_ACL_KIND: Final = 4
_CHECK_KIND: Final = 5
_CREATE_SESSION_KIND: Final = 6
_CLOSE_SESSION_KIND: Final = 7
_MULTI_KIND: Final = 8


# -- writing --------------------------------------------------------------------------------------------------------


def _text(value: str) -> bytes:
    data = value.encode()
    return _INT.pack(len(data)) + data


def _data(value: bytes | None) -> bytes:
    return _INT.pack(-1) if value is None else _INT.pack(len(value)) + value


def _acl(acl: tuple[Acl, ...]) -> bytes:
    is_short = len(acl) <= MAX_CACHED_ENTRIES and all(len(entry.id) <= MAX_CACHED_CHARACTERS for entry in acl)
    return _cached_acl(acl) if is_short else _encode_acl(acl)


def _encode_acl(acl: tuple[Acl, ...]) -> bytes:
    entries = (_INT.pack(entry.permissions) + _text(entry.scheme) + _text(entry.id) for entry in acl)
    return _INT.pack(len(acl)) + b"".join(entries)


_cached_acl = lru_cache(maxsize=256)(_encode_acl)
_OPEN_ACL_BYTES: Final = _acl(OPEN_ACL)


def _encode_set_data(txn: SetDataTxn) -> bytes:
    path = txn.path.encode()
    return _SET_DATA.pack(_SET_DATA_KIND, txn.version, len(path)) + path + _data(txn.data)


def _encode_create(txn: CreateTxn) -> bytes:
    path = txn.path.encode()
    start = _CREATE.pack(_CREATE_KIND, txn.ephemeral_owner, txn.parent_cversion, len(path))
    return b"".join((start, path, _data(txn.data), _acl(txn.acl)))


def _kind(kind: int) -> bytes:
    return bytes([kind])


_ENCODE: Final[dict[type, Callable[[Any], bytes]]] = {
    SetDataTxn: _encode_set_data,
    CreateTxn: _encode_create,
    DeleteTxn: lambda txn: _kind(_DELETE_KIND) + _text(txn.path),
    SetAclTxn: lambda txn: _kind(_SET_ACL_KIND) + _text(txn.path) + _acl(txn.acl) + _INT.pack(txn.aversion),
    CheckVersionTxn: lambda txn: _kind(_CHECK_KIND) + _text(txn.path),
    CreateSessionTxn: lambda txn: _kind(_CREATE_SESSION_KIND) + encode_session(txn.session_id, txn),
    CloseSessionTxn: lambda txn: _kind(_CLOSE_SESSION_KIND) + _LONG.pack(txn.session_id),
}


def _txn_steps(txn: Txn) -> Steps[bytes]:
    if not isinstance(txn, MultiTxn):
        return _ENCODE[type(txn)](txn)
    parts = [_kind(_MULTI_KIND), _INT.pack(len(txn.txns))]
    slices = Slices()
    for one in txn.txns:
        parts.append(_ENCODE[type(one)](one))
        if slices.spend(len(one.acl) if isinstance(one, CreateTxn) else 1):
            yield
    return b"".join(parts)


def encode_record(time_ms: int, txn: Txn) -> bytes:
    """One transaction of a batch, with its size and time in front."""
    return in_one_go(encode_record_steps(time_ms, txn))


def encode_record_steps(time_ms: int, txn: Txn) -> Steps[bytes]:
    """Like `encode_record`, in steps."""
    body = yield from _txn_steps(txn)
    return _RECORD.pack(len(body), time_ms) + body


def encode_batch(first_zxid: int, records: Sequence[bytes]) -> bytes:
    """The payload of a log's block: records with consecutive zxids."""
    return b"".join((_BATCH.pack(first_zxid, len(records)), *records))


def encode_session(session_id: int, session: SessionState | CreateSessionTxn) -> bytes:
    return _SESSION.pack(session_id, session.timeout_ms) + _data(session.password)


def encode_node(image: NodeImage) -> bytes:
    return b"".join((_text(image.path), _data(image.data), _acl(image.acl), _NODE_STAT.pack(*image[3:])))


def encode_snapshot_start(zxid: int, last_session_id: int, sessions: dict[int, SessionState]) -> bytes:
    """The payload of a snapshot's first block."""
    start = _SNAPSHOT_START.pack(zxid, last_session_id, len(sessions))
    return start + b"".join(encode_session(session_id, session) for session_id, session in sessions.items())


# -- reading --------------------------------------------------------------------------------------------------------


class _Reader:
    """A position in a block's payload."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.position = 0

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        values = form.unpack_from(self.payload, self.position)
        self.position += form.size
        return values

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.payload) - self.position:
            raise CorruptDataError(f"{size} bytes wanted, {len(self.payload) - self.position} left")
        self.position += size
        return self.payload[self.position - size : self.position]

    def integer(self) -> int:
        value: int = self.unpack(_INT)[0]
        return value

    def data(self) -> bytes | None:
        size = self.integer()
        return None if size == -1 else self.take(size)

    def text(self) -> str:
        return self.take(self.integer()).decode()

    def list_of(self, read: Callable[[], T]) -> tuple[T, ...]:
        return tuple([read() for _ in range(self.integer())])

    def acl(self) -> tuple[Acl, ...]:
        if self.payload.startswith(_OPEN_ACL_BYTES, self.position):  # nearly always
            self.position += len(_OPEN_ACL_BYTES)
            return OPEN_ACL
        return self.list_of(lambda: Acl(self.integer(), self.text(), self.text()))

    def session(self) -> tuple[int, SessionState]:
        session_id, timeout_ms = self.unpack(_SESSION)
        return session_id, SessionState(timeout_ms, self.data() or b"")


def _decode_set_data(reader: _Reader) -> SetDataTxn:
    version, path = reader.integer(), reader.text()
    return SetDataTxn(path, reader.data(), version)


def _decode_create(reader: _Reader) -> CreateTxn:
    owner, cversion = reader.unpack(_CREATE_START)
    path, data, acl = reader.text(), reader.data(), reader.acl()
    return CreateTxn(path, data, acl, owner, cversion)


def _decode_create_session(reader: _Reader) -> CreateSessionTxn:
    session_id, session = reader.session()
    return CreateSessionTxn(session_id, *session)


_DECODE: Final[dict[int, Callable[[_Reader], Txn]]] = {
    _SET_DATA_KIND: _decode_set_data,
    _CREATE_KIND: _decode_create,
    _DELETE_KIND: lambda reader: DeleteTxn(reader.text()),
    _SET_ACL_KIND: lambda reader: SetAclTxn(reader.text(), reader.acl(), reader.integer()),
    _CHECK_KIND: lambda reader: CheckVersionTxn(reader.text()),
    _CREATE_SESSION_KIND: _decode_create_session,
    _CLOSE_SESSION_KIND: lambda reader: CloseSessionTxn(*reader.unpack(_LONG)),
    _MULTI_KIND: lambda reader: MultiTxn(reader.list_of(lambda: _decode_node_txn(reader))),
}


def _decode_txn(reader: _Reader) -> Txn:
    kind = reader.take(1)[0]
    decode = _DECODE.get(kind)
    if decode is None:
        raise CorruptDataError(f"transaction of unknown kind {kind}")
    return decode(reader)


def _decode_node_txn(reader: _Reader) -> NodeTxn:
    txn = _decode_txn(reader)
    if isinstance(txn, CreateSessionTxn | CloseSessionTxn | MultiTxn):
        raise CorruptDataError(f"a multi holds a {type(txn).__name__}")
    return txn


def _decode(payload: bytes, read: Callable[[_Reader], T]) -> T:
    reader = _Reader(payload)
    try:
        value = read(reader)
    except (struct.error, UnicodeDecodeError, RecursionError) as error:
        raise CorruptDataError(f"unreadable at byte {reader.position}: {error}") from None
    if reader.position != len(payload):
        raise CorruptDataError(f"{len(payload) - reader.position} bytes left over")
    return value


def decode_batch(payload: bytes) -> list[tuple[int, int, Txn]]:
    """The transactions of a log's block: zxid, time in milliseconds, transaction."""

    def read(reader: _Reader) -> list[tuple[int, int, Txn]]:
        first_zxid, count = reader.unpack(_BATCH)
        txns = []
        for zxid in range(first_zxid, first_zxid + count):
            size, time_ms = reader.unpack(_RECORD)
            txns.append((zxid, time_ms, _decode(reader.take(size), _decode_txn)))
        return txns

    return _decode(payload, read)


def decode_snapshot_start(payload: bytes) -> tuple[int, int, dict[int, SessionState]]:
    """The zxid, the last session id and the sessions."""

    def read(reader: _Reader) -> tuple[int, int, dict[int, SessionState]]:
        zxid, last_session_id, count = reader.unpack(_SNAPSHOT_START)
        return zxid, last_session_id, dict([reader.session() for _ in range(count)])

    return _decode(payload, read)


def decode_nodes(payload: bytes) -> list[NodeImage]:
    """The znodes of a snapshot's block."""

    def read(reader: _Reader) -> list[NodeImage]:
        nodes = []
        while reader.position < len(payload):
            path, data, acl = reader.text(), reader.data(), reader.acl()
            nodes.append(NodeImage(path, data, acl, *reader.unpack(_NODE_STAT)))
        return nodes

    return _decode(payload, read)
