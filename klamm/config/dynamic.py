"""The configs that may change while a broker runs, and the validation of their changes. Pure.

Kafka's DynamicBrokerConfig and DynamicConfig. Dynamic configs are stored at two levels: for one broker
(/config/brokers/N), and as the cluster's default (/config/brokers/<default>). A broker's own value comes before the
cluster's, and both come before server.properties.

As in Kafka, an unknown key is accepted, because a plugin may know it.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from klamm.config.broker import BROKER_CONFIG_DEF, DYNAMIC_ONLY_DEF, LISTENER_KEYS, BrokerConfig, config_key
from klamm.config.definition import PER_BROKER, ConfigError, ConfigKey, ConfigType, UpdateMode
from klamm.config.safest import SAFEST_TOPIC_VALUES
from klamm.config.topic import BROKER_KEY

# The keys of a broker that guard records, with their safest values as text (`safest`).
SAFEST_BROKER_VALUES: Mapping[str, str] = MappingProxyType(
    {BROKER_KEY[name]: text for name, text in SAFEST_TOPIC_VALUES.items()}
)

_LISTENER_KEY = re.compile(r"listener\.name\.[^.]*\.(.*)", re.DOTALL)
# Keys that may change for one listener, but not for all listeners at once (SslConfigs.RECONFIGURABLE_CONFIGS).
_ONLY_FOR_ONE_LISTENER = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
)
# The sizes of Kafka's thread pools, which grow and shrink by a factor of two at most.
_POOL_SIZES = (
    "num.io.threads",
    "num.network.threads",
    "num.replica.fetchers",
    "num.recovery.threads.per.data.dir",
    "background.threads",
    "log.cleaner.threads",
)


def is_password(name: str) -> bool:
    """Whether Kafka stores the key's value encrypted (password.encoder.secret)."""
    key = config_key(name)
    return key is not None and key.type is ConfigType.PASSWORD


def entry_problems(entries: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
    """The problem of each invalid entry, by key. `per_broker` is False for the cluster's default."""
    problems = {name: _entry_problem(name, text, per_broker) for name, text in entries.items()}
    return {name: problem for name, problem in problems.items() if problem is not None}


def _entry_problem(name: str, text: str, per_broker: bool) -> str | None:
    key: ConfigKey | None
    if (listener_key := _LISTENER_KEY.fullmatch(name)) is not None:
        base = listener_key.group(1)
        if not per_broker and base not in LISTENER_KEYS:
            return f"{name} may be set for one broker only, not as the default of the cluster"
        key = BROKER_CONFIG_DEF.keys.get(base)
        if key is not None and key.update_mode is UpdateMode.READ_ONLY:
            return None  # The same change may add the listener.
    else:
        key = BROKER_CONFIG_DEF.keys.get(name) or DYNAMIC_ONLY_DEF.keys.get(name)
        if key is not None and key.update_mode is UpdateMode.READ_ONLY:
            return f"{name} cannot be changed while brokers run"
        if name in _ONLY_FOR_ONE_LISTENER:
            return f"{name} may be changed for one listener only: listener.name.NAME.{name}"
        if key is not None and key.update_mode is PER_BROKER and not per_broker:
            return f"{name} may be set for one broker only, not as the default of the cluster"
    if key is None:
        return None
    try:
        key.parse(text)
    except ConfigError as error:
        return str(error)
    return None


def change_problems(current: BrokerConfig, new: BrokerConfig) -> list[str]:
    """The reasons why a broker that runs with `current` must not change to `new`, although `new` is valid."""
    problems = []
    for name in _POOL_SIZES:
        old_size, size = current.values[name], new.values[name]
        if size != old_size and not max(1, old_size // 2) <= size <= old_size * 2:
            problems.append(f"{name}={size} is not allowed; allowed: at least 1, and from half to double of {old_size}")
    opened = {listener.name: listener for listener in current.listeners}
    used_by_brokers = (current.inter_broker_listener_name, current.control_listener_name)
    for listener in new.listeners:
        old = opened.get(listener.name, listener)
        if old.security_protocol != listener.security_protocol:
            problems.append(
                f"the security protocol of listener {listener.name} cannot be changed from {old.security_protocol}"
            )
        elif old != listener and listener.name in used_by_brokers:
            problems.append(f"listener {old}, which brokers use, keeps its address while the broker runs")
    known = current.unsupported_reasons()
    return problems + [reason for reason in new.unsupported_reasons() if reason not in known]
