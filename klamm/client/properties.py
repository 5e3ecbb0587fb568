"""Converts Kafka's client properties, as in Java's clients and `--command-config` files, to options.

What must stay true:
- Every property is used, or is one of Kafka's without effect here, or is an error that says what is allowed. So no user
  relies on a misspelt or unsupported setting.
- Importing this module imports nothing heavy, because Spark's short-lived processes look at options.

Source: org.apache.kafka.clients.CommonClientConfigs, AdminClientConfig, ConsumerConfig, ProducerConfig.
"""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.client.options import ClientOptions, ConsumerOptions, GroupOptions, OffsetReset, ProducerOptions
from klamm.net.security import PROPERTIES as SECURITY_PROPERTIES
from klamm.net.security import REFUSED, SecurityError, is_encodable, security_options
from klamm.protocol.vocabulary import ACKS_ALL, ACKS_LEADER, ACKS_NONE, READ_COMMITTED, READ_UNCOMMITTED

if TYPE_CHECKING:
    from klamm.net.client import Address

T = TypeVar("T")

INT_MAX: Final = 2**31 - 1
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")

API_TIMEOUT: Final = "default.api.timeout.ms"
TIMEOUTS: Final = (API_TIMEOUT, "request.timeout.ms", "socket.connection.setup.timeout.ms")
"""How long a client waits: for a call with its retries, for an answer, for a connection."""

# The field of ClientOptions, and the smallest value, of each property that is a number.
_NUMBERS: Final = {
    "socket.connection.setup.timeout.ms": ("connect_timeout_ms", 1),
    "socket.connection.setup.timeout.max.ms": ("connect_timeout_max_ms", 1),
    "request.timeout.ms": ("request_timeout_ms", 1),
    API_TIMEOUT: ("retry_timeout_ms", 1),
    "retry.backoff.ms": ("retry_backoff_ms", 1),
    "retry.backoff.max.ms": ("retry_backoff_max_ms", 1),
}
CLIENT_PROPERTIES: Final = ("bootstrap.servers", "client.id", "client.rack", *_NUMBERS, *SECURITY_PROPERTIES)
"""The properties that `client_options` puts into effect."""

_PRODUCER_NUMBERS: Final = {
    "batch.size": ("batch_size_bytes", 0),
    "buffer.memory": ("buffer_memory_bytes", 1),
    "delivery.timeout.ms": ("delivery_timeout_ms", 1),
    "linger.ms": ("linger_ms", 0),
    "max.request.size": ("max_request_size_bytes", 1),
    "transaction.timeout.ms": ("transaction_timeout_ms", 1),
}
_CONSUMER_NUMBERS: Final = {
    "fetch.max.bytes": ("fetch_max_bytes", 1),
    "fetch.max.wait.ms": ("fetch_max_wait_ms", 0),
    "fetch.min.bytes": ("fetch_min_bytes", 0),
    "max.partition.fetch.bytes": ("max_partition_fetch_bytes", 1),
    "max.poll.records": ("max_poll_records", 1),
}
_GROUP_NUMBERS: Final = {
    "heartbeat.interval.ms": ("heartbeat_interval_ms", 1),
    "max.poll.interval.ms": ("max_poll_interval_ms", 1),
    "session.timeout.ms": ("session_timeout_ms", 1),
}
_JAVA_ASSIGNORS: Final = "org.apache.kafka.clients.consumer."
_ASSIGNORS: Final = {
    "range": "range",
    "roundrobin": "roundrobin",
    f"{_JAVA_ASSIGNORS}RangeAssignor": "range",
    f"{_JAVA_ASSIGNORS}RoundRobinAssignor": "roundrobin",
}
_ACKS: Final = {"all": ACKS_ALL, "-1": ACKS_ALL, "1": ACKS_LEADER, "0": ACKS_NONE}
_ISOLATION_LEVELS: Final = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}

