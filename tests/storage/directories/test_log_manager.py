"""The log manager: loading, creating, deleting, checkpoints, failing directories."""

import asyncio
import errno
import random
from uuid import UUID

import pytest

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.records import ControlRecordType
from klamm.simulation.machine.disk import SimulatedFileSystem
from klamm.simulation.machine.loop import simulated_loop
from klamm.simulation.machine.process import Process
from klamm.storage.directories import directory_checkpoints
from klamm.storage.directories.directory_loader import DirectoryLoader
from klamm.storage.directories.log_manager import LogManager, LogManagerSettings
from klamm.storage.log.log import AppendOrigin
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.checkpoints import write_offset_checkpoint
from klamm.storage.segments.log_directory import MetaProperties
from support.logs import NOW_MS, DiskEnvironment, append, marker, read_all

pytestmark = pytest.mark.loop("virtual")

A, B = "/disks/a", "/disks/b"
META = MetaProperties("cluster-1", 7)
TOPIC_ID = UUID(int=42)
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=150, file_delete_delay_ms=50)


def in_virtual_time(scenario):
    """Runs a scenario in which every sleep is over at once."""
    simulated_loop().run_until_complete(scenario)


def raise_it(*reasons):
    raise AssertionError(reasons)


class Fixture:
    def __init__(self):
        self.environment = DiskEnvironment()
        self.disk = self.environment.disk
        self.failed = []

    @property
    def files(self):
        return self.environment.file_system

    def manager(self, *directories, meta=META, **settings):
        return LogManager(
            self.environment,
            directories or (A,),
            meta_properties=meta,
            default_config=CONFIG,
            settings=LogManagerSettings(**settings),
            on_directory_failure=lambda path, error: self.failed.append(path),
            on_failure=raise_it,
        )

    async def loaded(self, *directories, **settings):
        manager = self.manager(*directories, **settings)
        await manager.load({})
        return manager

    def kill(self):
        """A new process on the same disk."""
        self.disk.crash(lose_unsynced=False)
        self.environment.file_system = SimulatedFileSystem(self.disk, Process("next", "host"))

    def text(self, path):
        return self.files.read_file(path).decode()

    def disk_content(self):
        """Every file in the directories, by its path."""
        found = {}
        pending = [A, B]
        while pending:
            path = pending.pop()
            if self.files.is_directory(path):
                pending += [f"{path}/{name}" for name in self.files.list_directory(path)]
            else:
                found[path] = self.files.read_file(path)
        return found


@pytest.fixture
def fixture():
    return Fixture()


def fill(manager, topic="t", partition=0, count=5, **named):
    log = manager.get_or_create(topic, partition, TOPIC_ID, CONFIG, **named)
    for i in range(count):
        append(log, b"%d" % i, leader_epoch=3)
    log.update_high_watermark(count)
    return log


async def test_a_clean_stop_and_start(fixture):
    manager = await fixture.loaded(A, B)
    manager.start()
    for partition in range(4):
        fill(manager, partition=partition, count=partition)
    assert [len(manager.logs_in(path)) for path in (A, B)] == [2, 2]
    manager.get("t", 3).update_high_watermark(2)
    manager.get("t", 3).update_log_start_offset(1)
    await manager.stop()
    assert fixture.text(f"{A}/meta.properties").split() == ["version=0", "broker.id=7", "cluster.id=cluster-1"]
    assert fixture.text(f"{A}/recovery-point-offset-checkpoint") == "0\n2\nt 0 0\nt 2 2\n"
    assert fixture.text(f"{B}/log-start-offset-checkpoint") == "0\n1\nt 3 1\n"
    assert fixture.text(f"{B}/replication-offset-checkpoint") == "0\n2\nt 1 1\nt 3 2\n"
    assert fixture.text(f"{A}/t-0/partition.metadata") == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAKg"
    assert fixture.files.exists(f"{A}/.kafka_cleanshutdown")

    again = fixture.manager(A, B)
    await again.load({"t": CONFIG})
    assert not fixture.files.exists(f"{A}/.kafka_cleanshutdown")
    log = again.get("t", 3)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.topic_id) == (1, 2, 3, TOPIC_ID)
    assert await read_all(log) == [(1, b"1"), (2, b"2")]
    await again.stop()


