"""Verifies the replicas of a cluster's partitions by fetching from the brokers.

`verify_replicas` checks several partitions at a time. For each, it fetches from all replicas, compares, and fetches
again. With `follows` it visits all partitions again and again, without an end.

What must stay true:
- Memory is bounded by the partitions in progress, their replicas and the size of a window.
- A verification ends, whatever brokers answer. A partition that could not be verified says why.
- A topic that is deleted meanwhile, or a partition that gets other replicas, is neither a difference nor verified.

Source: kafka.tools.ReplicaVerificationTool.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.client.admin.configs import ConfigResource, describe_configs
from klamm.client.admin.log_dirs import describe_log_dirs
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import list_offsets
from klamm.client.metadata import PartitionMetadata
from klamm.client.retries import RetryPolicy
from klamm.client.verification.compare import Difference
from klamm.client.verification.fetcher import ReplicaFetcher
from klamm.client.verification.newest_values import CONFIRMATIONS, NewestValues
from klamm.client.verification.partition import PATIENCE_S, Answer, Failed, OutOfRange, PartitionCheck, SetAside
from klamm.net.client import ClientError
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.vocabulary import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    UNKNOWN_OFFSET,
    ConfigResourceType,
    TopicPartition,
)

PARTITIONS_AT_A_TIME = 16
# The memory limit for the windows of all partitions in progress.
MEMORY_BYTES = 256 * 1024 * 1024
FIRST_FETCH_BYTES = 128 * 1024
PAUSE_S, MAX_PAUSE_S = 0.02, 0.5
REFRESH_EVERY_S = 1.0
# A topic that brokers have not known for this long counts as deleted.
MISSING_S = 3.0
_CLEANUP_POLICY, _COMPACT, _DELETE = "cleanup.policy", "compact", "delete"
_RETENTION_MS, _RETENTION_BYTES = "retention.ms", "retention.bytes"


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How to verify.

    - `fetch_size_bytes`: the size of a window, unless a single batch is larger.
    - `time`: where to begin: EARLIEST_TIMESTAMP, LATEST_TIMESTAMP or milliseconds.
    - `follows`: has no end; `max_wait_ms` is the pause between two rounds.
    - `patience_s`: how long to wait for a replica without usable answers.
    - `now_ms`: the wall clock, to know which records retention has removed.
    """

    fetch_size_bytes: int = 512 * 1024
    time: int = EARLIEST_TIMESTAMP
    follows: bool = False
    max_wait_ms: int = 1000
    patience_s: float = PATIENCE_S
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class Replicated:
    """A partition to verify. `replicas` has the leader first, and `in_sync` are the replicas in the ISR.

    `start_offset` and `end_offset` select a part of it.
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    is_compacted: bool
    start_offset: int | None = None
    end_offset: int | None = None


@dataclass(slots=True)
class Planned:
    """The partitions to verify. `skipped` has topics that cannot be verified, with the reasons. The cleanup.policy of
    `unknown_policies` could not be read; these topics count as not compacted."""

    partitions: list[Replicated] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    unknown_policies: list[str] = field(default_factory=list)


class Events:
    """The events of a running verification. Subclasses override the methods that they need."""

    def began(self, check: PartitionCheck) -> None:
        """The verification of this partition begins."""

    def differs(self, check: PartitionCheck, difference: Difference) -> None:
        """A replica differs."""

    def set_aside(self, check: PartitionCheck, replica: int) -> None:
        """From `check.set_aside[replica].offset` on the partition is verified without this replica."""

    def back(self, check: PartitionCheck, replica: int, was: SetAside) -> None:
        """The replica counts again, from the check's position on."""

    def advanced(self, check: PartitionCheck, offsets: int) -> None:
        """`offsets` more offsets are verified."""


