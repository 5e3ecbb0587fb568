"""Fetch and Produce: records are not copied, and what strictness refuses."""

import pytest

from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.fetch import EpochEndOffset, FetchRequest, PartitionData
from klamm.protocol.messages import InvalidFrame
from support.fetch_messages import fetch_request, fetch_response, to_fetch


def body_of(version, request):
    """The request's body, without the size and the header."""
    frame = b"".join(messages.encode_request(ApiKey.FETCH, version, 1, None, request))[4:]
    return frame[messages.parse_request_header(frame).body_position :]


def test_a_fetched_partition_may_have_unknown_tags():
    request = fetch_request(("t", [to_fetch(i, 2, 5, epoch=1, last_epoch=3, log_start_offset=4) for i in range(3)]))
    body = body_of(12, request)
    one = body.index(b"\0\0\0\1\0\0\0\1")
    tagged = body[: one + 32] + b"\1\x09\2hi" + body[one + 33 :]
    assert messages.decode_request(ApiKey.FETCH, 12, bytearray(tagged), 0) == request


def test_fetched_records_leave_as_they_are():
    large = bytes(100_000)
    part = PartitionData(partition_index=0, records=large)
    buffers = messages.encode_response(ApiKey.FETCH, 11, 1, fetch_response(("t", [part, part])))
    assert [buffer is large for buffer in buffers] == [False, True, False, True, False]
    assert int.from_bytes(buffers[0][:4], "big") == sum(map(len, buffers)) - 4
    decoded = messages.decode_response(ApiKey.FETCH, 11, b"".join(buffers)[4:])
    assert isinstance(decoded.responses[0].partitions[0].records, memoryview)


def test_a_tagged_struct_that_is_none_is_left_out():
    """As Kafka leaves out one that has only defaults: no byte says that it is not there."""
    diverging = PartitionData(partition_index=1, diverging_epoch=EpochEndOffset(epoch=4, end_offset=2**40))
    response = fetch_response(("t", [PartitionData(partition_index=0), diverging]))
    body = b"".join(messages.encode_response(ApiKey.FETCH, 12, 1, response))
    assert body.endswith(b"\xff\xff\xff\xff\1" + b"\1\0\x0d\0\0\0\4\0\0\1\0\0\0\0\0\0" + b"\0\0")
    decoded = messages.decode_response(ApiKey.FETCH, 12, body[4:])
    assert [one.diverging_epoch for one in decoded.responses[0].partitions] == [None, diverging.diverging_epoch]


@pytest.mark.parametrize(
    ("api_key", "version", "body", "complaint"),
    [
        (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\5\x7f\xff\xff\xff", "2147483647 elements"),
        (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\5\xff\xff\xff\xff", "null where an array is required"),
        (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\5\0\0\0\1\xff\xff\0\0\0\0", "null where text is required"),
        (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\5\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\x7f\0\0\0", "bytes of data, but 0"),
        (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\5\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xfe", "-2 bytes of data"),
        (ApiKey.FETCH, 4, bytes(17) + b"\0\0\0\1\0\1t\0\1\0\0", "65536 elements"),
        (ApiKey.FETCH, 12, bytes(25) + b"\1\1\1\1\0\4\3abc", "a tagged field of 4 bytes, not 3"),
    ],
)
def test_refused(api_key, version, body, complaint):
    with pytest.raises(InvalidFrame, match=complaint):
        messages.decode_request(api_key, version, bytearray(body), 0)


def test_the_number_of_elements_is_capped():
    def forgetting(count):
        topic = FetchRequest.ForgottenTopic(topic="t", partitions=[1] * count)
        return bytearray(body_of(7, FetchRequest(forgotten_topics_data=[topic])))

    with pytest.raises(InvalidFrame, match="more than a message of this kind may hold"):
        messages.decode_request(ApiKey.FETCH, 7, forgetting(100_000), 0)
    decoded = messages.decode_request(ApiKey.FETCH, 7, forgetting(99_999), 0)
    assert len(decoded.forgotten_topics_data[0].partitions) == 99_999
