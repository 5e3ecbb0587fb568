"""ZooKeeper's wire format: `messages` to bytes and back. Pure; client and embedded server share it.

A writer and its reader stand in one module, because they are one format.

A connection carries frames: a 4-byte length, then the content. The first frame each way is `ConnectRequest` and
`ConnectResponse`, without a header. After that every request is `xid, operation, body` and every reply is
`xid, zxid, error, body`; replies come in the order of the requests. Some xids are reserved (`XID_...`), and a reply
with `XID_NOTIFICATION` is not a reply but a `WatcherEvent`.

What must stay true:
- Every function that takes bytes accepts any bytes: it returns a value or raises `JuteError`, nothing else. Bytes left
  over after a response are an error too; after a request they are ignored, as in ZooKeeper.
- Messages that may be very large (a multi, the names of children, watches) are read and written in steps.
- Every encoded value decodes to the same value. A null byte string and an empty byte string differ (`None`, `b""`); a
  null list or a null string decodes as an empty one.

Source: `zookeeper.jute`, `MultiOperationRecord`, `MultiResponse` of Apache ZooKeeper.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple

from klamm.base.slices import CHEAP_SLICE, Slices, Steps, in_one_go
from klamm.zookeeper.keeper_exceptions import JuteError
from klamm.zookeeper.messages import (
    OPEN_ACL,
    Acl,
    Auth,
    Check,
    CheckWatches,
    CloseSession,
    ConnectRequest,
    ConnectResponse,
    Create,
    CreateResponse,
    Delete,
    Exists,
    GetAcl,
    GetAclResponse,
    GetChildren,
    GetChildrenResponse,
    GetData,
    GetDataResponse,
    Multi,
    MultiOperation,
    MultiResponse,
    MultiResult,
    OpCode,
    Ping,
    RemoveWatches,
    Request,
    Response,
    SetAcl,
    SetData,
    SetWatches,
    Stat,
    StatResponse,
    Sync,
    SyncResponse,
    UnknownRequest,
    WatcherEvent,
)

# The most entries in a request. Kafka's brokers give a znode two; each access to a znode looks at all of them.
MAX_ACL_ENTRIES = 100

XID_NOTIFICATION = -1
XID_PING = -2
XID_AUTH = -4
XID_SET_WATCHES = -8


class ReplyHeader(NamedTuple):
    xid: int
    zxid: int
    error: int


_OP_CODES = {int(op): op for op in OpCode}

# Writing.

_INT = Struct(">i")
_PACK_INT, _UNPACK_INT = _INT.pack, _INT.unpack_from
_LONG = Struct(">q")
_BOOLEAN = Struct(">?")
_STAT = Struct(">qqqqiiiqiiq")
_REQUEST_HEADER = Struct(">ii")
_REPLY_HEADER = Struct(">iqi")
_FRAMED_REQUEST_HEADER = Struct(">iii")
_FRAMED_REPLY_HEADER = Struct(">iiqi")
_MULTI_HEADER = Struct(">ibi")  # operation, whether this is the end (0 or 1), error
_CONNECT_REQUEST = Struct(">iqiq")
_CONNECT_RESPONSE = Struct(">iiq")
_EVENT = Struct(">ii")

REPLY_HEADER_BYTES = _REPLY_HEADER.size
_MULTI_END = _MULTI_HEADER.pack(OpCode.ERROR, True, -1)
_NULL = _INT.pack(-1)
_TRUE, _FALSE = b"\x01", b"\x00"

Parts = list[bytes]


def _write_string(parts: Parts, value: str) -> None:
    data = value.encode()
    parts.append(_PACK_INT(len(data)))
    parts.append(data)


def _write_buffer(parts: Parts, value: bytes | None) -> None:
    if value is None:
        parts.append(_NULL)
    else:
        parts.append(_INT.pack(len(value)))
        parts.append(value)


def _write_strings(parts: Parts, values: Sequence[str]) -> None:
    parts.append(_INT.pack(len(values)))
    for value in values:
        _write_string(parts, value)


def _write_acl(parts: Parts, acl: Sequence[Acl]) -> None:
    parts.append(_INT.pack(len(acl)))
    for permissions, scheme, identity in acl:
        parts.append(_INT.pack(permissions))
        _write_string(parts, scheme)
        _write_string(parts, identity)


def _encode_acl(acl: Sequence[Acl]) -> bytes:
    parts: Parts = []
    _write_acl(parts, acl)
    return b"".join(parts)


_OPEN_ACL_BYTES = _encode_acl(OPEN_ACL)


def _write_create(parts: Parts, request: Create) -> None:
    _write_string(parts, request.path)
    _write_buffer(parts, request.data)
    parts.append(_OPEN_ACL_BYTES if request.acl is OPEN_ACL else _encode_acl(request.acl))
    parts.append(_INT.pack(request.flags))
    if request.op == OpCode.CREATE_TTL:
        parts.append(_LONG.pack(request.ttl_ms))


def _write_path_version(parts: Parts, request: Delete | Check) -> None:
    _write_string(parts, request.path)
    parts.append(_INT.pack(request.version))


def _write_path_watch(parts: Parts, request: Exists | GetData | GetChildren) -> None:
    _write_string(parts, request.path)
    parts.append(_TRUE if request.watch else _FALSE)


def _write_set_data(parts: Parts, request: SetData) -> None:
    _write_string(parts, request.path)
    _write_buffer(parts, request.data)
    parts.append(_INT.pack(request.version))


def _write_path(parts: Parts, request: GetAcl | Sync) -> None:
    _write_string(parts, request.path)


def _write_set_acl(parts: Parts, request: SetAcl) -> None:
    _write_string(parts, request.path)
    _write_acl(parts, request.acl)
    parts.append(_INT.pack(request.version))


def _write_multi(parts: Parts, request: Multi) -> None:
    for operation in request.operations:
        parts.append(_MULTI_HEADER.pack(operation.op, False, -1))
        _REQUEST_WRITERS[type(operation)](parts, operation)
    parts.append(_MULTI_END)


def _write_path_type(parts: Parts, request: CheckWatches | RemoveWatches) -> None:
    _write_string(parts, request.path)
    parts.append(_INT.pack(request.watcher_type))


def _write_auth(parts: Parts, request: Auth) -> None:
    parts.append(_INT.pack(request.auth_type))
    _write_string(parts, request.scheme)
    _write_buffer(parts, request.auth)


def _write_set_watches(parts: Parts, request: SetWatches) -> None:
    parts.append(_LONG.pack(request.relative_zxid))
    _write_strings(parts, request.data)
    _write_strings(parts, request.exists)
    _write_strings(parts, request.children)


def _write_nothing(parts: Parts, request: Ping | CloseSession) -> None:
    """The request or response has no body."""


_REQUEST_WRITERS: dict[type, Callable[..., None]] = {
    Create: _write_create,
    Delete: _write_path_version,
    Exists: _write_path_watch,
    GetData: _write_path_watch,
    SetData: _write_set_data,
    GetAcl: _write_path,
    SetAcl: _write_set_acl,
    GetChildren: _write_path_watch,
    Sync: _write_path,
    Check: _write_path_version,
    Multi: _write_multi,
    CheckWatches: _write_path_type,
    RemoveWatches: _write_path_type,
    Auth: _write_auth,
    SetWatches: _write_set_watches,
    Ping: _write_nothing,
    CloseSession: _write_nothing,
}


def encode_request(xid: int, request: Request) -> bytes:
    """The whole frame, length included."""
    parts: Parts = [b""]
    _REQUEST_WRITERS[type(request)](parts, request)
    size = _REQUEST_HEADER.size + sum(map(len, parts))
    parts[0] = _FRAMED_REQUEST_HEADER.pack(size, xid, request.op)
    return b"".join(parts)


def encode_connect_request(request: ConnectRequest) -> bytes:
    """The whole frame, length included."""
    parts = [_CONNECT_REQUEST.pack(request.protocol_version, *request[:3])]
    _write_buffer(parts, request.password)
    if request.read_only is not None:
        parts.append(_BOOLEAN.pack(request.read_only))
    return _frame(parts)


def encode_connect_response(response: ConnectResponse) -> bytes:
    """The whole frame, length included."""
    parts = [_CONNECT_RESPONSE.pack(response.protocol_version, *response[:2])]
    _write_buffer(parts, response.password)
    if response.read_only is not None:
        parts.append(_BOOLEAN.pack(response.read_only))
    return _frame(parts)


def _frame(parts: Parts) -> bytes:
    return b"".join([_INT.pack(sum(map(len, parts))), *parts])


def encode_error(xid: int, zxid: int, error: int) -> bytes:
    """The whole frame of a reply that only has an error (or OK) and no body."""
    return _FRAMED_REPLY_HEADER.pack(REPLY_HEADER_BYTES, xid, zxid, error)


def encode_event(event: WatcherEvent, zxid: int = -1) -> bytes:
    """The whole frame of a notification. Servers before 3.9 send no zxid (-1). Later servers send the transaction's
    zxid, or -1 for an event that a client missed and that SetWatches finds."""
    path = event.path.encode()
    size = REPLY_HEADER_BYTES + _EVENT.size + _INT.size + len(path)
    return b"".join(
        (
            _FRAMED_REPLY_HEADER.pack(size, XID_NOTIFICATION, zxid, 0),
            _EVENT.pack(event.type, event.state),
            _INT.pack(len(path)),
            path,
        )
    )


def _write_optional_stat(parts: Parts, stat: Stat | None) -> None:
    if stat is not None:
        parts.append(_STAT.pack(*stat))


def _write_multi_results(parts: Parts, results: Sequence[MultiResult]) -> Steps[None]:
    slices = Slices()
    for op, error, path, stat in results:
        parts.append(_MULTI_HEADER.pack(op, False, error))
        if op == OpCode.ERROR:
            parts.append(_INT.pack(error))
            continue
        if path is not None:
            _write_string(parts, path)
        if stat is not None:
            parts.append(_STAT.pack(*stat))
        if slices.spend():
            yield
    parts.append(_MULTI_END)


def encode_response(xid: int, zxid: int, response: Response) -> bytes:
    """The whole frame of a successful reply."""
    return in_one_go(encode_response_steps(xid, zxid, response))


def encode_response_steps(xid: int, zxid: int, response: Response) -> Steps[bytes]:
    """Like `encode_response`, in steps."""
    parts: Parts = [b""]
    match response:
        case None:
            pass
        case StatResponse(stat):
            parts.append(_STAT.pack(*stat))
        case GetDataResponse(data, stat):
            _write_buffer(parts, data)
            parts.append(_STAT.pack(*stat))
        case CreateResponse(path, optional_stat):
            _write_string(parts, path)
            _write_optional_stat(parts, optional_stat)
        case GetChildrenResponse(children, optional_stat):
            parts.append(_INT.pack(len(children)))
            slices = Slices(CHEAP_SLICE)
            for child in children:
                _write_string(parts, child)
                if slices.spend():
                    yield
            _write_optional_stat(parts, optional_stat)
        case GetAclResponse(acl, stat):
            _write_acl(parts, acl)
            parts.append(_STAT.pack(*stat))
        case MultiResponse(results):
            yield from _write_multi_results(parts, results)
        case SyncResponse(path):
            _write_string(parts, path)
    parts[0] = _FRAMED_REPLY_HEADER.pack(REPLY_HEADER_BYTES + sum(map(len, parts)), xid, zxid, 0)
    return b"".join(parts)


# Reading.


def _truncated(size: int, start: int, end: int) -> JuteError:
    return JuteError(f"truncated: {size} bytes wanted at {start}, {end - start} left")


class _Reader:
    """A position in a frame's content. Every read checks that the bytes are there."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.end = len(data)

    def _advance(self, size: int) -> int:
        start = self.position
        self.position = start + size
        if self.position > self.end:
            raise _truncated(size, start, self.end)
        return start

    # int32, buffer and string do without `_advance`: a multi has thousands of them.

    def int32(self) -> int:
        start = self.position
        self.position = stop = start + 4
        if stop > self.end:
            raise _truncated(4, start, self.end)
        value: int = _UNPACK_INT(self.data, start)[0]
        return value

    def int64(self) -> int:
        value: int = _LONG.unpack_from(self.data, self._advance(8))[0]
        return value

    def boolean(self) -> bool:
        value = self.data[self._advance(1)]
        if value > 1:
            raise JuteError(f"a boolean is 0 or 1, not {value}")
        return value == 1

    def buffer(self) -> bytes | None:
        size = self.int32()
        if size < 0:
            if size != -1:
                raise JuteError(f"negative length {size}")
            return None
        start = self.position
        self.position = stop = start + size
        if stop > self.end:
            raise _truncated(size, start, self.end)
        return self.data[start:stop]

    def string(self) -> str:
        data = self.buffer()
        if data is None:
            return ""  # kazoo sends an empty string so
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise JuteError(f"a string is not UTF-8: {error}") from None

    def _count(self, least_bytes_each: int) -> int:
        """A list's length. Refused if the frame is too short for it, so that a length alone costs no memory."""
        count = self.int32()
        if count < -1:
            raise JuteError(f"negative count {count}")
        if count * least_bytes_each > self.end - self.position:
            raise JuteError(f"{count} items do not fit into {self.end - self.position} bytes")
        return max(count, 0)

    def strings(self) -> Steps[list[str]]:
        strings = []
        slices = Slices(CHEAP_SLICE)
        for _ in range(self._count(4)):
            strings.append(self.string())
            if slices.spend():
                yield
        return strings

    def acl(self) -> tuple[Acl, ...]:
        if self.data.startswith(_OPEN_ACL_BYTES, self.position):  # nearly always
            self.position += len(_OPEN_ACL_BYTES)
            return OPEN_ACL
        return tuple([Acl(self.int32(), self.string(), self.string()) for _ in range(self._count(12))])

    def short_acl(self) -> tuple[Acl, ...]:
        acl = self.acl()
        if len(acl) > MAX_ACL_ENTRIES:
            raise JuteError(f"an ACL of {len(acl)} entries; {MAX_ACL_ENTRIES} are allowed")
        return acl

    def stat(self) -> Stat:
        return Stat._make(_STAT.unpack_from(self.data, self._advance(_STAT.size)))

    def unpack(self, struct: Struct) -> tuple[int, ...]:
        return struct.unpack_from(self.data, self._advance(struct.size))

    def finish(self) -> None:
        if self.position != self.end:
            raise JuteError(f"{self.end - self.position} bytes left over")