async def partitions_to_verify(client: ClusterClient, matches: Callable[[str], bool]) -> Planned:
    """The partitions of all topics whose name matches. Raises ClientError."""
    await client.refresh_metadata()
    topics = {name: topic for name, topic in sorted(client.metadata.topics.items()) if matches(name)}
    readable = [name for name, topic in topics.items() if topic.error_code == ErrorCode.NONE]
    compacted, unknown = await _compacted(client, readable)
    planned = Planned(unknown_policies=unknown)
    for name, topic in topics.items():
        if topic.error_code != ErrorCode.NONE:
            planned.skipped.append((name, f"the brokers answer {error_name(topic.error_code)} for topic {name}"))
            continue
        for number, state in sorted(topic.partitions.items()):
            each = Replicated(TopicPartition(name, number), in_order(state), tuple(state.isr), name in compacted)
            planned.partitions.append(each)
    return planned


def in_order(state: PartitionMetadata) -> tuple[int, ...]:
    """The leader first: the others are compared with it."""
    others = [replica for replica in state.replicas if replica != state.leader]
    return (state.leader, *others) if state.leader in state.replicas else tuple(others)


async def _compacted(client: ClusterClient, topics: Sequence[str]) -> tuple[set[str], list[str]]:
    """The topics that are compacted, and those whose cleanup.policy is not known."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in topics]
    found = await describe_configs(client, resources, [_CLEANUP_POLICY]) if resources else {}
    compacted, unknown = set(), []
    for resource, entries in found.items():
        entry = None if isinstance(entries, KafkaError) else entries.get(_CLEANUP_POLICY)
        if entry is None:
            unknown.append(resource.name)
        elif _COMPACT in (entry.value or ""):
            compacted.add(resource.name)
    return compacted, unknown


class _Retention(NamedTuple):
    """The limits of a topic's log; -1 for none."""

    ms: int
    size_bytes: int


async def _retention(client: ClusterClient, topic: str) -> _Retention | None:
    """The retention limits of a topic; None if they are unknown."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    entries = (await describe_configs(client, [resource], [_CLEANUP_POLICY, _RETENTION_MS, _RETENTION_BYTES]))[resource]
    values = {} if isinstance(entries, KafkaError) else {name: entry.value or "" for name, entry in entries.items()}
    try:
        limits = _Retention(int(values[_RETENTION_MS]), int(values[_RETENTION_BYTES]))
    except (KeyError, ValueError):
        return None
    return limits if _DELETE in values.get(_CLEANUP_POLICY, "") else _Retention(-1, -1)


async def start_offsets(
    client: ClusterClient, partitions: Iterable[Replicated], time: int, patience_s: float = PATIENCE_S
) -> dict[TopicPartition, int | KafkaError]:
    """The offsets at which to begin, from the leaders. A partition without a record at or after a time begins at its
    end."""
    retry = RetryPolicy(deadline_ms=int(1000 * patience_s))
    wanted = dict.fromkeys((each.partition for each in partitions), time)
    listed = await list_offsets(client, wanted, retry=retry)
    later = {
        partition: LATEST_TIMESTAMP
        for partition, found in listed.items()
        if not isinstance(found, KafkaError) and found.offset == UNKNOWN_OFFSET
    }
    listed |= await list_offsets(client, later, retry=retry) if later else {}
    return {partition: found if isinstance(found, KafkaError) else found.offset for partition, found in listed.items()}


async def count_offsets(client: ClusterClient, partitions: Sequence[Replicated], time: int) -> int:
    """The number of offsets to verify, according to the leaders."""
    starts = await start_offsets(client, partitions, time)
    ends = await start_offsets(client, partitions, LATEST_TIMESTAMP)
    known = [(starts[each.partition], ends[each.partition]) for each in partitions]
    return sum(max(0, end - start) for start, end in known if isinstance(start, int) and isinstance(end, int))


async def verify_replicas(
    client: ClusterClient,
    partitions: Sequence[Replicated],
    options: VerifyOptions,
    events: Events | None = None,
) -> list[PartitionCheck]:
    """Verifies these partitions, which the client's metadata must have. With `follows` it never returns."""
    verifier = _Verifier(client, options, events or Events())
    try:
        return await verifier.run(partitions)
    finally:
        await verifier.close()


