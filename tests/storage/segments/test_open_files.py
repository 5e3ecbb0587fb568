"""Log files are opened at their first use, and closed again when descriptors are short."""

import asyncio
import errno

import pytest

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.simulation.machine import disk as simulated_disk
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.log_directory import MetaProperties
from klamm.storage.segments.open_files import MIN_OPEN_FILES, OpenFiles
from support.logs import DiskEnvironment, append, read_all

DIRECTORY = "/data"
PARTITIONS = 30
CONFIG = LogConfig(index_interval_bytes=0)

pytestmark = pytest.mark.loop("virtual")


class Holder:
    def __init__(self, files, name, is_pinned=False):
        self.files, self.name, self.is_pinned = files, name, is_pinned
        self.was_used = self.is_open = False

    def use(self):
        self.was_used = True
        if not self.is_open:
            self.is_open = True
            self.files.opened(self)

    def close_if_idle(self):
        if self.is_pinned:
            return False
        self.is_open = False
        self.files.closed(self)
        return True


def opened(files, names, **named):
    holders = [Holder(files, name, **named) for name in names]
    for holder in holders:
        holder.use()
    return holders


def names_of_open(holders):
    return "".join(holder.name for holder in holders if holder.is_open)


def test_nothing_is_closed_while_there_are_descriptors():
    files = OpenFiles(lambda: False)
    holders = opened(files, "abcdef")
    assert names_of_open(holders) == "abcdef"
    assert len(files) == 6


def test_a_file_that_was_not_used_lately_is_closed_first():
    files = OpenFiles(lambda: len(files) >= 4)
    holders = opened(files, "abcd")
    for holder in holders:
        holder.was_used = holder.name in "ab"
    holders += opened(files, "e")
    assert names_of_open(holders) == "abde"
    # Without another use, a and b are like the others.
    holders += opened(files, "fg")
    assert names_of_open(holders) == "befg"


def test_a_closed_file_gives_its_descriptor_to_the_next_and_there_are_still_too_many():
    """Before, every second opened file took a descriptor more: the system assigns the lowest that is free."""
    free, taken = set(range(40)), {}

    class Numbered(Holder):
        def use(self):
            if not self.is_open:
                taken[self] = last[0] = min(free)
                free.remove(taken[self])
            super().use()

        def close_if_idle(self):
            free.add(taken.pop(self))
            return super().close_if_idle()

    last = [0]
    files = OpenFiles(lambda: last[0] >= 30)
    for name in range(200):
        Numbered(files, str(name)).use()
        assert len(taken) <= 31
    assert len(taken) >= 30


def test_more_files_may_be_open_when_connections_have_gone():
    most = 10
    files = OpenFiles(lambda: len(files) >= most)
    opened(files, map(str, range(100)))
    assert len(files) == 10
    most = 20
    opened(files, map(str, range(1000)))
    assert len(files) == 20


def test_a_file_is_closed_even_if_all_are_in_use_all_the_time():
    files = OpenFiles(lambda: len(files) >= 100)
    holders = opened(files, map(str, range(100)))
    for number in range(300):
        for holder in holders:
            holder.was_used = True
        holders += opened(files, [str(number)])
        assert len(files) == 100


def test_a_pinned_file_is_never_closed():
    files = OpenFiles(lambda: True)
    pinned = opened(files, "ab", is_pinned=True)
    others = opened(files, "cdef")
    assert names_of_open(pinned) == "ab"
    assert names_of_open(others) == "f"


def test_connections_take_all_descriptors_but_a_few():
    files = OpenFiles(lambda: False)
    opened(files, map(str, range(MIN_OPEN_FILES + 2)))
    assert [files.make_room(), files.make_room(), files.make_room()] == [True, True, False]
    assert len(files) == MIN_OPEN_FILES


# -- through logs


class Fixture:
    def __init__(self):
        self.environment = DiskEnvironment()
        self.failed = []
        self.manager = None

    async def load(self):
        self.manager = LogManager(
            self.environment,
            [DIRECTORY],
            meta_properties=MetaProperties("cluster", 1),
            default_config=CONFIG,
            on_directory_failure=lambda path, error: self.failed.append(path),
            on_failure=self.failed.append,
        )
        await self.manager.load({})
        return [self.manager.get_or_create("t", number, None, CONFIG) for number in range(PARTITIONS)]


@pytest.fixture
def fixture():
    return Fixture()


async def test_thirty_partitions_are_served_with_few_descriptors(fixture):
    """Before, each partition that was written to kept its log and its indexes open."""
    logs = await fixture.load()
    for turn in range(3):
        for log in logs:
            append(log, b"%d" % turn)
            assert fixture.environment.open_files <= simulated_disk.FEW_FILES + 1
    for log in logs:
        assert await read_all(log) == [(0, b"0"), (1, b"1"), (2, b"2")]
        assert fixture.environment.open_files <= simulated_disk.FEW_FILES + 1
    await fixture.manager.stop()
    assert fixture.environment.open_files == 0
    for log in await fixture.load():
        assert [value for _, value in await read_all(log)] == [b"0", b"1", b"2"]


async def test_a_file_stays_open_while_a_read_waits_for_the_disk(fixture, monkeypatch):
    logs = await fixture.load()
    first = logs[0]
    append(first, b"a")
    monkeypatch.setattr(simulated_disk, "COLD_CHANCE", 1.0)

    def write_to_the_others():
        for log in logs[1:]:
            append(log, b"b")
        assert fixture.environment.open_files <= simulated_disk.FEW_FILES + 1
        assert first._segments.active._file is not None

    fixture.environment.before_blocking = write_to_the_others
    assert await read_all(first) == [(0, b"a")]


@pytest.mark.parametrize("operation", ["append", "read"])
async def test_a_log_that_cannot_be_opened_again_takes_its_directory_offline(fixture, operation):
    logs = await fixture.load()
    for log in logs:
        append(log, b"a")
    first = logs[0]
    assert first._segments.active._file is None
    fixture.environment.disk.fail("open", f"{first.directory}/*.log", errno.EIO)
    with pytest.raises(KafkaError) as caught:
        if operation == "append":
            append(first, b"b")
        else:
            await read_all(first)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    await asyncio.sleep(0)
    assert fixture.failed == [DIRECTORY]
    with pytest.raises(KafkaError, match="is offline since"):
        append(logs[1], b"b")


async def test_a_log_that_lacks_a_descriptor_for_a_while_is_opened_later(fixture):
    logs = await fixture.load()
    for log in logs:
        append(log, b"a")
    first = logs[0]
    fixture.environment.disk.fail("open", f"{first.directory}/*.log", errno.EMFILE, times=2)
    for _ in range(2):
        with pytest.raises(KafkaError, match="Too many open files"):
            append(first, b"b")
    append(first, b"c")
    assert await read_all(first) == [(0, b"a"), (1, b"c")]
    assert not fixture.failed


async def test_a_started_log_has_no_index_in_memory(fixture):
    logs = await fixture.load()
    for log in logs:
        append(log, b"a")
        append(log, b"b")
    # After a clean stop, and after none: then the indexes have just been made anew.
    for stop in (fixture.manager.stop, None):
        if stop is not None:
            await stop()
        else:
            fixture.environment.disk.crash(lose_unsynced=False)
        logs = await fixture.load()
        assert all(
            segment._offset_index is None and segment._time_index is None for log in logs for segment in log._segments
        )
        for log in logs:
            assert [value for _, value in await read_all(log)] == [b"a", b"b"]
