"""Assigns replicas of new partitions to brokers (Kafka's `AdminUtils.assignReplicasToBrokers`). Pure.

Brokers take turns as the first replica. The further replicas are shifted by an amount that grows with each round, so
that the load of a failed broker spreads over all other brokers. With racks, the brokers are ordered so that neighbours
are in different racks, and a broker is skipped if its rack has a replica while another rack has no replica.
"""

from collections.abc import Mapping, Sequence

from klamm.base.slices import Slices, Steps


class InvalidReplicationFactor(ValueError):
    """The replication factor is below 1 or above the number of brokers."""


class InvalidPartitions(ValueError):
    """The number of partitions is below 1."""


def assign_replicas(
    brokers: Sequence[int],
    partitions: int,
    replication_factor: int,
    *,
    start_index: int,
    shift: int,
    first_partition: int = 0,
    racks: Mapping[int, str] | None = None,
    slices: Slices | None = None,
) -> Steps[dict[int, list[int]]]:
    """The replicas of `partitions` partitions, numbered from `first_partition`, in steps. Several assignments share
    `slices`.

    `start_index` and `shift` are drawn at random for a new topic; for added partitions they continue the topic's.
    `racks` must name every broker's rack, or be None. Raises InvalidPartitions, InvalidReplicationFactor.
    """
    if partitions < 1:
        raise InvalidPartitions(f"number of partitions is {partitions}, it must be at least 1")
    if replication_factor < 1:
        raise InvalidReplicationFactor(f"replication factor is {replication_factor}, it must be at least 1")
    if replication_factor > len(brokers):
        raise InvalidReplicationFactor(
            f"replication factor is {replication_factor}, there are only {len(brokers)} live brokers"
        )
    ordered = list(brokers) if racks is None else _alternate_racks(brokers, racks)
    count = len(ordered)
    rack_count = 1 if racks is None else len(set(racks.values()))
    assignment = {}
    slices = slices or Slices()
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % count == 0:
            shift += 1
        first = (partition + start_index) % count
        replicas = [ordered[first]]
        step = 0
        while len(replicas) < replication_factor:
            candidate = ordered[_replica_index(first, shift * rack_count, step, count)]
            step += 1
            if racks is None or _brings_a_rack(candidate, replicas, racks):
                replicas.append(candidate)
        assignment[partition] = replicas
        if slices.spend(1 + step):
            yield
    return assignment


def _replica_index(first: int, shift: int, step: int, count: int) -> int:
    return (first + 1 + (shift + step) % (count - 1)) % count


def _brings_a_rack(candidate: int, replicas: list[int], racks: Mapping[int, str]) -> bool:
    """Whether the candidate has no replica yet, and its rack has no replica or all racks have one."""
    if candidate in replicas:
        return False
    used = {racks[broker] for broker in replicas}
    return racks[candidate] not in used or len(used) == len(set(racks.values()))


def _alternate_racks(brokers: Sequence[int], racks: Mapping[int, str]) -> list[int]:
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(brokers):
        by_rack.setdefault(racks[broker], []).append(broker)
    queues = [by_rack[rack] for rack in sorted(by_rack)]
    ordered: list[int] = []
    while any(queues):
        ordered.extend(queue.pop(0) for queue in queues if queue)
    return ordered
