"""The znode tree: the state of a ZooKeeper server, as a pure state machine. No IO, no clock, no chance.

A write happens in two steps. `ZnodeTree.prepare` checks a request against the tree and returns a change, or raises the
error that the client gets. `ZnodeTree.apply` applies a change under a zxid and a time. The transaction log holds only
changes, so a replay checks nothing again and always ends in the same tree. Sessions are part of the tree's state,
because they own ephemeral znodes.

What must stay true:
- `prepare` changes nothing. A change is applied right after it was prepared, before anything else is prepared.
- `apply` never fails on a change that was prepared against the same tree.
- A multi is prepared as a whole or not at all; its operations share one zxid.
- The zxids given to `apply` grow by one.
- Watches are one-shot, and no order here comes from a `set`.

Source of the behaviour: ZooKeeper 3.5.9, PrepRequestProcessor, DataTree, DataNode and WatchManager.
"""

import base64
import hashlib
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from klamm.zookeeper import errors, messages
from klamm.zookeeper.errors import ZooKeeperError, ZooKeeperErrorCode
from klamm.zookeeper.messages import (
    OPEN_ACL,
    READ_ACL,
    Acl,
    CreateMode,
    EventType,
    OpCode,
    Permission,
    Stat,
    WatcherType,
)

# The znodes that every ZooKeeper has. They can neither be created nor deleted.
CONFIG_PATH: Final = "/zookeeper/config"
RESERVED_PATHS: Final = ("/", "/zookeeper", "/zookeeper/quota", CONFIG_PATH)

# The owner that marks a container znode (EphemeralType.CONTAINER_EPHEMERAL_OWNER); clients see 0.
CONTAINER_OWNER: Final = -(2**63)

# What PathUtils.validatePath forbids. Characters beyond the basic plane are surrogates to Java, which it forbids too.
_VALID_PATH: Final = re.compile(
    "/|(?:/(?!\\.\\.?(?:/|\\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]+)+"
)


# -- changes: what the transaction log holds ------------------------------------------------------------------------


class CreateTxn(NamedTuple):
    path: str
    data: bytes | None
    acl: tuple[Acl, ...]
    ephemeral_owner: int
    parent_cversion: int


class DeleteTxn(NamedTuple):
    path: str


class SetDataTxn(NamedTuple):
    path: str
    data: bytes | None
    version: int


class SetAclTxn(NamedTuple):
    path: str
    acl: tuple[Acl, ...]
    aversion: int


class CheckVersionTxn(NamedTuple):
    path: str


class CreateSessionTxn(NamedTuple):
    session_id: int
    timeout_ms: int
    password: bytes


class CloseSessionTxn(NamedTuple):
    """Ends a session and deletes the ephemeral znodes that it owns, all in one transaction.

    It does not name the znodes: they may not fit into one record of the log, and the tree knows them.
    """

    session_id: int


NodeTxn: TypeAlias = CreateTxn | DeleteTxn | SetDataTxn | SetAclTxn | CheckVersionTxn


class MultiTxn(NamedTuple):
    txns: tuple[NodeTxn, ...]


Txn: TypeAlias = NodeTxn | CreateSessionTxn | CloseSessionTxn | MultiTxn


class Identity(NamedTuple):
    """A proven identity of a connection: scheme `ip`, `digest` or `super`."""

    scheme: str
    id: str


WriteRequest: TypeAlias = (
    messages.Create | messages.Delete | messages.SetData | messages.SetAcl | messages.Check | messages.Multi
)


class Caller(NamedTuple):
    """The caller: its session and the identities that its connection has proven."""

    session_id: int
    identities: Sequence[Identity]


class MultiFailed(Exception):
    """A multi was refused. `codes` has one code for each operation, as ZooKeeper answers them: OK for those before
    the one that failed, its error, and RUNTIME_INCONSISTENCY for those after it."""

    def __init__(self, codes: list[int]) -> None:
        super().__init__(codes)
        self.codes = codes


class SessionState(NamedTuple):
    timeout_ms: int
    password: bytes