async def test_a_killed_broker_recovers(fixture):
    manager = await fixture.loaded(A)
    fill(manager, count=30)
    fixture.kill()
    again = await fixture.loaded(A)
    assert len(await read_all(again.get("t", 0))) == 30
    assert again.get("t", 0).recovery_point == 0
    again.start()
    await asyncio.sleep(0.01)
    assert again.get("t", 0).recovery_point == 30
    await again.stop()


async def test_two_brokers_cannot_have_one_directory(fixture):
    first = await fixture.loaded(A)
    other = DiskEnvironment(fixture.disk)
    other.file_system = SimulatedFileSystem(fixture.disk, Process("other", "host"))
    second = LogManager(
        other, [A], meta_properties=META, default_config=CONFIG, on_directory_failure=raise_it, on_failure=raise_it
    )
    with pytest.raises(KafkaError, match=r"/disks/a is in use by another process") as caught:
        await second.load({})
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    await first.stop()
    await second.load({})
    await second.stop()


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        (MetaProperties("cluster-2", 7), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (MetaProperties("cluster-1", 8), ErrorCode.DUPLICATE_BROKER_REGISTRATION),
    ],
)
async def test_the_directory_of_another_broker_or_cluster_is_refused(fixture, meta, code):
    await (await fixture.loaded(A)).stop()
    stranger = fixture.manager(A, meta=meta)
    with pytest.raises(KafkaError, match="/disks/a belongs to") as caught:
        await stranger.load({})
    assert caught.value.code == code
    # It has let go of the lock, and the directory is as clean as before.
    assert fixture.files.exists(f"{A}/.kafka_cleanshutdown")
    await (await fixture.loaded(A)).stop()


@pytest.mark.parametrize("content", [b"version=0\nbroker.id=x\ncluster.id=c\n", b"broker.id=7\n", b"version=1\n"])
async def test_malformed_meta_properties_are_named(fixture, content):
    fixture.files.make_directories(A)
    fixture.files.replace_file(f"{A}/meta.properties", content)
    with pytest.raises(KafkaError, match=r"/disks/a/meta\.properties"):
        await fixture.loaded(A)


async def test_a_partition_in_two_directories_is_an_error(fixture):
    for path in (A, B):
        manager = await fixture.loaded(path)
        fill(manager)
        await manager.stop()
    fixture.files.remove(f"{B}/t-0/partition.metadata")
    with pytest.raises(KafkaError, match=r"/disks/a/t-0 .* and /disks/b/t-0 "):
        await fixture.loaded(A, B)


async def test_strange_directories_are_left_alone(fixture):
    for name in ("lost+found", "t-x", "t-99999999999", "t-0.abc-delete", "t-1.0-future"):
        fixture.files.make_directories(f"{A}/{name}")
    manager = await fixture.loaded(A)
    assert not manager.logs
    await manager.stop()
    assert "lost+found" in fixture.files.list_directory(A)


@pytest.mark.parametrize("name", ["recovery-point-offset", "log-start-offset", "replication-offset"])
async def test_a_torn_checkpoint_has_a_safe_substitute(fixture, name):
    manager = await fixture.loaded(A)
    fill(manager)
    await manager.stop()
    fixture.files.replace_file(f"{A}/{name}-checkpoint", b"0\n2\nt 0 5\n")
    again = await fixture.loaded(A)
    assert len(await read_all(again.get("t", 0))) == 5
    assert again.get("t", 0).high_watermark == (0 if name == "replication-offset" else 5)
    await again.stop()


# Deleting


async def test_deleting(fixture):
    manager = await fixture.loaded(A)
    log = fill(manager)
    assert manager.delete("t", 0)
    assert not manager.delete("t", 0)
    assert manager.get("t", 0) is None
    (name,) = [name for name in fixture.files.list_directory(A) if name.startswith("t-0")]
    assert name.endswith("-delete")
    assert len(name) == len("t-0.") + 32 + len("-delete")
    with pytest.raises(KafkaError, match="closed"):
        append(log, b"x")
    fresh = fill(manager, count=1)
    assert await read_all(fresh) == [(0, b"0")]
    await asyncio.sleep(0.1)
    assert name not in fixture.files.list_directory(A)
    await manager.stop()


