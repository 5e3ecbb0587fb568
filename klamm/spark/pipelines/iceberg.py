"""An archive as an Iceberg table, made from the archive's own files by the package `pyiceberg`.

The table is in a catalog that pyiceberg's configuration names (~/.pyiceberg.yaml, PYICEBERG_CATALOG__...). The catalog
decides where the table's metadata are; the data files are those of the archive. The archive's commit log stays the
truth. A property of the table says up to which record the table has the log, and changes in the same commit that adds
the files. So `publish` also adds the files of a program that was killed before, or that did not want a table.

What must stay true:
- The files of a record are in the table all together and once. A commit is refused when another commit was first, and
  then the property is read again. By default pyiceberg would append the files after the other commit, so the table has
  `commit.retry.num-retries` 0.
- The table never deletes the archive's files, because it has `gc.enabled` false.

Source: Iceberg's table spec, "Optimistic Concurrency"; configuration of tables ("gc.enabled").
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from klamm.spark import schema
from klamm.spark.files import Files
from klamm.spark.pipelines.commit_log import ArchiveError, CommitLog

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

# The properties with the number of the last record that the table has, and with its archive.
_RECORD: Final = "klamm.archive.record"
_PLACE: Final = "klamm.archive.place"
_RETRIES: Final = "commit.retry.num-retries"
# The files have statistics only for these columns.
_STATISTICS: Final = {
    "write.metadata.metrics.default": "none",
    **{f"write.metadata.metrics.column.{name}": "full" for name in ("topic", "partition", "offset", "timestamp")},
}
# Each failure is the success of another program.
_ATTEMPTS = 20


class IcebergTable:
    """The table for an archive's records, named CATALOG.NAMESPACE.TABLE.

    Raises ArchiveError when the package is not installed, or the catalog cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        catalog, _, self._identifier = name.partition(".")
        if not all(self._identifier.split(".")) or "." not in self._identifier:
            raise ArchiveError(f"{name!r} does not name an Iceberg table; the form is CATALOG.NAMESPACE.TABLE")
        try:
            from pyiceberg.catalog import load_catalog
        except ImportError as error:
            raise ArchiveError(
                f"Iceberg tables need pyiceberg ({error}); install it with pip install 'klamm[iceberg]'"
            ) from None
        self._name = name
        try:
            self._catalog: Catalog = load_catalog(catalog)
        except Exception as error:
            # A catalog raises the errors of its own libraries. Some of them show its URI.
            raise ArchiveError(f"the Iceberg catalog {catalog}: {_line(error)}") from None

    def publish(self, log: CommitLog) -> None:
        """Adds the log's records that the table lacks; creates a missing table.

        Raises ArchiveError when the table belongs to another archive, and when it cannot be read or written.
        """
        from pyiceberg.exceptions import CommitFailedException

        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._add(log)
                return
            except ArchiveError:
                raise
            except CommitFailedException as error:
                failure = error
            except Exception as error:
                # If only the answer was lost, the next attempt finds the records in the table.
                if failure is not None and not isinstance(failure, CommitFailedException):
                    break
                failure = error
        raise ArchiveError(f"the Iceberg table {self._name}: {_line(failure)}")

    def _add(self, log: CommitLog) -> None:
        """Adds the missing records in one commit."""
        table = self._open(log.files)
        published = self._published(table.properties, log)
        files = [log.files.address(each.file) for each in log.ranges_from(published + 1) if each.file is not None]
        if files:
            with table.transaction() as transaction:
                transaction.add_files([_url(file) for file in files], check_duplicate_files=False)
                transaction.set_properties({_RECORD: str(log.next_number - 1)})

    def _open(self, files: Files) -> "Table":
        namespace, _, _ = self._identifier.rpartition(".")
        self._catalog.create_namespace_if_not_exists(namespace)
        table = self._catalog.create_table_if_not_exists(
            self._identifier,
            schema.schema(schema.ALL_COLUMNS),
            properties={_PLACE: files.place, _RECORD: "-1", _RETRIES: "0", "gc.enabled": "false", **_STATISTICS},
        )
        if table.properties.get(_RETRIES) != "0":
            raise ArchiveError(
                f"the Iceberg table {self._name} has {_RETRIES}={table.properties.get(_RETRIES)}; an archive's table"
                " needs 0, otherwise two programs may add the same files"
            )
        return table

    def _published(self, properties: Mapping[str, str], log: CommitLog) -> int:
        """The number of the last record that the table has."""
        place, number = properties.get(_PLACE), properties.get(_RECORD, "")
        if place != log.files.place or not number.lstrip("-").isdecimal():
            raise ArchiveError(
                f"the Iceberg table {self._name} was not made by the archive {log.files.place}"
                + ("" if place is None else f", but by {place}")
            )
        if int(number) >= log.next_number:
            raise ArchiveError(
                f"the Iceberg table {self._name} has record {number} of the archive, whose next one is"
                f" {log.next_number}; drop the table, and the next run makes it again"
            )
        return int(number)


def _url(address: str) -> str:
    return address if "://" in address else f"file://{address}"


def _line(error: Exception | None) -> str:
    """The first line of the error, without passwords in URIs."""
    return re.sub(r"//[^/\s]*@", "//", str(error).strip().partition("\n")[0] or repr(error))
