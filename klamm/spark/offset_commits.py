"""Commits the offsets of a streaming query to a consumer group, so that Kafka's tools show the query's progress.

The commit is like that of a consumer that is not a member of the group and assigns its partitions itself.

What must stay true: only Spark's checkpoint decides where a query continues. This module never reads the group's
offsets. An unreachable coordinator does not stop a query; a coordinator that refuses the commit does.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import OffsetAndMetadata, alter_consumer_group_offsets
from klamm.client.options import ClientOptions
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.client.threads import call
from klamm.net.client import Disconnected, NotSent
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import TopicPartition

logger = logging.getLogger(__name__)

TIMEOUT_MS = 5_000
# The time for retries; the rest of TIMEOUT_MS is for the last attempt.
RETRY_MS = 4_000


def commit_offsets(options: ClientOptions, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits the next offset of each partition. Raises KafkaError or ClientError when the coordinator refuses."""
    wanted = {partition: OffsetAndMetadata(offset) for partition, offset in offsets.items()}

    async def commit(client: ClusterClient) -> None:
        failed: Exception | None = None
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                retry = replace(client.retry, deadline_ms=RETRY_MS)
                results = await alter_consumer_group_offsets(client, group, wanted, retry=retry)
        except (NotSent, Disconnected, TimeoutError) as error:
            failed = error
        else:
            failed = next((error for error in results.values() if error is not None), None)
        if isinstance(failed, KafkaError) and failed.code not in RETRIABLE_ERRORS:
            raise failed
        if failed is not None:
            reason = "no answer in time" if isinstance(failed, TimeoutError) else failed
            logger.warning("the offsets of the query were not committed to group %s: %s", group, reason)

    call(options, commit)