async def test_what_was_being_deleted_is_deleted_after_the_next_start(fixture):
    manager = await fixture.loaded(A)
    fill(manager, topic="x" * 249)
    manager.delete("x" * 249, 0)
    assert max(map(len, fixture.files.list_directory(A))) == 255
    await manager.stop()
    again = await fixture.loaded(A)
    assert not again.logs
    await asyncio.sleep(0.1)
    assert not [name for name in fixture.files.list_directory(A) if name.endswith("-delete")]
    await again.stop()


async def test_a_new_topic_does_not_inherit_the_log_start_offset_of_a_deleted_one(fixture):
    manager = await fixture.loaded(A)
    fill(manager, count=9).update_log_start_offset(7)
    await manager.checkpoint_log_start_offsets()
    manager.delete("t", 0)
    fill(manager, count=2)
    fixture.kill()
    again = await fixture.loaded(A)
    assert await read_all(again.get("t", 0)) == [(0, b"0"), (1, b"1")]
    await again.stop()


@pytest.mark.parametrize(
    ("operation", "path", "shortage"),
    [
        ("rename", f"{A}/t-0", errno.ENOSPC),
        ("open", f"{A}/log-start-offset-checkpoint.tmp", errno.EMFILE),
        ("rename", f"{A}/log-start-offset-checkpoint.tmp", errno.ENOMEM),
    ],
)
async def test_a_deletion_that_a_shortage_has_refused_may_be_tried_again(fixture, operation, path, shortage):
    """The directory under its name would be the next topic's, and its log start offset would drop what that gets."""
    manager = await fixture.loaded()
    fill(manager).update_log_start_offset(3)
    await manager.checkpoint_log_start_offsets()
    assert fixture.text(f"{A}/log-start-offset-checkpoint") == "0\n1\nt 0 3\n"
    fixture.disk.fail(operation, path, shortage)
    with pytest.raises(KafkaError, match="deleting t-0 failed"):
        manager.delete("t", 0)
    assert manager.live_directories == [A]
    assert manager.delete("t", 0)
    assert not fixture.files.exists(f"{A}/t-0")
    assert fixture.text(f"{A}/log-start-offset-checkpoint") == "0\n0\n"
    await manager.stop()


async def test_a_new_topic_does_not_inherit_the_high_watermark_of_a_deleted_one(fixture):
    """Records that are on no other replica would pass for committed ones."""
    manager = await fixture.loaded(A)
    for partition in range(3):
        fill(manager, partition=partition, count=9)
    await manager.checkpoint_high_watermarks()
    for partition in range(2):
        manager.delete("t", partition)
    await asyncio.sleep(0)  # while it is being written down that these are gone, one more goes
    manager.delete("t", 2)
    await asyncio.sleep(1)
    for partition in range(3):
        fill(manager, partition=partition, count=5)
    fixture.kill()
    again = await fixture.loaded(A)
    assert [again.get("t", partition).high_watermark for partition in range(3)] == [0, 0, 0]
    await again.stop()


async def test_creating_again_returns_the_same_log_and_checks_the_topic_id(fixture):
    manager = await fixture.loaded(A)
    log = manager.get_or_create("t", 0, None, CONFIG)
    assert manager.get_or_create("t", 0, TOPIC_ID, CONFIG) is log
    with pytest.raises(KafkaError) as caught:
        manager.get_or_create("t", 0, UUID(int=1), CONFIG)
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    await manager.stop()


# Failing directories


