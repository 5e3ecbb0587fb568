import errno
import random

import pytest

from klamm.simulation.machine.disk import PAGE_BYTES, Disk, SimulatedFileSystem
from klamm.simulation.machine.process import Process, ProcessDead
from klamm.simulation.machine.trace import Trace

SEEDS = range(200)


class Machine:
    """A disk and the one process on it."""

    def __init__(self, seed=1):
        self.now_ms = 1000
        self.trace = Trace(lambda: 0)
        self.disk = Disk("disk", random.Random(seed), self.trace, lambda: self.now_ms)
        self.restart()

    def restart(self):
        self.process = Process("process", "disk")
        self.files = SimulatedFileSystem(self.disk, self.process)

    def crash(self, lose_unsynced=True):
        self.process.kill()
        self.disk.crash(lose_unsynced=lose_unsynced)
        self.restart()
        return self.files


def outcomes(prepare):
    """Every state of the disk that some seed leaves after `prepare` and the death of the machine."""
    states = set()
    for seed in SEEDS:
        machine = Machine(seed)
        prepare(machine.files)
        files = machine.crash()
        states.add(frozenset((name, files.read_file(f"/d/{name}")) for name in names(files)))
    return states


def names(files, path="/d"):
    return files.list_directory(path) if files.exists(path) else []


def write(files, path, content, *, sync=False):
    file = files.open(path, create=True)
    file.write(0, content)
    if sync:
        file.sync()
    return file


def durable_directory(files):
    files.make_directories("/d")
    files.sync_directory("/")


# -- as a file system ---------------------------------------------------------------------------------------------


def test_reads_and_writes_at_positions():
    files = Machine().files
    file = files.open("/f", create=True)
    assert file.size() == 0
    assert file.write(2, b"cd", bytearray(b"e"), memoryview(b"f")) == 4
    assert file.read(0, 100) == b"\0\0cdef"
    assert file.read(3, 2) == b"de"
    assert file.read(6, 5) == b""
    file.truncate(3)
    assert file.read(0, 100) == b"\0\0c"
    file.truncate(5)
    assert files.read_file("/f") == b"\0\0c\0\0"
    assert files.size("/f") == 5


def test_what_is_read_belongs_to_the_reader():
    file = Machine().files.open("/f", create=True)
    file.write(0, b"abc")
    file.read(0, 3)[0] = 0
    assert file.read(0, 3) == b"abc"


def test_cached_reads_miss_sometimes():
    file = Machine().files.open("/f", create=True)
    file.write(0, b"abc")
    results = [file.read_cached(1, 9) for _ in range(100)]
    assert set(map(str, results)) == {"None", str(bytearray(b"bc"))}


def test_names():
    machine = Machine()
    files = machine.files
    files.make_directories("/a/b/c")
    files.make_directories("/a/b")
    write(files, "/a/b/z", b"1")
    write(files, "/a/b/y", b"2")
    assert files.list_directory("/a/b") == ["c", "y", "z"]
    assert files.is_directory("/a/b") and not files.is_directory("/a/b/z")
    files.rename("/a/b/z", "/a/b/y")
    assert files.read_file("/a/b/y") == b"1"
    files.rename("/a/b", "/e")
    assert files.exists("/e/y") and not files.exists("/a/b")
    files.remove("/e/y")
    files.remove_tree("/e")
    files.remove_tree("/e")
    assert files.list_directory("/") == ["a"]
    files.replace_file("/a/x", b"content")
    assert files.list_directory("/a") == ["x"]
    machine.now_ms = 2000
    write(files, "/a/x", b"content")
    assert files.modified_time_ms("/a/x") == 2000


@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (lambda files: files.open("/none"), FileNotFoundError),
        (lambda files: files.open("/none/f", create=True), FileNotFoundError),
        (lambda files: files.open("/d"), IsADirectoryError),
        (lambda files: files.open("/f/g", create=True), NotADirectoryError),
        (lambda files: files.list_directory("/none"), FileNotFoundError),
        (lambda files: files.list_directory("/f"), NotADirectoryError),
        (lambda files: files.make_directories("/f"), FileExistsError),
        (lambda files: files.make_directories("/f/g"), NotADirectoryError),
        (lambda files: files.size("/none"), FileNotFoundError),
        (lambda files: files.modified_time_ms("/none"), FileNotFoundError),
        (lambda files: files.remove("/none"), FileNotFoundError),
        (lambda files: files.remove("/d"), IsADirectoryError),
        (lambda files: files.rename("/none", "/g"), FileNotFoundError),
        (lambda files: files.rename("/f", "/d"), IsADirectoryError),
        (lambda files: files.rename("/d", "/f"), NotADirectoryError),
        (lambda files: files.rename("/e", "/d"), OSError),
        (lambda files: files.rename("/d", "/d/below"), OSError),
        (lambda files: files.sync_directory("/none"), FileNotFoundError),
        (lambda files: files.open("relative"), ValueError),
    ],
)
def test_errors(operation, error):
    files = Machine().files
    files.make_directories("/d/full")
    files.make_directories("/e")
    write(files, "/f", b"")
    with pytest.raises(error):
        operation(files)


