"""Carries out the moves of a record: begins as many as the limits allow, follows them, and takes the throttle back.

Each turn looks at the cluster, decides with the pure functions of `steps` and `throttles`, acts, and reports events.

What must stay true:
- The record on disk names each config before it is set, so that a process that is killed at any point leaves nothing
  that `execute --resume` does not restore.
- A partition begins only while it is as it was when the plan was made, and while the throttle of its brokers is there:
  each batch looks for it first. One that another client has deleted is set again, also while partitions move.
- A partition that cannot move now, because a broker is dead for example, is reported and tried again. It counts for no
  limit, so the others move.
- When another client cancels a partition, nothing more begins: it may be an operator who cancels all.
- The throttle stays while a partition that this plan has begun is moving: without it the copy would run unlimited.

A broker that was asked may be behind the controller. Therefore a change by another client is believed when all looks
for SETTLE_S have shown it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from klamm.access.clients import error_line
from klamm.cli.reassign.access import CONTROLLER_AWAITED_MS, Access
from klamm.cli.reassign.planning.model import Move
from klamm.cli.reassign.state_file import Record, StateFile
from klamm.cli.reassign.steps import (
    BEHIND,
    CANCELLED,
    ClusterMoment,
    Limits,
    Standing,
    Verdict,
    judge,
    moved_bytes,
    next_batch,
)
from klamm.cli.reassign.throttles import (
    Changes,
    ConfigKey,
    Setting,
    broker_entity,
    broker_of,
    foreign,
    is_gone,
    settings_for,
    shows,
    to_restore,
    to_set,
    topic_entity,
    wanted_configs,
)
from klamm.client.admin.log_dirs import TopicPartitionReplica
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.net.client import ClientError
from klamm.processes.errors import ToolError
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition

FIRST_LOOKS_EVERY_S: Final = 0.1
LOOKS_EVERY_S: Final = 1.0
SETTLE_S: Final = 20.0
CONFIGS_CHECKED_EVERY_S: Final = 5.0
RATE_OVER_S: Final = 10.0
RESTORE_TRIES: Final = 3
CONFIRMED_WITHIN_S: Final = 5.0
STOPPED: Final = "another client has cancelled a partition of this plan, so nothing more begins"
NOT_ALIVE: Final = "the broker is not alive"

# The controller may accept a partition later that it refuses with one of these.
MAY_PASS: Final = RETRIABLE_ERRORS | {
    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ErrorCode.REASSIGNMENT_IN_PROGRESS,
    ErrorCode.BROKER_NOT_AVAILABLE,
}

Report = Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an execution. `timeout_ms` is how long it lasts while everything that is left waits."""

    limits: Limits
    timeout_ms: int = 60_000


@dataclass(frozen=True)
class Outcome:
    """How an execution has ended. `unfinished` and `failed` have the reasons."""

    done: tuple[TopicPartition, ...]
    unfinished: Mapping[str, str]
    failed: Mapping[str, str]
    throttles_left: Mapping[str, str]

    @property
    def is_complete(self) -> bool:
        return not (self.unfinished or self.failed or self.throttles_left)


class _Sample(NamedTuple):
    at_s: float
    moved_bytes: int


