"""What each request of an established session does, and the reply to it."""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

from klamm.base.slices import Slices, Steps, in_one_go, mapped
from klamm.zookeeper import jute, keeper_exceptions, messages
from klamm.zookeeper.keeper_exceptions import ZooKeeperError
from klamm.zookeeper.messages import CreateMode, KeeperState, MultiResult, OpCode, Stat, WatcherEvent, WatcherType
from klamm.zookeeper.server.access_control import Caller, digest_identity
from klamm.zookeeper.server.cnxn import ServerCnxn
from klamm.zookeeper.server.long_work import LongSteps, OpenTo, while_open_to
from klamm.zookeeper.server.transactions import CreateTxn, NodeTxn, Txn
from klamm.zookeeper.server.tree import Applied, Event, MultiFailed, ZnodeTree
from klamm.zookeeper.server.watches import Watches

# The identities of one connection. Each use of the scheme `auth` in an ACL is replaced by all of them.
MAX_IDENTITIES_BYTES: Final = 4096


def encode_event(event: Event, zxid: int = -1) -> bytes:
    """The frame that tells a client of a watch that fired. Like ZooKeeper before 3.9, this server sends no zxid:
    clients in C would count it as seen, and lose the other watches that the same transaction has fired."""
    return jute.encode_event(WatcherEvent(event.type, KeeperState.SYNC_CONNECTED, event.path), zxid)


class Requests:
    """Executes requests against the tree.

    `commit(txn)` returns the steps that log a prepared transaction, apply it and fire its watches;
    `send(connection, payload)` sends whole frames.
    """

    def __init__(
        self,
        tree: ZnodeTree,
        watches: Watches[ServerCnxn],
        commit: Callable[[Txn], LongSteps[Applied]],
        send: Callable[[ServerCnxn, bytes], None],
    ) -> None:
        self._tree = tree
        self._watches = watches
        self._commit_steps = commit
        self._send = send

    def execute(self, connection: ServerCnxn, caller: Caller, xid: int, request: Any) -> None:
        """Executes a request (any that `jute.decode_request` gives) and sends its reply."""
        try:
            response = _EXECUTE[type(request)](self, connection, caller, request)
        except ZooKeeperError as error:
            payload = jute.encode_error(xid, self._tree.zxid, error.code)
        else:
            payload = jute.encode_response(xid, self._tree.zxid, response)
        self._send(connection, payload)

    def steps(self, connection: ServerCnxn, caller: Caller, xid: int, request: Any) -> LongSteps[None]:
        """Like `execute`, in steps, for a request that may concern thousands of znodes or watches."""
        response: messages.Response = None
        try:
            if isinstance(request, messages.Multi):
                response = yield from self._multi_steps(caller, request)
            elif isinstance(request, messages.SetWatches):
                yield from while_open_to(OpenTo.READS, self._set_watches_steps(connection, request))
            else:
                response = _EXECUTE[type(request)](self, connection, caller, request)
        except ZooKeeperError as error:
            payload = jute.encode_error(xid, self._tree.zxid, error.code)
        else:
            # No later event may leave before the reply.
            encoding = jute.encode_response_steps(xid, self._tree.zxid, response)
            payload = yield from while_open_to(OpenTo.READS, encoding)
        self._send(connection, payload)

    # -- writes

    def _create(self, connection: ServerCnxn, caller: Caller, request: messages.Create) -> messages.CreateResponse:
        txn = self._tree.prepare(request, caller)
        assert isinstance(txn, CreateTxn)
        stat = self._commit(txn).stats[0]
        return messages.CreateResponse(txn.path, None if request.op == OpCode.CREATE else stat)

    def _set(
        self, connection: ServerCnxn, caller: Caller, request: messages.SetData | messages.SetAcl
    ) -> messages.StatResponse:
        stat = self._commit(self._tree.prepare(request, caller)).stats[0]
        assert stat is not None
        return messages.StatResponse(stat)

    def _delete(self, connection: ServerCnxn, caller: Caller, request: messages.Delete) -> None:
        self._commit(self._tree.prepare(request, caller))

    def _commit(self, txn: Txn) -> Applied:
        return in_one_go(self._commit_steps(txn))

    def _multi(self, connection: ServerCnxn, caller: Caller, request: messages.Multi) -> messages.MultiResponse:
        return in_one_go(self._multi_steps(caller, request))

    def _multi_steps(self, caller: Caller, request: messages.Multi) -> LongSteps[messages.MultiResponse]:
        request = messages.Multi(tuple([_by_flags(operation) for operation in request.operations]))
        try:
            txn = yield from while_open_to(OpenTo.READS, self._tree.prepare_multi(request, caller))
        except MultiFailed as failed:
            making = mapped(lambda code: MultiResult(OpCode.ERROR, code), failed.codes)
        else:
            stats = (yield from self._commit_steps(txn)).stats
            done = zip(request.operations, txn.txns, stats, strict=True)
            making = mapped(lambda one: _multi_result(*one), done)
        return messages.MultiResponse(tuple((yield from while_open_to(OpenTo.READS, making))))

    # -- reads

    def _exists(self, connection: ServerCnxn, caller: Caller, request: messages.Exists) -> messages.StatResponse:
        if request.watch:  # an absent znode gets a watch for its creation
            self._watches.add_data(request.path, connection)
        return messages.StatResponse(self._tree.stat(request.path))

    def _get_data(self, connection: ServerCnxn, caller: Caller, request: messages.GetData) -> messages.GetDataResponse:
        response = messages.GetDataResponse(*self._tree.get_data(request.path, caller))
        if request.watch:
            self._watches.add_data(request.path, connection)
        return response

    def _get_children(
        self, connection: ServerCnxn, caller: Caller, request: messages.GetChildren
    ) -> messages.GetChildrenResponse:
        children, stat = self._tree.get_children(request.path, caller)
        if request.watch:
            self._watches.add_children(request.path, connection)
        return messages.GetChildrenResponse(children, None if request.op == OpCode.GET_CHILDREN else stat)

    def _get_acl(self, connection: ServerCnxn, caller: Caller, request: messages.GetAcl) -> messages.GetAclResponse:
        return messages.GetAclResponse(*self._tree.get_acl(request.path, caller))

    def _sync(self, connection: ServerCnxn, caller: Caller, request: messages.Sync) -> messages.SyncResponse:
        return messages.SyncResponse(request.path)

    # -- watches

    def _set_watches(self, connection: ServerCnxn, caller: Caller, request: messages.SetWatches) -> None:
        in_one_go(self._set_watches_steps(connection, request))

    def _set_watches_steps(self, connection: ServerCnxn, request: messages.SetWatches) -> Steps[None]:
        slices = Slices()
        for event in (yield from self._watches.set_again(request, self._tree, connection)):
            self._send(connection, encode_event(event))
            if slices.spend():
                yield

    def _check_watches(self, connection: ServerCnxn, caller: Caller, request: messages.CheckWatches) -> None:
        if not self._watches.has(request.path, _watcher_type(request), connection):
            raise keeper_exceptions.NoWatcher(request.path)

    def _remove_watches(self, connection: ServerCnxn, caller: Caller, request: messages.RemoveWatches) -> None:
        if not self._watches.remove(request.path, _watcher_type(request), connection):
            raise keeper_exceptions.NoWatcher(request.path)

    # -- the connection

    def _auth(self, connection: ServerCnxn, caller: Caller, request: messages.Auth) -> None:
        if request.scheme == "digest":
            identity = digest_identity(request.auth or b"")
            if identity in connection.identities:
                return
            if sum(len(known.id) for known in [*connection.identities, identity]) > MAX_IDENTITIES_BYTES:
                connection.refuse_requests()
                raise keeper_exceptions.AuthFailed("", "more identities than a connection may have")
            connection.identities.append(identity)
        elif request.scheme != "ip":  # the address is known without asking
            connection.refuse_requests()
            raise keeper_exceptions.AuthFailed("", f"scheme {request.scheme}")

    def _nothing(self, connection: ServerCnxn, caller: Caller, request: messages.Ping | messages.CloseSession) -> None:
        """The reply is the header alone."""

    def _unknown(
        self, connection: ServerCnxn, caller: Caller, request: messages.UnknownRequest | messages.Check
    ) -> messages.Response:
        raise keeper_exceptions.Unimplemented("", f"operation {request.op}")