def test_a_closed_file():
    file = Machine().files.open("/f", create=True)
    file.close()
    file.close()
    with pytest.raises(OSError) as error:
        file.read(0, 1)
    assert error.value.errno == errno.EBADF


def test_an_open_file_outlives_its_name():
    files = Machine().files
    file = write(files, "/f", b"kept")
    files.remove("/f")
    assert file.read(0, 4) == b"kept"


# -- crashes ------------------------------------------------------------------------------------------------------


def test_the_death_of_a_process_loses_nothing_that_was_written():
    machine = Machine()
    write(machine.files, "/f", b"unsynced")
    assert machine.crash(lose_unsynced=False).read_file("/f") == b"unsynced"


def test_what_is_synced_survives_everything():
    def prepare(files):
        durable_directory(files)
        write(files, "/d/f", b"synced", sync=True)
        files.sync_directory("/d")

    assert outcomes(prepare) == {frozenset({("f", b"synced")})}


def test_a_process_death_before_the_machine_dies_makes_nothing_durable():
    lost = 0
    for seed in SEEDS:
        machine = Machine(seed)
        write(machine.files, "/f", b"unsynced", sync=True)
        machine.crash(lose_unsynced=False)
        lost += not machine.crash().exists("/f")
    assert lost > 20


def test_a_name_needs_its_directory_synced():
    def prepare(files):
        durable_directory(files)
        write(files, "/d/f", b"synced", sync=True)

    assert outcomes(prepare) == {frozenset(), frozenset({("f", b"synced")})}


def test_a_directory_needs_its_parent_synced():
    def prepare(files):
        files.make_directories("/d")
        write(files, "/d/f", b"synced", sync=True)
        files.sync_directory("/d")

    assert outcomes(prepare) == {frozenset(), frozenset({("f", b"synced")})}


def test_contents_need_a_sync_of_their_own():
    def prepare(files):
        durable_directory(files)
        write(files, "/d/f", b"ab")
        files.sync_directory("/d")

    assert outcomes(prepare) == {frozenset({("f", content)}) for content in (b"", b"a", b"ab")}


def test_the_unsynced_tail_may_be_torn_or_lose_pages():
    first, second = b"1" * PAGE_BYTES, b"2" * PAGE_BYTES
    contents = set()
    for seed in SEEDS:
        machine = Machine(seed)
        file = write(machine.files, "/f", b"old", sync=True)
        machine.files.sync_directory("/")
        file.write(0, first, second)
        contents.add(machine.crash().read_file("/f"))
    assert {b"old", first + second, first, b"old" + bytes(PAGE_BYTES - 3) + second} <= contents
    assert any(len(first) < len(content) < len(first + second) for content in contents)


def test_a_rename_survives_as_a_whole_or_not_at_all():
    def prepare(files):
        durable_directory(files)
        write(files, "/d/f", b"old", sync=True)
        files.sync_directory("/d")
        write(files, "/d/f.tmp", b"new", sync=True)
        files.rename("/d/f.tmp", "/d/f")

    assert outcomes(prepare) == {
        frozenset({("f", b"old")}),
        frozenset({("f", b"old"), ("f.tmp", b"new")}),
        frozenset({("f", b"new")}),
    }


def test_replace_file_is_durable():
    def prepare(files):
        durable_directory(files)
        files.replace_file("/d/f", b"old")
        files.replace_file("/d/f", b"new")

    assert outcomes(prepare) == {frozenset({("f", b"new")})}


def test_a_rename_without_a_sync_of_the_contents_may_lose_them():
    def prepare(files):
        durable_directory(files)
        write(files, "/d/f.tmp", b"new")
        files.rename("/d/f.tmp", "/d/f")
        files.sync_directory("/d")

    assert frozenset({("f", b"")}) in outcomes(prepare)


def test_a_rename_between_directories_loses_no_file():
    for seed in SEEDS:
        machine = Machine(seed)
        files = machine.files
        files.make_directories("/d")
        files.make_directories("/e")
        files.sync_directory("/")
        write(files, "/d/f", b"x", sync=True)
        files.sync_directory("/d")
        files.rename("/d/f", "/e/f")
        if seed % 2:
            files.sync_directory("/e")
        files = machine.crash()
        assert (names(files, "/d"), names(files, "/e")) in (
            [(["f"], []), ([], ["f"])] if seed % 2 == 0 else [([], ["f"])]
        )


def test_a_removal_needs_its_directory_synced():
    def prepare(files):
        durable_directory(files)
        write(files, "/d/f", b"x", sync=True)
        files.sync_directory("/d")
        files.remove("/d/f")

    assert outcomes(prepare) == {frozenset(), frozenset({("f", b"x")})}


def test_syncing_a_directory_takes_what_its_changes_build_on_with_it():
    for seed in SEEDS:
        machine = Machine(seed)
        files = machine.files
        for directory in ("/d", "/e"):
            files.make_directories(directory)
            write(files, f"{directory}/f", directory.encode(), sync=True)
            files.sync_directory(directory)
        files.sync_directory("/")
        files.remove("/d/f")
        files.rename("/e/f", "/d/f")
        files.sync_directory("/e")
        assert machine.crash().read_file("/d/f") == b"/e"