class Execution:
    """One process's execution of a record. The record is in `file`."""

    def __init__(self, access: Access, file: StateFile, options: Options, report: Report) -> None:
        self._access, self._file, self._options, self._report = access, file, options, report
        self._record = file.load()
        self._stamp = file.stamp()
        self._clock = asyncio.get_running_loop().time
        self._topics = sorted({move.topic for move in self._record.moves})
        self._verdicts: dict[TopicPartition, Verdict] = {}
        self._sent: set[TopicPartition] = set()
        self._refused: dict[TopicPartition, str] = {}
        self._doubts: dict[TopicPartition, float] = {}
        self._is_stopped = False
        self._dirs = _DirMoves(access, self._record, report)
        self._throttled: dict[ConfigKey, str] = {}
        self._throttle_errors: dict[str, str] = {}
        self._throttle_announced: object = (None, None)
        self._listed: set[TopicPartition] = set()
        self._configs_checked_s = self._clock()
        self._may_begin: set[TopicPartition] = set()
        self._told: set[tuple[ConfigKey, str | None]] = set()
        self._known_partitions: dict[str, set[int]] = {}
        self._samples: deque[_Sample] = deque()

    async def run(self) -> Outcome:
        """Returns when all is done, failed, or has waited for the timeout. Raises ToolError when the cluster does not
        answer for as long."""
        waiting_since_s: float | None = None
        pause_s = FIRST_LOOKS_EVERY_S
        while True:
            look = await self._look()
            self._notice_commands()
            self._judge(look)
            if not self._is_open():
                break
            await self._start(look)
            await self._dirs.step(self._moved_to_their_brokers(), look)
            await self._report_progress(look)
            if not self._is_open():
                break
            if not self._is_all_waiting(look):
                waiting_since_s = None
            elif self._is_stopped:
                break
            elif waiting_since_s is None:
                waiting_since_s = self._clock()
            elif self._clock() - waiting_since_s >= self._options.timeout_ms / 1000:
                break
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LOOKS_EVERY_S)
        return await self._end()

    async def begin(self) -> Outcome:
        """Begins what can begin now, as Kafka's tool does, and leaves the rest and the throttle to another client."""
        look = await self._look()
        self._judge(look)
        await self._start(look)
        await self._dirs.step(self._moved_to_their_brokers(), look)
        waiting = {str(move.topic_partition): reason for move in self._open_moves()
                   if (reason := self._verdicts[move.topic_partition].reason)}  # fmt: skip
        return Outcome(tuple(sorted(self._moved_to_their_brokers())), waiting, self._failed(), {})

    def _notice_commands(self) -> None:
        """Another command may have recorded another throttle, or that this execution shall end."""
        if not self._file.exists():
            raise ToolError(f"{self._file.path} was removed by another client; nothing more of the plan is begun")
        if (stamp := self._file.stamp()) != self._stamp:
            self._stamp, self._record = stamp, self._file.load()
        if self._record.is_cancelled:
            raise ToolError("the reassignment was cancelled by another command")

    # -- looking ------------------------------------------------------------------------------------------------------

    async def _look(self) -> ClusterMoment:
        deadline_s = self._clock() + max(self._options.timeout_ms, CONTROLLER_AWAITED_MS) / 1000
        while True:
            try:
                return await self._access.look(self._topics, in_doubt=bool(self._doubts))
            except (KafkaError, ClientError) as error:
                text = error_line(error) if isinstance(error, KafkaError) else str(error)
                if self._clock() >= deadline_s:
                    raise ToolError(f"the cluster does not answer: {text}") from error
                self._report({"event": "trouble", "reason": text})
            await asyncio.sleep(LOOKS_EVERY_S)

    def _judge(self, look: ClusterMoment) -> None:
        self._notice_partitions(look)
        self._may_begin.clear()
        now_s = self._clock()
        for move in self._open_moves():
            key = move.topic_partition
            verdict = judge(move, self._record.topic_ids.get(move.topic), look, is_sent=key in self._sent)
            if verdict.standing is not Standing.CHANGED and verdict.reason != BEHIND:
                self._doubts.pop(key, None)
            elif now_s - self._doubts.setdefault(key, now_s) < SETTLE_S:
                verdict = Verdict(Standing.MOVING)
            if verdict.standing is Standing.READY and not verdict.reason:
                self._may_begin.add(key)
                verdict = Verdict(Standing.READY, self._held_back(move))
            before = self._verdicts.get(key)
            self._verdicts[key] = verdict
            if before == verdict:
                continue
            if verdict.standing is Standing.DONE:
                self._sent.discard(key)
                self._report({"event": "completed", "partition": str(key)})
            elif verdict.standing is Standing.CHANGED:
                self._is_stopped |= verdict.reason == CANCELLED
                self._report({"event": "changed", "partition": str(key), "reason": verdict.reason})
            elif verdict.reason:
                self._report({"event": "waiting", "partition": str(key), "reason": verdict.reason})

    def _notice_partitions(self, look: ClusterMoment) -> None:
        for topic, partitions in look.view.of_topics().items():
            added = sorted(partitions.keys() - self._known_partitions.setdefault(topic, set(partitions)))
            if added:
                self._known_partitions[topic].update(added)
                self._report({"event": "partitions_added", "topic": topic, "partitions": added})

    def _held_back(self, move: Move) -> str:
        """Why a partition that could move may not begin; empty if it may."""
        if self._is_stopped:
            return STOPPED
        return self._throttle_problem(move) or self._refused.get(move.topic_partition, "")

    def _throttle_problem(self, move: Move) -> str:
        if not self._throttle_errors:
            return ""
        brokers = (*move.before.replicas, *move.after.replicas)
        for entity in (topic_entity(move.topic), *map(broker_entity, brokers)):
            if entity in self._throttle_errors:
                return f"no throttle on {entity}: {self._throttle_errors[entity]}"
        return ""

    def _open_moves(self) -> list[Move]:
        return [move for move in self._record.moves if not self._is_final(move.topic_partition)]

    def _is_final(self, key: TopicPartition) -> bool:
        verdict = self._verdicts.get(key)
        return verdict is not None and verdict.is_final

    def _moved_to_their_brokers(self) -> set[TopicPartition]:
        return {key for key, verdict in self._verdicts.items() if verdict.standing is Standing.DONE}

    def _is_open(self) -> bool:
        return bool(self._open_moves()) or bool(self._dirs.pending(self._moved_to_their_brokers()))

    def _is_all_waiting(self, look: ClusterMoment) -> bool:
        open_ = [self._verdicts[move.topic_partition] for move in self._open_moves()]
        dirs = self._dirs.pending(self._moved_to_their_brokers())
        return all(dirs.values()) and all(
            verdict.reason or (verdict.standing is Standing.READY and not look.accepts_more) for verdict in open_
        )

    # -- throttles ----------------------------------------------------------------------------------------------------

    async def _set_throttles(self, look: ClusterMoment, batch: Collection[Move]) -> None:
        """Sets the throttle of what moves and of the batch that is to begin, on brokers that are alive; now and then
        looks whether another client has changed it."""
        if batch:
            self._listed = {move.topic_partition for move in [*self._moving(), *batch]}
        elif not self._listed:
            self._listed = {move.topic_partition for move in self._moving()}
        live = {*look.view.brokers, None}
        rates = (self._record.throttle, self._record.log_dir_throttle)
        listed = [move for move in self._record.moves if move.topic_partition in self._listed]
        wanted = {
            key: value
            for key, value in wanted_configs(self._relevant_moves(), listed, *rates).items()
            if broker_of(key.entity) in live
        }
        is_new = wanted.items() - self._throttled.items()
        is_due = self._clock() - self._configs_checked_s >= CONFIGS_CHECKED_EVERY_S
        if not (wanted and (batch or is_new or is_due)):
            return
        self._configs_checked_s = self._clock()
        try:
            found = await set_throttles(self._access, self._file, wanted, self._throttled)
        except (KafkaError, ClientError) as error:
            found = Throttled({key.entity: str(error) for key in wanted})
        self._record, self._stamp = self._file.load(), self._file.stamp()
        entities = {key.entity for key in wanted}
        left = {entity: error for entity, error in self._throttle_errors.items() if entity not in entities}
        self._throttle_errors = {**left, **found.errors}
        self._throttled |= {key: value for key, value in wanted.items() if key.entity not in found.errors}
        if rates != self._throttle_announced and entities - found.errors.keys():
            self._throttle_announced = rates
            self._report({"event": "throttle_set", "throttle": rates[0], "log_dir_throttle": rates[1]})
        if found.gone:
            self._report({"event": "throttle_set_again", "entities": sorted({key.entity for key in found.gone})})
        for key, value in found.foreign.items():
            if (key, value) not in self._told:
                self._told.add((key, value))
                self._report({"event": "config_changed", "entity": key.entity, "config": key.name, "value": value})

    def _moving(self) -> list[Move]:
        return [move for move in self._open_moves() if self._verdicts[move.topic_partition].standing is Standing.MOVING]

    def _relevant_moves(self) -> list[Move]:
        return [
            move
            for move in self._record.moves
            if (verdict := self._verdicts[move.topic_partition]).standing is not Standing.CHANGED
            and (verdict.standing is not Standing.DONE or move.after.chosen_log_dirs)
        ]

    # -- moving -------------------------------------------------------------------------------------------------------

    async def _start(self, look: ClusterMoment) -> None:
        """Begins the next partitions, under their throttle."""
        batch = [] if self._is_stopped or not look.accepts_more else self._next_batch()
        await self._set_throttles(look, batch)
        batch = [move for move in batch if not self._throttle_problem(move)]
        if not batch:
            return
        try:
            await self._dirs.announce(batch)
            results = await self._access.start({move.topic_partition: move.after.replicas for move in batch})
        except (KafkaError, ClientError) as error:
            self._report({"event": "trouble", "reason": str(error)})
            return
        # Another client may have deleted the throttle between the look at it and the start.
        self._configs_checked_s = self._clock() - CONFIGS_CHECKED_EVERY_S + LOOKS_EVERY_S
        started = [key for key, error in results.items() if error is None]
        self._sent.update(started)
        for key in started:
            self._refused.pop(key, None)
            self._verdicts[key] = Verdict(Standing.MOVING)
        if started:
            self._report({"event": "started", "partitions": [str(key) for key in sorted(started)]})
        for key, refusal in results.items():
            if refusal is not None:
                self._refuse(key, refusal)

    def _next_batch(self) -> list[Move]:
        # Partitions that wait for something count for no limit. Those without a throttle take no other's place.
        moving = [move for move in self._moving() if not self._verdicts[move.topic_partition].reason]
        ready = [move for move in self._open_moves() if move.topic_partition in self._may_begin]
        ready.sort(key=lambda move: bool(self._throttle_problem(move)))
        return next_batch(ready, moving, self._options.limits)

    def _refuse(self, key: TopicPartition, error: KafkaError) -> None:
        reason = error_line(error)
        self._refused[key] = reason
        if error.code in MAY_PASS:
            self._verdicts[key] = Verdict(Standing.READY, reason)
        else:
            self._verdicts[key] = Verdict(Standing.CHANGED, reason)
        name = "waiting" if error.code in MAY_PASS else "refused"
        self._report({"event": name, "partition": str(key), "reason": reason})

    # -- reporting ----------------------------------------------------------------------------------------------------

    async def _report_progress(self, look: ClusterMoment) -> None:
        sizes = await self._sizes(look)
        moved = self._dirs.moved_bytes + sum(
            moved_bytes(move, self._verdicts[move.topic_partition], sizes.get(move.topic_partition, {}))
            for move in self._record.moves
        )
        counted = [move for move in self._record.moves if not self._has_changed(move.topic_partition)]
        total = sum(move.bytes_between_brokers + self._dirs.bytes_to_move(move) for move in counted)
        now_s = self._clock()
        self._samples.append(_Sample(now_s, moved))
        while len(self._samples) > 2 and now_s - self._samples[0].at_s > RATE_OVER_S:
            self._samples.popleft()
        first = self._samples[0]
        # A copy that is cancelled is deleted.
        rate = max(0, moved - first.moved_bytes) / (now_s - first.at_s) if now_s > first.at_s else 0.0
        standings = [verdict.standing for verdict in self._verdicts.values()]
        self._report(
            {
                "event": "progress",
                "moved_bytes": moved,
                "total_bytes": total,
                "bytes_per_s": round(rate),
                "seconds_left": round((total - moved) / rate) if rate > 0 else None,
                "partitions": {standing.value: standings.count(standing) for standing in Standing},
            }
        )

    def _has_changed(self, key: TopicPartition) -> bool:
        return self._verdicts[key].standing is Standing.CHANGED

    async def _sizes(self, look: ClusterMoment) -> dict[TopicPartition, dict[int, int]]:
        """The bytes that brokers have of the partitions that they receive now."""
        moving = self._moving()
        brokers = {broker for move in moving for broker in move.adding_replicas if broker in look.view.brokers}
        if not brokers:
            return {}
        try:
            found = await self._access.log_dirs(sorted(brokers), [move.topic_partition for move in moving])
        except (KafkaError, ClientError):
            return {}
        sizes: dict[TopicPartition, dict[int, int]] = {}
        for broker, directories in found.items():
            for directory in directories.values():
                for key, replica in directory.replicas.items():
                    if not replica.is_future:
                        sizes.setdefault(key, {})[broker] = replica.size_bytes
        return sizes

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _end(self) -> Outcome:
        open_ = {move.topic_partition: self._verdicts[move.topic_partition] for move in self._open_moves()}
        unfinished = {str(key): verdict.reason for key, verdict in open_.items()}
        unfinished |= {str(key): reason for key, reason in self._dirs.pending(self._moved_to_their_brokers()).items()}
        is_moving = any(verdict.standing is Standing.MOVING for verdict in open_.values())
        left: dict[str, str] = {}
        if is_moving and self._record.settings:
            left = {key.entity: "a partition of the plan is still moving" for key in self._record.settings}
        else:
            left = await restore_throttles(self._access, self._file, self._report)
        if not unfinished and not left:
            self._file.remove()
        return Outcome(tuple(sorted(self._moved_to_their_brokers())), unfinished, self._failed(), left)

    def _failed(self) -> dict[str, str]:
        changed = {key: each for key, each in self._verdicts.items() if each.standing is Standing.CHANGED}
        return {str(key): verdict.reason for key, verdict in changed.items()} | self._dirs.failures()


