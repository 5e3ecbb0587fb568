"""A connection that is disturbed, and then whole again, on a broker's loop."""

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

import pytest

from klamm.faults.network.lanes import CLEAR, Conditions
from klamm.faults.network.network import jittered
from klamm.faults.network.tap import MAX_HELD_BYTES, Tap
from klamm.net.framing import ReceiveBuffer
from support.certificates import Authority

pytestmark = pytest.mark.loop("uvloop")

CUT = Conditions(is_cut=True)
LIMIT_S = 120.0


# How the two ends of the connections of a test are secured; empty without TLS.
_tls: dict[str, ssl.SSLContext] = {}


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ssl.SSLContext]:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory / "authority")
    for name, pem in zip(("certificate", "key"), authority.certificate("end", "IP:127.0.0.1"), strict=True):
        (directory / name).write_text(pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "certificate", directory / "key")
    return {"server": server, "client": ssl.create_default_context(cafile=authority.path)}


@pytest.fixture(params=["plaintext", "tls"], autouse=True)
def security(request: pytest.FixtureRequest, contexts: dict[str, ssl.SSLContext]) -> Iterator[None]:
    if request.param == "tls":
        _tls.update(contexts)
    yield
    _tls.clear()


class Noting:
    """Notes what happens to a protocol."""

    transport: Tap

    def __init__(self) -> None:
        self.received = bytearray()
        self.calls: list[str] = []
        self.error: BaseException | None = None
        self._news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Tap)
        self.transport = transport

    def took(self, data: bytes) -> None:
        self.received += data
        self._news.set()

    def note(self, call: str) -> None:
        self.calls.append(call)
        self._news.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.error = exc
        self.note("lost")

    def pause_writing(self) -> None:
        self.note("pause")

    def resume_writing(self) -> None:
        self.note("resume")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def has_received(self, data: bytes) -> None:
        await self.until(lambda: len(self.received) >= len(data))
        assert bytes(self.received) == data

    async def has_had(self, *calls: str) -> None:
        await self.until(lambda: len(self.calls) >= len(calls))
        assert self.calls == list(calls)


