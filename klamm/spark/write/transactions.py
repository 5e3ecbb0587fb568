"""Writes each row exactly once (`kafka.transactional.id`), in two phases: the driver's part, and the whole protocol.

Spark runs a write as a job with a task for each of its partitions. It passes the results of the tasks to the driver's
`commit`, or to `abort` when the job has failed. A stream is a sequence of such writes, the numbered micro-batches.
Spark repeats a task that failed or is slow, and a micro-batch whose end it does not know. The repeated micro-batch may
have another number of tasks, and its rows may be distributed in another way.

One micro-batch, step by step:

    1. plan      driver    reads the last recorded micro-batch, completes its steps 5 and 6, and gives tasks its number
    2. write     task      attempt A of task P begins a transaction with the transactional id PREFIX-P-A, writes all of
                           its rows, waits until the replicas have them, and leaves the transaction open: it is
                           prepared. The task returns transactional id, producer id, epoch and partitions
    3. check     driver    every prepared transaction that Spark has chosen is still open
    4. record    driver    these transactions are written to the checkpoint, in one durable file: from now on the
                           micro-batch is decided
    5. end       driver    EndTxn commits exactly the recorded transactions
    6. note      driver    a second file says that all of them are committed
    7. clear     driver    open transactions of other attempts are aborted, and files of older micro-batches are removed

The state that a dead process leaves behind, and what happens after a restart:

    died in      left behind                      after a restart
    1, 2, 3      open transactions, no record     the tasks write the rows again. The next attempt with a transactional
                                                  id aborts what the id had left open, and step 7 the rest
    4            the whole file, or no file       as in the row above or below
    5            a record; some transactions are  the driver ends the recorded ones at once, before they time out;
                 committed, some open             the tasks write nothing. A second commit changes nothing
    6, 7         a record; all are committed      the tasks write nothing; the driver ends nothing that is noted

What must stay true:
- Only step 5 makes rows visible, and only those of recorded transactions. A micro-batch has one record, whose file is
  created and never replaced. So of two drivers the second one commits what the first one recorded, and aborts its own
  transactions.
- A record belongs to one query, or to one batch write, and to one cluster. For others its number and its producer ids
  have another meaning.
- The tasks of a recorded micro-batch write nothing. They still read all of their rows, because Spark's stateful
  operators run in the same tasks and must see the rows.
- Spark calls `abort` also when `commit` has failed half way. After the record `abort` aborts nothing of it.
- An attempt without a record never becomes visible, however long its process lives. Its transaction is aborted by step
  7 of this or of the next micro-batch, by the next attempt with its transactional id, or by the brokers' timeout.
  After that the leaders of partitions refuse its further records.
- Step 7 lists the open transactions at the coordinators, and finds its own by their transactional ids. Brokers before
  Kafka 3.0 do not list them. With these brokers it tries the next attempt of each task, and the next task, and
  continues while one of them had a transaction open.
- Step 7 touches no recorded transaction, and does nothing for a driver that has lost to another driver. In a directory
  no other driver can be between steps 3 and 5 meanwhile. An object store has no lock: there, another driver between
  these steps would find its transactions missing (see the last point).
- Each micro-batch uses the same transactional ids. Their number is the number of tasks times the attempts of a task.
  Spark numbers attempts anew when it repeats a whole stage. Two attempts of a task may then have the same id, and the
  later attempt aborts the transaction of the earlier one. If Spark nevertheless chooses the earlier attempt, step 3
  notices it, and the micro-batch fails before it is decided. Tasks of two drivers have the same ids, too. If such a
  task begins between steps 3 and 5, a recorded transaction is missing (see the next point).
- If the brokers no longer have a recorded transaction, its rows cannot be written again without writing others twice.
  So `MissingTransactions` stops the query and says what is missing.

Readers with read_committed may see the rows of one transaction before those of another, because EndTxn ends one
transaction at a time.

A batch write is a micro-batch with the number 0, in a checkpoint directory that belongs to this one write.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from typing import NamedTuple, TypeVar

from klamm.client import threads as network
from klamm.client.admin.configs import ConfigEntry, ConfigResource, describe_configs
from klamm.client.admin.transaction_admin import list_transactions
from klamm.client.cluster import ClusterClient
from klamm.client.options import ClientOptions
from klamm.client.producer.prepared_transactions import TransactionGone, end_prepared, fence, require_prepared
from klamm.net.client import ClientError, UnsupportedVersion
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ConfigResourceType
from klamm.spark.options import OptionError, WriteOptions
from klamm.spark.write.transaction_log import Owner, Prepared, Recorded, TransactionLog

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_TIMEOUT = "transaction.max.timeout.ms"
_ITS_OWN = "each query and each batch write needs its own"
_NEW = "give them a directory of their own"
# The coordinators' name for the state of a transaction that has not ended.
OPEN = "Ongoing"
# How many transactions a driver ends at once.
AT_ONCE = 64


class NotWritten(RuntimeError):
    """The write failed before it was decided: none of its rows is visible, and it can be repeated."""


class MissingTransactions(RuntimeError):
    """The brokers no longer have some recorded transactions. Their rows are lost unless the user decides otherwise."""


def last_recorded(options: WriteOptions, *, is_stream: bool) -> int | None:
    """Step 1: the number of the last recorded micro-batch, which is then completely committed. Checks the requirements
    of a write.

    Raises OptionError, MissingTransactions, FilesError when the checkpoint cannot be reached, and KafkaError or
    ClientError.
    """
    _check_timeout(options)
    log = _log(options)
    query = log.query()
    if is_stream and query is None:
        # Without a scheme, Spark may mean another file system than the driver's.
        raise OptionError(
            f"option checkpointLocation: {log.checkpoint.place} has no file metadata, so Spark means another directory;"
            " name it with its scheme (file:///..., s3a://...)"
        )
    if not is_stream and query is not None:
        raise OptionError(f"option checkpointLocation: {log.checkpoint.place} is that of a query; {_ITS_OWN}")
    recorded = log.newest()
    if recorded is None:
        return None
    if recorded.owner.query != query:
        owner = "a batch write" if recorded.owner.query is None else "another query"
        raise OptionError(f"option checkpointLocation: {log.place} has the transactions of {owner}; {_ITS_OWN}")
    if not is_stream:
        _require_same_write(options, log, recorded)
    if not recorded.is_ended:
        with log.adding():
            # Another driver may have completed it meanwhile, and recorded the next one.
            recorded = log.newest() or recorded
            _complete(options, log, recorded)
    return recorded.batch


def transactional_id(options: WriteOptions, partition: int, attempt: int) -> str:
    """The transactional id of an attempt of a task."""
    return f"{options.producer.transactional_id}-{partition}-{attempt}"


def require_newest(batch: int, recorded: int) -> None:
    """Raises NotWritten for the rows of a micro-batch before the last recorded one. The query would either lose these
    rows or write them twice, and it cannot be known which."""
    if batch < recorded:
        raise NotWritten(
            f"micro-batch {batch} is older than micro-batch {recorded}, whose transactions are recorded: the checkpoint"
            " was set back, or another driver runs this query; begin with a new checkpoint"
        )


class Job(NamedTuple):
    """The results of the tasks of a micro-batch.

    - `chosen`: the transactions of the attempts that Spark has chosen; a task without rows has none.
    - `attempts`: the numbers of these attempts, one for each task.
    - `rows`: how many rows all of them had.
    - `is_recorded`: the tasks found a record of the micro-batch, and wrote nothing.
    """

    chosen: Sequence[Prepared]
    attempts: Sequence[int]
    rows: int
    is_recorded: bool


def commit(options: WriteOptions, batch: int, job: Job) -> None:
    """Steps 3 to 7.

    Raises NotWritten, MissingTransactions, FilesError, and KafkaError or ClientError when the brokers did not answer in
    time. The call can be repeated after each of these errors, also by another process. Raises OptionError for a batch
    write with another number of rows than the recorded one.
    """
    chosen = job.chosen
    log = _log(options)
    with log.adding():
        recorded = log.newest()
        if recorded is None or recorded.batch < batch:
            if job.is_recorded:
                raise NotWritten(
                    f"micro-batch {batch} is not written: its record {log.address(batch)} was removed while it ran;"
                    " start it again"
                )
            if not chosen:
                _end_others(options, job.attempts, recorded)
                return
            _each(options.producer.client, chosen, _require_open(batch))
            recorded = log.record(batch, chosen, _owner(options, log), job.rows)
        if recorded.batch > batch:
            abort(options, batch, chosen)
            raise NotWritten(
                f"micro-batch {batch} is older than micro-batch {recorded.batch}, which is recorded in {log.place}:"
                " another driver runs this query"
            )
        _complete(options, log, recorded)
        log.remove_before(batch)
        recorded_ones = {each.transaction for each in recorded.transactions}
        lost = [each for each in chosen if each.transaction not in recorded_ones]
        _abort_all(options.producer.client, lost)
        if not lost:
            # Still within `adding`, so no other driver has recorded the transactions that this fences.
            _end_others(options, job.attempts, recorded)
    if job.is_recorded and recorded.owner.query is None:
        _tell_of_earlier_write(log, recorded, job.rows)


def abort(options: WriteOptions, batch: int, chosen: Sequence[Prepared]) -> None:
    """Aborts the transactions of a job that has failed, unless the micro-batch is decided."""
    recorded = _log(options).newest()
    if recorded is None or recorded.batch < batch:
        _abort_all(options.producer.client, chosen)


def _log(options: WriteOptions) -> TransactionLog:
    assert options.checkpoint is not None
    return TransactionLog.at(options.checkpoint)


# -- inside -----------------------------------------------------------------------------------------------------------


def _require_same_write(options: WriteOptions, log: TransactionLog, recorded: Recorded) -> None:
    """Raises OptionError for the checkpoint of another batch write, because this write would write nothing."""
    ids = _ids(options)
    for each in recorded.transactions:
        found = each.transaction.transactional_id
        topics = {topic for topic, _ in each.partitions}
        if ids.fullmatch(found) is None or (options.topic is not None and topics != {options.topic}):
            raise OptionError(f"option checkpointLocation: {log.place} is that of another write ({each}); {_ITS_OWN}")


def _tell_of_earlier_write(log: TransactionLog, recorded: Recorded, rows: int) -> None:
    """Warns that the rows are already written, as when a program that died is run again. Raises OptionError for another
    number of rows, because these are other rows that should be written."""
    before = f"option checkpointLocation: {log.checkpoint.place} is that of a batch write"
    if recorded.rows is not None and recorded.rows != rows:
        raise OptionError(
            f"{before} of {recorded.rows} rows, which are in the topic; of these {rows} rows none is written:"
            f" {_ITS_OWN}"
        )
    logger.warning(
        "%s that is in the topic; these %d rows are not written again. If they are new, %s", before, rows, _NEW
    )


def _owner(options: WriteOptions, log: TransactionLog) -> Owner:
    return Owner(log.query(), network.call(options.producer.client, _cluster_id))


def _complete(options: WriteOptions, log: TransactionLog, recorded: Recorded) -> None:
    """Steps 5 and 6, unless they are done."""
    cluster = _owner(options, log).cluster
    if recorded.owner.cluster != cluster:
        raise OptionError(
            f"option kafka.bootstrap.servers: micro-batch {recorded.batch} is recorded for cluster"
            f" {recorded.owner.cluster}, and these brokers are cluster {cluster}; name those. To write it to these"
            f" brokers, too, remove {log.address(recorded.batch)}"
        )
    if not recorded.is_ended:
        _end(options.producer.client, log, recorded)
        log.note_end(recorded.batch)


def _end(options: ClientOptions, log: TransactionLog, recorded: Recorded) -> None:
    """Step 5: commits every recorded transaction that the brokers have. Then raises MissingTransactions for those that
    they lack."""
    gone: list[Prepared] = []

    async def end(client: ClusterClient, each: Prepared) -> None:
        try:
            await end_prepared(client, each.transaction, commit=True)
        except TransactionGone:
            gone.append(each)

    _each(options, recorded.transactions, end)
    if gone:
        count, batch = len(recorded.transactions), recorded.batch
        lost = "; ".join(map(str, sorted(gone)))
        twice = f", and the rows of the other {count - len(gone)} a second time" if len(gone) < count else ""
        raise MissingTransactions(
            f"{len(gone)} of the {count} prepared transactions of micro-batch {batch} can no longer be committed: the"
            " brokers aborted them after transaction.timeout.ms, or another producer has their transactional ids."
            f" Missing are the rows of {lost}. To continue without these rows, make an empty file"
            f" {log.ended_address(batch)}. To write micro-batch {batch} again{twice}, remove {log.address(batch)}"
        )


def _require_open(batch: int) -> Callable[[ClusterClient, Prepared], Awaitable[None]]:
    async def require(client: ClusterClient, each: Prepared) -> None:
        try:
            await require_prepared(client, each.transaction, each.partitions[0])
        except TransactionGone as error:
            raise NotWritten(
                f"micro-batch {batch} is not written, and nothing of it is visible: {error.message}. Start it again; if"
                " it takes longer than kafka.transaction.timeout.ms, raise that"
            ) from None

    return require


def _abort_all(options: ClientOptions, losers: Sequence[Prepared]) -> None:
    """Aborts transactions, so that readers need not wait for their timeout. They never become visible in any case."""

    async def end(client: ClusterClient, each: Prepared) -> None:
        try:
            await end_prepared(client, each.transaction, commit=False)
        except (KafkaError, ClientError) as error:
            logger.info("%s was not aborted: %s", each, error)

    _each(options, losers, end)


def _end_others(options: WriteOptions, attempts: Sequence[int], recorded: Recorded | None) -> None:
    """Step 7: ends open transactions that are not recorded, and fences their producers.

    Until then, later records are hidden from read_committed. The next micro-batch repeats steps that fail here.
    """
    winners = set() if recorded is None else {each.transaction.transactional_id for each in recorded.transactions}
    # An earlier attempt may also begin later.
    earlier = [
        [transactional_id(options, task, each)] for task, number in enumerate(attempts) for each in range(number)
    ]
    others = network.call(options.producer.client, lambda client: _open_ids(client, options))
    chains: list[Iterable[str]] = [*earlier, *([each] for each in others or ())]
    if others is None:
        chains += [_from_attempt(options, task, number + 1) for task, number in enumerate(attempts)]
        chains.append(transactional_id(options, task, 0) for task in count(len(attempts)))

    async def fence_each(client: ClusterClient, chain: Iterable[str]) -> None:
        for each in chain:
            if each in winners:
                continue
            try:
                if not await fence(client, each, options.producer.transaction_timeout_ms):
                    return
            except (KafkaError, ClientError) as error:
                logger.info("the producer with the transactional id %s was not fenced: %s", each, error)
                return

    _each(options.producer.client, chains, fence_each)


def _from_attempt(options: WriteOptions, task: int, attempt: int) -> Iterator[str]:
    return (transactional_id(options, task, number) for number in count(attempt))


async def _open_ids(client: ClusterClient, options: WriteOptions) -> list[str] | None:
    """The write's transactional ids with an open transaction; None if the brokers do not list them."""
    ids = _ids(options)
    try:
        listed = await list_transactions(client, states=[OPEN])
    except UnsupportedVersion:
        return None
    except (KafkaError, ClientError) as error:
        logger.info("the open transactions of %s were not found: %s", options.producer.transactional_id, error)
        return []
    return [each.transactional_id for each in listed if ids.fullmatch(each.transactional_id)]