def test_a_removed_tree_may_be_half_gone():
    def prepare(files):
        durable_directory(files)
        for name in "abc":
            write(files, f"/d/{name}", b"", sync=True)
        files.sync_directory("/d")
        files.remove_tree("/d")

    sizes = {len(state) for state in outcomes(prepare)}
    assert sizes == {0, 1, 2, 3}


def test_a_dead_process_can_do_nothing():
    machine = Machine()
    files, file = machine.files, write(machine.files, "/f", b"x")
    machine.crash(lose_unsynced=False)
    for call in (
        lambda: file.read(0, 1),
        lambda: file.write(0, b"y"),
        lambda: file.truncate(0),
        file.sync,
        lambda: files.open("/f"),
        lambda: files.rename("/f", "/g"),
        lambda: files.list_directory("/"),
    ):
        with pytest.raises(ProcessDead):
            call()
    file.close()
    assert machine.files.read_file("/f") == b"x"


def test_locks():
    machine = Machine()
    other = SimulatedFileSystem(machine.disk, Process("other", "disk"))
    lock = machine.files.lock("/lock")
    with pytest.raises(BlockingIOError):
        other.lock("/lock")
    lock.close()
    other.lock("/lock").close()
    machine.files.lock("/lock")
    machine.crash(lose_unsynced=False)
    other.lock("/lock")
    with pytest.raises(BlockingIOError):
        machine.files.lock("/lock")


# -- faults -------------------------------------------------------------------------------------------------------


def test_a_full_disk():
    machine = Machine()
    machine.disk.capacity_bytes = 100
    file = write(machine.files, "/f", bytes(90))
    with pytest.raises(OSError) as error:
        file.write(90, bytes(20))
    assert error.value.errno == errno.ENOSPC
    assert file.size() <= 100
    file.write(0, b"overwriting needs no room")
    file.truncate(10)
    file.write(10, bytes(90))
    with pytest.raises(OSError):
        file.truncate(101)
    machine.files.remove("/f")
    write(machine.files, "/g", bytes(100))


def test_a_disk_that_fails_until_it_is_mended():
    machine = Machine()
    file = write(machine.files, "/logs", b"x")
    machine.disk.fail("*", "/logs*", times=None)
    machine.disk.capacity_bytes = 1
    for _ in range(10):
        for operation in (file.size, file.sync, lambda: file.write(0, b"y"), lambda: machine.files.exists("/logs")):
            with pytest.raises(OSError):
                operation()
    machine.disk.mend()
    file.write(1, bytes(100))
    assert file.size() == 101


def test_injected_faults():
    machine = Machine()
    machine.disk.fail("write", "/logs/*", times=2)
    machine.disk.fail("open", "/logs/b", errno.EACCES)
    machine.files.make_directories("/logs")
    write(machine.files, "/elsewhere", b"x")
    file = machine.files.open("/logs/a", create=True)
    for _ in range(2):
        with pytest.raises(OSError) as error:
            file.write(0, b"x")
        assert error.value.errno == errno.EIO
    file.write(0, b"x")
    with pytest.raises(PermissionError):
        machine.files.open("/logs/b", create=True)
    machine.files.open("/logs/b", create=True)


def test_after_a_failed_sync_the_contents_may_never_be_durable():
    lost = 0
    for seed in SEEDS:
        machine = Machine(seed)
        file = write(machine.files, "/f", b"old", sync=True)
        machine.files.sync_directory("/")
        file.write(0, b"new")
        machine.disk.fail("sync", "/f")
        with pytest.raises(OSError):
            file.sync()
        file.sync()
        assert file.read(0, 3) == b"new"
        lost += machine.crash().read_file("/f") == b"old"
    assert lost == len(SEEDS)


def test_every_change_is_traced():
    machine = Machine()
    files = machine.files
    files.make_directories("/d")
    file = write(files, "/d/f", b"123456789", sync=True)
    file.truncate(0)
    files.sync_directory("/d")
    files.rename("/d/f", "/d/g")
    files.remove("/d/g")
    files.remove_tree("/d")
    files.lock("/lock")
    assert [line.split(maxsplit=2)[2] for line in machine.trace.lines] == [
        "mkdir /d",
        "create /d/f",
        "write /d/f 0 9 e3069283",
        "sync /d/f",
        "truncate /d/f 0",
        "sync-directory /d",
        "rename /d/f /d/g",
        "remove /d/g",
        "rmdir /d",
        "create /lock",
        "lock /lock",
    ]


def test_a_rotten_bit_is_read_and_survives_the_machine():
    machine = Machine()
    durable_directory(machine.files)
    write(machine.files, "/d/log", b"abc", sync=True)
    machine.files.sync_directory("/d")
    machine.disk.rot("/d/log", 1, 0)
    assert machine.files.read_file("/d/log") == b"acc"
    assert machine.crash().read_file("/d/log") == b"acc"
