"""The znode tree: the state of a ZooKeeper server, as a pure state machine. No IO, no clock, no chance.

A write happens in two steps. `ZnodeTree.prepare` checks a request against the tree and returns a change, or raises the
error that the client gets (`preparing.py`). `ZnodeTree.apply` applies a change under a zxid and a time. The transaction
log holds only changes, so a replay checks nothing again and always ends in the same tree. Sessions are part of the
tree's state, because they own ephemeral znodes.

What must stay true:
- `prepare` changes nothing. A change is applied right after it was prepared, before anything else is prepared.
- `apply` never fails on a change that was prepared against the same tree.
- A multi is prepared as a whole or not at all; its operations share one zxid.
- A request that may concern thousands of znodes is prepared and applied in steps. Between the steps of a preparation
  nothing is applied; between the steps of an application nothing is applied or read.
- The zxids given to `apply` grow by one.
- No order here comes from a `set`.

Source of the behaviour: ZooKeeper 3.5.9, PrepRequestProcessor, DataTree and DataNode.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from klamm.base.slices import Slices, Steps, in_one_go
from klamm.zookeeper import keeper_exceptions, messages
from klamm.zookeeper.keeper_exceptions import ZooKeeperError, ZooKeeperErrorCode
from klamm.zookeeper.messages import (
    OPEN_ACL,
    READ_ACL,
    Acl,
    EventType,
    Permission,
    Stat,
)
from klamm.zookeeper.server.access_control import Caller, permits
from klamm.zookeeper.server.nodes import CONFIG_PATH, CONTAINER_OWNER, RESERVED_PATHS, Node, parent_of
from klamm.zookeeper.server.preparing import PREPARE, Draft, require
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

WriteRequest: TypeAlias = (
    messages.Create | messages.Delete | messages.SetData | messages.SetAcl | messages.Check | messages.Multi
)


class MultiFailed(Exception):
    """A multi was refused. As in ZooKeeper, `codes` has a code for each operation: OK before the failed operation, its
    error, and RUNTIME_INCONSISTENCY after it."""

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


class ZnodeTree:
    """All znodes and sessions at one zxid.

    `zxid` belongs to the last applied transaction. `sessions` maps a session's id to its state, in order of creation.
    """

    def __init__(self) -> None:
        self.zxid = 0
        self.last_session_id = 0
        self.sessions: dict[int, SessionState] = {}
        self.data_size_bytes = 0  # of paths and data together, as `mntr` reports it
        self._nodes: dict[str, Node] = {}
        self._ephemerals: dict[int, dict[str, None]] = {}
        self._containers: dict[str, None] = {}
        self._capture: Capture | None = None
        for path in RESERVED_PATHS:
            self._insert(path, Node(b"", OPEN_ACL))
        config = self._nodes[CONFIG_PATH]
        config.acl = READ_ACL
        config.aversion = -1

    def __len__(self) -> int:
        return len(self._nodes)

    def child_count(self, path: str) -> int:
        """How many children a znode has; 0 if there is none."""
        node = self._nodes.get(path)
        return 0 if node is None else node.child_count

    @property
    def ephemeral_count(self) -> int:
        return sum(map(len, self._ephemerals.values()))

    # -- writes

    def prepare(self, request: WriteRequest, caller: Caller) -> Txn:
        """Checks a write. Raises the ZooKeeperError for the client, or MultiFailed for a multi."""
        if isinstance(request, messages.Multi):
            return in_one_go(self.prepare_multi(request, caller))
        return PREPARE[type(request)](request, self._nodes.get, caller)

    def prepare_multi(self, request: messages.Multi, caller: Caller) -> Steps[MultiTxn]:
        """Like `prepare`, in steps."""
        draft = Draft(self._nodes)
        slices = Slices()
        txns: list[NodeTxn] = []
        for index, operation in enumerate(request.operations):
            try:
                txn = PREPARE[type(operation)](operation, draft.look, caller)
            except ZooKeeperError as error:
                codes: list[int] = [ZooKeeperErrorCode.OK] * index
                codes.append(error.code)
                codes += [ZooKeeperErrorCode.RUNTIME_INCONSISTENCY] * (len(request.operations) - len(codes))
                raise MultiFailed(codes) from error
            draft.note(txn)
            txns.append(txn)
            if slices.spend(len(txn.acl) if isinstance(txn, CreateTxn) else 1):
                yield
        return MultiTxn(tuple(txns))

    def containers(self) -> list[str]:
        """The paths of all container znodes."""
        return list(self._containers)

    def prepare_delete_container(self, path: str) -> DeleteTxn | None:
        """The deletion of a container znode that has lost all its children, else None (ContainerManager)."""
        node = self._nodes.get(path)
        is_empty = path in self._containers and node is not None and not node.children and node.cversion > 0
        return DeleteTxn(path) if is_empty else None

    def apply(self, txn: Txn, zxid: int, time_ms: int) -> Applied:
        """Applies a transaction that was prepared against this tree."""
        return in_one_go(self.apply_steps(txn, zxid, time_ms))

    def apply_steps(self, txn: Txn, zxid: int, time_ms: int) -> Steps[Applied]:
        """Like `apply`, in steps."""
        if zxid != self.zxid + 1:
            raise ValueError(f"transaction {zxid} cannot follow {self.zxid}")
        self.zxid = zxid
        events: list[Event] = []
        if isinstance(txn, CloseSessionTxn):
            yield from self._apply_close_session(txn, zxid, events)
            return Applied([None], events)
        stats: list[Stat | None] = []
        slices = Slices()
        for change in txn.txns if isinstance(txn, MultiTxn) else (txn,):
            stats.append(_APPLY[type(change)](self, change, zxid, time_ms, events))
            if slices.spend():
                yield
        return Applied(stats, events)

    def _apply_create(self, txn: CreateTxn, zxid: int, time_ms: int, events: list[Event]) -> Stat:
        parent_path = parent_of(txn.path)
        parent = self._nodes[parent_path]
        self._about_to_change(parent_path, parent)
        parent.cversion = txn.parent_cversion
        parent.pzxid = zxid
        node = Node(txn.data, txn.acl, zxid, time_ms, txn.ephemeral_owner)
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

    def _apply_close_session(self, txn: CloseSessionTxn, zxid: int, events: list[Event]) -> Steps[None]:
        del self.sessions[txn.session_id]
        slices = Slices()
        for path in list(self._ephemerals.get(txn.session_id, ())):
            self._delete(path, zxid, events)
            if slices.spend():
                yield

    def _insert(self, path: str, node: Node) -> None:
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
            raise keeper_exceptions.BadArguments(path)
        return self._node(path).stat()

    def find(self, path: str) -> Stat | None:
        """The stat, or None if there is no such znode."""
        node = self._nodes.get(path)
        return None if node is None else node.stat()

    def get_data(self, path: str, caller: Caller) -> tuple[bytes | None, Stat]:
        """Raises NoNode, NoAuth."""
        node = self._node(path)
        require(Permission.READ, node, caller, path)
        return node.data, node.stat()

    def get_children(self, path: str, caller: Caller) -> tuple[list[str], Stat]:
        """The children's names, in order of creation, and the stat. Raises NoNode, NoAuth."""
        node = self._node(path)
        require(Permission.READ, node, caller, path)
        return list(node.children or ()), node.stat()

    def get_acl(self, path: str, caller: Caller) -> tuple[tuple[Acl, ...], Stat]:
        """Raises NoNode, NoAuth. A caller that may read but not administer sees no digests of passwords."""
        node = self._node(path)
        require(Permission.READ | Permission.ADMIN, node, caller, path)
        acl = node.acl
        if not permits(acl, Permission.ADMIN, caller.identities):
            acl = tuple(e._replace(id=e.id.split(":")[0] + ":x") if e.scheme == "digest" else e for e in acl)
        return acl, node.stat()

    def _node(self, path: str) -> Node:
        node = self._nodes.get(path)
        if node is None:
            raise keeper_exceptions.NoNode(path)
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

    def _about_to_change(self, path: str, node: Node) -> None:
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
            node = Node(image.data, image.acl, image.czxid, image.ctime, image.ephemeral_owner)
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

    A znode is copied before it changes. The order of the pieces means nothing.
    """

    def __init__(
        self, zxid: int, last_session_id: int, sessions: dict[int, SessionState], nodes: dict[str, Node]
    ) -> None:
        self.zxid = zxid
        self.last_session_id = last_session_id
        self.sessions = sessions
        self._remaining = nodes
        self._ready: list[NodeImage] = []

    def about_to_change(self, path: str, node: Node) -> None:
        if self._remaining.get(path) is node:
            del self._remaining[path]
            self._ready.append(NodeImage(path, *_image_of(node)))

    def take(self, count: int) -> list[NodeImage]:
        """About `count` more znodes; an empty list once all have been taken."""
        images, self._ready = self._ready, []
        while self._remaining and len(images) < count:
            path, node = self._remaining.popitem()
            images.append(NodeImage(path, *_image_of(node)))
        return images
