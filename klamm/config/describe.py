"""The content of DescribeConfigs responses (KIP-133, KIP-226, KIP-569) for a topic or a broker, as plain data.

Each key has its value, the source of the value, and the other sources that would supply it, in the order of precedence
(`kafka.server.ConfigHelper`).
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from klamm.config.broker import BROKER_CONFIG_DEF, FAMILIES, BrokerConfig, config_key
from klamm.config.definition import ConfigKey, ConfigSource, ConfigType, UpdateMode, attribute, format_value
from klamm.config.topic import BROKER_KEY, TOPIC_CONFIG_DEF, TopicConfig


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A source that supplies, or would supply, a key's value."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class DescribedConfig:
    """One key of a topic or broker. `value` is None when nothing is set, and always when the key is `sensitive`."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    type: ConfigType
    documentation: str | None

    @property
    def is_default(self) -> bool:
        """The only part of the source that version 0 of the API has."""
        return self.source is ConfigSource.DEFAULT_CONFIG


_FAMILY_OF = {name: family for family in FAMILIES for name in family}
# In one direction only: the interval falls back to the scheduler's interval, not the other way round.
_FAMILY_OF["log.flush.interval.ms"] = ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")


def describe_topic(config: TopicConfig, names: Container[str] | None = None) -> list[DescribedConfig]:
    """Every key of the topic; with `names`, only these."""
    keys = TOPIC_CONFIG_DEF.keys.values()
    return [_describe_topic_key(config, key) for key in keys if names is None or key.name in names]


def _describe_topic_key(config: TopicConfig, key: ConfigKey) -> DescribedConfig:
    value = format_value(key.type, getattr(config, attribute(key.name)))
    broker_key = BROKER_KEY.get(key.name)
    synonyms = _broker_synonyms(config.broker_config, broker_key) if broker_key is not None else []
    if key.name in config.overrides:
        synonyms.insert(0, ConfigSynonym(key.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG))
    return _described(key.name, key, value, synonyms, read_only=False)


def describe_broker(config: BrokerConfig) -> list[DescribedConfig]:
    """Every key of the broker, then the unknown keys that are set. An unknown value might be a secret."""
    given = {**config.originals, **config.dynamic_default, **config.dynamic_broker}
    described = []
    for name in dict.fromkeys((*BROKER_CONFIG_DEF.keys, *given)):
        own = BROKER_CONFIG_DEF.keys.get(name)
        value = given[name] if own is None else format_value(own.type, config.values[name])
        described.append(_describe_broker_key(name, value, _broker_synonyms(config, name)))
    return described


def describe_default_broker(config: BrokerConfig) -> list[DescribedConfig]:
    """The keys that are set for all brokers of the cluster."""
    described = []
    for name, value in config.dynamic_default.items():
        synonyms = [
            synonym
            for synonym in _broker_synonyms(config, name)
            if synonym.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        ]
        described.append(_describe_broker_key(name, value, synonyms))
    return described


def _describe_broker_key(name: str, value: str | None, synonyms: Sequence[ConfigSynonym]) -> DescribedConfig:
    key = config_key(name)
    own = BROKER_CONFIG_DEF.keys.get(name)
    # As in Kafka, a key for one listener is reported as read-only, although its base key may change.
    read_only = own is None or own.update_mode is UpdateMode.READ_ONLY
    return _described(name, key, value, synonyms, read_only=read_only)


def _described(
    name: str, key: ConfigKey | None, value: str | None, synonyms: Sequence[ConfigSynonym], *, read_only: bool
) -> DescribedConfig:
    sensitive = key is None or key.sensitive
    if sensitive:
        value, synonyms = None, [ConfigSynonym(synonym.name, None, synonym.source) for synonym in synonyms]
    return DescribedConfig(
        name=name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        read_only=read_only,
        sensitive=sensitive,
        synonyms=tuple(synonyms),
        type=ConfigType.UNKNOWN if key is None else key.type,
        documentation=None if key is None else key.documentation,
    )


def _broker_synonyms(config: BrokerConfig, name: str) -> list[ConfigSynonym]:
    """The sources of a broker's key, under each of its names: this broker's dynamic configs, the cluster's, the file,
    the defaults.

    As in Kafka, names before `name` itself do not count, and a key without any entry of its own has no synonyms.
    """
    key = config_key(name)
    # A key for one listener falls back to its base key.
    names = _FAMILY_OF.get(name, (name,) if key is None or key.name == name else (name, key.name))
    layers = (
        (config.dynamic_broker, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (config.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        (config.originals, ConfigSource.STATIC_BROKER_CONFIG),
    )
    found = [ConfigSynonym(each, layer[each], source) for layer, source in layers for each in names if each in layer]
    for each in names:
        key = BROKER_CONFIG_DEF.keys.get(each)
        if key is not None and key.default is not None:
            found.append(ConfigSynonym(each, format_value(key.type, key.default), ConfigSource.DEFAULT_CONFIG))
    while found and found[0].name != name:
        del found[0]
    return found
