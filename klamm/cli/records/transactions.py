"""`klamm transactions`: kafka-transactions' work over the wire protocol, for any Kafka cluster.

The lines of `list`, `describe`, `describe-producers` and `find-hanging` are those of Kafka's tool.

What must stay true: `abort` writes a marker only if no coordinator has the transaction open, as far as brokers can tell
(Kafka 3.0 and later). A marker for a transaction that its coordinator then commits would hide committed records.
"""

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.access.clients import error_line, is_silent, silent_brokers, succeeded
from klamm.base.progress import progress
from klamm.base.visible import visible
from klamm.base.words import counted
from klamm.cli.shared.clients import ClientInThread, exit_incomplete
from klamm.cli.shared.confirm import Yes, confirm
from klamm.cli.shared.options import Commands, PatientOptions, TopicName, check_transactional_id
from klamm.cli.shared.output import TABS, print_line
from klamm.cli.shared.patterns import expression
from klamm.processes.tool_errors import EXIT_FAILED, EXIT_INCOMPLETE, ToolError
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.transaction_admin import (
        OpenTransaction,
        ProducerState,
        TransactionDescription,
        TransactionListing,
    )
    from klamm.client.cluster import ClusterClient
    from klamm.client.metadata import ClusterMetadata

app = Commands("List and describe transactions, and end those that hang.")

DEFAULT_MAX_TRANSACTION_TIMEOUT_MINUTES: Final = 15
MAX_PARTITIONS_PER_REQUEST: Final = 500
# Registers the producer, which ends its transaction, if the broker does not report the producer's own timeout.
TRANSACTION_TIMEOUT_MS: Final = 60_000
NONE: Final = "None"
INT64_MAX: Final = 2**63 - 1

Partition = Annotated[int, typer.Option("--partition", min=0, max=2**31 - 1, help="The partition's number.")]
OneId = Annotated[
    str,
    typer.Option(
        "--transactional-id",
        "--transactionalId",
        metavar="ID",
        callback=check_transactional_id,
        help="The transactional id.",
    ),
]


# -- the commands -----------------------------------------------------------------------------------------------------


@app.command("list", epilog="Example: klamm transactions list --duration-filter 60000")
def list_transactions(
    duration_filter: Annotated[
        int,
        typer.Option(
            metavar="MS", max=INT64_MAX, help="Only transactions that have been open for longer; all if negative."
        ),
    ] = -1,
    transactional_id_pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only transactional ids that match this as a whole.")
    ] = None,
    *,
    cluster: PatientOptions,
) -> None:
    """List transactional ids with their coordinators, producer ids and states. Needs Kafka 3.0."""
    from klamm.client.admin.transaction_admin import list_transactions_of_brokers, sorted_transactions
    from klamm.client.coordinated import listed
    from klamm.client.fan_out import CoordinatorType

    pattern = expression(transactional_id_pattern or ".*", "--transactional-id-pattern", re.DOTALL)
    with cluster.client() as client:
        ask = partial(list_transactions_of_brokers, longer_than_ms=max(duration_filter, -1))
        answers, gap = client.call(listed, CoordinatorType.TRANSACTION, ask)
    silent = silent_brokers(answers)
    found = [
        each
        for each in sorted_transactions(answer for answer in answers.values() if not isinstance(answer, KafkaError))
        if pattern.fullmatch(each.transactional_id)
    ]
    cluster.show([asdict(each) for each in found], list_lines(found), keep=TABS)
    exit_incomplete(silent, gap)


