"""The operator's own code in a broker: its config keys, and its loading at the start."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from klamm.broker.registration.registration import BrokerStartError
from klamm.config.broker import BrokerConfig
from klamm.plugins.loading import PluginError, load_plugin
from klamm.plugins.plugin import Plugin
from klamm.plugins.policies import AlterConfigPolicy, CreateTopicPolicy
from klamm.plugins.replica_selection import KAFKA_SELECTORS, ReplicaSelector

CREATE_TOPIC_POLICY = "create.topic.policy.class.name"
ALTER_CONFIG_POLICY = "alter.config.policy.class.name"
REPLICA_SELECTOR = "replica.selector.class"

P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True, slots=True)
class Plugins:
    """The plugins of one broker; None for a key that is not set."""

    create_topic_policy: CreateTopicPolicy | None
    alter_config_policy: AlterConfigPolicy | None
    replica_selector: ReplicaSelector | None

    @staticmethod
    def load(config: BrokerConfig) -> "Plugins":
        """Loads the plugins. Raises BrokerStartError with every unusable plugin and the reason."""
        problems: list[str] = []

        def load(key: str, base: type[P], built_in: Mapping[str, type[P]] = MappingProxyType({})) -> P | None:
            name = config.values[key]
            if not name:
                return None
            try:
                return load_plugin(key, name, base, config.originals, built_in)
            except PluginError as error:
                problems.append(str(error))
                return None

        plugins = Plugins(
            load(CREATE_TOPIC_POLICY, CreateTopicPolicy),  # type: ignore[type-abstract]
            load(ALTER_CONFIG_POLICY, AlterConfigPolicy),  # type: ignore[type-abstract]
            load(REPLICA_SELECTOR, ReplicaSelector, KAFKA_SELECTORS),  # type: ignore[type-abstract]
        )
        if problems:
            raise BrokerStartError("; ".join(problems))
        return plugins
