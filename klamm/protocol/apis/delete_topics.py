"""DeleteTopics (key 20): topics to delete.

Versions: 4 flexible; 5 error message (KIP-599); 6 topic ids (KIP-516).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Request, Response, String, Struct, Uuid, field


class DeleteTopicsRequest(
    Request["DeleteTopicsResponse"], api=ApiKey.DELETE_TOPICS, versions="1-6", flexible="4+", size=LIST
):
    class DeleteTopicState(Struct):
        name: String | None = None
        topic_id: Uuid = None

    topics: list[DeleteTopicState] = field("6+", default=[])
    topic_names: list[String] = field("1-5", default=[])
    timeout_ms: Int32


class DeleteTopicsResponse(Response):
    class DeletableTopicResult(Struct):
        name: String | None = field(nullable="6+")
        topic_id: Uuid = field("6+", default=None)
        error_code: Int16
        error_message: String | None = field("5+", default=None)

    throttle_time_ms: Int32 = 0
    responses: list[DeletableTopicResult]
