"""CreateTopics (key 19): new topics.

Versions: 4 the broker's defaults for partitions and replicas (KIP-464); 5 flexible, configs in the response (KIP-525);
6 quotas (KIP-599); 7 topic ids (KIP-516).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Int8, Int16, Int32, Request, Response, String, Struct, Uuid, field


class CreateTopicsRequest(
    Request["CreateTopicsResponse"], api=ApiKey.CREATE_TOPICS, versions="2-7", flexible="5+", size=LIST
):
    class CreatableTopic(Struct):
        class CreatableReplicaAssignment(Struct):
            partition_index: Int32
            broker_ids: list[Int32]

        class CreatableTopicConfig(Struct):
            name: String
            value: String | None

        name: String
        num_partitions: Int32
        replication_factor: Int16
        assignments: list[CreatableReplicaAssignment]
        configs: list[CreatableTopicConfig]

    topics: list[CreatableTopic]
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


class CreateTopicsResponse(Response):
    class CreatableTopicResult(Struct):
        class CreatableTopicConfigs(Struct):
            name: String
            value: String | None
            read_only: Bool
            config_source: Int8 = -1
            is_sensitive: Bool

        name: String
        topic_id: Uuid = field("7+", default=None)
        error_code: Int16
        error_message: String | None = ""
        topic_config_error_code: Int16 = field("5+", default=0, tag=0)
        num_partitions: Int32 = field("5+", default=-1)
        replication_factor: Int16 = field("5+", default=-1)
        configs: list[CreatableTopicConfigs] | None = field("5+", default=[])

    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult]
