"""What each request of an established session does, and the reply to it."""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from klamm.zookeeper import errors, jute
from klamm.zookeeper.errors import ZooKeeperError
from klamm.zookeeper.jute import CreateMode, KeeperState, MultiResult, OpCode, Stat, WatcherEvent, WatcherType
from klamm.zookeeper.server.connection import ClientConnection
from klamm.zookeeper.server.tree import (
    Applied,
    Caller,
    CreateTxn,
    Event,
    MultiFailed,
    MultiTxn,
    NodeTxn,
    Txn,
    Watches,
    ZnodeTree,
    digest_identity,
)

# Of one connection. Each use of the scheme `auth` in an ACL is replaced by all of them.
MAX_IDENTITIES_BYTES: Final = 4096


def encode_event(event: Event, zxid: int = -1) -> bytes:
    """The frame that tells a client of a watch that fired. This server names no zxid, as ZooKeeper before 3.9: clients
    in C take one for seen, and then lose the other watches that the same transaction has fired."""
    return jute.encode_event(WatcherEvent(event.type, KeeperState.SYNC_CONNECTED, event.path), zxid)


class Requests:
    """Executes requests against the tree.

    `commit(txn)` applies a prepared transaction, makes its watches fire and has it logged; `send(connection, payload)`
    sends whole frames.
    """

    def __init__(
        self,
        tree: ZnodeTree,
        watches: Watches[ClientConnection],
        commit: Callable[[Txn], Applied],
        send: Callable[[ClientConnection, bytes], None],
    ) -> None:
        self._tree = tree
        self._watches = watches
        self._commit = commit
        self._send = send

    def execute(self, connection: ClientConnection, caller: Caller, xid: int, request: Any) -> None:
        """Executes a request (any that `jute.decode_request` gives) and sends its reply."""
        try:
            response = _EXECUTE[type(request)](self, connection, caller, request)
        except ZooKeeperError as error:
            payload = jute.encode_error(xid, self._tree.zxid, error.code)
        else:
            payload = jute.encode_response(xid, self._tree.zxid, response)
        self._send(connection, payload)

    # -- writes

    def _create(self, connection: ClientConnection, caller: Caller, request: jute.Create) -> jute.CreateResponse:
        txn = self._tree.prepare(request, caller)
        assert isinstance(txn, CreateTxn)
        stat = self._commit(txn).stats[0]
        return jute.CreateResponse(txn.path, None if request.op == OpCode.CREATE else stat)

    def _set(
        self, connection: ClientConnection, caller: Caller, request: jute.SetData | jute.SetAcl
    ) -> jute.StatResponse:
        stat = self._commit(self._tree.prepare(request, caller)).stats[0]
        assert stat is not None
        return jute.StatResponse(stat)

    def _delete(self, connection: ClientConnection, caller: Caller, request: jute.Delete) -> None:
        self._commit(self._tree.prepare(request, caller))

    def _multi(self, connection: ClientConnection, caller: Caller, request: jute.Multi) -> jute.MultiResponse:
        request = jute.Multi(tuple([_by_flags(operation) for operation in request.operations]))
        try:
            txn = self._tree.prepare(request, caller)
        except MultiFailed as failed:
            return jute.MultiResponse(tuple([MultiResult(OpCode.ERROR, code) for code in failed.codes]))
        assert isinstance(txn, MultiTxn)
        stats = self._commit(txn).stats
        results = [
            _multi_result(operation, change, stat)
            for operation, change, stat in zip(request.operations, txn.txns, stats, strict=True)
        ]
        return jute.MultiResponse(tuple(results))

    # -- reads

    def _exists(self, connection: ClientConnection, caller: Caller, request: jute.Exists) -> jute.StatResponse:
        if request.watch:  # also when the znode does not exist: then for its creation
            self._watches.add_data(request.path, connection)
        return jute.StatResponse(self._tree.stat(request.path))

    def _get_data(self, connection: ClientConnection, caller: Caller, request: jute.GetData) -> jute.GetDataResponse:
        response = jute.GetDataResponse(*self._tree.get_data(request.path, caller))
        if request.watch:
            self._watches.add_data(request.path, connection)
        return response

    def _get_children(
        self, connection: ClientConnection, caller: Caller, request: jute.GetChildren
    ) -> jute.GetChildrenResponse:
        children, stat = self._tree.get_children(request.path, caller)
        if request.watch:
            self._watches.add_children(request.path, connection)
        return jute.GetChildrenResponse(children, None if request.op == OpCode.GET_CHILDREN else stat)

    def _get_acl(self, connection: ClientConnection, caller: Caller, request: jute.GetAcl) -> jute.GetAclResponse:
        return jute.GetAclResponse(*self._tree.get_acl(request.path, caller))

    def _sync(self, connection: ClientConnection, caller: Caller, request: jute.Sync) -> jute.SyncResponse:
        return jute.SyncResponse(request.path)

    # -- watches

    def _set_watches(self, connection: ClientConnection, caller: Caller, request: jute.SetWatches) -> None:
        for event in self._watches.set_again(request, self._tree, connection):
            self._send(connection, encode_event(event))

    def _check_watches(self, connection: ClientConnection, caller: Caller, request: jute.CheckWatches) -> None:
        if not self._watches.has(request.path, _watcher_type(request), connection):
            raise errors.NoWatcher(request.path)

    def _remove_watches(self, connection: ClientConnection, caller: Caller, request: jute.RemoveWatches) -> None:
        if not self._watches.remove(request.path, _watcher_type(request), connection):
            raise errors.NoWatcher(request.path)

    # -- the connection

    def _auth(self, connection: ClientConnection, caller: Caller, request: jute.Auth) -> None:
        if request.scheme == "digest":
            identity = digest_identity(request.auth or b"")
            if identity in connection.identities:
                return
            if sum(len(known.id) for known in [*connection.identities, identity]) > MAX_IDENTITIES_BYTES:
                connection.refuse_requests()
                raise errors.AuthFailed("", "more identities than a connection may have")
            connection.identities.append(identity)
        elif request.scheme != "ip":  # the address is known without asking
            connection.refuse_requests()
            raise errors.AuthFailed("", f"scheme {request.scheme}")

    def _nothing(self, connection: ClientConnection, caller: Caller, request: jute.Ping | jute.CloseSession) -> None:
        """The answer is the header alone."""

    def _unknown(
        self, connection: ClientConnection, caller: Caller, request: jute.UnknownRequest | jute.Check
    ) -> jute.Response:
        raise errors.Unimplemented("", f"operation {request.op}")


