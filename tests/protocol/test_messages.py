"""Every message in every version, against kafka-python's classes; and what strictness refuses."""

import contextlib
import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol import apis, messages, primitives
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis import ADVERTISED_MAX, ADVERTISED_MIN, api_of
from klamm.protocol.compiler import decoders, encoders, writing
from klamm.protocol.messages import InvalidFrame
from support.message_oracle import body_of, in_library, library_class
from support.random_messages import is_flexible, message_class, random_message

ADVERTISED = [
    (key, version) for key in ADVERTISED_MAX for version in range(ADVERTISED_MIN[key], ADVERTISED_MAX[key] + 1)
]
COMPILED = [(key, version) for key in apis.KEYS for version in api_of(key).known]
SERVED = [what for what in COMPILED if what in ADVERTISED]


def decoder(api_key, kind, version):
    return decoders.compile_decoder(message_class(api_key, kind), version, is_flexible(api_key, version), 100_000)


def encode(api_key, kind, version, message):
    return encoders.compile_encoder(message_class(api_key, kind), version, is_flexible(api_key, version))(message)


def steps_of(generator):
    """How many steps there were, and what the last one returned."""
    count = 0
    while True:
        try:
            next(generator)
            count += 1
        except StopIteration as end:
            return count, end.value


@pytest.mark.parametrize("kind", ["Request", "Response"])
@pytest.mark.parametrize(("api_key", "version"), COMPILED, ids=lambda value: getattr(value, "name", value))
def test_messages_are_those_of_the_library(api_key, version, kind, monkeypatch):
    """Encoded and decoded, in one go and in steps."""
    monkeypatch.setitem(writing.HELPERS, "STEP", 64)
    rng = random.Random(f"{api_key.name} {version} {kind}")
    own, flexible = message_class(api_key, kind), is_flexible(api_key, version)
    decode = decoder(api_key, kind, version)
    encode = encoders.compile_encoder(own, version, flexible)
    decode_in_steps = decoders.compile_decoder_in_steps(own, version, flexible, 100_000)
    encode_in_steps = encoders.compile_encoder_in_steps(own, version, flexible)
    for _ in range(8):
        message = random_message(rng, api_key, kind, version)
        body = body_of(in_library(message, library_class(api_key, kind), version), version)
        assert b"".join(encode(message)) == body
        assert b"".join(steps_of(encode_in_steps(message))[1]) == body
        padding = rng.randbytes(rng.choice([0, 3]))
        for frame in (bytearray(padding + body), padding + body, memoryview(padding + body)):
            assert decode(frame, len(padding)) == message
        assert steps_of(decode_in_steps(bytearray(padding + body), len(padding)))[1] == message


@pytest.mark.parametrize("kind", ["Request", "Response"])
@pytest.mark.parametrize(("api_key", "version"), COMPILED, ids=lambda value: getattr(value, "name", value))
def test_refuses_cut_extended_and_garbled_messages(api_key, version, kind):
    rng = random.Random(f"{api_key.name} {version} {kind}")
    message = random_message(rng, api_key, kind, version)
    body = b"".join(encode(api_key, kind, version, message))
    decoders = [decoder(api_key, kind, version)]
    with pytest.raises(InvalidFrame, match="1 bytes after the end"):
        decoders[0](bytearray(body + b"\0"), 0)
    if kind == "Request" and (api_key, version) in SERVED:
        decoders.append(functools.partial(messages.decode_request, api_key, version))
    for decode in decoders:
        for cut in sorted(rng.sample(range(len(body)), min(len(body), 40))):
            with pytest.raises(InvalidFrame):
                decode(bytearray(body[:cut]), 0)
        for _ in range(20):
            garbled = bytearray(body)
            for _ in range(rng.choice([1, 1, 4])):
                garbled[rng.randrange(len(garbled)) if garbled else 0 :][:1] = b""
                if garbled:
                    garbled[rng.randrange(len(garbled))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.getrandbits(8)])
            try:
                decode(garbled, 0)
            except InvalidFrame as error:
                assert "at byte" in str(error)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ADVERTISED), st.binary(max_size=200))
def test_garbage_is_refused_or_a_message(what, data):
    api_key, version = what
    for decode in (
        lambda: messages.decode_request(api_key, version, bytearray(data), 0),
        lambda: messages.decode_response(api_key, version, bytearray(data)),
        lambda: messages.parse_request_header(bytearray(data)),
    ):
        with contextlib.suppress(InvalidFrame):
            decode()


