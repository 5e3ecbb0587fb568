"""The error codes that an encoder of responses tells, for the metrics of requests."""

import random
from collections import Counter

import pytest

from klamm.protocol import messages
from klamm.protocol.messages import ADVERTISED_MAX, ADVERTISED_MIN, ApiKey, UnencodableMessage
from klamm.protocol.schema import fields_of
from support.random_messages import random_message


@pytest.mark.parametrize("key", ADVERTISED_MAX, ids=lambda key: key.name)
def test_an_encoder_tells_the_codes_that_are_counted_in_steps(key: ApiKey) -> None:
    """Also those in fields that the version leaves out."""
    rng = random.Random(key)
    for version in range(ADVERTISED_MIN[key], ADVERTISED_MAX[key] + 1):
        response = random_message(rng, key, "Response", version)
        for field in fields_of(type(response)):
            if field.name == "error_code":
                response.error_code = 7
        codes: list[int] = []
        counts: dict[int, int] = {}
        messages.encode_response(key, version, 1, response, codes)
        messages.error_counter(key)(response, counts)
        assert Counter(codes) == counts


def test_a_response_that_cannot_be_encoded_tells_nothing() -> None:
    response_class = messages.response_class(ApiKey.PRODUCE)
    topic = response_class.TopicProduceResponse
    partitions = [topic.PartitionProduceResponse(index=index, error_code=3) for index in (0, 1, 2**40)]
    codes = [1, 2]
    with pytest.raises(UnencodableMessage):
        messages.encode_response(
            ApiKey.PRODUCE, 9, 1, response_class(responses=[topic(name="t", partition_responses=partitions)]), codes
        )
    assert codes == [1, 2]
