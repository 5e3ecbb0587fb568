"""The lines of `klamm reassign`: Kafka's own where its tool has them. Pure."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from klamm.base.words import counted, duration_text, size_text
from klamm.cli.reassign.json_form import format_reassignment
from klamm.cli.reassign.planning.model import Move, Placement, Plan
from klamm.diagnosis.cluster_view import joined
from klamm.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    from klamm.cli.reassign.operations import LogDirState, PlacementState

VERIFY_WARNING = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
)
EXISTING = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a"
    " new partition assignment in addition to the existing one. The --additional flag can also be used to change the"
    " throttle by resubmitting the current reassignment."
)
NO_LOG_DIR_MOVES = "None of the specified partition moves are active."


# -- the plan ---------------------------------------------------------------------------------------------------------


def move_line(move: Move, live: Collection[int]) -> str:
    """The line for one partition of the plan, with what its target waits for."""
    parts = [f"{move.topic_partition}: {joined(move.before.replicas)} -> {joined(move.after.replicas)}"]
    if move.adding_replicas:
        parts.append(f"copies {size_text(move.bytes_between_brokers)} to {joined(move.adding_replicas)}")
    for broker, path in sorted(move.log_dir_moves.items()):
        parts.append(f"broker {broker} to {path}")
    if dead := [broker for broker in move.after.replicas if broker not in live]:
        parts.append(f"waits for broker {joined(dead)}, which is not alive")
    return "; ".join(parts)


def plan_lines(moves: Collection[Move], live: Collection[int], throttle: int | None) -> Iterator[str]:
    for move in moves:
        yield move_line(move, live)
    plan = Plan(tuple(moves))
    summary = f"{counted(len(moves), 'partition')}, {size_text(plan.bytes_between_brokers)} between brokers"
    if plan.bytes_between_log_dirs:
        summary += f", {size_text(plan.bytes_between_log_dirs)} between log directories"
    if throttle:
        summary += f"; at {size_text(throttle)}/s at least {duration_text(plan.duration_s(throttle))}"
    yield summary


def generated_lines(
    current: Mapping[TopicPartition, Placement], proposed: Mapping[TopicPartition, Placement]
) -> Iterator[str]:
    yield "Current partition replica assignment"
    yield format_reassignment(current)
    yield ""
    yield "Proposed partition reassignment configuration"
    yield format_reassignment(proposed)


def rollback_lines(current: Mapping[TopicPartition, Placement]) -> Iterator[str]:
    yield "Current partition replica assignment"
    yield ""
    yield format_reassignment(current)
    yield ""
    yield "Save this to use as the --reassignment-json-file option during rollback"


def complete_lines(partitions: Iterable[TopicPartition]) -> Iterator[str]:
    yield from (f"Reassignment of partition {key} is complete." for key in sorted(partitions))


# -- events of an execution -------------------------------------------------------------------------------------------


def event_lines(event: Mapping[str, Any]) -> Iterator[str]:
    """The lines for an event. The event "progress" has no line; see `progress_text`."""
    match event["event"]:
        case "throttle_set":
            if event["throttle"] is not None:
                yield f"The inter-broker throttle limit was set to {event['throttle']} B/s"
            if event["log_dir_throttle"] is not None:
                yield f"The replica-alter-dir throttle limit was set to {event['log_dir_throttle']} B/s"
        case "started":
            yield started_line(event["partitions"])
        case "log_dirs_started":
            yield log_dirs_started_line(event["replicas"])
        case "completed":
            yield f"Reassignment of partition {event['partition']} is complete."
        case "log_dir_completed":
            yield f"Reassignment of replica {event['replica']} completed successfully."
        case "throttle_removed":
            yield "The throttles have their former values again."


def note_lines(event: Mapping[str, Any]) -> Iterator[str]:
    """The lines about obstacles, for stderr."""
    match event["event"]:
        case "waiting":
            yield f"Partition {event['partition']} waits: {event['reason']}."
        case "changed":
            yield f"Partition {event['partition']} is left alone: {event['reason']}."
        case "refused":
            yield f"Refused for {event.get('partition', event.get('replica'))}: {event['reason']}"
        case "partitions_added":
            added = joined(event["partitions"])
            yield f"Topic {event['topic']} has new partitions, which the plan does not move: {added}."
        case "config_changed" | "config_kept":
            what, value = f"{event['config']} of {event['entity']}", event["value"]
            if value is None:
                yield f"Another client has deleted {what}; it stays deleted."
            else:
                yield f"Another client has set {what} to {value}; it stays."
        case "throttle_set_again":
            yield f"Another client has deleted the throttle of {', '.join(event['entities'])}; it is set again."
        case "config_restored":
            yield f"{event['config']} of {event['entity']} is {event['value']} again."
        case "trouble":
            yield f"The cluster does not answer: {event['reason']}; trying again."


def progress_text(event: Mapping[str, Any]) -> str:
    counts = event["partitions"]
    left = "" if event["seconds_left"] is None else f", {duration_text(event['seconds_left'])} left"
    copied = f"{size_text(event['moved_bytes'])} of {size_text(event['total_bytes'])}"
    return (
        f"{copied}, {size_text(event['bytes_per_s'])}/s{left}; partitions: {counts['done']} done,"
        f" {counts['moving']} moving, {counts['ready']} to begin"
    )


def finished_json(*, is_complete: bool, **problems: Mapping[str, str]) -> str:
    """The last event of an execution."""
    none: dict[str, Mapping[str, str]] = {"unfinished": {}, "failed": {}, "throttles_left": {}}
    return json.dumps({"event": "finished", "complete": is_complete, **none, **problems})


def started_line(partitions: Sequence[str]) -> str:
    plural = "" if len(partitions) == 1 else "s"
    return f"Successfully started partition reassignment{plural} for {','.join(partitions)}"


def log_dirs_started_line(replicas: Sequence[str]) -> str:
    return f"Successfully started log directory move{'' if len(replicas) == 1 else 's'} for: {','.join(replicas)}"


def problem_lines(title: str, problems: Mapping[str, str]) -> Iterator[str]:
    if problems:
        yield title
        yield from (f"  {what}: {reason or 'still moving'}" for what, reason in sorted(problems.items()))


def dead_broker_line(plan: "Path") -> str:
    return (
        "If that broker never returns: its configs are restored, except in KRaft mode, by klamm reassign verify"
        f" --zookeeper HOST:PORT --reassignment-json-file {plan}"
    )


# -- verify, list, cancel ---------------------------------------------------------------------------------------------


def verify_lines(states: "Mapping[TopicPartition, PlacementState]") -> Iterator[str]:
    yield "Status of partition reassignment:"
    for key, state in sorted(states.items()):
        if state.is_moving:
            yield f"Reassignment of partition {key} is still in progress."
        elif state.is_complete:
            yield f"Reassignment of partition {key} is complete."
        else:
            yield (
                f"There is no active reassignment of partition {key}, but replica set is {joined(state.current)} rather"
                f" than {joined(state.target)}."
            )


def log_dir_lines(states: "Iterable[LogDirState]") -> Iterator[str]:
    for state in sorted(states, key=lambda each: (each.broker_id, each.topic, each.partition)):
        partition, replica = f"{state.topic}-{state.partition}", f"{state.topic}-{state.partition}-{state.broker_id}"
        if not state.has_answered:
            yield f"Partition {partition} cannot be found in any live log directory on broker {state.broker_id}."
        elif state.current is None:
            yield (
                f"Partition {partition} is not found in any live log dir on broker {state.broker_id}. There is likely"
                " an offline log directory on the broker."
            )
        elif state.future is not None and state.future == state.target:
            yield f"Reassignment of replica {replica} is still in progress."
        elif state.future is not None:
            yield (
                f"Partition {partition} on broker {state.broker_id} is being moved to log dir {state.future} instead of"
                f" {state.target}."
            )
        elif state.current == state.target:
            yield f"Reassignment of replica {replica} completed successfully."
        else:
            yield (
                f"Partition {partition} on broker {state.broker_id} is not being moved from log dir {state.current} to"
                f" {state.target}."
            )


def list_lines(reassignments: Mapping[TopicPartition, Any]) -> Iterator[str]:
    if not reassignments:
        yield "No partition reassignments found."
        return
    yield "Current partition reassignments:"
    for key, each in sorted(reassignments.items()):
        adding = f" adding: {joined(each.adding)}." if each.adding else ""
        removing = f" removing: {joined(each.removing)}." if each.removing else ""
        yield f"{key}: replicas: {joined(each.replicas)}.{adding}{removing}"


def cancelled_line(partitions: Sequence[TopicPartition]) -> str:
    if not partitions:
        return "None of the specified partition reassignments are active."
    plural = "" if len(partitions) == 1 else "s"
    return f"Successfully cancelled partition reassignment{plural} for: {','.join(map(str, sorted(partitions)))}"


def clearing_lines(brokers: Collection[int], topics: Collection[str]) -> Iterator[str]:
    yield f"Clearing broker-level throttles on broker{'' if len(brokers) == 1 else 's'} {joined(sorted(brokers))}"
    yield f"Clearing topic-level throttles on topic{'' if len(topics) == 1 else 's'} {','.join(sorted(topics))}"
