"""All findings about a cluster and about a partition: one row for each finding. Pure.

| column      | meaning                                                                             |
|-------------|-------------------------------------------------------------------------------------|
| `kind`      | the finding's name in JSON                                                          |
| `severity`  | whether the finding makes the cluster unhealthy, and the exit code of `klamm status` |
| `sentence`  | the text; each finding fills in the names in braces                                 |
| `advice`    | the remedy in words                                                                 |
| `command`   | the klamm command that helps                                                        |
| `predicate` | the partitions that the finding is about, if a predicate selects them               |
| `case`      | distinguishes several sentences of one kind                                         |

`klamm status`, recordings and the cockpit's view Now use `CLUSTER`. The cockpit's view Why uses `PARTITION`, and
`GROUPS` for its list of all problems. The sentences about single replicas are in klamm.diagnosis.reasons.

What must stay true: findings are shown in the order of `CLUSTER` and `GROUPS`, the worst first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from klamm.diagnosis.partition_health import Predicate
from klamm.processes.tool_errors import EXIT_FAILED, EXIT_INCOMPLETE, EXIT_OK

# A finding shows at most this many lines before "and N more".
LINES: Final = 5


class Severity(Enum):
    """The gravest first. The value is the exit code of a command whose gravest finding has this severity."""

    PROBLEM = EXIT_FAILED
    """The cluster is not healthy."""
    UNKNOWN = EXIT_INCOMPLETE
    """A part of the cluster could not be read, so the cluster is not known to be healthy."""
    NOTICE = EXIT_OK


class Row(NamedTuple):
    kind: str
    severity: Severity
    sentence: str
    advice: str = ""
    command: str = ""
    predicate: Predicate | None = None
    case: str = ""


PROBLEM, UNKNOWN, NOTICE = Severity

_OFFLINE: Final = "The partition has no leader: it can be neither read nor written."
_LEADER_GONE: Final = "The leader, broker {leader}, is not live, and no other leader is elected."
_DELETING: Final = "Topic {topic} is being deleted. The deletion ends when all of its replicas are deleted."
_MOVING: Final = "The partition moves from {origin} to {target}. {step}"

# fmt: off
CLUSTER: Final[Sequence[Row]] = (
    Row("no_answer", PROBLEM, "None of {brokers} answers.", "{what}"),
    Row("no_zookeeper", PROBLEM,
        "ZooKeeper does not answer: without it no controller and no leader is elected, and no ISR changes.",
        "Start ZooKeeper, or see whether this machine can reach it."),
    Row("no_controller", PROBLEM,
        "The cluster has no controller: leaders are not elected, and topics are not created or deleted.",
        "See whether brokers reach ZooKeeper (or, in KRaft mode, the controllers have a majority)."),
    Row("silent_controller", PROBLEM, "{controller} does not list reassignments.",
        "Look at the controller's log, and on klamm at what it is doing:", "klamm controller status"),
    Row("offline_partitions", PROBLEM, "{partitions} {have} no leader, and cannot be read or written: {named}.",
        "{what}", predicate=Predicate.UNAVAILABLE),
    Row("under_min_isr", PROBLEM, "{partitions} {have} fewer in-sync replicas than min.insync.replicas: {named}.",
        "Bring the replicas below back in sync.", predicate=Predicate.UNDER_MIN_ISR),
    Row("missing_brokers", PROBLEM, "{brokers} {are} named in assignments and not in the cluster.",
        "Start {them}, or move the replicas away:", "klamm brokers decommission --broker {first}"),
    Row("silent_brokers", PROBLEM, "{brokers} {are} registered and {do} not answer.",
        "Look at the process and its log; a listener may be unreachable from here."),
    Row("offline_log_dirs", PROBLEM, "{log_dirs} {are} offline.",
        "Repair or replace the disk, and restart the broker."),
    Row("full_disks", PROBLEM, "{log_dirs} {are} on a disk that is nearly full.",
        "Shorten retention, or move replicas away."),
    Row("under_replicated", PROBLEM, "{partitions} {are} under-replicated: {named}.",
        "Start the brokers that are down. Replicas on a broker that is up catch up by themselves; if they do not, look"
        " at its log and at throttles.", predicate=Predicate.UNDER_REPLICATED),
    Row("unread_configs", UNKNOWN,
        "The configs of some topics could not be read, so min.insync.replicas and throttles are not known."),
    Row("controller_cannot_send", PROBLEM, "The controller cannot reach broker {brokers}.",
        "Those brokers do not learn of new leaders and topics; look at their logs and their network."),
    Row("controller_deletions", NOTICE, "{topics} {are} being deleted."),
    Row("controller_reassignments", NOTICE, "{partitions} {are} being reassigned.",
        "See how far they are:", "klamm reassign list"),
    Row("reassignments", NOTICE, "{partitions} {are} being reassigned: {named}.",
        "See how far they are:", "klamm reassign list", Predicate.REASSIGNING),
    Row("throttles", NOTICE,
        "Replication is throttled, and nothing is being moved: throttles may have been left behind.",
        "Remove them unless they are meant to stay:", "klamm configs alter {entity} --delete-config {names}"),
    Row("leader_imbalance", NOTICE, "{off} of {partitions} are not led by their preferred replica, which is in sync.",
        "Elect the preferred replicas:", "klamm elect preferred --all-topic-partitions", Predicate.OFF_PREFERRED),
    Row("at_min_isr", NOTICE, "{partitions} would refuse acks=all after one more failure: {named}.",
        predicate=Predicate.AT_MIN_ISR),
    Row("version_mix", NOTICE, "Brokers run different versions.",
        "Normal during an upgrade; finish it before features of the new version are used."),
    Row("forbidden", UNKNOWN, "This client may not see {what}, so faults there do not show.",
        "Grant its user Describe and DescribeConfigs on the cluster, and DescribeConfigs on all topics."),
)

# Remedies depend on the replicas: klamm.diagnosis.partition_conditions.
PARTITION: Final[Sequence[Row]] = (
    Row("healthy", NOTICE, "Broker {leader} leads, and all {isr} replicas are in sync."),
    Row("healthy", NOTICE, "Broker {leader} leads, and has the only replica.", case="only replica"),
    Row("no_controller", PROBLEM, "The cluster has no controller, so no leader is elected now."),
    Row("busy_controller", PROBLEM, "The controller is held up."),
    Row("deleting", PROBLEM, _DELETING, case="brokers are down"),
    Row("deleting", NOTICE, _DELETING),
    Row("offline", PROBLEM, _OFFLINE, predicate=Predicate.UNAVAILABLE),
    Row("offline", PROBLEM, _LEADER_GONE, predicate=Predicate.UNAVAILABLE, case="leader is gone"),
    Row("election_due", PROBLEM, _OFFLINE, predicate=Predicate.UNAVAILABLE),
    Row("election_due", PROBLEM, _LEADER_GONE, predicate=Predicate.UNAVAILABLE, case="leader is gone"),
    Row("never_led", PROBLEM, _OFFLINE, predicate=Predicate.UNAVAILABLE),
    Row("never_led", PROBLEM, _LEADER_GONE, predicate=Predicate.UNAVAILABLE, case="leader is gone"),
    Row("silent_leader", PROBLEM,
        "The leader, broker {leader}, does not answer. Another one is elected when its session ends."),
    Row("leader_shutting_down", NOTICE,
        "The leader, broker {leader}, is shutting down. The controller makes {heir} the leader.", case="has an heir"),
    Row("leader_shutting_down", PROBLEM,
        "The leader, broker {leader}, is shutting down, and no other replica can take over: the partition loses its"
        " leader when it stops."),
    Row("under_min_isr", PROBLEM,
        "Producers with acks=all are refused: the ISR has {isr}, and min.insync.replicas is {minimum}.",
        predicate=Predicate.UNDER_MIN_ISR),
    Row("at_min_isr", NOTICE,
        "After one more failure producers with acks=all are refused: min.insync.replicas is {minimum}.",
        predicate=Predicate.AT_MIN_ISR),
    Row("under_replicated", PROBLEM, "{isr} of {replicas} replicas are in sync.", predicate=Predicate.UNDER_REPLICATED),
    Row("reassigning", PROBLEM, _MOVING, predicate=Predicate.REASSIGNING, case="brokers are down"),
    Row("reassigning", NOTICE, _MOVING, predicate=Predicate.REASSIGNING),
    Row("off_preferred", NOTICE, "Broker {leader} leads instead of the preferred leader, broker {preferred}.",
        predicate=Predicate.OFF_PREFERRED),
)

GROUPS: Final[Sequence[Row]] = (
    Row("offline", PROBLEM, "Without a leader: {why}", predicate=Predicate.UNAVAILABLE),
    Row("behind", NOTICE, "Under-replicated: {why}", predicate=Predicate.UNDER_REPLICATED),
    Row("moving", NOTICE, "Being reassigned: {why}", predicate=Predicate.REASSIGNING),
)
# fmt: on

_CLUSTER: Final[Mapping[str, Row]] = {row.kind: row for row in CLUSTER}
_PARTITION: Final[Mapping[tuple[str, str], Row]] = {(row.kind, row.case): row for row in PARTITION}
_PLACE: Final[Mapping[str, int]] = {row.kind: place for place, row in enumerate(CLUSTER)}


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact about the cluster that an operator should know. `why` has one line for each broker or thing at fault."""

    kind: str
    severity: Severity
    text: str
    why: tuple[str, ...] = ()
    advice: str = ""
    command: str = ""

    @property
    def is_problem(self) -> bool:
        return self.severity is PROBLEM

    @property
    def is_unknown(self) -> bool:
        return self.severity is UNKNOWN

    def lines(self) -> Iterator[str]:
        """The finding as lines for a terminal."""
        yield f"- {self.text}"
        yield from (f"    {line}" for line in self.why[:LINES])
        if len(self.why) > LINES:
            yield f"    ... and {len(self.why) - LINES} more"
        if self.advice:
            yield f"    What to do: {self.advice}"
        if self.command:
            yield f"    {self.command}"

    def value(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "text": self.text,
            "why": list(self.why),
            "advice": self.advice,
            "command": self.command,
        }

    def document(self) -> dict[str, Any]:
        """The finding for a page, which sorts by severity."""
        return {**self.value(), "is_problem": self.is_problem, "is_unknown": self.is_unknown}


def finding(kind: str, why: Iterable[str] = (), **words: object) -> Finding:
    """The finding for this row of `CLUSTER`."""
    row = _CLUSTER[kind]
    advice, command = row.advice.format(**words), row.command.format(**words)
    return Finding(kind, row.severity, row.sentence.format(**words), tuple(why), advice, command)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, the worst first."""
    return sorted(findings, key=lambda each: _PLACE[each.kind])


def gravest(findings: Iterable[Finding]) -> Severity:
    found = {each.severity for each in findings}
    return next((each for each in Severity if each in found), NOTICE)


def partition_row(kind: str, case: str = "") -> Row:
    """The row of `PARTITION`."""
    return _PARTITION[kind, case]
