"""The work of the `klamm reassign` commands on a cluster, apart from `execution`: values in, values out."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from klamm.access.clients import error_line
from klamm.cli.reassign.access import Access, LogDirs
from klamm.cli.reassign.planning.model import ANY_LOG_DIR, Broker, ClusterModel, Move, Partition, Placement
from klamm.cli.reassign.setting_throttles import NOT_ALIVE, Report, restore_throttles, set_throttles
from klamm.cli.reassign.state_file import Record, StateFile
from klamm.cli.reassign.steps import ClusterMoment
from klamm.cli.reassign.throttles import broker_entity, broker_of, clearing, wanted_configs
from klamm.client.admin.log_dirs import TopicPartitionReplica
from klamm.diagnosis.cluster_view import ClusterView, joined
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import TopicPartition

Placements = Mapping[TopicPartition, Placement]


# -- the cluster ------------------------------------------------------------------------------------------------------


async def read_model(access: Access, topics: Iterable[str] | None) -> tuple[ClusterMoment, ClusterModel]:
    """The model of these topics, or of all, with the sizes and directories of their replicas."""
    look = await access.look(topics)
    log_dirs = await access.log_dirs(sorted(look.view.brokers), sorted(look.view.partitions))
    return look, model_cluster(look.view, log_dirs)


def model_cluster(view: ClusterView, log_dirs: LogDirs) -> ClusterModel:
    """The model of a view. A partition's size is that of its leader's log, or else that of its largest replica."""
    sizes: dict[TopicPartition, dict[int, int]] = {}
    paths: dict[TopicPartition, dict[int, str]] = {}
    online: dict[int, list[str]] = {}
    usable: dict[int, int] = {}
    for broker, directories in log_dirs.items():
        for path, directory in directories.items():
            if directory.error is not None:
                continue
            online.setdefault(broker, []).append(path)
            if directory.usable_bytes >= 0:
                usable[broker] = usable.get(broker, 0) + directory.usable_bytes
            for key, replica in directory.replicas.items():
                if not replica.is_future:
                    sizes.setdefault(key, {})[broker] = replica.size_bytes
                    paths.setdefault(key, {})[broker] = path
    partitions = {}
    for key, each in view.partitions.items():
        found = sizes.get(key, {})
        size = found.get(each.leader, max(found.values(), default=0))
        partitions[key] = Partition(each.origin, size, each.leader, paths.get(key, {}), each.is_reassigning)
    brokers = {
        broker: Broker(each.rack, tuple(sorted(online.get(broker, ()))), usable.get(broker))
        for broker, each in view.brokers.items()
    }
    return ClusterModel(brokers, partitions)


@dataclass(frozen=True)
class Survey:
    """The state of the cluster before an execution begins: all reassignments in progress, and the moves to be made."""

    look: ClusterMoment
    moves: tuple[Move, ...]
    cluster_id: str | None


async def survey(access: Access, placements: Placements) -> Survey:
    look = await access.look(None)
    log_dirs = await access.log_dirs(sorted(look.view.brokers), sorted(placements))
    return Survey(look, moves_of(placements, model_cluster(look.view, log_dirs)), await access.cluster_id())


def moves_of(placements: Placements, cluster: ClusterModel) -> tuple[Move, ...]:
    """The moves that lead to these placements. Raises ToolError for a partition that does not exist, and for a broker
    that is neither alive nor has a replica of any partition."""
    if unknown := sorted(key for key in placements if key not in cluster.partitions):
        raise ToolError(f"these partitions do not exist: {', '.join(map(str, unknown))}")
    if strangers := {broker for each in placements.values() for broker in each.replicas} - cluster.known_brokers:
        plural = "" if len(strangers) == 1 else "s"
        raise ToolError(
            f"unknown broker{plural} {joined(sorted(strangers))} in the plan: not alive, and without a replica of any"
            f" partition. The live brokers are {joined(sorted(cluster.brokers))}"
        )
    moves = []
    for key, after in placements.items():
        partition = cluster.partitions[key]
        chosen = after.chosen_log_dirs
        # If the plan chooses no directory for a replica, its rollback does not choose one either.
        paths = [partition.log_dirs.get(each, ANY_LOG_DIR) if each in chosen else ANY_LOG_DIR for each in
                 partition.replicas]  # fmt: skip
        before = Placement(partition.replicas, tuple(paths))
        move = Move(key.topic, key.partition, before, after, partition.size_bytes, partition.leader)
        if before.replicas != after.replicas or move.log_dir_moves:
            moves.append(move)
    return tuple(moves)


def topic_ids(moves: Collection[Move], view: ClusterView) -> dict[str, str]:
    topics = sorted({move.topic for move in moves})
    return {topic: str(view.topic_ids[topic]) for topic in topics if topic in view.topic_ids}


def foreign_moves(moves: Collection[Move], look: ClusterMoment) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions of the plan that another client moves to other replicas."""
    return {
        move.topic_partition: target
        for move in moves
        if (target := look.targets.get(move.topic_partition)) is not None and target != move.after.replicas
    }


# -- verify -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlacementState:
    """`current` is empty for a partition that does not exist."""

    current: tuple[int, ...]
    target: tuple[int, ...]
    is_moving: bool

    @property
    def is_complete(self) -> bool:
        return not self.is_moving and self.current == self.target


@dataclass(frozen=True, slots=True)
class LogDirState:
    """A replica and its target directory. `future` is the directory to which it is being copied."""

    topic: str
    partition: int
    broker_id: int
    target: str
    has_answered: bool
    current: str | None = None
    future: str | None = None

    @property
    def is_moving(self) -> bool:
        """As in Kafka's tool, a replica that cannot be found counts as moving."""
        return self.current is None or self.future is not None

    @property
    def is_complete(self) -> bool:
        return self.current == self.target and self.future is None


