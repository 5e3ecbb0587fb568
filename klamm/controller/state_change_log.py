"""The controller's decisions and actions: a record for each of them, and Kafka's two log files made of the records.

| record         | event                                                     | becomes a line of                   |
|----------------|-----------------------------------------------------------|-------------------------------------|
| StateChange    | a change of a partition's or replica's state or leader;   | state-change.log: INFO for New and  |
|                | a failed change, too                                      | Online partitions and for ISRs that |
|                |                                                           | lose a member, ERROR, else TRACE    |
| RequestSent    | LeaderAndIsr, UpdateMetadata or StopReplica for a broker  | state-change.log, INFO, and TRACE   |
|                |                                                           | for each partition that it names    |
| Announcement   | elections of the controller; brokers that come and go     | controller.log                      |
| EventProcessed | an event: its waiting time, duration and outcome; a       | none                                |
|                | preempted event, too                                      |                                     |

The lines are Kafka's and go to loggers with Kafka's names, in batches: the message of a `logging.LogRecord`
is then a `LogLines`, which holds the time of each line.

What must stay true:
- Making a record only stores it, without formatting or writing: a failover in a large cluster makes hundreds of
  thousands. No record keeps the content of a request in memory.
- Lines are written, and records delivered to followers, after the event and in slices, so that the loop serves others
  in between; `close` writes the rest.
- A follower that does not keep up misses records, and learns how many. It never delays the controller.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple

from klamm.base.log_lines import STATE_CHANGE_LOGGER, TRACE, Line, write_lines
from klamm.controller.states import PartitionState, ReplicaState
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionState
from klamm.protocol.state_texts import flag, leader_and_isr_text, stop_replica_text
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.topics import LeaderAndIsr

NO_REPLICA = -1
# The records or lines of one slice.
SLICE = 500
# The most records that wait for a follower.
MAX_UNREAD = 50_000

CONTROLLER_LOGGER = logging.getLogger("kafka.controller.KafkaController")

# Kafka's names of the states.
PARTITION_STATE_NAMES: Mapping[int, str] = {
    PartitionState.NEW: "NewPartition",
    PartitionState.ONLINE: "OnlinePartition",
    PartitionState.OFFLINE: "OfflinePartition",
    PartitionState.NON_EXISTENT: "NonExistentPartition",
}
REPLICA_STATE_NAMES: Mapping[int, str] = {
    ReplicaState.NEW: "NewReplica",
    ReplicaState.ONLINE: "OnlineReplica",
    ReplicaState.OFFLINE: "OfflineReplica",
    ReplicaState.DELETION_STARTED: "ReplicaDeletionStarted",
    ReplicaState.DELETION_SUCCESSFUL: "ReplicaDeletionSuccessful",
    ReplicaState.DELETION_INELIGIBLE: "ReplicaDeletionIneligible",
    ReplicaState.NON_EXISTENT: "NonExistentReplica",
}
# How much of a text a record keeps: clients can name partitions of topics with 32,767 bytes.
MAX_TEXT_CHARACTERS = 2_000
# The states whose changes are logged at INFO.
_PARTITION_ONLINE = int(PartitionState.ONLINE)  # New has a lower number, and is logged at INFO too.
_REPLICA_OFFLINE = int(ReplicaState.OFFLINE)


SentState = LeaderAndIsrPartitionState | tuple[int, int, bool]
"""A partition's state in LeaderAndIsr; for StopReplica (partition, leader epoch, whether to delete it)."""
SentStates = Iterable[tuple[str, SentState]]
"""The states by topic, iterated at most once."""


