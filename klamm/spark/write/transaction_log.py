"""The transactions of a write in its checkpoint: which transactions were prepared, and whether they have ended.

    <checkpoint>/transactions/batches/00000000000000000017.json     the transactions of micro-batch 17
    <checkpoint>/transactions/batches/00000000000000000017.ended    all of them are committed
    <checkpoint>/transactions/lock                                  in a directory, held by the driver that commits

`transactions.py` has the protocol.

What must stay true:
- A file exists as a whole or not at all, is durable, and is never replaced.
- The files of the newest recorded micro-batch are kept. They show which micro-batches are older.
"""

import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from klamm.client.producer.transaction_requests import PreparedTransaction
from klamm.protocol.vocabulary import PartitionKey
from klamm.spark.files import Files, FilesError, files_at
from klamm.spark.options import OptionError

FORMAT_VERSION: Final = 1
_TRANSACTIONS, _BATCHES = "transactions", "batches"
_PREPARED, _ENDED = "json", "ended"
_NAME = re.compile(rf"{_BATCHES}/(?P<batch>[0-9]{{20}})\.(?P<kind>{_PREPARED}|{_ENDED})")
# Spark makes this file in the checkpoint of a query before the first micro-batch.
_METADATA = "metadata"


class Prepared(NamedTuple):
    """A prepared transaction, and the partitions that it writes to."""

    transaction: PreparedTransaction
    partitions: tuple[PartitionKey, ...]

    def __str__(self) -> str:
        where = ", ".join(f"{topic}-{number}" for topic, number in self.partitions)
        transactional_id, producer_id, epoch = self.transaction
        return f"{transactional_id} (producer id {producer_id}, epoch {epoch}, partitions {where})"


class Recorded(NamedTuple):
    """A micro-batch that is decided: exactly these transactions are committed.

    `rows` is the number of their rows; None in a record of an earlier version.
    """

    batch: int
    transactions: tuple[Prepared, ...]
    is_ended: bool
    owner: "Owner"
    rows: int | None = None


class Owner(NamedTuple):
    """The owner of transactions: the id of Spark's query (None for a batch write), and the brokers' cluster id."""

    query: str | None
    cluster: str | None


@dataclass(frozen=True, slots=True)
class TransactionLog:
    """The records in a checkpoint."""

    checkpoint: Files
    files: Files

    @classmethod
    def at(cls, checkpoint: str) -> "TransactionLog":
        """The log of a checkpoint in a directory, or at the URL of an object store. Raises OptionError."""
        url = urlsplit(checkpoint)
        place = unquote(url.path) if url.scheme == "file" else checkpoint
        try:
            if url.scheme != "file" and ":/" in checkpoint and "://" not in checkpoint:
                raise FilesError(f"{checkpoint}: files cannot be kept in {url.scheme}:")
            return cls(files_at(place), files_at(f"{place.rstrip('/')}/{_TRANSACTIONS}"))
        except FilesError as error:
            raise OptionError(
                f"option checkpointLocation, where kafka.transactional.id keeps its state: {error}"
            ) from None

    @property
    def place(self) -> str:
        return self.files.place

    def query(self) -> str | None:
        """The id of the query with this checkpoint; None if it is not a query's checkpoint. Raises FilesError."""
        try:
            return str(json.loads(self.checkpoint.read(_METADATA))["id"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise FilesError(f"{self.checkpoint.address(_METADATA)} has no id of a query") from None

    def adding(self) -> AbstractContextManager[None]:
        """In this context the driver may add records. In a directory no other driver can add records meanwhile."""
        return self.files.adding(_BATCHES)

    def newest(self) -> Recorded | None:
        """The last recorded micro-batch."""
        names = [name for path in self.files.paths(_BATCHES) if (name := _NAME.fullmatch(path))]
        batch = max((int(name["batch"]) for name in names if name["kind"] == _PREPARED), default=None)
        if batch is None:
            return None
        is_ended = any(int(name["batch"]) == batch and name["kind"] == _ENDED for name in names)
        return self._read(batch)._replace(is_ended=is_ended)

    def record(self, batch: int, transactions: Sequence[Prepared], owner: Owner, rows: int) -> Recorded:
        """Writes the record, unless one exists already. Returns the newest record."""
        content = {
            "version": FORMAT_VERSION,
            "batch": batch,
            "query": owner.query,
            "cluster": owner.cluster,
            "rows": rows,
            "transactions": [[*each.transaction, each.partitions] for each in transactions],
        }
        self.files.create(_path(batch, _PREPARED), json.dumps(content).encode())
        newest = self.newest()
        assert newest is not None
        return newest

    def note_end(self, batch: int) -> None:
        """Notes that all transactions of the micro-batch are committed."""
        self.files.create(_path(batch, _ENDED), b"")

    def remove_before(self, batch: int) -> None:
        """Removes the files of older micro-batches, and unfinished files of drivers that died."""
        for path in self.files.paths(_BATCHES):
            if path < _path(batch, ""):
                self.files.remove(path)

    def address(self, batch: int) -> str:
        return self.files.address(_path(batch, _PREPARED))

    def ended_address(self, batch: int) -> str:
        return self.files.address(_path(batch, _ENDED))

    def _read(self, batch: int) -> Recorded:
        try:
            content = json.loads(self.files.read(_path(batch, _PREPARED)))
            if content["version"] == FORMAT_VERSION and content["batch"] == batch:
                transactions = tuple(
                    Prepared(PreparedTransaction(*transaction), tuple((topic, number) for topic, number in partitions))
                    for *transaction, partitions in content["transactions"]
                )
                owner = Owner(content["query"], content["cluster"])
                return Recorded(batch, transactions, False, owner, content.get("rows"))
        except (ValueError, KeyError, TypeError):
            pass
        raise FilesError(f"{self.address(batch)} is not a record of transactions in version {FORMAT_VERSION}")


def _path(batch: int, kind: str) -> str:
    return f"{_BATCHES}/{batch:020}.{kind}"
