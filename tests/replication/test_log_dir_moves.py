"""Replicas move to other log directories: the answers, the copying, the promotion, and a death at each of its steps."""

import asyncio
import errno
import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from klamm.protocol.apis.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.replication import log_dir_moves
from klamm.simulation.machine.disk import SimulatedFileSystem
from klamm.simulation.machine.process import Process
from klamm.storage.log.leader_epoch_cache import LeaderEpochCache
from support.logs import DiskEnvironment
from support.replicas import (
    NOW_MS,
    T0,
    TOPIC_ID,
    Broker,
    Machine,
    batch,
    hosting_broker,
    settle,
    state,
    values_in,
    want,
)

pytestmark = pytest.mark.loop("virtual")

OK = ErrorCode.NONE


def scenario(function=None, **options):
    """A test with a broker that has three log directories: `async def test(broker)`."""
    if function is None:
        return lambda wrapped: scenario(wrapped, **options)

    async def test(tmp_path):
        async with hosting_broker(tmp_path, directories=3, **options) as broker:
            await function(broker)

    test.__name__, test.__doc__ = function.__name__, function.__doc__
    return test


def append(broker, *values):
    result = broker.manager.append_records("t", 0, batch(*values), 1)
    assert result.error_code is OK


def names(broker, directory):
    """What there is of t-0 in a log directory: "current", "future" and "deleted"."""
    kinds = []
    for name in broker.files.list_directory(broker.paths[directory]):
        if name.startswith("t-0"):
            suffix = name.rpartition("-")[2]
            kinds.append({"delete": "deleted", "future": "future"}.get(suffix, "current"))
    return sorted(kinds)


async def alter(broker, directory, partition=0, topic="t"):
    path = directory if isinstance(directory, str) else broker.paths[directory]
    return (await broker.manager.alter_replica_log_dirs({(topic, partition): path}))[topic, partition]


async def until(condition):
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came about")


def log(broker):
    return broker.log_manager.get("t", 0)


def directory_of(broker):
    return broker.paths.index(log(broker).log_directory.path)


async def moved(broker, directory):
    await until(lambda: directory_of(broker) == directory and log(broker).directory.endswith("/t-0"))


async def values(broker):
    (result,) = await broker.manager.fetch(
        [want(log(broker).log_start_offset)], isolation_level=0, max_wait_ms=0, min_bytes=1, max_bytes=10**6
    )
    assert result.error_code == OK
    return values_in(result.records)


async def lead(broker, *appended):
    """This broker leads t-0 alone; its log is in directory 0."""
    assert await broker.tell(state(isr=(1,), replicas=(1,))) == [OK]
    assert directory_of(broker) == 0
    if appended:
        append(broker, *appended)


# -- answers ----------------------------------------------------------------------------------------------------------


@scenario
async def test_a_replica_moves_to_another_directory_with_all_its_records(broker):
    await lead(broker, b"a", b"b")
    append(broker, b"c")
    high_watermark = log(broker).high_watermark
    assert await alter(broker, 1) is OK
    await moved(broker, 1)
    assert await values(broker) == [b"a", b"b", b"c"]
    assert (log(broker).high_watermark, log(broker).log_end_offset) == (high_watermark, 3)
    assert log(broker).topic_id == TOPIC_ID
    assert broker.manager.partitions[T0].log is log(broker)
    append(broker, b"d")
    assert await values(broker) == [b"a", b"b", b"c", b"d"]
    await until(lambda: names(broker, 0) == ["deleted"])
    await asyncio.sleep(61)
    assert names(broker, 0) == []
    assert not broker.manager.log_dir_moves.partitions


@scenario
async def test_the_answers_are_kafkas(broker):
    await lead(broker)
    broker.known.add(("t", 5))
    assert await alter(broker, "/nowhere") is ErrorCode.LOG_DIR_NOT_FOUND
    assert await alter(broker, 1, partition=5) is ErrorCode.REPLICA_NOT_AVAILABLE
    assert await alter(broker, 1, partition=6) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await alter(broker, 1, topic="x" * 220) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert await alter(broker, 0) is OK
    await settle()
    assert directory_of(broker) == 0
    assert names(broker, 1) == []


