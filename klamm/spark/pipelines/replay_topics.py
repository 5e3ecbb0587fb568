"""The topics that a replay writes to: created as far as the target's brokers can, and checked before the first record.

The target's brokers may be older, newer or fewer than those of the archive. A missing topic is created with its
archived configs, without the configs that the brokers refuse. A config that would prevent writes is corrected, with a
warning, in a topic that the replay has created. In a topic that existed before, it is an error: the config belongs to
the topic's owner.

What must stay true: problems that are found here are reported before a record is written.

Source: KIP-133 (configs), KIP-464 (the brokers' replication factor), KIP-937 (limits of timestamps), KIP-854 (the
expiration of producer ids).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from klamm.client.admin.configs import ConfigResource, describe_configs, incremental_alter_configs
from klamm.client.admin.topics import NewTopic, create_topics
from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import checked
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType, OpType
from klamm.spark.options import OptionError
from klamm.spark.pipelines.commit_log import TopicSnapshot

Warn = Callable[[str], object]

UNLIMITED_MS = 2**63 - 1
# The limits of timestamps: before Kafka 3.6 one config for both directions, later one for each direction.
_LIMITS = {
    "message.timestamp.difference.max.ms": (True, True),
    "message.timestamp.before.max.ms": (True, False),
    "message.timestamp.after.max.ms": (False, True),
}
# Brokers forget an idle producer after the first of these configs that they have.
_EXPIRATIONS = ("producer.id.expiration.ms", "transactional.id.expiration.ms")


@dataclass(frozen=True, slots=True)
class Span:
    """The timestamps of the oldest and the youngest record, in milliseconds."""

    oldest_ms: int
    youngest_ms: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A config with which brokers would refuse records, and the value that it needs."""

    key: str
    value: str
    needed: str
    reason: str


# -- decisions --------------------------------------------------------------------------------------------------------


def problems(configs: Mapping[str, str | None], replicas: int, span: Span | None, now_ms: int) -> list[Problem]:
    """The effective configs of a topic with which brokers would refuse records with these timestamps."""
    found = []
    minimum = _number(configs, "min.insync.replicas", 1)
    if minimum > replicas:
        has = f"the topic has {replicas} replica{'s' if replicas > 1 else ''}, so no record could be acknowledged"
        found.append(Problem("min.insync.replicas", str(minimum), str(replicas), has))
    if span is None or configs.get("message.timestamp.type") == "LogAppendTime":
        return found
    for key, (limits_past, limits_future) in _LIMITS.items():
        limit_ms = _number(configs, key, UNLIMITED_MS)
        if limits_past and now_ms - span.oldest_ms > limit_ms:
            reason = f"the oldest record has timestamp {span.oldest_ms}, so brokers would refuse it (INVALID_TIMESTAMP)"
        elif limits_future and span.youngest_ms - now_ms > limit_ms:
            reason = (
                f"the youngest record has timestamp {span.youngest_ms}, which is still to come, so brokers would refuse"
                " it (INVALID_TIMESTAMP)"
            )
        else:
            continue
        found.append(Problem(key, str(limit_ms), str(UNLIMITED_MS), reason))
    return found


def retention_warning(configs: Mapping[str, str | None], span: Span | None, now_ms: int) -> str | None:
    """A warning when brokers will remove records that the replay has just written."""
    retention_ms = _number(configs, "retention.ms", -1)
    deletes = "delete" in (configs.get("cleanup.policy") or "delete")
    by_broker = configs.get("message.timestamp.type") == "LogAppendTime"
    if span is None or not deletes or by_broker or retention_ms < 0 or now_ms - span.oldest_ms <= retention_ms:
        return None
    return (
        f"records from timestamp {span.oldest_ms} on are older than retention.ms={retention_ms}: brokers may remove"
        " them while they are replayed, which ends the replay; raise retention.ms until it is over"
    )


def expiration_warning(idle_ms: int, expiration: tuple[str, int] | None) -> str | None:
    """A warning when the brokers may have forgotten the producer of a replay that was idle for `idle_ms`."""
    key, expiration_ms = expiration or (_EXPIRATIONS[0], 24 * 3_600_000)
    if idle_ms <= expiration_ms:
        return None
    return (
        f"this replay has rested for {idle_ms // 1000} s, and brokers forget its producer after {key}={expiration_ms}:"
        " what is in the topics is compared with the archive, but a task of an earlier attempt that still runs could"
        " now write records twice; make sure that there is none"
    )


def _number(configs: Mapping[str, str | None], key: str, default: int) -> int:
    """The value of a config; `default` if the broker does not have the config or hides its value."""
    try:
        return int(configs.get(key) or default)
    except ValueError:
        return default


# -- requests to brokers ----------------------------------------------------------------------------------------------