class Event(NamedTuple):
    """Something that happened to a znode: CREATED, DELETED or DATA_CHANGED."""

    type: EventType
    path: str


class Applied(NamedTuple):
    """The result of a change: for each operation the znode's stat after it (None for a delete, check or session), and
    the events for the watches, in order."""

    stats: list[Stat | None]
    events: list[Event]


# -- znodes ---------------------------------------------------------------------------------------------------------


class _Node:
    """A znode. `cversion` counts the creations of children; clients see creations and deletions together."""

    __slots__ = (
        "acl",
        "aversion",
        "children",
        "ctime",
        "cversion",
        "czxid",
        "data",
        "ephemeral_owner",
        "mtime",
        "mzxid",
        "pzxid",
        "version",
    )

    def __init__(
        self, data: bytes | None, acl: tuple[Acl, ...], zxid: int = 0, time_ms: int = 0, ephemeral_owner: int = 0
    ) -> None:
        self.data = data
        self.acl = acl
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = time_ms
        self.version = self.cversion = self.aversion = 0
        self.ephemeral_owner = ephemeral_owner
        self.children: dict[str, None] | None = None  # most znodes are leaves

    @property
    def child_count(self) -> int:
        return len(self.children) if self.children else 0

    def stat(self) -> Stat:
        child_count = len(self.children) if self.children else 0
        return Stat(
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            _int32(self.cversion * 2 - child_count),
            self.aversion,
            0 if self.ephemeral_owner == CONTAINER_OWNER else self.ephemeral_owner,
            len(self.data) if self.data else 0,
            child_count,
            self.pzxid,
        )


class _DraftNode:
    """A znode as it will be after the operations of a multi that are prepared so far."""

    __slots__ = ("acl", "aversion", "child_count", "cversion", "ephemeral_owner", "version")

    def __init__(
        self,
        acl: tuple[Acl, ...],
        ephemeral_owner: int,
        version: int = 0,
        cversion: int = 0,
        aversion: int = 0,
        child_count: int = 0,
    ) -> None:
        self.acl = acl
        self.ephemeral_owner = ephemeral_owner
        self.version = version
        self.cversion = cversion
        self.aversion = aversion
        self.child_count = child_count


class _Draft:
    """The tree as it will be after the operations of a multi that are prepared so far."""

    def __init__(self, nodes: dict[str, _Node]) -> None:
        self._nodes = nodes
        self._drafts: dict[str, _DraftNode | None] = {}

    def look(self, path: str) -> "_Node | _DraftNode | None":
        return self._drafts[path] if path in self._drafts else self._nodes.get(path)

    def note(self, change: NodeTxn) -> None:
        """Adds a prepared operation."""
        match change:
            case SetDataTxn():
                self._draft(change.path).version = change.version
            case CreateTxn():
                parent = self._draft(parent_of(change.path))
                parent.cversion = change.parent_cversion
                parent.child_count += 1
                self._drafts[change.path] = _DraftNode(change.acl, change.ephemeral_owner)
            case DeleteTxn():
                self._draft(parent_of(change.path)).child_count -= 1
                self._drafts[change.path] = None
            case SetAclTxn():
                draft = self._draft(change.path)
                draft.acl = change.acl
                draft.aversion = change.aversion

    def _draft(self, path: str) -> _DraftNode:
        draft = self._drafts.get(path)
        if draft is None:
            node = self._nodes[path]
            draft = _DraftNode(
                node.acl, node.ephemeral_owner, node.version, node.cversion, node.aversion, node.child_count
            )
            self._drafts[path] = draft
        return draft


_Look: TypeAlias = Callable[[str], _Node | _DraftNode | None]


def parent_of(path: str) -> str:
    """The parent's path."""
    return path[: path.rindex("/")] or "/"


def is_valid_path(path: str) -> bool:
    """Whether ZooKeeper allows this path for a znode (PathUtils.validatePath)."""
    return _VALID_PATH.fullmatch(path) is not None


def _int32(number: int) -> int:
    """Versions wrap around, as Java's integers do."""
    return (number + 2**31) % 2**32 - 2**31


