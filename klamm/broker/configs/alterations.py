"""Computes an entity's stored configuration after AlterConfigs and IncrementalAlterConfigs, or refuses the alteration.

Pure; Kafka's `ZkAdminManager.alterConfigs` and `incrementalAlterConfigs`. An alteration is refused as a whole: if any
entry is invalid, nothing is stored.

Differences from Kafka 2.8.2: APPEND to an empty list adds no empty element before the first (Kafka's own followers
refuse its `,0:1`), and SUBTRACT accepts blanks after commas.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from klamm.config.broker import BrokerConfig, config_key
from klamm.config.definition import ConfigError, ConfigKey, ConfigType, format_value
from klamm.config.dynamic import SAFEST_BROKER_VALUES, change_problems, entry_problems, is_password
from klamm.config.topic import TOPIC_CONFIG_DEF, ContradictoryTopicConfig, TopicConfig
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import MAX_STRING_BYTES
from klamm.protocol.vocabulary import AlterConfigOp, OpType


def replace_topic_config(config: BrokerConfig, entries: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """A topic's configuration with exactly these entries. KafkaErrors INVALID_CONFIG, INVALID_REQUEST."""
    wanted = _given(entries)
    _check_topic(config, wanted)
    return wanted


def change_topic_config(
    config: BrokerConfig, stored: Mapping[str, str], changes: Sequence[AlterConfigOp]
) -> dict[str, str]:
    """A topic's configuration after these changes. KafkaErrors INVALID_CONFIG, INVALID_REQUEST."""
    wanted = _changed(stored, changes, TOPIC_CONFIG_DEF.keys.get)
    _check_topic(config, wanted)
    return wanted


def replace_broker_config(
    config: BrokerConfig, entries: Sequence[tuple[str, str | None]], *, per_broker: bool
) -> dict[str, str]:
    """Exactly these dynamic configs, of the broker that runs with `config` or of the default of all brokers.

    KafkaError INVALID_REQUEST.
    """
    wanted = _given(entries)
    _check_broker(config, wanted, {}, per_broker)
    return wanted


def change_broker_config(
    config: BrokerConfig, stored: Mapping[str, str], changes: Sequence[AlterConfigOp], *, per_broker: bool
) -> dict[str, str]:
    """The dynamic configs after these changes. KafkaErrors INVALID_CONFIG, INVALID_REQUEST.

    Invalid stored configs are removed, as in Kafka. Configs that guard records are removed only if the change names
    them. A password that a Kafka broker has stored stays as it is.
    """
    passwords = {name: text for name, text in stored.items() if is_password(name)}
    bad = entry_problems(stored, per_broker=per_broker)
    named = {change.name for change in changes}
    if guards := [problem for name, problem in bad.items() if name in SAFEST_BROKER_VALUES and name not in named]:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"What is stored guards records and cannot be read: {'; '.join(guards)}. Set or delete it, too",
        )
    kept = {name: text for name, text in stored.items() if name not in bad}
    wanted = _changed(kept, changes, config_key)
    _check_broker(config, wanted, passwords, per_broker)
    return wanted


def _given(entries: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    nulls = [name for name, value in entries if value is None]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")
    return {name: value for name, value in entries if value is not None}


def _changed(
    stored: Mapping[str, str], changes: Sequence[AlterConfigOp], key_of: Callable[[str], ConfigKey | None]
) -> dict[str, str]:
    twice = [name for name, count in Counter(change.name for change in changes).items() if count > 1]
    if twice:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys : {','.join(twice)}")
    wanted = dict(stored)
    for change in changes:
        op_type = _op_type(change)
        if op_type is OpType.DELETE:
            wanted.pop(change.name, None)
            continue
        if change.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {op_type.name}:{change.name}")
        if op_type is OpType.SET:
            wanted[change.name] = change.value
        else:
            wanted[change.name] = _changed_list(wanted, change.name, change.value, op_type, key_of(change.name))
    return wanted


def _op_type(change: AlterConfigOp) -> OpType:
    try:
        return OpType(change.op_type)
    except ValueError:
        allowed = ", ".join(f"{op_type.value} ({op_type.name})" for op_type in OpType)
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"operation {change.op_type} on {change.name}: allowed are {allowed}"
        ) from None


def _changed_list(configs: Mapping[str, str], name: str, value: str, op_type: OpType, key: ConfigKey | None) -> str:
    if key is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Config value {op_type.name.lower()}: {name} is not a known config key"
        )
    if key.type is not ConfigType.LIST:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Config value {op_type.name.lower()} is not allowed for config key: {name}"
        )
    # As in Kafka, a list that is not set starts from the key's default, not from the topic's inherited value.
    elements = _elements(configs.get(name, format_value(key.type, key.default) or ""))
    if op_type is OpType.APPEND:
        longer = ",".join(elements + _elements(value))
        if len(longer.encode()) > MAX_STRING_BYTES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{name} would be longer than {MAX_STRING_BYTES} bytes, which no response can hold",
            )
        return longer
    for element in _elements(value):
        if element in elements:
            elements.remove(element)
    return ",".join(elements)


def _elements(text: str) -> list[str]:
    return [element for element in map(str.strip, text.split(",")) if element]


def _check_topic(config: BrokerConfig, wanted: Mapping[str, str]) -> None:
    unknown = [name for name in wanted if name not in TOPIC_CONFIG_DEF.keys]
    if unknown:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {', '.join(unknown)}")
    try:
        TopicConfig.from_overrides(config, wanted)
    except ContradictoryTopicConfig as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid config value: {error}") from None


def _check_broker(
    config: BrokerConfig, wanted: Mapping[str, str], stored_passwords: Mapping[str, str], per_broker: bool
) -> None:
    usable = {name: text for name, text in wanted.items() if not is_password(name)}
    problems = [
        f"{name} is a password, which cannot be stored (password.encoder.secret has no effect yet)"
        for name, text in wanted.items()
        if is_password(name) and stored_passwords.get(name) != text
    ]
    problems += entry_problems(usable, per_broker=per_broker).values()
    if not problems:
        try:
            new = config.with_dynamic(broker=usable) if per_broker else config.with_dynamic(default=usable)
            problems += change_problems(config, new)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid config value: {'; '.join(problems)}")
