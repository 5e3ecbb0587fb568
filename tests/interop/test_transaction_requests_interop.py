"""Transactions, request by request: klamm answers as Apache Kafka 2.8.2 does, and writes the same records.

Each scenario runs on a broker of each program, in the same order. Compared are every answer, the keys and values of
`__transaction_state`, and the batches of the scenario's topic: everything but the times.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import groupby
from pathlib import Path

import pytest

from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support.oracles import RealKafka, RealZooKeeper, java_tool
from support.transaction_requests import (
    GROUP_METADATA_TOPIC_NAME,
    PARTITIONS,
    PROPERTIES,
    Logged,
    Producer,
    Wire,
    in_order,
)

ORACLE = Path(__file__).with_name("TransactionState.java")
UNKNOWN_TOPIC = "no-such-topic"

Scenario = Callable[[Wire], Awaitable[None]]
Wires = Callable[[], AbstractAsyncContextManager[dict[str, Wire]]]


@pytest.fixture(scope="module")
def kafka(
    kafka_jars: Path, real_zookeeper: RealZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealKafka]:
    directory = tmp_path_factory.mktemp("kafka")
    server = RealKafka(kafka_jars, directory, f"{real_zookeeper.connect}/transactions", properties=PROPERTIES)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def klamm(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=1, properties=PROPERTIES, helper=klamm_helper) as cluster:
        yield cluster


@pytest.fixture
def wires(request: pytest.FixtureRequest, kafka: RealKafka, klamm: Cluster) -> Wires:
    """Connections to the broker of each program, and a topic of the test's own on both."""
    topic = "".join(letter if letter.isalnum() else "-" for letter in request.node.name).strip("-")

    @asynccontextmanager
    async def connected() -> AsyncIterator[dict[str, Wire]]:
        opened = {name: await Wire.connect(at, topic) for name, at in addresses.items()}
        try:
            yield opened
        finally:
            for wire in opened.values():
                await wire.close()

    addresses = {"kafka": kafka.bootstrap, "klamm": klamm.bootstrap}
    return connected


async def finish(wire: Wire, transactional_id: str, producer: Producer, *, commit: bool) -> None:
    """Ends a transaction, and returns when its markers are written: before, its end may not be asked for again."""
    await wire.end(transactional_id, producer, commit=commit)
    await wire.end(transactional_id, producer, commit=commit)


async def commits_and_aborts(wire: Wire) -> None:
    """Transactions over several partitions and a group, one after another."""
    id_, (first, second) = "lifecycle", wire.partitions(0, 1)
    producer = await wire.init(id_)
    await wire.add_partitions(id_, producer, [first])
    await wire.produce(id_, producer, 0, 0, [b"a", b"b"])
    await wire.fetch(0, committed=True)
    await wire.add_partitions(id_, producer, [second])
    await wire.produce(id_, producer, 1, 0, [b"c"])
    await wire.add_partitions(id_, producer, [first])
    await wire.add_offsets(id_, producer, "g")
    await wire.commit_offsets(id_, producer, "g", {first: 7})
    await wire.fetch_offsets("g", require_stable=True)
    await wire.fetch_offsets("g", require_stable=False)
    await wire.describe_producers(0, 1, 2, PARTITIONS)
    await wire.end(id_, producer, commit=True)
    await wire.end(id_, producer, commit=True)
    await wire.end(id_, producer, commit=False)
    await wire.fetch_offsets("g", require_stable=True, has_ended=True)
    await wire.fetch(0, committed=True)

    await wire.add_partitions(id_, producer, [first, second])
    await wire.produce(id_, producer, 0, 2, [b"d"])
    await wire.produce(id_, producer, 1, 1, [b"e"])
    await wire.add_offsets(id_, producer, "g")
    await wire.commit_offsets(id_, producer, "g", {first: 9, second: 3})
    await finish(wire, id_, producer, commit=False)
    await wire.end(id_, producer, commit=False)
    await wire.end(id_, producer, commit=True)
    await wire.fetch_offsets("g", require_stable=True, has_ended=True)
    for partition in (0, 1):
        await wire.fetch(partition, committed=True)
        await wire.fetch(partition, committed=False)
    # A transaction that only has offsets, and one that has nothing.
    await wire.add_offsets(id_, producer, "g")
    await wire.commit_offsets(id_, producer, "g", {first: 10})
    await finish(wire, id_, producer, commit=True)
    await wire.fetch_offsets("g", require_stable=True, has_ended=True)
    await wire.end(id_, producer, commit=True)


