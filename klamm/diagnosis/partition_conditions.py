"""The conditions of a partition, their reasons and remedies: the facts of one partition in, an answer out. Pure.

The sentences about the partition come from klamm.diagnosis.findings, those about replicas from klamm.diagnosis.reasons,
as in `klamm topics describe`. The price of an unclean election is that of `klamm elect unclean`
(klamm.diagnosis.election_plans). A klamm controller's status says what the controller waits for
(klamm.controller.controller_status).

What must stay true:
- A remedy's command is a klamm command that works in a shell as it stands, with the options that reach this cluster. A
  topic with a name that Kafka does not allow has no command: the name may come from a program that is not a broker.
- A remedy that can lose records says so in its price, and comes after those that cannot.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from klamm.base.words import are, brokers_text, counted, do, have
from klamm.config.definition import ConfigSource
from klamm.diagnosis.cluster_view import PartitionView, joined
from klamm.diagnosis.election_plans import Loss, loss_text
from klamm.diagnosis.findings import Severity, partition_row
from klamm.diagnosis.partition_health import (
    MIN_ISR,
    UNCLEAN,
    is_at_min_isr,
    is_off_preferred,
    is_unavailable,
    is_under_min_isr,
    out_of_sync,
)
from klamm.diagnosis.reasons import Circumstances, absence, election_due, none_of_isr, outage
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import NO_EPOCH, NO_LEADER, TopicPartition
from klamm.znodes.topics import is_legal_topic_name

if TYPE_CHECKING:
    from klamm.client.admin.configs import ConfigEntry

# An event that is in progress for longer than this, or a request unanswered for longer, is an obstacle.
LONG_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy. `command` has one shell command in each line; it is empty if no command does the work. `price` says
    what is lost or given up; it is empty if the remedy costs nothing."""

    text: str
    command: str = ""
    price: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of the partition, such as "offline", with its reasons, line by line, and remedies, the cheapest
    first."""

    kind: str
    text: str
    why: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    is_problem: bool = True


@dataclass(frozen=True, slots=True)
class ReplicaAnswer:
    """A replica. `state` is the leader, in sync, out of sync, being deleted or offline; `why` is None for a healthy
    replica.

    `since_ms` is the time of its last change to offline, if that is known. `role` is "adding", "removing" or "".
    """

    broker_id: int
    state: str
    role: str
    is_preferred: bool
    why: str | None
    log_end_offset: int | None
    since_ms: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The conditions, the worst first, and the replicas in the order of the assignment."""

    conditions: tuple[Condition, ...]
    replicas: tuple[ReplicaAnswer, ...]

    def value(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The known facts about one partition.

    `controller` is the status of a klamm controller (None on Apache Kafka). `controller_id` is -1 without a controller,
    and None if brokers do not tell it (KRaft). `settings` are the topic's configs with their sources; `why_no_settings`
    says why one is missing. `price` is the loss of an unclean election, or why it is impossible; None while the
    partition has a leader. `offline_dirs` are the failed log directories, `silent` the registered brokers that do not
    answer, `throttles` the throttles of brokers and of the topic. `offline_since_ms` is the last time at which each
    replica went offline, as far as records tell. `reach` has the options with which a command reaches the cluster,
    `zookeeper` those for a command that needs ZooKeeper. `topic_brokers` have a replica of any partition of the topic.
    """

    key: TopicPartition
    view: PartitionView
    known: Circumstances
    controller_id: int | None
    controller: Mapping[str, Any] | None = None
    settings: "Mapping[str, ConfigEntry]" = field(default_factory=dict)
    price: Loss | str | None = None
    offline_dirs: Mapping[int, Sequence[str]] = field(default_factory=dict)
    silent: Mapping[int, str] = field(default_factory=dict)
    throttles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    offline_since_ms: Mapping[int, int] = field(default_factory=dict)
    reach: tuple[str, ...] = ()
    zookeeper: tuple[str, ...] = ()
    topic_brokers: Sequence[int] = ()
    why_no_settings: str = "could not be read"


def explain(facts: PartitionFacts) -> Answer:
    """All conditions of the partition, and all its replicas."""
    found = sorted(_conditions(facts), key=lambda each: not each.is_problem)
    is_led = not is_unavailable(facts.view, facts.known.live) and not facts.known.marked_for_deletion
    if is_led and not any(each.is_problem for each in found):
        view = facts.view
        case = "only replica" if len(view.isr) == 1 else ""
        found.insert(0, _condition("healthy", case=case, leader=view.leader, isr=len(view.isr)))
    return Answer(tuple(found), tuple(_replica(facts, each) for each in facts.view.replicas))


def _condition(
    kind: str, why: Iterable[str] = (), remedies: Iterable[Remedy] = (), case: str = "", **words: object
) -> Condition:
    """The condition for this row of klamm.diagnosis.findings."""
    row = partition_row(kind, case)
    is_problem = row.severity is Severity.PROBLEM
    return Condition(kind, row.sentence.format(**words), tuple(why), tuple(remedies), is_problem)


def _conditions(facts: PartitionFacts) -> Iterator[Condition]:
    yield from _controller(facts)
    if facts.known.marked_for_deletion:
        yield _deletion(facts)
        if facts.view.is_reassigning:
            yield _reassignment(facts)
        return
    is_led = not is_unavailable(facts.view, facts.known.live)
    if not is_led:
        yield _offline(facts)
    else:
        yield from _silent_leader(facts)
        yield from _leaving_leader(facts)
        yield from _under_min_isr(facts)
        yield from _under_replicated(facts)
    if facts.view.is_reassigning:
        yield _reassignment(facts)
    if is_led and is_off_preferred(facts.view):
        yield _off_preferred(facts)


# -- the controller ---------------------------------------------------------------------------------------------------


def _controller(facts: PartitionFacts) -> Iterator[Condition]:
    if facts.controller_id == -1:
        remedy = Remedy("See whether the brokers reach ZooKeeper, and read their logs.")
        yield _condition("no_controller", remedies=(remedy,))
        return
    obstacles = tuple(_obstacles(facts))
    if obstacles:
        reach = facts.zookeeper or facts.reach
        remedies = [Remedy("See what it is doing.", controller_command("status", reach))]
        remedies.append(
            Remedy(
                "If that does not change, make another broker the controller.",
                controller_command("move", reach),
            )
        )
        yield _condition("busy_controller", obstacles, remedies)


def _obstacles(facts: PartitionFacts) -> Iterator[str]:
    """What delays a klamm controller's work on this partition."""
    status = facts.controller or {}
    if status.get("event") and status["event_for_ms"] >= LONG_MS:
        yield (
            f"it has been at the event {status['event']} for {status['event_for_ms']} ms, and"
            f" {status['event_queue_size']} events wait behind it"
        )
    for broker in status.get("brokers", ()):
        if broker["broker_id"] not in facts.view.replicas:
            continue
        if broker.get("trouble"):
            yield f"it cannot reach broker {broker['broker_id']}: {broker['trouble']}"
        elif broker.get("sending") and broker["sending_for_ms"] >= LONG_MS:
            yield (
                f"broker {broker['broker_id']} has not answered its {broker['sending']} for"
                f" {broker['sending_for_ms']} ms; {broker['queue_size']} more requests wait for it"
            )


def _listed(facts: PartitionFacts, what: str) -> Mapping[str, Any] | None:
    """The deletion or reassignment of this partition or its topic in a klamm controller's status."""
    for each in (facts.controller or {}).get(what, {}).get("first", ()):
        if each["topic"] == facts.key.topic and each.get("partition", facts.key.partition) == facts.key.partition:
            found: Mapping[str, Any] = each
            return found
    return None


# -- deletion ---------------------------------------------------------------------------------------------------------


def _deletion(facts: PartitionFacts) -> Condition:
    said = _listed(facts, "deletions")
    missing = [each for each in facts.view.replicas if outage(facts.view, each, facts.known) is not None]
    # The topic is deleted once all replicas of all its partitions are.
    elsewhere = [each for each in facts.topic_brokers if each not in facts.known.live and each not in missing]
    why = []
    if said is not None:
        begun = f"{said['deleted']} of {said['replicas']} replicas of the topic are deleted"
        why += [begun if said["started"] else "the deletion has not begun"]
        why += [_waits(said)] if said["waits_for"] else []
    why += [_absence(facts, each) for each in missing]
    why += [f"broker {each}, which has replicas of other partitions of the topic, is not live" for each in elsewhere]
    if facts.view.is_reassigning:
        why.append("a reassignment of the partition ends first")
    remedies = _starts(facts, [*missing, *elsewhere])
    return _condition(
        "deleting",
        why,
        remedies or (Remedy("Wait: the controller repeats what has failed when a broker comes back."),),
        "brokers are down" if missing or elsewhere else "",
        topic=facts.key.topic,
    )


def _waits(said: Mapping[str, Any]) -> str:
    return f"the controller says what it waits for: {said['waits_for']}"


# -- no leader --------------------------------------------------------------------------------------------------------


def _offline(facts: PartitionFacts) -> Condition:
    view, known = facts.view, facts.known
    able = [each for each in view.replicas if _can_lead(facts, each)]
    in_sync = [each for each in able if each in view.isr]
    missing = [each for each in view.isr or view.replicas if each not in able]
    case = "" if view.leader == NO_LEADER else "leader is gone"
    why = [_absence(facts, each) for each in view.replicas if each not in able]
    if in_sync:
        why.insert(0, election_due(in_sync))
        return _condition("election_due", why, _remedies_of_due(facts), case, leader=view.leader)
    if not view.isr and view.leader_epoch == NO_EPOCH:
        why.insert(0, "no leader was ever elected, as no replica was live when the topic was created")
        return _condition("never_led", why, _starts(facts, list(view.replicas)), case, leader=view.leader)
    why.insert(0, none_of_isr(view))
    why.append(_setting_text(facts, UNCLEAN, "only a replica of the ISR may lead" if not known.unclean else ""))
    remedies = list(_starts(facts, missing, "Nothing is lost: it has all acknowledged records."))
    if not able:
        why.append("no replica at all can lead, so an unclean election is not possible either")
        return _condition("offline", why, remedies, case, leader=view.leader)
    if known.unclean:
        why.append(f"{brokers_text(able)} can be elected, as {UNCLEAN} is true, and the controller has not done so yet")
        return _condition("election_due", why, (*remedies, *_remedies_of_due(facts)), case, leader=view.leader)
    price = loss_text(facts.price) if isinstance(facts.price, Loss) else (facts.price or "the loss is unknown")
    chosen = facts.price.candidate if isinstance(facts.price, Loss) else able[0]
    unclean = _command(facts, "elect", "unclean", "--topic", facts.key.topic, "--partition", str(facts.key.partition))
    remedies.append(
        Remedy(f"If the records matter less than the service: elect broker {chosen}, outside the ISR.", unclean, price)
    )
    allow = _command(facts, "configs", "alter", "--topic", facts.key.topic, "--add-config", f"{UNCLEAN}=true")
    remedies.append(
        Remedy(
            "Or allow such elections for the whole topic: the controller then elects by itself, now and in future.",
            allow,
            f"{price}; and after later failures too",
        )
    )
    return _condition("offline", why, remedies, case, leader=view.leader)


def _can_lead(facts: PartitionFacts, broker_id: int) -> bool:
    """Whether the controller could elect this replica. A broker that is shutting down is no candidate."""
    return outage(facts.view, broker_id, facts.known) is None and broker_id not in _shutting_down(facts)


def _shutting_down(facts: PartitionFacts) -> list[int]:
    return [each["broker_id"] for each in (facts.controller or {}).get("brokers", ()) if each.get("shutting_down")]


def _remedies_of_due(facts: PartitionFacts) -> tuple[Remedy, ...]:
    elect = _command(facts, "elect", "unclean", "--topic", facts.key.topic, "--partition", str(facts.key.partition))
    price = loss_text(facts.price) if isinstance(facts.price, Loss) else ""
    return (
        Remedy("Wait a moment: the controller elects when it has processed what is in its queue."),
        Remedy("Ask the controller for the election.", elect, "" if "no record is lost" in price else price),
    )


def _silent_leader(facts: PartitionFacts) -> Iterator[Condition]:
    leader = facts.view.leader
    if leader in facts.silent:
        why = (f"what was seen of it last: {facts.silent[leader]}",)
        yield _condition("silent_leader", why, _starts(facts, [leader]), leader=leader)


def _leaving_leader(facts: PartitionFacts) -> Iterator[Condition]:
    """The condition of a leader in controlled shutdown: the broker asks the controller to move its leaderships."""
    view = facts.view
    if view.leader not in _shutting_down(facts):
        return
    heirs = [each for each in view.replicas if each in view.isr and each != view.leader and _can_lead(facts, each)]
    if heirs:
        yield _condition("leader_shutting_down", case="has an heir", leader=view.leader, heir=brokers_text(heirs[:1]))
        return
    others = [each for each in view.origin if each != view.leader]
    why = ["no other replica of the ISR can lead, and the controller elects no other one in a controlled shutdown"]
    why += [_absence(facts, each) for each in others]
    if others:
        why.append(
            "a broker of Apache Kafka asks the controller controlled.shutdown.max.retries times before it stops; one of"
            " klamm asks again only while another replica of the ISR is live"
        )
    again = Remedy(f"Or start broker {view.leader} again when it has stopped: it leads again, and nothing is lost.")
    yield _condition("leader_shutting_down", why, (*_catching_up(facts, others), again), leader=view.leader)


# -- too few replicas in sync -----------------------------------------------------------------------------------------


def _under_min_isr(facts: PartitionFacts) -> Iterator[Condition]:
    view, minimum = facts.view, facts.known.min_insync_replicas
    missing = out_of_sync(view)
    if minimum is None:
        return
    if is_under_min_isr(view, minimum):
        lower = _command(
            facts, "configs", "alter", "--topic", facts.key.topic, "--add-config", f"{MIN_ISR}={len(view.isr)}"
        )
        remedies = [*_starts(facts, missing)]
        if minimum > len(view.origin):
            text = f"Give the topic at least {minimum} replicas: it has {len(view.origin)}."
            remedies.append(Remedy(text))
        remedies.append(
            Remedy(
                f"Or lower {MIN_ISR} of the topic to {len(view.isr)}.",
                lower,
                f"a record is then acknowledged when {brokers_text(view.isr)} {have(len(view.isr))} it, and lost with"
                f" {'it' if len(view.isr) == 1 else 'them'}",
            )
        )
        why = (_setting_text(facts, MIN_ISR, ""), *(_absence(facts, each) for each in missing))
        in_sync = counted(len(view.isr), "replica")
        yield _condition("under_min_isr", why, remedies, isr=in_sync, minimum=minimum)
    elif is_at_min_isr(view, minimum) and missing:
        yield _condition("at_min_isr", (_setting_text(facts, MIN_ISR, ""),), minimum=minimum)


def _under_replicated(facts: PartitionFacts) -> Iterator[Condition]:
    view = facts.view
    missing = out_of_sync(view)
    if not missing:
        return
    throttled = _throttle_lines(facts) if _up(facts, missing) else []
    why = (*(_absence(facts, each) for each in missing), *throttled)
    remedies = _catching_up(facts, missing)
    yield _condition("under_replicated", why, remedies, isr=len(view.isr), replicas=len(view.origin))


def _catching_up(facts: PartitionFacts, missing: Sequence[int]) -> tuple[Remedy, ...]:
    """The remedies that bring these replicas into the ISR."""
    up = _up(facts, missing)
    remedies = list(_starts(facts, missing))
    if up and _throttle_lines(facts):
        remedies += _unthrottle(facts)
    elif up:
        remedies.append(
            Remedy(
                f"{brokers_text(up).capitalize()} {are(len(up))} up and {'catches' if len(up) == 1 else 'catch'} up by"
                f" {'itself' if len(up) == 1 else 'themselves'}; if the lag does not shrink, look at the broker's log."
            )
        )
    return tuple(remedies)


def _up(facts: PartitionFacts, brokers: Sequence[int]) -> list[int]:
    return [each for each in brokers if outage(facts.view, each, facts.known) is None]


def _throttle_lines(facts: PartitionFacts) -> list[str]:
    return [
        f"replication is throttled: {whose} has {', '.join(f'{name}={value}' for name, value in limits.items())}"
        for whose, limits in facts.throttles.items()
        if limits
    ]


def _unthrottle(facts: PartitionFacts) -> list[Remedy]:
    calls = []
    for whose, limits in facts.throttles.items():
        kind, _, name = whose.partition(" ")
        option = ("--topic", name) if kind == "topic" else ("--broker", name)
        if limits:
            calls.append(_command(facts, "configs", "alter", *option, "--delete-config", ",".join(limits)))
    text = "Take the throttles away, unless they are meant to stay."
    return [Remedy(text, "\n".join(filter(None, calls)))] if calls else []


# -- reassignments and preferred leaders ------------------------------------------------------------------------------


def _reassignment(facts: PartitionFacts) -> Condition:
    view, said = facts.view, _listed(facts, "reassignments")
    copying = [each for each in view.target if each not in view.isr]
    if copying:
        step = f"Step A: {brokers_text(copying)} {'copies' if len(copying) == 1 else 'copy'} the log."
    elif view.leader not in view.target:
        step = f"Step B3: all of the target are in sync, and one of {joined(view.target)} becomes the leader."
    elif any(each in view.isr for each in view.removing):
        step = f"Step B4: {brokers_text(view.removing)} {'leaves' if len(view.removing) == 1 else 'leave'} the ISR."
    else:
        step = f"Steps B5 and B6: the replicas on {brokers_text(view.removing) or 'no broker'} are deleted."
    why = [_waits(said)] if said is not None else []
    why += [_absence(facts, each) for each in copying]
    down = [each for each in copying if outage(view, each, facts.known) is not None]
    throttled = _throttle_lines(facts) if len(copying) > len(down) else []
    remedies = [*_starts(facts, down)]
    if throttled:
        remedies += _unthrottle(facts)
    if not down and not throttled:
        remedies.append(Remedy("Wait: the controller continues when the step is done."))
    remedies.append(
        Remedy(
            f"Or cancel it: the partition stays on {brokers_text(view.origin)}.",
            cancel_command(facts.key, view, facts.reach),
            "the copies made so far are deleted",
        )
    )
    return _condition(
        "reassigning",
        (*why, *throttled),
        remedies,
        "brokers are down" if down else "",
        origin=brokers_text(view.origin),
        target=brokers_text(view.target),
        step=step,
    )


def cancel_command(key: TopicPartition, view: PartitionView, reach: Sequence[str]) -> str:
    """The shell commands that cancel one partition's reassignment: they write a plan that names the partition, and
    cancel it.

    Throttles stay: they may belong to another reassignment, and those of a dead broker cannot be removed.
    """
    if not is_legal_topic_name(key.topic):
        return ""
    plan = (
        f'{{"version":1,"partitions":[{{"topic":"{key.topic}","partition":{key.partition},'
        f'"replicas":[{joined(view.target)}]}}]}}'
    )
    words = ("reassign", "cancel", "--reassignment-json-file", "cancel.json", "--preserve-throttles")
    call = shlex.join(("klamm", *words, *reach))
    return f"echo {shlex.quote(plan)} > cancel.json\n{call}"


def _off_preferred(facts: PartitionFacts) -> Condition:
    view, preferred = facts.view, facts.view.replicas[0]
    if preferred in view.isr and _can_lead(facts, preferred):
        call = elect_preferred_command(facts.key, facts.reach)
        remedies: tuple[Remedy, ...] = (Remedy(f"Broker {preferred} is in the ISR: give it the partition back.", call),)
        why = "a broker that comes back leads nothing until a preferred election; auto.leader.rebalance.enable does one"
    else:
        why = _absence(facts, preferred)
        remedies = _starts(facts, [preferred]) or (Remedy(f"Wait until broker {preferred} is in the ISR."),)
    return _condition("off_preferred", (why,), remedies, leader=view.leader, preferred=preferred)


def controller_command(verb: str, reach: Sequence[str]) -> str:
    """A `klamm controller` command, with the options that reach the cluster."""
    return shlex.join(("klamm", "controller", verb, *reach))


def elect_preferred_command(key: TopicPartition, reach: Sequence[str]) -> str:
    """The command that elects a partition's preferred leader; empty for an invalid topic name."""
    if not is_legal_topic_name(key.topic):
        return ""
    call = ("klamm", "elect", "preferred", "--topic", key.topic, "--partition", str(key.partition), *reach)
    return shlex.join(call)


# -- replicas ---------------------------------------------------------------------------------------------------------


def _replica(facts: PartitionFacts, broker_id: int) -> ReplicaAnswer:
    view = facts.view
    end = facts.known.log_ends.get(broker_id)
    is_out = outage(view, broker_id, facts.known) is not None
    if is_out:
        state = "offline"
    elif facts.known.marked_for_deletion:
        state = "being deleted"
    elif broker_id == view.leader:
        state = "leader"
    else:
        state = "in sync" if broker_id in view.isr else "out of sync"
    role = "adding" if broker_id in view.adding else "removing" if broker_id in view.removing else ""
    is_well = state in ("leader", "in sync", "being deleted") and broker_id not in facts.silent
    return ReplicaAnswer(
        broker_id,
        state,
        role,
        broker_id == view.replicas[0],
        None if is_well and broker_id not in _shutting_down(facts) else _absence(facts, broker_id),
        end if isinstance(end, int) else None,
        facts.offline_since_ms.get(broker_id) if is_out else None,
    )


def _absence(facts: PartitionFacts, broker_id: int) -> str:
    """Why a replica does not lead or is not in sync."""
    in_isr = " (it is in the ISR)" if broker_id in facts.view.isr else ""
    why = outage(facts.view, broker_id, facts.known)
    if why is not None:
        directories = ", ".join(facts.offline_dirs.get(broker_id, ()))
        where = f": {directories}" if directories and "directory" in why else ""
        return f"{why}{where}{in_isr}"
    if broker_id in _shutting_down(facts):
        return f"broker {broker_id} is shutting down{in_isr}"
    if broker_id in facts.silent:
        return f"broker {broker_id} is registered and does not answer: {facts.silent[broker_id]}{in_isr}"
    if in_isr and not isinstance(facts.known.log_ends.get(broker_id), KafkaError):
        return f"broker {broker_id} is in the ISR"
    return absence(facts.view, broker_id, facts.known)


def _starts(facts: PartitionFacts, missing: Sequence[int], praise: str = "") -> tuple[Remedy, ...]:
    """The remedies for replicas whose broker or disk has failed."""
    remedies = []
    down = [each for each in missing if each not in facts.known.live]
    of_isr = [each for each in down if each in facts.view.isr]
    if down:
        which = of_isr if praise and of_isr else down
        text = f"Start {brokers_text(which)}{' (one of them is enough)' if praise and len(which) > 1 else ''}."
        remedies.append(Remedy(f"{text} {praise}".strip()))
    broken = [each for each in missing if each in facts.known.live and outage(facts.view, each, facts.known)]
    if broken:
        directories = sorted({path for each in broken for path in facts.offline_dirs.get(each, ())})
        named = f" ({', '.join(directories)})" if directories else ""
        remedies.append(
            Remedy(
                f"Repair the log directory{named} of {brokers_text(broken)}, and restart the broker. {praise}".strip()
            )
        )
    hung = [each for each in missing if each in facts.silent and each in facts.known.live and each not in broken]
    if hung:
        remedies.append(Remedy(f"See why {brokers_text(hung)} {do(len(hung))} not answer, and restart the process."))
    return tuple(remedies)


# -- text -------------------------------------------------------------------------------------------------------------

_SOURCES: Final[Mapping[ConfigSource, str]] = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "set on the topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "set on the broker that answered, at run time",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "set for all brokers, at run time",
    ConfigSource.STATIC_BROKER_CONFIG: "set in the file of the broker that answered",
    ConfigSource.DEFAULT_CONFIG: "the default",
}


def _setting_text(facts: PartitionFacts, name: str, meaning: str) -> str:
    """A config's value, where it is set, and what it means."""
    entry = facts.settings.get(name)
    if entry is None:
        return f"{name} {facts.why_no_settings}"
    text = f"{name} is {entry.value}, {_SOURCES.get(entry.source, 'from a source that klamm does not know')}"
    return f"{text}: {meaning}" if meaning else text


def _command(facts: PartitionFacts, *words: str) -> str:
    """A klamm command for this topic; empty for an invalid topic name."""
    return shlex.join(("klamm", *words, *facts.reach)) if is_legal_topic_name(facts.key.topic) else ""