@pytest.mark.parametrize(("api_key", "version"), SERVED, ids=lambda value: getattr(value, "name", value))
def test_whole_frames_are_the_librarys(api_key, version):
    rng = random.Random(version)
    request = random_message(rng, api_key, "Request", version)
    ours = b"".join(messages.encode_request(api_key, version, 77, "a client", request))
    if (api_key, version) != (ApiKey.CONTROLLED_SHUTDOWN, 0):  # whose header the library does not know
        theirs = in_library(request, library_class(api_key, "Request"), version)
        theirs.with_header(correlation_id=77, client_id="a client")
        assert ours == bytes(theirs.encode(header=True, framed=True))
    header = messages.parse_request_header(bytearray(ours[4:]))
    assert (header.api_key, header.api_version, header.correlation_id) == (api_key, version, 77)
    for surplus in (b"", b"\0", b"\xff\xff\xff"):
        frame = bytearray(ours[4:] + surplus)
        assert messages.decode_request(api_key, version, frame, header.body_position) == request
        assert steps_of(messages.request_steps(api_key, version, frame, header.body_position))[1] == request

    response = random_message(rng, api_key, "Response", version)
    if api_key == ApiKey.API_VERSIONS:
        response.error_code = 0
    ours = b"".join(messages.encode_response(api_key, version, -5, response))
    theirs = in_library(response, library_class(api_key, "Response"), version)
    theirs.with_header(correlation_id=-5)
    assert ours == bytes(theirs.encode(header=True, framed=True))
    assert messages.parse_correlation_id(ours[4:]) == -5
    assert messages.decode_response(api_key, version, bytearray(ours[4:])) == response


def test_the_first_lines_of_requests_agree_with_the_library():
    for api_key, maximum in ADVERTISED_MAX.items():
        request = library_class(api_key, "Request")
        response = library_class(api_key, "Response")
        assert request.API_KEY == response.API_KEY == api_of(api_key).key == api_key
        low, high = request.valid_versions
        assert maximum <= api_of(api_key).known.high <= high, api_key
        expected = 0 if api_key in (ApiKey.PRODUCE, ApiKey.WRITE_TXN_MARKERS) else low
        assert ADVERTISED_MIN[api_key] == api_of(api_key).known.low == expected, api_key
        for version in range(high + 1):
            flexible = is_flexible(api_key, version)
            assert request.flexible_version_q(version) == response.flexible_version_q(version) == flexible, api_key
    assert list(ADVERTISED_MAX) == sorted(ADVERTISED_MAX) and len(ADVERTISED_MAX) == 58


def test_advertised_maxima_are_those_of_kafka_2_8_2_and_two_later_apis_for_tools():
    live = (
        "0:9 1:12 2:6 3:11 4:5 5:3 6:7 7:3 8:8 9:7 10:3 11:7 12:4 13:4 14:5 15:5 16:4 17:1 18:3 19:7 20:6 21:2 22:4 "
        "23:4 24:3 25:3 26:3 27:1 28:3 29:2 30:2 31:2 32:4 33:2 34:2 35:2 36:2 37:3 38:2 39:2 40:2 41:2 42:2 43:2 44:1 "
        "45:0 46:0 47:0 48:1 49:1 50:0 51:0 56:0 57:0 60:0 61:0"
    )
    later = "65:0 66:1"
    assert " ".join(f"{int(key)}:{version}" for key, version in ADVERTISED_MAX.items()) == f"{live} {later}"


# -- headers ----------------------------------------------------------------------------------------------------------