async def another_producer_takes_over(wire: Wire) -> None:
    """The second producer with an id aborts what the first has begun, and the first is fenced everywhere."""
    id_, [place] = "taken over", wire.partitions(0)
    old = await wire.init(id_)
    await wire.add_partitions(id_, old, [place])
    await wire.produce(id_, old, 0, 0, [b"lost"])
    new = await wire.init(id_, timeout_ms=30_000)
    await wire.produce(id_, old, 0, 1, [b"fenced"])
    await wire.describe_producers(0)
    for version in (3, 2, 1, 0):
        await wire.add_partitions(id_, old, [place], version=version)
        await wire.add_offsets(id_, old, "g", version=version)
        await wire.end(id_, old, commit=True, version=version)
        await wire.end(id_, old, commit=False, version=version)
        await wire.commit_offsets(id_, old, "g", {place: 1}, version=version)
    await wire.add_partitions(id_, new, [place])
    await wire.produce(id_, new, 0, 0, [b"kept"])
    await finish(wire, id_, new, commit=True)
    await wire.fetch(0, committed=True)
    # Nothing was open: the epoch grows all the same.
    await wire.init(id_)


async def a_producer_asks_for_its_next_epoch(wire: Wire) -> None:
    """KIP-360: with its id and epoch a producer gets the next epoch; with older ones it is fenced."""
    id_, [place] = "bumped", wire.partitions(0)
    first = await wire.init(id_)
    second = await wire.init(id_, current=first)
    # The answer was lost: asked again, the coordinator gives the same.
    await wire.init(id_, current=first)
    await wire.add_partitions(id_, second, [place])
    await wire.produce(id_, second, 0, 0)
    await finish(wire, id_, second, commit=False)
    third = await wire.init(id_, current=second)
    await wire.init(id_, current=second)
    for stale in (first, third.in_epoch(third.epoch + 1), Producer(third.producer_id + 500, 0)):
        await wire.init(id_, current=stale)
        await wire.init(id_, current=stale, version=3)
    for odd in (Producer(third.producer_id, -1), Producer(-1, 0), Producer(-2, 0)):
        await wire.init(id_, current=odd)
    await wire.add_partitions(id_, third, [place])
    await wire.produce(id_, third, 0, 5)
    await wire.produce(id_, third, 0, 0)
    await finish(wire, id_, third, commit=True)
    await wire.init("bumped, never seen", current=Producer(7, 3))
    await wire.init(None, current=Producer(7, 3))
    await wire.init(None)


async def requests_that_are_wrong(wire: Wire) -> None:
    """Ids, producers, partitions and time-outs that the coordinator refuses."""
    id_, [place] = "wrong", wire.partitions(0)
    for timeout_ms in (0, -1, 900_000, 900_001, 2**31 - 1):
        await wire.init(f"timeout {timeout_ms}", timeout_ms=timeout_ms)
    await wire.init("")
    await wire.init("", version=1)
    producer = await wire.init(id_)
    await wire.end(id_, producer, commit=True)
    await wire.end(id_, producer, commit=False)
    strangers = (
        producer.in_epoch(producer.epoch + 1),
        producer.in_epoch(producer.epoch - 1),
        producer.in_epoch(2**15 - 1),
        Producer(producer.producer_id + 900, 0),
        Producer(-1, -1),
    )
    for stranger in strangers:
        await wire.add_partitions(id_, stranger, [place])
        await wire.add_offsets(id_, stranger, "g")
        await wire.end(id_, stranger, commit=True)
    for unknown in ("never seen", ""):
        await wire.add_partitions(unknown, producer, [place])
        await wire.add_offsets(unknown, producer, "g")
        await wire.end(unknown, producer, commit=True)
        await wire.commit_offsets(unknown, producer, "g", {place: 1})
    await wire.add_partitions(id_, producer, [place, (UNKNOWN_TOPIC, 0)])
    await wire.add_partitions(id_, producer, [(wire.topic, PARTITIONS)])
    await wire.add_partitions(id_, producer, [(GROUP_METADATA_TOPIC_NAME, 0)])
    await wire.add_partitions(id_, producer, [])
    await wire.add_offsets(id_, producer, "")
    await finish(wire, id_, producer, commit=False)