async def prepare_topic(
    client: ClusterClient,
    target: str,
    topic: TopicSnapshot,
    span: "Callable[[], Span | None]",
    now_ms: int,
    warn: Warn,
) -> int:
    """Creates the topic if it is missing, and ensures that it accepts records of this span. Returns its number of
    partitions.

    `span` is called only if the topic limits timestamps. Raises KafkaError, and OptionError when the configs of an
    existing topic would refuse the records.
    """
    is_new = await _create(client, target, topic, warn)
    await client.refresh_metadata([target])
    partitions = client.metadata.topics[target].partitions
    resource = ConfigResource(ConfigResourceType.TOPIC, target)
    described = checked((await describe_configs(client, [resource], retriable=RETRIABLE_ERRORS))[resource])
    configs = {entry.name: entry.value for entry in described.values()}
    limits = [_number(configs, key, UNLIMITED_MS) for key in _LIMITS]
    needs_span = min(limits) < UNLIMITED_MS or _number(configs, "retention.ms", -1) >= 0
    replicas = min((len(each.replicas) for each in partitions.values()), default=1)
    records = span() if needs_span else None
    found = problems(configs, replicas, records, now_ms)
    if found and not is_new:
        told = "; ".join(f"{each.key}={each.value}: {each.reason}" for each in found)
        change = ",".join(f"{each.key}={each.needed}" for each in found)
        raise OptionError(
            f"topic {target} takes no such records: {told}. Change it until the replay is over:"
            f" klamm configs alter --topic {target} --add-config {change}"
        )
    if found:
        changes = [AlterConfigOp(each.key, each.needed, OpType.SET) for each in found]
        checked((await incremental_alter_configs(client, {resource: changes}))[resource])
    for each in found:
        warn(f"topic {target} is created with {each.key}={each.needed} instead of {each.value}: {each.reason}")
    about_retention = retention_warning(configs, records, now_ms)
    if about_retention is not None:
        warn(f"topic {target}: {about_retention}")
    return len(partitions)


async def expiration_of_producers(client: ClusterClient) -> tuple[str, int] | None:
    """The config after which brokers forget an idle producer, and its value; None if the brokers do not report it."""
    metadata = await client.refresh_metadata(())
    for broker in sorted(metadata.brokers)[:1]:
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker))
        described = (await describe_configs(client, [resource], _EXPIRATIONS))[resource]
        if isinstance(described, KafkaError):
            return None
        for key in _EXPIRATIONS:
            if key in described and (value := described[key].value) is not None:
                return key, int(value)
    return None


async def _create(client: ClusterClient, target: str, topic: TopicSnapshot, warn: Warn) -> bool:
    """Creates the topic if it is missing. Returns whether it was missing. Raises KafkaError."""
    new = NewTopic(target, num_partitions=topic.partitions)
    refused = await _refusal(client, new)
    if refused is not None and refused.code is ErrorCode.TOPIC_ALREADY_EXISTS:
        return False
    if refused is not None and refused.code is ErrorCode.INVALID_REPLICATION_FACTOR:
        brokers = len((await client.refresh_metadata(())).brokers)
        warn(f"topic {target} is created with replication factor {brokers}: {refused.message}")
        new = replace(new, replication_factor=brokers)
        refused = await _refusal(client, new)
    if refused is not None:
        raise _failed(target, refused)
    new = replace(new, configs=await _accepted_configs(client, replace(new, configs=topic.configs), warn))
    created = (await create_topics(client, [new], repeatable=True))[target]
    # The answer to an earlier request may have been lost.
    if isinstance(created, KafkaError) and created.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        raise _failed(target, created)
    return True


async def _accepted_configs(client: ClusterClient, new: NewTopic, warn: Warn) -> dict[str, str | None]:
    """The new topic's configs that the brokers accept together. Found by trial, because brokers do not say which
    configs they know."""
    left, accepted = dict(new.configs), dict[str, str | None]()
    refused = await _refusal(client, new)
    if refused is None:
        return left
    reasons: dict[str, KafkaError] = {}
    is_done = False
    # A config may need another config that is tried later.
    while left and not is_done:
        is_done = True
        for key, value in list(left.items()):
            refused = await _refusal(client, replace(new, configs={**accepted, key: value}))
            if refused is None:
                accepted[key] = left.pop(key)
                is_done = False
            elif refused.code is ErrorCode.INVALID_CONFIG:
                reasons[key] = refused
            else:
                raise _failed(new.name, refused)
    for key, value in left.items():
        warn(f"topic {new.name} is created without {key}={value}: {reasons[key].message or reasons[key]}")
    return accepted


async def _refusal(client: ClusterClient, new: NewTopic) -> KafkaError | None:
    """Why the brokers would not create a topic."""
    answer = (await create_topics(client, [new], validate_only=True))[new.name]
    return answer if isinstance(answer, KafkaError) else None


def _failed(target: str, error: KafkaError) -> KafkaError:
    return KafkaError(error.code, f"topic {target}: {error.message or 'not created'}")
