"""A broker whose disk is full or fails: the documented error, nothing acknowledged is lost, everything else goes on."""

import asyncio
import errno
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.controller.controller import KafkaController
from klamm.protocol import messages
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.replication import replica_manager
from klamm.storage.directories import directory_loader, log_manager
from klamm.znodes.store import KafkaZooKeeper
from support.failing_disk import FailingDisk
from support.one_broker import Client, batch, running, until, values

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


async def produce(client: Client, topic: str, value: bytes, partition: int = 0, **options: Any) -> ErrorCode:
    return ErrorCode((await client.produce(topic, partition, batch(value), **options)).error_code)


async def read_all(client: Client, topic: str, partition: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        result = await client.fetch(topic, partition, len(found))
        assert result.error_code == ErrorCode.NONE
        if not result.records:
            assert len(found) == result.high_watermark
            return found
        found += values(result.records)


async def leaders(client: Client, topic: str) -> dict[int, int]:
    (found,) = (await client.ask(ApiKey.METADATA, topics=topic_names(topic), allow_auto_topic_creation=False)).topics
    return {partition.partition_index: partition.leader_id for partition in found.partitions}


def topic_names(*names: str) -> list[Any]:
    return [messages.request_class(ApiKey.METADATA).MetadataRequestTopic(name=name) for name in names]


# -- no space


@pytest.mark.parametrize("which", ["", ".log", ".index", ".timeindex", ".snapshot", "leader-epoch"])
@pytest.mark.parametrize("flush_messages", ["1", "1000"])
async def test_a_full_disk_refuses_appends_until_there_is_space(
    tmp_path: Path, which: str, flush_messages: str
) -> None:
    disk = FailingDisk()
    async with running(tmp_path, environment=disk) as (cluster, client):
        await client.create_topic("t", segment_bytes="400", index_interval_bytes="0", flush_messages=flush_messages)
        acknowledged = []
        for round in range(2):
            disk.heal()
            for number in range(4):
                acknowledged.append(b"%d-%d" % (round, number) + bytes(100))
                assert await produce(client, "t", acknowledged[-1]) == ErrorCode.NONE
            disk.fill(matching=which)
            for number in range(8):
                code = await produce(client, "t", b"%d-full-%d" % (round, number) + bytes(100))
                assert code in (ErrorCode.NONE, STORAGE_ERROR)
                if code == ErrorCode.NONE:
                    assert which not in ("", ".log")
                    acknowledged.append(b"%d-full-%d" % (round, number) + bytes(100))
                assert await read_all(client, "t") == acknowledged
        disk.heal()
        await cluster.restart_broker()
        client = await cluster.connect()
        assert await read_all(client, "t") == acknowledged
        assert await produce(client, "t", b"after") == ErrorCode.NONE


async def test_sequences_survive_a_full_disk(tmp_path: Path) -> None:
    """What was refused has left no trace in the producer's state: the retry is neither a duplicate nor a gap."""
    disk = FailingDisk()
    async with running(tmp_path, environment=disk) as (_, client):
        await client.create_topic("t")

        async def send(sequence: int) -> tuple[int, int]:
            records = batch(b"%d" % sequence, producer_id=7, producer_epoch=0, base_sequence=sequence)
            result = await client.produce("t", 0, records)
            return result.error_code, result.base_offset

        assert await send(0) == (ErrorCode.NONE, 0)
        disk.fill()
        assert await send(1) == (STORAGE_ERROR, -1)
        assert await send(1) == (STORAGE_ERROR, -1)
        disk.heal()
        assert await send(1) == (ErrorCode.NONE, 1)
        assert await send(1) == (ErrorCode.NONE, 1)
        assert await read_all(client, "t") == [b"0", b"1"]


async def test_a_topic_created_on_a_full_disk_works_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk()
    monkeypatch.setattr(replica_manager, "REOPEN_MIN_MS", 20)
    async with running(tmp_path, environment=disk) as (cluster, client):
        disk.fill(below=str(tmp_path / "data"))
        request = messages.request_class(ApiKey.CREATE_TOPICS)
        topic = request.CreatableTopic(name="t", num_partitions=2, replication_factor=1, assignments=[], configs=[])
        response = await client.ask(ApiKey.CREATE_TOPICS, topics=[topic], timeout_ms=300, validate_only=False)
        # As in Kafka it exists, and it had leaders, until they said that they cannot lead.
        assert response.topics[0].error_code == ErrorCode.NONE
        while await leaders(client, "t") != {0: -1, 1: -1}:
            pass
        assert await produce(client, "t", b"a") == STORAGE_ERROR
        assert not (tmp_path / "data" / "t-0").exists()
        disk.heal()
        while await produce(client, "t", b"a") != ErrorCode.NONE:
            pass
        while await leaders(client, "t") != {0: 0, 1: 0}:
            pass
        assert await read_all(client, "t") == [b"a"]
        await cluster.restart_broker()
        assert await read_all(await cluster.connect(), "t") == [b"a"]


async def test_a_leader_epoch_that_cannot_be_written_down_waits_for_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk()
    monkeypatch.setattr(replica_manager, "REOPEN_MIN_MS", 20)
    async with running(tmp_path, environment=disk) as (cluster, client):
        await client.create_topic("t")
        assert await produce(client, "t", b"a") == ErrorCode.NONE
        disk.fill(matching="leader-epoch")
        await cluster.begin_leader_epoch(client, "t", 1, STORAGE_ERROR)
        assert await produce(client, "t", b"b") == STORAGE_ERROR
        # It is tried again, and is not said to work before it does: each time it would have another leader epoch.
        failures = disk.failures
        await until(lambda: disk.failures >= failures + 3)
        assert await leaders(client, "t") == {0: 0}
        disk.heal()
        while await produce(client, "t", b"b") != ErrorCode.NONE:
            pass
        assert await read_all(client, "t") == [b"a", b"b"]


async def test_a_new_topic_waits_for_space_beside_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What never had a log may get one on the disk that works; what may have one on the other must wait for that."""
    disk = FailingDisk()
    monkeypatch.setattr(replica_manager, "REOPEN_MIN_MS", 20)
    one, two = tmp_path / "one", tmp_path / "two"
    async with running(tmp_path, environment=disk, log_dirs=f"{one},{two}") as (_, client):
        await client.create_topic("t", partitions=2)
        (broken,) = [int(path.name[2:]) for path in one.glob("t-*")]
        disk.fail(errno.EIO, below=str(one))
        assert await produce(client, "t", b"a", broken) == STORAGE_ERROR
        while await leaders(client, "t") != {broken: -1, 1 - broken: 0}:
            pass
        disk.fill(below=str(two))
        await client.create_topic("u")
        assert await produce(client, "u", b"a") == STORAGE_ERROR
        disk.heal()
        while await produce(client, "u", b"a") != ErrorCode.NONE:
            pass
        assert await leaders(client, "t") == {broken: -1, 1 - broken: 0}
        assert await produce(client, "t", b"a", broken) == STORAGE_ERROR


async def test_a_topic_goes_to_the_directory_that_has_space(tmp_path: Path) -> None:
    disk = FailingDisk()
    one, two = tmp_path / "one", tmp_path / "two"
    async with running(tmp_path, environment=disk, log_dirs=f"{one},{two}") as (cluster, client):
        disk.fill(below=str(one))
        await client.create_topic("t", partitions=2)
        assert sorted(path.name for path in two.glob("t-*")) == ["t-0", "t-1"]
        assert list(one.glob("t-*")) == []
        assert await produce(client, "t", b"a") == ErrorCode.NONE
        disk.heal()
        await cluster.restart_broker()
        assert await read_all(await cluster.connect(), "t") == [b"a"]


async def test_checkpoints_wait_for_space(tmp_path: Path) -> None:
    disk = FailingDisk()

    intervals: dict[str, Any] = {
        "replica.high.watermark.checkpoint.interval.ms": "20",
        "log.flush.offset.checkpoint.interval.ms": "20",
    }
    async with running(tmp_path, environment=disk, **intervals) as (cluster, client):
        await client.create_topic("t")
        disk.fill(below=str(tmp_path / "data"), matching="checkpoint")
        assert await produce(client, "t", b"a") == ErrorCode.NONE
        failures = disk.failures
        while disk.failures < failures + 3:
            await client.ask(ApiKey.METADATA, topics=[])
        assert await read_all(client, "t") == [b"a"]
        # A stop on a full disk cannot say that it was clean; the next start looks for itself.
        disk.fill(below=str(tmp_path / "data"))
        await cluster.broker.stop()
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        disk.heal()
        await cluster.start_broker()
        assert await read_all(await cluster.connect(), "t") == [b"a"]


async def test_a_start_on_a_full_disk_says_so_or_waits_for_space(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with running(tmp_path, environment=disk) as (cluster, client):
        await client.create_topic("t")
        assert await produce(client, "t", b"a") == ErrorCode.NONE
        await cluster.broker.stop()
        disk.fill(below=str(tmp_path / "data"))
        try:
            await cluster.start_broker()
        except KafkaError as error:
            assert error.code == STORAGE_ERROR
            assert str(tmp_path / "data") in error.message
            assert "No space left" in error.message
            disk.heal()
            await cluster.restart_broker()
        client = await cluster.connect()
        disk.heal()
        while await produce(client, "t", b"b") != ErrorCode.NONE:
            pass
        assert await read_all(client, "t") == [b"a", b"b"]


# -- no file descriptor is left


@pytest.mark.parametrize("error_number", [errno.EMFILE, errno.ENFILE])
async def test_a_broker_that_can_open_no_file_refuses_what_needs_one_and_goes_on(
    tmp_path: Path, error_number: int
) -> None:
    disk = FailingDisk()

    intervals: dict[str, Any] = {
        "replica.high.watermark.checkpoint.interval.ms": "20",
        "log.flush.offset.checkpoint.interval.ms": "20",
    }
    async with running(tmp_path, environment=disk, **intervals) as (cluster, client):
        await client.create_topic("t", segment_bytes="1000")
        await client.create_topic("synced", flush_messages="1")
        acknowledged = {"t": [b"first"], "synced": [b"first"]}
        for topic in acknowledged:
            assert await produce(client, topic, b"first") == ErrorCode.NONE
        disk.exhaust_descriptors(error_number, below=str(tmp_path / "data"))
        codes = set()
        for number in range(20):
            for topic, kept in acknowledged.items():
                code = await produce(client, topic, value := b"%03d" % number + bytes(100))
                codes.add(code)
                if code == ErrorCode.NONE:
                    kept.append(value)
        # There is no room in the segment, or nothing can be synced.
        assert codes == {ErrorCode.NONE, STORAGE_ERROR}
        await client.create_topic("u")
        assert await produce(client, "u", b"x") != ErrorCode.NONE
        # Checkpoints cannot be written meanwhile.
        failures = disk.failures
        while disk.failures < failures + 5:
            await client.ask(ApiKey.METADATA, topics=[])
        assert cluster.broker.parts.log_manager.live_directories == [str(tmp_path / "data")]
        disk.heal()
        for topic, kept in acknowledged.items():
            while await produce(client, topic, b"last") != ErrorCode.NONE:
                pass
            # What was refused is not there: it would be taken for replicated, and is not on disk.
            assert await read_all(client, topic) == [*kept, b"last"]
        while await produce(client, "u", b"x") != ErrorCode.NONE:
            pass
        await cluster.restart_broker()
        assert (tmp_path / "data" / "replication-offset-checkpoint").exists()
        assert (await read_all(await cluster.connect(), "t"))[-1] == b"last"


async def test_a_directory_that_fails_while_the_broker_starts_to_serve_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller may have told the broker of its partitions by then, and does not ask again by itself."""
    start, startup = log_manager.LogManager.start, KafkaController.startup
    managers: list[log_manager.LogManager] = []
    reports: list[int] = []

    def starting(manager: log_manager.LogManager) -> None:
        managers.append(manager)
        start(manager)

    async def failing(controller: KafkaController, store: KafkaZooKeeper) -> None:
        managers[-1].directories[0].fail(OSError(errno.EIO, "broken"), "the test")
        await startup(controller, store)

    async def reporting(_store: KafkaZooKeeper, broker_id: int) -> None:
        reports.append(broker_id)

    async with running(tmp_path, log_dirs=f"{tmp_path / 'one'},{tmp_path / 'two'}") as (cluster, _):
        monkeypatch.setattr(log_manager.LogManager, "start", starting)
        monkeypatch.setattr(KafkaController, "startup", failing)
        monkeypatch.setattr(KafkaZooKeeper, "report_log_dir_failure", reporting)
        await cluster.restart_broker()
        await asyncio.sleep(0)
        assert reports == [0]


async def test_a_log_is_created_where_an_attempt_without_descriptors_has_begun(tmp_path: Path) -> None:
    disk = FailingDisk()
    one, two = tmp_path / "one", tmp_path / "two"
    async with running(tmp_path, environment=disk, log_dirs=f"{one},{two}") as (cluster, client):
        disk.exhaust_descriptors(errno.EMFILE, below=str(one))
        await client.create_topic("u")
        assert [(path / "u-0").exists() for path in (one, two)] == [True, False]
        disk.heal()
        # Now the other directory has fewer logs.
        await client.create_topic("v")
        assert (one / "v-0").exists()
        while await produce(client, "u", b"x") != ErrorCode.NONE:
            pass
        assert [(path / "u-0").exists() for path in (one, two)] == [True, False]
        await cluster.restart_broker()
        assert await read_all(await cluster.connect(), "u") == [b"x"]


async def test_a_topic_id_that_cannot_be_written_without_descriptors_is_written_later(tmp_path: Path) -> None:
    """A log has none that was made under an older protocol. The controller takes such a replica for offline, so the
    broker does, too, and says when it can be used."""
    disk = FailingDisk()
    async with running(tmp_path, environment=disk) as (cluster, client):
        await client.create_topic("t")
        assert await produce(client, "t", b"a") == ErrorCode.NONE
        metadata = tmp_path / "data" / "t-0" / "partition.metadata"
        metadata.unlink()
        cluster.broker.parts.replica_manager.partition("t", 0).log.topic_id = None
        disk.exhaust_descriptors(errno.EMFILE, below=str(tmp_path / "data"), matching="partition.metadata")
        await cluster.begin_leader_epoch(client, "t", 1, code=STORAGE_ERROR)
        assert await produce(client, "t", b"b") == STORAGE_ERROR
        disk.heal()
        while await produce(client, "t", b"b") != ErrorCode.NONE:
            pass
        assert await read_all(client, "t") == [b"a", b"b"]
        assert metadata.exists()


async def test_a_start_waits_for_descriptors_and_takes_no_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_loader, "SHORTAGE_BACK_OFF_MS", 20)
    disk = FailingDisk()
    one, two = tmp_path / "one", tmp_path / "two"
    async with running(tmp_path, environment=disk, log_dirs=f"{one},{two}") as (cluster, client):
        await client.create_topic("t", partitions=2)
        for partition in (0, 1):
            assert await produce(client, "t", b"a", partition) == ErrorCode.NONE
        await cluster.broker.stop()
        # For good, and then only for a while.
        disk.exhaust_descriptors(errno.EMFILE, below=str(one), matching=".log")
        with pytest.raises(KafkaError, match=r"loading .*/one/t-[01] failed: .*Too many open files"):
            await cluster.start_broker()
        await cluster.broker.stop()
        failures = disk.failures
        start = asyncio.ensure_future(cluster.start_broker())
        await until(lambda: disk.failures > failures + 1)
        disk.heal()
        await start
        client = await cluster.connect()
        for partition in (0, 1):
            assert await read_all(client, "t", partition) == [b"a"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MB."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", path]
    if os.getuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        warnings.warn("NOT TESTED on a file system that is really full: mounting one needs root", stacklevel=1)
        pytest.skip("mounting a small file system needs root")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


