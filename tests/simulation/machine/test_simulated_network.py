import asyncio
import random
import socket

import pytest

from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World
from support.simulated_toys import Echo, Recorder, connect, listen

SEEDS = range(20)


def run(scenario, seed=1):
    world = World(seed)
    return world.run(scenario(world))


def pair(world, client_factory=Recorder, server_factory=Recorder):
    """A connection from node b to node a; both protocols, once both are there."""
    servers = []

    def accept():
        servers.append(server_factory())
        return servers[-1]

    async def both():
        await world.node("a").run(listen(accept))
        client = await world.node("b").run(connect("a", client_factory))
        return client, servers[0]

    return both()


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_arrive_in_order_whatever_their_cut(seed):
    async def scenario(world):
        client, _ = await pair(world, server_factory=Echo)
        data = random.Random(seed).randbytes(300_000)
        position = 0
        while position < len(data):
            size = world.random.choice((1, 4, 100, 5_000, 100_000))
            client.transport.write(data[position : position + size])
            position += size
            if world.random.random() < 0.2:
                await asyncio.sleep(world.random.uniform(0, 0.002))
        await client.until(lambda: len(client.received) == len(data))
        assert client.received == data

    run(scenario, seed)


def test_segments_are_split_and_joined():
    async def scenario(world):
        client, server = await pair(world)
        for _ in range(200):
            client.transport.write(bytes(10))
        await server.until(lambda: len(server.received) == 2000)
        assert min(server.chunks) < 10 < max(server.chunks)

    run(scenario)


class Buffered(asyncio.BufferedProtocol):
    def __init__(self):
        self.buffer = bytearray(1000)
        self.received = bytearray()
        self.ended = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.received += self.buffer[:nbytes]
        # Nobody may hold the buffer here: a bytearray that is exported cannot change its size.
        self.buffer += b" "
        del self.buffer[-1:]

    def eof_received(self):
        self.ended.set()


def test_buffered_protocols():
    async def scenario(world):
        client, server = await pair(world, server_factory=Buffered)
        data = random.Random(1).randbytes(50_000)
        client.transport.writelines([data[:1], data[1:30_000], memoryview(data)[30_000:]])
        client.transport.write_eof()
        await server.ended.wait()
        assert server.received == data

    run(scenario)


def test_addresses():
    async def scenario(world):
        client, server = await pair(world)
        a, b = world.node("a"), world.node("b")
        assert client.transport.get_extra_info("peername") == (a.address, 9000)
        assert client.transport.get_extra_info("sockname")[0] == b.address
        assert server.transport.get_extra_info("peername") == client.transport.get_extra_info("sockname")
        assert client.transport.get_extra_info("socket") is None
        assert client.transport.get_extra_info("other", 5) == 5
        assert (await a.run(connect(a.address))).transport.get_extra_info("peername") == (a.address, 9000)
        assert (await a.run(connect("localhost"))).transport.get_extra_info("peername") == (a.address, 9000)
        info = await asyncio.get_running_loop().getaddrinfo("a", 9000)
        assert info == [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (a.address, 9000))]
        with pytest.raises(socket.gaierror):
            await connect("nowhere")

    run(scenario)


def test_ports():
    async def scenario(world):
        a = world.node("a")
        server = await a.run(listen(Recorder, 0))
        port = server.sockets[0].getsockname()[1]
        assert port > 0
        with pytest.raises(OSError, match="in use"):
            await a.run(listen(Recorder, port))
        await world.node("b").run(listen(Recorder, port))
        server.close()
        assert not server.is_serving()
        await server.wait_closed()
        await a.run(listen(Recorder, port))

    run(scenario)


def test_only_own_addresses_can_be_bound():
    async def scenario(world):
        world.node("b")

        async def bind(host):
            await asyncio.get_running_loop().create_server(Recorder, host, 0)

        a = world.node("a")
        for host in (None, "", "0.0.0.0", "a", "localhost", a.address, ["a"]):
            await a.run(bind(host))
        with pytest.raises(OSError, match="not an address of a"):
            await a.run(bind("b"))

    run(scenario)


def test_connections_wait_for_start_serving():
    async def scenario(world):
        a = world.node("a")

        async def bind():
            return await asyncio.get_running_loop().create_server(Recorder, None, 9000, start_serving=False)

        server = await a.run(bind())
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(Recorder, "a", 9000)
        await server.start_serving()
        await asyncio.get_running_loop().create_connection(Recorder, "a", 9000)

    run(scenario)


def test_wait_closed_waits_for_the_connections():
    async def scenario(world):
        server = await world.node("a").run(listen(Recorder))
        client = await connect("a")
        server.close()
        waiting = asyncio.ensure_future(server.wait_closed())
        await asyncio.sleep(1)
        assert not waiting.done()
        client.transport.close()
        await waiting

    run(scenario)