async def offsets_of_groups(wire: Wire) -> None:
    """TxnOffsetCommit for groups that have no members, and for members that no group has."""
    id_, (first, second) = "offsets", wire.partitions(0, 1)
    await wire.init(id_)
    producer = await wire.init(id_)
    # Without AddOffsetsToTxn Kafka takes them, and no marker ever comes; so it is first.
    await wire.add_offsets(id_, producer, "og")
    await wire.commit_offsets(id_, producer, "og", {first: 1}, generation_id=0)
    await wire.commit_offsets(id_, producer, "og", {first: 1}, generation_id=3, member_id="m")
    await wire.commit_offsets(id_, producer, "og", {first: 1}, member_id="m")
    await wire.commit_offsets(id_, producer, "og", {first: 1}, instance_id="i")
    await wire.commit_offsets(id_, producer, "og", {first: -1})
    await wire.commit_offsets(id_, producer, "og", {(UNKNOWN_TOPIC, 0): 1, second: 4})
    await wire.commit_offsets(id_, producer, "", {first: 1})
    await wire.commit_offsets(id_, producer, "og", {second: 5})
    await wire.fetch_offsets("og", require_stable=True)
    await wire.fetch_offsets("og", require_stable=False)
    await finish(wire, id_, producer, commit=True)
    await wire.commit_offsets(id_, producer.in_epoch(producer.epoch - 1), "og", {first: 2})
    await wire.fetch_offsets("og", require_stable=True, has_ended=True)


async def what_a_partition_takes(wire: Wire) -> None:
    """Produce with transactional ids: sequences, epochs, and batches that are not of the transaction."""
    id_, [place] = "produced", wire.partitions(0)
    producer = await wire.init(id_)
    await wire.add_partitions(id_, producer, [place])
    await wire.produce(id_, producer, 0, 0)
    await wire.produce(id_, producer, 0, 0)
    await wire.produce(id_, producer, 0, 2)
    await wire.produce(id_, producer, 0, 1, is_transactional=False)
    await wire.produce(None, producer, 0, 1)
    await wire.produce(id_, producer, 0, 1)
    await finish(wire, id_, producer, commit=True)
    # Kafka 2.8.2 does not ask whether a partition has been added, nor whose transactional id it is.
    await wire.produce("another id", producer, 0, 2)
    await wire.write_marker(producer, [place], commit=False, coordinator_epoch=0)
    await wire.fetch(0, committed=True)


async def markers(wire: Wire) -> None:
    """WriteTxnMarkers as a coordinator of an epoch sends it: once, again, of older epochs and for what is not there."""
    id_, (first, second) = "marked", wire.partitions(0, 1)
    await wire.init(id_)
    producer = await wire.init(id_)
    await wire.add_partitions(id_, producer, [first])
    await wire.produce(id_, producer, 0, 0, [b"one"])
    await wire.write_marker(producer, [first], commit=True, coordinator_epoch=5)
    await wire.fetch(0, committed=True)
    await wire.write_marker(producer, [first, second, (UNKNOWN_TOPIC, 0)], commit=True, coordinator_epoch=5)
    await wire.produce(id_, producer, 0, 1, [b"two"])
    await wire.write_marker(producer, [first], commit=False, coordinator_epoch=4)
    await wire.write_marker(producer.in_epoch(producer.epoch - 1), [first], commit=False, coordinator_epoch=6)
    await wire.write_marker(producer.in_epoch(producer.epoch + 1), [first], commit=False, coordinator_epoch=6)
    await wire.produce(id_, producer, 0, 2, [b"old epoch"])
    await wire.produce(id_, producer.in_epoch(producer.epoch + 1), 0, 0, [b"new epoch"])
    await wire.write_marker(producer.in_epoch(producer.epoch + 1), [first], commit=True, coordinator_epoch=6, version=0)
    await wire.write_marker(Producer(987_654, 3), [second], commit=True, coordinator_epoch=0)
    await wire.fetch(0, committed=True)
    await wire.fetch(1, committed=True)
    await wire.describe_producers(0, 1, 2)


async def a_transaction_times_out(wire: Wire) -> None:
    """The coordinator aborts it in the next epoch, so that its producer is fenced."""
    id_, [place] = "late", wire.partitions(0)
    producer = await wire.init(id_, timeout_ms=300)
    await wire.add_partitions(id_, producer, [place])
    await wire.produce(id_, producer, 0, 0, [b"late"])
    # Kafka's log tells of the end: requests before it would be answered by chance.
    while len(await wire.transaction_log(id_)) < 4:
        pass
    await wire.end(id_, producer, commit=True)
    await wire.add_partitions(id_, producer, [place])
    await wire.produce(id_, producer, 0, 1, [b"too late"])
    await wire.describe_producers(0)
    await wire.fetch(0, committed=True)
    # Its epoch is over: with it the producer is fenced, without it the producer begins anew.
    await wire.init(id_, timeout_ms=60_000, current=producer)
    again = await wire.init(id_, timeout_ms=60_000)
    await wire.add_partitions(id_, again, [place])
    await wire.produce(id_, again, 0, 0, [b"in time"])
    await finish(wire, id_, again, commit=True)