@app.command(epilog="Example: klamm transactions describe --transactional-id copier-1")
def describe(
    transactional_id: Annotated[list[str], typer.Option(metavar="ID", help="The transactional id. May be repeated.")],
    cluster: PatientOptions,
) -> None:
    """Describe transactional ids: producer id and epoch, state, timeout, and the partitions of the transaction.

    Needs Kafka 3.0.
    """
    from klamm.client.admin.transaction_admin import describe_transactions

    for each in transactional_id:
        check_transactional_id(each)
    with cluster.client() as client:
        described = client.call(describe_transactions, transactional_id)
    found = [each for each in described.values() if not isinstance(each, KafkaError)]
    failed = {name: each for name, each in described.items() if isinstance(each, KafkaError)}
    if not found and len(failed) == 1:
        raise ToolError(error_line(*failed.values()))
    if found:
        cluster.show([description_value(each) for each in found], description_lines(found, now_ms()), keep=TABS)
    for name, error in failed.items():
        print_line(f"klamm: transactional id {name} is not known: {error_line(error)}", file=sys.stderr)
    _exit_with(failed)


@app.command("describe-producers", epilog="Example: klamm transactions describe-producers --topic orders --partition 0")
def describe_producers(
    topic: TopicName,
    partition: Partition,
    broker_id: Annotated[
        int | None, typer.Option(metavar="ID", help="Ask the replica on this broker instead of the leader.")
    ] = None,
    *,
    cluster: PatientOptions,
) -> None:
    """Describe a partition's producers: epochs, last sequence, where an open transaction begins. Needs Kafka 2.8."""
    with cluster.client() as client:
        states = succeeded(_producers(client, [TopicPartition(topic, partition)], broker_id).popitem()[1])
    cluster.show([asdict(each) for each in states], producer_lines(states), keep=TABS)


@app.command("find-hanging", epilog="Example: klamm transactions find-hanging --topic orders")
def find_hanging(
    topic: Annotated[str | None, typer.Option(help="Search this topic only.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Search this partition of --topic only.")] = None,
    broker_id: Annotated[
        int | None, typer.Option(metavar="ID", help="Search the replicas on this broker instead of the leaders.")
    ] = None,
    max_transaction_timeout: Annotated[
        int,
        typer.Option(
            min=0, max=2**31 - 1, metavar="MINUTES", help="Look only at transactions without a record for this long."
        ),
    ] = DEFAULT_MAX_TRANSACTION_TIMEOUT_MINUTES,
    *,
    cluster: PatientOptions,
) -> None:
    """Find open transactions that no coordinator will end: readers of committed records wait before them for ever.

    Exits with 1 if there is one. Searches the whole cluster unless told otherwise. Needs Kafka 3.0, and Describe on all
    transactional ids: those that may not be described seem to hang.
    """
    if partition is not None and topic is None:
        raise typer.BadParameter("needs --topic", param_hint="--partition")
    with cluster.client() as client:
        partitions = _partitions(client, topic, partition, broker_id)
        found, errors = _open_transactions(client, partitions, broker_id)
        oldest_ms = now_ms() - max_transaction_timeout * 60_000
        candidates = [each for each in found if each.producer.last_timestamp_ms < oldest_ms]
        hanging, not_again = _hanging(client, candidates, broker_id) if candidates else ([], {})
        errors |= not_again
    cluster.show([hanging_value(each) for each in hanging], hanging_lines(hanging, now_ms()), keep=TABS)
    for each, error in errors.items():
        print_line(f"klamm: the producers of {each} are not known: {error_line(error)}", file=sys.stderr)
    if hanging:
        first = hanging[0]
        print_line(
            f"{counted(len(hanging), 'hanging transaction')}. To end the first: klamm transactions abort"
            f" --topic {first.partition.topic} --partition {first.partition.partition}"
            f" --start-offset {first.producer.transaction_start_offset}",
            file=sys.stderr,
        )
    if hanging or errors:
        raise typer.Exit(EXIT_FAILED if hanging else EXIT_INCOMPLETE)


