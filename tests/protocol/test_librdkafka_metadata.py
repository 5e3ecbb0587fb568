"""A request that librdkafka sends and Kafka accepts, although three bytes follow its end."""

import pytest

from klamm.protocol import messages
from klamm.protocol.messages import ApiKey, InvalidFrame

# Recorded from librdkafka 2.16.0: Metadata v11 for all topics, from the body on.
ALL_TOPICS = bytes.fromhex("00000000010000")


def test_all_topics_of_librdkafka() -> None:
    assert messages.decode_request(ApiKey.METADATA, 11, ALL_TOPICS, 0).topics is None


@pytest.mark.parametrize("surplus", [1, 2, 4])
def test_other_surpluses_are_refused(surplus: int) -> None:
    with pytest.raises(InvalidFrame, match="after the end"):
        messages.decode_request(ApiKey.METADATA, 11, ALL_TOPICS[:4] + bytes(surplus), 0)


def test_other_requests_have_no_surplus() -> None:
    with pytest.raises(InvalidFrame, match="3 bytes after the end"):
        messages.decode_request(ApiKey.DELETE_TOPICS, 5, bytes.fromhex("0100000000" + "00" + "000000"), 0)
