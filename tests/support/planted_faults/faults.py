"""The planted faults: what each replaces, which checker finds it, and within how many seeds.

Some are faults that Kafka had or has, some are guards of klamm left out, and some are faults of a disk, a watch or an
order of writes.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from klamm.base.tasks import start_task
from klamm.broker.coordinators import coordinator_log
from klamm.broker.coordinators.coordinator_log import CoordinatorLogSettings, offsets_log_settings
from klamm.broker.start import parts as broker_parts
from klamm.client.consumer.group_consumer import GroupConsumer
from klamm.client.consumer.group_member import Membership
from klamm.client.producer.transactions import TransactionManager
from klamm.config.broker import BrokerConfig
from klamm.controller import isr_flows, reassignment_steps
from klamm.controller.controller import KafkaController
from klamm.controller.parts import ControllerParts
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import ACKS_LEADER, NO_EPOCH, PartitionKey
from klamm.replication.fetcher.fetch_state import PartitionFetch
from klamm.replication.fetcher.followed_partitions import Fetches, FollowedPartitions
from klamm.replication.fetcher.log_truncation import LogTruncation
from klamm.replication.partition import isr
from klamm.replication.partition.delayed_operations import Appended
from klamm.replication.partition.partition import Partition
from klamm.replication.partition.replica import Replica
from klamm.replication.replica_manager import ReplicaManager
from klamm.replication.state_changes import StateChanges
from klamm.storage.log import follower_batches, log_loader
from klamm.storage.log.log_loader import LoadedLog
from klamm.storage.log.producer_state import ProducerState
from klamm.znodes import batches
from klamm.znodes.controller_store import ControllerEpoch, ControllerStore
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.client.watches import WatchTable
from klamm.zookeeper.messages import MultiOperation
from klamm.zookeeper.server.database import Database
from klamm.zookeeper.server.snapshots import publish_snapshot, write_snapshot
from support.planted_faults.fault import PlantedFault, Replacement
from support.planted_faults.guards import GUARDS
from support.planted_faults.scenarios import (
    copiers_at_work,
    copy_of_a_rotten_log,
    late_stop_replica,
    load_of_a_rotten_log,
    log_of_a_former_topic,
    lost_election,
)

# -- replication ----------------------------------------------------------------------------------------------------


async def _truncate_to_high_watermark(its: LogTruncation) -> None:
    followed = its._followed
    truncating, followed.truncating = followed.truncating, Fetches()
    for key, fetch in truncating.items():
        if followed.fetches.get(key) is fetch:
            await its._truncate_to(key, fetch, fetch.partition.log.high_watermark)


_add = FollowedPartitions.add


def _add_truncating(followed: FollowedPartitions, key: PartitionKey, fetch: PartitionFetch) -> None:
    fetch.is_truncating = True
    _add(followed, key, fetch)


def _never_diverging(*_: object) -> None:
    """Before KIP-101 a leader compared no epochs."""


_stop = StateChanges._stop


def _stop_in_any_epoch(changes: StateChanges, key: PartitionKey, leader_epoch: int, *rest: Any) -> ErrorCode:
    return _stop(changes, key, NO_EPOCH, *rest)


_stop_replicas = StateChanges._stop_replicas


async def _stop_for_any_controller(changes: StateChanges, controller_epoch: int, *rest: Any) -> Any:
    return await _stop_replicas(changes, changes.controller_epoch, *rest)


async def _acknowledge_at_once(manager: ReplicaManager, appended: Appended, timeout_ms: int) -> None:
    for _, _, result in appended:
        result.error_code = ErrorCode.NONE


def _is_never_of_a_former_topic(*_: object) -> bool:
    return False


_is_out_of_sync = isr._is_out_of_sync


def _strangers_stay_in_sync(replica: Replica | None, *rest: Any) -> bool:
    return replica is not None and _is_out_of_sync(replica, *rest)


async def _stop_no_replicas(*_: object) -> set[PartitionKey]:
    return set()


# -- the controller -------------------------------------------------------------------------------------------------

_decide = isr_flows._decide


def _decide_in_any_epoch(
    parts: ControllerParts, partition: PartitionKey, sender: int, item: isr_flows.WantedPartition
) -> ErrorCode | LeaderAndIsr:
    state = parts.context.partition_leadership_info(partition)
    if state is None or sender not in item.new_isr:
        return _decide(parts, partition, sender, item)
    return LeaderAndIsr(sender, state.leader_epoch, tuple(item.new_isr), parts.context.epoch, state.zk_version)


_write = batches.write


async def _write_unguarded(
    client: ZooKeeperClient, operations: Sequence[MultiOperation], guard: int | None = None
) -> list[batches.Result]:
    return await _write(client, operations)


_elect = KafkaController._elect


class _ZnodeExists(Exception):
    """Another broker was elected, or this one, and the answer was lost."""


async def _believe_the_znode(controller: KafkaController) -> None:
    node = await controller._parts.store.controller(controller._on_controller)
    if node is not None and node.broker_id == controller._broker_id and not controller.is_active:
        controller._controller_id = node.broker_id
        return
    try:
        await _elect(controller)
    except _ZnodeExists:
        await _believe_the_znode(controller)


async def _own_election_is_lost(*_: object) -> ControllerEpoch:
    raise _ZnodeExists


# -- ZooKeeper ------------------------------------------------------------------------------------------------------


async def _snapshot_of_earlier_znodes(its: Database) -> None:
    capture = its.tree.capture()
    await asyncio.sleep(0.1)
    capture.zxid = its.tree.zxid
    its._transaction_log.roll()
    path = await write_snapshot(its._environment, its._directory, capture, lambda: not its._closing)
    if path is not None:
        await its._environment.run_long(publish_snapshot, its._environment.file_system, path)
    its.tree.release_capture()
    its._snapshotting = None


def _arm_no_watches(*_: object) -> tuple[()]:
    return ()


# -- storage and coordinators ---------------------------------------------------------------------------------------

_load_log = log_loader._Loader.load


def _load_without_producers(loader: log_loader._Loader, *arguments: Any) -> LoadedLog:
    loaded = _load_log(loader, *arguments)
    loaded.producer_state = ProducerState(loaded.log_end_offset)
    return loaded


def _check_no_crc(*_: object) -> None: ...


def _only_the_leader_commits(config: BrokerConfig) -> CoordinatorLogSettings:
    return offsets_log_settings(config)._replace(required_acks=ACKS_LEADER)


# -- klamm's client -------------------------------------------------------------------------------------------------


def _present_membership(consumer: GroupConsumer) -> Membership:
    return replace(consumer._member.membership)


def _every_membership_is_of_a_member(*_: object) -> None: ...


_beat = GroupConsumer._beat


def _beat_unless(
    is_waiting: Callable[[GroupConsumer], object],
) -> Callable[[GroupConsumer], "asyncio.Task[None]"]:
    def beat(consumer: GroupConsumer) -> "asyncio.Task[None]":
        if is_waiting(consumer) and not consumer._is_in_doubt():
            return start_task(asyncio.sleep(0), consumer._fail)
        return _beat(consumer)

    return beat


_beat_unless_rebalancing = _beat_unless(lambda consumer: consumer._must_join or consumer._joining is not None)
_beat_unless_looking_up = _beat_unless(lambda consumer: consumer._awaited)


@contextmanager
def _whole_or_not(*_: object, **__: object) -> Iterator[None]:
    yield


# What the checkers of clients and logs say when acknowledged records are gone, or are there twice.
RECORDS_ARE_LOST = (
    "the leader has lost batches before|was acknowledged, the log has|replicas differ|a consumer has read"
    "|records and .* acknowledged|had been acknowledged|which was committed"
    "|the last stable offset|the ISR.* and ends at|is elected .* and ends at|acknowledges the records before"
)

# What the ledger says when outputs do not move with the offsets.
COPIED_TWICE = (
    "is committed, but the group was at|too often|is visible in part|only .* are visible|copied up to"
    "|is at .* had been acknowledged"
)

FAULTS = (
    PlantedFault(
        "truncation-by-high-watermark",
        "a follower truncates to its high watermark, not to where the leader's epochs end (before KIP-101)",
        (
            Replacement(FollowedPartitions, "add", _add_truncating),
            Replacement(LogTruncation, "truncate", _truncate_to_high_watermark),
            Replacement(Partition, "diverging_epoch", _never_diverging),
        ),
        "rules, invariants, workload, group_workload",
        RECORDS_ARE_LOST,
        10,
    ),
    PlantedFault(
        "expansion-without-epoch",
        "the controller changes an ISR for a leader of an older leader epoch, too",
        (Replacement(isr_flows, "_decide", _decide_in_any_epoch),),
        "state_checker",
        "another leader has the same epoch|the leader is not in sync|was not in sync|not a subset of the replicas"
        "|is elected .* and ends at",
        20,
    ),
    PlantedFault(
        "stop-replica-without-epoch",
        "a broker obeys a StopReplica of an older controller epoch and leader epoch",
        (
            Replacement(StateChanges, "_stop_replicas", _stop_for_any_controller),
            Replacement(StateChanges, "_stop", _stop_in_any_epoch),
        ),
        "verdict",
        RECORDS_ARE_LOST + "|(not whole|clients wait) .* events-0",
        5,
        late_stop_replica,
    ),
    PlantedFault(
        "controller-without-epoch",
        "a controller writes without the check of the controller epoch",
        (Replacement(batches, "write", _write_unguarded),),
        "state_checker",
        "the epoch of this controller is over|an epoch went back|in which a former controller was elected",
        40,
    ),
    PlantedFault(
        "acknowledged-before-the-isr",
        "a produce with acks=all is answered before the in-sync replicas have the records",
        (Replacement(ReplicaManager, "wait_replicated", _acknowledge_at_once),),
        "workload, verdict",
        RECORDS_ARE_LOST,
        10,
    ),
    PlantedFault(
        "kafka-13407",
        "a broker that finds its id in `/controller` takes itself for the controller (KAFKA-13407)",
        (
            Replacement(KafkaController, "_elect", _believe_the_znode),
            Replacement(ControllerStore, "_own_election", _own_election_is_lost),
        ),
        "agreement",
        "(not whole|clients wait) .*controller",
        3,
        lost_election,
    ),
    PlantedFault(
        "kafka-10548",
        "a broker keeps the log of a deleted topic when a new topic has the name (KAFKA-10548)",
        (Replacement(StateChanges, "_is_of_former_topic", _is_never_of_a_former_topic),),
        "verdict",
        r"(not whole|clients wait) .* passing-\d",
        3,
        log_of_a_former_topic,
    ),
    PlantedFault(
        "kafka-9672",
        "brokers that a reassignment removes stay in the ISR (KAFKA-9672)",
        (
            Replacement(reassignment_steps, "_stop_replicas", _stop_no_replicas),
            Replacement(isr, "_is_out_of_sync", _strangers_stay_in_sync),
        ),
        "state_checker, verdict",
        "is not a subset of the replicas|not whole .*in sync",
        20,
    ),
    PlantedFault(
        "lost-watch",
        "a ZooKeeper client does not arm its watches on the next connection",
        (Replacement(WatchTable, "set_watches", _arm_no_watches),),
        "agreement, group_workload",
        "not whole|clients wait|is in generation \\d+ after generation",
        20,
    ),
    PlantedFault(
        "reordered-snapshot",
        "a ZooKeeper snapshot has the znodes of an earlier zxid than its own",
        (Replacement(Database, "_snapshot", _snapshot_of_earlier_znodes),),
        "state_checker",
        "a ZooKeeper that has started at zxid",
        20,
    ),
    PlantedFault(
        "producer-state-lost",
        "a log that is loaded forgets its idempotent producers",
        (Replacement(log_loader._Loader, "load", _load_without_producers),),
        "workload, transaction_ledger, verdict",
        f"{RECORDS_ARE_LOST}|which was aborted",
        30,
    ),
    PlantedFault(
        "unchecked-copies",
        "a follower does not check the checksums of the batches that it copies",
        (Replacement(follower_batches, "check_crc", _check_no_crc),),
        "verdict",
        RECORDS_ARE_LOST,
        3,
        copy_of_a_rotten_log,
    ),
    PlantedFault(
        "unchecked-loads",
        "a coordinator does not check the checksums of the batches that it loads",
        (Replacement(coordinator_log, "check_crc", _check_no_crc),),
        "group_workload",
        RECORDS_ARE_LOST,
        3,
        load_of_a_rotten_log,
    ),
    PlantedFault(
        "stranger-commits",
        "a consumer that its group has removed commits offsets with transactions as a client that is no member",
        (
            Replacement(GroupConsumer, "membership", property(_present_membership)),
            Replacement(TransactionManager, "_check_is_member", _every_membership_is_of_a_member),
        ),
        "transaction_ledger",
        COPIED_TWICE,
        20,
        copiers_at_work,
    ),
    PlantedFault(
        "silent-in-a-rebalance",
        "a consumer sends no heartbeats from the beginning of a rebalance until it joins again",
        (Replacement(GroupConsumer, "_beat", _beat_unless_rebalancing),),
        "transaction_ledger",
        "has lost .* and was never late",
        10,
        copiers_at_work,
    ),
    PlantedFault(
        "silent-before-an-offset",
        "a consumer sends no heartbeats while it waits for a committed offset that a transaction may change",
        (Replacement(GroupConsumer, "_beat", _beat_unless_looking_up),),
        "transaction_ledger",
        "has lost .* and was never late",
        25,
        copiers_at_work,
    ),
    PlantedFault(
        "commit-without-offsets",
        "a transaction can be committed although a `send` or `send_offsets` of it has failed",
        (Replacement(TransactionManager, "whole_or_aborted", _whole_or_not),),
        "transaction_ledger",
        COPIED_TWICE,
        20,
        copiers_at_work,
    ),
    PlantedFault(
        "group-commit-not-replicated",
        "a group's commit is answered before the in-sync replicas have it",
        (Replacement(broker_parts, "offsets_log_settings", _only_the_leader_commits),),
        "group_workload",
        "had been acknowledged|is acknowledged after generation|is in generation \\d+ after generation",
        10,
    ),
    *GUARDS,
)

BY_NAME = {fault.name: fault for fault in FAULTS}