class Streaming(Noting, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        self.took(data)

    def eof_received(self) -> None:
        self.note("eof")


class Buffering(Noting, asyncio.BufferedProtocol):
    """Takes a few bytes at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = bytearray(1009)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.took(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        self.note("eof")


@dataclass
class Peer:
    """The other end, which has no tap."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def receives(self, data: bytes) -> None:
        async with asyncio.timeout(LIMIT_S):
            assert await self.reader.readexactly(len(data)) == data

    async def receives_nothing(self) -> None:
        """What could arrive has arrived when so much has gone through another connection."""
        await settled()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await self.reader.read(1)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def connected(protocol: Noting | None = None) -> AsyncIterator[tuple[Noting, Peer]]:
    """A tapped end and its peer."""
    arrived: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set_result(Peer(reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=_tls.get("server"))
    end = protocol or Streaming()
    tap = Tap(end, ReceiveBuffer(), lambda _: None)  # type: ignore[arg-type]
    _, port = server.sockets[0].getsockname()
    await asyncio.get_running_loop().create_connection(lambda: tap, "127.0.0.1", port, ssl=_tls.get("client"))
    peer = await arrived
    await settled()
    try:
        yield end, peer
    finally:
        end.transport.change(CLEAR, CLEAR)
        end.transport.abort()
        peer.writer.transport.abort()
        server.close()
        await settled()


def is_aside(end: Noting) -> bool:
    return end.transport._is_aside


async def test_without_a_fault_no_read_and_no_write_passes_through_the_tap() -> None:
    async with connected() as (end, peer):
        assert is_aside(end)
        inner = end.transport._transport
        direct: object = inner.get_protocol()
        assert direct is end
        assert end.transport.write == inner.write
        assert end.transport.writelines == inner.writelines
        end.transport.writelines([b"to ", b"the peer"])
        await peer.receives(b"to the peer")
        peer.writer.write(b"back")
        await end.has_received(b"back")


async def test_across_a_cut_no_bytes_pass_and_all_arrive_in_order_when_it_is_healed() -> None:
    async with connected() as (end, peer):
        end.transport.change(CUT, CUT)
        end.transport.write(b"one, ")
        end.transport.writelines([b"two, ", b"three"])
        peer.writer.write(b"four, five")
        await peer.receives_nothing()
        assert end.received == b""
        end.transport.change(CLEAR, CLEAR)
        end.transport.write(b", six")
        await peer.receives(b"one, two, three, six")
        await end.has_received(b"four, five")
        await settled()
        assert is_aside(end)


async def test_a_one_way_cut_holds_one_direction_only() -> None:
    async with connected() as (end, peer):
        end.transport.change(CUT, CLEAR)
        peer.writer.write(b"in")
        await end.has_received(b"in")
        end.transport.write(b"out")
        await peer.receives_nothing()
        end.transport.change(CLEAR, CUT)
        await peer.receives(b"out")
        peer.writer.write(b" again")
        await settled()
        assert end.received == b"in"
        end.transport.change(CLEAR, CLEAR)
        await end.has_received(b"in again")


async def test_a_protocol_that_takes_few_bytes_at_a_time_gets_all_of_them() -> None:
    data = random.Random(3).randbytes(300_000)
    async with connected(Buffering()) as (end, peer):
        end.transport.change(CLEAR, CUT)
        peer.writer.write(data[:200_000])
        await settled()
        end.transport.change(CLEAR, CLEAR)
        peer.writer.write(data[200_000:])
        await end.has_received(data)


async def test_a_peer_that_ends_behind_a_cut_is_noticed_when_it_is_healed() -> None:
    async with connected() as (end, peer):
        end.transport.change(CUT, CUT)
        peer.writer.write(b"last words")
        await peer.writer.drain()
        peer.writer.close()
        await settled()
        assert end.calls == []
        assert not end.transport.is_closing()
        end.transport.write(b"into the void")
        end.transport.change(CLEAR, CLEAR)
        await end.has_received(b"last words")
        await end.has_had("eof", "lost")


async def test_a_peer_that_resets_behind_a_cut_is_noticed_when_it_is_healed() -> None:
    async with connected() as (end, peer):
        end.transport.change(CUT, CUT)
        end.transport.set_write_buffer_limits(high=10, low=0)
        peer.writer.write(b"unread")
        end.transport.write(b"x" * 100)
        assert end.calls == ["pause"]
        peer.writer.transport.abort()
        await settled()
        assert end.calls == ["pause"]
        end.transport.change(CLEAR, CLEAR)
        await end.until(lambda: "lost" in end.calls)
        assert end.transport.is_closing()


async def test_the_end_of_a_connection_that_is_closed_behind_a_cut_reaches_the_peer_when_it_is_healed() -> None:
    async with connected() as (end, peer):
        end.transport.change(CUT, CUT)
        end.transport.write(b"bye")
        end.transport.close()
        await end.has_had("lost")
        assert end.error is None
        await peer.receives_nothing()
        end.transport.change(CLEAR, CLEAR)
        await peer.receives(b"bye")
        assert await peer.reader.read() == b""


async def test_a_connection_that_is_aborted_behind_a_cut_ends_at_the_peer_when_it_is_healed() -> None:
    async with connected() as (end, peer):
        end.transport.change(CUT, CUT)
        end.transport.write(b"never sent")
        end.transport.abort()
        end.transport.abort()
        await end.has_had("lost")
        await peer.receives_nothing()
        end.transport.change(CLEAR, CLEAR)
        assert await peer.reader.read() == b""


async def test_a_cut_that_comes_while_a_connection_closes_ends_it_for_its_own_protocol() -> None:
    async with connected() as (end, peer):
        end.transport.change(Conditions(delays=(lambda: 60.0,)), CLEAR)
        end.transport.write(b"late")
        end.transport.close()
        await settled()
        assert end.calls == []
        end.transport.change(CUT, CUT)
        await end.has_had("lost")
        end.transport.change(CLEAR, CLEAR)
        await peer.receives(b"late")


async def test_delayed_bytes_arrive_later_and_in_order() -> None:
    async with connected() as (end, peer):
        loop = asyncio.get_running_loop()
        chance = random.Random(5)
        late = Conditions(delays=(jittered(0.03, 0.03, chance), lambda: 0.05))
        end.transport.change(late, late)
        started_s = loop.time()
        for number in range(50):
            end.transport.write(b"%03d" % number)
            peer.writer.write(b"%03d" % number)
        everything = b"".join(b"%03d" % number for number in range(50))
        await peer.receives(everything)
        await end.has_received(everything)
        assert loop.time() - started_s >= 0.049
        end.transport.close()
        await end.has_had("lost")


async def test_bytes_of_a_slow_connection_arrive_at_its_rate() -> None:
    async with connected() as (end, peer):
        loop = asyncio.get_running_loop()
        end.transport.change(Conditions(bytes_per_s=100_000), CLEAR)
        started_s = loop.time()
        end.transport.write(bytes(20_000))
        await peer.receives(bytes(20_000))
        assert 0.15 <= loop.time() - started_s <= 2


async def test_a_rate_of_one_byte_a_second_passes_bytes_one_by_one() -> None:
    async with connected() as (end, peer):
        end.transport.change(Conditions(bytes_per_s=1), CLEAR)
        end.transport.write(b"abc")
        await peer.receives(b"a")
        await peer.receives_nothing()
        end.transport.change(CLEAR, CLEAR)
        await peer.receives(b"bc")


async def test_a_protocol_that_writes_behind_a_cut_is_paused_and_resumed() -> None:
    async with connected() as (end, peer):
        end.transport.set_write_buffer_limits(high=1000, low=0)
        end.transport.change(CUT, CLEAR)
        end.transport.write(bytes(1000))
        assert end.calls == []
        end.transport.write(bytes(1))
        assert end.calls == ["pause"]
        assert end.transport.get_write_buffer_size() == 1001
        end.transport.change(CLEAR, CLEAR)
        await peer.receives(bytes(1001))
        await end.has_had("pause", "resume")


async def test_a_cut_takes_over_what_the_system_does_not_take() -> None:
    data = random.Random(1).randbytes(20_000_000)
    async with connected() as (end, peer):
        end.transport.write(data[:19_000_000])
        end.transport.change(CUT, CLEAR)
        end.transport.write(data[19_000_000:])
        end.transport.change(CLEAR, CLEAR)
        await peer.receives(data)
        await settled()
        assert end.calls[-1] == "resume"
        assert is_aside(end)


async def test_a_tap_reads_a_bounded_number_of_bytes_ahead_of_a_cut() -> None:
    async with connected() as (end, peer):
        end.transport.change(CLEAR, CUT)
        peer.writer.write(bytes(50_000_000))
        for _ in range(5):
            await settled()
        assert MAX_HELD_BYTES <= end.transport._incoming.held_bytes < MAX_HELD_BYTES + 300_000
        end.transport.change(CLEAR, CLEAR)
        await end.has_received(bytes(50_000_000))


async def test_a_protocol_that_has_paused_reading_gets_nothing_until_it_resumes() -> None:
    async with connected() as (end, peer):
        end.transport.pause_reading()
        end.transport.change(CUT, CUT)
        assert not end.transport.is_reading()
        peer.writer.write(b"waits")
        await settled()
        end.transport.change(CLEAR, CLEAR)
        await settled()
        assert end.received == b""
        end.transport.resume_reading()
        await end.has_received(b"waits")
        end.transport.change(CUT, CUT)
        end.transport.pause_reading()
        end.transport.change(CLEAR, CLEAR)
        await settled()
        assert is_aside(end)
        assert not end.transport.is_reading()
        peer.writer.write(b" still")
        await settled()
        assert end.received == b"waits"
        end.transport.resume_reading()
        await end.has_received(b"waits still")


async def test_a_reset_is_seen_at_both_ends() -> None:
    async with connected() as (end, peer):
        end.transport.reset()
        await end.has_had("lost")
        assert isinstance(end.error, ConnectionResetError)
        with pytest.raises(ConnectionResetError):
            await peer.reader.read()


async def test_a_connection_that_this_end_has_lost_stays_open_and_silent_for_the_peer() -> None:
    async with connected() as (end, peer):
        end.transport.drop_here()
        await end.has_had("lost")
        end.transport.write(b"dropped")
        peer.writer.write(b"is there anybody?")
        await peer.receives_nothing()
        assert end.received == b""
        end.transport.end_half_open()
        with pytest.raises(ConnectionResetError):
            await peer.reader.read()


async def test_a_connection_that_the_peer_has_lost_stays_open_and_silent_for_this_end() -> None:
    async with connected() as (end, peer):
        end.transport.set_write_buffer_limits(high=1000, low=0)
        end.transport.drop_there()
        with pytest.raises(ConnectionResetError):
            await peer.reader.read()
        end.transport.write(bytes(2000))
        await settled()
        assert end.calls == ["pause"]
        assert not end.transport.is_closing()
        assert end.transport.get_extra_info("socket") is None
        end.transport.change(CLEAR, CLEAR)
        await settled()
        assert end.calls == ["pause"]
        end.transport.end_half_open()
        await end.has_had("pause", "lost")
        assert isinstance(end.error, ConnectionResetError)


async def test_random_faults_neither_lose_nor_double_nor_reorder_a_byte() -> None:
    for seed in range(8):
        chance = random.Random(seed)
        out, back = chance.randbytes(400_000), chance.randbytes(400_000)
        states = [
            CLEAR,
            CUT,
            Conditions(delays=(jittered(0.002, 0.002, chance),)),
            Conditions(bytes_per_s=40_000_000),
            Conditions(is_cut=True, delays=(jittered(0.001, 0.001, chance),)),
        ]
        async with connected(Buffering() if seed % 2 else Streaming()) as (end, peer):
            receiving = asyncio.ensure_future(peer.reader.readexactly(len(out)))
            position = 0
            while position < len(out):
                size = chance.choice((1, 100, 30_000))
                end.transport.write(out[position : position + size])
                peer.writer.write(back[position : position + size])
                position += size
                if chance.random() < 0.5:
                    end.transport.change(chance.choice(states), chance.choice(states))
                if chance.random() < 0.1:
                    chance.choice((end.transport.pause_reading, end.transport.resume_reading))()
                if chance.random() < 0.5:
                    await asyncio.sleep(chance.choice((0, 0.001)))
            end.transport.change(CLEAR, CLEAR)
            end.transport.resume_reading()
            async with asyncio.timeout(LIMIT_S):
                assert await receiving == out
            await end.has_received(back)
            await settled()
            assert is_aside(end)