def _read_create(reader: _Reader, op: OpCode) -> Create:
    path, data, acl, flags = reader.string(), reader.buffer(), reader.short_acl(), reader.int32()
    return Create(path, data, acl, flags, op, reader.int64() if op == OpCode.CREATE_TTL else 0)


def _read_multi(reader: _Reader) -> Steps[Multi]:
    operations: list[MultiOperation] = []
    slices = Slices()
    while (number := _read_multi_header(reader)[0]) is not None:
        op = _OP_CODES.get(number)
        read = _MULTI_OPERATION_READERS.get(number)
        if op is None or read is None:
            raise JuteError(f"operation {number} in a multi")
        operation = read(reader, op)
        operations.append(operation)
        if slices.spend(len(operation.acl) if isinstance(operation, Create) else 1):
            yield
    return Multi(tuple(operations))


def _read_multi_header(reader: _Reader) -> tuple[int | None, int]:
    """The operation, or None at the end, and the error."""
    op, done, error = reader.unpack(_MULTI_HEADER)
    if not 0 <= done <= 1:
        raise JuteError(f"a boolean is 0 or 1, not {done}")
    return (None if done else op), error


_MULTI_OPERATION_READERS: dict[int, Callable[[_Reader, OpCode], MultiOperation]] = {
    OpCode.CREATE: _read_create,
    OpCode.CREATE2: _read_create,
    OpCode.CREATE_CONTAINER: _read_create,
    OpCode.CREATE_TTL: _read_create,
    OpCode.DELETE: lambda r, _: Delete(r.string(), r.int32()),
    OpCode.SET_DATA: lambda r, _: SetData(r.string(), r.buffer(), r.int32()),
    OpCode.CHECK: lambda r, _: Check(r.string(), r.int32()),
}


