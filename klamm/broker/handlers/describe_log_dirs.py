"""DescribeLogDirs (key 35), versions 1 and 2: the log directories of this broker and the sizes of their replicas
(KIP-113). An offline directory is listed with KAFKA_STORAGE_ERROR and without replicas. A future replica will replace
the replica in another directory; its lag is how many offsets it is behind that replica.
"""

from klamm.base.slices import Slices, Steps
from klamm.broker.handlers.by_partition import named_partitions
from klamm.broker.requests.registry import Request, handler, long_answer
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import UNKNOWN_OFFSET, ResourceType
from klamm.replication.partition.partition import Partition as HostedPartition
from klamm.storage.log.log import Log

Directory = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = Directory.DescribeLogDirsTopic
Partition = Topic.DescribeLogDirsPartition

# How many logs a slice describes, in about two milliseconds.
LOGS_PER_SLICE = 500


def error_response(request: Request[DescribeLogDirsRequest], error: KafkaError) -> DescribeLogDirsResponse:
    # As in Kafka, an unauthorized client gets no directories; the served versions have no field for an error.
    return DescribeLogDirsResponse(results=[])


@handler(
    DescribeLogDirsRequest,
    Operation.DESCRIBE,
    ResourceType.CLUSTER,
    error_response=error_response,
    ends_with_client=True,
)
@long_answer
def handle(request: Request[DescribeLogDirsRequest]) -> Steps[DescribeLogDirsResponse]:
    request.require_cluster()
    manager = request.services.log_manager
    wanted = request.body.topics
    selected = None
    if wanted is not None:
        selected = set((yield from named_partitions((topic.topic, topic.partitions) for topic in wanted)))
    results = []
    slices = Slices(LOGS_PER_SLICE)
    for directory in manager.directories:
        topics: dict[str, list[Partition]] = {}
        for log in manager.logs_in(directory.path) if directory.is_online else ():
            if slices.spend():
                yield
            if selected is None or (log.topic, log.partition) in selected:
                topics.setdefault(log.topic, []).append(_partition(request, log))
        results.append(
            Directory(
                error_code=ErrorCode.NONE if directory.is_online else ErrorCode.KAFKA_STORAGE_ERROR,
                log_dir=directory.path,
                topics=[Topic(name=name, partitions=partitions) for name, partitions in topics.items()],
            )
        )
    return DescribeLogDirsResponse(results=results)


def _partition(request: Request[DescribeLogDirsRequest], log: Log) -> Partition:
    is_future = request.services.log_manager.is_future(log)
    return Partition(
        partition_index=log.partition,
        partition_size=log.size_bytes,
        offset_lag=_lag(request.services.replica_manager.hosted_partition((log.topic, log.partition)), log, is_future),
        is_future_key=is_future,
    )


def _lag(hosted: HostedPartition | None, log: Log, is_future: bool) -> int:
    if hosted is None:
        return UNKNOWN_OFFSET
    if is_future:
        return hosted.log.log_end_offset - log.log_end_offset
    return max(0, hosted.log.high_watermark - log.log_end_offset)