async def test_a_disk_that_is_really_full(tmp_path: Path, small_disk: Path) -> None:
    async with running(tmp_path, log_dirs=small_disk / "data") as (cluster, client):
        await client.create_topic("t", segment_bytes="300000", index_interval_bytes="100")
        other = await cluster.connect()
        acknowledged = []
        while await produce(client, "t", value := b"%06d" % len(acknowledged) + bytes(50_000)) == ErrorCode.NONE:
            acknowledged.append(value)
        assert len(acknowledged) > 20
        for size in (100_000, 50_000, 10_000, 3000, 1000, 300, 100, 1):
            while await produce(client, "t", value := b"%06d" % len(acknowledged) + bytes(size)) == ErrorCode.NONE:
                acknowledged.append(value)
        assert await read_all(other, "t") == acknowledged
        ballast = small_disk / "data" / "t-0"
        assert sum(file.stat().st_size for file in ballast.iterdir()) > 1_900_000
        # Space comes back: the file system grows.
        await asyncio.to_thread(subprocess.run, ["mount", "-o", "remount,size=8m", small_disk], check=True)
        assert await produce(client, "t", b"more") == ErrorCode.NONE
        acknowledged.append(b"more")
        await cluster.restart_broker()
        assert await read_all(await cluster.connect(), "t") == acknowledged


