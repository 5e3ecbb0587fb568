"""Frames are cut correctly however the stream is chopped, and memory follows the data."""

import asyncio
import struct

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.net.framing import FIRST_ALLOCATION_BYTES, RECEIVE_BUFFER_BYTES, FrameReader, ReceiveBuffer


class FakeTransport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.closing = False

    def is_closing(self):
        return self.closing


class Recorder(FrameReader):
    def __init__(self, limit=lambda key: 100_000_000, receive_buffer=None, close_after=None):
        super().__init__(limit, receive_buffer)
        self.frames = []
        self.errors = []
        self.close_after = close_after
        self.transport = FakeTransport()
        self.connection_made(self.transport)

    def frame_received(self, frame):
        self.frames.append(frame)
        if len(self.frames) == self.close_after:
            self.transport.closing = True

    def frame_error(self, reason):
        self.errors.append(reason)


def feed(reader, data, largest=1 << 30):
    """Receives `data` as a transport would: as much as fits each time, at most `largest` bytes."""
    view = memoryview(data)
    while view:
        buffer = reader.get_buffer(-1)
        count = min(len(buffer), len(view), largest)
        assert count > 0
        buffer[:count] = view[:count]
        reader.buffer_updated(count)
        del buffer
        view = view[count:]


def framed(*bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


SIZES = st.one_of(st.integers(0, 40), st.integers(15_000, 140_000), st.sampled_from([FIRST_ALLOCATION_BYTES * 2 + 17]))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(SIZES, max_size=12),
    chunks=st.lists(st.one_of(st.integers(1, 7), st.integers(1, 200_000)), min_size=1, max_size=20),
)
def test_frames_survive_any_chopping(sizes, chunks):
    bodies = [bytes([index]) * size for index, size in enumerate(sizes)]
    stream = memoryview(framed(*bodies))
    reader = Recorder()
    for index in range(len(stream)):
        if not stream:
            break
        count = chunks[index] if index < len(chunks) else 300_000
        feed(reader, stream[:count])
        stream = stream[count:]
    assert [bytes(frame) for frame in reader.frames] == bodies
    assert all(type(frame) is bytearray for frame in reader.frames)
    assert not reader.mid_frame and not reader.errors


def test_one_byte_at_a_time():
    bodies = [b"", b"a", b"ab", b"abcdefg" * 10]
    reader = Recorder()
    feed(reader, framed(*bodies), largest=1)
    assert [bytes(frame) for frame in reader.frames] == bodies


def test_connections_share_a_receive_buffer():
    shared = ReceiveBuffer()
    first, second = Recorder(receive_buffer=shared), Recorder(receive_buffer=shared)
    one, two = framed(b"1" * 100, b"2" * 50), framed(b"x" * 99, b"y" * 70_000)
    for position in range(0, max(len(one), len(two)), 3):
        feed(first, one[position : position + 3])
        feed(second, two[position : position + 3])
    assert [bytes(frame) for frame in first.frames] == [b"1" * 100, b"2" * 50]
    assert [bytes(frame) for frame in second.frames] == [b"x" * 99, b"y" * 70_000]


def test_a_large_frame_is_received_in_place():
    reader = Recorder()
    body = bytes(500_000)
    feed(reader, framed(body)[:10])
    assert len(reader.get_buffer(-1)) == 500_000 - 6
    feed(reader, framed(body)[10:])
    assert reader.frames == [body]


def test_memory_follows_the_data():
    reader = Recorder()
    feed(reader, struct.pack(">ih", 90_000_000, 0))
    assert len(reader._frame or b"") == FIRST_ALLOCATION_BYTES
    feed(reader, bytes(5_000_000))
    assert len(reader._frame or b"") <= 10_000_100
    assert reader.mid_frame and not reader.frames


@pytest.mark.parametrize("size", [-1, -(2**31), 1001, 2**31 - 1])
def test_a_size_outside_the_limit_is_an_error_and_ends_the_stream(size):
    reader = Recorder(limit=lambda key: 1000)
    feed(reader, framed(b"good") + struct.pack(">ih", size, 3))
    assert reader.frames == [b"good"]
    assert len(reader.errors) == 1 and str(size) in reader.errors[0] and "1000" in reader.errors[0]
    feed(reader, framed(b"more"))
    assert reader.frames == [b"good"] and len(reader.errors) == 1
    assert reader._frame is None


def test_the_limit_depends_on_the_api():
    limits = {0: 2000, 3: 100}
    asked = []

    def limit(key):
        asked.append(key)
        return limits.get(key, 1)

    reader = Recorder(limit)
    feed(reader, framed(struct.pack(">h", 0) + bytes(1500), b"", b"z"))
    assert len(reader.frames) == 3 and asked == [0, None, None]
    feed(reader, framed(struct.pack(">h", 3) + bytes(1500)), largest=5)
    assert "1502" in reader.errors[0] and len(reader.frames) == 3


def test_no_frame_after_the_transport_closes():
    reader = Recorder(close_after=2)
    feed(reader, framed(b"a", b"b", b"c", b"d"))
    assert reader.frames == [b"a", b"b"]


def test_the_transport_may_hold_its_view_while_the_frame_grows():
    # asyncio's selector transport keeps the buffer it was given until after buffer_updated.
    reader = Recorder()
    size = 3 * FIRST_ALLOCATION_BYTES
    stream = memoryview(framed(bytes(size)))
    while stream:
        buffer = reader.get_buffer(-1)
        count = min(len(buffer), len(stream), RECEIVE_BUFFER_BYTES)
        buffer[:count] = stream[:count]
        reader.buffer_updated(count)
        del buffer
        stream = stream[count:]
    assert reader.frames == [bytes(size)]


def test_over_a_real_connection():
    async def run():
        bodies = [b"x" * size for size in (0, 1, 10, 70_000, 3_000_000, 5)]
        done = asyncio.get_running_loop().create_future()

        class Server(Recorder):
            def connection_made(self, transport):
                FrameReader.connection_made(self, transport)
                self.transport = transport

            def frame_received(self, frame):
                self.frames.append(frame)
                if len(self.frames) == len(bodies):
                    done.set_result(self.frames)
                    self.transport.close()

        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(framed(*bodies))
        assert await done == bodies
        writer.close()
        server.close()

    for new_event_loop in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(run())
