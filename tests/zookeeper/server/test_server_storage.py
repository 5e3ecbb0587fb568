"""Transaction log, snapshots and recovery: what a crash leaves is read back, what was damaged is never skipped."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.system_environment import SystemEnvironment
from klamm.zookeeper import messages
from klamm.zookeeper.messages import OPEN_ACL, Acl
from klamm.zookeeper.server.access_control import Caller
from klamm.zookeeper.server.blocks import (
    HEADER_BYTES,
    LOG_MAGIC,
    CorruptDataError,
    encode_block,
    encode_header,
    next_block,
    read_blocks,
    read_salt,
)
from klamm.zookeeper.server.database import Database
from klamm.zookeeper.server.records import (
    decode_batch,
    decode_nodes,
    decode_snapshot_start,
    encode_batch,
    encode_record,
)
from klamm.zookeeper.server.snapshots import recover
from klamm.zookeeper.server.transactions import (
    CheckVersionTxn,
    CloseSessionTxn,
    CreateSessionTxn,
    CreateTxn,
    DeleteTxn,
    MultiTxn,
    SetAclTxn,
    SetDataTxn,
)
from klamm.zookeeper.server.tree import ZnodeTree

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=10)
data = st.none() | st.binary(max_size=20)
acls = st.just(OPEN_ACL) | st.lists(st.builds(Acl, int32, text, text), max_size=3).map(tuple)
node_txns = st.one_of(
    st.builds(CreateTxn, text, data, acls, int64, int32),
    st.builds(DeleteTxn, text),
    st.builds(SetDataTxn, text, data, int32),
    st.builds(SetAclTxn, text, acls, int32),
    st.builds(CheckVersionTxn, text),
)
txns = st.one_of(
    node_txns,
    st.builds(CreateSessionTxn, int64, int32, st.binary(max_size=16)),
    st.builds(CloseSessionTxn, int64),
    st.builds(MultiTxn, st.lists(node_txns, max_size=4).map(tuple)),
)


@given(st.lists(st.tuples(st.integers(0, 2**62), txns), max_size=5), st.integers(1, 2**60))
def test_transactions_come_back_as_they_were_written(written: list[tuple[int, object]], first_zxid: int) -> None:
    payload = encode_batch(first_zxid, [encode_record(time_ms, txn) for time_ms, txn in written])  # type: ignore[arg-type]
    expected = [(first_zxid + index, time_ms, txn) for index, (time_ms, txn) in enumerate(written)]
    assert decode_batch(payload) == expected


@given(st.binary(max_size=60))
def test_garbage_is_never_taken_for_records(payload: bytes) -> None:
    for decode in (decode_batch, decode_nodes, decode_snapshot_start):
        try:
            decode(payload)
        except CorruptDataError:
            continue


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.integers(0, 2**32 - 1), st.data())
def test_blocks_end_where_the_damage_begins(payloads: list[bytes], salt: int, draw: st.DataObject) -> None:
    whole = encode_header(LOG_MAGIC, salt)
    ends = [HEADER_BYTES]
    for payload in payloads:
        whole += encode_block(payload, salt)
        ends.append(len(whole))
    assert read_salt(whole, LOG_MAGIC) == salt
    assert list(read_blocks(whole, salt)) == list(zip(ends[1:], payloads, strict=True))
    position = draw.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[position] ^= draw.draw(st.integers(1, 255))
    if position < HEADER_BYTES:
        assert read_salt(bytes(damaged), LOG_MAGIC) is None
        return
    intact = sum(1 for end in ends[1:] if end <= position)
    assert [payload for _, payload in read_blocks(bytes(damaged), salt)] == payloads[:intact]
    found = next_block(bytes(damaged), ends[intact] + 1, salt)
    assert found == (ends[intact + 1] if intact + 1 < len(payloads) else None)


def test_a_block_of_another_file_is_no_block() -> None:
    ours = encode_header(LOG_MAGIC, 1) + encode_block(b"ours", 1)
    stored_by_a_client = encode_block(b"theirs", 2)
    assert len(list(read_blocks(ours + stored_by_a_client, 1))) == 1
    assert next_block(ours + b"torn" + stored_by_a_client, len(ours), 1) is None


# -- directories


async def fill(directory: Path, counts: list[int], snapshot_every: int = 10**9, data: bytes = b"data") -> list[str]:
    """Runs a database several times; each time creates so many znodes, every one in a batch of its own. Their paths."""
    environment = SystemEnvironment()
    paths: list[str] = []

    async def run(count: int) -> None:
        durable = asyncio.Event()
        failures: list[Exception] = []
        database = Database(environment, str(directory), snapshot_every, lambda zxid: durable.set(), failures.append)
        await database.open()
        for _ in range(count):
            paths.append(f"/{len(paths)}")
            durable.clear()
            database.commit(database.tree.prepare(messages.Create(paths[-1], data), Caller(1, ())))
            await durable.wait()
            if database._snapshotting is not None:
                await database._snapshotting
        await database.close()
        assert not failures

    for count in counts:
        await run(count)
    environment.close()
    return paths


def read(directory: Path) -> ZnodeTree:
    environment = SystemEnvironment()
    try:
        return recover(environment.file_system, str(directory)).tree
    finally:
        environment.close()


def znodes(tree: ZnodeTree) -> list[str]:
    return [f"/{name}" for name in tree.get_children("/", Caller(1, ()))[0] if name != "zookeeper"]


def logs(directory: Path) -> list[Path]:
    return sorted(directory.glob("log.*"))


def snapshots(directory: Path) -> list[Path]:
    return sorted(directory.glob("snapshot.*"))


async def test_every_run_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    paths = await fill(tmp_path, [3, 0, 2, 4])
    tree = read(tmp_path)
    assert znodes(tree) == paths
    assert tree.zxid == 9
    assert [log.name for log in logs(tmp_path)] == [f"log.{first:016x}" for first in (1, 4, 6)]


async def test_a_torn_tail_is_cut_at_every_length(tmp_path: Path) -> None:
    paths = await fill(tmp_path, [3])
    (log,) = logs(tmp_path)
    whole = log.read_bytes()
    ends = [end for end, _ in read_blocks(whole, read_salt(whole, LOG_MAGIC) or 0)]
    for size in range(ends[1], len(whole)):
        log.write_bytes(whole[:size])
        assert znodes(read(tmp_path)) == paths[:2]
        assert log.stat().st_size == ends[1]
    for tail in (b"\0" * 700, b"garbage", b"\0\0\0\7garbage" * 40):
        log.write_bytes(whole + tail)
        assert znodes(read(tmp_path)) == paths
        assert log.read_bytes() == whole


async def test_damage_with_a_batch_behind_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    await fill(tmp_path, [3])
    (log,) = logs(tmp_path)
    whole = log.read_bytes()
    ends = [end for end, _ in read_blocks(whole, read_salt(whole, LOG_MAGIC) or 0)]
    for position in range(HEADER_BYTES, ends[1]):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        log.write_bytes(damaged)
        start = HEADER_BYTES if position < ends[0] else ends[0]
        behind = ends[0] if position < ends[0] else ends[1]
        with pytest.raises(CorruptDataError, match=f"damaged at byte {start}, with a valid batch at byte {behind}"):
            read(tmp_path)
        assert log.read_bytes() == damaged


async def test_damage_before_the_newest_log_is_refused(tmp_path: Path) -> None:
    await fill(tmp_path, [2, 2])
    first, _ = logs(tmp_path)
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    with pytest.raises(CorruptDataError, match=r"log.0000000000000001 is damaged at byte \d+, and newer transactions"):
        read(tmp_path)
    first.write_bytes(b"x" + whole[1:])
    with pytest.raises(CorruptDataError, match="no valid header"):
        read(tmp_path)
    first.unlink()
    with pytest.raises(CorruptDataError, match=r"transactions 1 to 2 are missing, before log\.0000000000000003"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"klammZL1", bytes(HEADER_BYTES)])
async def test_a_log_whose_header_never_became_durable_is_dropped(tmp_path: Path, content: bytes) -> None:
    paths = await fill(tmp_path, [2])
    (tmp_path / "log.0000000000000003").write_bytes(content)
    assert znodes(read(tmp_path)) == paths
    assert len(logs(tmp_path)) == 1


async def test_two_snapshots_and_the_logs_that_the_older_needs_are_kept(tmp_path: Path) -> None:
    paths = await fill(tmp_path, [20], snapshot_every=3)
    assert len(snapshots(tmp_path)) == 2
    oldest = int(snapshots(tmp_path)[0].name.removeprefix("snapshot."), 16)
    assert int(logs(tmp_path)[0].name.removeprefix("log."), 16) == oldest + 1
    assert znodes(read(tmp_path)) == paths
    for log in logs(tmp_path):
        log.unlink()
    assert znodes(read(tmp_path)) == paths[: int(snapshots(tmp_path)[1].name.removeprefix("snapshot."), 16)]


async def test_restarts_do_not_put_the_next_snapshot_off(tmp_path: Path) -> None:
    paths = await fill(tmp_path, [3] * 8, snapshot_every=10)
    assert len(snapshots(tmp_path)) == 2
    assert znodes(read(tmp_path)) == paths


async def test_restarts_without_many_writes_do_not_heap_up_logs(tmp_path: Path) -> None:
    paths = await fill(tmp_path, [1] * 60)
    assert len(snapshots(tmp_path)) == 2
    assert len(logs(tmp_path)) <= 25
    assert znodes(read(tmp_path)) == paths


async def test_an_unreadable_snapshot_is_made_good_by_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = await fill(tmp_path, [20], snapshot_every=3)
    older, newest = snapshots(tmp_path)
    whole = newest.read_bytes()
    for damaged in (b"", whole[:10], whole[:-8], whole[:-1], whole[:50] + bytes([whole[50] ^ 0xFF]) + whole[51:]):
        newest.write_bytes(damaged)
        assert znodes(read(tmp_path)) == paths
    assert "is not readable and left out" in caplog.text
    older.write_bytes(b"")
    with pytest.raises(CorruptDataError, match="none of its snapshots is readable"):
        read(tmp_path)


async def test_large_znodes_come_back_from_a_snapshot(tmp_path: Path) -> None:
    paths = await fill(tmp_path, [60], snapshot_every=50, data=bytes(500_000))
    for log in logs(tmp_path):
        log.unlink()
    tree = read(tmp_path)
    assert sorted(znodes(tree)) == sorted(paths[:50])
    assert {tree.get_data(path, Caller(1, ()))[0] for path in paths[:50]} == {bytes(500_000)}


async def test_a_session_with_megabytes_of_ephemerals_ends_and_stays_ended(tmp_path: Path) -> None:
    environment = SystemEnvironment()
    failures: list[Exception] = []
    database = Database(environment, str(tmp_path), 10**9, lambda zxid: None, failures.append)
    await database.open()
    database.commit(CreateSessionTxn(1, 1000, b"secret"))
    for number in range(10):
        create = messages.Create(f"/{number}" + 900_000 * "x", b"", flags=messages.CreateMode.EPHEMERAL)
        database.commit(database.tree.prepare(create, Caller(1, ())))
    database.commit(CloseSessionTxn(1))
    await database.close()
    assert not failures
    environment.close()
    tree = read(tmp_path)
    assert (tree.sessions, tree.ephemeral_count, znodes(tree)) == ({}, 0, [])


async def test_a_snapshot_that_was_not_finished_is_removed(tmp_path: Path) -> None:
    paths = await fill(tmp_path, [2])
    (tmp_path / "snapshot.0000000000000002.tmp").write_bytes(b"half")
    assert znodes(read(tmp_path)) == paths
    assert snapshots(tmp_path) == []


async def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    paths = await fill(tmp_path, [2])
    for name in ("log.txt", "snapshot.old", "notes"):
        (tmp_path / name).write_bytes(b"mine")
    assert znodes(read(tmp_path)) == paths
    assert (tmp_path / "log.txt").read_bytes() == b"mine"


def test_a_batch_that_does_not_follow_is_refused(tmp_path: Path) -> None:
    salt = 5
    record = encode_record(1, DeleteTxn("/never-was"))
    log = encode_header(LOG_MAGIC, salt) + encode_block(encode_batch(1, [record]), salt)
    (tmp_path / "log.0000000000000001").write_bytes(log)
    with pytest.raises(CorruptDataError, match="does not fit the state before it"):
        read(tmp_path)


async def test_data_and_acls_come_back_through_snapshot_and_log(tmp_path: Path) -> None:
    environment = SystemEnvironment()
    acl = (Acl(31, "digest", "me:x="), Acl(1, "world", "anyone"))
    database = Database(environment, str(tmp_path), 2, lambda zxid: None, lambda error: None)
    await database.open()
    me = Caller(5, ())
    database.commit(CreateSessionTxn(5, 4000, b"password"))
    for request in (
        messages.Create("/null", None),
        messages.Create("/acl", b"x", acl),
        messages.Create("/ephemeral", b"e", flags=1),
        messages.SetData("/null", b"set"),
        messages.SetData("/null", None),
    ):
        database.commit(database.tree.prepare(request, me))
        await asyncio.sleep(0.01)
    await database.close()
    environment.close()
    assert snapshots(tmp_path)
    tree = read(tmp_path)
    assert tree.get_data("/null", Caller(1, ()))[0] is None
    assert tree.stat("/null").version == 2
    assert tree.get_acl("/acl", Caller(1, ()))[0][1] == acl[1]
    assert tree.stat("/ephemeral").ephemeral_owner == 5
    assert tree.sessions[5] == (4000, b"password")
    assert tree.last_session_id == 5