def _ids(options: WriteOptions) -> re.Pattern[str]:
    """A pattern for the transactional ids of all attempts of all tasks."""
    return re.compile(rf"{re.escape(str(options.producer.transactional_id))}-\d+-\d+", re.ASCII)


def _each(options: ClientOptions, items: Sequence[T], work: Callable[[ClusterClient, T], Awaitable[None]]) -> None:
    """Does the work for all items, several at a time. Raises the first error after all have ended."""

    async def run(client: ClusterClient) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(item: T) -> None:
            async with limit:
                await work(client, item)

        results = await asyncio.gather(*map(one, items), return_exceptions=True)
        for error in results:
            if error is not None:
                raise error

    if items:
        network.call(options, run)


@cache
def _check_timeout(options: WriteOptions) -> None:
    """Raises OptionError for a timeout above the brokers' maximum, which they would refuse. A lower timeout is never
    chosen silently, because a prepared transaction has to outlive a restart of the driver."""
    wanted_ms = options.producer.transaction_timeout_ms
    for resource, configs in network.call(options.producer.client, _max_timeouts).items():
        # If the user may not see the configs, the first transaction reports the problem.
        entry = None if isinstance(configs, KafkaError) else configs.get(MAX_TIMEOUT)
        if entry is not None and entry.value is not None and wanted_ms > int(entry.value):
            raise OptionError(
                f"option kafka.transaction.timeout.ms is {wanted_ms}; broker {resource.name} allows at most"
                f" {entry.value} ({MAX_TIMEOUT})"
            )


async def _cluster_id(client: ClusterClient) -> str | None:
    await client.refresh_metadata_once(())
    return client.metadata.cluster_id


async def _max_timeouts(client: ClusterClient) -> Mapping[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
    await client.refresh_metadata_once(())
    brokers = [ConfigResource(ConfigResourceType.BROKER, str(broker)) for broker in sorted(client.metadata.brokers)]
    return await describe_configs(client, brokers, [MAX_TIMEOUT])