class StateChange(NamedTuple):
    """One change. `replica` is a broker id; NO_REPLICA when the state is the partition's own.

    `leadership` was decided with the change, `replicas` is the assignment of a new partition. If the change `failed`,
    the state is unchanged. `event` is the event that the controller was processing; `why` is the reason of the decision
    or of the failure, "" if the event explains it.
    """

    time_ms: int
    controller_epoch: int
    partition: PartitionKey
    replica: int
    from_state: IntEnum
    to_state: IntEnum
    leadership: LeaderAndIsr | None
    why: str
    failed: bool
    replicas: tuple[int, ...]
    event: str

    def __str__(self) -> str:
        topic, number = self.partition
        whose = f"{topic}-{number}" if self.replica == NO_REPLICA else f"replica {self.replica} of {topic}-{number}"
        text = f"[epoch {self.controller_epoch}] {whose} {self.from_state.name} -> {self.to_state.name}"
        if self.leadership is not None:
            state = self.leadership
            text += f", leader {state.leader} epoch {state.leader_epoch} isr {','.join(map(str, state.isr))}"
        return f"{text}: {self.why}" if self.why else text

    def lines(self, controller_id: int) -> Iterator[Line]:
        topic, number = self.partition
        name = f"{topic}-{number}"
        epoch = self.controller_epoch
        prefix = f"[Controller id={controller_id} epoch={epoch}] "

        def line(level: int, text: str) -> Line:
            return Line(STATE_CHANGE_LOGGER, level, self.time_ms, prefix + text)

        if self.replica == NO_REPLICA:
            before, after = PARTITION_STATE_NAMES[self.from_state], PARTITION_STATE_NAMES[self.to_state]
            if self.failed:
                yield line(
                    logging.ERROR,
                    f"Controller {controller_id} epoch {epoch} failed to change state for partition {name}"
                    f" from {before} to {after}: {self.why}",
                )
            elif self.to_state is PartitionState.NEW:
                replicas = ",".join(map(str, self.replicas))
                text = f"Changed partition {name} state from {before} to {after} with assigned replicas {replicas}"
                yield line(logging.INFO, text)
            elif self.to_state is PartitionState.ONLINE and self.leadership is not None:
                text = (
                    f"Changed partition {name} from {before} to {after} with state {_leader_and_isr(self.leadership)}"
                )
                yield line(logging.INFO, text)
            else:
                yield line(TRACE, f"Changed partition {name} state from {before} to {after}")
            return
        before, after = REPLICA_STATE_NAMES[self.from_state], REPLICA_STATE_NAMES[self.to_state]
        if self.failed:
            yield line(
                logging.ERROR,
                f"Controller {controller_id} epoch {epoch} initiated state change of replica {self.replica}"
                f" for partition {name} from {before} to {after} failed: {self.why}",
            )
            return
        if self.to_state is ReplicaState.OFFLINE and self.leadership is not None:
            yield line(
                logging.INFO,
                f"Partition {name} state changed to {_leader_isr_and_controller_epoch(self.leadership)} after removing"
                f" replica {self.replica} from the ISR as part of transition to {after}",
            )
        yield line(TRACE, f"Changed state of replica {self.replica} for partition {name} from {before} to {after}")

    def described(self) -> dict[str, Any]:
        state = self.leadership
        of_partition = self.replica == NO_REPLICA
        names = PARTITION_STATE_NAMES if of_partition else REPLICA_STATE_NAMES
        return {
            "kind": "partition" if of_partition else "replica",
            "topic": self.partition[0],
            "partition": self.partition[1],
            **({} if of_partition else {"replica": self.replica}),
            "from": names[self.from_state],
            "to": names[self.to_state],
            "leader": None if state is None else state.leader,
            "leader_epoch": None if state is None else state.leader_epoch,
            "isr": None if state is None else state.isr,
            "failed": self.failed,
            "why": self.why,
            "event": self.event,
        }


