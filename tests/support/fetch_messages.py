"""Fetch requests and responses, as the tests write and read them."""

from klamm.protocol.apis.fetch import (
    FetchableTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)


def to_fetch(
    partition: int,
    offset: int = 0,
    max_bytes: int = 1 << 20,
    *,
    epoch: int = -1,
    last_epoch: int = -1,
    log_start_offset: int = -1,
) -> FetchPartition:
    return FetchPartition(
        partition=partition,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        log_start_offset=log_start_offset,
        partition_max_bytes=max_bytes,
    )


def fetch_request(*topics: tuple[str, list[FetchPartition]], **fields: object) -> FetchRequest:
    """For (topic, partitions)."""
    return FetchRequest(
        topics=[FetchTopic(topic=topic, partitions=partitions) for topic, partitions in topics],
        **fields,  # type: ignore[arg-type]
    )


def fetch_response(*topics: tuple[str, list[PartitionData]], **fields: object) -> FetchResponse:
    """For (topic, partitions)."""
    return FetchResponse(
        responses=[FetchableTopic(topic=topic, partitions=partitions) for topic, partitions in topics],
        **fields,  # type: ignore[arg-type]
    )


def wanted_of(request: FetchRequest) -> list[tuple[str, list[FetchPartition]]]:
    """(topic, partitions)."""
    return [(topic.topic, topic.partitions) for topic in request.topics]


def forgotten_of(request: FetchRequest) -> list[tuple[str, list[int]]]:
    """(topic, partitions)."""
    return [(topic.topic, topic.partitions) for topic in request.forgotten_topics_data]


def result_of(response: FetchResponse) -> PartitionData:
    """The only partition's."""
    ((result,),) = [topic.partitions for topic in response.responses]
    return result
