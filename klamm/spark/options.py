"""The options of the data source: those of Spark's Kafka connector, with the same names, meanings and defaults.

Names are case-insensitive. An option that does not exist, a value that is not allowed and options that exclude each
other raise an `OptionError`, whose message names the option and the allowed values. No value is guessed, and no option
is silently ignored, except options of the other direction (a reader's in a writer), so that one set serves both.

`kafka.*` passes configuration of Kafka's clients through. Some keys are used. Some are known but have no effect here (a
group member's heartbeat, for example). Others are refused, because the data source sets them or klamm lacks them.

What must stay true: options are immutable, picklable and comparable; they are made on the driver and used by workers.

Source: org.apache.spark.sql.kafka010.KafkaSourceProvider, JsonUtils.
"""

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from klamm.base.patterns import InvalidPattern, Pattern
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.properties import (
    CLIENT_PROPERTIES,
    CONSUMER_PROPERTIES,
    ELSEWHERE,
    PRODUCER_PROPERTIES,
    PROPERTIES_WITHOUT_EFFECT,
    PropertyError,
    client_options,
    producer_options,
)
from klamm.net.security import REFUSED
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from klamm.spark.formats import options as format_options
from klamm.spark.formats.options import FormatOptionError
from klamm.spark.formats.settings import FORMATS, WRITE_FORMATS, TypedRows
from klamm.spark.settings import FetchOptions
from klamm.spark.tables import (
    SERVERS,
    is_of_table,
    metadata_of,
    options_of_user,
    secret_option,
    with_options_of_table,
)

DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000
# The brokers' default of transaction.max.timeout.ms, because a prepared transaction may wait for a restart of the
# driver.
DEFAULT_TRANSACTION_TIMEOUT_MS = 15 * 60_000

NO_COLUMNS: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


class OptionError(ValueError):
    """A wrong option; the message names the option and the allowed values."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The partitions to read: exactly one of the three fields is set."""

    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    assign: tuple[TopicPartition, ...] = ()


class Bound(Enum):
    """The meaning of the values of a `Limit`."""

    OFFSETS = "offsets"
    """An offset, EARLIEST_TIMESTAMP or LATEST_TIMESTAMP; for each partition, or for all."""
    TIMESTAMPS = "timestamps"
    """The first record at or after this many milliseconds since the epoch; for each partition, or for all."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Where reading begins or ends. `each` has a value for each partition; without it, `all` holds for all of them."""

    bound: Bound
    all: int = 0
    each: tuple[tuple[TopicPartition, int], ...] | None = None
    option: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a reader. A limit of None means no limit; times are in milliseconds.

    `ending` is for batch queries, the limits per trigger are for streaming queries.
    """

    topics: Topics
    starting: Limit
    ending: Limit
    fetch: FetchOptions
    no_match_is_latest: bool = False
    include_headers: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS
    fetch_offset_retries: int = 3
    fetch_offset_retry_interval_ms: int = 10
    commit_to_group: str | None = None
    typed: TypedRows | None = None

    @property
    def client(self) -> ClientOptions:
        return self.fetch.client

    @property
    def fail_on_data_loss(self) -> bool:
        return self.fetch.fail_on_data_loss


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a writer. If `topic` is None, each row names its topic in its column `topic`.

    `typed` has the formats of keys and values; without a format, they are written as they are. `checkpoint` is where a
    write with a transactional id keeps its state. The ids of tasks begin with this transactional id.
    """

    topic: str | None
    producer: ProducerOptions
    typed: TypedRows | None = None
    checkpoint: str | None = None


# -- the tables -------------------------------------------------------------------------------------------------------

_SELECTIONS = ("assign", "subscribe", "subscribePattern")
_READ_NAMES = (
    *_SELECTIONS,
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "commitOffsets",
    *format_options.READ_NAMES,
)
_WRITE_NAMES = ("topic", "checkpointLocation")
_NAMES = {name.lower(): name for name in (*_READ_NAMES, *_WRITE_NAMES)}

