"""The throttle of a reassignment: the configs that it sets, and how they get their former values back. Pure.

A throttle is a rate on every broker that sends or receives a copy, and for each topic the list of the replicas that it
holds for: those that exist count as senders, and those that are added as receivers. An entity is the path of a config's
znode: `topics/t`, `brokers/1`.

What must stay true:
- A value that another client has set is restored, not deleted, and what another client throttles stays throttled.
- A value that another client has set meanwhile stays, and one that it has deleted stays deleted.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.config.throttles import (
    BROKER_THROTTLES,
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
    LOG_DIR_RATE,
    TOPIC_THROTTLES,
)
from klamm.tools.reassign.model import Move

ALL_REPLICAS: Final = "*"


class ConfigKey(NamedTuple):
    """One config of one entity."""

    entity: str
    name: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A config that a reassignment has set. `former` is the value before, None if there was none; `values` are all that
    the reassignment has set since, the newest last."""

    former: str | None
    values: tuple[str, ...]

    @property
    def value(self) -> str:
        return self.values[-1]

    def to(self, value: str) -> "Setting":
        return self if value == self.value else Setting(self.former, (*self.values, value))


Changes = dict[str, dict[str, str | None]]
"""For each entity the new value of some of its configs; None deletes the config."""


def topic_entity(topic: str) -> str:
    return f"topics/{topic}"


def broker_entity(broker_id: int) -> str:
    return f"brokers/{broker_id}"


def broker_of(entity: str) -> int | None:
    """The broker of a broker's entity."""
    kind, _, name = entity.partition("/")
    return int(name) if kind == "brokers" else None


def wanted_configs(moves: Collection[Move], throttle: int | None, log_dir_throttle: int | None) -> dict[ConfigKey, str]:
    """The configs of a throttle on these moves, as Kafka's tool computes them, without empty lists of replicas."""
    wanted: dict[ConfigKey, str] = {}
    if throttle is not None:
        lists: dict[ConfigKey, list[str]] = {}
        for move in moves:
            entity = topic_entity(move.topic)
            senders = [f"{move.partition}:{broker}" for broker in move.before.replicas]
            receivers = [f"{move.partition}:{broker}" for broker in move.adding_replicas]
            lists.setdefault(ConfigKey(entity, LEADER_REPLICAS), []).extend(senders)
            lists.setdefault(ConfigKey(entity, FOLLOWER_REPLICAS), []).extend(receivers)
        wanted.update({key: ",".join(sorted(replicas)) for key, replicas in sorted(lists.items()) if replicas})
        involved = {broker for move in moves for broker in (*move.before.replicas, *move.after.replicas)}
        for broker in sorted(involved):
            wanted[ConfigKey(broker_entity(broker), LEADER_RATE)] = str(throttle)
            wanted[ConfigKey(broker_entity(broker), FOLLOWER_RATE)] = str(throttle)
    if log_dir_throttle is not None:
        for broker in sorted({broker for move in moves for broker in move.after.chosen_log_dirs}):
            wanted[ConfigKey(broker_entity(broker), LOG_DIR_RATE)] = str(log_dir_throttle)
    return wanted


def combined(name: str, wanted: str, former: str | None) -> str:
    """The value to set: a list of replicas keeps those that another client throttles."""
    if name not in TOPIC_THROTTLES or not former:
        return wanted
    others = _listed(former)
    if ALL_REPLICAS in others:
        return former
    return ",".join(sorted(others | _listed(wanted)))


def _listed(replicas: str | None) -> set[str]:
    return {each.strip() for each in (replicas or "").split(",")} - {""}


def settings_for(
    wanted: Mapping[ConfigKey, str],
    known: Mapping[ConfigKey, Setting],
    current: Mapping[ConfigKey, str | None],
) -> dict[ConfigKey, Setting]:
    """What is to be recorded before the wanted values are set. A key that is `known` keeps its former value."""
    settings = {}
    for key, value in wanted.items():
        setting = known.get(key)
        former = current.get(key) if setting is None else setting.former
        new = combined(key.name, value, former)
        settings[key] = Setting(former, (new,)) if setting is None else setting.to(new)
    return settings


def to_set(settings: Mapping[ConfigKey, Setting], current: Mapping[ConfigKey, str | None]) -> Changes:
    """The changes that give the settings their values. What another client has set meanwhile stays."""
    return _changes(
        {
            key: setting.value
            for key, setting in settings.items()
            if current.get(key) != setting.value and not is_foreign(setting, current.get(key))
        }
    )


def to_restore(settings: Mapping[ConfigKey, Setting], current: Mapping[ConfigKey, str | None]) -> Changes:
    """The changes that restore the former values. A config that seems to have its former value is written too: the
    broker that was asked may not have heard of the throttle yet. From a list that another client has changed only the
    replicas of this reassignment are taken: another reassignment of the topic may have added its own."""
    restored = {}
    for key, setting in settings.items():
        value = current.get(key)
        if not is_foreign(setting, value):
            restored[key] = setting.former
        elif key.name in TOPIC_THROTTLES and (own := _own_replicas(setting) & _listed(value)):
            restored[key] = ",".join(sorted(_listed(value) - own)) or None
    return _changes(restored)


def _own_replicas(setting: Setting) -> set[str]:
    return {each for value in setting.values for each in _listed(value)} - _listed(setting.former)


def is_foreign(setting: Setting, current: str | None) -> bool:
    """Whether another client has changed or deleted the config since this reassignment set it."""
    return current != setting.former and current not in setting.values


def foreign(
    settings: Mapping[ConfigKey, Setting], current: Mapping[ConfigKey, str | None]
) -> dict[ConfigKey, str | None]:
    """The configs that another client has changed, with their values; None for one that it has deleted."""
    return {key: current.get(key) for key, setting in settings.items() if is_foreign(setting, current.get(key))}


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
