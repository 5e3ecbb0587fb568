"""The client side of an incremental fetch session (KIP-227): a fetcher names its partitions once, then only changes.

What must stay true:
- `_known` is the content of the leader's session once the leader has read the last request. The next request carries
  the changes since, so a fetch costs only as much as the changed partitions.
- When the content of the leader's session is uncertain (no answer, a refusal, an answer that does not fit), the next
  request is a full one, which closes that session and names all partitions.
- A full fetch names the partitions that changed last at the end, so that no partition starves without a session.

Source: org.apache.kafka.clients.FetchSessionHandler.
"""

from collections.abc import Iterable
from typing import TypeVar

from klamm.protocol.apis.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import INITIAL_EPOCH, INVALID_SESSION_ID, PartitionKey

MAX_EPOCH = 2**31 - 1

T = TypeVar("T")


class FetchSessionClient:
    """The partitions that a fetcher wants from a leader, and what the leader's session knows of them."""

    def __init__(self) -> None:
        self._session_id = INVALID_SESSION_ID
        self._epoch = INITIAL_EPOCH
        self._wanted: dict[PartitionKey, FetchPartition] = {}
        self._known: dict[PartitionKey, None] = {}
        self._changed: dict[PartitionKey, None] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no partition is wanted."""
        return not self._wanted

    def want(self, topic_partition: PartitionKey, wanted: FetchPartition) -> None:
        """The next request asks for `wanted` of the partition."""
        self._wanted.pop(topic_partition, None)
        self._wanted[topic_partition] = wanted
        self._changed[topic_partition] = None

    def forget(self, topic_partition: PartitionKey) -> None:
        """The next request drops the partition."""
        if self._wanted.pop(topic_partition, None) is not None:
            self._changed[topic_partition] = None

    def fill(self, request: FetchRequest) -> None:
        """Writes the session and the partitions into a request, which must be the next one sent."""
        request.session_id, request.session_epoch = self._session_id, self._epoch
        if self._epoch == INITIAL_EPOCH:
            self._known = dict.fromkeys(self._wanted)
            request.topics = _topics(self._wanted.items())
        else:
            sent, forgotten = [], []
            for topic_partition in self._changed:
                wanted = self._wanted.get(topic_partition)
                if wanted is not None:
                    self._known[topic_partition] = None
                    sent.append((topic_partition, wanted))
                elif topic_partition in self._known:
                    del self._known[topic_partition]
                    forgotten.append((topic_partition, topic_partition[1]))
            request.topics = _topics(sent)
            request.forgotten_topics_data = [
                FetchRequest.ForgottenTopic(topic=topic, partitions=numbers)
                for topic, numbers in _by_topic(forgotten).items()
            ]
        self._changed = {}

    def accept(self, response: FetchResponse) -> bool:
        """Processes the answer to the last request. Returns whether the caller may use its partitions."""
        if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._begin(INVALID_SESSION_ID)
            return False
        if response.error_code != ErrorCode.NONE or not self._fits(response):
            self._begin(self._session_id)
            return False
        if response.session_id == INVALID_SESSION_ID:
            self._begin(INVALID_SESSION_ID)
        elif self._epoch == INITIAL_EPOCH:
            self._session_id, self._epoch = response.session_id, INITIAL_EPOCH + 1
        else:
            self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1
        return True

    def request_failed(self) -> None:
        """The last request got no answer, so it is unknown whether the leader has read it."""
        self._begin(self._session_id)

    def _begin(self, old_session_id: int) -> None:
        """The next request is a full one and closes the old session, if any."""
        self._session_id, self._epoch = old_session_id, INITIAL_EPOCH

    def _fits(self, response: FetchResponse) -> bool:
        """Whether the answer names only known partitions and, if it answers a full fetch, all of them."""
        known = self._known
        count = 0
        for topic in response.responses:
            count += len(topic.partitions)
            for result in topic.partitions:
                if (topic.topic, result.partition_index) not in known:
                    return False
        return self._epoch != INITIAL_EPOCH or count == len(known)


def _topics(items: Iterable[tuple[PartitionKey, FetchPartition]]) -> list[FetchTopic]:
    return [FetchTopic(topic=topic, partitions=partitions) for topic, partitions in _by_topic(items).items()]


def _by_topic(items: Iterable[tuple[PartitionKey, T]]) -> dict[str, list[T]]:
    topics: dict[str, list[T]] = {}
    for (topic, _), item in items:
        topics.setdefault(topic, []).append(item)
    return topics
