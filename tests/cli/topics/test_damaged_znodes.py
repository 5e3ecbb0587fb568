"""The judge of `klamm topics describe --zookeeper`: what a damaged znode hides is never said to be fine."""

from collections.abc import Iterator

import pytest

from klamm.access.zookeeper import run_with_zookeeper
from klamm.znodes.store import KafkaZooKeeper
from support.command_world import CommandWorld

TOPIC, BROKER = "/brokers/topics/wrong", "/brokers/ids/1"
FILTERS = ("--under-replicated-partitions", "--unavailable-partitions", "--off-preferred-partitions")


def assigned(partitions: str) -> bytes:
    return b'{"version":2,"partitions":{%s},"adding_replicas":{},"removing_replicas":{}}' % partitions.encode()


DAMAGES = [
    *((path, data) for path in (TOPIC, BROKER) for data in (b"", b"{", b"[]")),
    (TOPIC, assigned("")),
    (TOPIC, assigned('"0":[]')),
    (TOPIC, assigned(f'"0":[0,{10**20}]')),
]


@pytest.fixture(scope="module")
def world() -> Iterator[CommandWorld]:
    with CommandWorld(brokers=2) as made:
        for topic in ("right", "wrong"):
            create = ("topics", "create", "--topic", topic, "--replica-assignment", "0:1")
            assert made.run(*create, "--bootstrap-server", made.bootstrap).code == 0
        yield made


@pytest.mark.parametrize(("path", "data"), DAMAGES)
def test_what_a_damaged_znode_hides_is_never_fine(world: CommandWorld, path: str, data: bytes) -> None:
    before = replaced(world, path, data)
    try:
        ended = world.run("topics", "describe", *FILTERS, "--zookeeper", world.zookeeper)
        assert (ended.code, ended.out) == (3, ""), ended
    finally:
        replaced(world, path, before)
    assert world.run("topics", "describe", *FILTERS, "--zookeeper", world.zookeeper).code == 0


COMMANDS = [
    (TOPIC, ("elect", "preferred", "--all-topic-partitions", "--yes")),
    (BROKER, ("elect", "preferred", "--topic", "right", "--yes")),
    (TOPIC, ("reassign", "list")),
    (BROKER, ("reassign", "list")),
    (TOPIC, ("reassign", "generate", "--broker-list", "0,1")),
]


@pytest.mark.parametrize(("path", "command"), COMMANDS)
def test_a_command_that_leaves_out_what_is_damaged_does_not_end_well(
    world: CommandWorld, path: str, command: tuple[str, ...]
) -> None:
    before = replaced(world, path, b"{")
    try:
        ended = world.run(*command, "--zookeeper", world.zookeeper)
        assert ended.code == 3, ended
    finally:
        replaced(world, path, before)
    assert world.run(*command, "--zookeeper", world.zookeeper).code == 0


def replaced(world: CommandWorld, path: str, data: bytes) -> bytes:
    """What the znode had before."""

    async def replace(znodes: KafkaZooKeeper) -> bytes:
        before, _ = await znodes.client.get(path)
        await znodes.client.set(path, data, -1)
        return before

    return run_with_zookeeper(world.zookeeper, replace)
