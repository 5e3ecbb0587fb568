"""An archive as a Delta table, made from the archive's own files by the package `deltalake`. No record is written
twice.

The table is the archive's directory `data`, and its log is `data/_delta_log`. The archive's commit log stays the truth.
`publish` adds the files that the commit log names and the table lacks, in one commit. A transaction identifier in this
commit says up to which record the table has the log. So `publish` also adds the files of a program that was killed
before, or that did not want a table. A table that was lost or damaged may be deleted, and is then made again.

What must stay true:
- The files of a record are in the table all together and once. `deltalake` accepts a transaction version that the table
  already has. So the version is read from the same snapshot of the table on which the commit is based, and of two
  programs that add the same records one fails.
- In a directory only the program that holds the archive's lock publishes. In an object store several programs may. The
  store refuses all but one of them, because deltalake creates the files of its log by conditional puts, too.

Source: PROTOCOL.md of Delta Lake, "Transaction Identifiers", "Per-file Statistics".
"""

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from klamm.spark import schema
from klamm.spark.files import Files
from klamm.spark.pipelines.commit_log import DATA, ArchivedRange, ArchiveError, CommitLog

if TYPE_CHECKING:
    from deltalake.transaction import AddAction

# The table is within the archive, so the id need not distinguish archives.
APPLICATION_ID = "klamm.archive"
# Each failure is the success of another program.
_ATTEMPTS = 5


def check_deltalake() -> None:
    """Raises ArchiveError when the package is not installed."""
    try:
        import deltalake  # noqa: F401
    except ImportError as error:
        raise ArchiveError(
            f"Delta tables need deltalake ({error}); install it with pip install 'klamm[delta]'"
        ) from None


def publish(log: CommitLog) -> None:
    """Adds the log's records that the table lacks; creates a missing table.

    Raises ArchiveError when the table does not fit the log, or cannot be read or written.
    """
    # The package is an extra, and takes a while to load.
    from deltalake.exceptions import DeltaError

    for attempt in range(_ATTEMPTS):
        try:
            _publish(log)
            return
        except (DeltaError, OSError) as error:
            # In an object store another program may have been first, also in creating the table.
            if isinstance(error, DeltaError) and not log.files.is_locked and attempt < _ATTEMPTS - 1:
                continue
            raise ArchiveError(f"the Delta table {log.files.address(DATA)}: {log.files.reason(error)}") from None


def _publish(log: CommitLog) -> None:
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.exceptions import TableNotFoundError
    from deltalake.transaction import create_table_with_add_actions

    place, options = log.files.address(DATA), log.files.storage_options
    columns = Schema.from_arrow(schema.schema(schema.ALL_COLUMNS))
    table: DeltaTable | None
    try:
        table = DeltaTable(place, storage_options=options)
    except TableNotFoundError:
        table = None
    published = -1 if table is None else table.transaction_version(APPLICATION_ID)
    if published is None:
        raise ArchiveError(f"the Delta table {place} was not made by this archive")
    if published >= log.next_number:
        raise ArchiveError(
            f"the Delta table {place} has record {published} of the archive, whose next one is"
            f" {log.next_number}; delete its _delta_log, and the next run makes it again"
        )
    added = [_add_action(log.files, each) for each in log.ranges_from(published + 1) if each.file is not None]
    if not added:
        return
    properties = CommitProperties(app_transactions=[Transaction(APPLICATION_ID, log.next_number - 1)])
    if table is None:
        # The table is append-only. Users can delete rows in a copy.
        create_table_with_add_actions(
            place,
            columns,
            added,
            configuration={"delta.appendOnly": "true"},
            storage_options=options,
            commit_properties=properties,
        )
    else:
        table.create_write_transaction([*added], "append", columns, commit_properties=properties)


def _add_action(files: Files, archived: ArchivedRange) -> "AddAction":
    from deltalake.transaction import AddAction

    path = str(archived.file)
    first, last = _offsets(files, path)
    known = {"topic": archived.topic, "partition": archived.partition}
    statistics = {
        "numRecords": archived.rows,
        "minValues": {**known, "offset": first},
        "maxValues": {**known, "offset": last},
        "nullCount": {"topic": 0, "partition": 0, "offset": 0},
    }
    return AddAction(
        path=path.removeprefix(f"{DATA}/"),
        size=archived.size_bytes,
        partition_values={},
        modification_time=files.status(path).modified_ms,
        data_change=True,
        stats=json.dumps(statistics),
    )


def _offsets(files: Files, path: str) -> tuple[int, int]:
    """The first and the last offset in a file. The range may be larger, because offsets may have no record."""
    metadata = pq.read_metadata(files.open(path))
    number = metadata.schema.to_arrow_schema().get_field_index("offset")
    first, last = (metadata.row_group(group).column(number) for group in (0, metadata.num_row_groups - 1))
    return first.statistics.min, last.statistics.max