@app.command(epilog="Example: klamm transactions abort --topic orders --partition 0 --start-offset 1200 --yes")
def abort(
    topic: TopicName,
    partition: Partition,
    start_offset: Annotated[
        int | None,
        typer.Option(
            min=0, max=INT64_MAX, help="Where the transaction begins, as find-hanging and describe-producers show."
        ),
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option(min=0, max=INT64_MAX, help="Instead of --start-offset: the producer id, with the two epochs."),
    ] = None,
    producer_epoch: Annotated[
        int | None, typer.Option(min=0, max=2**15 - 1, help="The producer epoch, with --producer-id.")
    ] = None,
    coordinator_epoch: Annotated[
        int | None, typer.Option(min=-1, max=2**31 - 1, help="The coordinator epoch, with --producer-id.")
    ] = None,
    yes: Yes = False,
    *,
    cluster: PatientOptions,
) -> None:
    """End a transaction that hangs on a partition by writing an abort marker there."""
    from klamm.client.admin.transaction_admin import OpenTransaction, ProducerState, abort_transaction

    epochs = (producer_epoch, coordinator_epoch)
    if (start_offset is None) == (producer_id is None):
        raise typer.BadParameter("give exactly one of --start-offset and --producer-id", param_hint="--start-offset")
    if (producer_id is None) != (epochs == (None, None)) or (producer_id is not None and None in epochs):
        raise typer.BadParameter(
            "--producer-id, --producer-epoch and --coordinator-epoch belong together", param_hint="--producer-id"
        )
    key = TopicPartition(topic, partition)
    with cluster.client() as client:
        if start_offset is not None:
            states = succeeded(_producers(client, [key], None)[key])
            state = next((each for each in states if each.transaction_start_offset == start_offset), None)
            if state is None:
                raise ToolError(f"no transaction is open on {key} from offset {start_offset} on")
            producer_id, producer_epoch, coordinator_epoch = (
                state.producer_id,
                state.producer_epoch,
                state.coordinator_epoch,
            )
        assert producer_id is not None and producer_epoch is not None and coordinator_epoch is not None
        transaction = OpenTransaction(key, ProducerState(producer_id, producer_epoch, coordinator_epoch, -1, -1, None))
        if (transactional_id := _ending(client, [transaction], unless_old=True).get(transaction)) is not None:
            raise ToolError(
                f"the transaction does not hang: the coordinator of {transactional_id} will end it on {key};"
                f" klamm transactions force-terminate --transactional-id {transactional_id} aborts all of it"
            )
        what = f"the transaction of producer id {producer_id}, epoch {producer_epoch}, on {key}"
        confirm([f"To abort: {what}"], "Abort this transaction?", yes=yes)
        error = client.call(abort_transaction, key, producer_id, producer_epoch, coordinator_epoch)
    if error is not None:
        raise ToolError(error_line(error))
    value = {"topic": topic, "partition": partition, "producer_id": producer_id, "producer_epoch": producer_epoch}
    cluster.show(value, [f"Aborted {what}."])


@app.command("force-terminate", epilog="Example: klamm transactions force-terminate --transactional-id copier-1 --yes")
def force_terminate(
    transactional_id: OneId,
    yes: Yes = False,
    *,
    cluster: PatientOptions,
) -> None:
    """Abort the open or prepared transaction of a transactional id, and fence its producer."""
    from klamm.client.producer.transactions import TransactionManager

    with cluster.client() as client:
        described = client.call(_described, transactional_id)
        state = "" if described is None else f": {described.state}, {counted(len(described.partitions), 'partition')}"
        confirm([f"To terminate: {transactional_id}{state}"], "Abort what is open and fence the producer?", yes=yes)
        timeout_ms = TRANSACTION_TIMEOUT_MS if described is None else described.timeout_ms
        identity = client.call(lambda own: TransactionManager(own, transactional_id, timeout_ms).init())
    line = f"Terminated {transactional_id}: producer id {identity.producer_id}, epoch {identity.producer_epoch}."
    cluster.show({"transactional_id": transactional_id, **identity._asdict()}, [line])