class RequestSent(NamedTuple):
    """A request was queued for brokers. It names `size` partitions or replicas. From now on the broker leads `led` of
    them (LeaderAndIsr only). `delete` says whether it deletes all or none of them (StopReplica of old versions only).
    `states` has the state of each, if they are logged.
    """

    time_ms: int
    controller_epoch: int
    api: str
    broker_ids: tuple[int, ...]
    size: int
    led: int
    event: str
    delete: bool | None = None
    states: SentStates = ()

    def lines(self, controller_id: int) -> Iterator[Line]:
        ids = ", ".join(map(str, self.broker_ids))
        if self.api == "LeaderAndIsr":
            text = (
                f"LeaderAndIsr request to broker {ids} with {self.led} become-leader"
                f" and {self.size - self.led} become-follower partitions"
            )
        elif self.api == "UpdateMetadata":
            text = f"UpdateMetadata request to brokers HashSet({ids}) for {self.size} partitions"
        else:
            delete = "" if self.delete is None else f" (delete = {flag(self.delete)})"
            text = f"StopReplica request{delete} for {self.size} replicas to broker {ids}"
        prefix = f"[Controller id={controller_id} epoch={self.controller_epoch}] Sending "
        for topic, state in self.states:
            yield Line(STATE_CHANGE_LOGGER, TRACE, self.time_ms, prefix + _sent_state(topic, state, self.broker_ids[0]))
        yield Line(STATE_CHANGE_LOGGER, logging.INFO, self.time_ms, prefix + text)

    def described(self) -> dict[str, Any]:
        return {
            "kind": "request",
            "api": self.api,
            "brokers": self.broker_ids,
            "size": self.size,
            **({"led": self.led} if self.api == "LeaderAndIsr" else {}),
            **({} if self.delete is None else {"delete": self.delete}),
            "event": self.event,
        }


class Announcement(NamedTuple):
    """A line of controller.log."""

    time_ms: int
    controller_epoch: int
    text: str
    event: str

    def lines(self, controller_id: int) -> Iterator[Line]:
        yield Line(CONTROLLER_LOGGER, logging.INFO, self.time_ms, f"[Controller id={controller_id}] {self.text}")

    def described(self) -> dict[str, Any]:
        return {"kind": "controller", "text": self.text, "event": self.event}


class EventProcessed(NamedTuple):
    """An event is over. `outcome` is "processed", "preempted" (dropped), "ignored" (this broker is not
    active), or the error.
    """

    time_ms: int
    controller_epoch: int
    event: str
    state: str
    queue_time_ms: float
    processing_time_ms: float
    outcome: str

    def lines(self, controller_id: int) -> Iterator[Line]:
        yield from ()

    def described(self) -> dict[str, Any]:
        return {
            "kind": "event",
            "event": self.event,
            "state": self.state,
            "queue_time_ms": round(self.queue_time_ms, 3),
            "processing_time_ms": round(self.processing_time_ms, 3),
            "outcome": self.outcome,
        }


Record = StateChange | RequestSent | Announcement | EventProcessed


class NumberedRecord(NamedTuple):
    """A record and its number. A broker numbers its records in order, from 0 at its start."""

    sequence: int
    record: Record

    def described(self, controller_id: int) -> dict[str, Any]:
        """The record as the controller's HTTP port and recordings have it."""
        return {
            "sequence": self.sequence,
            "time_ms": self.record.time_ms,
            "controller": controller_id,
            "epoch": self.record.controller_epoch,
            **self.record.described(),
        }


