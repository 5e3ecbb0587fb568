"""The story of one partition: the decisions about it in order, from the records of klamm controllers, from state-change
logs, or from the current znodes. Pure.

What must stay true: controller entries are ordered by epoch and number, not by clocks: each epoch belongs to one
controller, which numbers its records. Callers give records in that order (`controller_records.ControllerRecords`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from klamm.protocol.vocabulary import TopicPartition
from klamm.state_changes.entries import Said
from klamm.znodes.topics import LeaderAndIsr

# At most this many entries are shown, the newest ones.
MOST_ENTRIES: Final = 1_000
OFFLINE_REPLICA: Final = "OfflineReplica"


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One line of the story. A field is None if the source does not tell it.

    `time_ms` is the time of the writer's clock. A log file has `time`, as its broker wrote it, without a time zone.
    `writer` made the decision; `subject` is the partition or one of its replicas.
    """

    time_ms: int | None
    time: str | None
    writer: str
    controller_epoch: int | None
    subject: str
    before: str | None
    after: str | None
    leader: int | None
    leader_epoch: int | None
    isr: tuple[int, ...] | None
    text: str
    is_failed: bool = False

    def value(self) -> dict[str, Any]:
        return asdict(self)


def of_records(records: Iterable[Mapping[str, Any]], key: TopicPartition) -> list[StoryEntry]:
    """The entries about this partition among records of klamm controllers (`/controller/events`)."""
    return [
        _of_record(each)
        for each in records
        if each["kind"] in ("partition", "replica") and (each["topic"], each["partition"]) == key
    ]


def _of_record(record: Mapping[str, Any]) -> StoryEntry:
    isr = record["isr"]
    return StoryEntry(
        record["time_ms"],
        None,
        f"controller {record['controller']}",
        record["epoch"],
        "partition" if record["kind"] == "partition" else f"replica {record['replica']}",
        record["from"],
        record["to"],
        record["leader"],
        record["leader_epoch"],
        None if isr is None else tuple(isr),
        because(record["why"], record["event"]),
        record["failed"],
    )


def because(why: str, event: str | None) -> str:
    """The reason of a change, and the controller's event that led to it."""
    if not event:
        return why
    return f"{why} (event {event})" if why else f"event {event}"


def offline_since_ms(records: Iterable[Mapping[str, Any]], key: TopicPartition) -> dict[int, int]:
    """When each replica went offline, for replicas whose last record says that they are offline."""
    since: dict[int, int] = {}
    for each in records:
        if each["kind"] != "replica" or (each["topic"], each["partition"]) != key or each["failed"]:
            continue
        if each["to"] != OFFLINE_REPLICA:
            since.pop(each["replica"], None)
        elif each["from"] != OFFLINE_REPLICA:
            since[each["replica"]] = each["time_ms"]
    return since


def of_logs(entries: Iterable[Said]) -> list[StoryEntry]:
    """The entries of state-change logs, in the order in which they were merged."""
    return [
        StoryEntry(
            None,
            said.time,
            f"{'controller' if said.is_controller else 'broker'} {'?' if said.broker is None else said.broker}",
            said.controller_epoch,
            "partition" if said.replica is None else f"replica {said.replica}",
            said.from_state,
            said.to_state,
            said.leader,
            said.leader_epoch,
            None if said.isr is None else tuple(said.isr),
            said.text.partition("\n")[0],
            said.level in ("ERROR", "FATAL"),
        )
        for said in entries
    ]


def of_znode(state: LeaderAndIsr, modified_ms: int) -> StoryEntry:
    """Only the newest decision: the content of the partition's state znode, and when it was written."""
    return StoryEntry(
        modified_ms,
        None,
        "the znode's last writer",
        state.controller_epoch,
        "partition",
        None,
        None,
        state.leader,
        state.leader_epoch,
        tuple(state.isr),
        f"version {state.zk_version} of the state znode: it has been written {state.zk_version + 1} times",
    )


def of_metadata(leader: int, leader_epoch: int, isr: Iterable[int]) -> StoryEntry:
    """The current state from the brokers' metadata, without time and writer."""
    text = "what the brokers' metadata shows now"
    return StoryEntry(None, None, "unknown", None, "partition", None, None, leader, leader_epoch, tuple(isr), text)
