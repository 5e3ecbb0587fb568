"""The topics, partitions, groups and transactional ids that a request names, and answers in which some of these items
have failed. Pure.

What must stay true:
- A request is never changed, because its handler may still use it. An answer belongs to the caller.
- Functions that walk through the items of a message work in steps: a message may have 100,000 items.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from klamm.base.slices import CHEAP_SLICE, Slices, Steps
from klamm.protocol.apis import KEYS
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import NO_LEADER

Selects = Callable[[str, int | None], bool]
"""Whether a condition holds for a topic and a partition. The partition is None if an API names only topics."""

_NOT_SERVED = (
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
)
API_KEYS = {key.message_name: key for key in KEYS if key not in _NOT_SERVED}
"""The APIs that a broker serves, by Kafka's names. The tests compare them with the broker's registry, which is not used
here because its import takes long and the command line only checks names."""


@dataclass(frozen=True, slots=True)
class _Items:
    """The names of the fields in which a message lists topics and partitions.

    `topic` is None if the topics are plain names, `partitions` if no partitions are listed, and `partition` if the
    partitions are plain numbers. `within` is the list whose items hold the topics.
    """

    topics: str
    topic: str | None = "name"
    partitions: str | None = "partitions"
    partition: str | None = "partition_index"
    within: str | None = None

    def topics_of(self, message: Any) -> Iterable[Any] | None:
        """The topics of a message; None stands for all topics."""
        if self.within is None:
            topics: Sequence[Any] | None = getattr(message, self.topics)
            return topics
        return (topic for outer in getattr(message, self.within) for topic in getattr(outer, self.topics))

    def name_of(self, topic: Any) -> str:
        name: str = topic if self.topic is None else getattr(topic, self.topic) or ""
        return name

    def partitions_of(self, topic: Any) -> Sequence[Any]:
        partitions: Sequence[Any] = getattr(topic, self.partitions or "")
        return partitions

    def number_of(self, partition: Any) -> int:
        number: int = partition if self.partition is None else getattr(partition, self.partition)
        return number


_TOPIC_STATES = _Items("topic_states", topic="topic_name", partitions="partition_states")
_IN_REQUESTS: Mapping[ApiKey, _Items] = {
    ApiKey.PRODUCE: _Items("topic_data", partitions="partition_data", partition="index"),
    ApiKey.FETCH: _Items("topics", topic="topic", partition="partition"),
    ApiKey.LIST_OFFSETS: _Items("topics"),
    ApiKey.METADATA: _Items("topics", partitions=None),
    ApiKey.LEADER_AND_ISR: _TOPIC_STATES,
    ApiKey.STOP_REPLICA: _TOPIC_STATES,
    ApiKey.UPDATE_METADATA: _TOPIC_STATES,
    ApiKey.OFFSET_COMMIT: _Items("topics"),
    ApiKey.OFFSET_FETCH: _Items("topics", partitions="partition_indexes", partition=None),
    ApiKey.CREATE_TOPICS: _Items("topics", partitions=None),
    ApiKey.DELETE_TOPICS: _Items("topics", partitions=None),
    ApiKey.DELETE_RECORDS: _Items("topics"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _Items("topics", topic="topic", partition="partition"),
    ApiKey.ADD_PARTITIONS_TO_TXN: _Items("v3_and_below_topics", partition=None),
    ApiKey.WRITE_TXN_MARKERS: _Items("topics", partitions="partition_indexes", partition=None, within="markers"),
    ApiKey.TXN_OFFSET_COMMIT: _Items("topics"),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _Items("topics", partition=None, within="dirs"),
    ApiKey.DESCRIBE_LOG_DIRS: _Items("topics", topic="topic", partition=None),
    ApiKey.CREATE_PARTITIONS: _Items("topics", partitions=None),
    ApiKey.ELECT_LEADERS: _Items("topic_partitions", topic="topic", partition=None),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _Items("topics"),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _Items("topics", partitions="partition_indexes", partition=None),
    ApiKey.OFFSET_DELETE: _Items("topics"),
    ApiKey.ALTER_ISR: _Items("topics"),
    ApiKey.DESCRIBE_PRODUCERS: _Items("topics", partitions="partition_indexes", partition=None),
}
# Up to version 5 of DeleteTopics.
_TOPIC_NAMES = _Items("topic_names", topic=None, partitions=None)

# The APIs whose items succeed and fail one by one. In other APIs an error concerns the whole request.
_IN_RESPONSES: Mapping[ApiKey, _Items] = {
    ApiKey.PRODUCE: _Items("responses", partitions="partition_responses", partition="index"),
    ApiKey.LIST_OFFSETS: _Items("topics"),
    ApiKey.METADATA: _Items("topics", partitions=None),
    ApiKey.OFFSET_COMMIT: _Items("topics"),
    ApiKey.CREATE_TOPICS: _Items("topics", partitions=None),
    ApiKey.DELETE_TOPICS: _Items("responses", partitions=None),
    ApiKey.DELETE_RECORDS: _Items("topics"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _Items("topics", topic="topic", partition="partition"),
    ApiKey.TXN_OFFSET_COMMIT: _Items("topics"),
    ApiKey.CREATE_PARTITIONS: _Items("results", partitions=None),
    ApiKey.DESCRIBE_PRODUCERS: _Items("topics"),
}

_GROUP_FIELDS = {
    ApiKey.OFFSET_COMMIT: "group_id",
    ApiKey.OFFSET_FETCH: "group_id",
    ApiKey.FIND_COORDINATOR: "key",
    ApiKey.JOIN_GROUP: "group_id",
    ApiKey.HEARTBEAT: "group_id",
    ApiKey.LEAVE_GROUP: "group_id",
    ApiKey.SYNC_GROUP: "group_id",
    ApiKey.DESCRIBE_GROUPS: "groups",
    ApiKey.ADD_OFFSETS_TO_TXN: "group_id",
    ApiKey.TXN_OFFSET_COMMIT: "group_id",
    ApiKey.DELETE_GROUPS: "groups_names",
    ApiKey.OFFSET_DELETE: "group_id",
}
_TRANSACTIONAL_ID_FIELDS = {
    ApiKey.PRODUCE: "transactional_id",
    ApiKey.FIND_COORDINATOR: "key",
    ApiKey.INIT_PRODUCER_ID: "transactional_id",
    ApiKey.ADD_PARTITIONS_TO_TXN: "v3_and_below_transactional_id",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactional_id",
    ApiKey.END_TXN: "transactional_id",
    ApiKey.TXN_OFFSET_COMMIT: "transactional_id",
    ApiKey.DESCRIBE_TRANSACTIONS: "transactional_ids",
}
# The meaning of FindCoordinator's key.
_GROUP_KEY, _TRANSACTION_KEY = 0, 1

TOPICS = frozenset(_IN_REQUESTS)
"""The APIs whose requests name topics."""
PARTITIONED = frozenset(key for key, items in _IN_REQUESTS.items() if items.partitions is not None)
"""The APIs whose requests name partitions."""
GROUPS = frozenset(_GROUP_FIELDS)
TRANSACTIONAL_IDS = frozenset(_TRANSACTIONAL_ID_FIELDS)
ONE_BY_ONE = frozenset(_IN_RESPONSES)
"""The APIs whose items fail one by one."""


def groups_of(key: ApiKey, body: Any) -> Sequence[str]:
    if key is ApiKey.FIND_COORDINATOR and body.key_type != _GROUP_KEY:
        return ()
    return _strings(body, _GROUP_FIELDS[key])


def transactional_ids_of(key: ApiKey, body: Any) -> Sequence[str]:
    if key is ApiKey.FIND_COORDINATOR and body.key_type != _TRANSACTION_KEY:
        return ()
    return _strings(body, _TRANSACTIONAL_ID_FIELDS[key])


def _strings(body: Any, field: str) -> Sequence[str]:
    value = getattr(body, field)
    return () if value is None else [value] if isinstance(value, str) else value


def names_all_topics(key: ApiKey, version: int, body: Any) -> bool:
    """Whether the request is about all topics without naming them."""
    topics = _request_items(key, body).topics_of(body)
    return topics is None or (key is ApiKey.METADATA and version == 0 and not topics)


def names_item(key: ApiKey, version: int, body: Any, selects: Selects) -> Steps[bool]:
    """Whether the request names a selected topic or partition."""
    if names_all_topics(key, version, body):
        return True
    items = _request_items(key, body)
    slices = Slices(CHEAP_SLICE)
    for topic in items.topics_of(body) or ():
        name = items.name_of(topic)
        numbers = (None,) if items.partitions is None else map(items.number_of, items.partitions_of(topic))
        for number in numbers:
            if selects(name, number):
                return True
            if slices.spend():
                yield
        if slices.spend():
            yield
    return False


def with_items(key: ApiKey, body: Any, selects: Selects) -> Steps[Any | None]:
    """The request with only the selected items; None if it has none of them."""
    items = _request_items(key, body)
    kept = yield from _kept(items, items.topics_of(body) or (), selects)
    if not kept:
        return None
    part = copy.copy(body)
    setattr(part, items.topics, kept)
    return part


def without(selects: Selects) -> Selects:
    """Selects all other items."""
    return lambda topic, partition: not selects(topic, partition)


def merged(key: ApiKey, response: Any, failed: Any, selects: Selects) -> Steps[Any]:
    """The response with the selected items taken from the response `failed`."""
    items = _IN_RESPONSES[key]
    kept = yield from _kept(items, items.topics_of(response) or (), without(selects))
    slices = Slices(CHEAP_SLICE)
    by_name = {}
    for topic in kept:
        by_name[items.name_of(topic)] = topic
        if slices.spend():
            yield
    for topic in items.topics_of(failed) or ():
        own = by_name.get(items.name_of(topic))
        if own is None or items.partitions is None:
            kept.append(topic)
        else:
            setattr(own, items.partitions, [*items.partitions_of(own), *items.partitions_of(topic)])
        if slices.spend():
            yield
    setattr(response, items.topics, kept)
    return response


def fail_metadata(response: Any, selects: Selects, code: ErrorCode, *, partition: int | None) -> Steps[Any]:
    """Metadata in which the selected topics have failed, or only one `partition` of them, which then has no leader."""
    slices = Slices(CHEAP_SLICE)
    for topic in response.topics:
        if slices.spend():
            yield
        if not selects(topic.name, None):
            continue
        if partition is None:
            topic.error_code, topic.partitions = code, []
            continue
        for one in topic.partitions:
            if one.partition_index == partition:
                one.error_code, one.leader_id = code, NO_LEADER
            if slices.spend():
                yield
    return response


def fail_offsets(response: Any, selects: Selects, code: ErrorCode) -> Steps[Any]:
    """The response to OffsetFetch in which the selected partitions have failed. If it has failed as a whole, its error
    is replaced."""
    if response.error_code:
        response.error_code = code
    slices = Slices(CHEAP_SLICE)
    for topic in response.topics:
        for partition in topic.partitions:
            if selects(topic.name, partition.partition_index):
                partition.error_code = code
                partition.committed_offset, partition.committed_leader_epoch, partition.metadata = -1, -1, ""
            if slices.spend():
                yield
    return response


def _request_items(key: ApiKey, body: Any) -> _Items:
    if key is ApiKey.DELETE_TOPICS and body.topic_names:
        return _TOPIC_NAMES
    return _IN_REQUESTS[key]


def _kept(items: _Items, topics: Iterable[Any], selects: Selects) -> Steps[list[Any]]:
    """The selected topics and partitions. A topic with other partitions too is copied."""
    kept = []
    slices = Slices(CHEAP_SLICE)
    for topic in topics:
        if slices.spend():
            yield
        name = items.name_of(topic)
        if items.partitions is None:
            if selects(name, None):
                kept.append(topic)
            continue
        partitions = []
        for one in items.partitions_of(topic):
            if selects(name, items.number_of(one)):
                partitions.append(one)
            if slices.spend():
                yield
        if partitions:
            part = copy.copy(topic)
            setattr(part, items.partitions, partitions)
            kept.append(part)
    return kept
