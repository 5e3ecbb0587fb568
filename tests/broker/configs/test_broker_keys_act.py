"""Keys of a broker that show in its answers, each with another value than the default."""

from pathlib import Path
from typing import Any

import pytest

from klamm.protocol import messages
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from support.fetch_messages import fetch_request, result_of, to_fetch
from support.one_broker import Client, batch, running, until, values

NEW_SESSION = 0


@pytest.mark.parametrize(("slots", "has_session"), [(0, False), (1, True)])
async def test_max_incremental_fetch_session_cache_slots(tmp_path: Path, slots: int, has_session: bool) -> None:
    async with running(tmp_path, max_incremental_fetch_session_cache_slots=slots) as (_, client):
        await client.create_topic("t")
        body = fetch_request(("t", [to_fetch(0)]), max_wait_ms=0, min_bytes=1, session_epoch=NEW_SESSION)
        response = await client.request(ApiKey.FETCH, 12, body)
        assert (response.session_id > 0) == has_session


@pytest.mark.parametrize(("limit_bytes", "read"), [(1024, 1), (1 << 20, 3)])
async def test_fetch_max_bytes(tmp_path: Path, limit_bytes: int, read: int) -> None:
    async with running(tmp_path, fetch_max_bytes=limit_bytes) as (_, client):
        await client.create_topic("t")
        for _ in range(3):
            await client.produce("t", 0, batch(b"v" * 600))
        body = fetch_request(("t", [to_fetch(0)]), max_wait_ms=0, min_bytes=1, max_bytes=1 << 20)
        result = result_of(await client.request(ApiKey.FETCH, 12, body))
        assert len(values(result.records)) == read


async def commit(client: Client) -> int:
    request = messages.request_class(ApiKey.OFFSET_COMMIT).OffsetCommitRequestTopic
    partition = request.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
    )
    response = await client.ask(
        ApiKey.OFFSET_COMMIT,
        group_id="g",
        topics=[request(name="t", partitions=[partition])],
    )
    return response.topics[0].partitions[0].error_code


@pytest.mark.parametrize(("acks", "code"), [(1, ErrorCode.NONE), (-1, ErrorCode.COORDINATOR_NOT_AVAILABLE)])
async def test_offsets_commit_required_acks(tmp_path: Path, acks: int, code: ErrorCode) -> None:
    """Two replicas are to be in sync and there is one, so that acks=all is refused."""
    properties: dict[str, Any] = {
        "offsets_topic_replication_factor": 1,
        "offsets_topic_num_partitions": 1,
        "min_insync_replicas": 2,
    }
    async with running(tmp_path, offsets_commit_required_acks=acks, **properties) as (cluster, client):
        await client.create_topic("t")
        await client.ask(ApiKey.FIND_COORDINATOR, key="g", key_type=0)
        manager = cluster.broker.parts.replica_manager
        await until(lambda: manager.hosted_partition(("__consumer_offsets", 0)) is not None)
        while (answer := await commit(client)) in (
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
        ):
            continue
        assert answer == code