def test_close_delivers_everything_and_then_the_end():
    async def scenario(world):
        client, server = await pair(world)
        client.transport.write(bytes(1_000_000))
        client.transport.close()
        assert client.transport.is_closing()
        client.transport.write(b"too late")
        await server.until(lambda: server.lost)
        await client.until(lambda: client.lost)
        assert len(server.received) == 1_000_000
        assert server.events == ["made", "eof", "lost"]
        assert client.events[-1] == "lost"

    run(scenario)


def test_half_close():
    class Answer(Recorder):
        def eof_received(self):
            self.transport.write(b"answer")
            self.transport.close()
            return True

    async def scenario(world):
        client, server = await pair(world, server_factory=Answer)
        client.transport.write(b"question")
        client.transport.write_eof()
        with pytest.raises(RuntimeError):
            client.transport.write(b"more")
        await client.until(lambda: client.lost)
        assert server.received == b"question"
        assert client.received == b"answer"

    run(scenario)


def test_abort_ends_the_peer_one_way_or_the_other():
    async def scenario(world):
        client, server = await pair(world)
        client.transport.write(bytes(10_000))
        client.transport.write(bytes(10_000))
        client.transport.abort()
        await client.until(lambda: client.lost)
        await server.until(lambda: server.lost)
        assert client.events == ["made", "lost"]
        return len(server.received), server.events[1]

    outcomes = {run(scenario, seed) for seed in range(20)}
    assert {size for size, _ in outcomes} == {0, 10_000, 20_000}
    assert {end for _, end in outcomes} == {"eof", "lost ConnectionResetError"}