# -- access control -------------------------------------------------------------------------------------------------


def permits(acl: Sequence[Acl], permissions: int, identities: Sequence[Identity]) -> bool:
    """Whether an ACL gives one of these identities at least one of the permissions."""
    if not acl or acl is OPEN_ACL or any(identity.scheme == "super" for identity in identities):
        return True
    for granted, scheme, name in acl:
        if granted & permissions:
            if (scheme, name) == _ANYONE:
                return True
            matches = _MATCHES.get(scheme)
            if matches and any(identity.scheme == scheme and matches(identity.id, name) for identity in identities):
                return True
    return False


def digest_identity(credentials: bytes) -> Identity:
    """The identity that `addauth digest user:password` proves: the user and base64(sha1(credentials))."""
    user = credentials.split(b":", 1)[0].decode("utf-8", "replace")
    digest = base64.b64encode(hashlib.sha1(credentials, usedforsecurity=False).digest()).decode("ascii")
    return Identity("digest", f"{user}:{digest}")


def _ip_address(text: str) -> int | None:
    """An IPv4 address as a number."""
    parts = text.split(".")
    if len(parts) != 4 or not all(_IS_BYTE.fullmatch(part) and int(part) < 256 for part in parts):
        return None
    return int.from_bytes(bytes(map(int, parts)), "big")


def _ip_network(text: str) -> tuple[int, int] | None:
    """The address in `1.2.3.4` or `1.2.3.4/24`, and the number of its low bits that are ignored."""
    address_text, slash, bits_text = text.partition("/")
    address = _ip_address(address_text)
    if address is None:
        return None
    if not slash:
        return address, 0
    if not _IS_BYTE.fullmatch(bits_text) or int(bits_text) > 32:
        return None
    return address, 32 - int(bits_text)


def _ip_matches(name: str, expression: str) -> bool:
    network = _ip_network(expression)
    address = _ip_address(name)
    return network is not None and address is not None and address >> network[1] == network[0] >> network[1]


_IS_BYTE: Final = re.compile("[0-9]{1,3}")
_ANYONE: Final = ("world", "anyone")
_MATCHES: Final[dict[str, Callable[[str, str], bool]]] = {"digest": str.__eq__, "ip": _ip_matches}
_IS_VALID_ID: Final[dict[str, Callable[[str], bool]]] = {
    "digest": lambda text: len(text.rstrip(":").split(":")) == 2,
    "ip": lambda text: _ip_network(text) is not None,
}


def _expand_acl(path: str, acl: Sequence[Acl], identities: Sequence[Identity]) -> tuple[Acl, ...]:
    """The ACL to store: without repetitions, and with `auth` replaced by the caller's authenticated identities.

    Raises InvalidACL if it is empty or an entry is not usable (PrepRequestProcessor.fixupACL).
    """
    if acl == OPEN_ACL:
        return OPEN_ACL  # one tuple for all, so that `permits` knows it at a glance
    expanded: dict[Acl, None] = {}
    for entry in acl:
        if (entry.scheme, entry.id) == _ANYONE:
            expanded[entry] = None
        elif entry.scheme == "auth":
            own = [identity for identity in identities if identity.scheme == "digest"]
            if not own:
                raise errors.InvalidACL(path, "auth without having authenticated")
            expanded.update(dict.fromkeys(Acl(entry.permissions, *identity) for identity in own))
        else:
            is_valid_id = _IS_VALID_ID.get(entry.scheme)
            if is_valid_id is None or not is_valid_id(entry.id):
                raise errors.InvalidACL(path, f"{entry.scheme}:{entry.id}")
            expanded[entry] = None
    if not expanded:
        raise errors.InvalidACL(path, "empty")
    return tuple(expanded)


# -- preparing: request in, transaction or error out ----------------------------------------------------------------


_SEQUENTIAL: Final = (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)
_EPHEMERAL: Final = (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)