async def test_a_failed_directory_takes_only_its_own_logs_down(fixture):
    manager = await fixture.loaded(A, B)
    logs = [fill(manager, partition=partition) for partition in range(4)]
    fixture.disk.fail("write", f"{A}/*", errno.EIO, times=1)
    with pytest.raises(KafkaError):
        append(logs[0], b"x")
    assert fixture.failed == []
    await asyncio.sleep(0)
    assert fixture.failed == [A]
    assert manager.live_directories == [B]
    assert sorted(manager.logs) == [("t", 1), ("t", 3)]
    for partition in (0, 2):
        with pytest.raises(KafkaError) as caught:
            append(logs[partition], b"x")
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    append(logs[1], b"x")
    # An old partition may have its log there; a new one may not.
    for attempt in (lambda: manager.get_or_create("t", 9, None, CONFIG), lambda: manager.delete("t", 0)):
        with pytest.raises(KafkaError, match="offline"):
            attempt()
    assert manager.get_or_create("t", 9, None, CONFIG, is_new=True).directory == f"{B}/t-9"
    await manager.checkpoint_recovery_points()
    await manager.stop()
    assert not fixture.files.exists(f"{A}/.kafka_cleanshutdown")
    assert fixture.files.exists(f"{B}/.kafka_cleanshutdown")
    again = await fixture.loaded(A, B)
    assert sorted(again.logs) == [("t", partition) for partition in (0, 1, 2, 3, 9)]
    assert len(await read_all(again.get("t", 0))) == 5
    await again.stop()


async def test_a_log_that_is_lost_is_not_created_elsewhere(fixture):
    """Its controller may still take the partition for a new one; two directories would stop the next start."""
    manager = await fixture.loaded(A, B)
    log = manager.get_or_create("t", 0, None, CONFIG, is_new=True)
    fixture.disk.fail("write", f"{A}/*", errno.EIO, times=1)
    with pytest.raises(KafkaError):
        append(log, b"x")
    await asyncio.sleep(0)
    with pytest.raises(KafkaError, match="may be in an offline directory") as caught:
        manager.get_or_create("t", 0, None, CONFIG, is_new=True)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    await manager.stop()
    again = await fixture.loaded(A, B)
    assert again.get("t", 0).directory == f"{A}/t-0"
    await again.stop()


async def test_a_partition_in_two_directories_is_told_with_what_each_has_and_nothing_is_changed(fixture):
    """Brokers before 2.8 leave this behind when they die while they replace a replica by the one that they moved."""
    manager = await fixture.loaded(A, B)
    log = fill(manager, count=3)
    fill(manager, partition=1, count=1)
    log.roll()
    append(log, b"last")
    await manager.checkpoint_high_watermarks()
    for partition in (0, 1):
        source, target = (A, B) if partition == 0 else (B, A)
        copy(fixture.files, f"{source}/t-{partition}", f"{target}/t-{partition}")
        fixture.files.remove(f"{target}/t-{partition}/partition.metadata")
    for offset in range(10):
        append(log, b"%d" % offset)
    await manager.stop()
    before = fixture.disk_content()
    with pytest.raises(KafkaError) as caught:
        await fixture.manager(A, B).load({})
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    sizes = [fixture.files.size(f"{path}/t-0/{3:020d}.log") for path in (A, B)]
    assert sizes[0] > sizes[1] > 0
    assert (
        f"t-0 has two directories: {A}/t-0 (last segment from offset 3, {sizes[0]} bytes; high watermark 3;"
        f" topic id AAAAAAAAAAAAAAAAAAAAKg),"
        f" and {B}/t-0 (last segment from offset 3, {sizes[1]} bytes; high watermark unknown; topic id unknown)"
    ) in caught.value.message
    assert "t-1 has two directories" in caught.value.message
    assert "move the one that is not up to date out of log.dirs" in caught.value.message
    assert fixture.disk_content() == before, "the marks of the clean shutdown included"
    for extra in (f"{B}/t-0", f"{A}/t-1"):
        fixture.files.remove_tree(extra)
    again = await fixture.loaded(A, B)
    assert (again.get("t", 0).log_end_offset, again.get("t", 1).log_end_offset) == (14, 1)
    await again.stop()


def copy(files, source, target):
    files.make_directories(target)
    for name in files.list_directory(source):
        files.replace_file(f"{target}/{name}", files.read_file(f"{source}/{name}"))


async def test_a_refused_start_leaves_the_marks_of_the_clean_shutdown(fixture):
    """Otherwise the next start recovers all logs for nothing."""
    manager = await fixture.loaded(A, B)
    fill(manager)
    await manager.stop()
    fixture.files.replace_file(f"{B}/meta.properties", b"version=0\nbroker.id=8\ncluster.id=cluster-1\n")
    with pytest.raises(KafkaError, match="broker"):
        await fixture.manager(A, B).load({})
    for path in (A, B):
        assert fixture.files.exists(f"{path}/.kafka_cleanshutdown")


