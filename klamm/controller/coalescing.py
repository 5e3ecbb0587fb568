"""Shortens the queue of a broker to the requests that it still needs: the last of each kind for each partition. Pure.

A broker that does not answer may keep its ZooKeeper session, and with it its queue, forever. In Kafka each change of
the cluster makes that queue longer. Here a long queue is reduced to the size of the broker's state, whatever the number
of changes. It has two UpdateMetadata requests, then the StopReplica requests, each after the LeaderAndIsr whose
leadership it ends, and one LeaderAndIsr request.

| waiting requests for one partition, in order | what remains |
|---|---|
| LeaderAndIsr, LeaderAndIsr | the second one; it is new if the first one was: a replica that was not new has a log |
| LeaderAndIsr, StopReplica that deletes | StopReplica |
| LeaderAndIsr, StopReplica that does not | both in this order: only the first one ends a leadership |
| StopReplica, LeaderAndIsr | both in this order: the old replica is stopped or deleted before a new one begins |
| StopReplica, StopReplica | both, unless later ones stop, and delete, all partitions of the first one |
| UpdateMetadata, UpdateMetadata | the second one |
| UpdateMetadata of a deletion, UpdateMetadata | both in this order: a deletion does more than the state after it |

What must stay true:
- The broker ends in the same state as if it had got all requests; only the order between partitions differs. The
  metadata comes first, because a broker follows only leaders that it knows to be alive.
- A StopReplica request stays unchanged, because its sender waits for a result for each of its replicas.
  Responses to the other kinds describe the broker's current state, so the response to the last request is enough.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from klamm.base.slices import CHEAP_SLICE, Slices, Steps
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrTopicState,
)
from klamm.protocol.apis.stop_replica import StopReplicaPartitionState, StopReplicaTopicState
from klamm.protocol.apis.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataPartitionState,
    UpdateMetadataTopicState,
)
from klamm.protocol.vocabulary import PartitionKey

T = TypeVar("T")


class QueuedRequest(NamedTuple):
    """A request that waits for one broker, since `put_at` by the loop's clock."""

    api_key: ApiKey
    version: int
    body: Any
    on_response: Any
    put_at: float


def size(request: QueuedRequest) -> int:
    """The size of a request: one, and one for each state in it."""
    return 1 + sum(len(topic.partition_states) for topic in request.body.topic_states)


def coalesce(requests: Sequence[QueuedRequest]) -> Steps[list[QueuedRequest]]:
    """The remaining requests for one broker, in the order of sending."""
    left = _Left()
    looked_at = Slices(CHEAP_SLICE)
    for request in requests:
        take = left.begin(request)
        for topic in request.body.topic_states:
            for start in range(0, len(topic.partition_states), CHEAP_SLICE):
                states = topic.partition_states[start : start + CHEAP_SLICE]
                take(topic, states)
                if looked_at.spend(len(states)):
                    yield
    return left.requests()


class _States(Generic[T]):
    """The last state of each partition, by topic, and the last id of each topic."""

    def __init__(self) -> None:
        self._states: dict[str, dict[int, T]] = {}
        self._ids: dict[str, UUID | None] = {}

    def of(self, topic: str, topic_id: UUID | None = None) -> dict[int, T]:
        """By partition; the caller may change it."""
        self._ids[topic] = topic_id or self._ids.get(topic)
        return self._states.setdefault(topic, {})

    def take(self, topics: Sequence[StopReplicaTopicState]) -> "_States[T]":
        """Removes and returns the states of the named partitions."""
        taken: _States[T] = _States()
        for topic in topics:
            states = self._states.get(topic.topic_name, {})
            found = {
                state.partition_index: states.pop(state.partition_index)
                for state in topic.partition_states
                if state.partition_index in states
            }
            if found:
                taken._states[topic.topic_name], taken._ids[topic.topic_name] = found, self._ids[topic.topic_name]
        return taken

    def topics(self, make: Callable[[str, UUID | None, list[T]], Any]) -> list[Any]:
        return [make(name, self._ids[name], list(states.values())) for name, states in self._states.items() if states]


