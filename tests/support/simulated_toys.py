"""Toy programs for the simulator's own tests: protocols that record, and a counter that survives crashes."""

import asyncio
import struct
from collections.abc import Callable

from klamm.base.environment import Environment
from klamm.simulation.machine.world import World

PORT = 9000


class Recorder(asyncio.Protocol):
    """Keeps what it receives; `changed` is set whenever something happens."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.chunks: list[int] = []
        self.events: list[str] = []
        self.lost = False
        self.changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._note("made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.chunks.append(len(data))
        self.changed.set()

    def eof_received(self) -> None:
        self._note("eof")

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._note(f"lost {type(exc).__name__}" if exc else "lost")

    def _note(self, event: str) -> None:
        self.events.append(event)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def until_received(self, size_bytes: int) -> None:
        """Ends with the connection, too."""
        await self.until(lambda: self.lost or len(self.received) >= size_bytes)


class Echo(Recorder):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.write(data)


async def listen(factory: Callable[[], asyncio.BaseProtocol], port: int = PORT) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(factory, None, port)


async def connect(host: str, factory: Callable[[], Recorder] = Recorder, port: int = PORT) -> Recorder:
    """A connection, tried again until somebody listens."""
    while True:
        try:
            _, protocol = await asyncio.get_running_loop().create_connection(factory, host, port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)
        else:
            return protocol


class CounterServer:
    """Counts the bytes it receives; a byte is answered, with the count, once the count is durable."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.count = 0

    async def start(self) -> None:
        files = self.environment.file_system
        files.make_directories("/counter")
        for name in files.list_directory("/counter"):
            self.count = max(self.count, int(name))
        files.sync_directory("/")
        await listen(lambda: CounterConnection(self))

    def increment(self) -> int:
        self.count += 1
        self.environment.file_system.replace_file(f"/counter/{self.count}", b"")
        if self.count > 1:
            self.environment.file_system.remove(f"/counter/{self.count - 1}")
        return self.count


class CounterConnection(asyncio.Protocol):
    def __init__(self, server: CounterServer) -> None:
        self.server = server
        self.todo: asyncio.Queue[None] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.task = asyncio.get_running_loop().create_task(self.work())

    def data_received(self, data: bytes) -> None:
        for _ in data:
            self.todo.put_nowait(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.task.cancel()

    async def work(self) -> None:
        while True:
            await self.todo.get()
            count = await self.server.environment.run_blocking(self.server.increment)
            self.transport.write(struct.pack(">I", count))


async def count_to(host: str, target: int) -> list[int]:
    """Increments until `target`, over as many connections as it takes; returns all acknowledged counts."""
    acknowledged: list[int] = []
    while not acknowledged or acknowledged[-1] < target:
        connection = await connect(host)
        while not connection.lost and (not acknowledged or acknowledged[-1] < target):
            connection.transport.write(b"+")
            wanted = len(connection.received) + 4
            await connection.until_received(wanted)
            if len(connection.received) >= wanted:
                acknowledged += struct.unpack(">I", connection.received[wanted - 4 :])
        connection.transport.abort()
    return acknowledged


async def counter_scenario(world: World, *, machine: bool = False, crashes: int = 5) -> None:
    """A counter under crashes: what it has acknowledged, it never forgets."""
    server, client = world.node("server"), world.node("client")
    server.run(CounterServer(server.environment).start())
    counting = client.run(count_to("server", 60))
    for _ in range(crashes):
        await asyncio.sleep(world.random.uniform(0, 0.05))
        server.crash(machine=machine and world.random.random() < 0.5)
        await asyncio.sleep(world.random.uniform(0, 0.05))
        server.restart()
        server.run(CounterServer(server.environment).start())
    acknowledged = await counting
    assert acknowledged == sorted(set(acknowledged)), acknowledged


async def set_order_scenario(world: World) -> None:
    """The planted fault: the order of a set reaches the wire."""
    node = world.node("server")
    node.run(listen(Recorder))
    connection = await connect("server")
    for word in set(dict.fromkeys(["the", "order", "of", "a", "set", "strings"])):
        connection.transport.write(word.encode())
        await asyncio.sleep(1)