def test_writing_to_a_closed_peer_is_reset():
    async def scenario(world):
        client, server = await pair(world)
        server.eof_received = lambda: True
        client.transport.close()
        await client.until(lambda: client.lost)
        await asyncio.sleep(1)
        server.transport.write(b"anybody there?")
        await server.until(lambda: server.lost)
        assert server.events[-1] == "lost ConnectionResetError"

    run(scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_reader_pauses_the_writer(seed):
    async def scenario(world):
        client, server = await pair(world)
        client.transport.set_write_buffer_limits(high=10_000, low=1_000)
        assert client.transport.get_write_buffer_limits() == (1_000, 10_000)
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        written = 0
        while client.events[-1] != "pause":
            client.transport.write(bytes(5_000))
            written += 5_000
        assert client.transport.get_write_buffer_size() > 10_000
        await asyncio.sleep(10)
        assert client.events[-1] == "pause"
        assert not server.received
        server.transport.resume_reading()
        await client.until(lambda: client.events[-1] == "resume")
        await server.until(lambda: len(server.received) == written)
        assert client.transport.get_write_buffer_size() == 0

    run(scenario, seed)


def test_pausing_inside_data_received_holds_the_rest():
    class OneAtATime(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()

    async def scenario(world):
        client, server = await pair(world, server_factory=OneAtATime)
        for _ in range(5):
            client.transport.write(bytes(100))
        await asyncio.sleep(1)
        assert len(server.chunks) == 1
        while len(server.received) < 500:
            server.transport.resume_reading()
            await asyncio.sleep(1)
        assert len(server.chunks) > 1

    run(scenario)


def test_refused_and_no_route():
    async def scenario(world):
        world.node("a")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.get_running_loop().create_connection(Recorder, "a", 9000)
        await world.node("a").run(listen(Recorder))
        world.network.cut("a", "scenario")
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await asyncio.get_running_loop().create_connection(Recorder, "a", 9000)
        assert asyncio.get_running_loop().time() - began == pytest.approx(127)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await connect("a")
        connecting = asyncio.ensure_future(connect("a"))
        await asyncio.sleep(10)
        world.network.heal("a", "scenario")
        await connecting

    run(scenario)


def test_a_cut_link_holds_what_is_under_way():
    async def scenario(world):
        client, server = await pair(world)
        world.network.cut("b", "a")
        client.transport.write(b"late")
        server.transport.write(b"late too")
        await asyncio.sleep(60)
        assert not server.received and not client.received
        world.network.heal("a", "b")
        await server.until(lambda: server.received == b"late")
        await client.until(lambda: client.received == b"late too")

    run(scenario)


def test_a_link_cut_for_long_ends_the_connections_that_write():
    async def scenario(world):
        client, server = await pair(world)
        world.network.cut("a", "b")
        for _ in range(100):
            client.transport.write(b"hello?")
            await asyncio.sleep(10)
        assert client.events[-1] == "lost TimeoutError"
        assert not server.lost

    run(scenario)


def test_a_link_cut_one_way():
    async def scenario(world):
        client, server = await pair(world)
        world.network.cut_one_way("b", "a")
        client.transport.write(b"held")
        server.transport.write(b"passes")
        await client.until(lambda: client.received == b"passes")
        await asyncio.sleep(60)
        assert not server.received
        world.network.heal("b", "a")
        await server.until(lambda: server.received == b"held")

    run(scenario)


@pytest.mark.parametrize("source, target", [("a", "scenario"), ("scenario", "a")])
def test_no_connection_over_a_link_cut_one_way(source, target):
    async def scenario(world):
        await world.node("a").run(listen(Recorder))
        world.network.cut_one_way(source, target)
        connecting = asyncio.ensure_future(connect("a"))
        await asyncio.sleep(10)
        assert not connecting.done()
        world.network.heal_all()
        await connecting

    run(scenario)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_arrives_and_is_never_acknowledged_fills_the_sender_up(seed):
    async def scenario(world):
        client, server = await pair(world)
        world.network.cut_one_way("a", "b")
        written = 0
        while client.events[-1] != "pause":
            client.transport.write(bytes(5_000))
            written += 5_000
            await asyncio.sleep(0.1)
        arrived = len(server.received)
        assert arrived == client.transport.outgoing.send_buffer_bytes < written
        world.network.heal("a", "b")
        await server.until(lambda: len(server.received) == written)
        await client.until(lambda: client.events[-1] == "resume")
        assert client.transport.get_write_buffer_size() == 0

    run(scenario, seed)


def test_what_is_never_acknowledged_ends_the_connection_of_its_sender():
    async def scenario(world):
        client, server = await pair(world)
        world.network.cut_one_way("a", "b")
        client.transport.write(b"hello")
        await server.until(lambda: server.received == b"hello")
        await asyncio.sleep(900)
        assert not client.lost
        await asyncio.sleep(100)
        assert client.events[-1] == "lost TimeoutError"

    run(scenario)


def test_a_cancelled_connect_leaves_nothing_open():
    async def scenario(world):
        servers = []
        world.node("a")
        await world.node("a").run(listen(lambda: servers.append(Recorder()) or servers[-1]))
        for delay_us in range(0, 1000, 20):
            connecting = asyncio.ensure_future(connect("a"))
            await asyncio.sleep(delay_us / 1e6)
            connecting.cancel()
            await asyncio.sleep(1)
            if connecting.cancelled():
                assert all(server.lost for server in servers), delay_us
            else:
                connecting.result().transport.abort()
                await asyncio.sleep(1)
        assert servers

    run(scenario)


def test_a_buffer_changed_after_write_fails_the_run():
    async def scenario(world):
        client, _ = await pair(world)
        buffer = bytearray(b"precious")
        client.transport.write(buffer)
        buffer[0] = 0
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailure, match="Exception in callback") as failure:
        run(scenario)
    assert "changed a buffer of 8 bytes after it was written" in str(failure.value.__cause__)


def test_a_fault_of_a_protocol_fails_the_run():
    class Broken(Recorder):
        def data_received(self, data):
            raise KeyError("broken")

    async def scenario(world):
        client, _ = await pair(world, server_factory=Broken)
        client.transport.write(b"x")
        await asyncio.sleep(1)

    with pytest.raises(SimulationFailure) as failure:
        run(scenario)
    assert isinstance(failure.value.__cause__, KeyError)


def test_frames_are_traced():
    async def scenario(world):
        client, server = await pair(world)
        for size in (9, 1, 5_000):
            client.transport.write(size.to_bytes(4))
            client.transport.write(b"123456789" if size == 9 else bytes(size))
        await server.until(lambda: len(server.received) == 5_022)
        return [line.split()[1:] for line in world.trace.lines if " frame " in line]

    for seed in SEEDS:
        frames = run(scenario, seed)
        assert [(where, int(size)) for where, _, size, _ in frames] == [
            ("b:32768>a:9000", 9),
            ("b:32768>a:9000", 1),
            ("b:32768>a:9000", 5_000),
        ]
        assert frames[0][3] == "e3069283"


def test_deliveries_are_traced():
    async def scenario(world):
        client, server = await pair(world)
        client.transport.write(b"123456789")
        await server.until(lambda: len(server.received) == 9)
        client.transport.close()
        await server.until(lambda: server.lost)
        return world.trace.lines

    for seed in SEEDS:
        lines = [line.split()[1:] for line in run(scenario, seed)]
        if ["b:32768>a:9000", "deliver", "9", "e3069283"] in lines:  # the check value of CRC32C
            break
    else:
        pytest.fail("never delivered in one piece")
    assert lines[0] == ["a:9000", "listen"]
    assert lines[1] == ["b:32768>a:9000", "connect"]
    assert lines[-1] == ["a:9000>b:32768", "eof"] or ["b:32768>a:9000", "eof"] in lines


def test_all_connections_between_two_machines_end_and_no_others():
    async def scenario(world):
        client, server = await pair(world)
        other = await world.node("c").run(connect("a", Recorder))
        client.transport.write(b"under way")
        world.network.end_connections("a", "b")
        await asyncio.sleep(0.01)
        assert [client.events[-1], server.events[-1]] == ["lost ConnectionResetError"] * 2
        assert not other.transport.is_closing()

    run(scenario)