@scenario
async def test_a_partition_that_is_not_hosted_yet_is_created_in_its_preferred_directory(broker):
    broker.known.add(T0)
    assert await alter(broker, 1) is ErrorCode.REPLICA_NOT_AVAILABLE
    assert await alter(broker, 2) is ErrorCode.REPLICA_NOT_AVAILABLE
    assert await broker.tell(state()) == [OK]
    assert directory_of(broker) == 2
    assert broker.manager.alter_replica_log_dirs is not None
    assert broker.log_manager.preferred_directories.all == {}


@scenario
async def test_no_move_begins_while_a_directory_is_offline(broker):
    await lead(broker, b"a")
    broker.machine.fail(errno.EIO, "make_directories", below=broker.paths[1])
    assert await alter(broker, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    await settle()
    assert broker.log_manager.live_directories == [broker.paths[0], broker.paths[2]]
    assert await alter(broker, 1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert await alter(broker, 2) is ErrorCode.KAFKA_STORAGE_ERROR
    assert await values(broker) == [b"a"]


def hold_copies(broker, monkeypatch):
    """No copy ends until the returned event is set."""
    gate = asyncio.Event()
    copy = log_dir_moves.LogDirMoves._copy

    async def held(self, move):
        await gate.wait()
        await copy(self, move)

    monkeypatch.setattr(log_dir_moves.LogDirMoves, "_copy", held)
    return gate


async def test_a_second_request_to_another_directory_replaces_the_first(tmp_path, monkeypatch):
    async with hosting_broker(tmp_path, directories=3) as broker:
        await lead(broker, b"a", b"b")
        gate = hold_copies(broker, monkeypatch)
        assert await alter(broker, 1) is OK
        await settle()
        assert (names(broker, 0), names(broker, 1)) == (["current"], ["future"])
        assert await alter(broker, 1) is OK
        assert names(broker, 1) == ["future"]
        assert await alter(broker, 2) is OK
        assert (names(broker, 1), names(broker, 2)) == (["deleted"], ["future"])
        gate.set()
        await moved(broker, 2)
        assert await values(broker) == [b"a", b"b"]


async def test_the_present_directory_ends_a_move(tmp_path, monkeypatch):
    async with hosting_broker(tmp_path, directories=3) as broker:
        await lead(broker, b"a", b"b")
        gate = hold_copies(broker, monkeypatch)
        assert await alter(broker, 1) is OK
        await settle()
        assert await alter(broker, 0) is OK
        gate.set()
        await settle()
        assert (names(broker, 0), names(broker, 1)) == (["current"], ["deleted"])
        assert not broker.log_manager.future_logs
        assert await values(broker) == [b"a", b"b"]


# -- what happens to the partition meanwhile --------------------------------------------------------------------------


async def copied(broker, monkeypatch):
    """The records are in the future log in directory 1, which is held back from its promotion."""

    def refuse(self, move):
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "not now")

    monkeypatch.setattr(log_dir_moves.LogDirMoves, "_promote", refuse)
    assert await alter(broker, 1) is OK
    await until(lambda: future(broker).log_end_offset == log(broker).log_end_offset)


def future(broker):
    return broker.log_manager.future_logs[T0]


def follower(epoch, **more):
    return state(leader=2, epoch=epoch, **more)


async def test_a_future_log_is_cut_where_the_log_is_cut(tmp_path, monkeypatch):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await broker.tell(follower(1))
        partition = broker.manager.partitions[T0]
        partition.append_records_as_follower(batch(b"a", base_offset=0, partition_leader_epoch=1))
        partition.append_records_as_follower(batch(b"b", base_offset=1, partition_leader_epoch=1))
        with monkeypatch.context() as patch:
            await copied(broker, patch)
            # In one step, as a fetcher may do it: the lengths are the same again.
            partition.truncate_to(1)
            partition.append_records_as_follower(batch(b"c", base_offset=1, partition_leader_epoch=1))
            assert future(broker).log_end_offset == log(broker).log_end_offset == 2
            await settle()
        await moved(broker, 1)
        partition.update_follower_high_watermark(2)
        fetched = await log(broker).read(0, 10_000, max_offset=2, minimum_one_batch=True)
        assert values_in(fetched.data) == [b"a", b"c"]


async def test_a_new_leader_epoch_without_records_moves_too(tmp_path):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a")
        assert await broker.tell(state(epoch=4, isr=(1,), replicas=(1,))) == [OK]
        assert await alter(broker, 1) is OK
        await moved(broker, 1)
        assert list(log(broker).leader_epochs.entries) == [(0, 0), (4, 1)]


async def test_a_log_start_offset_within_a_batch_moves_too(tmp_path):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a", b"b", b"c")
        broker.manager.partitions[T0].delete_records(2)
        await broker.log_manager.settle_log_start(log(broker))
        assert await alter(broker, 1) is OK
        await until(lambda: directory_of(broker) == 1)
        # In the step of the promotion, for the next one may be the end of the process.
        assert Path(broker.paths[1], "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"
        assert (log(broker).durable_log_start_offset, log(broker).log_end_offset) == (2, 3)


async def test_a_deleted_partition_leaves_no_future_log(tmp_path, monkeypatch):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a")
        await copied(broker, monkeypatch)
        topic = StopReplicaTopicState("t", [StopReplicaPartitionState(0, 1, True)])
        await broker.manager.stop_replicas(
            StopReplicaRequest(controller_id=9, controller_epoch=1, topic_states=[topic])
        )
        assert (names(broker, 0), names(broker, 1)) == (["deleted"], ["deleted"])
        assert not broker.manager.log_dir_moves.partitions
        assert not broker.log_manager.future_logs


async def test_a_stopped_replica_is_not_moved_until_the_next_leader_and_isr(tmp_path, monkeypatch):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a")
        gate = hold_copies(broker, monkeypatch)
        assert await alter(broker, 1) is OK
        await settle()
        topic = StopReplicaTopicState("t", [StopReplicaPartitionState(0, 0, False)])
        await broker.manager.stop_replicas(
            StopReplicaRequest(controller_id=9, controller_epoch=1, topic_states=[topic])
        )
        gate.set()
        await settle()
        assert names(broker, 1) == ["future"]
        assert not broker.manager.log_dir_moves.partitions
        await broker.tell(follower(2))
        await moved(broker, 1)


async def test_a_failed_target_ends_the_move_and_nothing_else(tmp_path, monkeypatch):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a")
        broker.machine.fail(errno.EIO, "write", below=broker.paths[1], matching=".log")
        assert await alter(broker, 1) is OK
        await until(lambda: len(broker.log_manager.live_directories) == 1)
        await settle()
        assert not broker.manager.log_dir_moves.partitions
        assert broker.manager.partitions[T0].future_log is None
        append(broker, b"b")
        assert await values(broker) == [b"a", b"b"]


async def test_no_log_is_promoted_in_a_directory_that_has_just_failed(tmp_path, monkeypatch):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a")
        await copied(broker, monkeypatch)
        # Its logs are closed a moment later.
        future(broker).log_directory.fail(OSError(errno.EIO, "broken"), "writing another log")
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            broker.log_manager.promote_future(*T0)
        assert names(broker, 0) == ["current"]
        assert await values(broker) == [b"a"]


async def test_longer_retention_is_at_once_that_of_the_copy(tmp_path, monkeypatch):
    async with hosting_broker(tmp_path, directories=2, retention_ms="1000", segment_bytes="1000") as broker:
        await lead(broker)
        for _ in range(10):
            append(broker, bytes(400))
        await copied(broker, monkeypatch)
        broker.configs.change(retention_ms="-1", segment_bytes="1000")
        await broker.manager.update_topic_configs("t")
        monkeypatch.setattr(Machine, "now_ms", lambda self: NOW_MS + 3_600_000)
        broker.log_manager.start()
        await asyncio.sleep(60)  # Retention begins to look after 30 s.
        assert (log(broker).log_start_offset, future(broker).log_start_offset) == (0, 0)


async def test_a_deletion_of_records_is_answered_although_the_log_moves_meanwhile(tmp_path, monkeypatch):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a", b"b", b"c")
        await copied(broker, monkeypatch)
        monkeypatch.undo()
        run_blocking = broker.machine.run_blocking

        async def promote_before_the_checkpoint(function, *arguments):
            if any(str(one).startswith(f"{broker.paths[1]}/log-start") for one in arguments):
                await asyncio.sleep(1)
            elif partition.future_log is not None:
                broker.manager.log_dir_moves.remove([T0])
                partition.log, partition.future_log = broker.log_manager.promote_future(*T0), None
            return await run_blocking(function, *arguments)

        broker.machine.run_blocking = promote_before_the_checkpoint
        partition = broker.manager.partitions[T0]
        result = broker.manager.delete_records("t", 0, 2)
        await broker.manager.wait_deleted({T0: result}, 30_000)
        assert (result.error_code, result.low_watermark) == (OK, 2)


@pytest.mark.parametrize("topic_ids", [(TOPIC_ID, UUID(int=43)), (None, None)], ids=["topic-ids", "no-topic-ids"])
async def test_a_copy_of_a_deleted_topic_does_not_replace_the_log_of_a_new_topic(tmp_path, monkeypatch, topic_ids):
    lone: dict[str, Any] = {"isr": (1,), "replicas": (1,)}
    async with hosting_broker(tmp_path, directories=2) as broker:
        assert await broker.tell(state(**lone), topic_id=topic_ids[0]) == [OK]
        append(broker, b"old0", b"old1")
        append(broker, b"old2")
        await copied(broker, monkeypatch)
        await future(broker).flush()
        future(broker).log_directory.fail(OSError(errno.EIO, "away for a while"), "writing another log")
        await settle()
        topic = StopReplicaTopicState("t", [StopReplicaPartitionState(0, -2, True)])
        await broker.manager.stop_replicas(
            StopReplicaRequest(controller_id=9, controller_epoch=1, topic_states=[topic])
        )
        assert await broker.tell(state(**lone), topic_id=topic_ids[1]) == [OK]
        for number in range(4):
            append(broker, b"new%d" % number)
    monkeypatch.undo()
    async with hosting_broker(tmp_path, directories=2) as broker:
        assert (names(broker, 0), names(broker, 1)) == (["current", "deleted"], ["future"])
        assert await broker.tell(state(**lone, epoch=1), topic_id=topic_ids[1]) == [OK]
        await until(lambda: not broker.manager.log_dir_moves.partitions)
        assert await values(broker) == [b"new0", b"new1", b"new2", b"new3"]
        assert (names(broker, 0), names(broker, 1)) == (["current", "deleted"], ["deleted"])


async def test_a_failed_source_takes_the_partition_offline(tmp_path, monkeypatch):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a")
        broker.machine.fail(errno.EIO, "rename", below=broker.paths[0])
        assert await alter(broker, 1) is OK
        await until(lambda: len(broker.log_manager.live_directories) == 1)
        await settle()
        assert not broker.manager.log_dir_moves.partitions
        with pytest.raises(KafkaError, match="KAFKA_STORAGE_ERROR"):
            broker.manager.partition("t", 0)
        assert names(broker, 1) == ["future"]


async def test_a_full_target_delays_the_move(tmp_path):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a")
        assert await alter(broker, 1) is OK
        broker.machine.fill(below=broker.paths[1])
        await until(lambda: broker.manager.log_dir_moves.failing_count == 1)
        append(broker, b"b")
        broker.machine.heal()
        await moved(broker, 1)
        assert await values(broker) == [b"a", b"b"]


async def test_a_read_that_is_under_way_continues_in_the_new_place(tmp_path):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a", b"b")
        read_cached = broker.machine.file_system.open(f"{log(broker).directory}/00000000000000000000.log")
        pages = type(read_cached)
        read_cached.close()
        cold, pages.read_cached = pages.read_cached, lambda self, position, size_bytes: None
        try:
            assert await alter(broker, 1) is OK
            reads = [asyncio.ensure_future(values(broker)) for _ in range(3)]
            await moved(broker, 1)
            assert await asyncio.gather(*reads) == [[b"a", b"b"]] * 3
        finally:
            pages.read_cached = cold


async def test_a_long_log_is_copied_in_pieces_under_load(tmp_path):
    async with hosting_broker(tmp_path, directories=2, segment_bytes="20000") as broker:
        await lead(broker)
        expected = []
        for number in range(300):
            expected.append(b"%d" % number + bytes(700))
            append(broker, expected[-1])
        assert await alter(broker, 1) is OK
        while directory_of(broker) == 0:
            expected.append(b"%d" % len(expected))
            append(broker, expected[-1])
            await asyncio.sleep(0)
        assert len(expected) > 300
        assert await all_values(broker) == expected
        await moved(broker, 1)
        assert log(broker).recovery_point <= log(broker).log_end_offset


@pytest.mark.parametrize("rate", [50_000, 200_000])
async def test_a_throttled_copy_keeps_its_rate_within_a_tenth_over_ten_seconds(tmp_path, rate):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker)
        for _ in range(rate * 20 // 10_000):
            append(broker, bytes(10_000))
        broker.log_dirs_quota.bytes_per_second = rate
        assert await alter(broker, 1) is OK
        await asyncio.sleep(10)
        assert 9 * rate < future(broker).size_bytes < 11 * rate
        copied = future(broker).size_bytes
        await asyncio.sleep(5)
        assert 4.5 * rate < future(broker).size_bytes - copied < 5.5 * rate
        # A new rate takes effect within a second.
        broker.log_dirs_quota.bytes_per_second = 2**63 - 1
        await asyncio.sleep(1.1)
        assert directory_of(broker) == 1


async def test_a_throttle_of_nothing_stops_a_move(tmp_path):
    async with hosting_broker(tmp_path, directories=2) as broker:
        await lead(broker, b"a")
        broker.log_dirs_quota.bytes_per_second = 0
        assert await alter(broker, 1) is OK
        await asyncio.sleep(60)
        assert (directory_of(broker), future(broker).log_end_offset) == (0, 0)


@pytest.mark.parametrize("flush_messages", ["1", "1000000"])
async def test_no_step_of_a_move_syncs_many_files(tmp_path, monkeypatch, flush_messages):
    """flush.messages=1 syncs each append on the loop, but not the whole copy with it."""
    environment = MortalEnvironment()
    broker = DiskBroker(environment, segment_bytes="600", flush_messages=flush_messages)
    await broker.start()
    await lead(broker)
    for value in RECORDS * 3:
        append(broker, value)
    await settle()
    environment.most_syncs_on_the_loop = 0
    assert await alter(broker, 1) is OK
    await until(lambda: directory_of(broker) == 1)
    assert environment.most_syncs_on_the_loop <= 5
    assert await all_values(broker) == RECORDS * 3
    await broker.manager.stop()
    await broker.log_manager.stop()


# -- where a future log is cut ----------------------------------------------------------------------------------------


class Epochs:
    """A log as the leader epochs of its records. Records of one epoch and offset are the same in all logs."""

    def __init__(self, records, high_watermark=0):
        self.records = list(records)
        self.log_start_offset, self.high_watermark = 0, high_watermark

    @property
    def log_end_offset(self):
        return len(self.records)

    @property
    def leader_epochs(self):
        starts = {}
        for offset, epoch in enumerate(self.records):
            starts.setdefault(epoch, offset)
        return LeaderEpochCache(list(starts.items()), lambda entries: None)


def history(chance):
    """The logs of the leaders of ten epochs: each begins with a part of an earlier one."""
    leaders = [[0] * chance.randint(1, 5)]
    for epoch in range(1, 10):
        earlier = chance.choice(leaders[-3:])
        leaders.append(earlier[: chance.randint(0, len(earlier))] + [epoch] * chance.randint(0, 4))
    return leaders


def follow(log, leader, chance):
    """Makes the log a prefix of its leader's, as a follower does."""
    agreed = 0
    while agreed < min(len(log), len(leader)) and log[agreed] == leader[agreed]:
        agreed += 1
    end = chance.randint(agreed, len(leader))
    return log[:agreed] + leader[agreed:end]


def test_a_future_log_that_missed_truncations_is_cut_to_what_the_logs_share():
    for seed in range(1_000):
        chance = random.Random(seed)
        current, copies = [], [[]]
        for leader in history(chance):
            current = follow(current, leader, chance)
            copies.append(list(current))
        future: Any = Epochs(chance.choice(copies))
        now: Any = Epochs(current)
        while (cut := log_dir_moves.where_to_cut(now, future, None)) is not None:
            assert cut < future.log_end_offset, seed
            del future.records[cut:]
        assert future.records == current[: future.log_end_offset], seed


# -- what a start finds -----------------------------------------------------------------------------------------------


class DiskBroker(Broker):
    """A broker whose disk is in memory; it dies before its `dies_at`-th disk operation."""

    def __init__(self, environment, **options):
        super().__init__(Path("/disks"), directories=2, **options)
        self.machine.close()
        self.machine = environment
        environment.close = lambda: None


class MortalEnvironment(DiskEnvironment):
    def __init__(self):
        super().__init__()
        self.operations = self.syncs_on_the_loop = self.most_syncs_on_the_loop = 0
        self.dies_at = None
        touched = self.disk.touched

        def counted(operation, path):
            self.operations += 1
            if operation == "sync" and not self.is_blocking:
                self.syncs_on_the_loop += 1
                self.most_syncs_on_the_loop = max(self.most_syncs_on_the_loop, self.syncs_on_the_loop)
                asyncio.get_running_loop().call_soon(self.step_ended)
            if self.operations == self.dies_at:
                self.process.kill()
                self.process.check_alive()
            touched(operation, path)

        self.disk.touched = counted
        self.begin_process()

    def step_ended(self):
        self.syncs_on_the_loop = 0

    def begin_process(self):
        self.dies_at = None
        self.process = Process("process", "host")
        self.file_system = SimulatedFileSystem(self.disk, self.process)

    async def run_blocking(self, function, *arguments):
        await asyncio.sleep(0)
        self.is_blocking = True
        try:
            return function(*arguments)
        finally:
            self.is_blocking = False


RECORDS = [b"%d" % number + bytes(300) for number in range(10)]


async def begin(environment):
    broker = DiskBroker(environment, segment_bytes="2000", file_delete_delay_ms="1000")
    await broker.start()
    return broker


async def prepared(environment):
    """A broker that leads t-0 with RECORDS, all of them synced, and the name of its directory, too."""
    broker = await begin(environment)
    await lead(broker)
    for value in RECORDS:
        append(broker, value)
    await log(broker).flush()
    environment.file_system.sync_directory("/disks")
    return broker


async def move_until_over(broker, environment):
    """Moves t-0 to directory 1, until its former files are gone or the process dies."""
    try:
        await alter(broker, 1)
        for _ in range(500):
            await asyncio.sleep(0.05)
            if not environment.process.alive or (names(broker, 0) == [] and names(broker, 1) == ["current"]):
                return
    except RuntimeError:
        assert not environment.process.alive
        return
    raise AssertionError(f"the move does not end: {names(broker, 0)}, {names(broker, 1)}")


async def check_and_finish(environment, state_at_death):
    """The next start finds one current log with all records, and the move can be repeated."""
    broker = await begin(environment)
    broker.log_manager.start()
    found = names(broker, 0) + names(broker, 1)
    assert found.count("current") == 1, (state_at_death, found)
    assert found.count("future") <= 1
    assert await broker.tell(state(isr=(1,), replicas=(1,), epoch=7)) == [OK]
    assert await all_values(broker) == RECORDS, (state_at_death, found)
    append(broker, b"more")
    assert await alter(broker, 1) is OK
    await moved(broker, 1)
    await until(lambda: names(broker, 0) == [] and names(broker, 1) == ["current"])
    assert await all_values(broker) == [*RECORDS, b"more"]
    await broker.manager.stop()
    await broker.log_manager.stop()
    assert not broker.failures


async def all_values(broker):
    found = []
    position, end = log(broker).log_start_offset, log(broker).log_end_offset
    while position < end:
        before = log(broker)
        try:
            fetched = await before.read(position, 10_000, max_offset=end, minimum_one_batch=True)
        except KafkaError:
            assert log(broker) is not before
            continue
        found += values_in(fetched.data)
        position = fetched.next_offset
    return found


async def operations_of_a_move():
    environment = MortalEnvironment()
    broker = await prepared(environment)
    before = environment.operations
    await move_until_over(broker, environment)
    return environment.operations - before


@pytest.mark.parametrize("is_machine", [False, True])
async def test_a_death_at_any_disk_operation_of_a_move_loses_nothing(is_machine):
    found_at_death = set()
    for number in range(1, await operations_of_a_move()):
        environment = MortalEnvironment()
        broker = await prepared(environment)
        environment.dies_at = environment.operations + number
        await move_until_over(broker, environment)
        assert not environment.process.alive
        environment.disk.crash(lose_unsynced=is_machine)
        environment.begin_process()
        here = tuple(names(broker, 0)), tuple(names(broker, 1))
        found_at_death.add(here)
        await check_and_finish(environment, (number, here))
    assert (("current",), ("future",)) in found_at_death
    assert (("deleted",), ("future",)) in found_at_death
    assert (("deleted",), ("current",)) in found_at_death
