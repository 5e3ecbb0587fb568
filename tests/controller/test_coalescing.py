"""What is left of requests that wait for one broker: it ends in the same state as with all of them."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.slices import in_one_go
from klamm.controller import coalescing
from klamm.controller.coalescing import QueuedRequest, coalesce
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from klamm.protocol.apis.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from klamm.protocol.apis.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

UPDATE, LEAD, STOP = ApiKey.UPDATE_METADATA, ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA


def queued(api_key: ApiKey, body: Any, told: object = None) -> QueuedRequest:
    return QueuedRequest(api_key, 0, body, told, 0.0)


def update(epoch: int, *partitions: int, leader: int = 1, topic_id: UUID | None = None) -> QueuedRequest:
    states = [UpdateMetadataPartitionState(number, 1, leader, epoch, (1,), 0, (1,)) for number in partitions]
    topics = [UpdateMetadataTopicState("t", topic_id, states)] if states else []
    return queued(
        UPDATE,
        UpdateMetadataRequest(
            controller_id=7,
            controller_epoch=1,
            broker_epoch=100,
            topic_states=topics,
            live_brokers=[UpdateMetadataBroker(id=epoch, endpoints=[])],
        ),
    )


def delete(epoch: int, *partitions: int) -> QueuedRequest:
    return update(epoch, *partitions, leader=LEADER_DURING_DELETE)


def lead(epoch: int, *partitions: int, is_new: bool = False) -> QueuedRequest:
    states = [LeaderAndIsrPartitionState(p, 1, 1, epoch, (1,), 0, (1,), (), (), is_new) for p in partitions]
    leaders = [LeaderAndIsrLiveLeader(1, "host", epoch)]
    return queued(
        LEAD,
        LeaderAndIsrRequest(
            controller_id=7,
            controller_epoch=1,
            broker_epoch=100,
            topic_states=[LeaderAndIsrTopicState("t", None, states)],
            live_leaders=leaders,
        ),
    )


def stop(epoch: int, *partitions: int, deletes: bool = False, told: object = None) -> QueuedRequest:
    states = [StopReplicaPartitionState(number, epoch, deletes) for number in partitions]
    return queued(
        STOP,
        StopReplicaRequest(
            controller_id=7, controller_epoch=1, broker_epoch=100, topic_states=[StopReplicaTopicState("t", states)]
        ),
        told,
    )


def summary(requests: list[QueuedRequest]) -> list[tuple[str, dict[int, int]]]:
    """Of each request its kind, and the epoch of each partition."""
    return [
        (
            request.api_key.name,
            {
                state.partition_index: state.leader_epoch
                for topic in request.body.topic_states
                for state in topic.partition_states
            },
        )
        for request in requests
    ]


@pytest.mark.parametrize(
    ("waiting", "left"),
    [
        ([lead(1, 0), lead(2, 0)], [("LEADER_AND_ISR", {0: 2})]),
        ([lead(1, 0, 1), lead(2, 0), lead(3, 2)], [("LEADER_AND_ISR", {0: 2, 1: 1, 2: 3})]),
        (
            [lead(1, 0, 1), stop(2, 0)],
            [("LEADER_AND_ISR", {0: 1}), ("STOP_REPLICA", {0: 2}), ("LEADER_AND_ISR", {1: 1})],
        ),
        ([lead(1, 0, 1), stop(2, 0, deletes=True)], [("STOP_REPLICA", {0: 2}), ("LEADER_AND_ISR", {1: 1})]),
        ([stop(1, 0), lead(2, 0)], [("STOP_REPLICA", {0: 1}), ("LEADER_AND_ISR", {0: 2})]),
        ([lead(1, 0), stop(2, 0), lead(3, 0), stop(4, 0)], [("LEADER_AND_ISR", {0: 3}), ("STOP_REPLICA", {0: 4})]),
        ([lead(1, 0), stop(2, 0), lead(3, 0)], [("STOP_REPLICA", {0: 2}), ("LEADER_AND_ISR", {0: 3})]),
        ([lead(1, 0), stop(2, 0), stop(3, 0, deletes=True)], [("STOP_REPLICA", {0: 3})]),
        ([stop(1, 0), stop(2, 0, deletes=True)], [("STOP_REPLICA", {0: 2})]),
        ([stop(1, 0, 1), stop(2, 0)], [("STOP_REPLICA", {0: 1, 1: 1}), ("STOP_REPLICA", {0: 2})]),
        ([stop(1, 0, deletes=True), stop(2, 0)], [("STOP_REPLICA", {0: 1}), ("STOP_REPLICA", {0: 2})]),
        ([update(1, 0), update(2), update(3, 0)], [("UPDATE_METADATA", {0: 3})]),
        ([lead(1, 0), update(1, 0)], [("UPDATE_METADATA", {0: 1}), ("LEADER_AND_ISR", {0: 1})]),
        ([delete(1, 0), update(2, 0)], [("UPDATE_METADATA", {0: 1}), ("UPDATE_METADATA", {0: 2})]),
        ([update(1, 0, 1), delete(2, 0)], [("UPDATE_METADATA", {0: 2}), ("UPDATE_METADATA", {1: 1})]),
    ],
)
def test_what_is_left(waiting: list[QueuedRequest], left: list[tuple[str, dict[int, int]]]) -> None:
    assert summary(in_one_go(coalesce(waiting))) == left


def test_what_is_new_stays_new() -> None:
    (left,) = in_one_go(coalesce([lead(1, 0, is_new=True), lead(2, 0)]))
    (state,) = left.body.topic_states[0].partition_states
    assert (state.leader_epoch, state.is_new) == (2, True)


def test_a_replica_that_was_not_new_does_not_become_new() -> None:
    """A reassignment that goes on tells its added replicas that they are new, even one that is in sync for long. Its
    broker is told before that the replica is not new; otherwise it gets an empty log while its disk is offline."""
    (left,) = in_one_go(coalesce([lead(1, 0), lead(2, 0, is_new=True)]))
    (state,) = left.body.topic_states[0].partition_states
    assert (state.leader_epoch, state.is_new) == (2, False)


def test_what_concerns_the_whole_request_is_that_of_the_last_one() -> None:
    topic_id = UUID(int=5)
    waiting = [update(1, 0), lead(1, 0), update(2, 1, topic_id=topic_id), lead(2, 0)]
    metadata, leadership = in_one_go(coalesce(waiting))
    assert metadata.body.live_brokers == [UpdateMetadataBroker(id=2, endpoints=[])]
    assert [(topic.topic_id, len(topic.partition_states)) for topic in metadata.body.topic_states] == [(topic_id, 2)]
    assert leadership.body.live_leaders == [LeaderAndIsrLiveLeader(1, "host", 2)]
    assert (leadership.body.broker_epoch, leadership.body.controller_epoch) == (100, 1)


def test_a_stop_replica_request_is_left_as_it_is_so_that_its_response_says_what_it_asks_for() -> None:
    waiting = [stop(1, 0, 1, deletes=True, told="who waits"), lead(2, 0)]
    assert in_one_go(coalesce(waiting))[0] is waiting[0]


def test_it_is_done_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalescing, "CHEAP_SLICE", 10)
    assert len(list(coalesce([lead(1, *range(45)), update(1, *range(45))]))) >= 8


# -- against a model of a broker --------------------------------------------------------------------------------------


class Broker:
    """What requests make of a broker that has the data of all partitions."""

    def __init__(self) -> None:
        self.alive: Any = None
        self.metadata: dict[int, int] = {}
        self.deleted: set[int] = set()
        # In which epoch it leads or follows; what a StopReplica without deletion does not end is leading.
        self.epochs: dict[int, int] = {}
        self.fetching: set[int] = set()
        self.data = set(range(4))

    def take(self, request: QueuedRequest) -> None:
        if request.api_key is UPDATE:
            self.alive = request.body.live_brokers
        for state in (state for topic in request.body.topic_states for state in topic.partition_states):
            number = state.partition_index
            if request.api_key is LEAD:
                self.epochs[number] = max(state.leader_epoch, self.epochs.get(number, 0))
                self.fetching.add(number)
            elif request.api_key is STOP:
                self.fetching.discard(number)
                if state.delete_partition:
                    self.epochs.pop(number, None)
                    self.data.discard(number)
            elif state.leader == LEADER_DURING_DELETE:
                self.metadata.pop(number, None)
                self.deleted.add(number)
            else:
                self.metadata[number] = state.leader_epoch


PARTITIONS = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)
CHANGES = st.tuples(st.sampled_from([update, delete, lead, stop, "deletes"]), PARTITIONS)


@given(st.lists(CHANGES, max_size=12), st.integers(0, 12))
def test_the_broker_ends_in_the_same_state(changes: list[tuple[Any, list[int]]], at: int) -> None:
    """Also when it is done twice."""
    requests = [
        stop(epoch, *partitions, deletes=True) if make == "deletes" else make(epoch, *partitions)
        for epoch, (make, partitions) in enumerate(changes, 1)
    ]
    expected, found = Broker(), Broker()
    for request in requests:
        expected.take(request)
    left = in_one_go(coalesce([*in_one_go(coalesce(requests[:at])), *requests[at:]]))
    for request in left:
        found.take(request)
    assert vars(found) == vars(expected)
    assert len(left) <= 4 + 2 * 4
