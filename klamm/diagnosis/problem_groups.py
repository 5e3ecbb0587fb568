"""All unhealthy partitions, grouped by their problem, for the cockpit's view Why. Pure."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.base.words import are, brokers_text
from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.findings import GROUPS, Row, Severity
from klamm.diagnosis.partition_health import ReplicaState, replica_state

# A group names at most this many partitions, and at most this many groups are shown.
MOST_NAMED: Final = 40
MOST_GROUPS: Final = 30


@dataclass(slots=True)
class Group:
    """Partitions with the same problem. `first` are the first of them, by topic and number."""

    row: Row
    why: str
    count: int = 0
    first: list[tuple[str, int]] = field(default_factory=list)

    def value(self) -> dict[str, Any]:
        return {
            "kind": self.row.kind,
            "text": self.row.sentence.format(why=self.why),
            "is_problem": self.row.severity is Severity.PROBLEM,
            "count": self.count,
            "first": self.first,
        }


def problem_groups(topics: Iterable[tuple[str, Mapping[int, PartitionView]]], live: Collection[int]) -> list[Group]:
    """The groups, the worst and largest first. Looks at every partition of the cluster."""
    found: dict[tuple[Row, str], Group] = {}
    # Many partitions have the same state.
    known: dict[PartitionView, Group | None] = {}
    for topic, partitions in topics:
        for number, each in partitions.items():
            if each not in known:
                row = next((row for row in GROUPS if row.predicate and row.predicate.holds(each, live, None)), None)
                why = "" if row is None else _why(each, live)
                known[each] = None if row is None else found.setdefault((row, why), Group(row, why))
            if (group := known[each]) is not None:
                group.count += 1
                if len(group.first) < MOST_NAMED:
                    group.first.append((topic, number))
    return sorted(found.values(), key=lambda group: (GROUPS.index(group.row), -group.count))


def _why(partition: PartitionView, live: Collection[int]) -> str:
    """The unhealthy replicas, in one line."""
    states: dict[ReplicaState, list[int]] = {each: [] for each in ReplicaState}
    for broker_id in sorted(partition.replicas):
        states[replica_state(partition, broker_id, live)].append(broker_id)

    def ids(state: ReplicaState) -> str:
        return ", ".join(map(str, states[state]))

    said = []
    if down := states[ReplicaState.OFFLINE]:
        said.append(f"{brokers_text(down)} {are(len(down))} not live")
    if states[ReplicaState.UNUSED]:
        said.append(
            f"the replica on {ids(ReplicaState.UNUSED)} is offline although its broker is live: its log directory has"
            " failed, or the controller has not used it since the broker came back"
        )
    if behind := states[ReplicaState.OUT_OF_SYNC]:
        replicas, lag = ("replicas", "lag") if len(behind) > 1 else ("the replica", "lags")
        said.append(f"{replicas} on {ids(ReplicaState.OUT_OF_SYNC)} {lag} behind")
    if states[ReplicaState.ADDING]:
        said.append(f"{ids(ReplicaState.ADDING)} being added")
    if states[ReplicaState.REMOVING]:
        said.append(f"{ids(ReplicaState.REMOVING)} being removed")
    return "; ".join(said) or ("no leader is elected" if partition.replicas else "no replica is known")
