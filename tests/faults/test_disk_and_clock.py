"""The disk and the clock of a broker under faults, without a broker."""

import asyncio
import errno
import itertools
import os
import threading
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from klamm.base.environment import FileSystem
from klamm.faults.clock import FaultyClock
from klamm.faults.commands import Json, from_json
from klamm.faults.commands.clock import ShiftClock
from klamm.faults.commands.disk import DiskFault, FailDisk, FullDisk, SlowDisk
from klamm.faults.environment import EnvironmentUnderFaults
from klamm.faults.file_system import DiskFaults, FaultyFileSystem, QuietFile, TroubledFile
from klamm.faults.tally import Tally, wish_path

_numbers = itertools.count(1)


class Machine:
    """A disk, and what its faults have struck."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.faults = DiskFaults([str(directory), "/d", "/d/x"][::-1])
        self.files = FaultyFileSystem(self.faults)
        self.strikes: list[Mapping[str, Json]] = []
        self.end: Callable[[], None] = lambda: None

    def install(self, fault: DiskFault) -> Tally:
        tally = self.tally(next(_numbers))
        self.end = self.faults.install(fault, tally)
        return tally

    def tally(self, number: int) -> Tally:
        """Of a fault that its owner wants."""
        directory = self.directory / str(number)
        directory.mkdir(exist_ok=True)
        wish_path(directory).touch()
        return Tally(number, str(self.directory), lambda _, details: self.strikes.append(details))

    def path(self, name: str) -> str:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        return str(path)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_open_file_fails_from_the_installation_of_a_fault_until_its_end(machine: Machine) -> None:
    file = machine.files.open(machine.path("t-0/00000000000000000000.log"), create=True)
    assert type(file) is QuietFile
    file.write(0, b"abc")
    machine.install(FailDisk())
    assert type(file) is TroubledFile
    assert file.read_cached(0, 3) is None
    for operation in (lambda: file.write(3, b"d"), lambda: file.read(0, 3), file.sync, lambda: file.truncate(0)):
        with pytest.raises(OSError, match="Input/output error") as raised:
            operation()
        assert raised.value.errno == errno.EIO
    assert file.size() == 3
    machine.end()
    assert type(file) is QuietFile
    assert file.read(0, 3) == b"abc"
    assert file.read_cached(0, 3) == b"abc"


def test_a_file_that_opens_under_a_fault_has_it(machine: Machine) -> None:
    machine.install(FailDisk(operations=("write",)))
    file = machine.files.open(machine.path("a"), create=True)
    with pytest.raises(OSError, match="Input/output error"):
        file.write(0, b"a")
    file.sync()


@pytest.mark.parametrize(
    ("fault", "struck"),
    [
        (FailDisk(), ["t-0/1.log", "t-1/1.index", "u-0/1.log", "x/t-0.0123456789abcdef0123456789abcdef-delete/1.log"]),
        (FailDisk(topic="t"), ["t-0/1.log", "t-1/1.index", "x/t-0.0123456789abcdef0123456789abcdef-delete/1.log"]),
        (FailDisk(topic="t", partition=1), ["t-1/1.index"]),
        (FailDisk(file="*.log", topic="u"), ["u-0/1.log"]),
        (FailDisk(file="*.index"), ["t-1/1.index"]),
        (FailDisk(directory="/d/x"), ["x/t-0.0123456789abcdef0123456789abcdef-delete/1.log"]),
        (FailDisk(directory="/d/t"), []),
        (FailDisk(operations=("sync", "read")), []),
    ],
)
def test_a_fault_concerns_only_its_files(machine: Machine, fault: FailDisk, struck: list[str]) -> None:
    names = ["t-0/1.log", "t-1/1.index", "u-0/1.log", "x/t-0.0123456789abcdef0123456789abcdef-delete/1.log"]
    machine.install(fault)
    assert [name for name in names if machine.faults.concern("write", f"/d/{name}")] == struck


def test_the_files_and_partitions_that_were_struck_are_told(machine: Machine) -> None:
    machine.install(FailDisk(operations=("open", "rename", "remove", "sync"), error="EROFS"))
    path = machine.path("t-7/1.log")
    files = machine.files
    for operation in (
        lambda: files.open(path, create=True),
        lambda: files.rename(path, path + ".deleted"),
        lambda: files.remove(path),
        lambda: files.remove_tree(os.path.dirname(path)),
        lambda: files.sync_directory(str(machine.directory)),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            operation()
    assert [(strike["operation"], strike.get("topic"), strike.get("partition")) for strike in machine.strikes] == [
        ("open", "t", 7),
        ("rename", "t", 7),
        ("remove", "t", 7),
        ("remove", "t", 7),
        ("sync", None, None),
    ]


def test_a_fault_strikes_as_often_as_it_may_and_counts_all_calls(machine: Machine) -> None:
    file = machine.files.open(machine.path("a"), create=True)

    def failures(calls: int) -> list[int]:
        failed = []
        for call in range(1, calls + 1):
            try:
                file.sync()
            except OSError:
                failed.append(call)
        return failed

    once = machine.install(FailDisk(times=1))
    assert (failures(3), once.calls, once.hits) == ([1], 3, 1)
    machine.end()
    third = machine.install(FailDisk(on_call=(2, 4)))
    assert (failures(5), third.calls, third.hits) == ([2, 4], 5, 2)
    machine.end()
    machine.install(FailDisk(on_call=(2, 4), times=1))
    assert failures(5) == [2]


def test_two_servers_share_the_count_of_a_fault(tmp_path: Path) -> None:
    struck = []
    for _ in range(2):
        faults = DiskFaults([])
        faults.install(FailDisk(times=1), Tally(1, str(tmp_path), lambda *_: None))
        try:
            FaultyFileSystem(faults).sync_directory(str(tmp_path))
        except OSError:
            struck.append(True)
    assert struck == [True]


def test_a_full_disk_takes_what_fits_and_has_room_again_for_what_is_removed(machine: Machine) -> None:
    kept = machine.files.open(machine.path("kept"), create=True)
    kept.write(0, bytes(10))
    machine.files.replace_file(machine.path("old"), bytes(5))
    full = machine.install(FullDisk(bytes_left=4))
    assert kept.write(0, bytes(12)) == 12
    with pytest.raises(OSError, match="No space left") as raised:
        kept.write(12, b"ab", b"cd")
    assert raised.value.errno == errno.ENOSPC
    assert (kept.size(), full.hits) == (14, 1)
    assert kept.read(10, 4) == b"\0\0ab"
    kept.truncate(12)
    with pytest.raises(OSError, match="No space left"):
        kept.allocate(100)
    kept.write(12, b"a")
    kept.write(13, b"x")
    with pytest.raises(OSError, match="No space left"):
        machine.files.replace_file(machine.path("old"), b"newer")
    machine.files.remove(machine.path("old"))
    machine.files.replace_file(machine.path("new"), b"newer")
    machine.end()
    kept.write(14, bytes(1000))


def test_of_two_full_disks_the_smaller_one_decides_and_the_other_keeps_its_room(machine: Machine) -> None:
    machine.install(FullDisk(bytes_left=10))
    machine.install(FullDisk(bytes_left=3))
    file = machine.files.open(machine.path("a"), create=True)
    with pytest.raises(OSError, match="No space left"):
        file.write(0, bytes(8))
    assert file.size() == 3
    machine.end()
    file.write(3, bytes(7))
    with pytest.raises(OSError, match="No space left"):
        file.write(10, b"x")


def test_a_full_disk_has_no_more_room_when_its_broker_starts_again(machine: Machine) -> None:
    full = FullDisk(bytes_left=10)
    machine.faults.install(full, machine.tally(1))
    machine.files.open(machine.path("a"), create=True).write(0, bytes(7))
    again = Machine(machine.directory)
    again.faults.install(full, again.tally(1))
    file = again.files.open(again.path("b"), create=True)
    file.write(0, bytes(3))
    with pytest.raises(OSError, match="No space left"):
        file.write(3, b"x")


def test_a_wait_that_holds_the_loop_ends_when_the_fault_is_no_longer_wanted(machine: Machine) -> None:
    file = machine.files.open(machine.path("a"), create=True)
    slow = machine.install(SlowDisk(ms=1_000_000))
    wish = wish_path(machine.directory / str(slow.number))
    owner = threading.Timer(0.05, wish.unlink)
    owner.start()
    file.write(0, b"a")
    assert (file.size(), slow.hits, wish.exists()) == (1, 1, False)


async def test_a_slow_disk_waits_and_its_end_ends_the_wait(machine: Machine) -> None:
    file = machine.files.open(machine.path("a"), create=True)
    slow = machine.install(SlowDisk(ms=1, operations=("write",)))
    file.write(0, b"a")
    file.sync()
    assert (slow.calls, slow.hits) == (1, 1)
    machine.end()
    struck = asyncio.Event()
    tally = machine.tally(next(_numbers))
    tally._on_strike = lambda *_: struck.set()
    machine.end = machine.faults.install(SlowDisk(ms=1_000_000), tally)
    syncing = asyncio.get_running_loop().run_in_executor(None, file.sync)
    await struck.wait()
    machine.end()
    await asyncio.wait_for(syncing, 120)


async def test_strikes_in_threads_are_told_in_the_loop(machine: Machine) -> None:
    loop = asyncio.get_running_loop()
    told: asyncio.Future[Mapping[str, Json]] = loop.create_future()
    tally = Tally(next(_numbers), str(machine.directory), lambda _, details: told.set_result(details))
    machine.faults.install(FailDisk(), tally)
    with pytest.raises(OSError, match="Input/output error"):
        await loop.run_in_executor(None, machine.files.sync_directory, str(machine.directory))
    assert await told == {"operation": "sync", "path": str(machine.directory)}


def _fill(file_system: FileSystem, path: str, size_bytes: int) -> Generator[float, None, int]:
    file = file_system.open(path, create=True)
    yield 0
    return file.write(0, bytes(size_bytes))


async def test_work_in_the_background_has_the_faults_of_the_disk(tmp_path: Path) -> None:
    environment = EnvironmentUnderFaults(str(tmp_path), [])
    strikes: list[Mapping[str, Json]] = []
    tally = Tally(1, str(tmp_path), lambda _, details: strikes.append(details))
    end = environment._disk.install(FullDisk(bytes_left=100), tally)
    path = str(tmp_path / "t-0")
    try:
        assert await environment.run_in_background(_fill, path, 90) == 90
        with pytest.raises(OSError, match="No space left"):
            await environment.run_in_background(_fill, path, 101)
        assert [strike["operation"] for strike in strikes] == ["write"]
        assert (tally.calls, tally.hits, os.path.getsize(path)) == (2, 1, 100)
        end()
        assert await environment.run_in_background(_fill, path, 101) == 101
    finally:
        environment.close()


def test_a_clock_is_shifted_and_drifts_until_the_end_of_the_fault(tmp_path: Path) -> None:
    true_ms = 1_000_000
    clock = FaultyClock(lambda: true_ms)
    shifted, drifting = (Tally(number, str(tmp_path), lambda *_: None) for number in (1, 2))
    end_shift = clock.install(ShiftClock(ms=-5_000), shifted)
    assert clock.now_ms() == 995_000
    end_drift = clock.install(ShiftClock(drift_ppm=100_000), drifting)
    true_ms += 60_000
    assert clock.now_ms() == 1_061_000
    end_shift()
    assert clock.now_ms() == 1_066_000
    end_drift()
    assert (clock.now_ms(), shifted.hits, drifting.hits) == (1_060_000, 1, 1)


def test_a_clock_drifts_on_when_its_broker_starts_again(tmp_path: Path) -> None:
    ahead_ms = []
    for true_ms in (1_000_000, 1_060_000):
        clock = FaultyClock(partial(int, true_ms))
        clock.install(ShiftClock(drift_ppm=100_000), Tally(1, str(tmp_path), lambda *_: None))
        ahead_ms.append(clock.now_ms() - true_ms)
    assert ahead_ms == [0, 6_000]


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        ({"kind": "disk.slow"}, "disk.slow needs the field ms: a number"),
        ({"kind": "disk.slow", "ms": -1}, "disk.slow: ms=-1 is not allowed; allowed: 0 to 86,400,000"),
        ({"kind": "disk.slow", "ms": 1, "partition": 0}, "disk.slow: partition=0 needs a topic"),
        ({"kind": "disk.fail", "broker": -1}, "disk.fail: broker=-1 is not allowed; allowed: the id of a broker"),
        ({"kind": "disk.fail", "times": 0}, "disk.fail: times=0 is not allowed; allowed: at least 1"),
        ({"kind": "disk.fail", "on_call": [0]}, "disk.fail: on_call=(0,) is not allowed; allowed: numbers of"),
        ({"kind": "disk.fail", "directory": "x"}, "disk.fail: directory='x' is not allowed; allowed: an absolute path"),
        ({"kind": "disk.fail", "error": "EPERM"}, "disk.fail: error='EPERM' is not allowed; allowed: 'EIO', 'ENOSPC'"),
        ({"kind": "disk.fail", "operations": ["fsync"]}, "disk.fail: operations=('fsync',) is not allowed; allowed: a"),
        ({"kind": "disk.full", "bytes_left": 2**63}, "disk.full: bytes_left=9223372036854775808 is not allowed"),
        ({"kind": "clock.shift", "ms": 2**63 - 1}, "clock.shift: ms=9223372036854775807 is not allowed; allowed: -1,"),
        ({"kind": "clock.shift", "drift_ppm": 2e6}, "clock.shift: drift_ppm=2000000.0 is not allowed; allowed: -1,0"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(form: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=r"is not allowed|needs") as raised:
        from_json(form)
    assert str(raised.value).startswith(problem)
