"""Reads the facts about one partition for `reasons`, and the entries for `story`.

What must stay true: an answer comes even if some facts cannot be read; those are left out. Each request to a broker
ends within a few seconds.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.access.clients import error_line
from klamm.base.system_environment import SystemFileSystem
from klamm.client.admin.configs import ConfigEntry, ConfigResource, describe_configs
from klamm.client.admin.log_dirs import describe_log_dirs
from klamm.client.retries import RetryPolicy
from klamm.cockpit import story
from klamm.config.throttles import BROKER_THROTTLES, TOPIC_THROTTLES
from klamm.diagnosis.cluster_view import ClusterView, PartitionView, read_cluster, read_znodes
from klamm.diagnosis.election_plans import Loss, Scope
from klamm.diagnosis.log_ends import read_unclean_plan, replica_ends
from klamm.diagnosis.partition_conditions import PartitionFacts
from klamm.diagnosis.partition_health import (
    MIN_ISR,
    UNCLEAN,
    is_unavailable,
    is_under_replicated,
)
from klamm.diagnosis.reasons import Circumstances
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ConfigResourceType, TopicPartition
from klamm.state_changes.entries import names, parse
from klamm.state_changes.merging import Wanted, merge
from klamm.znodes.fields import ZnodeError
from klamm.znodes.topics import LeaderAndIsr, partition_state_path
from klamm.zookeeper.keeper_exceptions import NoNode, ZooKeeperError

if TYPE_CHECKING:
    from klamm.client.admin.reassignments import PartitionReassignment
    from klamm.client.cluster import ClusterClient
    from klamm.znodes.store import KafkaZooKeeper

ONCE: Final = RetryPolicy(0)
HTTP_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Reach:
    """The options with which a command reaches the cluster, and those with which it reaches ZooKeeper."""

    brokers: tuple[str, ...] = ()
    zookeeper: tuple[str, ...] = ()


async def read_partition(
    client: "ClusterClient",
    znodes: "KafkaZooKeeper | None",
    now: Mapping[str, Any],
    key: TopicPartition,
    reach: Reach,
    moving: "Mapping[TopicPartition, PartitionReassignment]",
    records: Sequence[Mapping[str, Any]] = (),
) -> PartitionFacts:
    """The facts. `now` is the newest Now document, `moving` are the reassignments in progress, `records` are the klamm
    controllers' records.

    Raises KafkaError for a partition that does not exist, and ClientError when no broker answers.
    """
    view, deletions = await asyncio.gather(
        read_cluster(client, [key.topic], reassignments=moving), _deletions(znodes, now)
    )
    if key not in view.partitions and key.topic in deletions and znodes is not None:
        # Brokers do not describe a topic that is being deleted.
        view = await _of_znodes(znodes, key, view)
    partition = view.partitions.get(key)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {key} does not exist")
    settings, dirs, ends = await asyncio.gather(
        _settings(client, key.topic),
        _offline_dirs(client, [each for each in partition.replicas if each in view.brokers]),
        replica_ends(client, view, {key: partition.replicas}),
    )
    log_ends = ends.get(key, {})
    minimum, unclean = settings.get(MIN_ISR), settings.get(UNCLEAN)
    known = Circumstances(
        view.brokers.keys(),
        log_ends,
        None if minimum is None or minimum.value is None else int(minimum.value),
        None if unclean is None else unclean.value == "true",
        key.topic in deletions,
        broken=frozenset(broker_id for broker_id, paths in dirs.items() if paths),
    )
    is_kraft = now["cluster"]["kind"] == "kafka-kraft"
    return PartitionFacts(
        key,
        partition,
        known,
        None if is_kraft else view.controller_id,
        now["controller"].get("status"),
        settings,
        await _price(client, key, moving)
        if not known.marked_for_deletion and is_unavailable(partition, view.brokers)
        else None,
        dirs,
        {
            broker_id: end.message or error_line(end)
            for broker_id, end in log_ends.items()
            if isinstance(end, KafkaError) and end.code is ErrorCode.NETWORK_EXCEPTION
        },
        await _throttles(client, partition, settings, key.topic, view),
        story.offline_since_ms(records, key),
        reach.brokers,
        reach.zookeeper,
        sorted({each for of, some in view.partitions.items() if of.topic == key.topic for each in some.replicas}),
    )


async def _of_znodes(znodes: "KafkaZooKeeper", key: TopicPartition, view: ClusterView) -> ClusterView:
    try:
        return replace(view, partitions=(await read_znodes(znodes, [key.topic])).partitions)
    except (ZooKeeperError, ZnodeError):
        return view


async def _settings(client: "ClusterClient", topic: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    wanted = (MIN_ISR, UNCLEAN, *TOPIC_THROTTLES)
    found = (await describe_configs(client, [resource], wanted, include_synonyms=True, retry=ONCE))[resource]
    return {} if isinstance(found, KafkaError) else found


async def _deletions(znodes: "KafkaZooKeeper | None", now: Mapping[str, Any]) -> list[str]:
    """The topics that are being deleted, according to znodes and a klamm controller."""
    status = now["controller"].get("status") or {}
    listed = [each["topic"] for each in status.get("deletions", {}).get("first", ())]
    if znodes is None:
        return listed
    try:
        return [*listed, *await znodes.topic_deletions()]
    except ZooKeeperError:
        return listed


async def _offline_dirs(client: "ClusterClient", broker_ids: Sequence[int]) -> dict[int, list[str]]:
    answers = await describe_log_dirs(client, broker_ids, [], retry=ONCE)
    return {
        broker_id: sorted(path for path, each in found.items() if each.error is not None)
        for broker_id, found in answers.items()
        if not isinstance(found, KafkaError)
    }


async def _price(
    client: "ClusterClient", key: TopicPartition, moving: "Mapping[TopicPartition, PartitionReassignment]"
) -> Loss | str:
    """The loss of an unclean election, or why it is impossible."""
    _, plan = await read_unclean_plan(client, Scope(partitions=[key]), moving)
    return plan.due.get(key) or plan.refused.get(key, "the partition has a leader meanwhile")


async def _throttles(
    client: "ClusterClient",
    partition: PartitionView,
    settings: Mapping[str, ConfigEntry],
    topic: str,
    view: ClusterView,
) -> dict[str, dict[str, str]]:
    """The throttles that act on this partition: a broker's rate acts only on replicas that the topic names."""
    replicas = {name: settings[name].value or "" for name in TOPIC_THROTTLES if name in settings}
    of_topic = {name: value for name, value in replicas.items() if value}
    if not of_topic or not (is_under_replicated(partition) or partition.is_reassigning):
        return {}
    resources = {
        broker_id: ConfigResource(ConfigResourceType.BROKER, str(broker_id))
        for broker_id in partition.replicas
        if broker_id in view.brokers
    }
    answers = await describe_configs(client, resources.values(), BROKER_THROTTLES, retry=ONCE)
    found: dict[str, dict[str, str]] = {}
    for broker_id, resource in resources.items():
        entries = answers[resource]
        if isinstance(entries, KafkaError):
            continue
        # The default, which has as many digits, is no limit.
        found[f"broker {broker_id}"] = {
            name: entry.value or "" for name, entry in entries.items() if len(entry.value or "") < len(str(2**62))
        }
    return {**{whose: limits for whose, limits in found.items() if limits}, f"topic {topic}": of_topic}


