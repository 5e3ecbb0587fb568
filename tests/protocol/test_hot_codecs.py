"""The hand-written codec of Fetch, against kafka-python's classes in every version."""

import random

import pytest

from klamm.protocol import fetch, messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.messages import InvalidFrame
from support.message_oracle import library_class

FETCH_VERSIONS = range(4, 13)
NAMES = ["a", "topic-ü", "x" * 249]


def joined(buffers):
    return b"".join(bytes(buffer) for buffer in buffers)


def integer(rng, bits=31):
    return rng.choice([-1, 0, 1, 2**bits - 1, rng.getrandbits(bits)])


def records(rng):
    return rng.choice([None, b"", rng.randbytes(50), rng.randbytes(10_000)])


def topics(rng, partition):
    return [(name, [partition(rng) for _ in range(rng.choice([0, 1, 4]))]) for name in NAMES[: rng.randrange(4)]]


# -- fetch ------------------------------------------------------------------------------------------------------------


def fetch_request(rng, version):
    def partition(rng):
        return fetch.FetchPartition(
            integer(rng),
            integer(rng) if version >= 9 else -1,
            integer(rng, 63),
            integer(rng) if version >= 12 else -1,
            integer(rng, 63) if version >= 5 else -1,
            integer(rng),
        )

    request = fetch.FetchRequest(
        replica_id=integer(rng),
        max_wait_ms=integer(rng),
        min_bytes=integer(rng),
        max_bytes=integer(rng),
        isolation_level=rng.choice([0, 1]),
        topics=topics(rng, partition),
    )
    if version >= 7:
        request.session_id, request.session_epoch = integer(rng), integer(rng)
        request.forgotten_topics = topics(rng, integer)
    if version >= 11:
        request.rack_id = rng.choice(["", "rack-1"])
    if version >= 12:
        request.cluster_id = rng.choice([None, "", "cluster"])
    return request