class _Left:
    """The remaining requests, the oldest first."""

    def __init__(self) -> None:
        self._last: dict[ApiKey, QueuedRequest] = {}
        self._deleted: _States[UpdateMetadataPartitionState] = _States()
        self._metadata: _States[UpdateMetadataPartitionState] = _States()
        self._stopping: list[QueuedRequest] = []
        # States of partitions whose replicas stop afterwards, and are not deleted.
        self._former_leadership: _States[LeaderAndIsrPartitionState] = _States()
        self._leadership: _States[LeaderAndIsrPartitionState] = _States()
        self._live_leaders: dict[int, LeaderAndIsrLiveLeader] = {}

    def begin(self, request: QueuedRequest) -> Callable[[Any, Sequence[Any]], None]:
        """A function that adds a topic of the request and some of its states."""
        self._last[request.api_key] = request
        if request.api_key is ApiKey.UPDATE_METADATA:
            return self._take_metadata
        if request.api_key is ApiKey.STOP_REPLICA:
            self._stopping.append(request)
            return self._take_stopping
        self._live_leaders.update((leader.broker_id, leader) for leader in request.body.live_leaders)
        return self._take_leadership

    def _take_metadata(self, topic: UpdateMetadataTopicState, states: Sequence[UpdateMetadataPartitionState]) -> None:
        known = self._metadata.of(topic.topic_name, topic.topic_id)
        for state in states:
            if state.leader == LEADER_DURING_DELETE:
                self._deleted.of(topic.topic_name, topic.topic_id)[state.partition_index] = state
                known.pop(state.partition_index, None)
            else:
                known[state.partition_index] = state

    def _take_stopping(self, topic: StopReplicaTopicState, states: Sequence[StopReplicaPartitionState]) -> None:
        former, told = self._former_leadership.of(topic.topic_name), self._leadership.of(topic.topic_name)
        for state in states:
            before = told.pop(state.partition_index, None) or former.pop(state.partition_index, None)
            if before is not None and not state.delete_partition:
                former[state.partition_index] = before

    def _take_leadership(self, topic: LeaderAndIsrTopicState, states: Sequence[LeaderAndIsrPartitionState]) -> None:
        name, topic_id = topic.topic_name, topic.topic_id
        former, told = self._former_leadership.of(name, topic_id), self._leadership.of(name, topic_id)
        for state in states:
            before = told.get(state.partition_index) or former.pop(state.partition_index, None)
            is_new = state.is_new if before is None else before.is_new
            told[state.partition_index] = state if state.is_new is is_new else state.replaced(is_new=is_new)

    def requests(self) -> list[QueuedRequest]:
        """The remaining requests in the order of sending."""
        left: list[QueuedRequest] = []
        if (last := self._last.get(ApiKey.UPDATE_METADATA)) is not None:
            if deleted := self._deleted.topics(UpdateMetadataTopicState):
                left.append(_with(last, topic_states=deleted))
            left.append(_with(last, topic_states=self._metadata.topics(UpdateMetadataTopicState)))
        stopping: list[QueuedRequest] = []
        for request in reversed(_not_superseded(self._stopping)):
            stopping += [request, *self._leading(self._former_leadership.take(request.body.topic_states))]
        return left + stopping[::-1] + self._leading(self._leadership)

    def _leading(self, leadership: _States[LeaderAndIsrPartitionState]) -> list[QueuedRequest]:
        topics = leadership.topics(LeaderAndIsrTopicState)
        if not topics:
            return []
        last, leaders = self._last[ApiKey.LEADER_AND_ISR], list(self._live_leaders.values())
        return [_with(last, topic_states=topics, live_leaders=leaders)]


def _with(request: QueuedRequest, **fields: Any) -> QueuedRequest:
    """The request with another content, and without its cached encoding."""
    return request._replace(body=request.body.replaced(**fields))


def _not_superseded(stopping: Sequence[QueuedRequest]) -> list[QueuedRequest]:
    left: list[QueuedRequest] = []
    # Whether a later request deletes the partition.
    later: dict[PartitionKey, bool] = {}
    for request in reversed(stopping):
        told = [
            ((topic.topic_name, state.partition_index), state.delete_partition)
            for topic in request.body.topic_states
            for state in topic.partition_states
        ]
        if any(key not in later or (delete and not later[key]) for key, delete in told):
            left.append(request)
            for key, delete in told:
                later[key] = delete or later.get(key, False)
    return left[::-1]
