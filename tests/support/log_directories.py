"""Real log directories on disk, written by klamm's log manager and shut down cleanly."""

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from klamm.base.system_environment import SystemEnvironment
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import (
    ControlRecordType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
)
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.log import AppendOrigin, Log
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.log_directory import MetaProperties

NOW_MS = 1_700_000_000_000


def make_log_directory(
    directory: Path,
    *,
    topics: tuple[str, ...] = ("t",),
    broker_id: int = 1,
    fill: Callable[[Log], object] | None = None,
    config: LogConfig | None = None,
) -> None:
    """A log directory of cluster `cluster`; partition 0 of each topic is filled by `fill(log)`."""

    async def run() -> None:
        environment = SystemEnvironment()
        manager = LogManager(
            environment,
            [str(directory)],
            meta_properties=MetaProperties("cluster", broker_id),
            default_config=LogConfig(segment_bytes=4000),
            on_directory_failure=lambda path, error: None,
            on_failure=lambda error: None,
        )
        await manager.load({})
        for topic in topics:
            log = manager.get_or_create(topic, 0, uuid.UUID(int=1 << 80), config or LogConfig(segment_bytes=4000))
            (fill or fill_plainly)(log)
        await manager.stop()
        environment.close()

    asyncio.run(run())


def fill_plainly(log: Log) -> None:
    """100 batches of two records."""
    for number in range(100):
        log.append_as_leader(build_batch([Record(None, b"%d" % number * 20, NOW_MS)] * 2), 0, now_ms=NOW_MS)


def fill_with_all_kinds(log: Log) -> None:
    """All codecs, headers, keys or none, an idempotent producer, committed and aborted transactions, leader epochs."""
    sequence = 0
    for number in range(120):
        records = [
            Record(b"key %d" % each if each % 2 else None, b"value %d" % number * 5, NOW_MS + number, (("h", b"x"),))
            for each in range(number % 4 + 1)
        ]
        producer: dict[str, Any] = {}
        if number % 3 == 1:
            producer = {"producer_id": 4000, "producer_epoch": 2, "base_sequence": sequence}
            sequence += len(records)
        elif number % 3 == 2:
            producer = {
                "producer_id": 5000 + number,
                "producer_epoch": 0,
                "base_sequence": 0,
                "is_transactional": True,
            }
        batch = build_batch(records, codec=CompressionType(number % 5), **producer)
        log.append_as_leader(batch, number // 40, now_ms=NOW_MS)
        if number % 3 == 2 and number < 110:
            marker = build_end_transaction_marker(
                EndTransactionMarker(ControlRecordType(number % 2), 1),
                producer_id=5000 + number,
                producer_epoch=0,
                timestamp_ms=NOW_MS + number,
            )
            log.append_as_leader(marker, number // 40, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)
