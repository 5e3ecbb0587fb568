"""Checks a write against the znodes: returns the change, or raises the error for the client. Pure.

What must stay true:
- The check changes nothing, and a returned change can be applied to the same znodes.
- An operation of a multi is checked against what the operations before it will have done (`Draft`).

Source of the behaviour: ZooKeeper 3.5.9, PrepRequestProcessor.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from klamm.zookeeper import keeper_exceptions, messages
from klamm.zookeeper.messages import OPEN_ACL, Acl, CreateMode, OpCode, Permission
from klamm.zookeeper.server.access_control import Caller, expand_acl, permits
from klamm.zookeeper.server.nodes import CONTAINER_OWNER, RESERVED_PATHS, Node, int32, is_valid_path, parent_of
from klamm.zookeeper.server.transactions import CheckVersionTxn, CreateTxn, DeleteTxn, NodeTxn, SetAclTxn, SetDataTxn


class DraftNode:
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


class Draft:
    """The tree as it will be after the operations of a multi that are prepared so far."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self._nodes = nodes
        self._drafts: dict[str, DraftNode | None] = {}

    def look(self, path: str) -> "Node | DraftNode | None":
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
                self._drafts[change.path] = DraftNode(change.acl, change.ephemeral_owner)
            case DeleteTxn():
                self._draft(parent_of(change.path)).child_count -= 1
                self._drafts[change.path] = None
            case SetAclTxn():
                draft = self._draft(change.path)
                draft.acl = change.acl
                draft.aversion = change.aversion

    def _draft(self, path: str) -> DraftNode:
        draft = self._drafts.get(path)
        if draft is None:
            node = self._nodes[path]
            draft = DraftNode(
                node.acl, node.ephemeral_owner, node.version, node.cversion, node.aversion, node.child_count
            )
            self._drafts[path] = draft
        return draft


Look: TypeAlias = Callable[[str], Node | DraftNode | None]

_SEQUENTIAL: Final = (CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL)
_EPHEMERAL: Final = (CreateMode.EPHEMERAL, CreateMode.EPHEMERAL_SEQUENTIAL)


def _existing(look: Look, path: str) -> Node | DraftNode:
    node = look(path)
    if node is None:
        # ZooKeeper validates the path first. An existing znode has a valid path, so only this case is left.
        if not is_valid_path(path):
            raise keeper_exceptions.BadArguments(path)
        raise keeper_exceptions.NoNode(path)
    return node


def _next_version(current: int, expected: int, path: str) -> int:
    if expected not in (-1, current):
        raise keeper_exceptions.BadVersion(path, f"it is {current}, expected {expected}")
    return int32(current + 1)


def require(permissions: int, node: Node | DraftNode, caller: Caller, path: str) -> None:
    """Raises NoAuth unless the caller has one of these permissions."""
    if node.acl is not OPEN_ACL and not permits(node.acl, permissions, caller.identities):
        raise keeper_exceptions.NoAuth(path)


def _prepare_create(request: messages.Create, look: Look, caller: Caller) -> CreateTxn:
    path = request.path
    if not CreateMode.PERSISTENT <= request.flags <= CreateMode.PERSISTENT_SEQUENTIAL_WITH_TTL:
        raise keeper_exceptions.BadArguments(path, f"create flags {request.flags}")
    if request.op == OpCode.CREATE_TTL or request.flags >= CreateMode.PERSISTENT_WITH_TTL:
        raise keeper_exceptions.Unimplemented(path, "znodes with a time to live")
    if "/" not in path or "\0" in path:
        raise keeper_exceptions.BadArguments(path)
    acl = expand_acl(path, request.acl, caller.identities)
    parent = look(parent_of(path))
    if parent is None:
        raise keeper_exceptions.NoNode(path)
    require(Permission.CREATE, parent, caller, path)
    if request.flags in _SEQUENTIAL:
        path += f"{parent.cversion:010d}"
    if not is_valid_path(path):
        raise keeper_exceptions.BadArguments(path)
    if look(path) is not None:
        raise keeper_exceptions.NodeExists(path)
    if parent.ephemeral_owner not in (0, CONTAINER_OWNER):
        raise keeper_exceptions.NoChildrenForEphemerals(path)
    if request.op == OpCode.CREATE_CONTAINER:
        owner = CONTAINER_OWNER
    elif request.flags in _EPHEMERAL:
        owner = caller.session_id
    else:
        owner = 0
    return CreateTxn(path, request.data, acl, owner, int32(parent.cversion + 1))


def _prepare_delete(request: messages.Delete, look: Look, caller: Caller) -> DeleteTxn:
    path = request.path
    if "/" not in path or "\0" in path or path in RESERVED_PATHS:
        raise keeper_exceptions.BadArguments(path)
    parent = look(parent_of(path))
    node = look(path)
    if parent is None or node is None:
        raise keeper_exceptions.NoNode(path)
    require(Permission.DELETE, parent, caller, path)
    _next_version(node.version, request.version, path)
    if node.child_count:
        raise keeper_exceptions.NotEmpty(path)
    return DeleteTxn(path)


def _prepare_set_data(request: messages.SetData, look: Look, caller: Caller) -> SetDataTxn:
    path = request.path
    node = _existing(look, path)
    require(Permission.WRITE, node, caller, path)
    return SetDataTxn(path, request.data, _next_version(node.version, request.version, path))


def _prepare_set_acl(request: messages.SetAcl, look: Look, caller: Caller) -> SetAclTxn:
    path = request.path
    if not is_valid_path(path):
        raise keeper_exceptions.BadArguments(path)
    acl = expand_acl(path, request.acl, caller.identities)
    node = _existing(look, path)
    require(Permission.ADMIN, node, caller, path)
    return SetAclTxn(path, acl, _next_version(node.aversion, request.version, path))


def _prepare_check(request: messages.Check, look: Look, caller: Caller) -> CheckVersionTxn:
    path = request.path
    node = _existing(look, path)
    require(Permission.READ, node, caller, path)
    _next_version(node.version, request.version, path)
    return CheckVersionTxn(path)


# How each kind of write is checked.
PREPARE: Final[dict[type, Callable[[Any, Look, Caller], NodeTxn]]] = {
    messages.SetData: _prepare_set_data,
    messages.Create: _prepare_create,
    messages.Delete: _prepare_delete,
    messages.Check: _prepare_check,
    messages.SetAcl: _prepare_set_acl,
}
