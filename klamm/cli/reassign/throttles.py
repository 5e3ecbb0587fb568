"""The throttle of a reassignment: the configs that it sets, and how their former values are restored. Pure.

A throttle is a rate on every broker that sends or receives a copy, and for each topic a list of throttled replicas:
existing replicas as senders, and added replicas as receivers. An entity is the path of a config's znode: `topics/t`,
`brokers/1`.

What must stay true:
- A rate that another client had set before is restored, not deleted. A rate that another client sets meanwhile stays.
- A list belongs to all clients. This reassignment adds its own replicas and removes no others.
- A rate or a list that another client has deleted is set again while partitions move, and stays deleted afterwards.
  `kafka-reassign-partitions --verify` deletes all throttles while nothing is moving, even between two batches.

A list names the partitions that move now and those that begin next. A list that is longer than a request's string can
be is replaced by `*`, which throttles every replica of the topic that is not in the ISR.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.cli.reassign.planning.model import Move
from klamm.config.throttles import (
    BROKER_THROTTLES,
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    LOG_DIR_RATE,
    TOPIC_THROTTLES,
)

ALL_REPLICAS: Final = "*"
# The longest string in a request.
MAX_LIST_BYTES: Final = 2**15 - 1


class ConfigKey(NamedTuple):
    """One config of one entity."""

    entity: str
    name: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A config that a reassignment sets.

    For a rate, `former` is the value before, and `values` are all that the reassignment has set since, the newest last.
    For a list, `former` has the replicas of other clients, and `values` only the newest value.
    """

    former: str | None
    values: tuple[str, ...]

    @property
    def value(self) -> str:
        return self.values[-1]

    def to(self, value: str) -> "Setting":
        return self if value == self.value else Setting(self.former, (*self.values, value))


Replicas = Mapping[ConfigKey, frozenset[str]]
"""The replicas that a reassignment may add to each list."""
Changes = dict[str, dict[str, str | None]]
"""The new values of some configs of each entity; None deletes the config."""


def topic_entity(topic: str) -> str:
    return f"topics/{topic}"


def broker_entity(broker_id: int) -> str:
    return f"brokers/{broker_id}"


def broker_of(entity: str) -> int | None:
    """The broker of a broker's entity."""
    kind, _, name = entity.partition("/")
    return int(name) if kind == "brokers" else None


def listed_replicas(moves: Iterable[Move]) -> dict[ConfigKey, frozenset[str]]:
    """The lists of replicas that throttle these moves, as Kafka's tool computes them, without empty ones."""
    lists: dict[ConfigKey, set[str]] = {}
    for move in moves:
        entity = topic_entity(move.topic)
        senders = [f"{move.partition}:{broker}" for broker in move.before.replicas]
        receivers = [f"{move.partition}:{broker}" for broker in move.adding_replicas]
        lists.setdefault(ConfigKey(entity, LEADER_REPLICAS), set()).update(senders)
        lists.setdefault(ConfigKey(entity, FOLLOWER_REPLICAS), set()).update(receivers)
    return {key: frozenset(replicas) for key, replicas in sorted(lists.items()) if replicas}


def wanted_configs(
    moves: Collection[Move], listed: Iterable[Move], throttle: int | None, log_dir_throttle: int | None
) -> dict[ConfigKey, str]:
    """The configs of a throttle: the rates of all brokers of `moves`, and the replicas of the moves that are `listed`.
    A list may be longer than MAX_LIST_BYTES."""
    wanted: dict[ConfigKey, str] = {}
    if throttle is not None:
        wanted.update({key: ",".join(sorted(replicas)) for key, replicas in listed_replicas(listed).items()})
        involved = {broker for move in moves for broker in (*move.before.replicas, *move.after.replicas)}
        for broker in sorted(involved):
            wanted[ConfigKey(broker_entity(broker), LEADER_RATE)] = str(throttle)
            wanted[ConfigKey(broker_entity(broker), FOLLOWER_RATE)] = str(throttle)
    if log_dir_throttle is not None:
        for broker in sorted({broker for move in moves for broker in move.after.chosen_log_dirs}):
            wanted[ConfigKey(broker_entity(broker), LOG_DIR_RATE)] = str(log_dir_throttle)
    return wanted


def _is_list(key: ConfigKey) -> bool:
    return key.name in TOPIC_THROTTLES


def _listed(replicas: str | None) -> frozenset[str]:
    return frozenset({each.strip() for each in (replicas or "").split(",")} - {""})


def _list_text(replicas: Collection[str]) -> str | None:
    return ",".join(sorted(replicas)) or None


def _covers(current: str | None, replicas: str | None) -> bool:
    """Whether a list throttles all of these replicas."""
    listed = _listed(current)
    return ALL_REPLICAS in listed or listed >= _listed(replicas)


