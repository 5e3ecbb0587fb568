"""Sets the throttles of a record, and restores the former values. `throttles` decides, this module acts.

What must stay true:
- The record on disk names each config with its former value before it is set.
- A config counts as set, or restored, only once brokers show the value: until then brokers use the old value.
- A rate that another client has set meanwhile stays.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.access.clients import error_line
from klamm.cli.reassign.access import Access
from klamm.cli.reassign.state_file import Record, StateFile
from klamm.cli.reassign.throttles import (
    Changes,
    ConfigKey,
    Setting,
    broker_of,
    foreign,
    is_gone,
    settings_for,
    shows,
    to_restore,
    to_set,
)
from klamm.net.client import ClientError
from klamm.protocol.error_codes import ErrorCode, KafkaError

FIRST_LOOKS_EVERY_S: Final = 0.1
LOOKS_EVERY_S: Final = 1.0
RESTORE_TRIES: Final = 3
CONFIRMED_WITHIN_S: Final = 5.0
NOT_ALIVE: Final = "the broker is not alive"

Report = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Throttled:
    """The result of an attempt to set throttles. `errors` says why some could not be set, by entity. `gone` are configs
    that another client had deleted and that are set again; `foreign` are rates of other clients, which stay."""

    errors: Mapping[str, str]
    gone: Collection[ConfigKey] = ()
    foreign: Mapping[ConfigKey, str | None] = field(default_factory=dict)


async def set_throttles(
    access: Access, file: StateFile, wanted: Mapping[ConfigKey, str], shown: Mapping[ConfigKey, str] | None = None
) -> Throttled:
    """Records the former values of these configs, and sets those that differ from the wanted values. A rate that
    another client has set meanwhile stays. `shown` are the values that the brokers have shown already."""
    if not wanted:
        return Throttled({})
    shown = shown or {}
    current = await access.read_configs(wanted)
    gone = _gone(shown.keys() & wanted.keys(), shown, current)
    if gone:
        # The broker that was asked may be behind the one that has shown the value.
        await asyncio.sleep(LOOKS_EVERY_S)
        current = await access.read_configs(wanted)
        gone = _gone(gone, shown, current)
    readable = {key: value for key, value in wanted.items() if key in current}
    record = file.change(
        lambda record: record.with_settings(settings_for(readable, record.settings, current, record.own_replicas))
    )
    settings = {key: record.settings[key] for key in readable}
    changes = to_set(settings, current, shown.keys())
    results = await access.change_configs(changes) if changes else {}
    silent = {key.entity: "the broker does not answer" for key in wanted if key not in current}
    errors = {entity: error_line(error) for entity, error in results.items() if error is not None}
    expected = {
        ConfigKey(entity, name): value
        for entity, values in changes.items()
        if entity not in errors
        for name, value in values.items()
    }
    errors |= silent | await _unconfirmed(access, settings, expected)
    kept = {key: value for key, value in foreign(settings, current, shown.keys()).items() if key not in expected}
    return Throttled(errors, [key for key in gone if key.entity not in errors], kept)


def _gone(
    keys: Collection[ConfigKey], shown: Mapping[ConfigKey, str], current: Mapping[ConfigKey, str | None]
) -> set[ConfigKey]:
    return {key for key in keys if key in current and is_gone(key, shown[key], current[key])}


async def _unconfirmed(
    access: Access, settings: Mapping[ConfigKey, Setting], expected: Mapping[ConfigKey, str | None]
) -> dict[str, str]:
    """Waits until brokers show the values that were written. Brokers learn of a change a little later, and until then
    use the old value. Returns the configs that are not shown in time, by entity."""
    deadline_s = asyncio.get_running_loop().time() + CONFIRMED_WITHIN_S
    left = dict(expected)
    while left:
        try:
            current = await access.read_configs(left)
        except (KafkaError, ClientError):
            current = {}
        left = {
            key: value
            for key, value in left.items()
            if key not in current or not shows(key, settings[key], value, current[key])
        }
        if asyncio.get_running_loop().time() >= deadline_s:
            break
        if left:
            await asyncio.sleep(FIRST_LOOKS_EVERY_S)
    return {key.entity: f"{key.name} does not show the new value yet" for key in left}


async def restore_throttles(access: Access, file: StateFile, report: Report) -> dict[str, str]:
    """Gives every config of the record its former value. Returns why some could not be restored, by entity."""
    problems: dict[str, str] = {}
    is_throttled = False
    file.hand_over()
    for attempt in range(RESTORE_TRIES):
        record = file.load()
        if not record.settings:
            break
        if attempt:
            await asyncio.sleep(LOOKS_EVERY_S)
        is_throttled = True
        try:
            problems = await _restore(access, record, report)
        except (KafkaError, ClientError) as error:
            problems = {key.entity: str(error) for key in record.settings}
        restored = {key: None for key in record.settings if key.entity not in problems}
        file.change(lambda record, restored=restored: record.without(restored))  # type: ignore[misc]
    if is_throttled and not problems:
        report({"event": "throttle_removed"})
    return problems


async def _restore(access: Access, record: Record, report: Report) -> dict[str, str]:
    """Restores the former values once, and returns the problems by entity."""
    settings = record.settings
    brokers = {key.entity: broker for key in settings if (broker := broker_of(key.entity)) is not None}
    dead = await access.unreachable(brokers.values())
    problems = {entity: NOT_ALIVE for entity, broker in brokers.items() if broker in dead}
    reachable = {key: each for key, each in settings.items() if key.entity not in problems}
    current = await access.read_configs(reachable)
    problems |= {key.entity: "the broker does not answer" for key in reachable if key not in current}
    known = {key: each for key, each in reachable.items() if key in current}
    changes: Changes = to_restore(known, current, record.own_replicas)
    for key, value in foreign(known, current).items():
        if key.name not in changes.get(key.entity, {}):
            report({"event": "config_kept", "entity": key.entity, "config": key.name, "value": value})
    results = await access.change_configs(changes) if changes else {}
    # A topic that was deleted has no configs.
    gone = {
        entity
        for entity, error in results.items()
        if error is not None and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }
    problems |= {
        entity: error_line(error) for entity, error in results.items() if error is not None and entity not in gone
    }
    written = {
        ConfigKey(entity, name): value
        for entity, values in changes.items()
        if entity not in gone and entity not in problems
        for name, value in values.items()
    }
    problems |= await _unconfirmed(access, known, written)
    for key, value in written.items():
        if value is not None and key.entity not in problems:
            report({"event": "config_restored", "entity": key.entity, "config": key.name, "value": value})
    return problems
