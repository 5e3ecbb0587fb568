"""`klamm consume`: the records of a topic on standard output or in a file.

Without `--group` the command assigns partitions itself, so it needs no consumer group and leaves no trace in the
cluster. With `--group` it is a member of that group and commits the offsets of the records that it has written, so each
record is written at least once. If the group takes the partitions away (because the command was suspended with Ctrl-Z,
or its output blocked), the command says so, joins the group again and continues.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.access.clients import command_properties, error_line, property_errors
from klamm.base.progress import progress
from klamm.cli.shared.clients import ended_by_sigterm
from klamm.cli.shared.options import ClusterOptions, TopicName
from klamm.cli.shared.output import data_output, print_line, print_lines
from klamm.cli.shared.text import RecordFormat, parse_separator, record_json
from klamm.processes.tool_errors import EXIT_INCOMPLETE, ToolError
from klamm.protocol.error_codes import KafkaError

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.client.consumer.consumer import Consumer
    from klamm.client.consumer.group_consumer import CommitFailed, GroupConsumer
    from klamm.client.options import ConsumerOptions, GroupOptions
    from klamm.protocol.vocabulary import TopicPartition

# How long to wait for the log ends at the end, and for the valid offsets at the start if --timeout-ms is shorter.
ASK_FOR_S = 3.0
# At most this many partitions are named as not read.
MOST_UNREAD = 10
POLL_TIMEOUT_MS = 200
MAX_POLL_RECORDS = 5000
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")


def consume(
    topic: TopicName,
    cluster: ClusterOptions,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Read this partition only; may be repeated.")
    ] = None,
    offset: Annotated[
        str | None, typer.Option(metavar="earliest|latest|N", help="Where to begin; latest if not given.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option(help="Begin at the earliest offset; with --group, where no offset is committed.")
    ] = False,
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this consumer group, and commit offsets.")
    ] = None,
    isolation_level: Annotated[
        str | None,
        typer.Option(
            metavar="read_uncommitted|read_committed",
            help="read_committed leaves out records of transactions that are open or aborted; read_uncommitted if not"
            " given.",
        ),
    ] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="Stop after this many records.")] = None,
    timeout_ms: Annotated[int | None, typer.Option(min=0, help="Stop after this time without a record.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file.")] = None,
    separator: Annotated[str, typer.Option(help="Separator after each record; may hold escapes such as \\t.")] = "\\n",
    print_key: Annotated[bool, typer.Option(help="Print keys, before the values.")] = False,
    print_headers: Annotated[bool, typer.Option(help="Print headers.")] = False,
    print_offset: Annotated[bool, typer.Option(help="Print partition and offset.")] = False,
    print_timestamp: Annotated[bool, typer.Option(help="Print timestamps.")] = False,
) -> None:
    """Read the records of a topic until Ctrl-C, --max-messages or --timeout-ms."""
    _check_options(offset, from_beginning, group, partition)
    start = "earliest" if from_beginning else offset
    record_format = RecordFormat(
        key=print_key,
        headers=print_headers,
        offset=print_offset,
        timestamp=print_timestamp,
        separator=parse_separator("--separator", separator),
    )
    from klamm.client.consumer.group_consumer import GroupConsumer
    from klamm.client.properties import group_options

    properties = command_properties(cluster.command_config)
    if isolation_level is not None:
        if isolation_level not in ISOLATION_LEVELS:
            raise typer.BadParameter(
                f"{isolation_level!r} is not one of {', '.join(ISOLATION_LEVELS)}", param_hint="--isolation-level"
            )
        properties = {**properties, "isolation.level": isolation_level}
    with property_errors(cluster.command_config):
        options = _consumer_options(properties, start)
        membership = None if group is None else group_options(properties, group)
    with ExitStack() as stack:
        stack.enter_context(ended_by_sigterm())
        target = data_output() if output is None else stack.enter_context(output.open("wb"))
        client = stack.enter_context(cluster.client())
        consumer = client.call(lambda own: _start(own, options, topic, partition or [], start, membership, timeout_ms))
        stack.callback(lambda: client.call(lambda _: consumer.close()))
        # A terminal that shows the records needs no bar.
        shows_records = output is None and sys.stdout.isatty()
        advance = stack.enter_context(progress("consume", max_messages, visible=not shows_records))
        count = 0
        unread: list[str] = []
        last_record_at = time.monotonic()
        while max_messages is None or count < max_messages:
            left = None if max_messages is None else max_messages - count
            records = client.call(lambda _, left=left: consumer.poll(POLL_TIMEOUT_MS, left))  # type: ignore[misc]
            target.writelines(map(record_json if cluster.as_json else record_format.format, records))
            target.flush()
            if records and isinstance(consumer, GroupConsumer):
                refused = client.call(lambda _: _commit(consumer))
                if refused is not None:
                    print_line(f"klamm: {len(records)} records: {refused.message}", file=sys.stderr)
            count += len(records)
            advance(len(records))
            now = time.monotonic()
            if records:
                last_record_at = now
            elif timeout_ms is not None and (now - last_record_at) * 1000 >= timeout_ms:
                unread = client.call(_unread, consumer)
                break
    if sys.stderr.isatty():
        print_line(f"{count} records read from {topic}", file=sys.stderr)
    if unread:
        print_lines((f"klamm: this may not be all: {each}" for each in unread[:MOST_UNREAD]), file=sys.stderr)
        if more := unread[MOST_UNREAD:]:
            print_line(f"klamm: ... and {len(more)} more partitions", file=sys.stderr)
        raise typer.Exit(EXIT_INCOMPLETE)


def _check_options(
    offset: str | None, from_beginning: bool, group: str | None, partitions: Sequence[int] | None
) -> None:
    """Raises typer.BadParameter for options that exclude each other, and for an invalid offset."""
    if offset not in (None, "earliest", "latest") and not (offset.isascii() and offset.isdigit()):
        raise typer.BadParameter(f"{offset!r} is not earliest, latest or a number", param_hint="--offset")
    if offset is not None and from_beginning:
        raise typer.BadParameter("cannot be given together with --from-beginning", param_hint="--offset")
    if group is not None and offset is not None:
        raise typer.BadParameter(
            "cannot be given together with --group, which begins at its committed offsets", param_hint="--offset"
        )
    if group is not None and partitions:
        raise typer.BadParameter(
            "cannot be given together with --group, which assigns partitions", param_hint="--partition"
        )
    if group == "":
        raise typer.BadParameter("must not be empty", param_hint="--group")


def _consumer_options(properties: Mapping[str, str], start: str | None) -> "ConsumerOptions":
    from klamm.client.options import ConsumerOptions
    from klamm.client.properties import consumer_options

    if start is not None:
        # A start offset that retention has removed is an error only if the user gave it as a number.
        properties = {**properties, "auto.offset.reset": start if start in ("earliest", "latest") else "none"}
    return consumer_options(properties, ConsumerOptions(max_poll_records=MAX_POLL_RECORDS))


async def _start(
    client: "ClusterClient",
    options: "ConsumerOptions",
    topic: str,
    partitions: Sequence[int],
    start: str | None,
    group: "GroupOptions | None",
    timeout_ms: int | None,
) -> "Consumer | GroupConsumer":
    """A member of the group, or without a group a consumer of the named partitions, or of all."""
    from klamm.client.consumer.consumer import Consumer
    from klamm.client.consumer.group_consumer import GroupConsumer
    from klamm.protocol.vocabulary import TopicPartition

    existing = await _existing_partitions(client, topic)
    if group is not None:
        return GroupConsumer(client, group, [topic], options)
    if missing := [number for number in partitions if number not in existing]:
        raise ToolError(f"{topic} has no partition {missing[0]}, it has {len(existing)} partitions")
    assigned = [TopicPartition(topic, number) for number in partitions or existing]
    offset = int(start) if start not in (None, "earliest", "latest") else None
    if offset is not None:
        await _check_offset(client, assigned, offset, timeout_ms)
    consumer = Consumer(client, options)
    consumer.assign(dict.fromkeys(assigned, offset))
    return consumer


async def _commit(consumer: "GroupConsumer") -> "CommitFailed | None":
    """Commits. Returns the error if the partitions now belong to other members, which read the records again."""
    from klamm.client.consumer.group_consumer import CommitFailed

    try:
        await consumer.commit()
    except CommitFailed as error:
        return error
    return None


async def _unread(client: "ClusterClient", consumer: "Consumer | GroupConsumer") -> list[str]:
    """The partitions that may have records which the consumer could not get, each with the reason."""
    import asyncio

    from klamm.client.consumer.group_consumer import GroupConsumer
    from klamm.client.consumer.offsets import ONE_ATTEMPT, list_offsets
    from klamm.protocol.vocabulary import LATEST_TIMESTAMP

    if isinstance(consumer, GroupConsumer) and consumer.generation_id < 0:
        return ["no partition was assigned, because the coordinator of the group has not let this member join"]
    by_leader: dict[int, list[TopicPartition]] = {}
    topics = (await client.refresh_metadata({each.topic for each in consumer.assignment})).topics
    for each in consumer.assignment:
        known = topics[each.topic].partitions.get(each.partition) if each.topic in topics else None
        by_leader.setdefault(-1 if known is None else known.leader, []).append(each)

    async def ask(leader: int, partitions: "Sequence[TopicPartition]") -> dict[str, str]:
        try:
            async with asyncio.timeout(ASK_FOR_S):
                ends = await list_offsets(client, dict.fromkeys(partitions, LATEST_TIMESTAMP), retry=ONE_ATTEMPT)
        except TimeoutError:
            return {str(each): f"broker {leader} does not answer" for each in partitions}
        return {str(key): error_line(end) for key, end in ends.items() if isinstance(end, KafkaError)}

    found = {
        str(each): "where to begin is not known yet" for each in set(consumer.assignment) - consumer.positions().keys()
    }
    for answer in await asyncio.gather(*(ask(*each) for each in by_leader.items())):
        found |= answer
    return [f"{partition}: {why}" for partition, why in sorted(found.items())]


async def _existing_partitions(client: "ClusterClient", topic: str) -> list[int]:
    metadata = await client.refresh_metadata([topic])
    described = metadata.topics.get(topic)
    if described is None or not described.partitions:
        raise ToolError(f"topic {topic} does not exist")
    return sorted(described.partitions)


async def _check_offset(
    client: "ClusterClient", partitions: Sequence["TopicPartition"], offset: int, timeout_ms: int | None
) -> None:
    """Raises ToolError for an offset that a partition does not have.

    If the valid offsets are not known in time, the consumer begins all the same, and `_unread` names the partitions.
    """
    import asyncio

    from klamm.client.consumer.offsets import list_offsets
    from klamm.client.fan_out import checked
    from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

    try:
        async with asyncio.timeout(None if timeout_ms is None else max(timeout_ms / 1000, ASK_FOR_S)):
            first, end = await asyncio.gather(
                list_offsets(client, dict.fromkeys(partitions, EARLIEST_TIMESTAMP)),
                list_offsets(client, dict.fromkeys(partitions, LATEST_TIMESTAMP)),
            )
    except TimeoutError:
        return
    for partition in partitions:
        low, high = checked(first[partition]).offset, checked(end[partition]).offset
        if not low <= offset <= high:
            raise ToolError(
                f"offset {offset} is not in partition {partition.partition} of {partition.topic}, which has"
                f" {low} to {high}"
            )