def test_request_headers_of_all_versions():
    parse = messages.parse_request_header
    assert parse(b"\0\3\0\1\0\0\0\x09\0\2hi.") == (ApiKey.METADATA, 1, 9, "hi", 12)
    assert parse(b"\0\3\0\1\0\0\0\x09\xff\xff") == (ApiKey.METADATA, 1, 9, None, 10)
    assert parse(b"\0\3\0\x09\0\0\0\x09\0\2hi\0") == (ApiKey.METADATA, 9, 9, "hi", 13)
    assert parse(b"\0\3\0\x09\0\0\0\x09\0\2hi\1\5\2xy") == (ApiKey.METADATA, 9, 9, "hi", 17)
    assert parse(b"\0\7\0\0\0\0\0\x09") == (ApiKey.CONTROLLED_SHUTDOWN, 0, 9, None, 8)
    assert parse(b"\0\7\0\1\0\0\0\x09\0\0") == (ApiKey.CONTROLLED_SHUTDOWN, 1, 9, "", 10)
    assert parse(b"\0\x12\x7f\xff\0\0\0\x09\0\0\0") == (ApiKey.API_VERSIONS, 32767, 9, "", 11)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "ends within the header"),
        (b"\0\3\0\1\0\0\0", "ends within the header"),
        (b"\0\3\0\1\0\0\0\1", "ends within the header"),
        (b"\0\3\0\1\0\0\0\1\0\5ab", "a length of 5"),
        (b"\0\3\0\1\0\0\0\1\xff\xfeab", "a length of -2"),
        (b"\0\3\0\1\0\0\0\1\0\1\xff", "not UTF-8"),
        (b"\0\3\0\x09\0\0\0\1\0\0", "ends within the header"),
        (b"\0\3\0\x09\0\0\0\1\0\0\2\5\0\5\0", "tag 5 after tag 5"),
        (b"\0\x63\0\0\0\0\0\1\0\0", "unknown API 99"),
        (b"\xff\xff\0\0\0\0\0\1\0\0", "unknown API -1"),
        (b"\0\3\xff\xff\0\0\0\1\0\0", "version -1 of Metadata"),
    ],
)
def test_headers_that_are_none(frame, reason):
    with pytest.raises(InvalidFrame, match=reason):
        messages.parse_request_header(bytearray(frame))


# -- strictness, by hand ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "body", "complaint"),
    [
        (1, b"\0\0\0\1\xff\xff\1", r"topics\[0\]\.name: null where text is required at byte 6"),
        (1, b"\x7f\xff\xff\xff", r"topics: 2147483647 elements, but 0 bytes are left at byte 4"),
        (1, b"\xff\xff\xff\xfe", r"topics: a count of -2 at byte 4"),
        (0, b"\xff\xff\xff\xff", "topics: null where an array is required"),
        (1, b"\0\0\0\1\0\2\xc3\x28", r"topics\[0\]\.name: text that is not UTF-8 .* at byte 6"),
        (4, b"\0\0\0\0", "allow_auto_topic_creation: the frame ends within the field"),
        (9, b"\1\1\0\0\2\0\0\0\0", "tag 0 after tag 0"),
        (9, b"\1\1\0\0\1\x07\x09ab", "a tagged field of 9 bytes, but 2 are left"),
        (9, b"\xff\xff\xff\xff\xff\1", "a varint of more than 32 bits"),
        (9, b"\xff\xff\xff\xff\x7f", "a varint of more than 32 bits"),
        (9, b"\xff\xff\xff\xff\x0f", "4294967294 elements"),
    ],
)
def test_what_a_metadata_request_may_not_be(version, body, complaint):
    with pytest.raises(InvalidFrame, match=complaint):
        messages.decode_request(ApiKey.METADATA, version, bytearray(body), 0)


def test_unknown_tags_are_skipped():
    request = messages.decode_request(ApiKey.METADATA, 9, bytearray(b"\2\2a\1\x09\3xyz\1\0\0\2\1\0\4\2hi"), 0)
    assert [topic.name for topic in request.topics] == ["a"]
    assert request.allow_auto_topic_creation


def test_a_tagged_field_must_have_its_own_size():
    # ApiVersions v3 response: FinalizedFeaturesEpoch (tag 1) is eight bytes.
    good = b"\0\0\0\7" + b"\0\0" + b"\1" + b"\0\0\0\0" + b"\1" + b"\1\x08" + bytes(7) + b"\5"
    assert messages.decode_response(ApiKey.API_VERSIONS, 3, good).finalized_features_epoch == 5
    for size in (7, 9):
        bad = good.replace(b"\1\1\x08", bytes((1, 1, size))) + b"\0" * (size - 8)
        with pytest.raises(InvalidFrame, match=f"a tagged field of {size} bytes, not 8"):
            messages.decode_response(ApiKey.API_VERSIONS, 3, bad)


