"""`klamm groups`: kafka-consumer-groups' work over the wire protocol, for any Kafka cluster.

Each command asks the cluster, prints, and ends. Pure functions turn the answers into output (see
`group_views`, and `group_resets` for the new offsets). The lines are those of Kafka's tool. Errors go to stderr, with
exit code 1.
"""

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar

import typer
from typer.core import TyperCommand

from klamm.access.clients import error_line, gap_text, is_silent, silence_text, silent_brokers, succeeded
from klamm.cli.cluster.live import watch as watch_live
from klamm.cli.groups import group_views as views
from klamm.cli.groups.group_resets import (
    MAX_OFFSET,
    Plan,
    Reset,
    Scenario,
    export_csv,
    parse_csv,
    parse_datetime,
    parse_duration,
    parse_topic,
    plan,
)
from klamm.cli.groups.group_views import Line, LineKind
from klamm.cli.shared import interrupts
from klamm.cli.shared.clients import ClientInThread
from klamm.cli.shared.options import Commands, TimedOptions, Watch
from klamm.cli.shared.output import data_output, print_line
from klamm.diagnosis.groups import PartitionRow, members_value, partition_rows, state_value
from klamm.processes.tool_errors import EXIT_FAILED, EXIT_INCOMPLETE, ToolError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import LATEST_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.groups import GroupDescription, GroupListing

app = Commands("List, describe and delete consumer groups, and reset their offsets.")

G = TypeVar("G")

STATES: Final = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
# Groups in these states have no members whose commits would overwrite a reset.
INACTIVE_STATES: Final = ("Empty", "Dead")