class Follower:
    """Gets every record from the number `first` on."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.missed = 0
        self._unread: deque[NumberedRecord] = deque()
        self._is_closed = False
        self._changed = asyncio.Event()

    def put(self, records: Sequence[NumberedRecord]) -> None:
        room = MAX_UNREAD - len(self._unread)
        self._unread.extend(records[:room])
        self.missed += len(records[room:])
        self._changed.set()

    def close(self) -> None:
        """Ends the follower: no more records will come."""
        self._is_closed = True
        self._changed.set()

    async def read(self) -> list[NumberedRecord]:
        """Waits for records and returns them; returns an empty list after the end."""
        while not self._unread and not self._is_closed:
            self._changed.clear()
            await self._changed.wait()
        return [self._unread.popleft() for _ in range(min(len(self._unread), SLICE))]


class StateChangeLog:
    """Keeps the newest `capacity` records, and delivers all to logs and followers. `now_ms` is the wall clock."""

    def __init__(self, now_ms: Callable[[], int], controller_id: int = -1, capacity: int = 10_000) -> None:
        self._now_ms = now_ms
        self._controller_id = controller_id
        # State changes are plain tuples here, because making a StateChange takes three times as long.
        self._records: deque[Any] = deque(maxlen=capacity)
        self._made = 0
        self._followers: dict[Follower, None] = {}
        # The records to deliver: all of them while there is a follower, else those logged at INFO or above.
        self._undelivered: deque[Any] = deque()
        self._is_wanted = self._are_all_wanted = False
        self._lines: Iterator[Line] = iter(())  # The lines of the last delivered records that are not written yet.
        self._delivery: asyncio.Handle | None = None
        self._event = ""
        self._outcome = ""
        self._look_who_listens()

    # -- making records ---------------------------------------------------------------------------------------------

    def record(
        self,
        controller_epoch: int,
        partition: PartitionKey,
        replica: int,
        from_state: IntEnum,
        to_state: IntEnum,
        leadership: LeaderAndIsr | None = None,
        why: str = "",
        *,
        failed: bool = False,
        replicas: tuple[int, ...] = (),
    ) -> None:
        """See `StateChange`."""
        change = (
            self._now_ms(),
            controller_epoch,
            partition,
            replica,
            from_state,
            to_state,
            leadership,
            why,
            failed,
            replicas,
            self._event,
        )
        self._records.append(change)
        self._made += 1
        if self._is_wanted and (
            self._are_all_wanted
            or failed
            or (
                to_state <= _PARTITION_ONLINE
                if replica == NO_REPLICA
                else to_state == _REPLICA_OFFLINE and leadership is not None
            )
        ):
            self._undelivered.append(change)

    def request_sent(
        self,
        controller_epoch: int,
        api: str,
        broker_ids: tuple[int, ...],
        size: int,
        led: int = 0,
        delete: bool | None = None,
        states: SentStates = (),
    ) -> None:
        """See `RequestSent`."""
        sent = RequestSent(self._now_ms(), controller_epoch, api, broker_ids, size, led, self._event, delete)
        self._add(sent, sent._replace(states=states) if STATE_CHANGE_LOGGER.isEnabledFor(TRACE) else sent)

    def announce(self, controller_epoch: int, text: str) -> None:
        """See `Announcement`."""
        self._add(Announcement(self._now_ms(), controller_epoch, text[:MAX_TEXT_CHARACTERS], self._event))

    def _add(self, record: Record, delivered: Record | None = None) -> None:
        """`delivered`: the complete record, if only a part of it is kept."""
        self._records.append(record)
        self._made += 1
        if self._is_wanted:
            self._undelivered.append(delivered or record)

    # -- events -----------------------------------------------------------------------------------------------------

    def event_begins(self, event: str) -> None:
        self._event = event
        self._outcome = "processed"

    def event_turns_out(self, outcome: str) -> None:
        """Sets the outcome of the event in progress, if it is not "processed"."""
        self._outcome = outcome[:MAX_TEXT_CHARACTERS]

    def event_ends(self, controller_epoch: int, state: str, queue_time_ms: float, processing_time_ms: float) -> None:
        """The event in progress is over: its records are written soon."""
        self._add(
            EventProcessed(
                self._now_ms(),
                controller_epoch,
                self._event,
                state,
                queue_time_ms,
                processing_time_ms,
                self._outcome,
            )
        )
        self._event = ""
        self._look_who_listens()
        if self._undelivered and self._delivery is None:
            self._delivery = asyncio.get_running_loop().call_soon(self._deliver_slice)

    def event_preempted(self, controller_epoch: int, event: str, state: str, queue_time_ms: float) -> None:
        """A waiting event was dropped. Its record is written with those of the next event."""
        self._add(EventProcessed(self._now_ms(), controller_epoch, event, state, queue_time_ms, 0.0, "preempted"))

    # -- reading ----------------------------------------------------------------------------------------------------

    def changes(self) -> list[StateChange]:
        """The state changes among the newest records."""
        return [StateChange(*record) for record in self._records if type(record) is tuple]

    def records(self, after: int = -1) -> list[NumberedRecord]:
        """The newest records, those with a number above `after`."""
        first = self._made - len(self._records)
        skipped = max(0, after + 1 - first)
        found = islice(reversed(self._records), len(self._records) - skipped) if skipped else reversed(self._records)
        newest = [NumberedRecord(self._made - 1 - n, _record(record)) for n, record in enumerate(found)]
        newest.reverse()
        return newest

    def follow(self) -> tuple[list[NumberedRecord], Follower]:
        """The newest records, and a follower that gets all after them."""
        follower = Follower(self._made)
        self._followers[follower] = None
        self._look_who_listens()
        return self.records(), follower

    def unfollow(self, follower: Follower) -> None:
        self._followers.pop(follower, None)

    def close_followers(self) -> None:
        """Followers get the current records and end. The next controller has the later records."""
        self._deliver_all()
        for follower in self._followers:
            follower.close()
        self._followers.clear()

    def close(self) -> None:
        """Delivers all records. Idempotent."""
        self.close_followers()

    # -- delivery ---------------------------------------------------------------------------------------------------

    def _look_who_listens(self) -> None:
        self._are_all_wanted = bool(self._followers) or STATE_CHANGE_LOGGER.isEnabledFor(TRACE)
        self._is_wanted = (
            self._are_all_wanted
            or STATE_CHANGE_LOGGER.isEnabledFor(logging.ERROR)
            or CONTROLLER_LOGGER.isEnabledFor(logging.ERROR)
        )

    def _deliver_all(self) -> None:
        while self._deliver():
            pass
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None

    def _deliver_slice(self) -> None:
        self._delivery = None
        if self._deliver():
            self._delivery = asyncio.get_running_loop().call_soon(self._deliver_slice)

    def _deliver(self) -> bool:
        """Delivers a slice: pending lines of the last records first, else records. Returns whether there may be
        more.
        """
        lines = list(islice(self._lines, SLICE))
        if not lines:
            lines = self._take_records()
        write_lines(lines)
        return bool(lines or self._undelivered)

    def _take_records(self) -> list[Line]:
        undelivered = self._undelivered
        # Since the first follower began, the records have no gaps. Older records may have gaps, so their numbers here
        # are wrong, but all below the numbers that a follower wants.
        first = self._made - len(undelivered)
        records = [_record(undelivered.popleft()) for _ in range(min(SLICE, len(undelivered)))]
        if self._followers:
            numbered = [NumberedRecord(first + n, record) for n, record in enumerate(records)]
            for follower in self._followers:
                follower.put(numbered[max(0, follower.first - first) :])
        self._lines = self._lines_of(records)
        return list(islice(self._lines, SLICE))

    def _lines_of(self, records: Sequence[Record]) -> Iterator[Line]:
        # Records without a reader are dropped here: they would split the batches.
        for record in records:
            for line in record.lines(self._controller_id):
                if line.logger.isEnabledFor(line.level):
                    yield line


def _record(record: Any) -> Record:
    made: Record = StateChange(*record) if type(record) is tuple else record
    return made


def _sent_state(topic: str, state: SentState, broker_id: int) -> str:
    if isinstance(state, LeaderAndIsrPartitionState):
        whose = "become-leader" if state.leader == broker_id else "become-follower"
        text = f"{whose} LeaderAndIsr request {leader_and_isr_text(topic, state)}"
        number = state.partition_index
    else:
        number, leader_epoch, delete = state
        text = f"StopReplica request {stop_replica_text(number, leader_epoch, delete)}"
    return f"{text} to broker {broker_id} for partition {topic}-{number}"


def _leader_and_isr(state: LeaderAndIsr) -> str:
    isr = ", ".join(map(str, state.isr))
    return (
        f"LeaderAndIsr(leader={state.leader}, leaderEpoch={state.leader_epoch}, isr=List({isr}),"
        f" zkVersion={state.zk_version})"
    )


def _leader_isr_and_controller_epoch(state: LeaderAndIsr) -> str:
    isr = ",".join(map(str, state.isr))
    return (
        f"(Leader:{state.leader},ISR:{isr},LeaderEpoch:{state.leader_epoch},ZkVersion:{state.zk_version},"
        f"ControllerEpoch:{state.controller_epoch})"
    )
