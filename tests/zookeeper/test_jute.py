"""The wire format: what is encoded decodes to the same value, and any bytes are either a value or a JuteError."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.zookeeper import jute, messages
from klamm.zookeeper.framing import FrameSplitter
from klamm.zookeeper.keeper_exceptions import JuteError, NoNode, ZooKeeperError, ZooKeeperErrorCode, error_for
from klamm.zookeeper.messages import OpCode

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(max_size=20)
texts = st.lists(text, max_size=4)
data = st.none() | st.binary(max_size=40)
stats = st.builds(messages.Stat, *(int64,) * 4, *(int32,) * 3, int64, int32, int32, int64)
acls = st.lists(st.builds(messages.Acl, int32, text, text), max_size=3).map(tuple)

creates = st.builds(
    messages.Create, text, data, acls, int32, st.sampled_from([OpCode.CREATE, OpCode.CREATE2, OpCode.CREATE_CONTAINER])
) | st.builds(messages.Create, text, data, acls, int32, st.just(OpCode.CREATE_TTL), int64)
deletes = st.builds(messages.Delete, text, int32)
sets = st.builds(messages.SetData, text, data, int32)
checks = st.builds(messages.Check, text, int32)
requests = st.one_of(
    creates,
    deletes,
    sets,
    checks,
    st.builds(messages.Multi, st.lists(creates | deletes | sets | checks, max_size=4).map(tuple)),
    st.builds(messages.Exists, text, st.booleans()),
    st.builds(messages.GetData, text, st.booleans()),
    st.builds(messages.GetAcl, text),
    st.builds(messages.SetAcl, text, acls, int32),
    st.builds(messages.GetChildren, text, st.booleans(), st.sampled_from([OpCode.GET_CHILDREN, OpCode.GET_CHILDREN2])),
    st.builds(messages.Sync, text),
    st.builds(messages.CheckWatches, text, int32),
    st.builds(messages.RemoveWatches, text, int32),
    st.builds(messages.Auth, text, data, int32),
    st.builds(messages.SetWatches, int64, texts.map(tuple), texts.map(tuple), texts.map(tuple)),
    st.just(messages.Ping()),
    st.just(messages.CloseSession()),
)

results = st.one_of(
    st.builds(messages.MultiResult, st.just(OpCode.ERROR), int32, st.none(), st.none()),
    st.builds(messages.MultiResult, st.just(OpCode.CREATE), int32, text, st.none()),
    st.builds(messages.MultiResult, st.just(OpCode.CREATE2), int32, text, stats),
    st.builds(messages.MultiResult, st.just(OpCode.SET_DATA), int32, st.none(), stats),
    st.builds(messages.MultiResult, st.sampled_from([OpCode.DELETE, OpCode.CHECK]), int32, st.none(), st.none()),
)
responses = st.one_of(
    st.tuples(st.just(OpCode.CREATE), st.builds(messages.CreateResponse, text, st.none())),
    st.tuples(st.just(OpCode.CREATE2), st.builds(messages.CreateResponse, text, stats)),
    st.tuples(
        st.sampled_from([OpCode.EXISTS, OpCode.SET_DATA, OpCode.SET_ACL]), st.builds(messages.StatResponse, stats)
    ),
    st.tuples(st.just(OpCode.GET_DATA), st.builds(messages.GetDataResponse, data, stats)),
    st.tuples(st.just(OpCode.GET_ACL), st.builds(messages.GetAclResponse, acls, stats)),
    st.tuples(st.just(OpCode.GET_CHILDREN), st.builds(messages.GetChildrenResponse, texts, st.none())),
    st.tuples(st.just(OpCode.GET_CHILDREN2), st.builds(messages.GetChildrenResponse, texts, stats)),
    st.tuples(st.just(OpCode.MULTI), st.builds(messages.MultiResponse, st.lists(results, max_size=4).map(tuple))),
    st.tuples(st.just(OpCode.SYNC), st.builds(messages.SyncResponse, text)),
    st.tuples(st.sampled_from([OpCode.DELETE, OpCode.PING, OpCode.AUTH, OpCode.CLOSE_SESSION]), st.none()),
)
connect_requests = st.builds(
    messages.ConnectRequest, int64, int32, int64, st.binary(max_size=16), st.none() | st.booleans(), int32
)
connect_responses = st.builds(
    messages.ConnectResponse, int32, int64, st.binary(max_size=16), st.none() | st.booleans(), int32
)


def content(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


@given(int32, requests)
def test_requests_round_trip(xid, request):
    decoded_xid, decoded = jute.decode_request(content(jute.encode_request(xid, request)))
    assert (decoded_xid, type(decoded), decoded) == (xid, type(request), request)
    assert decoded.op == request.op


@given(int32, int64, responses)
def test_responses_round_trip(xid, zxid, op_and_response):
    op, response = op_and_response
    frame = content(jute.encode_response(xid, zxid, response))
    assert jute.decode_reply_header(frame) == (xid, zxid, 0)
    decoded = jute.decode_response(op, frame)
    assert (type(decoded), decoded) == (type(response), response)


@given(connect_requests, connect_responses)
def test_connect_round_trips(request, response):
    assert jute.decode_connect_request(content(jute.encode_connect_request(request))) == request
    assert jute.decode_connect_response(content(jute.encode_connect_response(response))) == response


@given(int32, int32, text)
def test_events_round_trip(kind, state, path):
    frame = content(jute.encode_event(messages.WatcherEvent(kind, state, path)))
    assert jute.decode_reply_header(frame) == (jute.XID_NOTIFICATION, -1, 0)
    assert jute.decode_event(frame) == (kind, state, path)


def test_error_replies_have_no_body():
    frame = content(jute.encode_error(7, 8, ZooKeeperErrorCode.NO_NODE))
    assert jute.decode_reply_header(frame) == (7, 8, -101)
    assert len(frame) == jute.REPLY_HEADER_BYTES


@given(requests)
def test_a_request_cut_short_is_refused_and_bytes_left_over_are_ignored(request):
    frame = content(jute.encode_request(1, request))
    for length in range(len(frame)):
        with pytest.raises(JuteError):
            jute.decode_request(frame[:length])
    assert jute.decode_request(frame + b"\0") == (1, request)


@given(responses)
def test_a_response_cut_short_or_with_bytes_left_over_is_refused(op_and_response):
    op, response = op_and_response
    frame = content(jute.encode_response(1, 1, response))
    for length in range(jute.REPLY_HEADER_BYTES, len(frame)):
        with pytest.raises(JuteError):
            jute.decode_response(op, frame[:length])
    with pytest.raises(JuteError):
        jute.decode_response(op, frame + b"\0")


@given(st.sampled_from([int(op) for op in OpCode] + [99]), st.binary(max_size=200))
def test_garbage_is_a_value_or_a_jute_error(op, garbage):
    for decode in (
        lambda: jute.decode_request(garbage),
        lambda: jute.decode_request(b"\0\0\0\1" + op.to_bytes(4, "big", signed=True) + garbage),
        lambda: jute.decode_response(op, bytes(jute.REPLY_HEADER_BYTES) + garbage),
        lambda: jute.decode_reply_header(garbage),
        lambda: jute.decode_event(garbage),
        lambda: jute.decode_connect_request(garbage),
        lambda: jute.decode_connect_response(garbage),
    ):
        with contextlib.suppress(JuteError):
            decode()


@given(requests, st.data())
def test_a_damaged_request_is_a_value_or_a_jute_error(request, draw):
    frame = bytearray(content(jute.encode_request(1, request)))
    position = draw.draw(st.integers(0, len(frame) - 1))
    frame[position] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(JuteError):
        jute.decode_request(bytes(frame))


def test_a_count_that_the_frame_cannot_hold_is_refused_before_it_costs_memory():
    header = (1).to_bytes(4, "big") + int(OpCode.SET_WATCHES).to_bytes(4, "big") + bytes(8)
    with pytest.raises(JuteError, match="do not fit"):
        jute.decode_request(header + (2**31 - 1).to_bytes(4, "big"))


def test_unknown_operations_are_named_not_refused():
    frame = (5).to_bytes(4, "big") + (107).to_bytes(4, "big") + b"anything"
    assert jute.decode_request(frame) == (5, messages.UnknownRequest(107))


@given(st.lists(st.binary(max_size=30), max_size=8), st.data())
def test_frames_come_out_whole_however_the_bytes_arrive(frames, draw):
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    splitter = FrameSplitter(100)
    seen = []
    while stream:
        size = draw.draw(st.integers(1, len(stream)))
        seen += splitter.feed(stream[:size])
        stream = stream[size:]
    assert seen == frames


@pytest.mark.parametrize("length", [-1, -(2**31), 101, 2**31 - 1])
def test_a_frame_of_impossible_length_is_refused(length):
    with pytest.raises(JuteError, match=str(length)):
        FrameSplitter(100).feed(length.to_bytes(4, "big", signed=True))


def test_known_bytes():
    """Written out by hand from zookeeper.jute."""
    assert jute.encode_request(1, messages.GetData("/a", True)) == bytes.fromhex(
        "0000000f 00000001 00000004 00000002 2f61 01"
    )
    assert jute.encode_connect_request(messages.ConnectRequest(2, 3, 4, b"pw")) == bytes.fromhex(
        "0000001f 00000000 0000000000000002 00000003 0000000000000004 00000002 7077 00"
    )
    assert jute.encode_request(2, messages.Multi((messages.Delete("/a", 5),))) == bytes.fromhex(
        "00000024 00000002 0000000e 00000002 00 ffffffff 00000002 2f61 00000005 ffffffff 01 ffffffff"
    )


def test_codes_and_exceptions():
    assert isinstance(error_for(-101, "/a"), NoNode)
    assert str(error_for(-101, "/a", index=2)) == "NO_NODE for /a (operation 2 of a multi)"
    unknown = error_for(-999, "/a")
    assert type(unknown) is ZooKeeperError
    assert unknown.code == -999