def _by_flags(operation: jute.MultiOperation) -> jute.MultiOperation:
    """Inside a multi ZooKeeper tells a container by the flags alone (Op.Create)."""
    if isinstance(operation, jute.Create) and operation.flags == CreateMode.CONTAINER:
        return dataclasses.replace(operation, op=OpCode.CREATE_CONTAINER)
    return operation


def _multi_result(operation: jute.MultiOperation, change: NodeTxn, stat: Stat | None) -> MultiResult:
    if not isinstance(change, CreateTxn):
        return MultiResult(operation.op, 0, None, stat)
    if operation.op == OpCode.CREATE:
        return MultiResult(OpCode.CREATE, path=change.path)
    return MultiResult(OpCode.CREATE2, path=change.path, stat=stat)  # whichever create it was that answers a stat


def _watcher_type(request: jute.CheckWatches | jute.RemoveWatches) -> WatcherType:
    try:
        return WatcherType(request.watcher_type)
    except ValueError:
        raise errors.MarshallingError(request.path, f"watcher type {request.watcher_type}") from None


_EXECUTE: Final[dict[type, Callable[[Requests, ClientConnection, Caller, Any], jute.Response]]] = {
    jute.Create: Requests._create,
    jute.Delete: Requests._delete,
    jute.SetData: Requests._set,
    jute.SetAcl: Requests._set,
    jute.Multi: Requests._multi,
    jute.Exists: Requests._exists,
    jute.GetData: Requests._get_data,
    jute.GetChildren: Requests._get_children,
    jute.GetAcl: Requests._get_acl,
    jute.Sync: Requests._sync,
    jute.SetWatches: Requests._set_watches,
    jute.CheckWatches: Requests._check_watches,
    jute.RemoveWatches: Requests._remove_watches,
    jute.Auth: Requests._auth,
    jute.Ping: Requests._nothing,
    jute.CloseSession: Requests._nothing,
    jute.Check: Requests._unknown,
    jute.UnknownRequest: Requests._unknown,
}
