"""Compaction by a broker's own process, through a client: what stays, what the configurations do."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.protocol import messages
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.record.records import Record, build_batch, decode_records
from klamm.protocol.vocabulary import ConfigResourceType, OpType
from support.one_broker import Client, OneBroker, running, until
from support.present import present

pytestmark = pytest.mark.loop("uvloop")

TABLE = {
    "cleanup_policy": "compact",
    "segment_bytes": "100000",
    "min_cleanable_dirty_ratio": "0.01",
    "file_delete_delay_ms": "0",
}
QUICK: dict[str, Any] = {"log_cleaner_backoff_ms": 50, "log_cleaner_dedupe_buffer_size": 2 << 20}
KEYS = 20
VALUE_BYTES = 1000


async def write(client: Client, rounds: int, first: int = 0) -> None:
    """A value of each key in every round, a batch for each round."""
    for number in range(first, first + rounds):
        now_ms = round(time.time() * 1000)
        records = [Record(b"key-%d" % key, b"%d" % number + b"." * VALUE_BYTES, now_ms) for key in range(KEYS)]
        assert (await client.produce("table", 0, memoryview(build_batch(records)))).error_code == 0


async def read(client: Client) -> list[tuple[int, bytes, bytes]]:
    """(offset, key, value without its filling) of all records."""
    found: list[tuple[int, bytes, bytes]] = []
    offset = 0
    while True:
        answer = await client.fetch("table", 0, offset, max_bytes=1 << 24)
        records = answer.records or b""
        headers = [header for _, header in iterate_batches(records, allow_partial_end=True)]
        if not headers:
            return found
        for position, header in iterate_batches(records, allow_partial_end=True):
            found += [
                (record.offset, present(record.key), present(record.value).rstrip(b"."))
                for record in decode_records(records, position, header)
                if record.offset >= offset
            ]
        offset = headers[-1].next_offset


def log_of(cluster: OneBroker) -> Any:
    return cluster.broker.parts.log_manager.get("table", 0)


def is_clean(cluster: OneBroker) -> bool:
    log = log_of(cluster)
    return log.first_dirty_offset == log.segments.base_offsets[-1]


async def cleaned(cluster: OneBroker, client: Client) -> list[tuple[int, bytes, bytes]]:
    await log_of(cluster).flush()
    await until(lambda: is_clean(cluster))
    return await read(client)


async def alter(client: Client, resource_type: ConfigResourceType, name: str, **configs: str) -> None:
    request = messages.request_class(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    changes = [
        request.AlterConfigsResource.AlterableConfig(
            name=key.replace("_", "."), config_operation=OpType.SET, value=value
        )
        for key, value in configs.items()
    ]
    resource = request.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=changes)
    answer = await client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
    assert [each.error_code for each in answer.responses] == [0], answer


async def alter_broker(client: Client, **configs: str) -> None:
    await alter(client, ConfigResourceType.BROKER, "0", **configs)


async def alter_topic(client: Client, **configs: str) -> None:
    await alter(client, ConfigResourceType.TOPIC, "table", **configs)


def processes(cluster: OneBroker) -> list[int]:
    assert isinstance(cluster.environment, SystemEnvironment)
    return [worker.pid for worker in cluster.environment._background if worker.pid is not None]


async def test_a_table_keeps_its_newest_values_and_its_offsets_also_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as (cluster, client):
        await client.create_topic("table", 1, **TABLE)
        await write(client, 40)
        before = await read(client)
        found = await cleaned(cluster, client)
        assert len(before) == 40 * KEYS
        assert len(found) < len(before) / 2
        assert found[-KEYS:] == before[-KEYS:]
        assert set(found) <= set(before)
        # The process takes only what no one else wants.
        (pid,) = processes(cluster)
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        assert cluster.environment.background_memory_bytes > 1 << 20
        await cluster.restart_broker()
        assert await read(await cluster.connect()) == found
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_killed_process_is_followed_by_another(tmp_path: Path) -> None:
    slow = {**QUICK, "log_cleaner_io_max_bytes_per_second": 100_000}
    async with running(tmp_path, **slow) as (cluster, client):
        await client.create_topic("table", 1, **TABLE)
        await write(client, 20)
        await log_of(cluster).flush()
        await until(lambda: processes(cluster) != [])
        os.kill(processes(cluster)[0], signal.SIGKILL)
        await alter_broker(client, log_cleaner_io_max_bytes_per_second="1e12")
        assert len(await cleaned(cluster, client)) < 20 * KEYS


async def test_the_rate_is_limited_and_changes_while_the_broker_runs(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as (cluster, client):
        await client.create_topic("table", 1, **TABLE)
        await write(client, 20)
        await cleaned(cluster, client)
        # A process is there; to start one takes longer than the rest.
        await alter_broker(client, log_cleaner_io_max_bytes_per_second="1e6")
        began_s = time.monotonic()
        await write(client, 50)
        await cleaned(cluster, client)
        # Each of the 50 rounds is 20 KB, which is read twice.
        assert time.monotonic() - began_s > 1.5


async def test_lags_and_the_ratio_hold_records_back_until_they_change(tmp_path: Path) -> None:
    async with running(tmp_path, **QUICK) as (cluster, client):
        held_back = {**TABLE, "min_compaction_lag_ms": "3600000", "min_cleanable_dirty_ratio": "0.9"}
        await client.create_topic("table", 1, **held_back)
        await write(client, 20)
        await log_of(cluster).flush()
        await asyncio.sleep(0.3)
        assert (len(await read(client)), processes(cluster)) == (20 * KEYS, [])
        await alter_topic(client, min_compaction_lag_ms="0")
        clean = len(await cleaned(cluster, client))
        assert clean < 20 * KEYS
        await write(client, 6)
        await log_of(cluster).flush()
        await asyncio.sleep(0.3)
        assert len(await read(client)) == clean + 6 * KEYS
        # Now each record must be compacted at once. The next record closes the segment of those before it.
        await alter_topic(client, max_compaction_lag_ms="1")
        await until(lambda: log_of(cluster).config.max_compaction_lag_ms == 1)
        await write(client, 1)
        assert len(await cleaned(cluster, client)) <= 2 * KEYS