_CONSUMER_KEYS = ("group.id", "isolation.level", "fetch.max.bytes", "fetch.max.wait.ms")
_PRODUCER_KEYS = (
    "acks",
    "enable.idempotence",
    "compression.type",
    "batch.size",
    "max.request.size",
    "buffer.memory",
    "delivery.timeout.ms",
)
_TRANSACTION_KEYS = ("transactional.id", "transaction.timeout.ms")
_REFUSED_KEYS = {
    "auto.offset.reset": "say where to begin with the option startingOffsets",
    "enable.auto.commit": "Spark keeps the offsets; the option commitOffsets shows them to Kafka's tools",
    "interceptor.classes": "there are no interceptors",
    "key.deserializer": "keys are binary; cast the column key after reading",
    "value.deserializer": "values are binary; cast the column value after reading",
    "key.serializer": "keys are written as they are; cast the column key before writing",
    "value.serializer": "values are written as they are; cast the column value before writing",
    "partitioner.class": "give the partition in the column partition",
    **REFUSED,
}
_USED_KEYS = (*CLIENT_PROPERTIES, *_CONSUMER_KEYS, *_PRODUCER_KEYS, *_TRANSACTION_KEYS)
# The other properties of Kafka's clients have no effect here.
_KNOWN_KEYS = frozenset({*_USED_KEYS, *CONSUMER_PROPERTIES, *PRODUCER_PROPERTIES, *PROPERTIES_WITHOUT_EFFECT})
# Options of Databricks' edition of the connector, and of other sources.
_DATABRICKS = "it is of Databricks' own connector; log in with kafka.sasl.*"
_NOT_HERE = {
    "databricks.servicecredential": _DATABRICKS,
    "databricks.servicecredential.scope": _DATABRICKS,
    "maxbytespertrigger": "the limit is in offsets, maxOffsetsPerTrigger",
    "maxfilespertrigger": "the limit is in offsets, maxOffsetsPerTrigger",
    "maxrowspertrigger": "the limit is in offsets, maxOffsetsPerTrigger",
    "mode": "the mode is that of .mode() or .outputMode()",
}

_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_DURATION_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


# -- options of readers and writers -----------------------------------------------------------------------------------


