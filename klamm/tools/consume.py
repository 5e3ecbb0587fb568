"""`klamm consume`: the records of a topic on standard output or in a file.

Without `--group` the command assigns partitions itself, so it needs no consumer group and leaves no trace in the
cluster. With `--group` it is a member of that group and commits the offsets of the records that it has written, so
each record is written at least once.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from klamm.processes.errors import ToolError
from klamm.tools.clients import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    BootstrapServer,
    CommandConfig,
    TopicName,
    client_errors,
    client_options,
    connected,
)
from klamm.tools.codecs import use_cramjam
from klamm.tools.progress import progress
from klamm.tools.text import RecordFormat, parse_separator, record_json

POLL_TIMEOUT_MS = 200


def consume(
    topic: TopicName,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Read this partition only; may be repeated.")
    ] = None,
    offset: Annotated[
        str | None, typer.Option(metavar="earliest|latest|N", help="Where to begin; latest if not given.")
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning", help="Begin at the earliest offset; with --group, where no offset is committed."
        ),
    ] = False,
    group: Annotated[
        str | None, typer.Option("--group", help="Read as a member of this consumer group, and commit offsets.")
    ] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="Stop after this many records.")] = None,
    timeout_ms: Annotated[int | None, typer.Option(min=0, help="Stop after this time without a record.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write to this file.")] = None,
    separator: Annotated[str, typer.Option(help="Separator after each record; may hold escapes such as \\t.")] = "\\n",
    print_key: Annotated[bool, typer.Option("--print-key", help="Print keys, before the values.")] = False,
    print_headers: Annotated[bool, typer.Option("--print-headers", help="Print headers.")] = False,
    print_offset: Annotated[bool, typer.Option("--print-offset", help="Print partition and offset.")] = False,
    print_timestamp: Annotated[bool, typer.Option("--print-timestamp", help="Print timestamps.")] = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Read the records of a topic until Ctrl-C, --max-messages or --timeout-ms."""
    _check_options(offset, from_beginning, group, partition)
    start = "earliest" if from_beginning else offset or "latest"
    record_format = RecordFormat(
        key=print_key,
        headers=print_headers,
        offset=print_offset,
        timestamp=print_timestamp,
        separator=parse_separator("--separator", separator),
    )
    options = client_options(bootstrap_server, command_config) | {
        "group_id": group,
        # Offsets are committed only after their records are written.
        "enable_auto_commit": False,
        "allow_auto_create_topics": False,
        # A start offset that retention has removed is an error only if the user gave it as a number.
        "auto_offset_reset": start if start in ("earliest", "latest") else "none",
        "max_poll_records": 5000,
    }
    with ExitStack() as stack:
        target: BinaryIO = stack.enter_context(output.open("wb")) if output is not None else sys.stdout.buffer
        from kafka import KafkaConsumer

        use_cramjam()
        with client_errors():
            consumer = stack.enter_context(connected(KafkaConsumer, options))
            partitions = _existing_partitions(consumer, topic)
            if group is None:
                _assign(consumer, topic, partitions, partition or [], start)
            else:
                consumer.subscribe([topic])
            # A terminal that shows the records needs no bar.
            advance = stack.enter_context(progress("consume", max_messages, visible=not target.isatty()))
            count = 0
            last_record_at = time.monotonic()
            while max_messages is None or count < max_messages:
                records = _poll(consumer, None if max_messages is None else max_messages - count)
                for record in records:
                    target.write(record_json(record) if as_json else record_format.format(record))
                target.flush()
                if records and group is not None:
                    consumer.commit()
                count += len(records)
                advance(len(records))
                now = time.monotonic()
                if records:
                    last_record_at = now
                elif timeout_ms is not None and (now - last_record_at) * 1000 >= timeout_ms:
                    break
    if sys.stderr.isatty():
        print(f"{count} records read from {topic}", file=sys.stderr)


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


def _existing_partitions(consumer: Any, topic: str) -> list[int]:
    existing = sorted(consumer.partitions_for_topic(topic) or ())
    if not existing:
        raise ToolError(f"topic {topic} does not exist")
    return existing


def _assign(consumer: Any, topic: str, existing: Sequence[int], partitions: Sequence[int], offset: str) -> None:
    """Assigns the named partitions, or all of them, and seeks to the start offset."""
    from kafka import TopicPartition

    if missing := [number for number in partitions if number not in existing]:
        raise ToolError(f"{topic} has no partition {missing[0]}, it has {len(existing)} partitions")
    assigned = [TopicPartition(topic, number) for number in partitions or existing]
    consumer.assign(assigned)
    match offset:
        case "earliest":
            consumer.seek_to_beginning(*assigned)
        case "latest":
            consumer.seek_to_end(*assigned)
        case _:
            first, end = consumer.beginning_offsets(assigned), consumer.end_offsets(assigned)
            for each in assigned:
                if not first[each] <= int(offset) <= end[each]:
                    raise ToolError(
                        f"offset {offset} is not in partition {each.partition} of {topic}, which has"
                        f" {first[each]} to {end[each]}"
                    )
                consumer.seek(each, int(offset))


def _poll(consumer: Any, limit: int | None) -> list[Any]:
    polled = consumer.poll(timeout_ms=POLL_TIMEOUT_MS, max_records=limit)
    return [record for records in polled.values() for record in records]