async def test_a_damaged_log_refuses_each_start_and_is_not_cut(fixture):
    manager = await fixture.loaded(A, B)
    log, other = fill(manager), fill(manager, partition=1)
    producer = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    append(log, b"in a transaction", **producer)
    log.append_as_leader(marker(ControlRecordType.COMMIT, 5), 0, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
    log.update_high_watermark(5)
    await manager.stop()
    path = f"{log.directory}/{0:020}.log"
    right = fixture.files.read_file(path)
    fixture.files.replace_file(path, right.replace(b"in a transaction", b"in A transaction"))
    damaged = fixture.files.read_file(path)
    for _ in range(2):
        with pytest.raises(KafkaError, match=f"{path} is damaged: at offset 5"):
            await fixture.manager(A, B).load({})
        assert fixture.files.read_file(path) == damaged
        assert all(fixture.files.exists(f"{each}/.kafka_cleanshutdown") for each in (A, B))
        fixture.kill()
    # As the message says.
    fixture.files.remove_tree(log.directory)
    manager = await fixture.loaded(A, B)
    assert list(manager.logs) == [("t", 1)]
    assert manager.get("t", 1).log_end_offset == other.log_end_offset == 5


async def test_a_directory_that_fails_while_a_log_is_created_may_have_it(fixture):
    manager = await fixture.loaded(A, B)
    fixture.disk.fail("open", f"{A}/t-0/*", errno.EIO, times=1)
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            manager.get_or_create("t", 0, None, CONFIG, is_new=True)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert manager.get_or_create("t", 1, None, CONFIG, is_new=True).directory == f"{B}/t-1"
    await manager.stop()
    again = await fixture.loaded(A, B)
    assert sorted(again.logs) == [("t", 0), ("t", 1)]
    await again.stop()


async def test_a_directory_that_cannot_be_opened(fixture):
    fixture.files.make_directories("/disks")
    fixture.files.open(A, create=True).close()
    manager = await fixture.loaded(A, B)
    assert manager.live_directories == [B]
    await asyncio.sleep(0)
    assert fixture.failed == [A]
    await manager.stop()
    with pytest.raises(KafkaError, match="no log directory can be used"):
        await fixture.loaded(A)


async def test_a_disk_that_fails_while_loading(fixture):
    manager = await fixture.loaded(A, B)
    for partition in range(4):
        fill(manager, partition=partition)
    await manager.stop()
    fixture.disk.fail("list_directory", f"{A}/t-2", errno.EIO)
    again = await fixture.loaded(A, B)
    await asyncio.sleep(0)
    assert sorted(again.logs) == [("t", 1), ("t", 3)]
    assert fixture.failed == [A]
    await again.stop()


async def test_creation_without_room(fixture):
    manager = await fixture.loaded(A)
    fill(manager)
    fixture.disk.fail("truncate", "*/t-1/*", errno.ENOSPC)
    with pytest.raises(KafkaError) as caught:
        manager.get_or_create("t", 1, TOPIC_ID, CONFIG)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert manager.live_directories == [A]
    assert len(await read_all(fill(manager, partition=1))) == 5
    await manager.stop()


async def test_a_checkpoint_without_room_is_tried_again_later(fixture):
    manager = await fixture.loaded(A)
    fill(manager)
    fixture.disk.fail("write", "*checkpoint.tmp", errno.ENOSPC)
    await manager.checkpoint_high_watermarks()
    assert manager.live_directories == [A]
    await manager.checkpoint_high_watermarks()
    assert fixture.text(f"{A}/replication-offset-checkpoint") == "0\n1\nt 0 5\n"
    await manager.stop()


# From time to time


async def test_the_periodic_work(fixture):
    settings = {
        "retention_check_ms": 5,
        "flush_check_ms": 5,
        "recovery_point_checkpoint_ms": 5,
        "log_start_offset_checkpoint_ms": 5,
        "producer_expiration_check_ms": 5,
        "producer_expiration_ms": 1000,
    }
    manager = await fixture.loaded(A, **settings)
    manager.start()
    eager = LogConfig(segment_bytes=300, retention_ms=100, flush_ms=10)
    log = manager.get_or_create("t", 0, TOPIC_ID, eager)
    for i in range(20):
        append(log, b"%d" % i, producer_id=5, producer_epoch=0, base_sequence=i, timestamp_ms=NOW_MS + i)
    await asyncio.sleep(0.05)
    assert log.recovery_point == 20
    log.update_high_watermark(20)
    rolled = len(log.segment_base_offsets)
    assert rolled > 3
    for _ in range(2):
        # The first one rolls, and is flushed because of it; the second waits for flush.ms.
        append(log, b"later", timestamp_ms=NOW_MS + 20)
        await asyncio.sleep(0.05)
    assert log.recovery_point == 21
    fixture.environment.clock_ms = NOW_MS + 111
    await asyncio.sleep(0.05)
    assert log.recovery_point == 22
    assert 1 < len(log.segment_base_offsets) < rolled
    assert log.log_start_offset == log.segment_base_offsets[0]
    assert 5 in log.producer_state.entries
    fixture.environment.clock_ms = NOW_MS + 2000
    await asyncio.sleep(0.05)
    assert not log.producer_state.entries
    assert log.log_start_offset == log.segment_base_offsets[0] > 10
    assert fixture.text(f"{A}/recovery-point-offset-checkpoint") == "0\n1\nt 0 22\n"
    await manager.stop()


async def test_a_truncation_is_checkpointed_and_made_durable_soon(fixture):
    manager = await fixture.loaded(A)
    log = fill(manager, count=30)
    await log.flush()
    await manager.checkpoint_recovery_points()
    log.truncate_to(12)
    await asyncio.sleep(0.01)
    assert fixture.text(f"{A}/recovery-point-offset-checkpoint") == "0\n1\nt 0 12\n"
    assert not log.is_truncation_unsynced
    await manager.stop()


async def test_what_follows_a_truncation_below_the_log_start_survives(fixture):
    manager = await fixture.loaded(A)
    log = fill(manager, count=30)
    log.update_log_start_offset(20)
    await manager.checkpoint_log_start_offsets()
    log.truncate_to(10)
    append(log, b"new", leader_epoch=4)
    await asyncio.sleep(0.01)
    fixture.kill()
    again = await fixture.loaded(A)
    assert await read_all(again.get("t", 0)) == [(10, b"new")]
    await again.stop()


async def test_a_log_start_offset_is_on_disk_soon(fixture):
    manager = await fixture.loaded(A)
    log, other = fill(manager, count=9), fill(manager, partition=1, count=9)
    segments = log.segment_base_offsets
    log.update_log_start_offset(4)
    assert (log.log_start_offset, log.durable_log_start_offset) == (4, 0)
    await asyncio.gather(manager.settle_log_start(log), manager.settle_log_start(log))
    assert (log.durable_log_start_offset, log.segment_base_offsets) == (4, segments)
    other.update_log_start_offset(2)
    fixture.kill()
    again = await fixture.loaded(A)
    assert (again.get("t", 0).log_start_offset, again.get("t", 1).log_start_offset) == (4, 0)
    assert again.get("t", 0).durable_log_start_offset == 4
    await again.stop()


def test_deleted_records_stay_deleted_when_the_machine_dies_after_their_segments_went():
    async def run(seed):
        fixture = Fixture()
        fixture.disk.random = random.Random(seed)
        manager = await fixture.loaded(A)
        log = fill(manager, count=60)
        await log.flush()
        start = log.segment_base_offsets[2]
        log.update_log_start_offset(start)
        await manager.settle_log_start(log)
        assert log.durable_log_start_offset == start
        assert log.delete_old_segments(NOW_MS) == 2
        await manager.checkpoint_log_start_offsets()
        fixture.disk.crash(lose_unsynced=True)
        fixture.environment.file_system = SimulatedFileSystem(fixture.disk, Process("next", "host"))
        again = await fixture.loaded(A)
        assert again.get("t", 0).log_start_offset == start
        # Once their deletion is on disk, the checkpoint is as Kafka's.
        await again.get("t", 0).flush()
        again.get("t", 0).delete_old_segments(NOW_MS)
        await again.get("t", 0).flush()
        await again.checkpoint_log_start_offsets()
        assert fixture.text(f"{A}/log-start-offset-checkpoint") == "0\n0\n"
        await again.stop()

    for seed in range(8):
        in_virtual_time(run(seed))


async def test_many_logs_that_move_their_start_at_once_write_the_checkpoint_twice_at_most(fixture, monkeypatch):
    manager = await fixture.loaded(A)
    logs = [fill(manager, partition=number) for number in range(30)]
    written = []
    write = write_offset_checkpoint
    monkeypatch.setattr(
        directory_checkpoints,
        "write_offset_checkpoint",
        lambda file_system, path, offsets: (written.append(len(offsets)), write(file_system, path, offsets)),
    )
    for log in logs:
        log.update_log_start_offset(3)
    await asyncio.gather(*map(manager.settle_log_start, logs))
    assert written[0] == 30
    assert len(written) <= 2
    assert {log.durable_log_start_offset for log in logs} == {3}
    await manager.stop()


async def test_a_full_disk_lets_go_of_old_records(fixture):
    manager = await fixture.loaded(A)
    log = fill(manager, count=60)
    assert len(log.segment_base_offsets) > 2
    fixture.disk.fail("write", "*checkpoint*", errno.ENOSPC, times=None)
    assert log.update_log_start_offset(50)
    assert log.delete_old_segments(NOW_MS) > 0
    assert log.log_start_offset == 50
    fixture.disk.mend()
    await manager.stop()
    again = await fixture.loaded(A)
    assert again.get("t", 0).log_start_offset == 50
    assert again.get("t", 0).leader_epochs.earliest == (3, 50)
    await again.stop()


def test_the_machine_may_die_at_any_time_once_a_log_was_flushed():
    async def run(seed):
        fixture = Fixture()
        fixture.disk.random = random.Random(seed)
        manager = await fixture.loaded(A)
        log = fill(manager, count=20)
        await log.flush()
        await manager.checkpoint_recovery_points()
        for i in range(20, 40):
            append(log, b"%d" % i, leader_epoch=3)
        fixture.disk.crash(lose_unsynced=True)
        fixture.environment.file_system = SimulatedFileSystem(fixture.disk, Process("next", "host"))
        again = await fixture.loaded(A)
        found = await read_all(again.get("t", 0))
        assert len(found) >= 20
        assert found == [(i, b"%d" % i) for i in range(len(found))]
        await again.stop()

    for seed in range(10):
        in_virtual_time(run(seed))


def test_a_log_that_was_deleted_on_a_full_disk_stays_deleted_when_the_machine_dies():
    async def run(seed):
        fixture = Fixture()
        fixture.disk.random = random.Random(seed)
        manager = await fixture.loaded(A)
        await fill(manager).flush()
        fixture.disk.capacity_bytes = fixture.disk.used_bytes()
        manager.delete("t", 0)
        await asyncio.sleep(0.01)
        fixture.disk.crash(lose_unsynced=True)
        fixture.disk.mend()
        fixture.environment.file_system = SimulatedFileSystem(fixture.disk, Process("next", "host"))
        again = await fixture.loaded(A)
        assert again.get("t", 0) is None
        await again.stop()

    for seed in range(10):
        in_virtual_time(run(seed))


async def test_a_cancelled_load_ends_when_the_recovery_under_way_has_ended(monkeypatch):
    """A stop during the start would otherwise unlock the directory for another process, whose log it then truncates."""
    fixture = Fixture()
    manager = await fixture.loaded()
    manager.get_or_create("t", 0, TOPIC_ID, CONFIG)
    await manager.stop()
    recovering, is_recovered = asyncio.Event(), asyncio.Event()
    run_blocking = fixture.environment.run_blocking

    async def slowly(function, *arguments):
        if function.__name__ == DirectoryLoader._load_each.__name__:
            recovering.set()
            await is_recovered.wait()
        return await run_blocking(function, *arguments)

    monkeypatch.setattr(fixture.environment, "run_blocking", slowly)
    restarted = fixture.manager()
    loading = asyncio.ensure_future(restarted.load({}))
    await recovering.wait()
    loading.cancel()
    await asyncio.sleep(1)
    assert not loading.done()
    is_recovered.set()
    await asyncio.wait((loading,))
    assert loading.cancelled()
    await restarted.stop()
    assert (await fixture.loaded()).get("t", 0) is not None
