"""The errors of a request, or one item of it, when ZooKeeper is unreachable or holds invalid data.

What must stay true: a failed item does not fail any other item of its request.
"""

from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.znodes.fields import ZnodeError
from klamm.zookeeper.errors import ZooKeeperError

# The expected errors of work on one item of a request. Any other exception is a fault of the program.
ITEM_ERRORS = (KafkaError, ZooKeeperError, ZnodeError)


def as_kafka_error(error: KafkaError | ZooKeeperError | ZnodeError) -> KafkaError:
    """The KafkaError with which one of `ITEM_ERRORS` is answered."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, ZooKeeperError):
        # ZooKeeper is unreachable or has ended the session; the outcome of a pending write is unknown.
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper: {error}")
    # The item's znode has invalid content, written by another program.
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