def _exit_with(errors: Mapping[Any, KafkaError]) -> None:
    """Ends the command with the exit code of these errors, if there are any."""
    if errors:
        raise typer.Exit(EXIT_INCOMPLETE if all(map(is_silent, errors.values())) else EXIT_FAILED)


# -- the cluster's answers --------------------------------------------------------------------------------------------


def _partitions(
    client: ClientInThread, topic: str | None, partition: int | None, broker_id: int | None
) -> list[TopicPartition]:
    """The partitions to search."""
    from klamm.client.admin.topics import describe_topics

    async def look(cluster: "ClusterClient") -> "ClusterMetadata":
        if topic is not None:
            return await cluster.refresh_metadata([topic])
        await describe_topics(cluster)
        return cluster.metadata

    cluster = client.call(look)
    if broker_id is not None and broker_id not in cluster.brokers:
        raise ToolError(
            f"broker {broker_id} is not in the cluster; live are {', '.join(map(str, sorted(cluster.brokers)))}"
        )
    found = []
    for name, metadata in sorted(cluster.topics.items()):
        if topic not in (None, name):
            continue
        found += [
            TopicPartition(name, number)
            for number, state in sorted(metadata.partitions.items())
            if partition in (None, number) and (broker_id is None or broker_id in state.replicas)
        ]
    if not found and topic is not None:
        where = "" if broker_id is None else f" on broker {broker_id}"
        raise ToolError(
            f"there is no topic {topic}{where}" if partition is None else f"there is no {topic}-{partition}{where}"
        )
    return found


def _producers(
    client: ClientInThread, partitions: Sequence[TopicPartition], broker_id: int | None
) -> "dict[TopicPartition, Sequence[ProducerState] | KafkaError]":
    from klamm.client.admin.transaction_admin import describe_producers

    return client.call(describe_producers, partitions, broker_id=broker_id)


def _open_transactions(
    client: ClientInThread, partitions: Sequence[TopicPartition], broker_id: int | None
) -> "tuple[list[OpenTransaction], dict[TopicPartition, KafkaError]]":
    """The open transactions, and the partitions whose producers could not be read, with the errors."""
    from klamm.client.admin.transaction_admin import OpenTransaction

    found, errors = [], {}
    with progress("find-hanging", len(partitions)) as advance:
        for begin in range(0, len(partitions), MAX_PARTITIONS_PER_REQUEST):
            asked = partitions[begin : begin + MAX_PARTITIONS_PER_REQUEST]
            for key, states in _producers(client, asked, broker_id).items():
                if isinstance(states, KafkaError):
                    errors[key] = states
                else:
                    is_open = (each for each in states if each.transaction_start_offset is not None)
                    found += [OpenTransaction(key, each) for each in is_open]
            advance(len(asked))
    return found, errors


def _hanging(
    client: ClientInThread, candidates: "Sequence[OpenTransaction]", broker_id: int | None
) -> "tuple[list[OpenTransaction], dict[TopicPartition, KafkaError]]":
    """The candidates that no coordinator knows and that are still open when read again, and the partitions that could
    not be read again. Raises ToolError when a coordinator does not answer."""
    ending = _ending(client, candidates)
    hanging = [each for each in candidates if each not in ending]
    partitions = list(dict.fromkeys(each.partition for each in hanging))
    found, errors = _open_transactions(client, partitions, broker_id)
    still_open = {(each.partition, each.producer.producer_id, each.producer.transaction_start_offset) for each in found}
    return [
        each
        for each in hanging
        if (each.partition, each.producer.producer_id, each.producer.transaction_start_offset) in still_open
    ], errors