# -- a disk that fails


@pytest.mark.parametrize("operation", ["write", "sync", "read"])
async def test_the_broker_stops_when_its_only_disk_fails(tmp_path: Path, operation: str) -> None:
    disk = FailingDisk()
    async with running(tmp_path, environment=disk) as (cluster, client):
        await client.create_topic("t", flush_messages="1")
        assert await produce(client, "t", b"a") == ErrorCode.NONE
        disk.fail(errno.EIO, operation, below=str(tmp_path / "data"))
        if operation == "read":
            assert (await client.fetch("t", 0, 0)).error_code == STORAGE_ERROR
        else:
            assert await produce(client, "t", b"lost") == STORAGE_ERROR
        reason = await cluster.broker.failure
        assert isinstance(reason, OSError)
        assert reason.errno == errno.EIO
        # Until it has stopped, nobody is told anything else.
        assert await produce(client, "t", b"lost") == STORAGE_ERROR
        assert (await client.fetch("t", 0, 0)).error_code == STORAGE_ERROR
        disk.heal()
        assert await produce(client, "t", b"lost") == STORAGE_ERROR
        await cluster.restart_broker()
        client = await cluster.connect()
        # The record whose sync failed was refused, but may be there.
        assert (await read_all(client, "t"))[:1] == [b"a"]


