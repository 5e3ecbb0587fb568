"""Carries out the moves of a record: begins as many as the limits allow, follows them, and removes the throttle.

Each turn looks at the cluster, decides with the pure functions of `steps` and `throttles`, acts, and reports events.
`setting_throttles` sets and restores configs; `log_dir_moves` moves replicas into their directories.

What must stay true:
- The record on disk names each config before it is set. So `execute --resume` restores every config, at whatever point
  the process was killed.
- A partition begins to move only if it has not changed since the plan was made, and if the throttle of its brokers is
  set, which each batch checks first. A throttle that another client has deleted is set again, also while partitions
  move.
- A partition that cannot move now, because a broker is dead for example, is reported and tried again. It does not count
  towards the limits, so the others move.
- When another client cancels a partition, nothing more begins: it may be an operator who cancels all.
- The throttle stays while a partition that this plan has begun is moving: the copy would otherwise run unlimited.

The broker that was asked may be behind the controller. Therefore a change by another client counts only when all looks
for SETTLE_S have shown it.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.access.clients import error_line
from klamm.cli.reassign.access import CONTROLLER_AWAITED_MS, Access
from klamm.cli.reassign.log_dir_moves import MAY_PASS, LogDirMoves
from klamm.cli.reassign.planning.model import Move
from klamm.cli.reassign.setting_throttles import (
    FIRST_LOOKS_EVERY_S,
    LOOKS_EVERY_S,
    Report,
    Throttled,
    restore_throttles,
    set_throttles,
)
from klamm.cli.reassign.state_file import StateFile
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
    ConfigKey,
    broker_entity,
    broker_of,
    topic_entity,
    wanted_configs,
)
from klamm.net.client import ClientError
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import TopicPartition

SETTLE_S: Final = 20.0
CONFIGS_CHECKED_EVERY_S: Final = 5.0
RATE_OVER_S: Final = 10.0
STOPPED: Final = "another client has cancelled a partition of this plan, so nothing more begins"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an execution. `timeout_ms` is how long the execution continues while all remaining partitions
    wait."""

    limits: Limits
    timeout_ms: int = 60_000


@dataclass(frozen=True)
class Outcome:
    """How an execution has ended. `unfinished` and `failed` map names to reasons."""

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
        self._dirs = LogDirMoves(access, self._record, report)
        self._throttled: dict[ConfigKey, str] = {}
        self._throttle_errors: dict[str, str] = {}
        self._throttle_announced: object = (None, None)
        self._listed: set[TopicPartition] = set()
        self._configs_checked_s = self._clock()
        self._may_begin: set[TopicPartition] = set()
        self._reported: set[tuple[ConfigKey, str | None]] = set()
        self._known_partitions: dict[str, set[int]] = {}
        self._samples: deque[_Sample] = deque()

    async def run(self) -> Outcome:
        """Returns when every partition is done, has failed, or has waited for the timeout. Raises ToolError when the
        cluster does not answer for that time."""
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
        """Begins what can begin now, as Kafka's tool does. Another client must do the rest and remove the throttle."""
        look = await self._look()
        self._judge(look)
        await self._start(look)
        await self._dirs.step(self._moved_to_their_brokers(), look)
        waiting = {str(move.topic_partition): reason for move in self._open_moves()
                   if (reason := self._verdicts[move.topic_partition].reason)}  # fmt: skip
        return Outcome(tuple(sorted(self._moved_to_their_brokers())), waiting, self._failed(), {})

    def _notice_commands(self) -> None:
        """Reads what another command may have recorded: another throttle, or the end of this execution."""
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
        """Sets the throttle for the moving partitions and for the next batch, on live brokers. Now and then checks
        whether another client has changed it."""
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
            if (key, value) not in self._reported:
                self._reported.add((key, value))
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
        # Another client may have deleted the throttle just before the start, so the throttle is checked again soon.
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
        # Partitions that wait do not count towards the limits. Partitions without a throttle come last.
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
        # A cancelled copy is deleted, so the bytes may have decreased.
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
        """The bytes that brokers have so far of the partitions that they are receiving."""
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
