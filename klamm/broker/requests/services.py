"""The parts of a broker that its handlers use. The composition root (`parts.py`) makes `Services`, which never
change."""

from collections.abc import Mapping
from dataclasses import dataclass

from klamm.base.environment import Environment
from klamm.base.slices import Turns
from klamm.broker.configs.admin import ConfigAdmin
from klamm.broker.configs.topics import TopicConfigs
from klamm.broker.coordinators.coordinator_topic import CoordinatorTopic
from klamm.broker.coordinators.marker_appends import MarkerAppends
from klamm.broker.coordinators.transaction_markers import TransactionMarkers
from klamm.broker.metadata.controller_channel import ControllerChannel
from klamm.broker.metadata.leader_elections import LeaderElections
from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.broker.metadata_updates import MetadataUpdates
from klamm.broker.quotas.admin import QuotaAdmin
from klamm.broker.quotas.client_quotas import ClientQuotas
from klamm.broker.registration.finalized_features import FinalizedFeatureCache
from klamm.broker.registration.registration import Registrar
from klamm.broker.requests.api import Api
from klamm.broker.requests.fetch_session import FetchSessionCache
from klamm.broker.requests.security import Authorizer
from klamm.broker.topics.auto_topic_creation import AutoTopicCreation
from klamm.broker.topics.topic_admin import TopicAdmin
from klamm.config.current import CurrentConfig
from klamm.controller.controller import KafkaController
from klamm.coordinator.groups.group_coordinator import GroupCoordinator
from klamm.coordinator.transactions.coordinator import TransactionCoordinator
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.replication.replica_manager import ReplicaManager
from klamm.storage.directories.log_manager import LogManager


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of one broker that handlers may use."""

    environment: Environment
    config: CurrentConfig
    broker_id: int
    cluster_id: str
    registrar: Registrar
    controller: KafkaController
    controller_channel: ControllerChannel
    apis: Mapping[ApiKey, Api]
    authorizer: Authorizer
    quotas: ClientQuotas
    quota_admin: QuotaAdmin
    metadata_cache: MetadataCache
    metadata_updates: MetadataUpdates
    topic_configs: TopicConfigs
    topic_admin: TopicAdmin
    auto_topic_creation: AutoTopicCreation
    config_admin: ConfigAdmin
    leader_elections: LeaderElections
    finalized_features: FinalizedFeatureCache
    replica_manager: ReplicaManager
    log_manager: LogManager
    fetch_sessions: FetchSessionCache
    offsets_topic: CoordinatorTopic
    transaction_topic: CoordinatorTopic
    group_coordinator: GroupCoordinator
    transaction_coordinator: TransactionCoordinator
    transaction_markers: TransactionMarkers
    marker_appends: MarkerAppends
    # Large answers are made one after another, when there is room: before encoding, an answer takes ten times the
    # memory of its bytes.
    long_answers: Turns

    def require_controller(self) -> None:
        """Raises KafkaError NOT_CONTROLLER unless this broker considers itself the active controller."""
        if not self.controller.is_active:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, f"the controller is broker {self.controller.controller_id}")