def settings_for(
    wanted: Mapping[ConfigKey, str],
    known: Mapping[ConfigKey, Setting],
    current: Mapping[ConfigKey, str | None],
    own: Replicas,
) -> dict[ConfigKey, Setting]:
    """The settings to record before the wanted values are set. A rate that is `known` keeps its former value, unless
    another client has deleted the rate."""
    settings = {}
    for key, value in wanted.items():
        setting, present = known.get(key), current.get(key)
        if _is_list(key):
            others = _others(setting, present, own.get(key, frozenset()))
            listed = ",".join(sorted(others | _listed(value)))
            is_wildcard = ALL_REPLICAS in others or len(listed) > MAX_LIST_BYTES
            settings[key] = Setting(_list_text(others), (ALL_REPLICAS if is_wildcard else listed,))
        elif setting is None:
            settings[key] = Setting(present, (value,))
        else:
            settings[key] = Setting(None if present is None else setting.former, setting.values).to(value)
    return settings


def _others(setting: Setting | None, current: str | None, own: frozenset[str]) -> frozenset[str]:
    """The replicas of other clients in a list. Replicas that were listed before this reassignment are others'."""
    if setting is None:
        return _listed(current)
    if _is_own_wildcard(setting, current):
        return _listed(setting.former)
    return _listed(current) - (own - _listed(setting.former))


def _is_own_wildcard(setting: Setting, current: str | None) -> bool:
    return ALL_REPLICAS == setting.value == current != setting.former


def to_set(
    settings: Mapping[ConfigKey, Setting],
    current: Mapping[ConfigKey, str | None],
    shown: Collection[ConfigKey] = frozenset(),
) -> Changes:
    """The changes that give the settings their values. A rate that another client has set meanwhile stays. `shown` are
    the settings that brokers have shown already; if one has its former value again, another client has restored that
    value."""
    return _changes(
        {
            key: setting.value
            for key, setting in settings.items()
            if (
                _listed(current.get(key)) != _listed(setting.value)
                if _is_list(key)
                else _is_outdated(key, setting, current[key], shown)
            )
        }
    )


def _is_outdated(key: ConfigKey, setting: Setting, current: str | None, shown: Collection[ConfigKey]) -> bool:
    return current != setting.value and not is_foreign(key, setting, current, shown)


def to_restore(
    settings: Mapping[ConfigKey, Setting], current: Mapping[ConfigKey, str | None], own: Replicas
) -> Changes:
    """The changes that restore the former values. A config that seems to have its former value is written too, because
    the broker that was asked may not know of the throttle yet. A list loses only the replicas of this reassignment,
    because another reassignment of the topic may have added its own."""
    restored: dict[ConfigKey, str | None] = {}
    for key, setting in settings.items():
        value = current.get(key)
        if _is_list(key) and not _is_own_wildcard(setting, value) and value != setting.former:
            others = _others(setting, value, own.get(key, frozenset()))
            if others != _listed(value):
                restored[key] = _list_text(others)
        elif _is_list(key) or not is_foreign(key, setting, value):
            restored[key] = setting.former
    return _changes(restored)


def is_foreign(
    key: ConfigKey, setting: Setting, current: str | None, shown: Collection[ConfigKey] = frozenset()
) -> bool:
    """Whether another client has changed or deleted the config since this reassignment set it."""
    if _is_list(key):
        return _listed(current) not in (_listed(setting.former), _listed(setting.value))
    return current not in setting.values and (current != setting.former or (key in shown and current is not None))


def foreign(
    settings: Mapping[ConfigKey, Setting],
    current: Mapping[ConfigKey, str | None],
    shown: Collection[ConfigKey] = frozenset(),
) -> dict[ConfigKey, str | None]:
    """The configs that another client has changed, with their values; None for a deleted config."""
    return {
        key: current.get(key) for key, setting in settings.items() if is_foreign(key, setting, current.get(key), shown)
    }


def is_gone(key: ConfigKey, value: str, current: str | None) -> bool:
    """Whether another client has deleted this value, or shortened the list."""
    return not _covers(current, value) if _is_list(key) else current is None


def shows(key: ConfigKey, setting: Setting, expected: str | None, current: str | None) -> bool:
    """Whether a broker knows of this change. Another client may have changed the config again since."""
    if _is_list(key):
        gone = _listed(setting.value) - _listed(expected)
        return _covers(current, expected) and not gone & _listed(current)
    return current == expected or is_foreign(key, setting, current)


def handed_over(key: ConfigKey, setting: Setting, ended: Setting, own: frozenset[str]) -> Setting:
    """The setting after another reassignment has ended, which had the setting `ended` and the replicas `own`. A value
    that the other reassignment had set does not count as former."""
    former = setting.former
    if _is_list(key) and not _is_own_wildcard(ended, former):
        former = _list_text(_others(ended, former, own))
    elif _is_list(key) or former in ended.values:
        former = ended.former
    return Setting(former, setting.values)


def clearing(brokers: Iterable[int], topics: Iterable[str]) -> Changes:
    """The deletion of every throttle of these brokers and topics, as Kafka's tool does it."""
    changes: Changes = {broker_entity(broker): dict.fromkeys(BROKER_THROTTLES) for broker in sorted(set(brokers))}
    changes.update({topic_entity(topic): dict.fromkeys(TOPIC_THROTTLES) for topic in sorted(set(topics))})
    return changes


def _changes(values: Mapping[ConfigKey, str | None]) -> Changes:
    changes: Changes = {}
    for key, value in values.items():
        changes.setdefault(key.entity, {})[key.name] = value
    return changes
