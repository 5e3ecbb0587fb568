"""`klamm produce`: turns lines of standard input or of files into records.

Every record is counted until the broker has acknowledged it; the command fails if any record is not delivered. The
command reads only a bounded amount ahead of the acknowledgements.

With `--transactional-id` all records are one transaction. The transaction is committed when every record is
acknowledged, and aborted when a record is not acknowledged or the command is interrupted.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from klamm.access.clients import command_properties, property_errors
from klamm.base.progress import progress
from klamm.cli.shared.clients import client_in_thread, ended_by_sigterm
from klamm.cli.shared.options import ClusterOptions, TopicName, check_transactional_id
from klamm.cli.shared.output import print_line
from klamm.cli.shared.text import BadRecord, parse_record, parse_separator, split_records
from klamm.processes.tool_errors import EXIT_INCOMPLETE, ToolError

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.client.options import ClientOptions, ProducerOptions
    from klamm.client.producer.producer import Producer, RecordMetadata
    from klamm.client.producer.transactional_producer import TransactionalProducer

PENDING_LIMIT_BYTES = 64 * 1024 * 1024
LINGER_MS = 5
BATCH_SIZE_BYTES = 256 * 1024
# How long a record may wait for its topic and partition.
MAX_BLOCK_MS = 20_000
# The broker, not the client, limits the size of a record.
MAX_REQUEST_SIZE_BYTES = 100 * 1024 * 1024

# At most this many different reasons for failures are counted separately: each batch may have its own.
MAX_REASONS = 5

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")


def produce(
    topic: TopicName,
    cluster: ClusterOptions,
    file: Annotated[
        list[Path] | None, typer.Option(help="Read this instead of standard input; may be repeated.")
    ] = None,
    separator: Annotated[str, typer.Option(help="Separator after each record; may hold escapes such as \\t.")] = "\\n",
    null: Annotated[bool, typer.Option("--null", "-0", help="Records end with a NUL byte.")] = False,
    key_separator: Annotated[
        str | None, typer.Option(help="Separator between key and value. Without this option records have no keys.")
    ] = None,
    headers: Annotated[bool, typer.Option(help="Each record begins with name:value,name:value and a tab.")] = False,
    partition: Annotated[int | None, typer.Option(min=0, help="Write to this partition only.")] = None,
    compression_type: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(COMPRESSION_TYPES)}; none if not given.")
    ] = None,
    acks: Annotated[
        str | None,
        typer.Option(
            help="Replicas that must have a record before it is acknowledged: all (the ISR, if not given), 1 (the"
            " leader), 0."
        ),
    ] = None,
    idempotence: Annotated[
        bool | None, typer.Option("--idempotence/--no-idempotence", help="By default on with --acks all, else off.")
    ] = None,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            callback=check_transactional_id,
            help="Write all records in one transaction with this id, within transaction.timeout.ms (1 minute if not"
            " given). An earlier transaction of this id is aborted.",
        ),
    ] = None,
) -> None:
    """Write each line of standard input, or of files, to a topic as a record."""
    if compression_type not in (None, *COMPRESSION_TYPES):
        raise typer.BadParameter(f"{compression_type!r} is not one of {', '.join(COMPRESSION_TYPES)}",
                                 param_hint="--compression-type")  # fmt: skip
    if acks not in (None, "all", "-1", "1", "0"):
        raise typer.BadParameter(f"{acks!r} is not one of all, 1, 0", param_hint="--acks")
    if idempotence and acks in ("1", "0"):
        raise typer.BadParameter("needs --acks all", param_hint="--idempotence")
    if transactional_id is not None and (idempotence is False or acks in ("1", "0")):
        raise typer.BadParameter("needs --acks all and --idempotence", param_hint="--transactional-id")
    record_end = b"\0" if null else parse_separator("--separator", separator)
    key_end = parse_separator("--key-separator", key_separator) if key_separator is not None else None
    given = {
        "compression.type": compression_type,
        "acks": acks,
        "enable.idempotence": None if idempotence is None else str(idempotence).lower(),
        "transactional.id": transactional_id,
    }
    properties = command_properties(cluster.command_config) | {
        key: value for key, value in given.items() if value is not None
    }
    with property_errors(cluster.command_config):
        options = _producer_options(cluster.client_options(), properties)
    with ExitStack() as stack:
        stack.enter_context(ended_by_sigterm())
        streams: list[BufferedReader] = [stack.enter_context(path.open("rb")) for path in file or []]
        client = stack.enter_context(client_in_thread(options.client))
        lines = client.call(lambda own: _start(own, options, topic, partition, key_end, headers))
        try:
            for records in _read(streams, record_end):
                client.call(lambda _, records=records: lines.send(records))  # type: ignore[misc]
                if lines.stopped:
                    break
            client.call(lambda _: lines.end())
        except KeyboardInterrupt:
            print_line(f"klamm: interrupted: {lines.outcome()}", file=sys.stderr)
            raise
        finally:
            client.call(lambda _: lines.close())
    if cluster.as_json:
        print_line(json.dumps({"topic": topic, "delivered": lines.delivered, "failed": lines.failed}))
    elif sys.stderr.isatty():
        print_line(f"{lines.delivered} records delivered to {topic}", file=sys.stderr)
    lines.require_success()


def _producer_options(client: "ClientOptions", properties: Mapping[str, str]) -> "ProducerOptions":
    from dataclasses import replace

    from klamm.client.options import ProducerOptions
    from klamm.client.properties import producer_options
    from klamm.protocol.record.compression import CompressionType

    defaults = ProducerOptions(
        replace(client, retry_timeout_ms=min(client.retry_timeout_ms, MAX_BLOCK_MS)),
        CompressionType.NONE,
        batch_size_bytes=BATCH_SIZE_BYTES,
        max_request_size_bytes=MAX_REQUEST_SIZE_BYTES,
        buffer_memory_bytes=PENDING_LIMIT_BYTES,
        linger_ms=LINGER_MS,
    )
    return producer_options(properties, defaults)


async def _start(
    client: "ClusterClient",
    options: "ProducerOptions",
    topic: str,
    partition: int | None,
    key_separator: bytes | None,
    with_headers: bool,
) -> "Lines":
    from klamm.base.system_environment import SystemEnvironment
    from klamm.client.producer.producer import Producer
    from klamm.client.producer.transactional_producer import TransactionalProducer

    is_transactional = options.transactional_id is not None
    producer = (TransactionalProducer if is_transactional else Producer)(client, options, SystemEnvironment())
    if partition is not None and partition >= (count := (await producer.partitions_for(topic)).count):
        raise ToolError(f"{topic} has no partition {partition}, it has {count} partitions")
    if isinstance(producer, TransactionalProducer):
        await producer.init()
        producer.begin()
    return Lines(producer, topic, partition, key_separator, with_headers, is_transactional=is_transactional)


class Lines:
    """Sends lines as records, and counts them until they are acknowledged. Its methods run on the producer's loop. The
    command's thread makes one call at a time, and reads the counts between calls."""

    def __init__(
        self,
        producer: "Producer | TransactionalProducer",
        topic: str,
        partition: int | None,
        key_separator: bytes | None,
        with_headers: bool,
        *,
        is_transactional: bool = False,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._key_separator = key_separator
        self._with_headers = with_headers
        self._is_transactional = is_transactional
        self._is_aborted = False
        self._reasons: Counter[str] = Counter()
        self._sent = 0
        self.delivered = 0
        self.failed = 0
        self.stopped = ""
        """Why the rest of the input is not sent."""

    @property
    def pending(self) -> int:
        """The records without an acknowledgement."""
        return self._sent - self.delivered - self.failed

    def outcome(self) -> str:
        """The fate of the records of an interrupted command."""
        if self._is_transactional:
            return f"the transaction with {self._sent} records is aborted, unless its commit had begun"
        return (
            f"{self.delivered} records delivered, {self.pending} without an acknowledgement (they may be in the topic)"
        )

    async def send(self, lines: Sequence[bytes]) -> None:
        """Sends a record for each line, up to the first bad line. Waits while the producer has no room."""
        from klamm.client.producer.producer import ProducerRecord
        from klamm.protocol.error_codes import KafkaError

        for line in lines:
            try:
                key, value, headers = parse_record(
                    line, key_separator=self._key_separator, with_headers=self._with_headers
                )
                record = ProducerRecord(self._topic, value, key, tuple(headers), self._partition)
                await self._producer.send(record, self._completed)
            except (BadRecord, KafkaError) as error:
                self.stopped = f"record {self._sent + 1}: {error}"
                return
            self._sent += 1

    def _completed(self, metadata: "RecordMetadata | None", error: BaseException | None) -> None:
        if error is None:
            self.delivered += 1
        else:
            self.failed += 1
            reason = str(error)
            self._reasons[
                reason if reason in self._reasons or len(self._reasons) < MAX_REASONS else "other reasons"
            ] += 1

    async def end(self) -> None:
        """Returns when every record is delivered or has failed. Commits a transaction if all are delivered, else aborts
        it."""
        from klamm.client.producer.producer import Producer

        if isinstance(self._producer, Producer):
            await self._producer.flush()
        else:
            await self._end_transaction(self._producer)

    async def _end_transaction(self, producer: "TransactionalProducer") -> None:
        from klamm.client.producer.transactions import ProducerEnded, TransactionAborted
        from klamm.net.client import ClientError
        from klamm.protocol.error_codes import KafkaError

        if not self.stopped:
            try:
                await producer.commit()
            except TransactionAborted as error:
                self.stopped = str(error)
            except ProducerEnded:
                raise
            except (KafkaError, ClientError) as error:
                raise ToolError(
                    f"the commit was not confirmed: {error}; all {self._sent} records are committed, or none, in which"
                    " case the brokers abort the transaction after transaction.timeout.ms",
                    EXIT_INCOMPLETE,
                ) from None
            else:
                return
        await producer.abort()
        self.delivered, self.failed, self._is_aborted = 0, self._sent, True

    async def close(self) -> None:
        """Drops unacknowledged records."""
        await self._producer.close()

    def require_success(self) -> None:
        """Raises ToolError unless every record was delivered."""
        if self._is_aborted:
            raise ToolError(f"the transaction was aborted, and no record of it will be read: {self.stopped}")
        problems = [f"{count} records were not delivered: {reason}" for reason, count in self._reasons.items()]
        if self.stopped:
            problems.append(f"{self.stopped}; the {self.delivered} records before it were delivered")
        if problems:
            raise ToolError("; ".join(problems))


def _read(streams: Sequence[BufferedReader], separator: bytes) -> Iterator[list[bytes]]:
    """The records of all streams, or of standard input without streams; shows a bar of the bytes read."""
    total = sum(Path(stream.name).stat().st_size for stream in streams) if streams else None
    # No bar when a person types the records.
    with progress("produce", total, visible=bool(streams) or not sys.stdin.isatty()) as advance:
        for stream in streams or [cast(BufferedReader, sys.stdin.buffer)]:
            # read1 returns at once with the bytes a pipe has, so records are sent as they arrive.
            for records in split_records(stream.read1, separator, MAX_REQUEST_SIZE_BYTES):
                yield records
                advance(sum(map(len, records)) + len(records) * len(separator))