def _by_flags(operation: messages.MultiOperation) -> messages.MultiOperation:
    """Inside a multi, ZooKeeper recognises a container by the flags alone (Op.Create)."""
    if isinstance(operation, messages.Create) and operation.flags == CreateMode.CONTAINER:
        return dataclasses.replace(operation, op=OpCode.CREATE_CONTAINER)
    return operation


def _multi_result(operation: messages.MultiOperation, change: NodeTxn, stat: Stat | None) -> MultiResult:
    if not isinstance(change, CreateTxn):
        return MultiResult(operation.op, 0, None, stat)
    if operation.op == OpCode.CREATE:
        return MultiResult(OpCode.CREATE, path=change.path)
    return MultiResult(OpCode.CREATE2, path=change.path, stat=stat)  # whichever create it was that answers a stat


def _watcher_type(request: messages.CheckWatches | messages.RemoveWatches) -> WatcherType:
    try:
        return WatcherType(request.watcher_type)
    except ValueError:
        raise keeper_exceptions.MarshallingError(request.path, f"watcher type {request.watcher_type}") from None


_EXECUTE: Final[dict[type, Callable[[Requests, ServerCnxn, Caller, Any], messages.Response]]] = {
    messages.Create: Requests._create,
    messages.Delete: Requests._delete,
    messages.SetData: Requests._set,
    messages.SetAcl: Requests._set,
    messages.Multi: Requests._multi,
    messages.Exists: Requests._exists,
    messages.GetData: Requests._get_data,
    messages.GetChildren: Requests._get_children,
    messages.GetAcl: Requests._get_acl,
    messages.Sync: Requests._sync,
    messages.SetWatches: Requests._set_watches,
    messages.CheckWatches: Requests._check_watches,
    messages.RemoveWatches: Requests._remove_watches,
    messages.Auth: Requests._auth,
    messages.Ping: Requests._nothing,
    messages.CloseSession: Requests._nothing,
    messages.Check: Requests._unknown,
    messages.UnknownRequest: Requests._unknown,
}