def _read_auth(reader: _Reader, _op: OpCode) -> Auth:
    auth_type = reader.int32()
    return Auth(reader.string(), reader.buffer(), auth_type)


def _read_set_watches(reader: _Reader) -> Steps[SetWatches]:
    relative_zxid = reader.int64()
    data, exists = (yield from reader.strings()), (yield from reader.strings())
    return SetWatches(relative_zxid, tuple(data), tuple(exists), tuple((yield from reader.strings())))


_REQUEST_READERS: dict[int, Callable[[_Reader, OpCode], Request]] = {
    **_MULTI_OPERATION_READERS,
    OpCode.EXISTS: lambda r, _: Exists(r.string(), r.boolean()),
    OpCode.GET_DATA: lambda r, _: GetData(r.string(), r.boolean()),
    OpCode.GET_ACL: lambda r, _: GetAcl(r.string()),
    OpCode.SET_ACL: lambda r, _: SetAcl(r.string(), r.short_acl(), r.int32()),
    OpCode.GET_CHILDREN: lambda r, op: GetChildren(r.string(), r.boolean(), op),
    OpCode.GET_CHILDREN2: lambda r, op: GetChildren(r.string(), r.boolean(), op),
    OpCode.SYNC: lambda r, _: Sync(r.string()),
    OpCode.CHECK_WATCHES: lambda r, _: CheckWatches(r.string(), r.int32()),
    OpCode.REMOVE_WATCHES: lambda r, _: RemoveWatches(r.string(), r.int32()),
    OpCode.AUTH: _read_auth,
    OpCode.PING: lambda _r, _: Ping(),
    OpCode.CLOSE_SESSION: lambda _r, _: CloseSession(),
}

