"""ZooKeeper's error codes and the exceptions that carry them.

Every code that a caller may want to tell apart has a class; another code arrives as `ZooKeeperError`. Source:
`org.apache.zookeeper.KeeperException.Code`.
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


# The class for each code: the first class that names the code.
_CLASSES: "dict[int, type[ZooKeeperError]]" = {}


class ZooKeeperError(Exception):
    """An operation failed. `code` is a `ZooKeeperErrorCode`, or a plain int if the code is unknown.

    `path` is the affected znode, or "". `index` is the operation's position in a multi, or None.
    """

    default_code: ClassVar[ZooKeeperErrorCode] = ZooKeeperErrorCode.SYSTEM_ERROR

    def __init_subclass__(cls, *, code: ZooKeeperErrorCode | None = None) -> None:
        if code is not None:
            cls.default_code = code
            _CLASSES.setdefault(code, cls)

    def __init__(self, path: str = "", message: str = "", *, code: int | None = None, index: int | None = None) -> None:
        self.code: int = self.default_code if code is None else code
        self.path = path
        self.message = message
        self.index = index
        name = self.code.name if isinstance(self.code, ZooKeeperErrorCode) else f"error {self.code}"
        where = f" for {path}" if path else ""
        which = "" if index is None else f" (operation {index} of a multi)"
        super().__init__(f"{name}{where}{which}{': ' + message if message else ''}")


class ConnectionLoss(ZooKeeperError, code=ZooKeeperErrorCode.CONNECTION_LOSS):
    """The connection was lost before the answer came: the operation may or may not have been done."""


class MarshallingError(ZooKeeperError, code=ZooKeeperErrorCode.MARSHALLING_ERROR):
    """The server could not read the request."""


class Unimplemented(ZooKeeperError, code=ZooKeeperErrorCode.UNIMPLEMENTED):
    """The server does not know the operation."""


class BadArguments(ZooKeeperError, code=ZooKeeperErrorCode.BAD_ARGUMENTS):
    """An argument (usually the path) is invalid."""


class RequestTooLarge(BadArguments):
    """The request is larger than servers accept and was not sent: the server would close the connection at every
    try."""


class NoNode(ZooKeeperError, code=ZooKeeperErrorCode.NO_NODE):
    """The znode, or for a create its parent, does not exist."""


class NoAuth(ZooKeeperError, code=ZooKeeperErrorCode.NO_AUTH):
    """The session's identities do not permit the operation."""


class BadVersion(ZooKeeperError, code=ZooKeeperErrorCode.BAD_VERSION):
    """The znode's version is not the expected one."""


class NoChildrenForEphemerals(ZooKeeperError, code=ZooKeeperErrorCode.NO_CHILDREN_FOR_EPHEMERALS):
    """An ephemeral znode cannot have children."""


class NodeExists(ZooKeeperError, code=ZooKeeperErrorCode.NODE_EXISTS):
    """The znode exists already."""


class NotEmpty(ZooKeeperError, code=ZooKeeperErrorCode.NOT_EMPTY):
    """The znode has children and cannot be deleted."""


class SessionExpired(ZooKeeperError, code=ZooKeeperErrorCode.SESSION_EXPIRED):
    """The server ended the session: its ephemeral znodes and watches are gone, the client object is finished."""


class InvalidACL(ZooKeeperError, code=ZooKeeperErrorCode.INVALID_ACL):
    """The access control list is empty or names an unknown scheme or a malformed identity."""


class AuthFailed(ZooKeeperError, code=ZooKeeperErrorCode.AUTH_FAILED):
    """The server refused the client's credentials."""


class SessionMoved(ZooKeeperError, code=ZooKeeperErrorCode.SESSION_MOVED):
    """The session is attached to another server by now."""


class NoWatcher(ZooKeeperError, code=ZooKeeperErrorCode.NO_WATCHER):
    """The watch to remove does not exist."""


class QuotaExceeded(ZooKeeperError, code=ZooKeeperErrorCode.QUOTA_EXCEEDED):
    """The write would exceed a quota."""


class ClientClosed(ZooKeeperError, code=ZooKeeperErrorCode.SESSION_EXPIRED):
    """The client was closed by its owner and accepts no more calls. The protocol has no such code."""


_KNOWN: dict[int, ZooKeeperErrorCode] = {int(code): code for code in ZooKeeperErrorCode}


def error_for(code: int, path: str = "", *, index: int | None = None) -> ZooKeeperError:
    """The exception for a code in a server's answer."""
    known = _KNOWN.get(code, code)
    return _CLASSES.get(code, ZooKeeperError)(path, code=known, index=index)
