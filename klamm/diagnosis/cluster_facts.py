"""Reads the facts about a cluster for `klamm status` and `klamm brokers`, from all brokers at once, as plain values.

A broker that does not answer is a fact, not an error: reading ends within the client's timeout, with the answers of the
other brokers.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from klamm.access.clients import error_line
from klamm.config.throttles import BROKER_THROTTLES, TOPIC_THROTTLES
from klamm.diagnosis.cluster_view import ClusterView, PartitionView, read_cluster
from klamm.diagnosis.partition_health import MIN_ISR
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ConfigResourceType, TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.configs import ConfigEntry
    from klamm.client.admin.log_dirs import LogDirDescription
    from klamm.client.admin.reassignments import PartitionReassignment
    from klamm.client.cluster import ClusterClient

    Reassigned = tuple[Mapping[TopicPartition, PartitionReassignment], KafkaError | None]
    # The min.insync.replicas of each topic, the throttled replicas of topics that have some, and an error, if any.
    TopicLimits = tuple[dict[str, int], dict[str, dict[str, str]], KafkaError | None]

PROTOCOL: Final = "inter.broker.protocol.version"
# Only klamm brokers have this config.
KLAMM_KEY: Final = "klamm.metrics.port"
KLAMM, KAFKA = "klamm", "Apache Kafka"
# One request asks for the configs of at most this many topics.
TOPICS_AT_ONCE: Final = 1_000
# Only brokers in KRaft mode have roles.
ROLES: Final = "process.roles"
_FORBIDDEN: Final = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True)
class LogDirFacts:
    """A log directory. An offline directory has an `error`. `total_bytes` and `usable_bytes` are -1 if the broker does
    not report them."""

    path: str
    error: str | None
    replicas: int
    future_replicas: int
    size_bytes: int
    total_bytes: int = -1
    usable_bytes: int = -1


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """A live broker. `error` is the reason why it did not answer.

    `software` is "" when unknown; `protocol` is None on brokers without inter.broker.protocol.version. `apis` are the
    versions of each API, which are the same on all brokers of one version.
    """

    broker_id: int
    address: tuple[str, int]
    rack: str | None = None
    software: str = ""
    protocol: str | None = None
    apis: tuple[tuple[int, int, int], ...] = ()
    log_dirs: tuple[LogDirFacts, ...] = ()
    throttles: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    is_kraft: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.log_dirs)


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """`brokers` are the live brokers. `missing` brokers have replicas, but are not live.

    `controller_error` says why the controller did not list reassignments, `topics_error` why the configs of topics are
    unknown. `forbidden` names what this client may not see; faults there remain hidden.
    """

    cluster_id: str | None
    view: ClusterView
    brokers: Mapping[int, BrokerFacts]
    min_isr: Mapping[str, int] = field(default_factory=dict)
    throttled_topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    controller_error: str | None = None
    topics_error: str | None = None
    forbidden: tuple[str, ...] = ()

    @property
    def controller_id(self) -> int | None:
        """The controller, or None. In KRaft mode it is unknown: brokers name any broker, which forwards requests."""
        if any(broker.is_kraft for broker in self.brokers.values()) or self.view.controller_id < 0:
            return None
        return self.view.controller_id

    @property
    def missing(self) -> list[int]:
        named = {broker_id for each in self.view.partitions.values() for broker_id in each.replicas}
        return sorted(named - self.brokers.keys())

    def on(self, broker_id: int) -> dict[TopicPartition, PartitionView]:
        """The partitions with a replica on this broker."""
        return {key: each for key, each in self.view.partitions.items() if broker_id in each.replicas}


async def read_facts(
    client: "ClusterClient",
    view: ClusterView | None = None,
    listing: "Callable[[], Awaitable[Reassigned]] | None" = None,
    limits: "Callable[[Sequence[str]], Awaitable[TopicLimits]] | None" = None,
    chosen: Collection[int] = (),
) -> ClusterFacts:
    """Reads the facts once, from the `chosen` brokers or from all. Raises ClientError when no broker answers.

    `view` is a view of the client's current metadata, if the caller has just read it. `listing` replaces
    `list_reassignments`, and `limits` replaces `read_topic_limits`. All brokers, the controller and the configs of
    topics are asked at the same time, so a broker that hangs costs only one request's timeout.
    """
    import asyncio

    view = view or await read_cluster(client, reassignments={})
    topics = list(dict.fromkeys(key.topic for key in view.partitions))
    (moving, controller_error), (brokers, forbidden), (min_isr, throttled, topics_error) = await asyncio.gather(
        listing() if listing is not None else list_reassignments(client),
        _read_brokers(client, view, chosen),
        read_topic_limits(client, topics) if limits is None else limits(topics),
    )
    if isinstance(controller_error, KafkaError) and _is_forbidden(controller_error):
        forbidden, controller_error = ["reassignments", *forbidden], None
    if _is_forbidden(topics_error):
        forbidden, topics_error = [*forbidden, "configs of topics"], None
    return ClusterFacts(
        client.metadata.cluster_id,
        view.with_reassignments(moving),
        brokers,
        min_isr,
        throttled,
        None if controller_error is None else error_line(controller_error),
        None if topics_error is None else topics_error.message,
        tuple(forbidden),
    )


async def list_reassignments(client: "ClusterClient") -> "Reassigned":
    """The reassignments in progress, and why the controller did not list them.

    A controller that hangs may still answer as a broker, so this request has connections of its own.
    """
    import asyncio

    from klamm.client.admin.reassignments import list_partition_reassignments

    timeout_ms = client.request_timeout_ms
    own = client.another()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await list_partition_reassignments(own), None
    except KafkaError as error:
        return {}, error
    except TimeoutError:
        text = f"controller {client.metadata.controller_id} does not answer within {timeout_ms} ms"
        return {}, KafkaError(ErrorCode.REQUEST_TIMED_OUT, text)
    finally:
        await own.close()


async def _read_brokers(
    client: "ClusterClient", view: ClusterView, chosen: Collection[int]
) -> tuple[dict[int, BrokerFacts], list[str]]:
    """The facts of each live broker, and the names of those that this client may not see."""
    import asyncio

    from klamm.client.admin.configs import ConfigResource, describe_configs
    from klamm.client.admin.log_dirs import describe_log_dirs
    from klamm.client.retries import RetryPolicy

    asked = [broker_id for broker_id in view.brokers if not chosen or broker_id in chosen]
    resources = {broker_id: ConfigResource(ConfigResourceType.BROKER, str(broker_id)) for broker_id in asked}
    # A broker that has just died is not asked again: its silence is a fact.
    once = RetryPolicy(0)
    configs, log_dirs = await asyncio.gather(
        describe_configs(client, resources.values(), [PROTOCOL, KLAMM_KEY, ROLES, *BROKER_THROTTLES], retry=once),
        describe_log_dirs(client, asked, retry=once),
    )
    forbidden = [
        what
        for what, answers in (("configs of brokers", configs), ("log directories", log_dirs))
        if any(_is_forbidden(answer) for answer in answers.values())
    ]
    brokers = {
        broker_id: BrokerFacts(broker_id, known.address, known.rack) for broker_id, known in view.brokers.items()
    }
    for broker_id in asked:
        brokers[broker_id] = await _broker(client, view, broker_id, configs[resources[broker_id]], log_dirs[broker_id])
    return brokers, forbidden


def _is_forbidden(answer: object) -> bool:
    return isinstance(answer, KafkaError) and answer.code in _FORBIDDEN


async def _broker(
    client: "ClusterClient",
    view: ClusterView,
    broker_id: int,
    configs: "dict[str, ConfigEntry] | KafkaError",
    log_dirs: "dict[str, LogDirDescription] | KafkaError",
) -> BrokerFacts:
    from klamm.config.definition import ConfigSource

    known = view.brokers[broker_id]
    for answer in (log_dirs, configs):
        if isinstance(answer, KafkaError) and not _is_forbidden(answer):
            return BrokerFacts(broker_id, known.address, known.rack, error=error_line(answer))
    configs = {} if isinstance(configs, KafkaError) else configs
    log_dirs = {} if isinstance(log_dirs, KafkaError) else log_dirs
    protocol = configs.get(PROTOCOL)
    versions = (await client.connection_to(broker_id)).api_versions or {}
    dynamic = (ConfigSource.DYNAMIC_BROKER_CONFIG, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    return BrokerFacts(
        broker_id,
        known.address,
        known.rack,
        (KLAMM if KLAMM_KEY in configs else KAFKA) if configs else "",
        None if protocol is None else protocol.value,
        tuple((key, low, high) for key, (low, high) in sorted(versions.items())),
        tuple(_log_dir(path, each) for path, each in sorted(log_dirs.items())),
        {
            name: entry.value or ""
            for name, entry in configs.items()
            if name in BROKER_THROTTLES and entry.source in dynamic
        },
        is_kraft=ROLES in configs and bool(configs[ROLES].value),
    )


def _log_dir(path: str, found: "LogDirDescription") -> LogDirFacts:
    replicas = found.replicas.values()
    return LogDirFacts(
        path,
        None if found.error is None else error_line(found.error),
        sum(not each.is_future for each in replicas),
        sum(each.is_future for each in replicas),
        sum(each.size_bytes for each in replicas),
        found.total_bytes,
        found.usable_bytes,
    )


async def read_topic_limits(client: "ClusterClient", topics: "Sequence[str]") -> "TopicLimits":
    """The min.insync.replicas and throttles of these topics. The error names a topic."""
    # Imported here: it imports asyncio, which commands without a cluster do not need.
    from klamm.base.slices import slices
    from klamm.client.admin.configs import ConfigResource, describe_configs

    min_isr: dict[str, int] = {}
    throttled: dict[str, dict[str, str]] = {}
    trouble: KafkaError | None = None
    missing: dict[str, KafkaError] = {}
    # In slices, so that neither a broker nor this process handles all topics of a large cluster at once.
    async for some in slices(topics, TOPICS_AT_ONCE):
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in some]
        for resource, found in (await describe_configs(client, resources, [MIN_ISR, *TOPIC_THROTTLES])).items():
            if isinstance(found, KafkaError):
                error = KafkaError(found.code, f"topic {resource.name}: {error_line(found)}")
                if found.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    missing[resource.name] = error
                else:
                    trouble = graver(trouble, error)
                continue
            if (minimum := found.get(MIN_ISR)) is not None and minimum.value is not None:
                min_isr[resource.name] = int(minimum.value)
            limits: dict[str, str] = {name: found[name].value or "" for name in TOPIC_THROTTLES if name in found}
            if any(limits.values()):
                throttled[resource.name] = {name: value for name, value in limits.items() if value}
    if missing:
        # These topics have been deleted, or the asked broker's metadata is older than the metadata that named them.
        known = (await client.refresh_metadata(missing, elsewhere=True)).topics
        for name, error in missing.items():
            if name in known and known[name].error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                trouble = graver(trouble, error)
    return min_isr, throttled, trouble


def graver(known: KafkaError | None, error: KafkaError | None) -> KafkaError | None:
    """The error to report: a failure takes precedence over a missing permission."""
    return error if known is None or (error is not None and _is_forbidden(known)) else known
