"""This broker's knowledge of the finalized features (KIP-584; Kafka's `FinalizedFeatureCache` and its listener).

What must stay true:
- A broker that does not support the finalized features does not serve: it refuses to start, and stops if the features
  change later.
- With an inter.broker.protocol.version before 2.7 no feature is finalized, whatever ZooKeeper has.
"""

import logging
from collections.abc import Callable, Mapping

from klamm.base.purgatory import DelayedOperation, Purgatory
from klamm.base.tasks import OnFailure, start_task
from klamm.broker.registration.registration import BrokerStartError
from klamm.config.versions import ApiVersion
from klamm.znodes.brokers import SupportedVersions
from klamm.znodes.cluster import FEATURE_PATH, FinalizedFeatures, incompatible_features
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

SUPPORTED_FEATURES: Mapping[str, SupportedVersions] = {}
"""What brokers of this version support: Kafka 2.8 has no features yet."""

_log = logging.getLogger(__name__)


class FinalizedFeatureCache:
    """`current` is None while no feature can be finalized. `zookeeper()` is the store of the current session."""

    def __init__(
        self,
        supported: Mapping[str, SupportedVersions],
        inter_broker_protocol_version: ApiVersion,
        zookeeper: Callable[[], KafkaZooKeeper],
        on_failure: OnFailure,
    ) -> None:
        self.supported = supported
        self.current: FinalizedFeatures | None = None
        self._is_enabled = inter_broker_protocol_version >= ApiVersion.V2_7_IV0
        self._zookeeper = zookeeper
        self._on_failure = on_failure
        self._purgatory: Purgatory[str] = Purgatory()

    async def load(self) -> None:
        """Reads the finalized features, and reads them again whenever they change in this session.

        Raises BrokerStartError if this broker does not support them, ZooKeeperError when the session ends.
        """
        if not self._is_enabled:
            return
        current = await self._zookeeper().finalized_features(self._changed)
        missing = [] if current is None else incompatible_features(current.features, self.supported)
        if missing:
            raise BrokerStartError(
                f"{FEATURE_PATH} has finalized features that this broker does not support: {missing}"
            )
        if current != self.current:
            _log.info("finalized features: %s", current)
        self.current = current
        self._purgatory.check(FEATURE_PATH)

    async def wait_until_epoch(self, epoch: int, timeout_ms: int) -> bool:
        """Whether this broker knows the features of this epoch, or a later one, within `timeout_ms`."""
        return await self._purgatory.wait(_EpochReached(self, epoch), [FEATURE_PATH], timeout_ms)

    def _changed(self) -> None:
        start_task(self._load_again(), self._on_failure)

    async def _load_again(self) -> None:
        try:
            await self.load()
        except ZooKeeperError as error:
            # The next session begins with `load`.
            _log.info("the finalized features can no longer be read: %s", error)


class _EpochReached(DelayedOperation):
    def __init__(self, features: FinalizedFeatureCache, epoch: int) -> None:
        self._features = features
        self._epoch = epoch

    def is_ready(self) -> bool:
        current = self._features.current
        return current is not None and current.epoch >= self._epoch
