"""DescribeLogDirs (key 35), versions 1 and 2: the log directories of this broker and the sizes of their replicas
(KIP-113). An offline directory is listed with KAFKA_STORAGE_ERROR and without replicas.
"""

from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import Operation, ResourceType
from klamm.protocol import messages
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey

Response = messages.response_class(ApiKey.DESCRIBE_LOG_DIRS)
Directory = Response.DescribeLogDirsResult
Topic = Directory.DescribeLogDirsTopic
Partition = Topic.DescribeLogDirsPartition


def error_response(request: Request, error: KafkaError) -> Body:
    # As in Kafka, a client that may not ask learns of no directory; the versions served have no room for an error.
    return Response(version=request.version, results=[])


@handler(
    ApiKey.DESCRIBE_LOG_DIRS,
    operation=Operation.DESCRIBE,
    resource_type=ResourceType.CLUSTER,
    error_response=error_response,
)
def handle(request: Request) -> Body:
    request.require_cluster()
    manager = request.services.log_manager
    wanted = request.body.topics
    selected = None if wanted is None else {(topic.topic, number) for topic in wanted for number in topic.partitions}
    results = []
    for directory in manager.directories:
        if directory not in manager.live_directories:
            results.append(Directory(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory, topics=[]))
            continue
        topics: dict[str, list[Body]] = {}
        for (topic, number), log in sorted(manager.logs.items()):
            if log.directory.rpartition("/")[0] == directory and (selected is None or (topic, number) in selected):
                topics.setdefault(topic, []).append(_partition(number, log.size_bytes, log))
        results.append(
            Directory(
                error_code=ErrorCode.NONE,
                log_dir=directory,
                topics=[Topic(name=name, partitions=partitions) for name, partitions in topics.items()],
            )
        )
    return Response(version=request.version, results=results)


def _partition(number: int, size_bytes: int, log: Body) -> Body:
    lag = max(0, log.high_watermark - log.log_end_offset)
    return Partition(partition_index=number, partition_size=size_bytes, offset_lag=lag, is_future_key=False)