@pytest.mark.parametrize("operation", ["write", "sync", "read"])
async def test_one_of_two_disks_fails(tmp_path: Path, operation: str) -> None:
    disk = FailingDisk()
    one, two = tmp_path / "one", tmp_path / "two"
    async with running(tmp_path, environment=disk, log_dirs=f"{one},{two}") as (cluster, client):
        await client.create_topic("t", partitions=4, flush_messages="1")
        for partition in range(4):
            assert await produce(client, "t", b"a", partition) == ErrorCode.NONE
        broken = [int(path.name[2:]) for path in sorted(one.glob("t-*"))]
        assert len(broken) == 2
        waiting = asyncio.ensure_future((await cluster.connect()).fetch("t", broken[1], 1, max_wait_ms=60_000))
        await client.ask(ApiKey.METADATA, topics=[])
        disk.fail(errno.EIO, operation, below=str(one))
        if operation == "read":
            assert (await client.fetch("t", broken[0], 0)).error_code == STORAGE_ERROR
        else:
            assert await produce(client, "t", b"b", broken[0]) == STORAGE_ERROR
        assert (await waiting).error_code == STORAGE_ERROR
        for partition in range(4):
            expected = STORAGE_ERROR if partition in broken else ErrorCode.NONE
            assert await produce(client, "t", b"b", partition) == expected
            assert (await client.fetch("t", partition, 0)).error_code == expected
        dirs = (await client.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None)).results
        assert [(entry.log_dir, entry.error_code) for entry in dirs] == [(str(one), STORAGE_ERROR), (str(two), 0)]
        assert [len(entry.topics) for entry in dirs] == [0, 1]
        # New topics go to the disk that works; one that has a log on the other cannot be deleted now.
        assert (await client.create_topic("u")).error_code == ErrorCode.NONE
        assert await produce(client, "u", b"a") == ErrorCode.NONE
        doomed = [messages.request_class(ApiKey.DELETE_TOPICS).DeleteTopicState(name="t", topic_id=None)]
        # As in Kafka clients hear that it is gone, when it has only begun to go.
        deletion = await client.ask(ApiKey.DELETE_TOPICS, topics=doomed, timeout_ms=10_000)
        assert deletion.responses[0].error_code == ErrorCode.NONE
        store = cluster.broker.zookeeper.store
        assert await store.topic_names() == ["t", "u"]
        assert await produce(client, "u", b"b") == ErrorCode.NONE
        assert not cluster.broker.failure.done()
        # With the disk replaced by a good one the deletion is finished, and the other topic is whole.
        disk.heal()
        await cluster.restart_broker()
        client = await cluster.connect()
        assert await read_all(client, "u") == [b"a", b"b"]
        await until(lambda: list(one.glob("t-?")) + list(two.glob("t-?")) == [])
        assert await produce(client, "t", b"x") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await cluster.wait_until_told()
        assert await cluster.broker.zookeeper.store.topic_names() == ["u"]


