"""What klamm does where Linux's own calls are missing: they are taken away one by one, and all at once."""

import ctypes
import errno
import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from klamm.base import system_environment
from klamm.base.environment import File
from klamm.base.system_environment import SystemEnvironment, SystemFileSystem, open_file_limit, raise_open_file_limit
from support.paths import TESTS

# It stops with more logs than are synced one by one where syncfs exists.
CLUSTER = """
import confluent_kafka
from klamm.testing import Cluster

with Cluster(brokers=1, properties={"log.preallocate": "true"}) as cluster:
    cluster.create_topic("t", partitions=20)
    written = [str(number).encode() for number in range(100)]
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for number, value in enumerate(written):
        producer.produce("t", value, partition=number % 20)
    assert producer.flush(120) == 0
    cluster.restart(0)
    options = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(options | {"log_level": 0})
    consumer.subscribe(["t"])
    assert sorted((consumer.poll(30).value() for _ in written), key=int) == written
    consumer.close()
    print(cluster.log(0))
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    file = SystemFileSystem().open(str(tmp_path / "file"), create=True)
    file.write(0, b"content")
    yield file
    file.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that make files durable, on a system without fdatasync."""
    calls: list[str] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync"))
    return calls


def test_without_rwf_nowait_a_read_goes_to_the_disk(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "RWF_NOWAIT")
    assert file.read_cached(0, 7) is None
    assert file.read(0, 7) == b"content"


def test_without_fallocate_a_file_stays_as_it_is(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace())
    with pytest.raises(OSError, match="this system has no fallocate") as caught:
        file.allocate(1000)
    assert caught.value.errno == errno.EOPNOTSUPP
    assert file.size() == 7


def test_without_fdatasync_files_are_synced_by_fsync(file: File, synced: list[str]) -> None:
    file.sync()
    assert synced == ["fsync"]


def test_on_macos_files_and_directories_reach_the_disk(
    file: File, synced: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command: synced.append(f"fcntl {command}"))
    file.sync()
    SystemFileSystem().sync_directory(str(tmp_path))
    assert synced == ["fcntl 51", "fcntl 51"]


def test_without_syncfs_each_file_is_to_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, release in (("Darwin", "23.0.0"), ("Linux", "5.4.0-generic")):
        system = SimpleNamespace(sysname=name, release=release)
        monkeypatch.setattr(os, "uname", lambda system=system: system)
        assert not SystemFileSystem().sync_file_system([str(tmp_path)])


def test_without_proc_memory_and_boot_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(system_environment, "open", no_file, raising=False)
    machine = SystemEnvironment()
    assert (machine.memory_bytes, machine.background_memory_bytes, machine.boot_id()) == (0, 0, None)
    machine.close()


@pytest.mark.parametrize(("soft", "raised"), [(256, 10_240), (20_000, 20_000)])
def test_where_the_hard_limit_of_open_files_is_refused_a_lower_one_is_set(
    soft: int, raised: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [soft, 1 << 62]

    def refuse(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits[:] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_open_file_limit()
    assert open_file_limit() == raised
    assert limits[1] == 1 << 62


def test_a_broker_without_all_of_them_keeps_every_record() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER],
        env=os.environ | {"PYTHONPATH": str(TESTS / "support" / "other_system")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is not preallocated: [Errno 95] this system has no fallocate" in done.stdout
