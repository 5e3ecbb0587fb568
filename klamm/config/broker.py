"""A broker's configuration: server.properties in, checked and typed values out. Pure.

Precedence and fallbacks are Kafka's (`KafkaConfig`): log.retention.ms over minutes over hours, log.dirs over log.dir,
advertised.listeners over advertised.host.name over listeners, and so on. What must stay true: every `BrokerConfig` is
valid; all problems of a file are reported at once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from klamm.config.broker_keys import COMPRESSION_TYPES, MILLISECONDS_OR_UNLIMITED, BrokerKeys, DynamicOnlyKeys
from klamm.config.definition import ConfigDef, ConfigError, ConfigKey, Validator, at_least, attribute
from klamm.config.listeners import (
    Listener,
    parse_listeners,
    parse_map,
    parse_protocol_map,
    require_protocol,
    split_list,
)
from klamm.config.versions import ApiVersion

BROKER_CONFIG_DEF = ConfigDef(BrokerKeys)
DYNAMIC_ONLY_DEF = ConfigDef(DynamicOnlyKeys)

# Keys that name one setting in several units, the strongest first.
FAMILIES = (
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
)

_LISTENER_PREFIX = "listener.name."
# The keys that act for one listener.
LISTENER_KEYS = ("max.connections", "max.connection.creation.rate")
_NO_KRAFT = "KRaft is not supported; klamm keeps its metadata in ZooKeeper (zookeeper.connect). Remove the key to start"
_HOUR_MS = 3_600_000
_MINUTE_MS = 60_000

# The values of keys that are not set and whose default in Kafka does not suit klamm. Unless a size is given, the system
# adapts the buffers of a socket to its network path.
_WHERE_NOT_SET: Mapping[str, Any] = MappingProxyType(
    {
        "socket.send.buffer.bytes": -1,
        "socket.receive.buffer.bytes": -1,
        "replica.socket.receive.buffer.bytes": -1,
        "zookeeper.max.in.flight.requests": None,
    }
)

# Keys that would leave a cluster less protected than its operator believes: a broker refuses to start with one.
PROTECTIONS = {
    "authorizer.class.name": "the authorizer would not be asked",
    "zookeeper.ssl.client.enable": "connections to ZooKeeper would not be encrypted",
    "zookeeper.set.acl": "znodes would not be protected",
    "client.quota.callback.class": "quotas would not be enforced",
}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BrokerConfig(BrokerKeys):
    """The configuration of one broker; an attribute for each key (`log.segment.bytes` -> `log_segment_bytes`).

    `originals` is the content of the file, as text. The dynamic configs take precedence, also as text:
    `dynamic_default` is set for all brokers of the cluster, `dynamic_broker` for this broker. `values` is each key's
    own typed value, before any fallback (None: not set), as DescribeConfigs shows it.
    """

    originals: Mapping[str, str]
    dynamic_default: Mapping[str, str]
    dynamic_broker: Mapping[str, str]
    values: Mapping[str, Any]

    @staticmethod
    def from_properties(
        originals: Mapping[str, str],
        *,
        dynamic_default: Mapping[str, str] = MappingProxyType({}),
        dynamic_broker: Mapping[str, str] = MappingProxyType({}),
    ) -> "BrokerConfig":
        """Raises ConfigError listing every bad key with its value and what is allowed. Unknown keys are allowed."""
        if originals.get("process.roles"):
            raise ConfigError([f"process.roles={originals['process.roles']}: {_NO_KRAFT}"])
        properties = _over(_over(originals, dynamic_default), dynamic_broker)
        values, problems = BROKER_CONFIG_DEF.parse(properties)
        resolved, more_problems = _resolve(values, properties)
        # A value that is wrong by itself would only be reported again when compared with others.
        problems = problems + more_problems + _bad_listener_keys(properties) + _broken_rules(
            resolved
        ) or _contradictions(resolved, values)
        if problems:
            raise ConfigError(problems)
        attributes = {attribute(key): value for key, value in resolved.items()}
        return BrokerConfig(
            **attributes,
            originals=MappingProxyType(dict(originals)),
            dynamic_default=MappingProxyType(dict(dynamic_default)),
            dynamic_broker=MappingProxyType(dict(dynamic_broker)),
            values=MappingProxyType(values),
        )

    def with_dynamic(
        self, *, default: Mapping[str, str] | None = None, broker: Mapping[str, str] | None = None
    ) -> "BrokerConfig":
        """The same broker with other dynamic configs; None keeps the current ones. Raises ConfigError."""
        default = self.dynamic_default if default is None else default
        broker = self.dynamic_broker if broker is None else broker
        if default == self.dynamic_default and broker == self.dynamic_broker:
            return self
        return BrokerConfig.from_properties(self.originals, dynamic_default=default, dynamic_broker=broker)

    def for_listener(self, listener_name: str, name: str) -> Any:
        """The value of a key that may be set for one listener (`listener.name.NAME.KEY`), or for all of them."""
        full_name = f"{_LISTENER_PREFIX}{listener_name.lower()}.{name}"
        for level in (self.dynamic_broker, self.dynamic_default, self.originals):
            if full_name in level:
                return BROKER_CONFIG_DEF.keys[name].parse(level[full_name])
        return self.values[name]

    def dynamic_only(self, name: str) -> Any:
        """The value of a key that a file cannot have (`DynamicOnlyKeys`)."""
        return DYNAMIC_ONLY_DEF.parse({**self.dynamic_default, **self.dynamic_broker})[0][name]

    @property
    def unknown_keys(self) -> list[str]:
        """The unknown keys in the file, for a warning at start."""
        return [name for name in self.originals if config_key(name) is None]

    @property
    def control_listener_name(self) -> str:
        """The listener through which the controller and the brokers reach each other."""
        control_plane = self.control_plane_listener_name
        return self.inter_broker_listener_name if control_plane is None else control_plane.upper()

    def unsupported_reasons(self) -> list[str]:
        """The reasons why this broker must not start with this valid configuration; empty if it may start."""
        reasons = listener_reasons(self.listeners)
        for key, consequence in PROTECTIONS.items():
            if self.values[key]:
                reasons.append(f"{key}={self.values[key]} is not supported yet: {consequence}; remove it to start")
        return reasons


def _over(properties: Mapping[str, str], dynamic: Mapping[str, str]) -> dict[str, str]:
    """`properties` overridden by the dynamic configs. Drops keys that name the same setting in another unit."""
    replaced = [name for family in FAMILIES for name in family if not dynamic.keys().isdisjoint(family)]
    return {**{name: text for name, text in properties.items() if name not in replaced}, **dynamic}


def _bad_listener_keys(properties: Mapping[str, str]) -> list[str]:
    problems: list[str] = []
    for name, text in properties.items():
        _, _, base = name.removeprefix(_LISTENER_PREFIX).partition(".")
        if name.startswith(_LISTENER_PREFIX) and base in LISTENER_KEYS:
            try:
                BROKER_CONFIG_DEF.keys[base].parse(text)
            except ConfigError as error:
                problems += [problem.replace(base, name, 1) for problem in error.problems]
    return problems


def config_key(name: str) -> ConfigKey | None:
    """The definition of a broker's key or its form for one listener (listener.name.X.KEY); None if unknown."""
    key = BROKER_CONFIG_DEF.keys.get(name) or DYNAMIC_ONLY_DEF.keys.get(name)
    if key is None and name.startswith(_LISTENER_PREFIX):
        _, _, base = name.removeprefix(_LISTENER_PREFIX).partition(".")
        # A SASL key may be prefixed by its mechanism: listener.name.X.scram-sha-256.sasl.jaas.config.
        _, _, without_mechanism = base.partition(".")
        key = BROKER_CONFIG_DEF.keys.get(base) or BROKER_CONFIG_DEF.keys.get(without_mechanism)
    return key


