"""ZooKeeper's requests, responses and events as plain values, and the numbers in them. Pure.

`jute` turns them into bytes and back; client and embedded server share both.

What must stay true:
- A value has no behaviour, and nothing here knows bytes, connections or the tree.
- Each request names its operation as `op`.

Source: `zookeeper.jute`, `ZooDefs` and the enums of Apache ZooKeeper.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, NamedTuple

from klamm.zookeeper.keeper_exceptions import ZooKeeperErrorCode


class OpCode(IntEnum):
    """Operations (`ZooDefs.OpCode`)."""

    NOTIFICATION = 0
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    CREATE_TTL = 21
    AUTH = 100
    SET_WATCHES = 101
    CLOSE_SESSION = -11
    ERROR = -1


class CreateMode(IntEnum):
    """The `flags` of a create (`CreateMode.toFlag`)."""

    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3
    CONTAINER = 4
    PERSISTENT_WITH_TTL = 5
    PERSISTENT_SEQUENTIAL_WITH_TTL = 6


class EventType(IntEnum):
    """What happened to a watched znode (`Watcher.Event.EventType`)."""

    NONE = -1
    NODE_CREATED = 1
    NODE_DELETED = 2
    NODE_DATA_CHANGED = 3
    NODE_CHILDREN_CHANGED = 4


class KeeperState(IntEnum):
    """The `state` of a watcher event (`Watcher.Event.KeeperState`); servers send SYNC_CONNECTED."""

    DISCONNECTED = 0
    SYNC_CONNECTED = 3
    AUTH_FAILED = 4
    CONNECTED_READ_ONLY = 5
    CLOSED = 7
    EXPIRED = -112


class WatcherType(IntEnum):
    """Which watches `RemoveWatches` and `CheckWatches` mean."""

    CHILDREN = 1
    DATA = 2
    ANY = 3


class Permission(IntEnum):
    """Bits of `Acl.permissions`."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class Stat(NamedTuple):
    """What ZooKeeper knows about a znode besides its data; times are milliseconds since 1970."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


class Acl(NamedTuple):
    """One entry of an access control list: `Permission` bits for an identity of a scheme."""

    permissions: int
    scheme: str
    id: str


OPEN_ACL = (Acl(Permission.ALL, "world", "anyone"),)
CREATOR_ALL_ACL = (Acl(Permission.ALL, "auth", ""),)
READ_ACL = (Acl(Permission.READ, "world", "anyone"),)


# Requests.


@dataclass(frozen=True, slots=True)
class Create:
    """`op` is CREATE, CREATE2 (answers the Stat too), CREATE_CONTAINER or CREATE_TTL (the only one with `ttl_ms`)."""

    path: str
    data: bytes | None
    acl: tuple[Acl, ...] = OPEN_ACL
    flags: int = CreateMode.PERSISTENT
    op: OpCode = OpCode.CREATE2
    ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = -1
    op: ClassVar[OpCode] = OpCode.DELETE


@dataclass(frozen=True, slots=True)
class Exists:
    path: str
    watch: bool = False
    op: ClassVar[OpCode] = OpCode.EXISTS


@dataclass(frozen=True, slots=True)
class GetData:
    path: str
    watch: bool = False
    op: ClassVar[OpCode] = OpCode.GET_DATA


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes | None
    version: int = -1
    op: ClassVar[OpCode] = OpCode.SET_DATA


@dataclass(frozen=True, slots=True)
class GetAcl:
    path: str
    op: ClassVar[OpCode] = OpCode.GET_ACL


@dataclass(frozen=True, slots=True)
class SetAcl:
    path: str
    acl: tuple[Acl, ...]
    version: int = -1
    op: ClassVar[OpCode] = OpCode.SET_ACL


@dataclass(frozen=True, slots=True)
class GetChildren:
    """`op` is GET_CHILDREN or GET_CHILDREN2 (answers the Stat too)."""

    path: str
    watch: bool = False
    op: OpCode = OpCode.GET_CHILDREN2


@dataclass(frozen=True, slots=True)
class Sync:
    path: str
    op: ClassVar[OpCode] = OpCode.SYNC


@dataclass(frozen=True, slots=True)
class Check:
    """Only inside a multi."""

    path: str
    version: int
    op: ClassVar[OpCode] = OpCode.CHECK


@dataclass(frozen=True, slots=True)
class Multi:
    """All of the operations or none of them."""

    operations: "tuple[MultiOperation, ...]"
    op: ClassVar[OpCode] = OpCode.MULTI


@dataclass(frozen=True, slots=True)
class CheckWatches:
    path: str
    watcher_type: int
    op: ClassVar[OpCode] = OpCode.CHECK_WATCHES


@dataclass(frozen=True, slots=True)
class RemoveWatches:
    path: str
    watcher_type: int
    op: ClassVar[OpCode] = OpCode.REMOVE_WATCHES


@dataclass(frozen=True, slots=True)
class Auth:
    """Sent with `XID_AUTH`."""

    scheme: str
    auth: bytes | None
    auth_type: int = 0
    op: ClassVar[OpCode] = OpCode.AUTH


@dataclass(frozen=True, slots=True)
class SetWatches:
    """Sent with `XID_SET_WATCHES` after a reconnect; `relative_zxid` is the last zxid that the client saw."""

    relative_zxid: int
    data: tuple[str, ...]
    exists: tuple[str, ...]
    children: tuple[str, ...]
    op: ClassVar[OpCode] = OpCode.SET_WATCHES


@dataclass(frozen=True, slots=True)
class Ping:
    """Sent with `XID_PING`."""

    op: ClassVar[OpCode] = OpCode.PING


@dataclass(frozen=True, slots=True)
class CloseSession:
    op: ClassVar[OpCode] = OpCode.CLOSE_SESSION


@dataclass(frozen=True, slots=True)
class UnknownRequest:
    """A request of an operation unknown to this codec. Its body is not decoded; the reply is UNIMPLEMENTED."""

    op: int


MultiOperation = Create | Delete | SetData | Check
Request = (
    Create
    | Delete
    | Exists
    | GetData
    | SetData
    | GetAcl
    | SetAcl
    | GetChildren
    | Sync
    | Check
    | Multi
    | CheckWatches
    | RemoveWatches
    | Auth
    | SetWatches
    | Ping
    | CloseSession
)


# Responses. An operation without a class here has an empty response (None).


class CreateResponse(NamedTuple):
    """CREATE answers no stat (None); the other creates do."""

    path: str
    stat: Stat | None


class StatResponse(NamedTuple):
    """The answer to EXISTS, SET_DATA and SET_ACL."""

    stat: Stat


class GetDataResponse(NamedTuple):
    data: bytes | None
    stat: Stat


class GetAclResponse(NamedTuple):
    acl: tuple[Acl, ...]
    stat: Stat


class GetChildrenResponse(NamedTuple):
    """GET_CHILDREN answers no stat (None)."""

    children: list[str]
    stat: Stat | None


class MultiResult(NamedTuple):
    """The result of one operation of a multi.

    `op` is the operation, or ERROR with a code in `error`: the failed operation has its own code, earlier operations
    have OK and later ones RUNTIME_INCONSISTENCY. A create answers `path` (and, unless CREATE, `stat`), SET_DATA answers
    `stat`. Apache ZooKeeper treats a CREATE2 in a multi as a CREATE.
    """

    op: OpCode
    error: int = ZooKeeperErrorCode.OK
    path: str | None = None
    stat: Stat | None = None


class MultiResponse(NamedTuple):
    results: tuple[MultiResult, ...]


class SyncResponse(NamedTuple):
    path: str


Response = (
    CreateResponse
    | StatResponse
    | GetDataResponse
    | GetAclResponse
    | GetChildrenResponse
    | MultiResponse
    | SyncResponse
    | None
)


class ConnectRequest(NamedTuple):
    """`read_only` is None when the client (older than 3.4) does not send it; `session_id` 0 asks for a new session."""

    last_zxid_seen: int
    timeout_ms: int
    session_id: int
    password: bytes
    read_only: bool | None = False
    protocol_version: int = 0


class ConnectResponse(NamedTuple):
    """`timeout_ms` 0 with `session_id` 0 says that the session has expired. `read_only` as in the request."""

    timeout_ms: int
    session_id: int
    password: bytes
    read_only: bool | None = False
    protocol_version: int = 0


class WatcherEvent(NamedTuple):
    """A watch that fired: an `EventType`, a `KeeperState`, the znode."""

    type: int
    state: int
    path: str
