"""The files of Kafka's reassignment tool: partitions with their replicas, and topics to move. Pure.

    {"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any","/data/a"]}]}
    {"version":1,"topics":[{"topic":"t"}]}

Kafka ignores a misspelt field and overwrites a repeated one. Here both are errors, because a misread plan moves the
wrong replicas. Errors name the file, the entry and what is allowed.

Source: kafka.admin.ReassignPartitionsCommand.
"""

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final, NoReturn

from klamm.cli.reassign.planning.model import ANY_LOG_DIR, Placement, anywhere
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import TopicPartition

VERSION: Final = 1
MAX_INT32: Final = 2**31 - 1


def format_reassignment(placements: Mapping[TopicPartition, Placement]) -> str:
    """The partitions in order, character for character as Kafka's tool writes them."""
    return format_partitions(
        {key: {"replicas": each.replicas, "log_dirs": each.log_dirs} for key, each in placements.items()}
    )


def fingerprint(placements: Mapping[TopicPartition, Placement]) -> str:
    """A hash of the plan. Plans that place a partition differently have different hashes."""
    return sha256(format_reassignment(placements).encode()).hexdigest()


def parse_reassignment(text: str | bytes, source: str) -> dict[TopicPartition, Placement]:
    """The placements of a file, in its order. Raises ToolError that names `source` and the entry."""
    return {
        key: _placement(entry, where) for key, where, entry in partitions_of(text, {"replicas"}, {"log_dirs"}, source)
    }


def parse_topics(text: str | bytes, source: str) -> list[str]:
    """The topics of a file, in its order. Raises ToolError that names `source` and the entry."""
    topics: dict[str, None] = {}
    for where, entry in _entries(text, "topics", source):
        _check_fields(entry, {"topic"}, set(), where)
        topic = _topic(entry, where)
        if topic in topics:
            fail(f"{where}: topic {topic!r} is named twice")
        topics[topic] = None
    return list(topics)


# -- files of entries -------------------------------------------------------------------------------------------------


def format_partitions(partitions: Mapping[TopicPartition, Mapping[str, Any]]) -> str:
    """A file with these fields for each partition, in order."""
    entries = [{"topic": each.topic, "partition": each.partition, **partitions[each]} for each in sorted(partitions)]
    return json.dumps({"version": VERSION, "partitions": entries}, separators=(",", ":"))


def partitions_of(
    text: str | bytes, required: set[str], optional: set[str], source: str
) -> Iterator[tuple[TopicPartition, str, dict[str, Any]]]:
    """The partitions of a file, each with its name for error messages and its fields."""
    known: set[TopicPartition] = set()
    for place, entry in _entries(text, "partitions", source):
        _check_fields(entry, {"topic", "partition"} | required, optional, place)
        key = TopicPartition(_topic(entry, place), _number(entry["partition"], f"{place}: partition"))
        where = f"{place} ({key})"
        if key in known:
            fail(f"{where}: the partition is named twice")
        known.add(key)
        yield key, where, entry


def parse_object(text: str | bytes, source: str) -> dict[str, Any]:
    """The JSON object of a file. Raises ToolError for other JSON, and for a field that is written twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = [name for name, _ in pairs]
            repeated = next(name for name in names if names.count(name) > 1)
            fail(f"{source}: an object has the field {repeated!r} twice")
        return fields

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        fail(f"{source}: not valid JSON: {error}")
    if not isinstance(value, dict):
        fail(f"{source}: a JSON object is expected, not {shown(value)}")
    return value


def _entries(text: str | bytes, kind: str, source: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects of the list `kind`, each with its name for error messages."""
    whole = parse_object(text, source)
    _check_fields(whole, {kind}, {"version"}, source)
    version = whole.get("version", VERSION)
    if type(version) is not int or version != VERSION:
        fail(f"{source}: version {shown(version)} is not supported, only {VERSION}")
    entries = whole[kind]
    if not isinstance(entries, list) or not entries:
        fail(f"{source}: {kind} must be a list with at least one entry, not {shown(entries)}")
    named = [(f"{source}: {kind}[{position}]", entry) for position, entry in enumerate(entries)]
    for where, entry in named:
        if not isinstance(entry, dict):
            fail(f"{where}: a JSON object is expected, not {shown(entry)}")
    return named


def _check_fields(entry: dict[str, Any], required: set[str], optional: set[str], where: str) -> None:
    if missing := sorted(required - entry.keys()):
        fail(f"{where}: the field {missing[0]!r} is missing")
    if unknown := sorted(entry.keys() - required - optional):
        fail(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(required | optional))}")


def _topic(entry: dict[str, Any], where: str) -> str:
    topic = entry["topic"]
    if not isinstance(topic, str) or not topic:
        fail(f"{where}: topic must be a name, not {shown(topic)}")
    return topic


def _number(value: Any, where: str) -> int:
    # A bool is an int in Python.
    if type(value) is not int or not 0 <= value <= MAX_INT32:
        fail(f"{where} must be a number from 0 to {MAX_INT32}, not {shown(value)}")
    return int(value)


def _placement(entry: dict[str, Any], where: str) -> Placement:
    replicas = entry["replicas"]
    if not isinstance(replicas, list) or not replicas:
        fail(f"{where}: replicas must be a list with at least one broker, not {shown(replicas)}")
    brokers = tuple(_number(broker, f"{where}: a broker in replicas") for broker in replicas)
    if len(set(brokers)) < len(brokers):
        repeated = next(broker for broker in brokers if brokers.count(broker) > 1)
        fail(f"{where}: replicas has broker {repeated} twice")
    if "log_dirs" not in entry:
        return anywhere(brokers)
    paths = entry["log_dirs"]
    if not isinstance(paths, list) or len(paths) != len(brokers):
        found = f"{len(paths)} entries" if isinstance(paths, list) else shown(paths)
        fail(f"{where}: log_dirs must have one entry for each of the {len(brokers)} replicas, not {found}")
    for path in paths:
        if not isinstance(path, str) or not (path == ANY_LOG_DIR or _is_absolute(path)):
            fail(f'{where}: a log directory must be "{ANY_LOG_DIR}" or an absolute path, not {shown(path)}')
    return Placement(brokers, tuple(paths))


def _is_absolute(path: str) -> bool:
    # The path belongs to the broker's machine, which may run another operating system.
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()


def shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def fail(message: str) -> NoReturn:
    raise ToolError(message)
