"""The plain values of a reassignment: the cluster, the placement of a partition, and a plan of moves.

Nothing here speaks to a cluster. A planner makes a `Plan` from a `ClusterModel`; an executor carries it out;
`json_form` reads and writes Kafka's files. The order of replicas matters: the first one is the preferred leader.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from klamm.protocol.vocabulary import NO_LEADER, TopicPartition

ANY_LOG_DIR: Final = "any"
"""Used in place of a path: the broker chooses the directory of a new replica."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A live broker. `log_dirs` are the paths of its directories that are online, empty if they are not known.

    `usable_bytes` is the free space of all directories, None on brokers that do not report it (before Kafka 3.3).
    """

    rack: str | None = None
    log_dirs: tuple[str, ...] = ()
    usable_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition as it is. `size_bytes` is that of its leader's log; `log_dirs` has the directories that are known.

    `leader` is NO_LEADER when the partition has none, and None when it is not known.
    """

    replicas: tuple[int, ...]
    size_bytes: int = 0
    leader: int | None = None
    log_dirs: Mapping[int, str] = field(default_factory=dict)
    is_reassigning: bool = False

    @property
    def can_move(self) -> bool:
        """Whether a reassignment could begin now and be completed."""
        return not self.is_reassigning and self.leader != NO_LEADER


@dataclass(frozen=True)
class ClusterModel:
    """The live brokers by id, and the partitions. Replicas may be on brokers that are not alive."""

    brokers: Mapping[int, Broker]
    partitions: Mapping[TopicPartition, Partition]

    @property
    def known_brokers(self) -> set[int]:
        """The live brokers, and those that have replicas."""
        return {*self.brokers, *(broker for each in self.partitions.values() for broker in each.replicas)}

    def without_log_dirs(self) -> "ClusterModel":
        """The cluster as if directories were not known, so that a plan leaves them to the brokers."""
        return replace(self, partitions={key: replace(each, log_dirs={}) for key, each in self.partitions.items()})


@dataclass(frozen=True, slots=True)
class Placement:
    """The replicas of a partition, and the directory of each: a path or ANY_LOG_DIR."""

    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]

    def __post_init__(self) -> None:
        assert len(self.replicas) == len(self.log_dirs)

    @property
    def chosen_log_dirs(self) -> dict[int, str]:
        """The directories that are named, by broker."""
        return {broker: path for broker, path in zip(self.replicas, self.log_dirs, strict=True) if path != ANY_LOG_DIR}


def anywhere(replicas: Iterable[int]) -> Placement:
    """A placement that leaves the directories to the brokers."""
    brokers = tuple(replicas)
    return Placement(brokers, (ANY_LOG_DIR,) * len(brokers))


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's change of placement. At least one of replicas, their order and directories differs."""

    topic: str
    partition: int
    before: Placement
    after: Placement
    size_bytes: int = 0
    """The size of one replica."""
    leader: int | None = None
    """The broker that added replicas copy from, if it is known."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def adding_replicas(self) -> tuple[int, ...]:
        """The brokers that receive a copy, in the order of the target."""
        return tuple(broker for broker in self.after.replicas if broker not in self.before.replicas)

    @property
    def removing_replicas(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.before.replicas if broker not in self.after.replicas)

    @property
    def log_dir_moves(self) -> dict[int, str]:
        """The replicas that stay on their broker but move to another directory: the broker and the new path."""
        before = dict(zip(self.before.replicas, self.before.log_dirs, strict=True))
        return {
            broker: path
            for broker, path in self.after.chosen_log_dirs.items()
            if broker in before and before[broker] != path
        }

    @property
    def bytes_between_brokers(self) -> int:
        return self.size_bytes * len(self.adding_replicas)

    @property
    def bytes_between_log_dirs(self) -> int:
        return self.size_bytes * len(self.log_dir_moves)


@dataclass(frozen=True, slots=True)
class Unmovable:
    """A replica that a goal asks to move, and why it stays: `reason` is a sentence for a person.

    `broker` is None when the goal asks for a replica that does not exist yet.
    """

    topic: str
    partition: int
    broker: int | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """The moves, sorted by topic and partition, and the replicas that could not be moved as the goal asks."""

    moves: tuple[Move, ...]
    unmovable: tuple[Unmovable, ...] = ()

    @property
    def before(self) -> dict[TopicPartition, Placement]:
        """The placements that undo the plan."""
        return {move.topic_partition: move.before for move in self.moves}

    @property
    def after(self) -> dict[TopicPartition, Placement]:
        return {move.topic_partition: move.after for move in self.moves}

    @cached_property
    def bytes_in(self) -> dict[int, int]:
        """The bytes that each receiving broker copies from others."""
        received: dict[int, int] = {}
        for move in self.moves:
            for broker in move.adding_replicas:
                received[broker] = received.get(broker, 0) + move.size_bytes
        return dict(sorted(received.items()))

    @cached_property
    def bytes_out(self) -> dict[int, int]:
        """The bytes that each leader sends to the added replicas. An unknown leader counts as the preferred one."""
        sent: dict[int, int] = {}
        for move in self.moves:
            if move.adding_replicas:
                leader = move.before.replicas[0] if move.leader in (None, NO_LEADER) else move.leader
                sent[leader] = sent.get(leader, 0) + move.bytes_between_brokers
        return dict(sorted(sent.items()))

    @property
    def bytes_between_brokers(self) -> int:
        return sum(move.bytes_between_brokers for move in self.moves)

    @property
    def bytes_between_log_dirs(self) -> int:
        return sum(move.bytes_between_log_dirs for move in self.moves)

    def duration_s(self, throttle_bytes_per_s: int) -> float:
        """The least time at this throttle, which limits what each broker sends and what each broker receives."""
        busiest = max([*self.bytes_in.values(), *self.bytes_out.values()], default=0)
        return busiest / throttle_bytes_per_s
