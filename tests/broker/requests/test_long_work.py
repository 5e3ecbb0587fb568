"""What takes seconds on the disk, such as syncs and deletions, holds up nobody who waits for something else."""

import asyncio
import threading
from pathlib import Path

from klamm.base.system_environment import SystemEnvironment, SystemFile, SystemFileSystem
from klamm.protocol.apis.delete_records import DeleteRecordsRequest
from klamm.protocol.messages import ApiKey
from support.one_broker import OneBroker, batch, until

HELD = "held"
TOPICS = 10


class HeldFile(SystemFile):
    """Syncs of the topics `held-...` do not end before `release`; no read is in the page cache."""

    release = threading.Event()
    waiting = 0

    def sync(self) -> None:
        if f"/{HELD}-" in self.path:
            HeldFile.waiting += 1
            assert self.release.wait(120)
        super().sync()

    def read_cached(self, position: int, size_bytes: int) -> bytearray | None:
        return None


class HeldFiles(SystemFileSystem):
    file_type = HeldFile

    def remove(self, path: str) -> None:
        if f"/{HELD}-" in path:
            assert HeldFile.release.wait(120)
        super().remove(path)


async def test_reads_and_deletions_of_records_are_answered_while_all_threads_of_long_work_are_busy(
    tmp_path: Path,
) -> None:
    """Before, ten topics that rolled a segment took all threads, and nothing cold was read until their syncs ended."""
    environment = SystemEnvironment()
    environment.file_system = HeldFiles()
    HeldFile.release.clear()
    HeldFile.waiting = 0
    async with asyncio.timeout(120), OneBroker(tmp_path, environment=environment) as cluster:
        client = await cluster.connect()
        await client.create_topic("t")
        for _ in range(3):
            assert (await client.produce("t", 0, batch(b"x"))).error_code == 0
        try:
            for number in range(TOPICS):
                await client.create_topic(f"{HELD}-{number}", segment_bytes="100")
                for _ in range(3):
                    assert (await client.produce(f"{HELD}-{number}", 0, batch(b"x"))).error_code == 0
            await until(lambda: HeldFile.waiting >= 4)
            assert (await client.fetch("t", 0, 1)).records
            of = DeleteRecordsRequest.DeleteRecordsTopic
            topic = of(name="t", partitions=[of.DeleteRecordsPartition(partition_index=0, offset=2)])
            answer = await client.ask(ApiKey.DELETE_RECORDS, topics=[topic], timeout_ms=30_000)
            assert answer.topics[0].partitions[0].error_code == 0
        finally:
            HeldFile.release.set()
    environment.close()
