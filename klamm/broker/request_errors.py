"""The errors of a request, or one item of it: ZooKeeper is unreachable or holds invalid data, a value is not allowed.

What must stay true: a failed item does not fail any other item of its request.
"""

from typing import Any

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import KNOWN_ISOLATION_LEVELS
from klamm.znodes.fields import ZnodeError
from klamm.zookeeper.keeper_exceptions import (
    AuthFailed,
    ClientClosed,
    ConnectionLoss,
    SessionExpired,
    SessionMoved,
    ZooKeeperError,
)

# The expected errors of work on one item of a request. Any other exception is a programming error.
ITEM_ERRORS = (KafkaError, ZooKeeperError, ZnodeError)

# The broker's session, or its connection, has ended: the outcome of a pending write is unknown.
_ENDED = (ConnectionLoss, SessionExpired, SessionMoved, AuthFailed, ClientClosed)


def as_kafka_error(error: KafkaError | ZooKeeperError | ZnodeError) -> KafkaError:
    """The KafkaError that answers one of `ITEM_ERRORS`."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, ZooKeeperError):
        # ZooKeeper has not done a refused write, and would refuse it again.
        code = ErrorCode.REQUEST_TIMED_OUT if isinstance(error, _ENDED) else ErrorCode.UNKNOWN_SERVER_ERROR
        return KafkaError(code, f"ZooKeeper: {error}")
    # The item's znode has invalid content, written by another program.
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))


def check_isolation_level(level: int) -> None:
    """Raises KafkaError for a level that the protocol does not have."""
    if level not in KNOWN_ISOLATION_LEVELS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"isolation level {level}: allowed are 0 and 1")


def outcome(error: KafkaError | None = None) -> dict[str, Any]:
    """The error fields of a response, or of an item in it."""
    return {
        "error_code": error.code if error else ErrorCode.NONE,
        "error_message": error.message or None if error else None,
    }


def as_controllers_error(error: KafkaError | ZooKeeperError | ZnodeError) -> KafkaError:
    """Like `as_kafka_error`, for changes of topics, which only the controller serves: NOT_CONTROLLER when its session
    has ended, so that clients ask the next controller.

    REQUEST_TIMED_OUT would mean that the change is written and will take effect later: librdkafka, which by default
    does not wait for that, would report success.
    """
    if isinstance(error, _ENDED):
        return KafkaError(ErrorCode.NOT_CONTROLLER, f"the session of the controller's broker has ended: {error}")
    return as_kafka_error(error)
