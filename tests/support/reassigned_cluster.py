"""A cluster in memory that reassigns partitions as a controller does, for the execution of `klamm reassign`.

Replicas are copied at a fixed rate of the loop's clock. A test takes brokers away, changes what it likes meanwhile, or
kills the execution at any of its calls.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from uuid import UUID

from klamm.cli.reassign.access import LogDirs, Results, Targets
from klamm.cli.reassign.state_file import Record, StateFile
from klamm.cli.reassign.steps import ClusterMoment
from klamm.cli.reassign.throttles import Changes, ConfigKey, broker_of
from klamm.client.admin.log_dirs import LogDirDescription, ReplicaInfo, TopicPartitionReplica
from klamm.config.throttles import FOLLOWER_RATE, FOLLOWER_REPLICAS, LEADER_RATE, LEADER_REPLICAS
from klamm.diagnosis.cluster_view import BrokerView, ClusterView, PartitionView
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition

BYTES_PER_S = 100
SIZE_BYTES = 300


class Killed(BaseException):
    """The process of the execution is gone."""


class Steps:
    """Counts what an execution does, and kills it before or after one of the steps. `on_step` is called with the number
    of each step before it."""

    def __init__(
        self, kill_at: int | None = None, *, is_done: bool = False, on_step: Callable[[int], None] = lambda number: None
    ) -> None:
        self.count, self._kill_at, self._is_done, self._on_step = 0, kill_at, is_done, on_step

    def begin(self) -> None:
        self._on_step(self.count)
        if self.count == self._kill_at and not self._is_done:
            raise Killed

    def end(self) -> None:
        self.count += 1
        if self.count - 1 == self._kill_at and self._is_done:
            raise Killed


class ReassignedCluster:
    """See the module. It has the methods of `klamm.cli.reassign.access.Access`."""

    def __init__(self, brokers: Iterable[int], replicas: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        self.live = set(brokers)
        self.bytes_per_s = BYTES_PER_S
        self.dead_but_configurable = set[int]()
        self.replicas = dict(replicas)
        self.targets: dict[TopicPartition, tuple[int, ...]] = {}
        self.copied: dict[tuple[TopicPartition, int], float] = {}
        self.topic_ids = {key.topic: UUID(int=1) for key in replicas}
        self.configs: dict[ConfigKey, str] = {}
        self.refusals: dict[TopicPartition, KafkaError] = {}
        self.log_dir_of: dict[TopicPartitionReplica, str] = {}
        # The copies to another directory: its path, and when the copy began.
        self.log_dirs_take_s = 0.0
        self.future_log_dirs: dict[TopicPartitionReplica, tuple[str, float]] = {}
        self.accepts_more: Callable[[], bool] = lambda: True
        self.steps = Steps()
        self.history: list[str] = []
        self.on_look: Callable[[], None] = lambda: None
        self.most_moving: dict[int, int] = {}
        # Since when partitions have been copied without a throttle, the longest such time, and the steps that began it.
        self._unthrottled_since_s: dict[TopicPartition, float] = {}
        self.longest_unthrottled_s = 0.0
        self.started_unthrottled: list[int] = []
        self.configs_shown_after_s = 0.0
        self.views_are_old_for_s = 0.0
        self._views: list[tuple[float, dict[TopicPartition, PartitionView]]] = []
        self._shown_before: dict[ConfigKey, str] = {}
        self._shown_at_s = 0.0
        self._now_s = 0.0

    def _advance(self) -> None:
        now_s = asyncio.get_running_loop().time()
        passed_s, self._now_s = now_s - self._now_s, now_s
        self._notice_unthrottled()
        for key, target in list(self.targets.items()):
            adding = [broker for broker in target if broker not in self.replicas[key]]
            for broker in adding:
                if broker in self.live:
                    self.copied[key, broker] = self.copied.get((key, broker), 0) + passed_s * self.bytes_per_s
            if set(target) <= self.live and all(self.copied.get((key, each), 0) >= SIZE_BYTES for each in adding):
                self.replicas[key] = self.targets.pop(key)

    def _notice_unthrottled(self) -> None:
        since = {key: self._unthrottled_since_s.get(key, self._now_s) for key in self.targets if self.is_free(key)}
        self._unthrottled_since_s = since
        longest_s = self._now_s - min(since.values(), default=self._now_s)
        self.longest_unthrottled_s = max(self.longest_unthrottled_s, longest_s)

    def is_free(self, key: TopicPartition) -> bool:
        """Whether a copy of the partition has no throttle."""
        before, target = self.replicas[key], self.targets[key]
        lists = {
            LEADER_REPLICAS: {f"{key.partition}:{each}" for each in before},
            FOLLOWER_REPLICAS: {f"{key.partition}:{each}" for each in target if each not in before},
        }
        if not lists[FOLLOWER_REPLICAS]:
            return False
        listed = {name: self.configs.get(ConfigKey(f"topics/{key.topic}", name), "").split(",") for name in lists}
        rates = [
            ConfigKey(f"brokers/{broker}", name)
            for broker in {*before, *target} & self.live
            for name in (LEADER_RATE, FOLLOWER_RATE)
        ]
        is_listed = all("*" in listed[name] or set(listed[name]) >= lists[name] for name in lists)
        return not (is_listed and all(rate in self.configs for rate in rates))

    async def look(self, topics: Iterable[str] | None, *, in_doubt: bool = False) -> ClusterMoment:
        self._advance()
        self.on_look()
        now_s = asyncio.get_running_loop().time()
        partitions = self._partitions(topics)
        # The list of reassignments is the controller's, the rest is what a broker knows.
        self._views.append((now_s, partitions))
        while len(self._views) > 1 and self._views[1][0] <= now_s - self.views_are_old_for_s:
            self._views.pop(0)
        brokers = {broker: BrokerView(broker, ("h", 1)) for broker in sorted(self.live)}
        view = ClusterView(brokers, self._views[0][1], dict(self.topic_ids))
        return ClusterMoment(view, dict(self.targets), self.accepts_more())

    def _partitions(self, topics: Iterable[str] | None) -> dict[TopicPartition, PartitionView]:
        partitions = {}
        for key, replicas in sorted(self.replicas.items()):
            if topics is not None and key.topic not in topics:
                continue
            target = self.targets.get(key, replicas)
            removing = tuple(each for each in replicas if each not in target)
            adding = tuple(each for each in target if each not in replicas)
            isr = tuple(each for each in replicas if each in self.live)
            partitions[key] = PartitionView(isr[0] if isr else -1, 0, (*target, *removing), isr, adding, removing)
        return partitions

    async def cluster_id(self) -> str | None:
        return "fake"

    async def start(self, targets: Targets) -> Results:
        self.steps.begin()
        self._advance()
        results: Results = {}
        for key, target in targets.items():
            results[key] = self.refusals.get(key)
            if results[key] is None:
                self.targets[key] = tuple(target)
        self.started_unthrottled += [self.steps.count for key in targets if key in self.targets and self.is_free(key)]
        self._notice_unthrottled()
        self.history.append(f"start {','.join(str(key) for key in targets)}")
        for broker in self.live:
            moving = sum(
                1 for key, target in self.targets.items() if broker in target and broker not in self.replicas[key]
            )
            self.most_moving[broker] = max(self.most_moving.get(broker, 0), moving)
        self.steps.end()
        return results

    async def cancel(self, partitions: Collection[TopicPartition]) -> Results:
        for key in partitions:
            self.targets.pop(key, None)
        return dict.fromkeys(partitions)

    async def read_configs(self, keys: Iterable[ConfigKey]) -> dict[ConfigKey, str | None]:
        now_s = asyncio.get_running_loop().time()
        known = self.configs if now_s >= self._shown_at_s else self._shown_before
        return {
            key: known.get(key)
            for key in keys
            if broker_of(key.entity) in {*self.live, *self.dead_but_configurable, None}
        }

    async def unreachable(self, brokers: Iterable[int]) -> set[int]:
        return set(brokers) - self.live - self.dead_but_configurable

    async def change_configs(self, changes: Changes) -> dict[str, KafkaError | None]:
        self.steps.begin()
        self._shown_before = dict(self.configs)
        self._shown_at_s = asyncio.get_running_loop().time() + self.configs_shown_after_s
        results: dict[str, KafkaError | None] = {}
        for entity, values in changes.items():
            if broker_of(entity) not in {*self.live, *self.dead_but_configurable, None}:
                results[entity] = KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, entity)
                continue
            results[entity] = None
            for name, value in values.items():
                self.history.append(f"{entity} {name}={value}")
                self.configs.pop(ConfigKey(entity, name), None)
                if value is not None:
                    self.configs[ConfigKey(entity, name)] = value
        self.steps.end()
        return results

    async def log_dirs(self, brokers: Iterable[int], partitions: Collection[TopicPartition]) -> LogDirs:
        self._advance()
        found: LogDirs = {}
        for broker in brokers:
            directories: dict[str, dict[TopicPartition, ReplicaInfo]] = {}
            for key in partitions:
                size = SIZE_BYTES if broker in self.replicas.get(key, ()) else int(self.copied.get((key, broker), 0))
                replica = TopicPartitionReplica(*key, broker)
                if replica in self.future_log_dirs:
                    future_path, began_s = self.future_log_dirs[replica]
                    passed = self._now_s - began_s
                    if passed >= self.log_dirs_take_s:
                        self.log_dir_of[replica] = self.future_log_dirs.pop(replica)[0]
                    else:
                        copied = ReplicaInfo(int(size * passed / self.log_dirs_take_s), 0, is_future=True)
                        directories.setdefault(future_path, {})[key] = copied
                path = self.log_dir_of.get(replica, "/data")
                directories.setdefault(path, {})[key] = ReplicaInfo(size, 0, is_future=False)
            found[broker] = {path: LogDirDescription(None, replicas) for path, replicas in directories.items()}
        return found

    async def move_log_dirs(
        self, paths: Mapping[TopicPartitionReplica, str]
    ) -> dict[TopicPartitionReplica, KafkaError | None]:
        self.steps.begin()
        results: dict[TopicPartitionReplica, KafkaError | None] = {}
        for each, path in paths.items():
            self.history.append(f"move {each.topic}-{each.partition}-{each.broker_id} to {path}")
            if each.broker_id in self.replicas[TopicPartition(each.topic, each.partition)]:
                self.future_log_dirs[each] = (path, asyncio.get_running_loop().time())
                results[each] = None
            else:
                results[each] = KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, "")
        self.steps.end()
        return results


class SteppedStateFile(StateFile):
    """A state file whose saves are steps too."""

    def __init__(self, path: Path, steps: Steps) -> None:
        super().__init__(path)
        self._steps = steps

    def save(self, record: Record) -> None:
        self._steps.begin()
        super().save(record)
        self._steps.end()

    def remove(self) -> None:
        self._steps.begin()
        super().remove()
        self._steps.end()