def _existing(look: _Look, path: str) -> _Node | _DraftNode:
    node = look(path)
    if node is None:
        # ZooKeeper validates the path first. An existing znode has a valid path, so only this case is left.
        if not is_valid_path(path):
            raise errors.BadArguments(path)
        raise errors.NoNode(path)
    return node


def _next_version(current: int, expected: int, path: str) -> int:
    if expected not in (-1, current):
        raise errors.BadVersion(path, f"it is {current}, expected {expected}")
    return _int32(current + 1)


def _require(permissions: int, node: _Node | _DraftNode, caller: Caller, path: str) -> None:
    if node.acl is not OPEN_ACL and not permits(node.acl, permissions, caller.identities):
        raise errors.NoAuth(path)


def _prepare_create(request: messages.Create, look: _Look, caller: Caller) -> CreateTxn:
    path = request.path
    if not CreateMode.PERSISTENT <= request.flags <= CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL:
        raise errors.BadArguments(path, f"create flags {request.flags}")
    if request.op == OpCode.CREATE_TTL or request.flags >= CreateMode.PERSISTENT_WITH_TTL:
        raise errors.Unimplemented(path, "znodes with a time to live")
    if "/" not in path or "\0" in path:
        raise errors.BadArguments(path)
    acl = _expand_acl(path, request.acl, caller.identities)
    parent = look(parent_of(path))
    if parent is None:
        raise errors.NoNode(path)
    _require(Permission.CREATE, parent, caller, path)
    if request.flags in _SEQUENTIAL:
        path += f"{parent.cversion:010d}"
    if not is_valid_path(path):
        raise errors.BadArguments(path)
    if look(path) is not None:
        raise errors.NodeExists(path)
    if parent.ephemeral_owner not in (0, CONTAINER_OWNER):
        raise errors.NoChildrenForEphemerals(path)
    if request.op == OpCode.CREATE_CONTAINER:
        owner = CONTAINER_OWNER
    elif request.flags in _EPHEMERAL:
        owner = caller.session_id
    else:
        owner = 0
    return CreateTxn(path, request.data, acl, owner, _int32(parent.cversion + 1))


def _prepare_delete(request: messages.Delete, look: _Look, caller: Caller) -> DeleteTxn:
    path = request.path
    if "/" not in path or "\0" in path or path in RESERVED_PATHS:
        raise errors.BadArguments(path)
    parent = look(parent_of(path))
    node = look(path)
    if parent is None or node is None:
        raise errors.NoNode(path)
    _require(Permission.DELETE, parent, caller, path)
    _next_version(node.version, request.version, path)
    if node.child_count:
        raise errors.NotEmpty(path)
    return DeleteTxn(path)


def _prepare_set_data(request: messages.SetData, look: _Look, caller: Caller) -> SetDataTxn:
    path = request.path
    node = _existing(look, path)
    _require(Permission.WRITE, node, caller, path)
    return SetDataTxn(path, request.data, _next_version(node.version, request.version, path))


def _prepare_set_acl(request: messages.SetAcl, look: _Look, caller: Caller) -> SetAclTxn:
    path = request.path
    if not is_valid_path(path):
        raise errors.BadArguments(path)
    acl = _expand_acl(path, request.acl, caller.identities)
    node = _existing(look, path)
    _require(Permission.ADMIN, node, caller, path)
    return SetAclTxn(path, acl, _next_version(node.aversion, request.version, path))


def _prepare_check(request: messages.Check, look: _Look, caller: Caller) -> CheckVersionTxn:
    path = request.path
    node = _existing(look, path)
    _require(Permission.READ, node, caller, path)
    _next_version(node.version, request.version, path)
    return CheckVersionTxn(path)


_PREPARE: Final[dict[type, Callable[[Any, _Look, Caller], NodeTxn]]] = {
    messages.SetData: _prepare_set_data,
    messages.Create: _prepare_create,
    messages.Delete: _prepare_delete,
    messages.Check: _prepare_check,
    messages.SetAcl: _prepare_set_acl,
}


# -- the tree -------------------------------------------------------------------------------------------------------