def _ending(
    client: ClientInThread, transactions: "Sequence[OpenTransaction]", *, unless_old: bool = False
) -> "dict[OpenTransaction, str]":
    """The transactions among these that a coordinator will end, with their transactional ids.

    With `unless_old`, brokers too old for this question count as knowing no transaction. Raises ToolError when a
    coordinator does not answer, because its transactions would seem to hang.
    """
    from klamm.client.admin.transaction_admin import coordinated_transactions, ending_transactions
    from klamm.net.client import UnsupportedVersion

    producer_ids = sorted({each.producer.producer_id for each in transactions})

    async def ask(cluster: "ClusterClient") -> "dict[OpenTransaction, str] | KafkaError":
        try:
            return ending_transactions(transactions, await coordinated_transactions(cluster, producer_ids))
        except KafkaError as error:
            return error
        except UnsupportedVersion:
            if unless_old:
                return {}
            raise

    ending = client.call(ask)
    if isinstance(ending, KafkaError):
        raise ToolError(f"whether a transaction hangs is not known: {error_line(ending)}", EXIT_INCOMPLETE)
    return ending


async def _described(client: "ClusterClient", transactional_id: str) -> "TransactionDescription | None":
    """The description of a transactional id; None if the brokers are too old. Raises KafkaError for an unknown id."""
    from klamm.client.admin.transaction_admin import describe_transactions
    from klamm.client.fan_out import checked
    from klamm.net.client import UnsupportedVersion

    try:
        return checked((await describe_transactions(client, [transactional_id]))[transactional_id])
    except UnsupportedVersion:
        return None


# -- output -----------------------------------------------------------------------------------------------------------


def now_ms() -> int:
    return int(time.time() * 1000)


def list_lines(found: "Sequence[TransactionListing]") -> Iterator[str]:
    titles = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
    return table([titles, *((each.transactional_id, each.coordinator, each.producer_id, each.state) for each in found)])


def description_lines(found: "Sequence[TransactionDescription]", at_ms: int) -> Iterator[str]:
    titles = (
        "CoordinatorId",
        "TransactionalId",
        "ProducerId",
        "ProducerEpoch",
        "TransactionState",
        "TransactionTimeoutMs",
        "CurrentTransactionStartTimeMs",
        "TransactionDurationMs",
        "TopicPartitions",
    )
    rows = [
        (
            each.coordinator,
            each.transactional_id,
            each.producer_id,
            each.producer_epoch,
            each.state,
            each.timeout_ms,
            NONE if each.start_time_ms is None else each.start_time_ms,
            NONE if each.start_time_ms is None else at_ms - each.start_time_ms,
            ",".join(map(str, each.partitions)),
        )
        for each in found
    ]
    return table([titles, *rows])


def description_value(found: "TransactionDescription") -> dict[str, Any]:
    return {**asdict(found), "partitions": [each._asdict() for each in found.partitions]}


def producer_lines(states: "Sequence[ProducerState]") -> Iterator[str]:
    titles = (
        "ProducerId",
        "ProducerEpoch",
        "LatestCoordinatorEpoch",
        "LastSequence",
        "LastTimestamp",
        "CurrentTransactionStartOffset",
    )
    rows = [
        (
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.last_sequence,
            each.last_timestamp_ms,
            NONE if each.transaction_start_offset is None else each.transaction_start_offset,
        )
        for each in states
    ]
    return table([titles, *rows])


def hanging_lines(found: "Sequence[OpenTransaction]", at_ms: int) -> Iterator[str]:
    titles = (
        "Topic",
        "Partition",
        "ProducerId",
        "ProducerEpoch",
        "CoordinatorEpoch",
        "StartOffset",
        "LastTimestamp",
        "Duration(min)",
    )
    rows = [
        (
            *partition,
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.transaction_start_offset,
            producer.last_timestamp_ms,
            (at_ms - producer.last_timestamp_ms) // 60_000,
        )
        for partition, producer in found
    ]
    return table([titles, *rows])


def hanging_value(found: "OpenTransaction") -> Mapping[str, Any]:
    return {**found.partition._asdict(), **asdict(found.producer)}


def table(rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Rows as Kafka's `ToolsUtils.prettyPrintTable` prints them: a tab after each padded cell."""
    texts = [[visible(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        yield "".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True))
