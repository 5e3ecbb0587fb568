"""What keeps a broker from starting, and what does not: directories, locks, ports, garbage in its files."""

import asyncio
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import check_crc, iterate_batches
from klamm.protocol.record.records import decode_records
from klamm.storage.segments.log_directory import format_partition_metadata
from support.one_broker import Client, OneBroker, batch, running, values

NONE = ErrorCode.NONE


async def fill(client: Client, *topics: str) -> list[bytes]:
    """The same records in each topic, over several segments, with all kinds of files."""
    records = [b"%02d" % number + bytes(80) for number in range(12)]
    for topic in topics:
        await client.create_topic(topic, segment_bytes="700", index_interval_bytes="0")
        for sequence, value in enumerate(records):
            made = batch(value, producer_id=5, producer_epoch=0, base_sequence=sequence)
            assert (await client.produce(topic, 0, made)).error_code == NONE
    return records


async def read_all(client: Client, topic: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    while (result := await client.fetch(topic, 0, len(found))).records:
        found += values(result.records)
    assert (result.error_code, result.high_watermark) == (NONE, len(found))
    return found


async def read_intact(client: Client, topic: str) -> list[bytes | None]:
    """What a client can read from the beginning on before something is damaged or missing."""
    found: list[bytes | None] = []
    read = -1
    while len(found) > read and (result := await client.fetch(topic, 0, len(found))).records:
        read = len(found)
        try:
            for position, header in iterate_batches(result.records, allow_partial_end=True):
                check_crc(result.records, position, header)
                for record in decode_records(result.records, position, header):
                    if record.offset != len(found):
                        return found
                    found.append(record.value)
        except KafkaError as error:
            assert error.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
            return found
    return found


async def fails_to_start(cluster: OneBroker, match: str, error: type[Exception] = KafkaError) -> None:
    with pytest.raises(error, match=match):
        await cluster.start_broker()
    await cluster.broker.stop()


def content_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


# -- directories that cannot be used


@pytest.mark.parametrize("where", ["file", "file/below"])
async def test_a_file_where_the_log_directory_should_be(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    async with running(tmp_path) as (cluster, client):
        records = await fill(client, "t")
        await cluster.broker.stop()
        cluster.properties["log.dirs"] = str(tmp_path / where)
        await fails_to_start(cluster, f"no log directory can be used: {tmp_path / where}: .*(exists|Not a directory)")
        assert (tmp_path / "file").read_bytes() == b"precious"
        # One good directory is enough.
        cluster.properties["log.dirs"] = f"{tmp_path / where},{tmp_path / 'data'}"
        await cluster.start_broker()
        assert await read_all(await cluster.connect(), "t") == records


async def test_a_log_directory_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "read-only"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "none", path]
    if os.getuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        warnings.warn("NOT TESTED on a file system that is really read-only: mounting one needs root", stacklevel=1)
        pytest.skip("mounting a read-only file system needs root")
    try:
        async with running(tmp_path) as (cluster, _):
            await cluster.broker.stop()
            cluster.properties["log.dirs"] = str(path)
            await fails_to_start(cluster, f"no log directory can be used: {path}: .*Read-only file system")
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("cluster.id=AAAAAAAAAAAAAAAAAAAAAA", "data belongs to cluster AAAAAAAAAAAAAAAAAAAAAA, this is cluster"),
        ("broker.id=7", "data belongs to broker 7, this is broker 0"),
        ("broker.id=garbage", "data/meta.properties: broker.id is 'garbage', not a number"),
        ("version=1", "data/meta.properties: version is 1, only 0 is known"),
    ],
    ids=["another cluster", "another broker", "garbage", "another version"],
)
async def test_a_directory_that_is_not_this_brokers(tmp_path: Path, line: str, match: str) -> None:
    async with running(tmp_path) as (cluster, client):
        records = await fill(client, "t")
        await cluster.broker.stop()
        meta = tmp_path / "data" / "meta.properties"
        original = meta.read_text()
        key = line.partition("=")[0]
        meta.write_text(re.sub(rf"^{re.escape(key)}=.*$", line, original, flags=re.MULTILINE))
        assert line in meta.read_text()
        before = content_of(tmp_path / "data")
        await fails_to_start(cluster, match)
        assert content_of(tmp_path / "data") == before
        meta.write_text(original)
        await cluster.start_broker()
        assert await read_all(await cluster.connect(), "t") == records


