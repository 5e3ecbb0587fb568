"""The record of a write's transactions, in a directory and in an object store."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.client.producer.transaction_requests import PreparedTransaction
from klamm.spark.files import FilesError, files_at
from klamm.spark.options import OptionError
from klamm.spark.write.transaction_log import Owner, Prepared, Recorded, TransactionLog
from support.spark.object_store import BUCKET, LOSE_ANSWER, Store, running_store

ONE = Prepared(PreparedTransaction("x-0-0", 2**63 - 1, 32767), (("t", 0), ("ü", 2**31 - 1)))
TWO = Prepared(PreparedTransaction("x-1-3", 0, 0), (("t", 1),))
OWNER = Owner("a query", "a cluster")


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with running_store() as running:
        yield running


@pytest.fixture(params=["directory", "object store"])
def log(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> TransactionLog:
    if request.param == "directory":
        return TransactionLog.at(str(tmp_path))
    url = f"s3://{BUCKET}/{tmp_path.name}"
    return TransactionLog(files_at(url, store.options), files_at(f"{url}/transactions", store.options))


def test_the_first_record_of_a_micro_batch_stays(log: TransactionLog) -> None:
    assert log.newest() is None
    with log.adding():
        assert log.record(7, [ONE, TWO], OWNER, 9) == Recorded(7, (ONE, TWO), is_ended=False, owner=OWNER, rows=9)
        assert log.record(7, [TWO], OWNER, 9) == Recorded(7, (ONE, TWO), is_ended=False, owner=OWNER, rows=9)
        log.note_end(7)
        log.note_end(7)
    assert log.newest() == Recorded(7, (ONE, TWO), is_ended=True, owner=OWNER, rows=9)


def test_files_of_older_micro_batches_are_removed(log: TransactionLog) -> None:
    with log.adding():
        for batch in (2**63 - 2, 2**63 - 1):
            log.record(batch, [ONE], OWNER, 9)
            log.note_end(batch)
        assert len(log.files.paths("batches")) == 4
        log.remove_before(2**63 - 1)
    assert log.newest() == Recorded(2**63 - 1, (ONE,), is_ended=True, owner=OWNER, rows=9)
    assert len(log.files.paths("batches")) == 2


def test_a_driver_whose_micro_batch_is_older_sees_the_newer_one(log: TransactionLog) -> None:
    with log.adding():
        log.record(3, [ONE], OWNER, 9)
        log.remove_before(3)
        assert log.record(2, [TWO], OWNER, 9).batch == 3


def test_an_answer_of_a_store_that_is_lost(store: Store, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/{tmp_path.name}"
    log = TransactionLog(files_at(url, store.options), files_at(f"{url}/transactions", store.options))
    lost: list[str] = []
    store.rule = lambda request: LOSE_ANSWER if request.puts("json") and not lost.append(request.path) else None
    try:
        with log.adding():
            assert log.record(0, [ONE], OWNER, 9) == Recorded(0, (ONE,), is_ended=False, owner=OWNER, rows=9)
    finally:
        store.rule = lambda request: None
    assert lost


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"version": 2, "batch": 5, "transactions": []}',
        b'{"version": 1, "batch": 4}',
        b'{"version": 1, "batch": 5, "transactions": []}',
        b"\xff",
    ],
)
def test_a_file_that_is_no_record(tmp_path: Path, content: bytes) -> None:
    """Damage is never taken for a micro-batch without transactions."""
    log = TransactionLog.at(str(tmp_path))
    with log.adding():
        log.files.create(f"batches/{5:020}.json", content)
    with pytest.raises(FilesError, match=r"00005\.json is not a record of transactions in version 1"):
        log.newest()


def test_a_file_that_a_driver_has_not_finished_is_no_record(tmp_path: Path) -> None:
    log = TransactionLog.at(str(tmp_path))
    with log.adding():
        log.record(1, [ONE], OWNER, 9)
        (tmp_path / "transactions" / "batches" / f"{2:020}.json.abc.tmp").write_bytes(b"{")
        (tmp_path / "transactions" / "batches" / f"{0:020}.json.abc.tmp").write_bytes(b"{")
        log.remove_before(1)
    assert log.newest() == Recorded(1, (ONE,), is_ended=False, owner=OWNER, rows=9)
    assert sorted(path.partition(".")[2] for path in log.files.paths("batches")) == ["json", "json.abc.tmp"]


def test_places_as_spark_names_them(tmp_path: Path) -> None:
    place = tmp_path / "a b"
    for name in (str(place), f"{place}/", f"file:{place}", f"file://{str(place).replace(' ', '%20')}"):
        assert TransactionLog.at(name).place == f"{place}/transactions"
    assert TransactionLog.at("relative").place == f"{os.getcwd()}/relative/transactions"
    with pytest.raises(OptionError, match=r"files cannot be kept in hdfs"):
        TransactionLog.at("hdfs:/checkpoints")
