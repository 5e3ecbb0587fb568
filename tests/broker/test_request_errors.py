"""What a client is told when ZooKeeper does not do what a request needs."""

import pytest

from klamm.broker.request_errors import as_controllers_error, as_kafka_error
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.znodes.fields import ZnodeError
from klamm.zookeeper import keeper_exceptions

TIMED_OUT, NOT_CONTROLLER, UNKNOWN = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


@pytest.mark.parametrize(
    ("error", "code", "controllers_code"),
    [
        (keeper_exceptions.SessionExpired(), TIMED_OUT, NOT_CONTROLLER),
        (keeper_exceptions.ConnectionLoss(), TIMED_OUT, NOT_CONTROLLER),
        (keeper_exceptions.ClientClosed(), TIMED_OUT, NOT_CONTROLLER),
        # A repetition would be refused, too.
        (keeper_exceptions.NoAuth("/admin/delete_topics/t"), UNKNOWN, UNKNOWN),
        (keeper_exceptions.QuotaExceeded("/brokers/topics/t"), UNKNOWN, UNKNOWN),
        (ZnodeError("/brokers/topics/t", "garbage"), UNKNOWN, UNKNOWN),
        (KafkaError(ErrorCode.INVALID_PARTITIONS, "0"), ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_only_an_uncertain_write_may_be_tried_again(error, code: ErrorCode, controllers_code: ErrorCode) -> None:
    for answer, expected in ((as_kafka_error(error), code), (as_controllers_error(error), controllers_code)):
        assert answer.code is expected
        assert str(getattr(error, "message", error)) in str(answer)
