"""Real processes: killed with -9 at random moments, restarted, and every acknowledged write is there."""

import asyncio
import random
from pathlib import Path

from klamm.zookeeper import messages
from klamm.zookeeper.messages import CreateMode
from support.zookeeper.embedded import EmbeddedZooKeeper
from support.zookeeper.wire import WireClient

ROUNDS = 10


class Acknowledged:
    """What the server has promised. `enough` is set when `target` writes have been acknowledged."""

    def __init__(self) -> None:
        self.target = 0
        self.enough = asyncio.Event()
        self.versions: dict[str, int] = {}
        self.sequentials: dict[str, None] = {}
        self.count = 0


async def write(port: int, path: str, acknowledged: Acknowledged) -> None:
    """Writes, pipelined, until the connection breaks."""
    client = await WireClient.connect(port)
    await client.call(messages.Create(path, b""))
    acknowledged.versions.setdefault(path, 0)
    while True:
        for _ in range(20):
            client.send(messages.SetData(path, b"data" * 20))
            client.send(messages.Create(f"{path}/n-", b"", flags=CreateMode.PERSISTENT_SEQUENTIAL))
            client.send(messages.Multi((messages.SetData(path, b"a"), messages.SetData(path, b"b"))))
        for _ in range(20):
            set_data, create, multi = await client.reply(), await client.reply(), await client.reply()
            assert isinstance(set_data.response, messages.StatResponse)
            assert isinstance(create.response, messages.CreateResponse)
            assert isinstance(multi.response, messages.MultiResponse)
            acknowledged.sequentials[create.response.path] = None
            stat = multi.response.results[1].stat
            assert stat is not None and stat.version == set_data.response.stat.version + 2
            acknowledged.versions[path] = stat.version
            acknowledged.count += 3
            if acknowledged.count >= acknowledged.target:
                acknowledged.enough.set()


async def check(port: int, acknowledged: Acknowledged) -> None:
    client = await WireClient.connect(port)
    names: dict[str, None] = {}
    for path, version in acknowledged.versions.items():
        reply = await client.call(messages.Exists(path))
        assert isinstance(reply.response, messages.StatResponse)
        assert reply.response.stat.version >= version
        children = await client.call(messages.GetChildren(path))
        assert isinstance(children.response, messages.GetChildrenResponse)
        names.update(dict.fromkeys(f"{path}/{name}" for name in children.response.children))
    assert not [path for path in acknowledged.sequentials if path not in names]
    await client.call(messages.CloseSession())


async def test_killed_ten_times_it_has_every_acknowledged_write(tmp_path: Path) -> None:
    chance = random.Random(1)
    server = EmbeddedZooKeeper(tmp_path)
    acknowledged = Acknowledged()

    async def attack() -> None:
        writers = [asyncio.ensure_future(write(server.port, f"/{number}", acknowledged)) for number in range(3)]
        acknowledged.enough = asyncio.Event()
        acknowledged.target = acknowledged.count + chance.randrange(2000)
        async with asyncio.timeout(120):
            await acknowledged.enough.wait()
        server.kill()
        for outcome in await asyncio.gather(*writers, return_exceptions=True):
            assert isinstance(outcome, OSError | EOFError), outcome

    for _ in range(ROUNDS):
        server.start(snapshot_every=chance.choice([300, 10**6]))
        await check(server.port, acknowledged)
        await attack()
    server.start()
    await check(server.port, acknowledged)
    server.stop()
    assert acknowledged.count > 5000


def test_a_directory_serves_one_server_at_a_time(tmp_path: Path) -> None:
    first, second = EmbeddedZooKeeper(tmp_path), EmbeddedZooKeeper(tmp_path)
    first.start()
    second.launch().wait_for("BlockingIOError.*locked by another process")
    first.kill()
    second.kill()