_LONG_REQUEST_READERS: dict[int, Callable[[_Reader], Steps[Request]]] = {
    OpCode.MULTI: _read_multi,
    OpCode.SET_WATCHES: _read_set_watches,
}


def decode_request_header(frame: bytes) -> tuple[int, int]:
    """`(xid, operation)` of a frame's content, even if `decode_request` refuses its body. Raises JuteError."""
    if len(frame) < _REQUEST_HEADER.size:
        raise JuteError(f"a request of {len(frame)} bytes has no header")
    xid, op = _REQUEST_HEADER.unpack_from(frame)
    return xid, op


def decode_request(frame: bytes) -> tuple[int, Request | UnknownRequest]:
    """`(xid, request)` of a frame's content (without its length). Raises JuteError."""
    xid, op = decode_request_header(frame)
    read = _REQUEST_READERS.get(op)
    if read is None:
        return in_one_go(decode_request_steps(frame))
    return xid, read(_Reader(frame, _REQUEST_HEADER.size), OpCode(op))


def decode_request_steps(frame: bytes) -> Steps[tuple[int, Request | UnknownRequest]]:
    """Like `decode_request`, in steps."""
    xid, op = decode_request_header(frame)
    read = _LONG_REQUEST_READERS.get(op)
    if read is None:
        return decode_request(frame) if op in _REQUEST_READERS else (xid, UnknownRequest(op))
    return xid, (yield from read(_Reader(frame, _REQUEST_HEADER.size)))


