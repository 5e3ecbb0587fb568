"""ZooKeeper's error codes and the exceptions that carry them.

One class for every code that a caller may want to tell apart; a code without a class of its own arrives as
`ZooKeeperError`. Source: `org.apache.zookeeper.KeeperException.Code`.
"""

from enum import IntEnum
from typing import ClassVar


class JuteError(ValueError):
    """The bytes are not what ZooKeeper's protocol allows here."""


class ZooKeeperErrorCode(IntEnum):
    """The codes of servers, and the codes -4 and -7, which only clients set."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    DATA_INCONSISTENCY = -3
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    UNKNOWN_SESSION = -12
    NEW_CONFIG_NO_QUORUM = -13
    RECONFIG_IN_PROGRESS = -14
    API_ERROR = -100
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_CALLBACK = -113
    INVALID_ACL = -114
    AUTH_FAILED = -115
    SESSION_MOVED = -118
    NOT_READ_ONLY = -119
    EPHEMERAL_ON_LOCAL_SESSION = -120
    NO_WATCHER = -121
    REQUEST_TIMEOUT = -122
    RECONFIG_DISABLED = -123
    SESSION_CLOSED_REQUIRE_SASL_AUTH = -124
    QUOTA_EXCEEDED = -125
    THROTTLED = -127


class ZooKeeperError(Exception):
    """An operation failed. `code` is a `ZooKeeperErrorCode`, or a plain int if the code is unknown.

    `path` is the affected znode, or "". `index` is the operation's position in a multi, or None.
    """

    default_code: ClassVar[ZooKeeperErrorCode] = ZooKeeperErrorCode.SYSTEM_ERROR

    def __init__(self, path: str = "", message: str = "", *, code: int | None = None, index: int | None = None) -> None:
        self.code: int = self.default_code if code is None else code
        self.path = path
        self.message = message
        self.index = index
        name = self.code.name if isinstance(self.code, ZooKeeperErrorCode) else f"error {self.code}"
        where = f" for {path}" if path else ""
        which = "" if index is None else f" (operation {index} of a multi)"
        super().__init__(f"{name}{where}{which}{': ' + message if message else ''}")


class RuntimeInconsistency(ZooKeeperError):
    """In a multi: an operation that was not tried because another one failed."""

    default_code = ZooKeeperErrorCode.RUNTIME_INCONSISTENCY


class ConnectionLoss(ZooKeeperError):
    """The connection went away before the answer came: the operation may or may not have been done."""

    default_code = ZooKeeperErrorCode.CONNECTION_LOSS


class MarshallingError(ZooKeeperError):
    """The server could not read the request."""

    default_code = ZooKeeperErrorCode.MARSHALLING_ERROR


class Unimplemented(ZooKeeperError):
    """The server does not know the operation."""

    default_code = ZooKeeperErrorCode.UNIMPLEMENTED


class BadArguments(ZooKeeperError):
    """An argument (usually the path) is invalid."""

    default_code = ZooKeeperErrorCode.BAD_ARGUMENTS


class RequestTooLarge(BadArguments):
    """The request is larger than servers accept and was not sent: the server would close the connection at every
    try."""


class NoNode(ZooKeeperError):
    """The znode, or for a create its parent, does not exist."""

    default_code = ZooKeeperErrorCode.NO_NODE


class NoAuth(ZooKeeperError):
    """The session's identities do not permit the operation."""

    default_code = ZooKeeperErrorCode.NO_AUTH


class BadVersion(ZooKeeperError):
    """The znode's version is not the expected one."""

    default_code = ZooKeeperErrorCode.BAD_VERSION


class NoChildrenForEphemerals(ZooKeeperError):
    """An ephemeral znode cannot have children."""

    default_code = ZooKeeperErrorCode.NO_CHILDREN_FOR_EPHEMERALS


class NodeExists(ZooKeeperError):
    """The znode exists already."""

    default_code = ZooKeeperErrorCode.NODE_EXISTS


class NotEmpty(ZooKeeperError):
    """The znode has children and cannot be deleted."""

    default_code = ZooKeeperErrorCode.NOT_EMPTY


class SessionExpired(ZooKeeperError):
    """The server ended the session: its ephemeral znodes and watches are gone, the client object is finished."""

    default_code = ZooKeeperErrorCode.SESSION_EXPIRED


class InvalidACL(ZooKeeperError):
    """The access control list is empty or names an unknown scheme or a malformed identity."""

    default_code = ZooKeeperErrorCode.INVALID_ACL


class AuthFailed(ZooKeeperError):
    """The server refused the client's credentials."""

    default_code = ZooKeeperErrorCode.AUTH_FAILED


class SessionMoved(ZooKeeperError):
    """The session is attached to another server by now."""

    default_code = ZooKeeperErrorCode.SESSION_MOVED


class EphemeralOnLocalSession(ZooKeeperError):
    """A local session cannot own ephemeral znodes."""

    default_code = ZooKeeperErrorCode.EPHEMERAL_ON_LOCAL_SESSION


class NoWatcher(ZooKeeperError):
    """There is no such watch to remove."""

    default_code = ZooKeeperErrorCode.NO_WATCHER


class QuotaExceeded(ZooKeeperError):
    """The write would exceed a quota."""

    default_code = ZooKeeperErrorCode.QUOTA_EXCEEDED


class ClientClosed(ZooKeeperError):
    """The client was closed by its owner and accepts no more calls. The protocol has no such code."""

    default_code = ZooKeeperErrorCode.SESSION_EXPIRED


_CLASSES: dict[int, type[ZooKeeperError]] = {
    error.default_code: error for error in ZooKeeperError.__subclasses__() if error is not ClientClosed
}
_KNOWN: dict[int, ZooKeeperErrorCode] = {int(code): code for code in ZooKeeperErrorCode}


def error_for(code: int, path: str = "", *, index: int | None = None) -> ZooKeeperError:
    """The exception for a code that a server answered."""
    known = _KNOWN.get(code, code)
    return _CLASSES.get(code, ZooKeeperError)(path, code=known, index=index)