@dataclass(frozen=True)
class Throttled:
    """What an attempt to set throttles has found. `errors` are the reasons why some could not be set, by entity. `gone`
    was deleted by another client and is set again; `foreign` are rates of other clients, which stay."""

    errors: Mapping[str, str]
    gone: Collection[ConfigKey] = ()
    foreign: Mapping[ConfigKey, str | None] = field(default_factory=dict)


async def set_throttles(
    access: Access, file: StateFile, wanted: Mapping[ConfigKey, str], shown: Mapping[ConfigKey, str] | None = None
) -> Throttled:
    """Records the former values of these configs, and sets those that are not as they are wanted. A rate that another
    client has set meanwhile stays. `shown` are the values that the brokers have shown already."""
    if not wanted:
        return Throttled({})
    shown = shown or {}
    current = await access.read_configs(wanted)
    gone = _gone(shown.keys() & wanted.keys(), shown, current)
    if gone:
        # A broker that was asked may be behind the one that has shown the value.
        await asyncio.sleep(LOOKS_EVERY_S)
        current = await access.read_configs(wanted)
        gone = _gone(gone, shown, current)
    readable = {key: value for key, value in wanted.items() if key in current}
    record = file.change(
        lambda record: record.with_settings(settings_for(readable, record.settings, current, record.own_replicas))
    )
    settings = {key: record.settings[key] for key in readable}
    changes = to_set(settings, current, shown.keys())
    results = await access.change_configs(changes) if changes else {}
    silent = {key.entity: "the broker does not answer" for key in wanted if key not in current}
    errors = {entity: error_line(error) for entity, error in results.items() if error is not None}
    expected = {
        ConfigKey(entity, name): value
        for entity, values in changes.items()
        if entity not in errors
        for name, value in values.items()
    }
    errors |= silent | await _unconfirmed(access, settings, expected)
    kept = {key: value for key, value in foreign(settings, current, shown.keys()).items() if key not in expected}
    return Throttled(errors, [key for key in gone if key.entity not in errors], kept)


