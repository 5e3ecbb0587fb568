"""How errors name their codes."""

import pickle

import pytest

from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (ErrorCode.UNKNOWN_LEADER_EPOCH, "UNKNOWN_LEADER_EPOCH (75)"),
        (3, "UNKNOWN_TOPIC_OR_PARTITION (3)"),
        (-1, "UNKNOWN_SERVER_ERROR (-1)"),
        (119, "INVALID_REGISTRATION (119)"),
        (4711, "unknown error (4711)"),
    ],
)
def test_an_error_code_is_named_with_its_number(code: int, name: str) -> None:
    assert error_name(code) == name


def test_an_error_begins_with_the_name_and_number_of_its_code() -> None:
    assert str(KafkaError(ErrorCode.NOT_CONTROLLER)) == "NOT_CONTROLLER (41)"
    error = KafkaError(ErrorCode.INVALID_CONFIG, "a=b is not allowed")
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == "INVALID_CONFIG (40): a=b is not allowed"