def decode_connect_request(frame: bytes) -> ConnectRequest:
    """From a frame's content. Raises JuteError."""
    reader = _Reader(frame)
    version, last_zxid_seen, timeout_ms, session_id = reader.unpack(_CONNECT_REQUEST)
    password, read_only = _read_connect_rest(reader)
    return ConnectRequest(last_zxid_seen, timeout_ms, session_id, password, read_only, version)


def decode_connect_response(frame: bytes) -> ConnectResponse:
    """From a frame's content. Raises JuteError."""
    reader = _Reader(frame)
    version, timeout_ms, session_id = reader.unpack(_CONNECT_RESPONSE)
    password, read_only = _read_connect_rest(reader)
    reader.finish()
    return ConnectResponse(timeout_ms, session_id, password, read_only, version)


def _read_connect_rest(reader: _Reader) -> tuple[bytes, bool | None]:
    password = reader.buffer() or b""
    return password, None if reader.position == reader.end else reader.boolean()


def decode_reply_header(frame: bytes) -> ReplyHeader:
    """From a frame's content; the body, if any, starts at `REPLY_HEADER_BYTES`. Raises JuteError."""
    if len(frame) < REPLY_HEADER_BYTES:
        raise JuteError(f"a reply of {len(frame)} bytes has no header")
    return ReplyHeader._make(_REPLY_HEADER.unpack_from(frame))