def _gone(
    keys: Collection[ConfigKey], shown: Mapping[ConfigKey, str], current: Mapping[ConfigKey, str | None]
) -> set[ConfigKey]:
    return {key for key in keys if key in current and is_gone(key, shown[key], current[key])}


async def _unconfirmed(
    access: Access, settings: Mapping[ConfigKey, Setting], expected: Mapping[ConfigKey, str | None]
) -> dict[str, str]:
    """Waits until brokers show the values that were written: they hear of a change a little later, and until then the
    old value counts. Returns those that do not, by entity."""
    deadline_s = asyncio.get_running_loop().time() + CONFIRMED_WITHIN_S
    left = dict(expected)
    while left:
        try:
            current = await access.read_configs(left)
        except (KafkaError, ClientError):
            current = {}
        left = {
            key: value
            for key, value in left.items()
            if key not in current or not shows(key, settings[key], value, current[key])
        }
        if asyncio.get_running_loop().time() >= deadline_s:
            break
        if left:
            await asyncio.sleep(FIRST_LOOKS_EVERY_S)
    return {key.entity: f"{key.name} does not show the new value yet" for key in left}


async def restore_throttles(access: Access, file: StateFile, report: Report) -> dict[str, str]:
    """Gives every config of the record its former value. Returns why some could not be restored, by entity."""
    problems: dict[str, str] = {}
    is_throttled = False
    file.hand_over()
    for attempt in range(RESTORE_TRIES):
        record = file.load()
        if not record.settings:
            break
        if attempt:
            await asyncio.sleep(LOOKS_EVERY_S)
        is_throttled = True
        try:
            problems = await _restore(access, record, report)
        except (KafkaError, ClientError) as error:
            problems = {key.entity: str(error) for key in record.settings}
        restored = {key: None for key in record.settings if key.entity not in problems}
        file.change(lambda record, restored=restored: record.without(restored))  # type: ignore[misc]
    if is_throttled and not problems:
        report({"event": "throttle_removed"})
    return problems


