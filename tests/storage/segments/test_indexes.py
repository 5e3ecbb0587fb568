import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.storage.segments.index_file import CorruptIndexError
from klamm.storage.segments.offset_index import OffsetIndex
from klamm.storage.segments.time_index import TimeIndex
from klamm.storage.segments.transaction_index import AbortedTransaction, TransactionIndex
from klamm.storage.segments.unsynced_files import UnsyncedFiles, sync
from support.logs import DiskEnvironment

BASE = 10**12


def new(kind, environment=None):
    environment = environment or DiskEnvironment()
    index = kind(environment.file_system, "/index", BASE, UnsyncedFiles())
    if not index.file.exists():
        environment.file_system.open("/index", create=True).close()
    return index


def test_the_offset_index_is_kafkas():
    environment = DiskEnvironment()
    index = new(OffsetIndex, environment)
    index.load()
    index.append(BASE + 5, 4200)
    index.append(BASE + 2**31 - 1, 2**31 - 2)
    index.file.write_pending()
    assert environment.file_system.read_file("/index").hex() == "00000005000010687fffffff7ffffffe"
    assert index.last_entry_on_disk() == (BASE + 2**31 - 1, 2**31 - 2)


@given(st.sets(st.tuples(st.integers(0, 1000), st.integers(1, 10**6)), max_size=20), st.integers(-5, 1005))
def test_offset_lookups(pairs, wanted):
    entries = list(zip(sorted({o for o, _ in pairs}), sorted({p for _, p in pairs}), strict=False))
    environment = DiskEnvironment()
    index = new(OffsetIndex, environment)
    index.load()
    for offset, position in entries:
        index.append(BASE + offset, position)
    index.file.write_pending()
    for again in (index, new(OffsetIndex, environment)):
        again.load()
        assert again.lookup(BASE + wanted) == max((p for o, p in entries if o <= wanted), default=0)
        assert again.boundary_before(wanted * 1000) == max((p for _, p in entries if p <= wanted * 1000), default=0)
    index.truncate_to(BASE + wanted, 500_000)
    kept = [(o, p) for o, p in entries if o < wanted and p < 500_000]
    assert index.entry_count == len(kept)
    again = new(OffsetIndex, environment)
    again.load()
    assert again.entry_count == len(kept)
    assert again.last_entry_on_disk() == ((BASE + kept[-1][0], kept[-1][1]) if kept else (BASE, 0))


def test_the_time_index_is_kafkas():
    environment = DiskEnvironment()
    index = new(TimeIndex, environment)
    index.load()
    index.maybe_append(0x0102030405060708, BASE + 9)
    index.maybe_append(0x0102030405060708, BASE + 10)
    index.file.write_pending()
    assert environment.file_system.read_file("/index").hex() == "010203040506070800000009"
    assert index.last_entry_on_disk() == index.last_entry() == (0x0102030405060708, BASE + 9)


def test_time_lookups():
    index = new(TimeIndex)
    index.load()
    assert index.lookup(5) == BASE
    for timestamp, offset in ((10, 3), (20, 3), (30, 8)):
        index.maybe_append(timestamp, BASE + offset)
    assert [index.lookup(t) - BASE for t in (9, 10, 19, 20, 30, 99)] == [0, 3, 3, 3, 8, 8]
    index.truncate_to(BASE + 8)
    assert index.last_entry() == (20, BASE + 3)
    index.truncate_to(BASE + 3)
    assert index.last_entry() == (-1, BASE)


def test_a_record_of_1970_is_no_preallocation():
    index = new(TimeIndex)
    index.load()
    index.maybe_append(0, BASE)
    index.file.write_pending()
    assert index.last_entry_on_disk() == (0, BASE)


def test_the_transaction_index_is_kafkas():
    environment = DiskEnvironment()
    index = new(TransactionIndex, environment)
    index.append([AbortedTransaction(7, BASE + 1, BASE + 2, BASE + 3)])
    content = environment.file_system.read_file("/index")
    assert content.hex() == "0000" + "".join(f"{value:016x}" for value in (7, BASE + 1, BASE + 2, BASE + 3))
    index.append([AbortedTransaction(8, BASE + 4, BASE + 5, BASE + 6)])
    again = new(TransactionIndex, environment)
    again.load()
    assert again.entries == index.entries
    again.truncate_to(BASE + 5)
    assert [entry.producer_id for entry in again.entries] == [7]


@given(st.binary(max_size=100))
def test_garbage_in_indexes(content):
    environment = DiskEnvironment()
    environment.file_system.replace_file("/index", content)
    for kind in (OffsetIndex, TimeIndex, TransactionIndex):
        index = new(kind, environment)
        try:
            index.load()
            if kind is not TransactionIndex:
                index.lookup(BASE + 50)
                index.last_entry_on_disk()
        except CorruptIndexError as error:
            assert "/index" in str(error)


@pytest.mark.parametrize("seed", range(5))
def test_a_full_disk_holds_entries_back(seed):
    environment = DiskEnvironment(seed=seed)
    index = new(OffsetIndex, environment)
    index.load()
    index.append(BASE + 1, 10)
    index.file.write_pending()
    environment.disk.capacity_bytes = environment.disk.used_bytes() + 5
    for entry in (2, 3):
        index.append(BASE + entry, 10 * entry)
        with pytest.raises(OSError, match="No space"):
            index.file.write_pending()
        # No part of an entry stays behind.
        assert environment.file_system.size(index.file.path) == 8
    assert index.lookup(BASE + 3) == 30
    index.truncate_to(BASE + 3, 30)
    environment.disk.capacity_bytes = None
    index.append(BASE + 4, 40)
    index.file.write_pending()
    again = new(OffsetIndex, environment)
    again.load()
    assert [again.lookup(BASE + i) for i in range(1, 5)] == [10, 20, 20, 40]


def test_an_index_keeps_no_file_open():
    environment = DiskEnvironment()
    index = new(TimeIndex, environment)
    index.load()
    index.maybe_append(10, BASE)
    index.file.write_pending()
    index.truncate_to(BASE)
    assert environment.open_files == 0


@given(st.lists(st.tuples(st.integers(1, 2**40), st.integers(0, 3)), max_size=30))
def test_the_columns_of_a_time_index_are_what_was_written(steps):
    environment = DiskEnvironment()
    index = new(TimeIndex, environment)
    index.load()
    timestamp, offset, written = 0, 0, []
    for later, further in steps:
        timestamp, offset = timestamp + later, offset + further
        index.maybe_append(timestamp, BASE + offset)
        written.append((timestamp, BASE + offset))
    index.file.write_pending()
    again = new(TimeIndex, environment)
    again.load()
    assert [again.lookup(timestamp) for timestamp, _ in written] == [offset for _, offset in written]
    assert again.last_entry() == again.last_entry_on_disk() == (written[-1] if written else (-1, BASE))


def test_overlapping_syncs_take_no_credit_for_each_other():
    environment = DiskEnvironment()
    environment.file_system.replace_file("/f", b"")
    unsynced = UnsyncedFiles()
    unsynced.mark("/f")
    first = unsynced.pending()
    unsynced.mark("/f")
    second = unsynced.pending()
    unsynced.settle(first, sync(environment.file_system, first))
    assert unsynced.pending() == second
    unsynced.settle(second, sync(environment.file_system, second))
    assert not unsynced.pending()
    unsynced.mark("/gone")
    pending = unsynced.pending()
    with pytest.raises(FileNotFoundError):
        unsynced.settle(pending, sync(environment.file_system, pending))
    unsynced.forget("/gone")
    unsynced.settle(pending, ["/gone"])