PRODUCER_PROPERTIES: Final = (
    "acks",
    "compression.type",
    "enable.idempotence",
    "max.block.ms",
    "max.in.flight.requests.per.connection",
    "transactional.id",
    *_PRODUCER_NUMBERS,
)
CONSUMER_PROPERTIES: Final = (
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "check.crcs",
    "enable.auto.commit",
    "exclude.internal.topics",
    "group.id",
    "group.instance.id",
    "isolation.level",
    "partition.assignment.strategy",
    *_CONSUMER_NUMBERS,
    *_GROUP_NUMBERS,
)
PROPERTIES_WITHOUT_EFFECT: Final = (
    "client.dns.lookup",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "metadata.max.idle.ms",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retries",
    "send.buffer.bytes",
)
"""Properties of Java's clients that klamm's client accepts and ignores."""

ELSEWHERE: Final = {
    "sasl.username": "the credentials are in sasl.jaas.config",
    "sasl.password": "the credentials are in sasl.jaas.config",
    "sasl.mechanisms": "the name is sasl.mechanism",
    "ssl.ca.location": "the name is ssl.truststore.location",
    "ssl.certificate.location": "ssl.keystore.location holds the certificate and its key",
    "ssl.key.location": "ssl.keystore.location holds the certificate and its key",
}
"""Property names of clients other than Java's, and what to write instead."""


class PropertyError(ValueError):
    """A client property cannot be used. The message begins with its name and never holds a password."""


def client_options(
    properties: Mapping[str, str],
    *,
    bootstrap: "tuple[Address, ...] | None" = None,
    defaults: ClientOptions | None = None,
) -> ClientOptions:
    """The options of a client with these properties. Properties of producers and consumers have no effect.

    `bootstrap`, a command's option, takes precedence over bootstrap.servers. Raises PropertyError.
    """
    check_names(properties)
    given = {name: value.strip() for name, value in properties.items()}
    for name, value in given.items():
        if not is_encodable(value):
            raise PropertyError(f"{name} has an invalid character")
    if bootstrap is None:
        bootstrap = parse_addresses("bootstrap.servers", given.get("bootstrap.servers", ""))
    security = {name: value for name, value in given.items() if name in SECURITY_PROPERTIES}
    try:
        options = replace(defaults or ClientOptions(()), bootstrap=bootstrap, security=security_options(security))
    except SecurityError as error:
        raise PropertyError(str(error)) from None
    options = replace(
        options,
        client_id=given.get("client.id") or options.client_id,
        client_rack=given.get("client.rack", ""),
        **numbers(given, _NUMBERS),
    )
    return replace(
        options,
        connect_timeout_max_ms=max(options.connect_timeout_ms, options.connect_timeout_max_ms),
        refused_timeout_ms=options.retry_timeout_ms if API_TIMEOUT in given else options.refused_timeout_ms,
    )


def producer_options(properties: Mapping[str, str], defaults: ProducerOptions) -> ProducerOptions:
    """The defaults, overridden by a producer's properties. Raises PropertyError."""
    from klamm.protocol.record.compression import CompressionType

    given = {name: value.strip() for name, value in properties.items()}
    changes = numbers(given, _PRODUCER_NUMBERS)
    if "compression.type" in given:
        codecs = {codec.name.lower(): codec for codec in CompressionType}
        changes["compression"] = _one_of("compression.type", given["compression.type"], codecs)
    acks = _one_of("acks", given["acks"], _ACKS) if "acks" in given else defaults.acks
    is_idempotent = acks == ACKS_ALL and defaults.enable_idempotence
    if "enable.idempotence" in given:
        is_idempotent = _one_of("enable.idempotence", given["enable.idempotence"], {"true": True, "false": False})
        if is_idempotent and acks != ACKS_ALL:
            raise PropertyError("enable.idempotence is 'true', which needs acks=all")
    transactional_id = given.get("transactional.id") or defaults.transactional_id
    if transactional_id is not None and not is_idempotent:
        raise PropertyError("transactional.id is set, which needs acks=all and enable.idempotence=true")
    return replace(defaults, **changes, acks=acks, enable_idempotence=is_idempotent, transactional_id=transactional_id)


