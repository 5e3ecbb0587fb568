"""Commits the offsets of a streaming query to a consumer group, so that Kafka's tools show the query's progress.

The commit is that of a consumer without membership, which assigns its partitions itself.

What must stay true: only Spark's checkpoint decides where a query continues. This module never reads the group's
offsets. An unreachable coordinator does not stop a query; a coordinator that refuses the commit does.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from klamm.client.cluster import RETRIABLE_ERRORS, ClusterClient
from klamm.client.options import ClientOptions
from klamm.client.threads import call
from klamm.net.client import Disconnected, NotSent
from klamm.protocol.apis.find_coordinator import FindCoordinatorRequest
from klamm.protocol.apis.offset_commit import OffsetCommitRequest
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import TopicPartition

logger = logging.getLogger(__name__)

TIMEOUT_MS = 5_000
BACKOFF_MS = 100


def commit_offsets(options: ClientOptions, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits the next offset of each partition. Raises KafkaError or ClientError when the coordinator refuses."""

    async def commit(client: ClusterClient) -> None:
        failed: Exception | None = None
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                while True:
                    try:
                        return await commit_once(client, group, offsets)
                    except (NotSent, Disconnected, KafkaError) as error:
                        if isinstance(error, KafkaError) and error.code not in RETRIABLE_ERRORS:
                            raise
                        failed = error
                    await asyncio.sleep(BACKOFF_MS / 1000)
        except TimeoutError:
            logger.warning("group %s is not told how far the query has come: %s", group, failed or "no answer in time")

    call(options, commit)


async def commit_once(client: ClusterClient, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """One attempt. Raises KafkaError and ClientError, also for what may be gone at the next attempt."""
    found = await client.send_to_any(ApiKey.FIND_COORDINATOR, lambda version: _find_coordinator(version, group))
    _check(found.error_code, f"the coordinator of group {group}")
    await client.refresh_metadata(list(dict.fromkeys(partition.topic for partition in sorted(offsets))))
    if found.node_id not in client.metadata.brokers:
        # It has died meanwhile, or one of the two brokers that were asked knows less than the other.
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator of group {group}, {found.node_id}")
    connection = await client.connection_to(found.node_id)
    request = OffsetCommitRequest.of(group, {(one.topic, one.partition): offsets[one] for one in sorted(offsets)})
    response = await connection.send(ApiKey.OFFSET_COMMIT, lambda _: request)
    for (topic, number), code in response.error_codes().items():
        _check(code, f"the offset of {topic}-{number} for group {group}")


def _find_coordinator(version: int, group: str) -> Any:
    return FindCoordinatorRequest(key=group, key_type=0)


def _check(code: int, what: str) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode(code), what)
