"""Listeners: the endpoints that a broker opens, and the endpoints that it advertises to clients. Pure.

Rules (Kafka's `CoreUtils.listenerListToEndPoints`, `EndPoint`): names are upper case and unique, each name has a
security protocol in listener.security.protocol.map, ports of listeners are unique (0, any free port, may repeat).
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from klamm.config.definition import ConfigError

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_ENDPOINT = re.compile(r"(.*)://\[?([0-9a-zA-Z\-%._:]*)\]?:([0-9]{1,5})")


class Listener(NamedTuple):
    """One endpoint. An empty `host` stands for every interface (listening) or this machine's name (advertised)."""

    name: str
    security_protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def split_list(text: str) -> list[str]:
    """The non-empty parts of a comma-separated list."""
    return [part for part in re.split(r"\s*,\s*", text.strip()) if part]


def parse_map(key: str, text: str) -> dict[str, str]:
    """The pairs of "name:value,name:value", each split at its last colon. Raises ConfigError."""
    pairs: dict[str, str] = {}
    for part in split_list(text):
        name, colon, value = part.rpartition(":")
        if not colon:
            raise ConfigError([f"{key}={text}: {part!r} is not of the form name:value"])
        pairs[name.strip()] = value.strip()
    return pairs


def parse_protocol_map(key: str, text: str) -> dict[str, str]:
    """The security protocol of each listener name. Raises ConfigError."""
    protocols = {name.upper(): protocol.upper() for name, protocol in parse_map(key, text).items()}
    for protocol in protocols.values():
        require_protocol(key, protocol)
    return protocols


def require_protocol(key: str, protocol: str) -> None:
    """Raises ConfigError unless it is one of the four security protocols."""
    if protocol not in SECURITY_PROTOCOLS:
        raise ConfigError(
            [f"{key}: {protocol} is not a security protocol; allowed: one of {', '.join(SECURITY_PROTOCOLS)}"]
        )


def parse_listeners(key: str, text: str, protocols: Mapping[str, str], *, unique_ports: bool) -> tuple[Listener, ...]:
    """The endpoints of "NAME://host:port,...". Raises ConfigError with all problems."""
    problems: list[str] = []
    listeners: list[Listener] = []
    for part in split_list(text):
        match = _ENDPOINT.fullmatch(part)
        if match is None or int(match[3]) > 65535:
            problems.append(f"{key}={text}: {part!r} is not of the form NAME://host:port with a port from 0 to 65535")
            continue
        name = match[1].strip().upper()
        if name not in protocols:
            problems.append(f"{key}={text}: listener.security.protocol.map has no security protocol for {name!r}")
            continue
        listeners.append(Listener(name, protocols[name], match[2], int(match[3])))
    names = [listener.name for listener in listeners]
    if len(set(names)) < len(names):
        problems.append(f"{key}={text}: each listener must have a different name")
    ports = [listener.port for listener in listeners if listener.port]
    if unique_ports and len(set(ports)) < len(ports):
        problems.append(f"{key}={text}: each listener must have a different port")
    if problems:
        raise ConfigError(problems)
    return tuple(listeners)