@dataclass(frozen=True)
class Verified:
    partitions: Mapping[TopicPartition, PlacementState]
    log_dirs: tuple[LogDirState, ...]
    is_any_moving: bool
    brokers: tuple[int, ...]

    @property
    def is_complete(self) -> bool:
        states: list[Any] = [*self.partitions.values(), *self.log_dirs]
        return all(state.is_complete for state in states)


async def verify(access: Access, placements: Placements) -> Verified:
    look = await access.look(None)
    states = {}
    for key, placement in placements.items():
        partition = look.view.partitions.get(key)
        current = () if partition is None else partition.replicas
        states[key] = PlacementState(current, placement.replicas, key in look.targets)
    log_dirs = await log_dir_states(access, placements, look.view)
    is_any_moving = bool(look.targets) or not look.accepts_more or any(each.is_moving for each in log_dirs)
    return Verified(states, log_dirs, is_any_moving, tuple(look.view.brokers))


async def log_dir_states(access: Access, placements: Placements, view: ClusterView) -> tuple[LogDirState, ...]:
    """The states of the replicas whose directories are chosen."""
    wanted = [
        (key, broker, path)
        for key, placement in placements.items()
        for broker, path in placement.chosen_log_dirs.items()
    ]
    if not wanted:
        return ()
    brokers = sorted({broker for _, broker, _ in wanted if broker in view.brokers})
    found = await access.log_dirs(brokers, sorted({key for key, _, _ in wanted}))
    states = []
    for key, broker, path in wanted:
        present = {
            is_future: directory_path
            for directory_path, directory in found.get(broker, {}).items()
            if (replica := directory.replicas.get(key)) is not None
            for is_future in (replica.is_future,)
        }
        states.append(
            LogDirState(key.topic, key.partition, broker, path, broker in found, present.get(False), present.get(True))
        )
    return tuple(states)


async def clear_throttles(access: Access, brokers: Collection[int], topics: Collection[str]) -> dict[str, str]:
    """Deletes every throttle of these brokers and topics, as Kafka's tool does. Returns the problems by entity."""
    dead = await access.unreachable(brokers)
    problems = {broker_entity(broker): NOT_ALIVE for broker in dead}
    changes = clearing((broker for broker in brokers if broker not in dead), topics)
    results = await access.change_configs(changes)
    return problems | {
        entity: error_line(error)
        for entity, error in results.items()
        if error is not None and error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


# -- cancel and throttle ----------------------------------------------------------------------------------------------


async def cancel(access: Access, active: Collection[TopicPartition]) -> None:
    """Cancels these reassignments. Raises ToolError that names those that could not be cancelled."""
    results = await access.cancel(sorted(active)) if active else {}
    # Another client may have cancelled the reassignment, or it may be done.
    errors = {
        key: error
        for key, error in results.items()
        if error is not None and error.code != ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    }
    if errors:
        plural = "" if len(errors) == 1 else "s"
        raise ToolError(
            f"Error cancelling partition reassignment{plural} for:",
            details=[f"{key}: {error_line(error)}" for key, error in sorted(errors.items())],
        )


async def restore_order(access: Access, record: Record) -> dict[str, str]:
    """Restores the former order of replicas of partitions that a cancelled execution did not move. When Kafka cancels a
    reassignment, it only removes the added replicas from the target order, which may leave another preferred leader.
    Returns the problems by partition."""
    look = await access.look(sorted({move.topic for move in record.moves}))
    ids = topic_ids(record.moves, look.view)
    former = {
        move.topic_partition: move.before.replicas
        for move in record.moves
        if (partition := look.view.partitions.get(move.topic_partition)) is not None
        and move.topic_partition not in look.targets
        and ids.get(move.topic) == record.topic_ids.get(move.topic)
        and partition.replicas != move.before.replicas
        and set(partition.replicas) == set(move.before.replicas) != set(move.after.replicas)
    }
    results = await access.start(former) if former else {}
    # The order does not matter for a topic that is being deleted.
    return {
        str(key): error_line(error)
        for key, error in results.items()
        if error is not None and error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


async def cancel_log_dirs(access: Access, placements: Placements) -> list[str]:
    """Cancels copies to chosen directories by asking for each replica's current directory. Returns the replicas."""
    look = await access.look(sorted({key.topic for key in placements}))
    states = await log_dir_states(access, placements, look.view)
    back = {
        TopicPartitionReplica(each.topic, each.partition, each.broker_id): each.current
        for each in states
        if each.future is not None and each.current is not None
    }
    results = await access.move_log_dirs(back) if back else {}
    return sorted(f"{each.topic}-{each.partition}-{each.broker_id}" for each, error in results.items() if error is None)


async def end_execution(access: Access, file: StateFile, report: Report) -> dict[str, str]:
    """Ends an execution that was cancelled: its throttles are restored and its record removed. Returns the problems."""
    left = await restore_throttles(access, file, report)
    if not left:
        file.remove()
    return left


async def change_throttle(access: Access, file: StateFile) -> dict[str, str]:
    """Sets the throttle of an execution's record. The caller holds the lock. Returns the problems by entity."""
    record = file.load()
    look = await access.look(sorted({move.topic for move in record.moves}))
    moving = [move for move in record.moves if move.topic_partition in look.targets]
    wanted = {
        key: value
        for key, value in wanted_configs(record.moves, moving, record.throttle, record.log_dir_throttle).items()
        if broker_of(key.entity) in {*look.view.brokers, None}
    }
    return dict((await set_throttles(access, file, wanted)).errors)