def library_fetch_request(version, request):
    cls = library_class(ApiKey.FETCH, "Request")
    partition_class = cls.FetchTopic._struct.fields["partitions"].data_class
    fields = {}
    if request.cluster_id is not None:
        fields["cluster_id"] = request.cluster_id
    return cls(
        version=version,
        **fields,
        replica_id=request.replica_id,
        max_wait_ms=request.max_wait_ms,
        min_bytes=request.min_bytes,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        rack_id=request.rack_id,
        topics=[
            cls.FetchTopic(
                version=version,
                topic=name,
                partitions=[partition_class(version=version, **p._asdict()) for p in partitions],
            )
            for name, partitions in request.topics
        ],
        forgotten_topics_data=[
            cls.ForgottenTopic(version=version, topic=name, partitions=indexes)
            for name, indexes in request.forgotten_topics
        ],
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_request(version):
    rng = random.Random(version)
    for _ in range(50):
        request = fetch_request(rng, version)
        body = bytes(library_fetch_request(version, request).encode(version=version))
        assert joined(fetch.encode_request(version, request)) == body
        assert messages.decode_request(ApiKey.FETCH, version, bytearray(b"123" + body), 3) == request
        refuses_changes(lambda data: messages.decode_request(ApiKey.FETCH, version, data, 0), body, rng)


def test_a_fetched_partition_may_have_unknown_tags():
    partitions = [fetch.FetchPartition(i, 1, 2, 3, 4, 5) for i in range(3)]
    body = joined(fetch.encode_request(12, fetch.FetchRequest(topics=[("t", partitions)])))
    one = body.index(b"\0\0\0\1\0\0\0\1")
    tagged = body[: one + 32] + b"\1\x09\2hi" + body[one + 33 :]
    assert messages.decode_request(ApiKey.FETCH, 12, bytearray(tagged), 0).topics == [("t", partitions)]


def fetch_response(rng, version):
    def partition(rng):
        result = fetch.FetchResponsePartition(
            partition=integer(rng),
            error_code=integer(rng, 15),
            high_watermark=integer(rng, 63),
            last_stable_offset=integer(rng, 63),
            aborted_transactions=rng.choice([None, [], [(5, 6), (7, 8)]]),
            records=records(rng),
        )
        if version >= 5:
            result.log_start_offset = integer(rng, 63)
        if version >= 11:
            result.preferred_read_replica = integer(rng)
        if version >= 12:
            result.diverging_epoch = rng.choice([None, (4, 2**40)])
            result.current_leader = rng.choice([None, (2, 9)])
        return result

    response = fetch.FetchResponse(throttle_time_ms=integer(rng), topics=topics(rng, partition))
    if version >= 7:
        response.error_code, response.session_id = integer(rng, 15), integer(rng)
    return response


def library_fetch_response(version, response):
    cls = library_class(ApiKey.FETCH, "Response")
    topic_class = cls.FetchableTopicResponse
    partition_class = topic_class._struct.fields["partitions"].data_class
    fields = partition_class._struct.fields

    def partition(p):
        tagged = {}
        if p.diverging_epoch is not None:
            epoch, end_offset = p.diverging_epoch
            tagged["diverging_epoch"] = fields["diverging_epoch"].data_class(
                version=version, epoch=epoch, end_offset=end_offset
            )
        if p.current_leader is not None:
            leader, epoch = p.current_leader
            tagged["current_leader"] = fields["current_leader"].data_class(
                version=version, leader_id=leader, leader_epoch=epoch
            )
        aborted = p.aborted_transactions
        if aborted is not None:
            aborted_class = fields["aborted_transactions"].data_class
            aborted = [aborted_class(version=version, producer_id=a, first_offset=b) for a, b in aborted]
        return partition_class(
            version=version,
            partition_index=p.partition,
            error_code=p.error_code,
            high_watermark=p.high_watermark,
            last_stable_offset=p.last_stable_offset,
            log_start_offset=p.log_start_offset,
            aborted_transactions=aborted,
            preferred_read_replica=p.preferred_read_replica,
            records=p.records,
            **tagged,
        )

    return cls(
        version=version,
        throttle_time_ms=response.throttle_time_ms,
        error_code=response.error_code,
        session_id=response.session_id,
        responses=[
            topic_class(version=version, topic=name, partitions=[partition(p) for p in partitions])
            for name, partitions in response.topics
        ],
    )


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_response(version):
    rng = random.Random(version)
    decode = fetch.response_decoder(version)
    for _ in range(50):
        response = fetch_response(rng, version)
        body = bytes(library_fetch_response(version, response).encode(version=version))
        assert joined(fetch.encode_response(version, response)) == body
        assert decode(bytearray(b"12345" + body), 5) == response
        refuses_changes(lambda data: decode(data, 0), body, rng)


def test_fetched_records_leave_as_they_are():
    large = bytes(100_000)
    part = fetch.FetchResponsePartition(0, records=large)
    buffers = messages.encode_response(ApiKey.FETCH, 11, 1, fetch.FetchResponse(topics=[("t", [part, part])]))
    assert [buffer is large for buffer in buffers] == [False, True, False, True, False]
    assert int.from_bytes(buffers[0][:4], "big") == sum(map(len, buffers)) - 4
    decoded = messages.decode_response(ApiKey.FETCH, 11, joined(buffers)[4:])
    assert isinstance(decoded.topics[0][1][0].records, memoryview)


# -- both -------------------------------------------------------------------------------------------------------------


# -- all --------------------------------------------------------------------------------------------------------------


def refuses_changes(decode, body, rng):
    """Cut or extended, a message is refused; garbled, it is refused or another message, and nothing else happens."""
    for cut in sorted(rng.sample(range(len(body)), min(len(body), 10))):
        with pytest.raises(InvalidFrame):
            decode(bytearray(body[:cut]))
    with pytest.raises(InvalidFrame, match="after the end"):
        decode(bytearray(body + b"\0"))
    for _ in range(10):
        garbled = bytearray(body)
        garbled[rng.randrange(min(len(garbled), 80))] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.getrandbits(8)])
        try:
            decode(garbled)
        except InvalidFrame as error:
            assert "at byte" in str(error) and error.path


@pytest.mark.parametrize(
    ("api_key", "version", "body", "complaint"),
    [
        (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\5\x7f\xff\xff\xff", "2147483647 elements"),
        (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\5\xff\xff\xff\xff", "null where an array is required"),
        (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\5\0\0\0\1\xff\xff\0\0\0\0", "null where text is required"),
        (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\5\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\x7f\0\0\0", "bytes of data, but 0"),
        (ApiKey.PRODUCE, 3, b"\xff\xff\0\1\0\0\0\5\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xfe", "-2 bytes of data"),
        (ApiKey.FETCH, 4, bytes(17) + b"\0\0\0\1\0\1t\0\1\0\0", "65536 elements"),
        (ApiKey.FETCH, 12, bytes(25) + b"\1\1\1\1\0\4\3abc", "its value at"),
    ],
)
def test_refused(api_key, version, body, complaint):
    with pytest.raises(InvalidFrame, match=complaint):
        messages.decode_request(api_key, version, bytearray(body), 0)


def test_the_number_of_elements_is_capped():
    body = joined(fetch.encode_request(7, fetch.FetchRequest(forgotten_topics=[("t", [1] * 100_000)])))
    with pytest.raises(InvalidFrame, match="more than a message of this kind may hold"):
        messages.decode_request(ApiKey.FETCH, 7, bytearray(body), 0)
    body = joined(fetch.encode_request(7, fetch.FetchRequest(forgotten_topics=[("t", [1] * 99_999)])))
    assert len(messages.decode_request(ApiKey.FETCH, 7, bytearray(body), 0).forgotten_topics[0][1]) == 99_999