def decode_event(frame: bytes) -> WatcherEvent:
    """From the content of a frame whose header has `XID_NOTIFICATION`. Raises JuteError."""
    reader = _Reader(frame, REPLY_HEADER_BYTES)
    event = WatcherEvent(reader.int32(), reader.int32(), reader.string())
    reader.finish()
    return event


def _read_multi_response(reader: _Reader) -> Steps[MultiResponse]:
    results: list[MultiResult] = []
    slices = Slices()
    while True:
        op, error = _read_multi_header(reader)
        if op is None:
            return MultiResponse(tuple(results))
        results.append(_read_multi_result(reader, op, error))
        if slices.spend():
            yield


def _read_children(reader: _Reader) -> Steps[GetChildrenResponse]:
    return GetChildrenResponse((yield from reader.strings()), None)


def _read_children_and_stat(reader: _Reader) -> Steps[GetChildrenResponse]:
    return GetChildrenResponse((yield from reader.strings()), reader.stat())


def _read_multi_result(reader: _Reader, op: int, error: int) -> MultiResult:
    match op:
        case OpCode.ERROR:
            repeated = reader.int32()
            if repeated != error:
                raise JuteError(f"a multi's result says error {error} and {repeated}")
            return MultiResult(OpCode.ERROR, error)
        case OpCode.CREATE:
            return MultiResult(OpCode.CREATE, error, reader.string())
        case OpCode.CREATE2 | OpCode.CREATE_CONTAINER | OpCode.CREATE_TTL:
            return MultiResult(OpCode(op), error, reader.string(), reader.stat())
        case OpCode.SET_DATA:
            return MultiResult(OpCode.SET_DATA, error, None, reader.stat())
        case OpCode.DELETE | OpCode.CHECK:
            return MultiResult(OpCode(op), error)
    raise JuteError(f"operation {op} in a multi's result")


_RESPONSE_READERS: dict[int, Callable[[_Reader], Response]] = {
    OpCode.CREATE: lambda r: CreateResponse(r.string(), None),
    OpCode.CREATE2: lambda r: CreateResponse(r.string(), r.stat()),
    OpCode.CREATE_CONTAINER: lambda r: CreateResponse(r.string(), r.stat()),
    OpCode.CREATE_TTL: lambda r: CreateResponse(r.string(), r.stat()),
    OpCode.EXISTS: lambda r: StatResponse(r.stat()),
    OpCode.SET_DATA: lambda r: StatResponse(r.stat()),
    OpCode.SET_ACL: lambda r: StatResponse(r.stat()),
    OpCode.GET_DATA: lambda r: GetDataResponse(r.buffer(), r.stat()),
    OpCode.GET_ACL: lambda r: GetAclResponse(r.acl(), r.stat()),
    OpCode.SYNC: lambda r: SyncResponse(r.string()),
}

_LONG_RESPONSE_READERS: dict[int, Callable[[_Reader], Steps[Response]]] = {
    OpCode.GET_CHILDREN: _read_children,
    OpCode.GET_CHILDREN2: _read_children_and_stat,
    OpCode.MULTI: _read_multi_response,
}


def decode_response(op: int, frame: bytes) -> Response:
    """The body of a reply without error to a request of operation `op`, from the frame's content. Raises JuteError."""
    return in_one_go(decode_response_steps(op, frame))


def decode_response_steps(op: int, frame: bytes) -> Steps[Response]:
    """Like `decode_response`, in steps."""
    reader = _Reader(frame, REPLY_HEADER_BYTES)
    response: Response = None
    if (read := _RESPONSE_READERS.get(op)) is not None:
        response = read(reader)
    elif (read_long := _LONG_RESPONSE_READERS.get(op)) is not None:
        response = yield from read_long(reader)
    reader.finish()
    return response