async def test_a_directory_that_another_process_uses(tmp_path: Path) -> None:
    holder_program = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True);"
        " sys.stdin.read()"
    )
    async with running(tmp_path) as (cluster, client):
        records = await fill(client, "t")
        await cluster.broker.stop()
        before = content_of(tmp_path / "data")
        holder = await asyncio.create_subprocess_exec(
            sys.executable, "-c", holder_program, tmp_path / "data" / ".lock", stdin=-1, stdout=-1
        )
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"held\n"
        await fails_to_start(cluster, f"log directory {tmp_path}/data is in use by another process")
        assert content_of(tmp_path / "data") == before
        await holder.communicate(b"")
        await cluster.start_broker()
        assert await read_all(await cluster.connect(), "t") == records


async def test_a_port_in_use(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        records = await fill(client, "t")
        await cluster.broker.stop()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            cluster.properties["listeners"] = f"PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:{port}"
            cluster.properties["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"
            await fails_to_start(cluster, f"{port}.*in use", OSError)
        # The failed start has let go of everything: its first listener, the lock, the session.
        await cluster.start_broker()
        assert await read_all(await cluster.connect("OTHER"), "t") == records


@pytest.mark.parametrize("key", ["listeners", "klamm.metrics.port"])
async def test_a_port_in_use_leaves_no_directory_behind(key: str, tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, _):
        await cluster.broker.stop()
        cluster.properties["log.dirs"] = f"{tmp_path}/new"
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            cluster.properties |= {"klamm.metrics.port": "-1", "listeners": "PLAINTEXT://127.0.0.1:0"}
            cluster.properties[key] = str(port) if key == "klamm.metrics.port" else f"PLAINTEXT://127.0.0.1:{port}"
            await fails_to_start(cluster, f"{port}.*in use", OSError)
        assert not (tmp_path / "new").exists()
        cluster.properties[key] = "-1" if key == "klamm.metrics.port" else "PLAINTEXT://127.0.0.1:0"
        await cluster.start_broker()
        assert (tmp_path / "new").exists()


# -- garbage in the files of a stopped broker

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "random": lambda content: random.Random(11).randbytes(max(50, len(content))),
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "with a tail": lambda content: content + random.Random(12).randbytes(37),
}

FILES = {
    "active log": "t-0/*9.log",
    "older log": "t-0/00000000000000000000.log",
    "indexes": "t-0/*.index",
    "time indexes": "t-0/*.timeindex",
    "transaction index": "t-0/*9.txnindex",
    "snapshots": "t-0/*.snapshot",
    "leader epochs": "t-0/leader-epoch-checkpoint",
    "topic id": "t-0/partition.metadata",
    "recovery points": "recovery-point-offset-checkpoint",
    "high watermarks": "replication-offset-checkpoint",
    "log starts": "log-start-offset-checkpoint",
    "identity": "meta.properties",
}


@pytest.mark.parametrize("clean", [True, False], ids=["after a stop", "after a kill"])
@pytest.mark.parametrize("file", FILES)
async def test_garbage_in_a_file(tmp_path: Path, file: str, clean: bool) -> None:
    """Either everything is there, or the start is refused with the file's name.

    Of a log itself, what was there before the damage is; nobody ever reads anything else as if it were a record.
    """
    async with running(tmp_path) as (cluster, client):
        records = await fill(client, "t", "other")
        await cluster.broker.stop()
        data, saved = tmp_path / "data", tmp_path / "saved"
        pattern = FILES[file]
        if pattern.startswith("t-0/*9"):
            newest = sorted(path.stem for path in (data / "t-0").glob("*.log"))[-1]
            pattern = pattern.replace("*9", newest)
        targets = sorted(data.glob(pattern)) if "*" in pattern else [data / pattern]
        assert targets
        data.rename(saved)
        for name, damage in DAMAGES.items():
            shutil.copytree(saved, data, dirs_exist_ok=False)
            if not clean:
                (data / ".kafka_cleanshutdown").unlink()
            for target in targets:
                target.write_bytes(damage(target.read_bytes() if target.exists() else b""))
            try:
                await cluster.start_broker()
            except KafkaError as error:
                assert str(target) in error.message, (name, error.message)
                await cluster.broker.stop()
                assert file in ("active log", "older log", "topic id", "identity"), (name, error.message)
            else:
                client = await cluster.connect()
                assert await read_all(client, "other") == records, name
                if not file.endswith("log"):
                    assert await read_all(client, "t") == records, name
                    assert (await client.produce("t", 0, batch(b"new"))).base_offset == len(records), name
                elif (file, name) == ("active log", "with a tail"):
                    assert await read_all(client, "t") == records
                else:
                    assert records[: len(found := await read_intact(client, "t"))] == found, name
                await cluster.broker.stop()
            shutil.rmtree(data)
        saved.rename(data)
        await cluster.start_broker()
        assert await read_all(await cluster.connect(), "t") == records


async def test_strangers_in_the_data_directory(tmp_path: Path) -> None:
    """What is no log is left alone; what a broker had deleted goes."""
    async with running(tmp_path) as (cluster, client):
        records = await fill(client, "t")
        await cluster.broker.stop()
        data = tmp_path / "data"
        strangers = ["notes.txt", "t-0.bak", "t-x/00000000000000000000.log", "no topic-0/x", "lost+found/x", "-3/x"]
        strangers += ["t-0/00000000000000000003.log.bak", "t-0/readme", "t-0/below/x", "t-0/xyz.log", "t-0/-5.index"]
        for name in strangers:
            (data / name).parent.mkdir(exist_ok=True)
            (data / name).write_bytes(b"precious")
        deleted = data / f"u-0.{'a' * 32}-delete"
        deleted.mkdir()
        (deleted / "00000000000000000000.log").write_bytes(b"gone")
        await cluster.start_broker()
        client = await cluster.connect()
        assert await read_all(client, "t") == records
        assert (await client.produce("t", 0, batch(b"new"))).error_code == NONE
        for name in strangers:
            assert (data / name).read_bytes() == b"precious"


async def test_one_partition_in_two_directories(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        records = await fill(client, "t")
        await cluster.broker.stop()
        cluster.properties["log.dirs"] = f"{tmp_path / 'data'},{tmp_path / 'second'}"
        shutil.copytree(tmp_path / "data", tmp_path / "second")
        (tmp_path / "second" / "t-0" / "partition.metadata").unlink()  # As of a broker before 2.8.
        both = f"{tmp_path}/(data|second)/t-0.*{tmp_path}/(data|second)/t-0"
        await fails_to_start(cluster, f"t-0 has two directories.*{both}")
        shutil.rmtree(tmp_path / "second" / "t-0")
        await cluster.start_broker()
        assert await read_all(await cluster.connect(), "t") == records


async def test_the_log_of_a_former_topic_in_another_directory(tmp_path: Path) -> None:
    """The broker asks ZooKeeper which topic of that name there is."""
    async with running(tmp_path) as (cluster, client):
        records = await fill(client, "t")
        await cluster.broker.stop()
        cluster.properties["log.dirs"] = f"{tmp_path / 'former'},{tmp_path / 'data'}"
        shutil.copytree(tmp_path / "data", tmp_path / "former")
        (tmp_path / "former" / "t-0" / "partition.metadata").write_bytes(format_partition_metadata(UUID(int=1)))
        await cluster.start_broker()
        assert await read_all(await cluster.connect(), "t") == records
        (stray,) = [path.name for path in (tmp_path / "former").iterdir() if path.is_dir()]
        assert re.fullmatch(r"t-0\.[0-9a-f]{32}-stray", stray)