# -- the story --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Story:
    """`entries` in order, their source, and why there are no more (or "")."""

    entries: Sequence[story.StoryEntry]
    source: str
    why_no_more: str

    def value(self) -> dict[str, Any]:
        shown = self.entries[-story.MOST_ENTRIES :]
        return {
            "source": self.source,
            "why_no_more": self.why_no_more,
            "left_out": len(self.entries) - len(shown),
            "entries": [each.value() for each in shown],
        }


async def read_story(
    znodes: "KafkaZooKeeper | None",
    facts: PartitionFacts,
    records: Sequence[Mapping[str, Any]],
    logs: Path | None,
) -> Story:
    """The story from the best available source: state-change logs, records of klamm controllers, znodes or metadata."""
    if logs is not None:
        found = await asyncio.get_running_loop().run_in_executor(None, _from_logs, logs, facts.key)
        return Story(found, f"the state-change logs in {logs}", "" if found else "No entry names this partition.")
    entries = story.of_records(records, facts.key)
    if entries:
        return Story(
            entries,
            "the records of klamm controllers",
            "A broker keeps its newest 10,000 records while it runs. Start klamm cockpit with --state-change-logs for"
            " what was before.",
        )
    why = (
        "No klamm broker has records of this partition. Apache Kafka writes such decisions to its state-change.log"
        " only: give klamm cockpit the directory with --state-change-logs."
    )
    state = await _state(znodes, facts.key)
    if state is not None:
        return Story([story.of_znode(*state)], "the znodes, which have only the newest decision", why)
    view = facts.view
    return Story(
        [story.of_metadata(view.leader, view.leader_epoch, view.isr)],
        "the brokers' metadata, which have only the present state",
        why if znodes is not None else f"{why} This cluster's ZooKeeper is not known, or it has none.",
    )


async def _state(znodes: "KafkaZooKeeper | None", key: TopicPartition) -> tuple[LeaderAndIsr, int] | None:
    """The state znode, and the time of its last change."""
    if znodes is None:
        return None
    try:
        data, stat = await znodes.client.get(partition_state_path(*key))
        return LeaderAndIsr.decode(*key, data, stat.version), stat.mtime_ms
    except (NoNode, ZooKeeperError, ValueError):
        return None


def _from_logs(directory: Path, key: TopicPartition) -> list[story.StoryEntry]:
    """The newest entries of all files in a directory. Raises ToolError."""
    try:
        paths = [str(path) for path in sorted(directory.rglob("*")) if path.is_file() and "state-change" in path.name]
        if not paths:
            raise ToolError(f"no file in {directory} has a name with state-change in it")
        wanted = Wanted(names(key.topic, [key.partition]), key.topic.encode())
        newest: list[bytes] = []
        for run in merge(SystemFileSystem(), paths, wanted, lambda text: None):
            newest = [*newest, *run.entries][-story.MOST_ENTRIES :]
    except OSError as error:
        raise ToolError(f"{directory}: {error.strerror}") from error
    return story.of_logs(parse(entry) for entry in newest)
