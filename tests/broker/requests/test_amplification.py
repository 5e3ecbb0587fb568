"""What clients ask for in few bytes is not answered with very many: what a request repeats is answered once, and what
it names is answered with a bounded number of bytes for each of its own.

The answer about one thing may be as large as the thing: a topic's partitions, a group's members, a batch of records.
"""

import struct
from pathlib import Path
from typing import Any

import pytest

from klamm.net.server.response_memory import MAX_SHARE_BYTES
from klamm.protocol.messages import ApiKey
from support.filled_requests import CASES, ELEMENTS, Filling, frame_of
from support.group_wire import commit_request, find_coordinator, join_fully, sync
from support.one_broker import Client, batch, running
from support.transaction_wire import Producer

# The most bytes of an answer for each byte of a request beyond its first element.
MOST = 10
LARGE = bytes(20_000)

NAME = "t"
# They end what others are asked about, so they come last.
LAST = (ApiKey.DELETE_RECORDS, ApiKey.OFFSET_DELETE, ApiKey.DELETE_GROUPS, ApiKey.LEAVE_GROUP, ApiKey.DELETE_TOPICS)
ALL = {"group_id": NAME, "key": NAME, "transactional_id": NAME, "partition_max_bytes": 10**6, "max_bytes": 10**9}


async def fill(client: Client) -> None:
    """A topic, a group and a transactional id of the same name, each much larger than that."""
    await client.create_topic(NAME, partitions=100)
    await find_coordinator(client, NAME)
    producer = await Producer.begin(client, NAME)
    await producer.add(*((NAME, number) for number in range(100)))
    assert (await client.produce(NAME, 0, batch(LARGE))).error_code == 0
    request = commit_request({(NAME, 0): 1}, NAME)
    request.topics[0].partitions[0].committed_metadata = "x" * 4096
    assert (await client.request(ApiKey.OFFSET_COMMIT, 8, request)).topics[0].partitions[0].error_code == 0
    joined = await join_fully(client, NAME, protocols=[("range", LARGE)])
    assert (await sync(client, joined, {joined.member_id: LARGE}, NAME)).error_code == 0


async def sizes(client: Client, frame: bytes) -> tuple[int, int]:
    """Of a request and of its answer."""
    client.send_raw(frame)
    (size,) = struct.unpack(">i", await client.reader.readexactly(4))
    await client.reader.readexactly(size)
    return len(frame), size


@pytest.mark.parametrize("text", [NAME, None])
async def test_no_answer_is_many_times_as_large_as_its_request(tmp_path: Path, text: str | None) -> None:
    """All elements name the same, or each names another."""
    properties: dict[str, Any] = {"offsets_topic_num_partitions": 1, "offsets_topic_replication_factor": 1}
    properties |= {"transaction_state_log_num_partitions": 1, "transaction_state_log_replication_factor": 1}
    properties |= {"transaction_state_log_min_isr": 1, "group_initial_rebalance_delay_ms": 0}
    too_large = []
    async with running(tmp_path, auto_create_topics_enable=False, **properties) as (_, client):
        await fill(client)
        for key, path in sorted(CASES, key=lambda case: LAST.index(case[0]) if case[0] in LAST else -1):
            one, many = [
                await sizes(client, frame_of(key, path, Filling(elements, text, **ALL))) for elements in (1, ELEMENTS)
            ]
            asked, answered = many[0] - one[0], many[1] - one[1]
            # Records are within the budget of responses, however often a partition is named.
            if answered > (MAX_SHARE_BYTES if key is ApiKey.FETCH else MOST * asked):
                too_large.append(f"{key.name} {'.'.join(path)}: {answered} bytes more for {asked} bytes more")
    assert not too_large, "\n".join(too_large)
