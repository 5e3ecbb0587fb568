"""The events: the state that each names, and what becomes of its sender when it is thrown away."""

import asyncio
from typing import Any

import pytest

from klamm.controller import events
from klamm.controller.events import ControllerRequestSender, ControllerState
from klamm.protocol.apis.alter_isr import AlterIsrRequest
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrResponse
from klamm.protocol.apis.stop_replica import StopReplicaResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ElectionType
from klamm.zookeeper.keeper_exceptions import SessionExpired

SENDER = ControllerRequestSender(1, 2, 3)


def test_the_states_have_kafkas_numbers_and_names() -> None:
    assert [(state.value, state.label) for state in ControllerState] == [
        (0, "Idle"),
        (1, "ControllerChange"),
        (2, "BrokerChange"),
        (3, "TopicChange"),
        (4, "TopicDeletion"),
        (5, "AlterPartitionReassignment"),
        (6, "AutoLeaderBalance"),
        (7, "ManualLeaderBalance"),
        (8, "ControlledShutdown"),
        (9, "IsrChange"),
        (10, "LeaderAndIsrResponseReceived"),
        (11, "LogDirChange"),
        (12, "ControllerShutdown"),
        (13, "UncleanLeaderElectionEnable"),
        (14, "TopicUncleanLeaderElectionEnable"),
        (15, "ListPartitionReassignment"),
        (16, "UpdateMetadataResponseReceived"),
        (17, "UpdateFeatures"),
    ]
    assert {state.value: state for state in ControllerState}[9] is ControllerState.ISR_CHANGE


@pytest.mark.parametrize(
    ("event", "number"),
    [
        (events.Expire(), 1),
        (events.ControllerChange(), 1),
        (events.BrokerChange(), 2),
        (events.BrokerModifications(1), 2),
        (events.TopicChange(), 3),
        (events.PartitionModifications("t"), 3),
        (events.TopicDeletion(), 4),
        (events.TopicDeletionStopReplicaResponseReceived(SENDER, StopReplicaResponse(), ()), 4),
        (events.AutoPreferredReplicaLeaderElection(), 6),
        (events.ZkPreferredReplicaElection(), 7),
        (events.IsrChangeNotification(), 9),
        (events.LeaderAndIsrResponseReceived(SENDER, LeaderAndIsrResponse()), 10),
        (events.LogDirEventNotification(), 11),
        (events.UncleanLeaderElectionEnable(), 13),
        (events.TopicUncleanLeaderElectionEnable("t"), 14),
        (events.UpdateMetadataResponseReceived(SENDER, 0), 16),
    ],
)
def test_an_event_that_nobody_waits_for(event: events.ControllerEvent, number: int) -> None:
    assert event.state.value == number
    event.preempt()


@pytest.mark.parametrize(
    ("make", "number", "error"),
    [
        (lambda answer: events.Startup(None, answer=answer), 1, SessionExpired),  # type: ignore[arg-type]
        (lambda answer: events.RegisterBrokerAndReelect(None, answer=answer), 1, SessionExpired),  # type: ignore[arg-type]
        (lambda answer: events.ControlledShutdown(1, 2, answer=answer), 8, ErrorCode.STALE_CONTROLLER_EPOCH),
        (
            lambda answer: events.ReplicaLeaderElection([], ElectionType.PREFERRED, answer=answer),
            7,
            ErrorCode.NOT_CONTROLLER,
        ),
        (lambda answer: events.UpdateFeatures([], answer=answer), 17, ErrorCode.NOT_CONTROLLER),
        (
            lambda answer: events.AlterIsrReceived(AlterIsrRequest(broker_id=1, topics=[]), answer=answer),
            9,
            ErrorCode.NOT_CONTROLLER,
        ),
    ],
)
async def test_who_waits_for_an_answer_gets_one(make: Any, number: int, error: Any) -> None:
    loop = asyncio.get_running_loop()
    preempted = make(loop.create_future())
    assert preempted.state.value == number
    preempted.preempt()
    preempted.resolve("too late")
    caught = preempted.answer.exception()
    if isinstance(error, ErrorCode):
        assert isinstance(caught, KafkaError)
        assert caught.code is error
    else:
        assert isinstance(caught, error)
    answered = make(loop.create_future())
    answered.resolve("answer")
    answered.preempt()
    assert await answered.answer == "answer"
    # No sender waits for an answer.
    left = make(loop.create_future())
    left.answer.cancel()
    left.preempt()
    left.resolve("answer")