class ZnodeTree:
    """All znodes and sessions at one zxid.

    `zxid` is that of the last transaction applied. `sessions` maps a session's id to its state, in order of creation.
    """

    def __init__(self) -> None:
        self.zxid = 0
        self.last_session_id = 0
        self.sessions: dict[int, SessionState] = {}
        self.data_size_bytes = 0  # of paths and data together, as `mntr` reports it
        self._nodes: dict[str, _Node] = {}
        self._ephemerals: dict[int, dict[str, None]] = {}
        self._containers: dict[str, None] = {}
        self._capture: Capture | None = None
        for path in RESERVED_PATHS:
            self._insert(path, _Node(b"", OPEN_ACL))
        config = self._nodes[CONFIG_PATH]
        config.acl = READ_ACL
        config.aversion = -1

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def ephemeral_count(self) -> int:
        return sum(map(len, self._ephemerals.values()))

    # -- writes

    def prepare(self, request: WriteRequest, caller: Caller) -> Txn:
        """Checks a write. Raises the ZooKeeperError for the client, or MultiFailed for a multi."""
        if isinstance(request, messages.Multi):
            return self._prepare_multi(request, caller)
        return _PREPARE[type(request)](request, self._nodes.get, caller)

    def _prepare_multi(self, request: messages.Multi, caller: Caller) -> MultiTxn:
        draft = _Draft(self._nodes)
        txns: list[NodeTxn] = []
        for index, operation in enumerate(request.operations):
            try:
                txn = _PREPARE[type(operation)](operation, draft.look, caller)
            except ZooKeeperError as error:
                codes: list[int] = [ZooKeeperErrorCode.OK] * index
                codes.append(error.code)
                codes += [ZooKeeperErrorCode.RUNTIME_INCONSISTENCY] * (len(request.operations) - len(codes))
                raise MultiFailed(codes) from error
            draft.note(txn)
            txns.append(txn)
        return MultiTxn(tuple(txns))

    def prepare_delete_containers(self) -> list[DeleteTxn]:
        """The removal of the container znodes that have lost all their children (ContainerManager)."""
        empty = []
        for path in self._containers:
            node = self._nodes[path]
            if not node.children and node.cversion > 0:
                empty.append(DeleteTxn(path))
        return empty

    def apply(self, txn: Txn, zxid: int, time_ms: int) -> Applied:
        """Applies a transaction that was prepared against this tree."""
        if zxid != self.zxid + 1:
            raise ValueError(f"transaction {zxid} cannot follow {self.zxid}")
        self.zxid = zxid
        events: list[Event] = []
        changes = txn.txns if isinstance(txn, MultiTxn) else (txn,)
        return Applied([_APPLY[type(change)](self, change, zxid, time_ms, events) for change in changes], events)

    def _apply_create(self, txn: CreateTxn, zxid: int, time_ms: int, events: list[Event]) -> Stat:
        parent_path = parent_of(txn.path)
        parent = self._nodes[parent_path]
        self._about_to_change(parent_path, parent)
        parent.cversion = txn.parent_cversion
        parent.pzxid = zxid
        node = _Node(txn.data, txn.acl, zxid, time_ms, txn.ephemeral_owner)
        self._insert(txn.path, node)
        events.append(Event(EventType.NODE_CREATED, txn.path))
        return node.stat()

    def _apply_delete(self, txn: DeleteTxn, zxid: int, time_ms: int, events: list[Event]) -> None:
        self._delete(txn.path, zxid, events)

    def _apply_set_data(self, txn: SetDataTxn, zxid: int, time_ms: int, events: list[Event]) -> Stat:
        path, data, version = txn
        node = self._nodes[path]
        self._about_to_change(path, node)
        self.data_size_bytes += len(data or b"") - len(node.data or b"")
        node.data = data
        node.version = version
        node.mzxid = zxid
        node.mtime = time_ms
        events.append(Event(EventType.NODE_DATA_CHANGED, path))
        return node.stat()

    def _apply_set_acl(self, txn: SetAclTxn, zxid: int, time_ms: int, events: list[Event]) -> Stat:
        node = self._nodes[txn.path]
        self._about_to_change(txn.path, node)
        node.acl = txn.acl
        node.aversion = txn.aversion
        return node.stat()

    def _apply_check(self, txn: CheckVersionTxn, zxid: int, time_ms: int, events: list[Event]) -> None:
        pass

    def _apply_create_session(self, txn: CreateSessionTxn, zxid: int, time_ms: int, events: list[Event]) -> None:
        self.sessions[txn.session_id] = SessionState(txn.timeout_ms, txn.password)
        self.last_session_id = max(self.last_session_id, txn.session_id)

    def _apply_close_session(self, txn: CloseSessionTxn, zxid: int, time_ms: int, events: list[Event]) -> None:
        del self.sessions[txn.session_id]
        for path in list(self._ephemerals.get(txn.session_id, ())):
            self._delete(path, zxid, events)

    def _insert(self, path: str, node: _Node) -> None:
        self._nodes[path] = node
        self.data_size_bytes += len(path) + len(node.data or b"")
        if path != "/":
            parent_path, _, name = path.rpartition("/")
            parent = self._nodes[parent_path or "/"]
            if parent.children is None:
                parent.children = {}
            parent.children[name] = None
        if node.ephemeral_owner == CONTAINER_OWNER:
            self._containers[path] = None
        elif node.ephemeral_owner:
            self._ephemerals.setdefault(node.ephemeral_owner, {})[path] = None

    def _delete(self, path: str, zxid: int, events: list[Event]) -> None:
        node = self._nodes[path]
        parent_path, _, name = path.rpartition("/")
        parent_path = parent_path or "/"
        parent = self._nodes[parent_path]
        self._about_to_change(path, node)
        self._about_to_change(parent_path, parent)
        del self._nodes[path]
        assert parent.children is not None
        del parent.children[name]
        if not parent.children:
            parent.children = None
        parent.pzxid = zxid
        self.data_size_bytes -= len(path) + len(node.data or b"")
        if node.ephemeral_owner == CONTAINER_OWNER:
            del self._containers[path]
        elif node.ephemeral_owner:
            owned = self._ephemerals[node.ephemeral_owner]
            del owned[path]
            if not owned:
                del self._ephemerals[node.ephemeral_owner]
        events.append(Event(EventType.NODE_DELETED, path))

    # -- reads

    def stat(self, path: str) -> Stat:
        """Raises NoNode, or BadArguments."""
        if "\0" in path:
            raise errors.BadArguments(path)
        return self._node(path).stat()

    def find(self, path: str) -> Stat | None:
        """The stat, or None if there is no such znode."""
        node = self._nodes.get(path)
        return None if node is None else node.stat()

    def get_data(self, path: str, caller: Caller) -> tuple[bytes | None, Stat]:
        """Raises NoNode, NoAuth."""
        node = self._node(path)
        _require(Permission.READ, node, caller, path)
        return node.data, node.stat()

    def get_children(self, path: str, caller: Caller) -> tuple[list[str], Stat]:
        """The children's names, in order of creation, and the stat. Raises NoNode, NoAuth."""
        node = self._node(path)
        _require(Permission.READ, node, caller, path)
        return list(node.children or ()), node.stat()

    def get_acl(self, path: str, caller: Caller) -> tuple[tuple[Acl, ...], Stat]:
        """Raises NoNode, NoAuth. A caller that may read but not administer sees no digests of passwords."""
        node = self._node(path)
        _require(Permission.READ | Permission.ADMIN, node, caller, path)
        acl = node.acl
        if not permits(acl, Permission.ADMIN, caller.identities):
            acl = tuple(e._replace(id=e.id.split(":")[0] + ":x") if e.scheme == "digest" else e for e in acl)
        return acl, node.stat()

    def _node(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise errors.NoNode(path)
        return node

    # -- snapshots

    def capture(self) -> "Capture":
        """Begins to read the current tree out while transactions continue. One capture at a time."""
        assert self._capture is None
        self._capture = Capture(self.zxid, self.last_session_id, dict(self.sessions), dict(self._nodes))
        return self._capture

    def release_capture(self) -> None:
        """Ends the capture, complete or not."""
        self._capture = None

    def _about_to_change(self, path: str, node: _Node) -> None:
        if self._capture is not None:
            self._capture.about_to_change(path, node)

    @classmethod
    def restore(
        cls, zxid: int, last_session_id: int, sessions: dict[int, SessionState], images: "Iterable[NodeImage]"
    ) -> "ZnodeTree":
        """The tree that was captured. Raises ValueError when the images do not make a tree."""
        tree = cls()
        tree.zxid = zxid
        tree.last_session_id = last_session_id
        tree.sessions.update(sessions)
        tree._nodes.clear()
        tree.data_size_bytes = 0
        # Children of one parent come back in the order in which they were created.
        for image in sorted(images, key=lambda image: (image.path.count("/"), image.czxid, image.path)):
            node = _Node(image.data, image.acl, image.czxid, image.ctime, image.ephemeral_owner)
            node.mzxid, node.pzxid, node.mtime = image.mzxid, image.pzxid, image.mtime
            node.version, node.cversion, node.aversion = image.version, image.cversion, image.aversion
            try:
                tree._insert(image.path, node)
            except (KeyError, ValueError):
                raise ValueError(f"znode {image.path!r} has no parent") from None
        if missing := [path for path in RESERVED_PATHS if path not in tree._nodes]:
            raise ValueError(f"znode {missing[0]!r} is missing")
        return tree


_APPLY: Final[dict[type, Callable[[ZnodeTree, Any, int, int, list[Event]], Stat | None]]] = {
    SetDataTxn: ZnodeTree._apply_set_data,
    CreateTxn: ZnodeTree._apply_create,
    DeleteTxn: ZnodeTree._apply_delete,
    CheckVersionTxn: ZnodeTree._apply_check,
    SetAclTxn: ZnodeTree._apply_set_acl,
    CreateSessionTxn: ZnodeTree._apply_create_session,
    CloseSessionTxn: ZnodeTree._apply_close_session,
}


class NodeImage(NamedTuple):
    """One znode as a snapshot holds it."""

    path: str
    data: bytes | None
    acl: tuple[Acl, ...]
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int


_image_of: Final = operator.attrgetter(*NodeImage._fields[1:])


class Capture:
    """A tree as it was at `zxid`, handed out piece by piece while the tree moves on (copy on write).

    A znode that is about to change is copied first, ahead of its turn; the order of the pieces means nothing.
    """

    def __init__(
        self, zxid: int, last_session_id: int, sessions: dict[int, SessionState], nodes: dict[str, _Node]
    ) -> None:
        self.zxid = zxid
        self.last_session_id = last_session_id
        self.sessions = sessions
        self._remaining = nodes
        self._ready: list[NodeImage] = []

    def about_to_change(self, path: str, node: _Node) -> None:
        if self._remaining.get(path) is node:
            del self._remaining[path]
            self._ready.append(NodeImage(path, *_image_of(node)))

    def take(self, count: int) -> list[NodeImage]:
        """At least one more znode (about `count` of them), or none when all have been taken."""
        images, self._ready = self._ready, []
        while self._remaining and len(images) < count:
            path, node = self._remaining.popitem()
            images.append(NodeImage(path, *_image_of(node)))
        return images


# -- watches --------------------------------------------------------------------------------------------------------


W = TypeVar("W", bound=Hashable)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


class _WatchTable(Generic[W]):
    """Watches of one kind: who watches which path."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[W, None]] = {}
        self._by_watcher: dict[W, dict[str, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_path.values()))

    def add(self, path: str, watcher: W) -> None:
        self.by_path.setdefault(path, {})[watcher] = None
        self._by_watcher.setdefault(watcher, {})[path] = None

    def has(self, path: str, watcher: W) -> bool:
        return watcher in self.by_path.get(path, ())

    def discard(self, path: str, watcher: W) -> None:
        if self.has(path, watcher):
            self._drop(self.by_path, path, watcher)
            self._drop(self._by_watcher, watcher, path)

    def take(self, path: str) -> dict[W, None]:
        """Ends all watches of a path and returns the watchers."""
        watchers = self.by_path.pop(path, {})
        for watcher in watchers:
            self._drop(self._by_watcher, watcher, path)
        return watchers

    def forget(self, watcher: W) -> None:
        for path in self._by_watcher.pop(watcher, ()):
            self._drop(self.by_path, path, watcher)

    @staticmethod
    def _drop(table: dict[K, dict[V, None]], key: K, value: V) -> None:
        entries = table[key]
        del entries[value]
        if not entries:
            del table[key]


class Watches(Generic[W]):
    """The one-shot watches of all watchers. Data watches (set by getData and exists) and child watches."""

    def __init__(self) -> None:
        self._data: _WatchTable[W] = _WatchTable()
        self._children: _WatchTable[W] = _WatchTable()

    def __len__(self) -> int:
        return len(self._data) + len(self._children)

    def add_data(self, path: str, watcher: W) -> None:
        """Fires once, when the znode is created, changed or deleted."""
        self._data.add(path, watcher)

    def add_children(self, path: str, watcher: W) -> None:
        """Fires once, when a child is created or deleted, or the znode itself is deleted."""
        self._children.add(path, watcher)

    def forget(self, watcher: W) -> None:
        """Ends all watches of a watcher."""
        self._data.forget(watcher)
        self._children.forget(watcher)

    def has(self, path: str, kind: WatcherType, watcher: W) -> bool:
        return any(table.has(path, watcher) for table in self._tables(kind))

    def remove(self, path: str, kind: WatcherType, watcher: W) -> bool:
        """Ends watches; returns whether there was one."""
        found = self.has(path, kind, watcher)
        for table in self._tables(kind):
            table.discard(path, watcher)
        return found

    def _tables(self, kind: WatcherType) -> list[_WatchTable[W]]:
        return {
            WatcherType.DATA: [self._data],
            WatcherType.CHILDREN: [self._children],
            WatcherType.ANY: [self._data, self._children],
        }[kind]

    def fire(self, events: Iterable[Event]) -> list[tuple[W, Event]]:
        """Whom to tell what, in order. A watcher that watches both data and children of a znode hears of its deletion
        once."""
        fired: list[tuple[W, Event]] = []
        if not self._data.by_path and not self._children.by_path:
            return fired
        for event in events:
            watchers = self._data.take(event.path) if event.path in self._data.by_path else {}
            if self._children.by_path:
                if event.type == EventType.NODE_DELETED:
                    watchers |= self._children.take(event.path)
                fired += [(watcher, event) for watcher in watchers]
                if event.type != EventType.NODE_DATA_CHANGED:
                    parent = parent_of(event.path)
                    children_changed = Event(EventType.NODE_CHILDREN_CHANGED, parent)
                    fired += [(watcher, children_changed) for watcher in self._children.take(parent)]
            elif watchers:
                fired += [(watcher, event) for watcher in watchers]
        return fired

    def set_again(self, request: messages.SetWatches, tree: ZnodeTree, watcher: W) -> list[Event]:
        """Sets the watches of a client that has reconnected; returns what it missed since the zxid that it saw last
        (DataTree.setWatches). A watch that has missed something is spent."""
        missed: list[Event] = []
        for path in request.data:
            stat = tree.find(path)
            if stat is None:
                missed.append(Event(EventType.NODE_DELETED, path))
            elif stat.mzxid > request.relative_zxid:
                missed.append(Event(EventType.NODE_DATA_CHANGED, path))
            else:
                self.add_data(path, watcher)
        for path in request.exists:
            if tree.find(path) is not None:
                missed.append(Event(EventType.NODE_CREATED, path))
            else:
                self.add_data(path, watcher)
        for path in request.children:
            stat = tree.find(path)
            if stat is None:
                missed.append(Event(EventType.NODE_DELETED, path))
            elif stat.pzxid > request.relative_zxid:
                missed.append(Event(EventType.NODE_CHILDREN_CHANGED, path))
            else:
                self.add_children(path, watcher)
        return missed