async def _restore(access: Access, record: Record, report: Report) -> dict[str, str]:
    """Restores the former values once, and returns the problems by entity."""
    settings = record.settings
    brokers = {key.entity: broker for key in settings if (broker := broker_of(key.entity)) is not None}
    dead = await access.unreachable(brokers.values())
    problems = {entity: NOT_ALIVE for entity, broker in brokers.items() if broker in dead}
    reachable = {key: each for key, each in settings.items() if key.entity not in problems}
    current = await access.read_configs(reachable)
    problems |= {key.entity: "the broker does not answer" for key in reachable if key not in current}
    known = {key: each for key, each in reachable.items() if key in current}
    changes: Changes = to_restore(known, current, record.own_replicas)
    for key, value in foreign(known, current).items():
        if key.name not in changes.get(key.entity, {}):
            report({"event": "config_kept", "entity": key.entity, "config": key.name, "value": value})
    results = await access.change_configs(changes) if changes else {}
    # A topic that was deleted has no configs.
    gone = {
        entity
        for entity, error in results.items()
        if error is not None and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    problems |= {
        entity: error_line(error) for entity, error in results.items() if error is not None and entity not in gone
    }
    written = {
        ConfigKey(entity, name): value
        for entity, values in changes.items()
        if entity not in gone and entity not in problems
        for name, value in values.items()
    }
    problems |= await _unconfirmed(access, known, written)
    for key, value in written.items():
        if value is not None and key.entity not in problems:
            report({"event": "config_restored", "entity": key.entity, "config": key.name, "value": value})
    return problems


class _DirMoves:
    """The moves into chosen log directories. A broker takes the request for a replica that it does not have yet as a
    wish, so it is sent before the partition moves, and again afterwards until the broker accepts it."""

    def __init__(self, access: Access, record: Record, report: Report) -> None:
        self._access, self._report = access, report
        self._wanted = {
            TopicPartitionReplica(move.topic, move.partition, broker): path
            for move in record.moves
            for broker, path in move.after.chosen_log_dirs.items()
        }
        self._state: dict[TopicPartitionReplica, str] = {}
        self._accepted: set[TopicPartitionReplica] = set()
        self._done: set[TopicPartitionReplica] = set()
        self._failed: dict[TopicPartitionReplica, str] = {}
        # What is copied between two directories of a broker: the sizes of the replicas, and of their copies.
        self._size_bytes = {
            TopicPartitionReplica(move.topic, move.partition, broker): move.size_bytes
            for move in record.moves
            for broker in move.log_dir_moves
        }
        self._copied_bytes: dict[TopicPartitionReplica, int] = {}

    @property
    def moved_bytes(self) -> int:
        """How much has been copied between directories."""
        return sum(
            size_bytes if each in self._done else min(size_bytes, self._copied_bytes.get(each, 0))
            for each, size_bytes in self._size_bytes.items()
            if each not in self._failed
        )

    def bytes_to_move(self, move: Move) -> int:
        """How much of a partition is copied between directories in all."""
        replicas = (TopicPartitionReplica(move.topic, move.partition, broker) for broker in move.log_dir_moves)
        return sum(self._size_bytes[each] for each in replicas if each not in self._failed)

    def pending(self, moved: Collection[TopicPartition]) -> dict[str, str]:
        """The moves of partitions that are at their brokers, and why each waits; empty text if it is copied now."""
        return {_replica_text(each): self._state.get(each, "") for each in self._pending(moved)}

    def failures(self) -> dict[str, str]:
        return {_replica_text(each): reason for each, reason in self._failed.items()}

    def _pending(self, moved: Collection[TopicPartition]) -> list[TopicPartitionReplica]:
        return [
            each
            for each in self._wanted
            if each not in self._done
            and each not in self._failed
            and TopicPartition(each.topic, each.partition) in moved
        ]

    async def announce(self, batch: Collection[Move]) -> None:
        """Tells the brokers where the replicas of these partitions are to be."""
        moving = {move.topic_partition for move in batch}
        paths = {
            each: path for each, path in self._wanted.items() if TopicPartition(each.topic, each.partition) in moving
        }
        if paths:
            await self._access.move_log_dirs(paths)

    async def step(self, moved: Collection[TopicPartition], look: ClusterMoment) -> None:
        pending = self._pending(moved)
        if not pending:
            return
        try:
            await self._ask([each for each in pending if each not in self._accepted])
            await self._follow([each for each in pending if each in self._accepted], look)
        except (KafkaError, ClientError) as error:
            self._report({"event": "trouble", "reason": str(error)})

    async def _ask(self, replicas: Collection[TopicPartitionReplica]) -> None:
        if not replicas:
            return
        started = []
        for replica, error in (
            await self._access.move_log_dirs({each: self._wanted[each] for each in replicas})
        ).items():
            if error is None:
                self._accepted.add(replica)
                self._state.pop(replica, None)
                started.append(_replica_text(replica))
            elif error.code in MAY_PASS:
                self._state[replica] = error_line(error)
            else:
                self._failed[replica] = error_line(error)
                self._report({"event": "refused", "replica": _replica_text(replica), "reason": error_line(error)})
        if started:
            self._report({"event": "log_dirs_started", "replicas": sorted(started)})

    async def _follow(self, replicas: Collection[TopicPartitionReplica], look: ClusterMoment) -> None:
        brokers = sorted({each.broker_id for each in replicas if each.broker_id in look.view.brokers})
        partitions = sorted({TopicPartition(each.topic, each.partition) for each in replicas})
        found = await self._access.log_dirs(brokers, partitions) if brokers else {}
        for each in replicas:
            key = TopicPartition(each.topic, each.partition)
            directories = found.get(each.broker_id)
            if directories is None:
                self._state[each] = f"broker {each.broker_id} does not answer"
                continue
            self._state.pop(each, None)
            replicas_by_path = {
                path: replica
                for path, directory in directories.items()
                if (replica := directory.replicas.get(key)) is not None
            }
            copies = [replica.size_bytes for replica in replicas_by_path.values() if replica.is_future]
            self._copied_bytes[each] = sum(copies)
            present = {path: replica.is_future for path, replica in replicas_by_path.items()}
            if present == {self._wanted[each]: False}:
                self._done.add(each)
                self._report({"event": "log_dir_completed", "replica": _replica_text(each)})
            elif not any(present.values()):
                # Another client has cancelled the move, or the broker has started anew: it is asked again.
                self._accepted.discard(each)


def _replica_text(replica: TopicPartitionReplica) -> str:
    return f"{replica.topic}-{replica.partition}-{replica.broker_id}"
