"""The changes of a tree as plain values: the content of the transaction log. Pure.

What must stay true:
- A change has everything that is needed to apply it, so that a replay checks nothing again.

Source: the `...Txn` records of `zookeeper.jute`.
"""

from typing import NamedTuple, TypeAlias

from klamm.zookeeper.messages import Acl


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
