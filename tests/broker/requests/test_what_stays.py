"""Nothing of a request stays in memory when it is answered and its client is gone."""

import gc
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.filled_requests import CASES, Filling, frame_of
from support.group_wire import find_coordinator
from support.one_broker import running

# Nearly what a record or a request in an old version can hold, and longer than any name that is kept.
LENGTH = 32_000
MARK = "a name that nobody else has"
REQUESTS_OF_EACH_KIND = 3


@pytest.fixture
def unlogged() -> Iterator[None]:
    """pytest keeps what is logged."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def kept_bytes() -> int:
    """What texts with the mark take that any container still has."""
    gc.collect()
    found: dict[int, int] = {}
    for container in gc.get_objects():
        for one in gc.get_referents(container):
            is_long = isinstance(one, str | bytes) and len(one) > LENGTH // 2
            if is_long and (MARK if isinstance(one, str) else MARK.encode()) in one:
                found[id(one)] = sys.getsizeof(one)
    return sum(found.values())


async def test_nothing_of_long_names_stays(tmp_path: Path, unlogged: None) -> None:
    properties: dict[str, Any] = {"offsets_topic_num_partitions": 1, "offsets_topic_replication_factor": 1}
    async with running(tmp_path, auto_create_topics_enable=False, **properties) as (cluster, client):
        await find_coordinator(client)
        other = await cluster.connect()
        for number, (key, path) in enumerate(CASES * REQUESTS_OF_EACH_KIND):
            name = f"{MARK} {number} ".ljust(LENGTH, "x")
            names = {"group_id": name, "key": name, "member_id": name, "group_instance_id": name}
            other.send_raw(frame_of(key, path, Filling(2, name, **names)))
            await other.receive()
        del name, names
        await other.close()
        assert kept_bytes() == 0
