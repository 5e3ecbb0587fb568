"""`klamm produce`: turns lines of standard input or of files into records.

Every record is counted until the broker has acknowledged it; the command fails if any record is not delivered. The
command reads only a bounded amount ahead of the acknowledgements.
"""

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, cast

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
    explain,
)
from klamm.tools.codecs import use_cramjam
from klamm.tools.progress import progress
from klamm.tools.text import BadRecord, parse_record, parse_separator, split_records

PENDING_LIMIT_BYTES = 64 * 1024 * 1024
PENDING_LIMIT_RECORDS = 100_000
# How long a record may wait for a leader of its partition.
MAX_BLOCK_MS = 20_000

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = {"all": "all", "-1": "all", "0": 0, "1": 1}


def produce(
    topic: TopicName,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    file: Annotated[
        list[Path] | None, typer.Option("--file", help="Read this instead of standard input; may be repeated.")
    ] = None,
    separator: Annotated[str, typer.Option(help="Separator after each record; may hold escapes such as \\t.")] = "\\n",
    null: Annotated[bool, typer.Option("--null", "-0", help="Records end with a NUL byte.")] = False,
    key_separator: Annotated[
        str | None, typer.Option(help="Separator between key and value. Without this option records have no keys.")
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Each record begins with name:value,name:value and a tab.")
    ] = False,
    partition: Annotated[int | None, typer.Option(min=0, help="Write to this partition only.")] = None,
    compression_type: Annotated[str, typer.Option(help=f"One of {', '.join(COMPRESSION_TYPES)}.")] = "none",
    acks: Annotated[
        str,
        typer.Option(
            help="Replicas that must have a record before it is acknowledged: all (the ISR), 1 (the leader), 0."
        ),
    ] = "all",
    idempotence: Annotated[
        bool | None, typer.Option("--idempotence/--no-idempotence", help="By default on with --acks all, else off.")
    ] = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Write each line of standard input, or of files, to a topic as a record."""
    if compression_type not in COMPRESSION_TYPES:
        raise typer.BadParameter(f"{compression_type!r} is not one of {', '.join(COMPRESSION_TYPES)}",
                                 param_hint="--compression-type")  # fmt: skip
    if acks not in ACKS:
        raise typer.BadParameter(f"{acks!r} is not one of all, 1, 0", param_hint="--acks")
    if idempotence and ACKS[acks] != "all":
        raise typer.BadParameter("needs --acks all", param_hint="--idempotence")
    record_end = b"\0" if null else parse_separator("--separator", separator)
    key_end = parse_separator("--key-separator", key_separator) if key_separator is not None else None
    options = client_options(bootstrap_server, command_config) | {
        "acks": ACKS[acks],
        "enable_idempotence": ACKS[acks] == "all" if idempotence is None else idempotence,
        "compression_type": None if compression_type == "none" else compression_type,
        "linger_ms": 5,
        "batch_size": 256 * 1024,
        "max_block_ms": MAX_BLOCK_MS,
        # The broker, not the client, limits the size of a record.
        "max_request_size": 100 * 1024 * 1024,
    }
    deliveries = Deliveries()
    with ExitStack() as stack:
        streams: list[BufferedReader] = [stack.enter_context(path.open("rb")) for path in file or []]
        from kafka import KafkaProducer

        use_cramjam()
        with client_errors():
            producer = connected(KafkaProducer, options)
            try:
                _require_partition(producer, topic, partition)
                lines = _read(streams, record_end)
                _send(producer, deliveries, topic, partition, lines, key_end, headers)
                # Not flush(): it fails when the client has split a batch that was too large.
                deliveries.wait_for_all()
            except KeyboardInterrupt:
                print(
                    f"klamm: interrupted: {deliveries.delivered} records delivered,"
                    f" {deliveries.pending} without an acknowledgement (they may be in the topic)",
                    file=sys.stderr,
                )
                raise
            finally:
                if deliveries.pending:
                    # After an interruption unacknowledged records are given up; close() would wait for them.
                    producer._sender.force_close()
                producer.close()
    if as_json:
        print(json.dumps({"topic": topic, "delivered": deliveries.delivered, "failed": deliveries.failed}))
    elif sys.stderr.isatty():
        print(f"{deliveries.delivered} records delivered to {topic}", file=sys.stderr)
    deliveries.require_success()


def _send(
    producer: Any,
    deliveries: "Deliveries",
    topic: str,
    partition: int | None,
    lines: Iterator[bytes],
    key_separator: bytes | None,
    with_headers: bool,
) -> None:
    """Sends a record for each line, up to the first that cannot be sent."""
    from kafka.errors import KafkaError

    for number, line in enumerate(lines, start=1):
        deliveries.wait_for_room()
        try:
            key, value, headers = parse_record(line, key_separator=key_separator, with_headers=with_headers)
            future = producer.send(topic, value=value, key=key, headers=headers or None, partition=partition)
        except BadRecord as error:
            deliveries.stop_because(f"record {number}: {error}")
            return
        except KafkaError as error:
            deliveries.stop_because(f"record {number}: {explain(error)}")
            return
        deliveries.sent(future, len(line))


class Deliveries:
    """Counts records from `send` to their acknowledgement. A lock guards all fields: the client's thread calls back."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending_bytes = 0
        self._reasons: Counter[str] = Counter()
        self._stopped = ""
        self.pending = 0
        self.delivered = 0
        self.failed = 0

    def sent(self, future: Any, size_bytes: int) -> None:
        """Watches a record that waits for its acknowledgement."""
        with self._changed:
            self.pending += 1
            self._pending_bytes += size_bytes
        future.add_callback(self._done, size_bytes, None)
        future.add_errback(self._failed, size_bytes)

    def _failed(self, size_bytes: int, error: BaseException) -> None:
        self._done(size_bytes, error)

    def _done(self, size_bytes: int, error: BaseException | None, _metadata: Any = None) -> None:
        with self._changed:
            self.pending -= 1
            self._pending_bytes -= size_bytes
            if error is None:
                self.delivered += 1
            else:
                self.failed += 1
                self._reasons[explain(error)] += 1
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Waits while too many bytes are unacknowledged."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.pending < PENDING_LIMIT_RECORDS and self._pending_bytes < PENDING_LIMIT_BYTES
            )

    def wait_for_all(self) -> None:
        """Waits until every record is delivered or has failed, at the latest after the client's delivery timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self.pending == 0)

    def stop_because(self, reason: str) -> None:
        """Notes why the rest of the input is not sent."""
        self._stopped = reason

    def require_success(self) -> None:
        """Raises ToolError unless every record was delivered."""
        problems = [f"{count} records were not delivered: {reason}" for reason, count in self._reasons.items()]
        if self._stopped:
            problems.append(f"{self._stopped}; the {self.delivered} records before it were delivered")
        if problems:
            raise ToolError("; ".join(problems))


def _require_partition(producer: Any, topic: str, partition: int | None) -> None:
    if partition is None:
        return
    existing = producer.partitions_for(topic)
    if partition not in existing:
        raise ToolError(f"{topic} has no partition {partition}, it has {len(existing)} partitions")


def _read(streams: Sequence[BufferedReader], separator: bytes) -> Iterator[bytes]:
    """The records of all streams, or of standard input without streams; shows a bar of the bytes read."""
    total = sum(Path(stream.name).stat().st_size for stream in streams) if streams else None
    # No bar when a person types the records.
    with progress("produce", total, visible=bool(streams) or not sys.stdin.isatty()) as advance:
        for stream in streams or [cast(BufferedReader, sys.stdin.buffer)]:
            # read1 returns at once with the bytes a pipe has, so records are sent as they arrive.
            for record in split_records(stream.read1, separator):
                yield record
                advance(len(record) + len(separator))