def read_options(
    options: Mapping[str, str], *, streaming: bool, columns: Mapping[str, Mapping[str, Any]] = NO_COLUMNS
) -> ReadOptions:
    """The options of a reader. The options of a table are in the metadata of its `columns`. Raises OptionError."""
    given = _Given(with_options_of_table(options, columns))
    given.require_servers(
        "a table has its options only if it was made without columns, by CREATE TABLE name USING klamm OPTIONS (...)"
    )
    topics = _topics(given)
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if given.text(name) is not None:
                raise OptionError(f"option {name} is for batch queries; a streaming query has no end")
    starting = _limit(given, "starting", LATEST_TIMESTAMP if streaming else EARLIEST_TIMESTAMP)
    ending = _limit(given, "ending", LATEST_TIMESTAMP)
    if not streaming:
        _forbid(starting, LATEST_TIMESTAMP, "a batch query cannot begin at latest")
        _forbid(ending, EARLIEST_TIMESTAMP, "a batch query cannot end at earliest")
        _check_order(starting, ending)
    minimum = given.number("minOffsetsPerTrigger", 1, _LONG_MAX)
    maximum = given.number("maxOffsetsPerTrigger", 1, _LONG_MAX)
    if minimum is not None and maximum is not None and minimum > maximum:
        raise OptionError(f"option minOffsetsPerTrigger ({minimum}) is larger than maxOffsetsPerTrigger ({maximum})")
    group = given.text("kafka.group.id")
    commit_offsets = given.boolean("commitOffsets", False)
    if commit_offsets and not group:
        raise OptionError("option commitOffsets=true needs kafka.group.id, the group that the offsets are committed to")
    isolation = given.choice("kafka.isolation.level", "read_uncommitted", ("read_uncommitted", "read_committed"))
    strategy = given.choice("startingOffsetsByTimestampStrategy", "error", ("error", "latest"))
    read = ReadOptions(
        topics=topics,
        starting=starting,
        ending=ending,
        fetch=replace(
            FetchOptions(_client(given)),
            read_committed=isolation == "read_committed",
            fail_on_data_loss=given.boolean("failOnDataLoss", True),
            **given.numbers(
                poll_timeout_ms=("kafkaConsumer.pollTimeoutMs", 1),
                fetch_max_bytes=("kafka.fetch.max.bytes", 1),
                fetch_max_wait_ms=("kafka.fetch.max.wait.ms", 0),
            ),
        ),
        no_match_is_latest=strategy == "latest",
        include_headers=given.boolean("includeHeaders", False),
        min_partitions=given.number("minPartitions", 1),
        max_records_per_partition=given.number("maxRecordsPerPartition", 1, _LONG_MAX),
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_ms=given.duration_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
        commit_to_group=group if commit_offsets else None,
        typed=_typed_rows(given),
    )
    return replace(
        read,
        **given.numbers(
            fetch_offset_retries=("fetchOffset.numRetries", 0),
            fetch_offset_retry_interval_ms=("fetchOffset.retryIntervalMs", 0),
        ),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """The options of a writer. Raises OptionError."""
    # This import loads checksums and codecs, which a reader's options do not need.
    from klamm.protocol.record.compression import CompressionType

    given = _Given(options)
    given.require_servers(
        "Spark passes no options of a table to a writer: use INSERT INTO name WITH (...), or a temporary view"
    )
    topic = given.text("topic")
    if topic == "":
        raise OptionError("option topic is empty; leave it out to take the topic from the column topic")
    properties = {key: text.lower() for key in _PRODUCER_KEYS if (text := given.text(f"kafka.{key}")) is not None}
    try:
        producer = producer_options(properties, ProducerOptions(_client(given), CompressionType.NONE))
    except PropertyError as error:
        raise OptionError(f"option kafka.{error}") from None
    typed = _typed_rows(given, WRITE_FORMATS)
    if given.text("kafka.transactional.id") is None:
        return WriteOptions(topic, producer, typed)
    return WriteOptions(topic, _transactional(given, producer), typed, _checkpoint(given))


def includes_headers(options: Mapping[str, str]) -> bool:
    """Whether a reader's rows have the column headers. Raises OptionError."""
    return _Given(options).boolean("includeHeaders", False)


def typed_rows(options: Mapping[str, str]) -> TypedRows | None:
    """The formats of a reader's keys and values; None if both are binary. Raises OptionError."""
    return _typed_rows(_Given(options))


def table_metadata(options: Mapping[str, str]) -> dict[str, Any]:
    """The metadata of columns for a table that may be created with these options. Raises OptionError."""
    if not is_of_table(options):
        return {}
    own = options_of_user(options)
    secret = secret_option(own)
    if secret is not None:
        raise OptionError(
            f"option {secret} may hold a secret, which a table of a catalog would show: give it to each query"
            " (spark.read.option(...).table(...), or SELECT ... WITH (...)), or use CREATE TEMPORARY VIEW"
        )
    return metadata_of(own)


def chosen_topics(options: Mapping[str, str]) -> Topics:
    """The topics or partitions that a reader's options choose. Raises OptionError."""
    return _topics(_Given(options))


def named_topics(topics: Topics) -> tuple[str, ...]:
    """The names of the topics; empty for a pattern."""
    return tuple(sorted({*topics.subscribe, *(partition.topic for partition in topics.assign)}))


# -- parsing ----------------------------------------------------------------------------------------------------------


class _Given:
    """The given options. Every method raises OptionError for a value that is not allowed."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._raw = options_of_user(options)
        self._values = {name: value.strip() for name, value in self._raw.items()}
        self.has_path = any(name.lower() in ("path", "paths") for name in options)
        for name in self._values:
            _check_name(name)

    def require_servers(self, of_tables: str) -> None:
        """Raises OptionError without the servers. `of_tables` says why a statement about a table may lack them."""
        if SERVERS not in self._values:
            hint = "" if self._values.keys() - {"checkpointlocation"} else f"; {of_tables}"
            raise OptionError(f"option {SERVERS} is missing; allowed: host:port,host:port,...{hint}")

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def untrimmed(self, name: str) -> str | None:
        return self._raw.get(name.lower())

    def boolean(self, name: str, default: bool) -> bool:
        return self.choice(name, str(default).lower(), ("true", "false")) == "true"

    def choice(self, name: str, default: str, allowed: Iterable[str]) -> str:
        value = self._values.get(name.lower(), default).lower()
        if value not in allowed:
            raise OptionError(f"option {name} is {value!r}; allowed: {', '.join(allowed)}")
        return value

    def number(self, name: str, low: int, high: int = _INT_MAX) -> int | None:
        text = self._values.get(name.lower())
        return None if text is None else _integer(f"option {name}", text, low, high)

    def numbers(self, **fields: tuple[str, int]) -> dict[str, Any]:
        """The given options among `field=(option, lowest value)`. Fields of other options keep their defaults."""
        found = ((field, self.number(*option)) for field, option in fields.items())
        return {field: number for field, number in found if number is not None}

    def duration_ms(self, name: str, default: int) -> int:
        text = self._values.get(name.lower())
        if text is None:
            return default
        match = _DURATION.fullmatch(text.lower())
        if match is None:
            raise OptionError(
                f"option {name} is {text!r}; allowed: a number with a unit of ms, s, m, h or d, as in 15m"
            )
        return int(match[1]) * _DURATION_UNITS[match[2] or "ms"]


def _typed_rows(given: _Given, formats: Sequence[str] = FORMATS) -> TypedRows | None:
    try:
        return format_options.typed_rows(given.untrimmed, formats)
    except FormatOptionError as error:
        raise OptionError(str(error)) from None


def _check_name(name: str) -> None:
    if not name.startswith("kafka."):
        for refused, reason in format_options.REFUSED.items():
            if name == refused.lower():
                raise OptionError(f"option {refused} is not supported: {reason}")
        if name not in _NAMES:
            raise OptionError(
                f"unknown option {name}; {_hint(name)}allowed: {', '.join(sorted(_NAMES.values()))}, kafka.*"
            )
        return
    key = name.removeprefix("kafka.")
    if key in _REFUSED_KEYS:
        raise OptionError(f"option {name} is not supported: {_REFUSED_KEYS[key]}")
    if key in ELSEWHERE:
        raise OptionError(f"option {name} is of another client than Java's: {ELSEWHERE[key]}")
    if key not in _KNOWN_KEYS:
        close = difflib.get_close_matches(key, sorted(_KNOWN_KEYS), 1)
        hint = f"did you mean kafka.{close[0]}? " if close else ""
        used = ", ".join(f"kafka.{key}" for key in sorted(_USED_KEYS))
        raise OptionError(f"unknown option {name}; {hint}allowed: {used}")


def _hint(name: str) -> str:
    if name in _NOT_HERE:
        return f"{_NOT_HERE[name]}; "
    if name in _KNOWN_KEYS or name in _REFUSED_KEYS:
        return f"did you mean kafka.{name}? "
    close = difflib.get_close_matches(name, _NAMES, 1)
    return f"did you mean {_NAMES[close[0]]}? " if close else ""


def _integer(what: str, text: str, low: int, high: int) -> int:
    try:
        value: int | None = int(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise OptionError(f"{what} is {text!r}; allowed: a number from {low} to {high}")
    return value


def _client(given: _Given) -> ClientOptions:
    properties = {name: text for name in CLIENT_PROPERTIES if (text := given.text(f"kafka.{name}")) is not None}
    try:
        return client_options(properties, defaults=ClientOptions((), client_id="klamm-spark"))
    except PropertyError as error:
        raise OptionError(f"option kafka.{error}") from None


def _transactional(given: _Given, producer: ProducerOptions) -> ProducerOptions:
    transactional_id = given.text("kafka.transactional.id")
    if not transactional_id:
        raise OptionError("option kafka.transactional.id is empty; leave it out to write at least once")
    if not producer.enable_idempotence:
        raise OptionError(
            "option kafka.transactional.id needs kafka.acks=all and kafka.enable.idempotence=true, the defaults of both"
        )
    timeout_ms = given.number("kafka.transaction.timeout.ms", 1)
    return replace(
        producer,
        transactional_id=transactional_id,
        transaction_timeout_ms=DEFAULT_TRANSACTION_TIMEOUT_MS if timeout_ms is None else timeout_ms,
    )


def _checkpoint(given: _Given) -> str:
    checkpoint = given.text("checkpointLocation")
    if not checkpoint:
        raise OptionError(
            "option kafka.transactional.id needs the option checkpointLocation, where the writer keeps the transactions"
            " that it commits; Spark does not tell it the one of spark.sql.streaming.checkpointLocation"
        )
    return checkpoint


def _topics(given: _Given) -> Topics:
    chosen = [name for name in _SELECTIONS if given.text(name) is not None]
    if len(chosen) != 1:
        what = " and ".join(chosen) if chosen else f"none of them{', and a path names no topic' * given.has_path}"
        raise OptionError(f"exactly one of the options {', '.join(_SELECTIONS)} must be given; given: {what}")
    name = chosen[0]
    text = given.text(name) or ""
    if name == "subscribe":
        names = tuple(sorted({topic.strip() for topic in text.split(",") if topic.strip()}))
        if not names:
            raise OptionError(f"option subscribe is {text!r}; allowed: topic,topic,...")
        return Topics(subscribe=names)
    if name == "subscribePattern":
        try:
            Pattern(text)
        except InvalidPattern as error:
            raise OptionError(
                f"option subscribePattern is {text!r}, which is not a valid regular expression: {error}"
            ) from None
        if not text:
            raise OptionError("option subscribePattern is empty; allowed: a regular expression for whole topic names")
        return Topics(subscribe_pattern=text)
    return Topics(assign=_assigned(text))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    wanted = 'JSON like {"topic": [0, 1]}'
    parsed = _json_object("assign", text, wanted)
    partitions = set()
    for topic, numbers in parsed.items():
        if not isinstance(numbers, list):
            raise OptionError(f"option assign has {numbers!r} for topic {topic}; allowed: {wanted}")
        for number in numbers:
            if not _is_int(number) or not 0 <= number <= _INT_MAX:
                raise OptionError(f"option assign has partition {number!r} of topic {topic}; allowed: {wanted}")
            partitions.add(TopicPartition(topic, number))
    if not partitions:
        raise OptionError(f"option assign names no partition; allowed: {wanted}")
    return tuple(sorted(partitions))


def _limit(given: _Given, side: str, default: int) -> Limit:
    """The first given option of the three that set the start (or the end) of reading."""
    name = f"{side}Timestamp"
    text = given.text(name)
    if text is not None:
        return Limit(Bound.TIMESTAMPS, all=_integer(f"option {name}", text, 0, _LONG_MAX), option=name)
    name = f"{side}OffsetsByTimestamp"
    text = given.text(name)
    if text is not None:
        return Limit(Bound.TIMESTAMPS, each=_by_partition(name, text, 0, "milliseconds"), option=name)
    name = f"{side}Offsets"
    text = given.text(name)
    if text is None:
        return Limit(Bound.OFFSETS, all=default, option=name)
    words = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP}
    if text.lower() in words:
        return Limit(Bound.OFFSETS, all=words[text.lower()], option=name)
    if not text.startswith("{"):
        raise OptionError(f'option {name} is {text!r}; allowed: earliest, latest, JSON like {{"topic": {{"0": 23}}}}')
    return Limit(Bound.OFFSETS, each=_by_partition(name, text, EARLIEST_TIMESTAMP, "offset"), option=name)


def _by_partition(name: str, text: str, low: int, unit: str) -> tuple[tuple[TopicPartition, int], ...]:
    wanted = f'JSON like {{"topic": {{"0": {unit}, "1": {unit}}}}}'
    found: dict[TopicPartition, int] = {}
    for topic, values in _json_object(name, text, wanted).items():
        if not isinstance(values, dict):
            raise OptionError(f"option {name} has {values!r} for topic {topic}; allowed: {wanted}")
        for number, value in values.items():
            partition = _integer(f"option {name}: the partition of topic {topic}", number, 0, _INT_MAX)
            if not _is_int(value) or not low <= value <= _LONG_MAX:
                raise OptionError(
                    f"option {name} has {value!r} for {topic}-{number}; allowed: numbers from {low} to {_LONG_MAX}"
                )
            found[TopicPartition(topic, partition)] = value
    if not found:
        raise OptionError(f"option {name} names no partition; allowed: {wanted}")
    return tuple(sorted(found.items()))


def _json_object(name: str, text: str, wanted: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise OptionError(f"option {name} is {text!r}; allowed: {wanted}")
    return parsed


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _forbid(limit: Limit, value: int, why: str) -> None:
    if limit.bound is not Bound.OFFSETS:
        return
    if limit.each is None:
        if limit.all == value:
            raise OptionError(f"option {limit.option}: {why}")
        return
    for partition, offset in limit.each:
        if offset == value:
            raise OptionError(f"option {limit.option} has {value} for {partition}: {why}")


def _check_order(starting: Limit, ending: Limit) -> None:
    """Limits for each partition must name the same partitions, and no partition may end before it begins."""
    if starting.each is None or ending.each is None or starting.bound is not ending.bound:
        return
    first, last = dict(starting.each), dict(ending.each)
    different = sorted(first.keys() ^ last.keys())
    if different:
        names = ", ".join(map(str, different))
        raise OptionError(
            f"options {starting.option} and {ending.option} must name the same partitions, not so: {names}"
        )
    for partition, value in first.items():
        if 0 <= last[partition] < value:
            raise OptionError(
                f"{partition} begins at {value} ({starting.option}) and ends at {last[partition]} ({ending.option})"
            )