def consumer_options(properties: Mapping[str, str], defaults: ConsumerOptions) -> ConsumerOptions:
    """The defaults, overridden by a consumer's properties. Raises PropertyError."""
    given = {name: value.strip() for name, value in properties.items()}
    changes = numbers(given, _CONSUMER_NUMBERS)
    if "isolation.level" in given:
        changes["isolation_level"] = _one_of("isolation.level", given["isolation.level"], _ISOLATION_LEVELS)
    if "auto.offset.reset" in given:
        resets = {reset.value: reset for reset in OffsetReset}
        changes["auto_offset_reset"] = _one_of("auto.offset.reset", given["auto.offset.reset"], resets)
    return replace(defaults, **changes)


def group_options(properties: Mapping[str, str], group_id: str) -> GroupOptions:
    """The options of a member of this group, from a consumer's properties. Raises PropertyError."""
    given = {name: value.strip() for name, value in properties.items()}
    changes = numbers(given, _GROUP_NUMBERS)
    if "partition.assignment.strategy" in given:
        names = [name.strip() for name in given["partition.assignment.strategy"].split(",")]
        changes["assignors"] = tuple(_one_of("partition.assignment.strategy", name, _ASSIGNORS) for name in names)
    return GroupOptions(group_id, given.get("group.instance.id") or None, **changes)


def _one_of(name: str, text: str, values: Mapping[str, T]) -> T:
    if text not in values:
        raise PropertyError(f"{name} is {text!r}; allowed: {', '.join(values)}")
    return values[text]


def check_names(properties: Collection[str], *, used: Collection[str] = ()) -> None:
    """Checks that all are properties of Kafka's clients, or are among `used`. Raises PropertyError."""
    known = {*CLIENT_PROPERTIES, *PRODUCER_PROPERTIES, *CONSUMER_PROPERTIES, *PROPERTIES_WITHOUT_EFFECT, *used}
    for name in properties:
        if name in known:
            continue
        if name in REFUSED:
            raise PropertyError(f"{name} is not supported: {REFUSED[name]}")
        if name in ELSEWHERE:
            raise PropertyError(f"{name} is not a property of Java's clients: {ELSEWHERE[name]}")
        if not _NAME.fullmatch(name):
            # A value on a line of its own, after a forgotten backslash, may be a password.
            raise PropertyError("a name is not letters, digits and dots; does a line end without its backslash?")
        close = difflib.get_close_matches(name, sorted(known), 1)
        hint = f"did you mean {close[0]}? " if close else ""
        allowed = ", ".join([*CLIENT_PROPERTIES, *used])
        raise PropertyError(f"{name} is not a known client property; {hint}allowed: {allowed}")


def numbers(properties: Mapping[str, str], fields: Mapping[str, tuple[str, int]]) -> dict[str, Any]:
    """The values of the given properties by field. `fields` is `property: (field, smallest value)`. Raises
    PropertyError."""
    found = {}
    for name, (field, smallest) in fields.items():
        if name in properties:
            found[field] = number(name, properties[name], smallest)
    return found


def number(name: str, text: str, smallest: int, largest: int = INT_MAX) -> int:
    """The property's value. Raises PropertyError."""
    try:
        value: int | None = int(text)
    except ValueError:
        value = None
    if value is None or not smallest <= value <= largest:
        raise PropertyError(f"{name} is {text!r}; allowed: a number from {smallest} to {largest}")
    return value


def parse_addresses(name: str, text: str) -> "tuple[Address, ...]":
    """Parses `host:port,host:port`, with IPv6 hosts in brackets. Raises PropertyError."""
    addresses = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = entry.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise PropertyError(f"{name}: {entry!r} is not of the form host:port")
        addresses.append((host, int(port)))
    if not addresses:
        raise PropertyError(f"{name} names no broker; allowed: host:port,host:port,...")
    return tuple(addresses)
