"""The events of the controller, and its states (Kafka's `ControllerEvent` and `ControllerState`).

Watches, responses, timers and requests make events and put them into the queue of `event_manager.py`; each
event names the controller's state during its processing. An event that is dropped instead (`preempt`) still answers
its waiter.

Kafka distinguishes the creation of /controller (ControllerChange) from its deletion (Reelect). Here one event stands
for both: the znode may be gone again when its creation is noticed, and then no broker would be elected.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Generic, TypeVar

from klamm.controller.context import ReplicaAssignment
from klamm.controller.feature_updates import FeatureResults, FeatureUpdate
from klamm.controller.leader_election import ElectionResults
from klamm.protocol.apis.alter_isr import AlterIsrRequest, AlterIsrResponse
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrResponse
from klamm.protocol.apis.stop_replica import StopReplicaResponse, StopReplicaTopicState
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ElectionType, PartitionKey
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.keeper_exceptions import SessionExpired

T = TypeVar("T")


class ControllerState(IntEnum):
    """The state of the controller, with Kafka's numbers; `label` is Kafka's name."""

    label: str

    def __new__(cls, number: int, label: str) -> "ControllerState":
        state = int.__new__(cls, number)
        state._value_ = number
        state.label = label
        return state

    IDLE = 0, "Idle"
    CONTROLLER_CHANGE = 1, "ControllerChange"
    BROKER_CHANGE = 2, "BrokerChange"
    TOPIC_CHANGE = 3, "TopicChange"
    TOPIC_DELETION = 4, "TopicDeletion"
    ALTER_PARTITION_REASSIGNMENT = 5, "AlterPartitionReassignment"
    AUTO_LEADER_BALANCE = 6, "AutoLeaderBalance"
    MANUAL_LEADER_BALANCE = 7, "ManualLeaderBalance"
    CONTROLLED_SHUTDOWN = 8, "ControlledShutdown"
    ISR_CHANGE = 9, "IsrChange"
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10, "LeaderAndIsrResponseReceived"
    LOG_DIR_CHANGE = 11, "LogDirChange"
    CONTROLLER_SHUTDOWN = 12, "ControllerShutdown"
    UNCLEAN_LEADER_ELECTION_ENABLE = 13, "UncleanLeaderElectionEnable"
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14, "TopicUncleanLeaderElectionEnable"
    LIST_PARTITION_REASSIGNMENT = 15, "ListPartitionReassignment"
    UPDATE_METADATA_RESPONSE_RECEIVED = 16, "UpdateMetadataResponseReceived"
    UPDATE_FEATURES = 17, "UpdateFeatures"


class ControllerEvent:
    """See the module."""

    state: ClassVar[ControllerState]

    def preempt(self) -> None:
        """Called when the event is dropped or was interrupted."""


@dataclass(frozen=True, eq=False)
class Question(ControllerEvent, Generic[T]):
    """An event whose sender waits for `answer`. Only the first answer counts."""

    answer: "asyncio.Future[T]" = field(kw_only=True, repr=False)

    def resolve(self, answer: T) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


# -- election -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Startup(Question[None]):
    """The broker has started, and is registered in the session of `store`."""

    state = ControllerState.CONTROLLER_CHANGE
    store: KafkaZooKeeper

    def preempt(self) -> None:
        self.fail(SessionExpired(message="the session ended before the controller had started"))


@dataclass(frozen=True, eq=False)
class RegisterBrokerAndReelect(Question[None]):
    """A new session has begun: the session of `store`."""

    state = ControllerState.CONTROLLER_CHANGE
    store: KafkaZooKeeper

    def preempt(self) -> None:
        self.fail(SessionExpired(message="the session ended before the broker was set up in it"))


class Expire(ControllerEvent):
    """The session is gone."""

    state = ControllerState.CONTROLLER_CHANGE


class ControllerChange(ControllerEvent):
    """/controller was created, changed or deleted."""

    state = ControllerState.CONTROLLER_CHANGE


# -- znodes -------------------------------------------------------------------------------------------------------


class BrokerChange(ControllerEvent):
    """A broker has come or gone."""

    state = ControllerState.BROKER_CHANGE


@dataclass(frozen=True)
class BrokerModifications(ControllerEvent):
    """A broker has changed its registration."""

    state = ControllerState.BROKER_CHANGE
    broker_id: int


class TopicChange(ControllerEvent):
    """A topic has come or gone."""

    state = ControllerState.TOPIC_CHANGE


@dataclass(frozen=True)
class PartitionModifications(ControllerEvent):
    """The assignment of a topic has changed."""

    state = ControllerState.TOPIC_CHANGE
    topic: str


class TopicDeletion(ControllerEvent):
    """A topic was marked for deletion."""

    state = ControllerState.TOPIC_DELETION


class ZkPreferredReplicaElection(ControllerEvent):
    """/admin/preferred_replica_election has come, changed or gone."""

    state = ControllerState.MANUAL_LEADER_BALANCE


class ZkPartitionReassignment(ControllerEvent):
    """/admin/reassign_partitions has come, changed or gone."""

    state = ControllerState.ALTER_PARTITION_REASSIGNMENT


@dataclass(frozen=True)
class PartitionReassignmentIsrChange(ControllerEvent):
    """The state of a partition that is being reassigned has changed; watched only where leaders before 2.7 may be."""

    state = ControllerState.ALTER_PARTITION_REASSIGNMENT
    partition: PartitionKey


class IsrChangeNotification(ControllerEvent):
    """A leader has written the ISR of partitions itself, as brokers before 2.7 do."""

    state = ControllerState.ISR_CHANGE


class LogDirEventNotification(ControllerEvent):
    """A log directory of a broker has failed."""

    state = ControllerState.LOG_DIR_CHANGE


# -- requests -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ControlledShutdown(Question[list[PartitionKey]]):
    """A broker wants to stop. The answer: the partitions that it still leads. `broker_epoch`: -1 for unknown."""

    state = ControllerState.CONTROLLED_SHUTDOWN
    broker_id: int
    broker_epoch: int

    def preempt(self) -> None:
        # Not NOT_CONTROLLER: this is what Kafka's brokers get.
        self.fail(KafkaError(ErrorCode.STALE_CONTROLLER_EPOCH, "this broker is no longer the controller"))


@dataclass(frozen=True, eq=False)
class ReplicaLeaderElection(Question[ElectionResults]):
    """An ElectLeaders request."""

    state = ControllerState.MANUAL_LEADER_BALANCE
    partitions: Sequence[PartitionKey]
    election_type: ElectionType

    def preempt(self) -> None:
        self.fail(KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is no longer the controller"))


@dataclass(frozen=True, eq=False)
class UpdateFeatures(Question[FeatureResults]):
    """An UpdateFeatures request."""

    state = ControllerState.UPDATE_FEATURES
    updates: Sequence[FeatureUpdate]

    def preempt(self) -> None:
        self.fail(KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is no longer the controller"))


@dataclass(frozen=True, eq=False)
class ApiPartitionReassignment(Question[Mapping[PartitionKey, KafkaError | None]]):
    """An AlterPartitionReassignments request; a target of None cancels. The answer: an error for each partition, None
    where the reassignment has begun."""

    state = ControllerState.ALTER_PARTITION_REASSIGNMENT
    targets: Mapping[PartitionKey, tuple[int, ...] | None]

    def preempt(self) -> None:
        self.fail(KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is no longer the controller"))


@dataclass(frozen=True, eq=False)
class ListPartitionReassignments(Question[Mapping[PartitionKey, ReplicaAssignment]]):
    """A query: which of these partitions (None: of all) are being reassigned."""

    state = ControllerState.LIST_PARTITION_REASSIGNMENT
    partitions: Sequence[PartitionKey] | None

    def preempt(self) -> None:
        self.fail(KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is no longer the controller"))


@dataclass(frozen=True, eq=False)
class AlterIsrReceived(Question[AlterIsrResponse]):
    """A leader wants to change the ISR of partitions. The answer: an AlterIsr response."""

    state = ControllerState.ISR_CHANGE
    request: AlterIsrRequest

    def preempt(self) -> None:
        self.fail(KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is no longer the controller"))


# -- timers and configurations ------------------------------------------------------------------------------------


class AutoPreferredReplicaLeaderElection(ControllerEvent):
    """The timer to check whether brokers have lost too many leaderships."""

    state = ControllerState.AUTO_LEADER_BALANCE


class UncleanLeaderElectionEnable(ControllerEvent):
    """unclean.leader.election.enable was switched on."""

    state = ControllerState.UNCLEAN_LEADER_ELECTION_ENABLE


@dataclass(frozen=True)
class TopicUncleanLeaderElectionEnable(ControllerEvent):
    """unclean.leader.election.enable was switched on for a topic."""

    state = ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE
    topic: str


# -- responses ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ControllerRequestSender:
    """The receiver of a request and the epoch of the controller that sent it; an outdated response is dropped."""

    broker_id: int
    broker_epoch: int
    controller_epoch: int


@dataclass(frozen=True)
class LeaderAndIsrResponseReceived(ControllerEvent):
    """A broker has answered a LeaderAndIsr request."""

    state = ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED
    sender: ControllerRequestSender
    response: LeaderAndIsrResponse


@dataclass(frozen=True)
class UpdateMetadataResponseReceived(ControllerEvent):
    """A broker has answered an UpdateMetadata request."""

    state = ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED
    sender: ControllerRequestSender
    error_code: int


@dataclass(frozen=True)
class TopicDeletionStopReplicaResponseReceived(ControllerEvent):
    """A broker has answered a StopReplica request that deletes. `topics`: the request's entries for topics that were in
    deletion when the response came."""

    state = ControllerState.TOPIC_DELETION
    sender: ControllerRequestSender
    response: StopReplicaResponse
    topics: Sequence[StopReplicaTopicState]