SCENARIOS: dict[str, tuple[Scenario, tuple[str, ...]]] = {
    "commits and aborts": (commits_and_aborts, ("lifecycle",)),
    "another producer takes over": (another_producer_takes_over, ("taken over",)),
    "a producer asks for its next epoch": (
        a_producer_asks_for_its_next_epoch,
        ("bumped", "bumped, never seen"),
    ),
    "requests that are wrong": (requests_that_are_wrong, ("wrong", "timeout 900000", "", "never seen")),
    "offsets of groups": (offsets_of_groups, ("offsets",)),
    "what a partition takes": (what_a_partition_takes, ("produced",)),
    "markers": (markers, ("marked",)),
    "a transaction times out": (a_transaction_times_out, ("late",)),
}


def changes(log: list[Logged]) -> list[Logged]:
    """The log without repetitions: klamm writes a state again to confirm it, where Kafka answers from memory."""
    last: dict[bytes | None, Logged] = {}
    found = []
    for record in log:
        if last.get(record.key) != record:
            found.append(record)
        last[record.key] = record
    return found


@pytest.mark.parametrize("name", SCENARIOS)
async def test_both_programs_answer_and_write_the_same(name: str, wires: Wires) -> None:
    scenario, transactional_ids = SCENARIOS[name]
    async with wires() as opened:
        for wire in opened.values():
            await scenario(wire)
        kafka, klamm = opened["kafka"], opened["klamm"]
        print("\n".join(f"{what}: {answer}" for what, answer in kafka.notes))
        assert klamm.notes == kafka.notes
        of_klamm, of_kafka = [await wire.transaction_log(*transactional_ids) for wire in (klamm, kafka)]
        assert len(of_kafka) > 0
        assert changes(of_klamm) == changes(of_kafka)
        for partition in range(PARTITIONS):
            assert await klamm.batches(klamm.topic, partition) == await kafka.batches(kafka.topic, partition)


async def test_both_programs_write_the_same_offsets(wires: Wires) -> None:
    """The batches of `__consumer_offsets`, pending offsets and markers, without the times of the commits."""
    async with wires() as opened:
        before = [len(await wire.batches(GROUP_METADATA_TOPIC_NAME, 0)) for wire in opened.values()]
        for wire in opened.values():
            await commits_and_aborts(wire)
            await offsets_of_groups(wire)
        of_kafka, of_klamm = [
            [batch[1:] for batch in (await wire.batches(GROUP_METADATA_TOPIC_NAME, 0))[count:]]
            for wire, count in zip(opened.values(), before, strict=True)
        ]
        assert len(of_kafka) > 10
        assert of_klamm == of_kafka


async def test_kafka_prints_our_records_and_writes_the_same_bytes(wires: Wires, kafka_jars: Path) -> None:
    id_ = "printed: größe"
    async with wires() as opened:
        klamm = opened["klamm"]
        producer = await klamm.init(id_, timeout_ms=12_345)
        await klamm.add_partitions(id_, producer, klamm.partitions(*range(PARTITIONS)))
        await klamm.add_offsets(id_, producer, "g")
        await finish(klamm, id_, producer, commit=True)
        log = await klamm.raw_transaction_log()
    records = [(key, value) for key, value in log if key and value and id_.encode() in key]
    lines = [f"{key.hex()} {value.hex()}\n" for key, value in records]
    output = java_tool(kafka_jars, str(ORACLE), stdin="".join(lines).encode()).decode().splitlines()
    assert [in_order(*map(bytes.fromhex, line.split())) for line in output[1::2]] == [
        in_order(key, value) for key, value in records
    ]
    printed = output[::2]
    states = [line.split("state=")[1].split(",")[0] for line in printed]
    assert [state for state, _ in groupby(states)] == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert all(line.startswith(f"{id_}::TransactionMetadata(transactionalId={id_}, ") for line in printed)
    assert all("txnTimeoutMs=12345" in line for line in printed)
