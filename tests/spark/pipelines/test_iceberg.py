"""An archive as an Iceberg table: the files of each commit are in it once, also when two programs add them."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.utils.config import Config

from klamm.spark.files import files_at
from klamm.spark.pipelines.archive import archive
from klamm.spark.pipelines.commit_log import ArchiveError, CommitLog
from klamm.spark.pipelines.iceberg import IcebergTable
from klamm.testing.cluster import Cluster
from support.spark.archiving import as_rows, elsewhere, in_topic, one_process
from support.spark.producing import numbered, produce

MakeTopic = Callable[..., str]
NAME = "lake.kafka.records"


@pytest.fixture(autouse=True)
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog in SQLite, as a user configures it."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    # pyiceberg reads the environment when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    (tmp_path / "warehouse").mkdir()


def run(cluster: Cluster, topic: str, directory: Path, **more: Any) -> int:
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    spark: Any = one_process()
    return archive(spark, str(directory), options, offsets_per_file=10, ranges_per_commit=2, **more).records


def table() -> Any:
    return load_catalog("lake").load_table("kafka.records")


def in_table() -> list[tuple[Any, ...]]:
    # pyiceberg's reader makes empty lists of nulls.
    rows = table().scan().to_arrow().to_pylist()
    return as_rows({**row, "headers": row["headers"] or None} for row in rows)


def test_the_table_catches_up(cluster: Cluster, topic: MakeTopic, tmp_path: Path) -> None:
    name, directory = topic(partitions=2), tmp_path / "archive"
    produce(
        cluster.bootstrap,
        name,
        [*numbered(25), *numbered(5, partition=1), {"value": None, "key": None, "headers": [("h", None)]}],
    )
    run(cluster, name, directory)
    run(cluster, name, directory, iceberg=NAME)
    assert in_table() == in_topic(cluster, name)
    produce(cluster.bootstrap, name, numbered(30))
    for _ in range(2):
        run(cluster, name, directory, iceberg=NAME)
        assert in_table() == in_topic(cluster, name)
    # The second run had nothing to add; the commits of the first two had.
    assert len(table().metadata.snapshots) == 3
    plan = table().scan(f"partition = 1 and topic = '{name}'").plan_files()
    assert len(list(plan)) == 1


def add(cluster: Cluster, topic: MakeTopic, directory: Path) -> tuple[str, CommitLog]:
    name = topic()
    produce(cluster.bootstrap, name, numbered(25))
    run(cluster, name, directory)
    return name, CommitLog(files_at(str(directory)))


def test_another_program_commits_first(cluster: Cluster, topic: MakeTopic, tmp_path: Path) -> None:
    """Both add the same files; pyiceberg alone would add them twice."""
    name, log = add(cluster, topic, tmp_path / "archive")
    original, others = SqlCatalog.commit_table, []

    def overtaken(catalog: Any, *arguments: Any) -> Any:
        if not others:
            others.append(True)
            IcebergTable(NAME).publish(log)
        return original(catalog, *arguments)

    with patch.object(SqlCatalog, "commit_table", overtaken):
        IcebergTable(NAME).publish(log)
    assert others
    assert in_table() == in_topic(cluster, name)


@pytest.mark.parametrize("is_done", [False, True])
def test_killed_at_a_commit(cluster: Cluster, topic: MakeTopic, tmp_path: Path, is_done: bool) -> None:
    """Between the archive's commit and the table's, or behind both."""
    name, directory = topic(), tmp_path / "archive"
    produce(cluster.bootstrap, name, numbered(25))
    original = SqlCatalog.commit_table

    def killed(catalog: Any, *arguments: Any) -> None:
        if is_done:
            original(catalog, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    with patch.object(SqlCatalog, "commit_table", killed):
        assert elsewhere(lambda: run(cluster, name, directory, iceberg=NAME)) == signal.SIGKILL
    assert len(in_table()) == (20 if is_done else 0)
    run(cluster, name, directory, iceberg=NAME)
    assert in_table() == in_topic(cluster, name)


@pytest.mark.parametrize(
    ("error", "is_done"),
    [
        (CommitFailedException, False),
        (CommitStateUnknownException, False),
        (CommitStateUnknownException, True),
        (ConnectionError, True),
    ],
)
def test_a_commit_whose_answer_is_lost(
    cluster: Cluster, topic: MakeTopic, tmp_path: Path, error: type[Exception], is_done: bool
) -> None:
    name, log = add(cluster, topic, tmp_path / "archive")
    original, failures = SqlCatalog.commit_table, []

    def failing(catalog: Any, *arguments: Any) -> Any:
        if failures:
            return original(catalog, *arguments)
        failures.append(True)
        if is_done:
            original(catalog, *arguments)
        raise error("lost")

    with patch.object(SqlCatalog, "commit_table", failing):
        IcebergTable(NAME).publish(log)
    assert in_table() == in_topic(cluster, name)
    with (
        patch.object(SqlCatalog, "load_table", side_effect=ConnectionError("no answer\nmore")),
        pytest.raises(ArchiveError, match=r"the Iceberg table lake.kafka.records: no answer$"),
    ):
        IcebergTable(NAME).publish(log)


def test_a_table_that_does_not_fit(cluster: Cluster, topic: MakeTopic, tmp_path: Path) -> None:
    name, log = add(cluster, topic, tmp_path / "archive")
    IcebergTable(NAME).publish(log)

    def refused(reason: str, **properties: str) -> None:
        with table().transaction() as transaction:
            transaction.set_properties(properties)
        with pytest.raises(ArchiveError, match=reason):
            IcebergTable(NAME).publish(log)

    refused("has record 99 of the archive, whose next one is 3; drop the table", **{"klamm.archive.record": "99"})
    refused("was not made by the archive .*/archive$", **{"klamm.archive.record": "x"})
    refused("was not made by the archive .*/archive, but by elsewhere", **{"klamm.archive.place": "elsewhere"})
    refused("has commit.retry.num-retries=4; an archive's table needs 0", **{"commit.retry.num-retries": "4"})
    load_catalog("lake").drop_table("kafka.records")
    load_catalog("lake").create_table("kafka.records", pa.schema([("x", pa.int32())]))
    refused("commit.retry.num-retries=None")
    load_catalog("lake").drop_table("kafka.records")
    IcebergTable(NAME).publish(log)
    assert in_table() == in_topic(cluster, name)


@pytest.mark.parametrize("name", ["", "lake", "lake.records", "lake..records", "lake.kafka."])
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(ArchiveError, match=r"does not name an Iceberg table; the form is CATALOG.NAMESPACE.TABLE"):
        IcebergTable(name)


def test_a_password_in_the_uri_of_a_catalog_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__OTHER__URI", "unknown://user:hunter2@host/database")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    with pytest.raises(ArchiveError, match=r"catalog other: .* unknown://host/database") as failure:
        IcebergTable("other.kafka.records")
    assert "hunter2" not in "".join(traceback.format_exception(failure.value))


def test_a_catalog_that_is_none() -> None:
    with pytest.raises(ArchiveError, match="the Iceberg catalog other: "):
        IcebergTable("other.kafka.records")
    with (
        patch.dict(sys.modules, {"pyiceberg.catalog": None}),
        pytest.raises(ArchiveError, match=r"Iceberg tables need pyiceberg .*; install it with .*klamm\[iceberg\]"),
    ):
        IcebergTable(NAME)