Groups = Annotated[list[str] | None, typer.Option("--group", help="The group. May be repeated.")]
OneGroup = Annotated[str, typer.Option("--group", help="The group.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All consumer groups.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="TOPIC[:0,1]", help="A topic, or some partitions of it. May be repeated."),
]


class StateMayStandAlone(TyperCommand):
    """A command whose --state may be followed by states, or by nothing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for position, argument in enumerate(args):
            if argument == "--state" and (args[position + 1 : position + 2] or ["-"])[0].startswith("-"):
                args = [*args[:position], "--state=", *args[position + 1 :]]
        return super().parse_args(ctx, args)


# -- the commands -----------------------------------------------------------------------------------------------------


@app.command("list", cls=StateMayStandAlone, epilog="Example: klamm groups list --state Stable")
def list_groups(
    cluster: TimedOptions,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="[STATE,...]", help="Show each group's state; with states, list only groups in one of them."
        ),
    ] = None,
    watch: Watch = False,
) -> None:
    """List consumer groups."""
    states = parse_states(state) if state else []
    with cluster.client() as client:
        show(
            lambda: consumer_groups(client, states),
            lambda listed: [*views.list_lines(listed.groups, with_state=state is not None), *listed.troubles],
            lambda listed: views.list_value(listed.groups),
            watch=watch,
            as_json=cluster.as_json,
        )


@app.command(epilog="Example: klamm groups describe --group billing --members --verbose")
def describe(
    group: Groups = None,
    all_groups: AllGroups = False,
    *,
    cluster: TimedOptions,
    offsets: Annotated[bool, typer.Option(help="Show partitions, offsets and lag (the default).")] = False,
    members: Annotated[bool, typer.Option(help="Show members.")] = False,
    state: Annotated[bool, typer.Option(help="Show state and coordinator.")] = False,
    verbose: Annotated[bool, typer.Option(help="With --members: show each member's partitions.")] = False,
    watch: Watch = False,
) -> None:
    """Describe consumer groups: their offsets and lag, their members, or their state."""
    check_scope(group, all_groups)
    if offsets + members + state > 1:
        raise typer.BadParameter("give only one of --offsets, --members and --state", param_hint="describe")
    with cluster.client() as client:

        def look() -> "Found[GroupDescription]":
            return described(client, chosen(client, group, all_groups))

        def describe_members(found: "Found[GroupDescription]") -> Iterator[Line]:
            yield from (line for each in found.groups for line in views.member_lines(each, verbose=verbose))
            yield from found.troubles

        def describe_state(found: "Found[GroupDescription]") -> Iterator[Line]:
            yield from (line for each in found.groups for line in views.state_lines(each))
            yield from found.troubles

        options = {"watch": watch, "as_json": cluster.as_json}
        if members:
            show(look, describe_members, lambda found: list(map(members_value, found.groups)), **options)
        elif state:
            show(look, describe_state, lambda found: list(map(state_value, found.groups)), **options)
        else:
            show(lambda: positions(client, look()), _position_lines, _positions_value, **options)


@app.command(epilog="Example: klamm groups delete --group billing")
def delete(
    group: Groups = None,
    all_groups: AllGroups = False,
    *,
    cluster: TimedOptions,
) -> None:
    """Delete consumer groups and their offsets. The groups must have no members."""
    from klamm.client.admin.groups import delete_groups

    check_scope(group, all_groups)
    with cluster.client() as client:
        names = chosen(client, group, all_groups)
        interrupts.from_now_on()
        deleted = client.call(delete_groups, names.groups)
    results = {name: reason_of(error) for name, error in deleted.items()}
    values = [{"group": name, "error": reason} for name, reason in results.items()]
    finish([*views.deletion_lines(results), *names.troubles], values, as_json=cluster.as_json)


@app.command("delete-offsets", epilog="Example: klamm groups delete-offsets --group billing --topic orders:0,1")
def delete_offsets(
    group: OneGroup,
    topic: Annotated[
        list[str], typer.Option(metavar="TOPIC[:0,1]", help="A topic, or some partitions. May be repeated.")
    ],
    cluster: TimedOptions,
) -> None:
    """Delete a group's committed offsets of topics that it does not consume now."""
    from klamm.client.consumer.offsets import delete_consumer_group_offsets

    wanted = [parse_topic(each) for each in topic]
    with cluster.client() as client:
        existing = partitions_of(client, [name for name, numbers in wanted if numbers is None])
        partitions = [each for name, numbers in wanted for each in _partitions(name, numbers, existing)]
        interrupts.from_now_on()
        deleted = client.call(delete_consumer_group_offsets, group, partitions)
    whole = deleted.code.name if isinstance(deleted, KafkaError) else None
    errors = dict.fromkeys(partitions, deleted) if isinstance(deleted, KafkaError) else deleted
    results: dict[tuple[str, int | None], str | None] = {
        (name, None): "UNKNOWN_TOPIC_OR_PARTITION: the topic does not exist"
        for name, numbers in wanted
        if numbers is None and name not in existing
    }
    results.update({each: reason_of(errors[each]) for each in sorted(set(partitions))})
    value = views.offset_deletion_value(group, whole, results)
    finish(views.offset_deletion_lines(group, topic, whole, results), value, as_json=cluster.as_json)


@app.command(
    "reset-offsets", epilog="Example: klamm groups reset-offsets --group billing --topic orders --to-earliest --execute"
)
def reset_offsets(
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Topics = None,
    all_topics: Annotated[bool, typer.Option(help="All partitions with an offset committed by the group.")] = False,
    to_offset: Annotated[int | None, typer.Option(help="Go to this offset.", max=MAX_OFFSET)] = None,
    to_earliest: Annotated[bool, typer.Option(help="Go to the first offset.")] = False,
    to_latest: Annotated[bool, typer.Option(help="Go to the end, after the last record.")] = False,
    to_current: Annotated[
        bool, typer.Option(help="Keep the committed offset; go to the end where no offset is committed.")
    ] = False,
    shift_by: Annotated[
        int | None,
        typer.Option(help="Move forward by this many offsets, or back if negative.", min=-MAX_OFFSET, max=MAX_OFFSET),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option(metavar="PnDTnHnMnS", help="Go back by this period, to the first record since then.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM-DDTHH:mm:SS.sss", help="Go to the first record since then; UTC, or with +hh:mm at the end."
        ),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Go to the offsets of a CSV file made with --export.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only show the new offsets (the default).")] = False,
    execute: Annotated[bool, typer.Option(help="Commit the new offsets.")] = False,
    export: Annotated[bool, typer.Option(help="Print the new offsets as CSV.")] = False,
    *,
    cluster: TimedOptions,
) -> None:
    """Change the committed offsets of groups without members."""
    check_scope(group, all_groups)
    if dry_run and execute:
        raise typer.BadParameter("give only one of --dry-run and --execute", param_hint="--execute")
    if export and cluster.as_json:
        raise typer.BadParameter("give only one of --export and --json", param_hint="--export")
    single_group = group[0] if group is not None and len(group) == 1 else None
    scenario = parse_scenario(
        {
            Scenario.TO_OFFSET: to_offset,
            Scenario.TO_EARLIEST: to_earliest or None,
            Scenario.TO_LATEST: to_latest or None,
            Scenario.TO_CURRENT: to_current or None,
            Scenario.SHIFT_BY: shift_by,
            Scenario.BY_DURATION: by_duration,
            Scenario.TO_DATETIME: to_datetime,
            Scenario.FROM_FILE: from_file,
        },
        single_group,
    )
    wanted = [parse_topic(each) for each in topic or []]
    if wanted and all_topics:
        raise typer.BadParameter("give only one of --topic and --all-topics", param_hint="--all-topics")
    if not wanted and not all_topics and scenario.scenario is not Scenario.FROM_FILE:
        raise typer.BadParameter(
            "One of the reset scopes should be defined: --all-topics, --topic.", param_hint="scope"
        )
    if not dry_run and not execute:
        tell(Line("WARN: No action will be performed as the --execute option is missing.", LineKind.NOTE))
    troubles: list[Line] = []

    def trouble(line: Line) -> None:
        troubles.append(line)
        tell(line)

    with cluster.client() as client:
        found = described(client, chosen(client, group, all_groups))
        for line in found.troubles:
            trouble(line)
        offsets = ClusterOffsets(client)
        partitions = None if all_topics else [each for name, numbers in wanted for each in offsets.scope(name, numbers)]
        # All groups are planned before any offset is committed, so one group's error does not affect the others.
        plans: dict[str, Plan] = {}
        for each in found.groups:
            plans[each.group], problem = _plan(scenario, each, partitions, offsets)
            for line in _warnings(plans[each.group]):
                tell(line)
            if problem is not None:
                trouble(problem)
        new = {name: dict(planned.offsets) for name, planned in plans.items()}
        if execute:
            # With --shift-by, the same command would move the offsets once more.
            scope = [word for name in new for word in ("--group", name)]
            interrupts.from_now_on(look=None if shift_by is None else ["groups", "describe", *scope])
            for name, planned in new.items():
                for key, reason in commit(client, name, planned).items():
                    del planned[key]
                    trouble(views.error(f"The offset of {key} could not be reset for group '{name}': {reason}"))
    if export:
        target = data_output()
        target.writelines([f"{export_csv(new, with_group=single_group is None)}\n".encode()])
        target.flush()
    else:
        finish(views.reset_lines(new), views.reset_value(new, executed=execute), as_json=cluster.as_json)
    _exit_with(troubles)


# -- options ----------------------------------------------------------------------------------------------------------


def check_scope(group: list[str] | None, all_groups: bool) -> None:
    if bool(group) == all_groups:
        raise typer.BadParameter("give exactly one of --group and --all-groups", param_hint="--group")


def parse_states(text: str) -> list[str]:
    """Group states by Kafka's names, in any case. Raises typer.BadParameter."""
    known = {state.lower(): state for state in STATES}
    names = [name.strip().lower() for name in text.split(",")]
    if not all(name in known for name in names):
        raise typer.BadParameter(
            f"Invalid state list '{text}'. Valid states are: {', '.join(STATES)}", param_hint="--state"
        )
    return [known[name] for name in names]


def parse_scenario(options: Mapping[Scenario, Any], single_group: str | None) -> Reset:
    """The reset for the one option that is given. Raises typer.BadParameter, ToolError or OSError."""
    given = [(scenario, value) for scenario, value in options.items() if value is not None]
    if len(given) != 1:
        raise typer.BadParameter(
            f"give exactly one of {', '.join(scenario.value for scenario in Scenario)}", param_hint="reset scenario"
        )
    ((scenario, value),) = given
    match scenario:
        case Scenario.TO_OFFSET | Scenario.SHIFT_BY:
            return Reset(scenario, value)
        case Scenario.TO_DATETIME:
            return Reset(scenario, parse_datetime(value))
        case Scenario.BY_DURATION:
            return Reset(scenario, int(time.time() * 1000) - parse_duration(value))
        case Scenario.FROM_FILE:
            return Reset(scenario, plans=parse_csv(_read(value), single_group, str(value)))
        case _:
            return Reset(scenario)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise ToolError(f"{path} is not UTF-8") from None


# -- the cluster's answers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found(Generic[G]):
    """The known groups, and lines about the brokers and groups that could not be read."""

    groups: list[G]
    troubles: list[Line] = field(default_factory=list)


def consumer_groups(client: ClientInThread, states: Collection[str] = ()) -> "Found[GroupListing]":
    """The groups of consumers in these states, or in any. Raises ToolError when no broker answers."""
    from klamm.client.admin.groups import list_groups_of_brokers, sorted_groups
    from klamm.client.coordinated import listed
    from klamm.client.fan_out import CoordinatorType

    ask = partial(list_groups_of_brokers, states=states)
    answers, gap = client.call(listed, CoordinatorType.GROUP, ask)
    silent = silent_brokers(answers)
    groups = sorted_groups(answer for answer in answers.values() if not isinstance(answer, KafkaError))
    troubles = [f"{silence_text(*each)}; its groups are not known" for each in silent.items()]
    if gap is not None:
        troubles.append(gap_text(gap))
    return Found(
        [each for each in groups if each.is_of_consumers], [views.error(each, LineKind.SILENT) for each in troubles]
    )


def chosen(client: ClientInThread, named: list[str] | None, all_groups: bool) -> Found[str]:
    if not all_groups:
        return Found(list(named or []))
    listed = consumer_groups(client)
    return Found([each.group for each in listed.groups], listed.troubles)


def described(client: ClientInThread, names: Found[str]) -> "Found[GroupDescription]":
    """The groups sorted by name, including those that do not exist. Raises ToolError when none can be described."""
    from klamm.client.admin.groups import describe_groups

    found: Found[GroupDescription] = Found([], list(names.troubles))
    failed: KafkaError | None = None
    for name, result in sorted(client.call(describe_groups, names.groups).items()):
        if isinstance(result, KafkaError):
            failed = result
            found.troubles.append(_trouble(f"group {name}", result))
        elif not result.is_of_consumers:
            raise ToolError(f"GroupId {name} is not a consumer group ({result.protocol_type}).")
        else:
            found.groups.append(result)
    if failed is not None and len(names.groups) == 1:
        raise ToolError(error_line(failed)) from failed
    return found


def _trouble(what: str, error: KafkaError) -> Line:
    return views.error(
        f"{what} is not known: {error_line(error)}", LineKind.SILENT if is_silent(error) else LineKind.ERROR
    )


def committed_by(client: ClientInThread, names: Iterable[str]) -> dict[str, dict[TopicPartition, int] | KafkaError]:
    """The offsets that each group has committed."""
    from klamm.client.consumer.offsets import list_consumer_group_offsets

    return {
        name: offsets if isinstance(offsets, KafkaError) else {key: each.offset for key, each in offsets.items()}
        for name, offsets in client.call(list_consumer_group_offsets, names).items()
    }


def commit(client: ClientInThread, group: str, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
    """Commits for a group without members; returns the errors of the refused partitions."""
    from klamm.client.consumer.offsets import OffsetAndMetadata, alter_consumer_group_offsets

    wanted = {key: OffsetAndMetadata(offset) for key, offset in offsets.items()}
    results = client.call(alter_consumer_group_offsets, group, wanted)
    return {key: error_line(error) for key, error in results.items() if error is not None}


def partitions_of(client: ClientInThread, topics: Iterable[str]) -> dict[str, list[TopicPartition]]:
    """The partitions of the topics that exist."""
    from klamm.client.admin.topics import describe_topics

    return {
        name: [TopicPartition(name, number) for number in sorted(topic.partitions)]
        for name, topic in client.call(describe_topics, topics).items()
        if not isinstance(topic, KafkaError)
    }


def log_offsets(
    client: ClientInThread, partitions: Iterable[TopicPartition], timestamp: int
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, KafkaError]]:
    """The first offset at or after this time of each partition, or an end of its log; and the errors."""
    from klamm.client.consumer.offsets import list_offsets

    results = client.call(list_offsets, dict.fromkeys(sorted(set(partitions)), timestamp))
    missing = {key: each for key, each in results.items() if isinstance(each, KafkaError)}
    return {key: each.offset for key, each in results.items() if not isinstance(each, KafkaError)}, missing


def reason_of(error: KafkaError | None) -> str | None:
    return None if error is None else error_line(error)


@dataclass(frozen=True)
class Position:
    """A group with the offsets it has consumed, and the errors of partitions whose end offset is not known."""

    group: "GroupDescription"
    rows: Sequence[PartitionRow]
    missing: Mapping[TopicPartition, KafkaError]


def positions(client: ClientInThread, found: "Found[GroupDescription]") -> Found[Position]:
    """The offsets of groups; one call asks for the ends of all their partitions."""
    answers = committed_by(client, [each.group for each in found.groups if each.state != "Dead"])
    committed = {name: offsets for name, offsets in answers.items() if not isinstance(offsets, KafkaError)}
    troubles = [
        _trouble(f"what group {name} has committed", error)
        for name, error in answers.items()
        if isinstance(error, KafkaError)
    ]
    keys = {each.group: _consumed(each, committed.get(each.group, {})) for each in found.groups}
    ends, missing = log_offsets(client, (key for of_group in keys.values() for key in of_group), LATEST_TIMESTAMP)
    return Found(
        [
            Position(
                each,
                partition_rows(each, committed.get(each.group, {}), ends),
                {key: missing[key] for key in keys[each.group] if key in missing},
            )
            for each in found.groups
        ],
        [*found.troubles, *troubles],
    )


def _consumed(group: "GroupDescription", committed: Iterable[TopicPartition]) -> list[TopicPartition]:
    return sorted({*committed, *(key for member in group.members for key in member.assignment)})


def _position_lines(found: Found[Position]) -> Iterator[Line]:
    for position in found.groups:
        yield from views.offset_lines(position.group, position.rows)
        for key, error in position.missing.items():
            # A deleted topic has no end.
            kind = LineKind.NOTE if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else LineKind.SILENT
            yield Line(f"Warning: the log end offset of {key} is not known: {error_line(error)}", kind)
    yield from found.troubles


def _positions_value(found: Found[Position]) -> list[dict[str, Any]]:
    return [views.offsets_value(position.group, position.rows) for position in found.groups]


class ClusterOffsets:
    """The `Offsets` of a plan, read from a cluster. A missing offset is an error."""

    def __init__(self, client: ClientInThread) -> None:
        self._client = client

    def committed(self, group: str) -> Mapping[TopicPartition, int]:
        return succeeded(committed_by(self._client, [group])[group])

    def at(self, partitions: Sequence[TopicPartition], timestamp: int) -> Mapping[TopicPartition, int]:
        found, missing = log_offsets(self._client, partitions, timestamp)
        for key, error in missing.items():
            raise ToolError(f"the offsets of {key} are not known: {error_line(error)}")
        return {key: found[key] for key in partitions}

    def scope(self, topic: str, numbers: Sequence[int] | None) -> list[TopicPartition]:
        """The partitions that a --topic names. Raises ToolError for a topic or partition that does not exist."""
        existing = partitions_of(self._client, [topic])
        if topic not in existing:
            raise ToolError(f"topic {topic} does not exist")
        wanted = _partitions(topic, numbers, existing)
        for key in wanted:
            if key not in existing[topic]:
                raise ToolError(f"{topic} has no partition {key.partition}, it has {len(existing[topic])} partitions")
        return wanted


def _partitions(
    topic: str, numbers: Sequence[int] | None, existing: Mapping[str, Sequence[TopicPartition]]
) -> list[TopicPartition]:
    if numbers is None:
        return list(existing.get(topic, []))
    return [TopicPartition(topic, number) for number in numbers]


def _plan(
    scenario: Reset, group: "GroupDescription", partitions: Sequence[TopicPartition] | None, offsets: ClusterOffsets
) -> tuple[Plan, Line | None]:
    """The new offsets of a group, or an error line. None for `partitions` means all with a committed offset."""
    if group.state not in INACTIVE_STATES:
        return Plan({}), views.error(
            f"Assignments can only be reset if the group '{group.group}' is inactive,"
            f" but the current state is {group.state}."
        )
    if scenario.scenario is Scenario.FROM_FILE and group.group not in scenario.plans:
        return Plan({}), views.error(f"No reset plan for group {group.group} found")
    wanted = offsets.committed(group.group) if partitions is None else partitions
    return plan(scenario, group.group, wanted, offsets), None


def _warnings(planned: Plan) -> list[Line]:
    return [Line(f"WARN: {warning}", LineKind.NOTE) for warning in planned.warnings]


# -- output -----------------------------------------------------------------------------------------------------------


def tell(line: Line) -> None:
    print_line(line.text, file=sys.stdout if line.kind is LineKind.ROW else sys.stderr)


def finish(lines: Iterable[Line], value: Any, *, as_json: bool) -> None:
    """Prints the lines; with `as_json`, prints the value and only the lines about errors and silent brokers, which
    decide the exit code."""
    troubles = []
    for line in lines:
        if line.kind in (LineKind.ERROR, LineKind.SILENT):
            troubles.append(line)
        elif as_json:
            continue
        tell(line)
    if as_json:
        print_line(json.dumps(value))
    _exit_with(troubles)


def _exit_with(troubles: Iterable[Line]) -> None:
    """Ends the command with the exit code of these lines, if there are any."""
    kinds = {line.kind for line in troubles}
    if LineKind.ERROR in kinds:
        raise typer.Exit(EXIT_FAILED)
    if LineKind.SILENT in kinds:
        raise typer.Exit(EXIT_INCOMPLETE)


def show(
    look: Callable[[], Any],
    to_lines: Callable[[Any], Iterable[Line]],
    to_value: Callable[[Any], Any],
    *,
    watch: bool,
    as_json: bool,
) -> None:
    """Shows the result of `look` once, or again and again with --watch."""
    if not watch:
        found = look()
        finish(to_lines(found), to_value(found), as_json=as_json)
    elif as_json:
        watch_live(lambda: to_value(look()), list, as_json=True)
    else:
        watch_live(look, lambda found: [line.text for line in to_lines(found)], as_json=False)