def test_the_number_of_elements_is_capped():
    topics = 100_000
    body = bytearray(topics.to_bytes(4, "big") + b"\0\1a" * topics)
    assert len(messages.decode_request(ApiKey.METADATA, 1, body, 0).topics) == topics
    body = bytearray((topics + 1).to_bytes(4, "big") + b"\0\1a" * (topics + 1))
    with pytest.raises(InvalidFrame, match="more than a message of this kind may hold"):
        messages.decode_request(ApiKey.METADATA, 1, body, 0)


@functools.cache
def many_tagged_fields():
    return b"".join(primitives.unsigned_varint(100 + tag) + b"\0" for tag in range(150_000))


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        (ApiKey.METADATA, 9, b"\1\1\1\1"),
        (ApiKey.METADATA, 9, b"\2\2a"),
        (ApiKey.FETCH, 12, b"\xff\xff\xff\xff" + bytes(12 + 1 + 8) + b"\1\1\1"),
        (ApiKey.STOP_REPLICA, 2, bytes(17) + b"\1"),
        (ApiKey.PRODUCE, 9, bytes(7) + b"\1"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_number_of_tagged_fields_of_a_struct_is_capped(api_key, version, body):
    """They are read in one go, and the messages of a controller may hold millions of elements."""
    frame = bytearray(body + primitives.unsigned_varint(150_000) + many_tagged_fields())
    with pytest.raises(InvalidFrame, match="150000 tagged fields, allowed are 20"):
        messages.decode_request(api_key, version, frame, 0)
    steps = messages.request_steps(api_key, version, frame, 0)
    if steps is not None:
        with pytest.raises(InvalidFrame, match="150000 tagged fields, allowed are 20"):
            steps_of(steps)


def test_the_number_of_tagged_fields_of_a_header_is_capped():
    def frame(count):
        tags = b"".join(bytes((tag, 0)) for tag in range(count))
        return b"\0\3\0\x09\0\0\0\x09\0\0" + primitives.unsigned_varint(count) + tags

    assert messages.parse_request_header(frame(20)).body_position == len(frame(20))
    with pytest.raises(InvalidFrame, match="21 tagged fields, allowed are 20"):
        messages.parse_request_header(frame(21))


def test_tagged_fields_count_as_elements():
    structs = 5_000
    topic = b"\2a" + b"\x14" + b"".join(bytes((tag, 0)) for tag in range(20))
    body = primitives.unsigned_varint(structs + 1) + topic * structs + b"\1\1\1\0"
    with pytest.raises(InvalidFrame, match="20 elements are more than"):
        messages.decode_request(ApiKey.METADATA, 9, bytearray(body), 0)


def test_versions_outside_the_advertised_are_refused():
    with pytest.raises(InvalidFrame, match="version 12 of Metadata, supported are 0 to 11"):
        messages.decode_request(ApiKey.METADATA, 12, bytearray(b"\0"), 0)
    with pytest.raises(InvalidFrame, match="version 3 of Fetch, supported are 4 to 12"):
        messages.decode_request(ApiKey.FETCH, 3, bytearray(b"\0"), 0)


def test_an_unsupported_api_versions_answer_is_read_in_version_0():
    answer = messages.response_class(ApiKey.API_VERSIONS)
    key = answer.ApiVersion(api_key=18, min_version=0, max_version=2)
    frame = b"".join(messages.encode_response(ApiKey.API_VERSIONS, 0, 1, answer(error_code=35, api_keys=[key])))
    decoded = messages.decode_response(ApiKey.API_VERSIONS, 3, frame[4:])
    assert decoded.error_code == 35 and [entry.max_version for entry in decoded.api_keys] == [2]


def test_request_size_limits():
    limit = messages.request_size_limit(100 * 1024 * 1024)
    assert limit(ApiKey.PRODUCE) == limit(ApiKey.UPDATE_METADATA) == 100 * 1024 * 1024
    assert limit(ApiKey.FETCH) == 8 * 1024 * 1024
    assert limit(ApiKey.API_VERSIONS) == limit(None) == limit(-77) == limit(0x4745) == 1024 * 1024
    small = messages.request_size_limit(1000)
    assert small(ApiKey.PRODUCE) == small(ApiKey.FETCH) == small(None) == 1000


def test_load_all_and_names():
    messages.load_all()
    assert ApiKey.OFFSET_FOR_LEADER_EPOCH.message_name == "OffsetForLeaderEpoch"
    with pytest.raises(LookupError, match="no message Vote"):
        messages.request_class(ApiKey.VOTE)
