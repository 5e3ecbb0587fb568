"""A consumer whose partitions its group assigns to it.

What must stay true:
- A commit only has positions up to which `poll` has returned records, so records that the caller has not seen are never
  committed. Between two calls of `poll` the caller processes its records, and then commits.
- Before other members get the partitions, `on_revoked` is called and may commit. A member that was late or cut off has
  lost them already: then `on_lost` is called, a commit is refused, and the new owner reads the records again.
- `positions` and `membership` belong together, and both change only within `poll`. A former membership never changes,
  so the coordinator refuses its commits (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID).
- Heartbeats continue whatever the member waits for. It only loses its partitions if its process stands still, the
  network is cut, or the caller does not poll for `max_poll_interval_ms`: the caller may have stopped.
- `poll` returns no records once the member knows that it no longer owns their partitions. If the process stood still
  for longer than the session timeout, the member asks first.
- Committed offsets never go back: calls of `commit` take turns. A commit has the leader epoch of the last record, so
  that the next owner notices if the log has other records by then (KIP-320).
- The coordinator's answers about a former membership do not end the current one.
- A partition is read as soon as its committed offset is known. If an open transaction may still change the offset, only
  this partition waits.

Source: org.apache.kafka.clients.consumer.KafkaConsumer; internals.ConsumerCoordinator (eager rebalances).
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from klamm.base.tasks import start_task
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.consumer import Consumer, ConsumerRecord
from klamm.client.consumer.group_member import (
    MAX_BACKOFF_S,
    MIN_BACKOFF_S,
    FormerMembership,
    GroupMember,
    Membership,
    MustRejoin,
)
from klamm.client.consumer.offsets import OffsetAndMetadata
from klamm.client.options import ConsumerOptions, GroupOptions
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition

# How often the group's leader checks the group's topics for new partitions (metadata.max.age.ms). While a topic is
# missing, it checks with each heartbeat.
METADATA_MAX_AGE_S = 300.0
# How long a closing member waits for `on_revoked`, and then for the coordinator.
CLOSE_TIMEOUT_S = 5.0

OnChange = Callable[[list[TopicPartition]], Awaitable[None]]


class CommitFailed(KafkaError):
    """No offset was committed: the group has given the partitions to other members, which read the records again."""


async def _ignore(partitions: list[TopicPartition]) -> None:
    pass


class GroupConsumer:
    """Reads `topics` as a member of a group. `on_revoked`, `on_lost` and `on_assigned` are awaited within `poll` and
    `close`."""

    def __init__(
        self,
        client: ClusterClient,
        group: GroupOptions,
        topics: Sequence[str],
        options: ConsumerOptions | None = None,
        *,
        on_revoked: OnChange = _ignore,
        on_lost: OnChange = _ignore,
        on_assigned: OnChange = _ignore,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._member = GroupMember(client, group)
        self._consumer = Consumer(client, options)
        self._topics = list(topics)
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._on_assigned = on_assigned
        # The assigned partitions, and the membership in which this member owns them or owned the last ones.
        self._owned: list[TopicPartition] = []
        self._owned_as = replace(self._member.membership)
        self._must_join = True
        self._joining: asyncio.Task[tuple[Membership, list[TopicPartition]]] | None = None
        # The partitions whose committed offset is being looked up, and where each is read if it has no such offset.
        self._awaited: dict[TopicPartition, int | None] = {}
        self._looking_up: asyncio.Task[None] | None = None
        self._look_up_error: BaseException | None = None
        self._handed_out_s = -math.inf
        # Whether the caller is in `poll`, and when it was there last.
        self._is_polling = False
        self._polled_s = self._loop.time()
        # When this process was last seen running; when it was found to have stood still for a session; and when the
        # last answered heartbeat began.
        self._awake_s = self._loop.time()
        self._doubted_s = self._confirmed_s = -math.inf
        self._heartbeat: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._committing = asyncio.Lock()
        self._revoking = asyncio.Lock()
        self._failure: BaseException | None = None
        self._watching = start_task(self._watch(), self._fail)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member owns."""
        return list(self._owned)

    @property
    def member_id(self) -> str:
        """The member id of `membership`."""
        return self._owned_as.member_id

    @property
    def generation_id(self) -> int:
        """The generation of `membership`."""
        return self._owned_as.generation_id

    @property
    def membership(self) -> Membership:
        """The membership in which this member owns its partitions, for a transaction that commits their offsets (Java's
        `groupMetadata`).

        It stays that of the last assignment until the next, even if the coordinator has removed the member.
        """
        return replace(self._owned_as)

    async def poll(self, timeout_ms: int, max_records: int | None = None) -> list[ConsumerRecord]:
        """Like `Consumer.poll`. Joins the group first if necessary, within the same time.

        A second call at the same time raises RuntimeError.
        """
        if self._is_polling:
            raise RuntimeError("poll: another call has not returned")
        deadline = self._loop.time() + timeout_ms / 1000
        self._is_polling = True
        try:
            while True:
                if not await self._enter(deadline):
                    return []
                self._look_up()
                records = await self._consumer.poll_until(deadline, max_records)
                if records:
                    self._handed_out_s = self._loop.time()
                if records or self._loop.time() >= deadline:
                    return records
        finally:
            self._is_polling = False
            self._polled_s = self._loop.time()

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that `poll` will return, without partitions that are still looked up."""
        return self._consumer.positions()

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commits the positions, or these offsets.

        Raises CommitFailed when the group has given the partitions to others, and KafkaError when the commit is not
        allowed.
        """
        read_as, next_offsets = self._owned_as, self._consumer.offsets() if offsets is None else offsets
        try:
            async with self._committing:
                await self._member.commit(next_offsets, read_as)
        except MustRejoin as error:
            if not isinstance(error, FormerMembership):
                self._rejoin()
            raise CommitFailed(
                error.code, "nothing was committed, since the group has rebalanced: the records will be read again"
            ) from None
        except KafkaError as error:
            if error.code is ErrorCode.FENCED_INSTANCE_ID:
                self._fail(error)
            raise

    def seek_to_committed(self) -> None:
        """Reads the partitions again from the group's committed offsets, after an aborted transaction.

        A partition without a committed offset is read from the offset at which this member began.
        """
        starts = {each: self._consumer.start(each) for each in self._consumer.assignment}
        starts |= self._awaited
        self._give_up()
        self._awaited = {partition: starts.get(partition) for partition in self._owned}

    async def close(self) -> None:
        """Leaves the group and closes the connections. A static member stays in the group until its session expires.

        A pending poll raises RuntimeError, and so does each later poll.
        """
        self._fail(RuntimeError("the consumer is closed"))
        tasks = [self._watching, self._heartbeat, self._counting, self._looking_up, self._joining]
        started = [task for task in tasks if task is not None]
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)
        try:
            await self._in_time(self._revoke())
        finally:
            try:
                await self._in_time(self._member.leave())
                if self._leaving is not None:
                    await self._in_time(self._leaving)
            finally:
                await self._consumer.close()
                await self._member.close()

    async def _in_time(self, step: Awaitable[None]) -> None:
        """Runs a step of `close`, for at most `CLOSE_TIMEOUT_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await step

    # -- joining --------------------------------------------------------------------------------------------------

    async def _enter(self, deadline: float) -> bool:
        """Joins the group if necessary, and asks the coordinator after a standstill, until the deadline. Returns
        whether this member owns its partitions, as far as it knows."""
        self._notice_standstill()
        while True:
            if self._failure is not None:
                raise self._failure
            if self._must_join and self._joining is None:
                await self._revoke()
                self._must_join = False
                self._joining = asyncio.create_task(self._join_group())
            if self._joining is not None:
                if not await self._is_done(self._joining, deadline):
                    return False
                if self._failure is not None:
                    raise self._failure
                joined, self._joining = self._joining, None
                await self._joined(joined)
            elif self._is_in_doubt():
                if not await self._is_done(self._beat(), deadline):
                    return False
            else:
                return True

    async def _join_group(self) -> tuple[Membership, list[TopicPartition]]:
        owned = await self._member.join(self._topics)
        return replace(self._member.membership), owned

    async def _joined(self, joined: "asyncio.Task[tuple[Membership, list[TopicPartition]]]") -> None:
        try:
            membership, owned = joined.result()
        except BaseException:
            self._must_join = True
            raise
        if self._must_join:
            return  # The generation ended before the caller polled.
        self._owned, self._owned_as = owned, replace(membership, interrupted_s=self._handed_out_s)
        self._awaited = dict.fromkeys(owned)
        await self._on_assigned(list(owned))

    async def _revoke(self) -> None:
        async with self._revoking:
            revoked = list(self._owned)
            is_lost = not self._owned_as.is_same_member(self._member.membership)
            try:
                if revoked:
                    await (self._on_lost if is_lost else self._on_revoked)(revoked)
            finally:
                self._give_up()
                self._owned = []

    def _give_up(self) -> None:
        """Stops reading. Records that were returned but not committed will be read again."""
        if self._looking_up is not None:
            self._looking_up.cancel()
            self._looking_up = None
        self._awaited = {}
        self._owned_as = replace(self._owned_as, interrupted_s=self._handed_out_s)
        self._consumer.assign({})

    def _rejoin(self) -> None:
        """Has the pending or next poll join the group again."""
        self._must_join = True
        self._consumer.interrupt()

    async def _is_done(self, task: "asyncio.Task[Any]", deadline: float) -> bool:
        """Whether the task is done by the deadline. The task continues after that."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(asyncio.shield(task), return_exceptions=True)
        return task.done()

    # -- positions ------------------------------------------------------------------------------------------------

    def _look_up(self) -> None:
        """Looks up missing positions in the background. Raises the error of an earlier look-up."""
        if (error := self._look_up_error) is not None:
            self._look_up_error = None
            raise error
        if self._awaited and (self._looking_up is None or self._looking_up.done()):
            self._looking_up = start_task(self._look_up_positions(), self._look_up_failed)

    async def _look_up_positions(self) -> None:
        backoff_s = MIN_BACKOFF_S
        while True:
            found = await self._member.committed(self._awaited)
            starts = {partition: self._awaited.pop(partition) for partition in found if partition in self._awaited}
            self._consumer.add({each: start if found[each] is None else found[each] for each, start in starts.items()})
            if not self._awaited:
                return
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)

    def _look_up_failed(self, error: BaseException) -> None:
        self._look_up_error = error
        self._consumer.interrupt()

    # -- in the background ----------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Sends the heartbeats, and leaves the group when the caller does not poll."""
        options, counted_s = self._member.options, self._loop.time()
        while True:
            await asyncio.sleep(options.heartbeat_interval_ms / 1000)
            self._notice_standstill()
            if not self._member.needs_heartbeats:
                continue
            now_s = self._loop.time()
            if not self._is_polling and now_s - self._polled_s > options.max_poll_interval_ms / 1000:
                self._leaving = start_task(self._member.leave(), self._fail)
                self._rejoin()
                continue
            self._beat()
            max_age_s = 0 if 0 in (self._member.assigned_by or {}).values() else METADATA_MAX_AGE_S
            if now_s - counted_s >= max_age_s and (self._counting is None or self._counting.done()):
                counted_s = now_s
                self._counting = start_task(self._count_partitions(), self._fail)

    def _beat(self) -> "asyncio.Task[None]":
        """The pending heartbeat, or a new one."""
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = start_task(self._send_heartbeat(), self._fail)
        return self._heartbeat

    async def _send_heartbeat(self) -> None:
        began_s = self._loop.time()
        try:
            await self._member.heartbeat()
        except MustRejoin:
            # A pending join gets the error itself.
            if self._joining is None or self._joining.done():
                self._rejoin()
        else:
            self._confirmed_s = began_s

    async def _count_partitions(self) -> None:
        """As the group's leader, joins again when the group's topics have other partitions than those assigned."""
        counts = self._member.assigned_by
        if counts is not None and await self._member.partition_counts(list(counts)) != counts:
            self._rejoin()

    def _notice_standstill(self) -> None:
        """Detects a standstill longer than the session timeout, after which the member may have lost its partitions."""
        now_s = self._loop.time()
        if now_s - self._awake_s > self._member.options.session_timeout_ms / 1000:
            self._doubted_s = now_s
            self._consumer.interrupt()
        self._awake_s = now_s

    def _is_in_doubt(self) -> bool:
        return bool(self._owned) and self._doubted_s > self._confirmed_s

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._consumer.interrupt()