async def test_a_disk_that_fails_at_start(tmp_path: Path) -> None:
    disk = FailingDisk()
    one, two = tmp_path / "one", tmp_path / "two"
    async with running(tmp_path, environment=disk, log_dirs=f"{one},{two}") as (cluster, client):
        await client.create_topic("t", partitions=2)
        for partition in (0, 1):
            assert await produce(client, "t", b"a", partition) == ErrorCode.NONE
        (broken,) = [int(path.name[2:]) for path in one.glob("t-*")]
        await cluster.broker.stop()
        disk.fail(errno.EIO, below=str(one))
        await cluster.start_broker()
        client = await cluster.connect()
        assert await produce(client, "t", b"b", broken) == STORAGE_ERROR
        assert await produce(client, "t", b"b", 1 - broken) == ErrorCode.NONE
        while await leaders(client, "t") != {broken: -1, 1 - broken: 0}:
            pass  # the controller takes the leadership away when the broker has answered it
        assert not (two / f"t-{broken}").exists()
        await cluster.broker.stop()
        disk.fail(errno.EIO, below=str(tmp_path))
        with pytest.raises(KafkaError, match=f"no log directory can be used: {one}: .*Input/output error.*{two}: "):
            await cluster.start_broker()
        disk.heal()
        await cluster.restart_broker()
        client = await cluster.connect()
        assert await read_all(client, "t", broken) == [b"a"]
        assert await read_all(client, "t", 1 - broken) == [b"a", b"b"]


@pytest.mark.parametrize("operation", ["write", "rename", "sync"])
async def test_a_disk_that_fails_at_a_checkpoint(tmp_path: Path, operation: str) -> None:
    disk = FailingDisk()

    intervals: dict[str, Any] = {"replica.high.watermark.checkpoint.interval.ms": "20"}
    async with running(tmp_path, environment=disk, **intervals) as (cluster, client):
        await client.create_topic("t")
        assert await produce(client, "t", b"a") == ErrorCode.NONE
        disk.fail(errno.EIO, operation, below=str(tmp_path / "data"), matching="checkpoint")
        assert isinstance(await cluster.broker.failure, OSError)
        disk.heal()
        await cluster.restart_broker()
        assert await read_all(await cluster.connect(), "t") == [b"a"]
