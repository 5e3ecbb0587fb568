"""What a request, or one item of it, is answered when ZooKeeper cannot be asked.

What must stay true: an item that fails takes no other item of its request with it.
"""

from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.znodes.fields import ZnodeError
from klamm.zookeeper.errors import ZooKeeperError

# What work on one item of a request may raise that is no fault of the program.
ITEM_ERRORS = (KafkaError, ZooKeeperError, ZnodeError)


def as_kafka_error(error: KafkaError | ZooKeeperError | ZnodeError) -> KafkaError:
    """The error that is answered for one of `ITEM_ERRORS`."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, ZooKeeperError):
        # ZooKeeper is away or has ended the session; whether a write that was under way was done is unknown.
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper: {error}")
    # Somebody else has written a znode that the item is about.
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