def unknown_key_problem(name: str) -> str:
    """A sentence for an unknown property, with the most similar known property."""
    import difflib  # Needed only for a mistake.

    close = difflib.get_close_matches(name, [*BROKER_CONFIG_DEF.keys, *DYNAMIC_ONLY_DEF.keys], 1)
    return f"{name} is not a property of a broker" + (f"; did you mean {close[0]}?" if close else "")


def _resolve(values: Mapping[str, Any], properties: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The value of each attribute by key, after fallbacks and parsing; and the problems found."""
    resolved = dict(values)
    problems: list[str] = []

    def parse(key: str, parser: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            resolved[key] = parser(*arguments, **options)
        except ConfigError as error:
            problems.extend(error.problems)

    def fall_back(key: str, value: Any) -> None:
        if resolved[key] is None:
            resolved[key] = value

    fall_back("zookeeper.connection.timeout.ms", values["zookeeper.session.timeout.ms"])
    for name, value in _WHERE_NOT_SET.items():
        if name not in properties:
            resolved[name] = value
    fall_back("log.roll.ms", values["log.roll.hours"] * _HOUR_MS)
    fall_back("log.roll.jitter.ms", values["log.roll.jitter.hours"] * _HOUR_MS)
    fall_back("log.flush.interval.ms", values["log.flush.scheduler.interval.ms"])
    minutes = values["log.retention.minutes"]
    fall_back("log.retention.ms", values["log.retention.hours"] * _HOUR_MS if minutes is None else minutes * _MINUTE_MS)
    if resolved["log.retention.ms"] < 0:
        resolved["log.retention.ms"] = -1
    directories = values["log.dir"] if values["log.dirs"] is None else values["log.dirs"]
    resolved["log.dirs"] = tuple(split_list(directories))
    fall_back("num.replica.alter.log.dirs.threads", len(resolved["log.dirs"]))
    resolved["inter.broker.protocol.version"] = ApiVersion.parse(values["inter.broker.protocol.version"])
    parse("max.connections.per.ip.overrides", _parse_counts, values["max.connections.per.ip.overrides"])

    map_key = "listener.security.protocol.map"
    parse(map_key, parse_protocol_map, map_key, values[map_key])
    if problems:
        return resolved, problems
    protocols = resolved[map_key]
    parse("listeners", parse_listeners, "listeners", _listeners_text(values), protocols, unique_ports=True)
    advertised = _advertised_text(values)
    if advertised is None:
        resolved["advertised.listeners"] = resolved["listeners"]
    else:
        key = "advertised.listeners"
        parse(key, parse_listeners, key, advertised, protocols, unique_ports=False)
    parse("inter.broker.listener.name", _inter_broker_listener, values, properties, protocols)
    return resolved, problems


def _parse_counts(text: str) -> dict[str, int]:
    key = "max.connections.per.ip.overrides"
    counts = parse_map(key, text)
    bad = [count for count in counts.values() if not (count.isascii() and count.isdigit() and len(count) <= 10)]
    if bad:
        raise ConfigError([f"{key}={text}: {bad[0]!r} is not a count; allowed: host:count, comma separated"])
    return {host: int(count) for host, count in counts.items()}


def _listeners_text(values: Mapping[str, Any]) -> str:
    text: str | None = values["listeners"]
    return f"PLAINTEXT://{values['host.name']}:{values['port']}" if text is None else text


def _advertised_text(values: Mapping[str, Any]) -> str | None:
    """The advertised listeners; None if they are the listeners themselves."""
    text: str | None = values["advertised.listeners"]
    if text is not None:
        return text
    host, port = values["advertised.host.name"], values["advertised.port"]
    if host is None and port is None:
        return None
    return f"PLAINTEXT://{values['host.name'] if host is None else host}:{values['port'] if port is None else port}"


def _inter_broker_listener(
    values: Mapping[str, Any], properties: Mapping[str, str], protocols: Mapping[str, str]
) -> str:
    name: str | None = values["inter.broker.listener.name"]
    protocol: str = values["security.inter.broker.protocol"]
    if name is None:
        require_protocol("security.inter.broker.protocol", protocol)
        return protocol
    if "security.inter.broker.protocol" in properties:
        raise ConfigError(
            [f"inter.broker.listener.name={name} and security.inter.broker.protocol={protocol}: only one may be set"]
        )
    if name.upper() not in protocols:
        raise ConfigError([f"inter.broker.listener.name={name}: not a name of listener.security.protocol.map"])
    return name.upper()


# Rules for single values that apply after fallbacks, or that Kafka does not check when it parses.
_RULES: dict[str, Validator] = {
    "log.roll.ms": at_least(1),
    "log.roll.jitter.ms": at_least(0),
    "log.retention.ms": MILLISECONDS_OR_UNLIMITED,
    "log.dirs": Validator("at least one directory, each once", lambda value: 0 < len(value) == len(set(value))),
    "compression.type": COMPRESSION_TYPES,
}


def _broken_rules(resolved: Mapping[str, Any]) -> list[str]:
    return [
        f"{key}={_text(resolved[key])} is not allowed; allowed: {rule.allowed}"
        for key, rule in _RULES.items()
        if not rule.accepts(resolved[key])
    ]


def _contradictions(resolved: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Contradictions between keys that are each valid (Kafka's `validateValues`)."""

    def say(key: str) -> str:
        return f"{key}={values[key]}"

    problems: list[str] = []

    def require(condition: bool, problem: str) -> None:
        if not condition:
            problems.append(problem)

    require(bool(values["zookeeper.connect"]), "zookeeper.connect is missing: host:port of ZooKeeper")
    maximum = values["reserved.broker.max.id"]
    if values["broker.id.generation.enable"]:
        require(-1 <= values["broker.id"] <= maximum, f"{say('broker.id')} is not allowed; allowed: -1 to {maximum}")
    else:
        require(
            values["broker.id"] >= 0,
            f"{say('broker.id')} is not allowed; allowed: at least 0, because broker.id.generation.enable=false",
        )
    require(
        values["replica.fetch.wait.max.ms"] <= values["replica.socket.timeout.ms"],
        f"{say('replica.fetch.wait.max.ms')} is more than {say('replica.socket.timeout.ms')}",
    )
    require(
        values["replica.fetch.wait.max.ms"] <= values["replica.lag.time.max.ms"],
        f"{say('replica.fetch.wait.max.ms')} is more than {say('replica.lag.time.max.ms')}",
    )
    require(
        values["log.cleaner.dedupe.buffer.size"] > values["log.cleaner.threads"] << 20,
        f"{say('log.cleaner.dedupe.buffer.size')} is less than 1 MB for each of {say('log.cleaner.threads')}",
    )
    require(
        0 < values["log.cleaner.io.buffer.load.factor"] <= 1,
        f"{say('log.cleaner.io.buffer.load.factor')} is not above 0 and at most 1",
    )
    require(
        values["log.cleaner.io.max.bytes.per.second"] > 0,
        f"{say('log.cleaner.io.max.bytes.per.second')} is not above 0",
    )
    require(
        -1 <= values["offsets.commit.required.acks"] <= values["offsets.topic.replication.factor"],
        f"{say('offsets.commit.required.acks')} is not from -1 to {say('offsets.topic.replication.factor')}",
    )
    require(
        values["queued.max.request.bytes"] <= 0
        or values["queued.max.request.bytes"] >= values["socket.request.max.bytes"],
        f"{say('queued.max.request.bytes')} is less than {say('socket.request.max.bytes')}",
    )
    require(
        values["max.connections.per.ip"] > 0 or bool(resolved["max.connections.per.ip.overrides"]),
        "max.connections.per.ip=0 needs max.connections.per.ip.overrides, or no client could connect",
    )
    require(
        values["connections.max.idle.ms"] < 0
        or values["connection.failed.authentication.delay.ms"] < values["connections.max.idle.ms"],
        f"{say('connection.failed.authentication.delay.ms')} is not less than {say('connections.max.idle.ms')}",
    )
    return problems + _listener_problems(resolved)


def listener_reasons(listeners: Iterable[Listener]) -> list[str]:
    """The reasons why these listeners cannot be opened."""
    return [
        f"listener {listener}: {listener.security_protocol} is not supported yet, only PLAINTEXT is"
        for listener in listeners
        if listener.security_protocol != "PLAINTEXT"
    ]


def _listener_problems(resolved: Mapping[str, Any]) -> list[str]:
    """Contradictions between the listener keys; only the unsupported listeners if there are any."""
    listeners: tuple[Listener, ...] = resolved["listeners"]
    advertised: tuple[Listener, ...] = resolved["advertised.listeners"]
    names = [listener.name for listener in listeners]
    advertised_names = [listener.name for listener in advertised]
    inter_broker: str = resolved["inter.broker.listener.name"]
    problems = []
    if not listeners:
        problems.append("listeners is empty; allowed: at least one NAME://host:port")
    if inter_broker not in advertised_names:
        problems.append(
            f"inter.broker.listener.name={inter_broker} is not allowed; allowed: one of the advertised listeners"
            f" {', '.join(advertised_names)}"
        )
    for listener in advertised:
        if listener.name not in names:
            problems.append(
                f"advertised.listeners: {listener} has no listener of that name; there are {', '.join(names)}"
            )
        if listener.host == "0.0.0.0":
            problems.append(
                f"advertised.listeners: {listener} cannot be reached by clients; allowed: a routable address"
            )
    control_plane: str | None = resolved["control.plane.listener.name"]
    if control_plane is not None:
        if control_plane.upper() not in advertised_names:
            problems.append(
                f"control.plane.listener.name={control_plane} is not allowed; allowed: one of"
                f" {', '.join(advertised_names)}"
            )
        elif control_plane.upper() == inter_broker:
            problems.append(f"control.plane.listener.name={control_plane} must differ from the inter-broker listener")
    return (listener_reasons(listeners) or problems) if problems else []


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
