"""Whether a cluster has kept its guarantees, judged after all faults have ended.

`converge` waits until the cluster is whole (liveness), or reports what is missing. `judge` then compares the answers to
the clients with the data on every replica's disk (safety).
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from klamm.client.metadata import metadata_of
from klamm.net.client import ClientError
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.record.records import Record, decode_records
from klamm.protocol.vocabulary import ACKS_ALL, NO_LEADER, PartitionKey
from klamm.simulation.cluster.cluster import LOG_DIRS, SimulatedBroker, SimulatedCluster
from klamm.simulation.judges.agreement import disagreements, leftovers, uncommitted
from klamm.simulation.judges.waiting import chains
from klamm.simulation.machine.disk import SimulatedFileSystem
from klamm.simulation.machine.process import Process, SimulationFailure
from klamm.simulation.machine.trace import checksum
from klamm.simulation.workloads.workload import Consumer, Producer, Workload, with_epochs
from klamm.znodes.configs import topic_entity

CONVERGENCE_TIMEOUT_S = 180.0
# Longer than CONVERGENCE_TIMEOUT_S, because clients have work left, and quotas slow them down.
SERVICE_TIMEOUT_S = 300.0
CHECK_INTERVAL_S = 1.0


# -- liveness -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """When a cluster became whole (the loop's time), and the leader epochs at that time."""

    since_s: float
    leader_epochs: Mapping[PartitionKey, int]


async def converge(cluster: SimulatedCluster, timeout_s: float = CONVERGENCE_TIMEOUT_S) -> Whole:
    """Waits until every broker is up and agrees with ZooKeeper, and every replica is in sync.

    SimulationFailure, with the list of what is missing, after `timeout_s`. Runs in a client's process.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while missing := await _missing(cluster):
        if loop.time() > deadline:
            raise _failure(cluster, f"not whole {timeout_s} s after everything was healed", missing)
        await asyncio.sleep(CHECK_INTERVAL_S)
    return Whole(loop.time(), {key: state.leader_epoch for key, state in cluster.state.partitions().items()})


@asynccontextmanager
async def serving(cluster: SimulatedCluster, timeout_s: float = SERVICE_TIMEOUT_S) -> AsyncIterator[None]:
    """Inside, clients finish their work with a healed cluster.

    SimulationFailure, with the list of what is missing in the cluster, if that takes longer than `timeout_s`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        missing = await _missing(cluster)
        told = f"clients wait {timeout_s} s after everything was healed"
        raise _failure(cluster, told, missing or ["all is whole"]) from None


def _failure(cluster: SimulatedCluster, told: str, missing: list[str]) -> SimulationFailure:
    """Lists what is missing. A note has the chains of waits."""
    failure = SimulationFailure(f"{told}:\n  " + "\n  ".join(missing))
    failure.add_note("waits:\n  " + "\n  ".join(chains(cluster) or ["no broker, controller or partition waits"]))
    return failure


async def _missing(cluster: SimulatedCluster) -> list[str]:
    """One line for each reason why the cluster is not whole."""
    state = cluster.state
    missing = [f"broker {one.broker_id} is not up" for one in cluster.brokers.values() if one.broker is None]
    if state.live_brokers() != list(cluster.brokers):
        missing.append(f"registered are only brokers {state.live_brokers()}")
    if cluster.controller_id() == -1:
        missing.append("there is no controller")
    for topic in state.topics():
        for partition, replicas in state.replicas(topic).items():
            missing += _missing_of_partition(cluster, topic, partition, replicas)
    for broker in cluster.brokers.values():
        if broker.broker is not None:
            missing += await _missing_at_broker(cluster, broker)
    return missing or disagreements(cluster)


def _missing_of_partition(
    cluster: SimulatedCluster, topic: str, partition: int, replicas: tuple[int, ...]
) -> list[str]:
    known = cluster.state.partitions().get((topic, partition))
    if known is None:
        return [f"{topic}-{partition} has no state"]
    if known.leader == NO_LEADER:
        return [f"{topic}-{partition} has no leader, its ISR is {known.isr}"]
    if sorted(known.isr) != sorted(replicas):
        ends = {broker_id: _log_end(cluster.brokers[broker_id], (topic, partition)) for broker_id in replicas}
        return [f"{topic}-{partition}: only {known.isr} of {replicas} are in sync with {known.leader}; ends {ends}"]
    return []


async def come_to_rest(cluster: SimulatedCluster, timeout_s: float = CONVERGENCE_TIMEOUT_S) -> None:
    """Waits until every record is committed everywhere and no request is pending. All clients have stopped.

    SimulationFailure, with the list of what is still pending, after `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while waiting := [*uncommitted(cluster), *leftovers(cluster)]:
        if loop.time() > deadline:
            raise _failure(cluster, f"not at rest {timeout_s} s after the last request", waiting)
        await asyncio.sleep(CHECK_INTERVAL_S)


async def _missing_at_broker(cluster: SimulatedCluster, broker: SimulatedBroker) -> list[str]:
    """The differences between one broker's metadata and ZooKeeper."""
    name = f"broker {broker.broker_id}"
    client = cluster.client()
    try:
        await client.refresh_metadata([])
        connection = await client.connection_to(broker.broker_id)
        metadata = await metadata_of(connection, timeout_ms=5_000)
    except (ClientError, KafkaError) as error:
        return [f"{name} does not answer: {error}"]
    finally:
        await client.close()
    missing = []
    if metadata.controller_id != cluster.controller_id():
        missing.append(f"{name} takes {metadata.controller_id} for the controller, it is {cluster.controller_id()}")
    if (known := sorted(metadata.brokers)) != cluster.state.live_brokers():
        missing.append(f"{name} knows only brokers {known}")
    told = {
        (name, number): (each.leader, each.leader_epoch, sorted(each.isr))
        for name, topic in metadata.topics.items()
        for number, each in topic.partitions.items()
    }
    true = {
        key: (state.leader, state.leader_epoch, sorted(state.isr)) for key, state in cluster.state.partitions().items()
    }
    for key in sorted({*told, *true}):
        if told.get(key) != true.get(key):
            missing.append(f"{name} takes {key[0]}-{key[1]} for {told.get(key)}, it is {true.get(key)}")
    return missing


# -- safety ---------------------------------------------------------------------------------------------------------


async def judge(
    cluster: SimulatedCluster, workload: Workload, whole: Whole | None = None, trimmed: Collection[str] = ()
) -> str:
    """Waits until the consumers have read all records, then compares. Returns the counts as text. Raises
    AssertionError.

    The records of `trimmed` topics are deleted, so their replicas may begin at different offsets and are not compared.

    Producers must have stopped, and the cluster must be whole. With acks=1, records acknowledged since `whole` must be
    there. A partition has at most one producer.
    """
    ends = {}
    for producer in workload.producers:
        log = _leader_log(cluster, producer.key)
        records = _records(log)
        if producer.acks == ACKS_ALL:
            _check_acknowledged(cluster, producer, log, records)
        else:
            epoch = cluster.state.partition(*producer.key).leader_epoch
            is_led_as_then = whole is not None and whole.leader_epochs.get(producer.key) == epoch
            _check_acknowledged_by_leader(
                producer, records, whole.since_s if whole and is_led_as_then else float("inf")
            )
        ends[producer.key] = len(records)
    async with asyncio.timeout(CONVERGENCE_TIMEOUT_S):
        await workload.stop_consuming(ends)
    await compare_replicas(cluster, trimmed)
    check_leader_epochs(cluster, trimmed)
    for consumer in workload.consumers:
        _check_consumed(consumer, list(with_epochs(_leader_log(cluster, consumer.key))))
    consumed = sum(len(consumer.records) for consumer in workload.consumers)
    return f"{workload.acknowledged_records()} records acknowledged, {consumed} consumed"


def _check_acknowledged(cluster: SimulatedCluster, producer: Producer, log: bytes, records: list[Record]) -> None:
    """Every acknowledged record is in the log at its offset. With idempotence, the log has no other records."""
    values = [record.value for record in records]
    topic, partition = producer.key
    epochs = _epochs(log)
    for each in producer.acknowledged:
        if each.base_offset is None:
            continue  # The producer is idempotent: below, the log is compared as a whole.
        there = values[each.base_offset : each.base_offset + len(each.values)]
        assert there == list(each.values), f"{topic}-{partition}: {each} was acknowledged, the log has {there}"
        if each.attempts == 1:
            leader = cluster.state.leader_of(topic, partition, epochs[each.base_offset])
            assert leader == each.broker_id, (
                f"{topic}-{partition}: {each} was acknowledged, but {leader} led in epoch {epochs[each.base_offset]}"
            )
    sent = [value for each in producer.acknowledged for value in each.values]
    if producer.idempotent:
        assert values == sent, f"{topic}-{partition}: {_first_difference(values, sent)}"
    else:
        # Retried batches may be in the log more than once. Their first copies are in order.
        assert list(dict.fromkeys(values)) == sent, f"{topic}-{partition}: {_first_difference(values, sent)}"


def _check_consumed(consumer: Consumer, there: list[tuple[int, bytes, int]]) -> None:
    """A consumer has read exactly the records of the log."""
    for read, record in zip(consumer.records, there, strict=False):
        assert read == record, f"{consumer.key}: a consumer has read {read}, the log has {record}"
    assert len(consumer.records) == len(there), f"{consumer.key}: {len(consumer.records)} of {len(there)} records read"


def _check_acknowledged_by_leader(producer: Producer, records: list[Record], led_since_s: float) -> None:
    """With acks=1 only a change of leaders may lose records, and only records acknowledged before the change.
    `led_since_s` is a time after the last change. Every record of the log was sent by a producer."""
    values = [record.value for record in records]
    topic, partition = producer.key
    strange = [value for value in values if value not in producer.sent]
    assert not strange, f"{topic}-{partition} has records that no producer has sent: {strange}"
    for each in producer.acknowledged:
        assert each.base_offset is not None, f"{topic}-{partition}: {each} has no offset"
        there = values[each.base_offset : each.base_offset + len(each.values)]
        assert each.at_s < led_since_s or there == list(each.values), (
            f"{topic}-{partition}: {each} was acknowledged by its leader, the log has {there}"
        )


async def compare_replicas(cluster: SimulatedCluster, trimmed: Collection[str] = ()) -> None:
    """Waits a short time for followers. Then all replicas of every partition must be the same, byte for byte. Replicas
    of compacted topics may differ, but must have the same newest value for each key."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CONVERGENCE_TIMEOUT_S
    while differences := _differences(cluster, trimmed):
        assert loop.time() < deadline, f"replicas differ: {'; '.join(differences)}"
        await asyncio.sleep(CHECK_INTERVAL_S)


def check_leader_epochs(cluster: SimulatedCluster, trimmed: Collection[str] = ()) -> None:
    """Every replica knows the start offset of each leader epoch with records; truncation needs it. AssertionError."""
    for key, state in cluster.state.partitions().items():
        for broker_id in () if key[0] in trimmed else state.isr:
            partition = cluster.hosted_partition(broker_id, key)
            assert partition is not None, f"broker {broker_id} does not host {key[0]}-{key[1]}"
            begins: dict[int, int] = {}
            for base_offset, epoch in _epochs(replica_bytes(cluster.brokers[broker_id], key)).items():
                begins.setdefault(epoch, base_offset)
            known = dict(partition.log.leader_epochs.entries)
            if _is_compacted(cluster, key[0]):
                # The first batches of an epoch may have been deleted or compacted.
                begins = {epoch: min(known.get(epoch, offset), offset) for epoch, offset in begins.items()}
            assert begins.items() <= known.items(), (
                f"{key[0]}-{key[1]}, broker {broker_id}: epochs begin at {begins}, the checkpoint says {known}"
            )


def _differences(cluster: SimulatedCluster, trimmed: Collection[str]) -> list[str]:
    differences = []
    for (topic, partition), state in cluster.state.partitions().items():
        if topic in trimmed:
            continue
        logs = {broker_id: replica_bytes(cluster.brokers[broker_id], (topic, partition)) for broker_id in state.isr}
        if _is_compacted(cluster, topic):
            logs = {broker_id: _values_by_key(log) for broker_id, log in logs.items()}
        if len(set(logs.values())) > 1:
            described = [f"{len(log)} bytes {checksum(log)} on {broker_id}" for broker_id, log in logs.items()]
            differences.append(f"{topic}-{partition}: {', '.join(described)}")
    return differences


def _is_compacted(cluster: SimulatedCluster, topic: str) -> bool:
    return "compact" in cluster.state.config(topic_entity(topic)).get("cleanup.policy", "")


def _values_by_key(log: bytes) -> bytes:
    """The newest value of each key, as text. Keys with a tombstone are left out: the tombstone may have been compacted
    away."""
    values = {
        record.key: record.value
        for position, header in iterate_batches(log)
        if not header.is_control
        for record in decode_records(log, position, header)
    }
    return repr(sorted((key, value) for key, value in values.items() if value is not None)).encode()


def _leader_log(cluster: SimulatedCluster, key: PartitionKey) -> bytes:
    return replica_bytes(cluster.brokers[cluster.leader(*key)], key)


def replica_bytes(broker: SimulatedBroker, key: PartitionKey) -> bytes:
    """All segments of a partition on a broker's disk, joined."""
    files = SimulatedFileSystem(broker.node.disk, Process("verdict", broker.node.name))
    content = b""
    for directory in LOG_DIRS:
        path = f"{directory}/{key[0]}-{key[1]}"
        if files.exists(path):
            names = [name for name in files.list_directory(path) if name.endswith(".log")]
            content += b"".join(_without_preallocated(files.read_file(f"{path}/{name}")) for name in names)
    return content


def _without_preallocated(segment: bytes) -> bytes:
    """A segment without the zeros that `preallocate` has put behind its batches."""
    end = 0
    with suppress(KafkaError):
        for position, header in iterate_batches(segment, allow_partial_end=True):
            end = position + header.size_bytes
    return segment if any(segment[end:]) else segment[:end]


def _records(log: bytes) -> list[Record]:
    records = [record for position, header in iterate_batches(log) for record in decode_records(log, position, header)]
    assert [record.offset for record in records] == list(range(len(records)))
    return records


def _epochs(log: bytes) -> dict[int, int]:
    """Base offset of each batch -> leader epoch."""
    return {header.base_offset: header.partition_leader_epoch for _, header in iterate_batches(log)}


def _log_end(broker: SimulatedBroker, key: PartitionKey) -> int:
    """The end of the readable part of a log: after a power failure the machine may not have recovered it yet."""
    log, end = replica_bytes(broker, key), 0
    with suppress(KafkaError):
        for _, header in iterate_batches(log, allow_partial_end=True):
            end = max(end, header.next_offset)
    return end


def _first_difference(found: list[bytes | None], expected: list[bytes]) -> str:
    pairs = enumerate(zip(found, expected, strict=False))
    at = next((number for number, (one, other) in pairs if one != other), min(len(found), len(expected)))
    parted = f"from {at}: {found[at : at + 3]}, {expected[at : at + 3]}"
    return f"{len(found)} records and {len(expected)} acknowledged; {parted}"
