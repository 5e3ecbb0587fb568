"""/brokers/ids/N: a live broker, its listeners, rack and features (Kafka's BrokerIdZNode, EndPoint). Pure.

Brokers write version 5, or version 4 while inter.broker.protocol.version is older than 2.7. They read versions 1 (host
and port only), 2 (endpoints), 3 (rack), 4 (listener names that are not security protocols) and 5 (features).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from klamm.base import json_bytes
from klamm.config.listeners import SECURITY_PROTOCOLS
from klamm.znodes.fields import INT32_MAX, Fields

BROKER_IDS_PATH = "/brokers/ids"
FEATURES_SINCE = 5
# The longest string that fits into Kafka's requests. A controller cannot send the metadata of a longer rack.
MAX_TEXT_BYTES = 2**15 - 1

_ENDPOINT = re.compile(r"(.+)://\[?([0-9a-zA-Z\-%._:]*)\]?:(-?[0-9]{1,10})", re.ASCII)


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS_PATH}/{broker_id}"


def broker_ids(names: Iterable[str]) -> list[int]:
    """The broker ids among the children of /brokers/ids. Kafka makes no other children."""
    numbers = [int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= 10]
    return [number for number in numbers if number <= INT32_MAX]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listener as clients reach it. `host` is "" when the endpoint has no host."""

    listener_name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def connection_string(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener_name}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SupportedVersions:
    """The range of a feature's versions that a broker supports."""

    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A broker's registration. `timestamp_ms` is the time of the registration; -1 if the znode does not have it.

    `version` is the znode's version: 4 or 5 when written. Versions before 5 have no features.
    """

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    features: Mapping[str, SupportedVersions] = field(default_factory=dict)
    jmx_port: int = -1
    timestamp_ms: int = -1
    version: int = field(default=FEATURES_SINCE, compare=False)

    def encode(self) -> bytes:
        # Host and port are for clients that know only PLAINTEXT.
        plain = next((endpoint for endpoint in self.endpoints if endpoint.security_protocol == "PLAINTEXT"), None)
        registration: dict[str, object] = {
            "version": self.version,
            "host": None if plain is None else plain.host or None,
            "port": -1 if plain is None else plain.port,
            "endpoints": [endpoint.connection_string for endpoint in self.endpoints],
            "jmx_port": self.jmx_port,
            "timestamp": str(self.timestamp_ms),
            "listener_security_protocol_map": {
                endpoint.listener_name: endpoint.security_protocol for endpoint in self.endpoints
            },
        }
        if self.version >= FEATURES_SINCE:
            registration["features"] = {
                name: {"min_version": versions.min_version, "max_version": versions.max_version}
                for name, versions in self.features.items()
            }
        if self.rack is not None:
            registration["rack"] = self.rack
        return json_bytes.encode(registration)

    @classmethod
    def decode(cls, broker_id: int, data: bytes) -> "BrokerRegistration":
        fields = Fields.parse(broker_path(broker_id), data)
        version = fields.version()
        return cls(
            broker_id,
            _endpoints(fields, version),
            _text(fields, "rack") if fields.has("rack") else None,
            _features(fields),
            fields.integer("jmx_port"),
            fields.text_integer("timestamp", minimum=-1) if fields.has("timestamp") else -1,
            version,
        )


def _text(fields: Fields, key: str) -> str:
    text = fields.text(key)
    size_bytes = len(text.encode())
    if size_bytes > MAX_TEXT_BYTES:
        raise fields.problem(key, f"is {size_bytes} bytes long, more than {MAX_TEXT_BYTES}")
    return text


def _endpoints(fields: Fields, version: int) -> tuple[Endpoint, ...]:
    if version == 1:
        return (Endpoint("PLAINTEXT", _text(fields, "host"), fields.integer("port"), "PLAINTEXT"),)
    protocols = {name: name for name in SECURITY_PROTOCOLS}
    if (named := fields.optional("listener_security_protocol_map")) is not None:
        protocols = {name: named.text(name) for name in named.values}
    return tuple(_endpoint(fields, text, protocols) for text in fields.texts("endpoints"))


def _endpoint(fields: Fields, text: str, protocols: Mapping[str, str]) -> Endpoint:
    match = _ENDPOINT.fullmatch(text)
    if match is None:
        raise fields.problem("endpoints", f"has {text!r}, which is not LISTENER://host:port")
    name, host, port = match[1].upper(), match[2], int(match[3])
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise fields.problem("endpoints", f"has one of {len(text.encode())} bytes, more than {MAX_TEXT_BYTES}")
    if not -1 <= port <= 65535:
        raise fields.problem("endpoints", f"has {text!r} with port {port}; allowed are -1 to 65535")
    protocol = protocols.get(name)
    if protocol not in SECURITY_PROTOCOLS:
        allowed = ", ".join(SECURITY_PROTOCOLS)
        raise fields.problem("endpoints", f"has {text!r} with security protocol {protocol}; allowed are {allowed}")
    return Endpoint(name, host, port, protocol)


def _features(fields: Fields) -> Mapping[str, SupportedVersions]:
    features = fields.optional("features")
    if features is None:
        return {}
    ranges = {}
    for name in features.values:
        versions = features.nested(name)
        ranges[name] = SupportedVersions(versions.integer("min_version", 1), versions.integer("max_version", 1))
    return ranges