class _Verifier:
    def __init__(self, client: ClusterClient, options: VerifyOptions, events: Events) -> None:
        # A client of its own, so that other requests do not wait behind large answers.
        self._client = client.another()
        self._options = options
        self._events = events
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._loop = asyncio.get_running_loop()
        self._refreshed_at_s: dict[str, float] = {}
        self._missing_since_s: dict[str, float] = {}
        self._topic_ids = {name: topic.topic_id for name, topic in client.metadata.topics.items()}

    async def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()
        await self._client.close()

    async def run(self, partitions: Sequence[Replicated]) -> list[PartitionCheck]:
        most_replicas = max((len(each.replicas) for each in partitions), default=1)
        window_bytes = most_replicas * self._options.fetch_size_bytes
        at_a_time = max(1, min(PARTITIONS_AT_A_TIME, MEMORY_BYTES // window_bytes))
        checks = await self._checks(partitions)
        for check in checks:
            self._events.began(check)
        if not self._options.follows:
            await _each(checks, self._verify, at_a_time)
            return checks
        while True:
            await _each(checks, self._catch_up, at_a_time)
            await asyncio.sleep(self._options.max_wait_ms / 1000)

    async def _checks(self, partitions: Sequence[Replicated]) -> list[PartitionCheck]:
        starts: Mapping[TopicPartition, int | KafkaError] = {}
        # Fetching offset 0 from each replica shows its log start offset.
        if self._options.time != EARLIEST_TIMESTAMP:
            whole = [each for each in partitions if each.start_offset is None]
            starts = await start_offsets(self._client, whole, self._options.time, self._options.patience_s)
        checks = []
        for each in partitions:
            start = starts.get(each.partition, each.start_offset or 0)
            check = PartitionCheck(
                each.partition,
                each.replicas,
                start if isinstance(start, int) else 0,
                in_sync=each.in_sync,
                is_compacted=each.is_compacted,
                follows=self._options.follows,
                target=each.end_offset,
                patience_s=self._options.patience_s,
                newest=NewestValues() if each.is_compacted and each.end_offset is None else None,
            )
            if isinstance(start, KafkaError):
                check.give_up(f"no offset to begin at is known: {error_name(start.code)}")
            checks.append(check)
        return checks

    # -- one partition ------------------------------------------------------------------------------------------------

    async def _verify(self, check: PartitionCheck) -> None:
        await self._read(check)
        for replica, start in check.begins_later.items() if check.gone is None else ():
            if reason := await self._unexplained(check, replica, start):
                check.unexplained[replica] = reason
        if not check.has_unreplaced_values:
            return
        silent = _Verifier(self._client, self._options, Events())
        try:
            for _ in range(CONFIRMATIONS):
                if check.has_unreplaced_values:
                    again = check.again()
                    await silent._read(again)
                    check.confirm(again)
        finally:
            await silent.close()
        for difference in check.conclude():
            self._events.differs(check, difference)

    async def _unexplained(self, check: PartitionCheck, replica: int, start: int) -> str:
        """Why a log that begins later than others may have lost records; empty if retention accounts for it."""
        client, partition, now_ms = self._client, check.partition, self._options.now_ms
        retry = RetryPolicy(deadline_ms=int(1000 * self._options.patience_s))
        try:
            retention = await _retention(client, partition.topic)
            if retention is None:
                return "the topic's retention is not known"
            # Followers adopt the leader's log start offset, which DeleteRecords or retention has moved.
            times = [EARLIEST_TIMESTAMP, *([now_ms - retention.ms] if 0 <= retention.ms <= now_ms else [])]
            for time in times:
                listed = (await list_offsets(client, {partition: time}, retry=retry))[partition]
                if not isinstance(listed, KafkaError) and (listed.offset >= start or listed.offset == UNKNOWN_OFFSET):
                    return ""
            if retention.size_bytes >= 0 and await self._size(partition, replica) >= retention.size_bytes:
                return ""
        except ClientError as error:
            return str(error)
        return "retention does not account for that"

    async def _size(self, partition: TopicPartition, replica: int) -> int:
        """The size of a replica's log; -1 if it is unknown."""
        found = (await describe_log_dirs(self._client, [replica], [partition])).get(replica, {})
        logs = [] if isinstance(found, KafkaError) else [each.replicas.get(partition) for each in found.values()]
        return max((each.size_bytes for each in logs if each is not None and not each.is_future), default=-1)

    async def _read(self, check: PartitionCheck) -> None:
        pause_s = PAUSE_S
        while not check.is_done:
            if await self._step(check):
                pause_s = PAUSE_S
            elif not check.is_done:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _catch_up(self, check: PartitionCheck) -> None:
        while not check.is_done and await self._step(check):
            pass

    async def _step(self, check: PartitionCheck) -> bool:
        """Fetches once from each replica. Returns whether this has advanced the check."""
        active, before, aside = check.to_ask(self._loop.time()), check.position, dict(check.set_aside)
        # The first fetch shows which partitions are small. Many small partitions share a request.
        first_bytes = min(FIRST_FETCH_BYTES, self._options.fetch_size_bytes)
        max_bytes = self._options.fetch_size_bytes if check.batches else first_bytes
        fetches = (
            self._fetcher(replica).fetch(check.partition, before, max_bytes, is_alone=replica in check.hungry)
            for replica in active
        )
        answers: dict[int, Answer] = dict(zip(active, await asyncio.gather(*fetches), strict=True))
        if any(isinstance(answer, (Failed, OutOfRange)) for answer in answers.values()):
            await self._look_again(check)
        answers = {replica: answer for replica, answer in answers.items() if replica in check.replicas}
        differences = check.feed(answers, self._loop.time())
        for replica, was in aside.items():
            if replica not in check.set_aside:
                self._events.back(check, replica, was)
        for replica in check.set_aside:
            if replica not in aside:
                self._events.set_aside(check, replica)
        for difference in differences:
            self._events.differs(check, difference)
        self._events.advanced(check, check.position - before)
        return check.position > before

    def _fetcher(self, broker_id: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get(broker_id)
        if fetcher is None:
            fetcher = ReplicaFetcher(self._client, broker_id, self._options.patience_s)
            self._fetchers[broker_id] = fetcher
        return fetcher

    async def _look_again(self, check: PartitionCheck) -> None:
        """Refreshes the metadata, at most once a second: the topic may be deleted, or have other replicas."""
        name, now_s = check.partition.topic, self._loop.time()
        if now_s >= self._refreshed_at_s.get(name, 0.0) + REFRESH_EVERY_S:
            self._refreshed_at_s[name] = now_s
            try:
                await self._client.refresh_metadata_once([name], elsewhere=True)
            except ClientError:
                return
        topic = self._client.metadata.topics.get(name)
        if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # A broker that has just started knows no topics.
            if now_s >= self._missing_since_s.setdefault(name, now_s) + MISSING_S:
                check.forget("the topic was deleted")
            return
        self._missing_since_s.pop(name, None)
        if topic.topic_id is not None and self._topic_ids.get(name) not in (None, topic.topic_id):
            check.forget("the topic was deleted and created again")
        state = topic.partitions.get(check.partition.partition)
        if state is not None and state.replicas:
            check.reassigned(state.replicas)


async def _each(
    checks: Iterable[PartitionCheck], work: Callable[[PartitionCheck], Awaitable[object]], at_a_time: int
) -> None:
    """Does the work for all checks, some at a time."""
    waiting = iter(checks)

    async def worker() -> None:
        for check in waiting:
            await work(check)

    await asyncio.gather(*(worker() for _ in range(at_a_time)))
