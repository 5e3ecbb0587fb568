"""A consumer whose partitions its group assigns to it.

What must stay true:
- A commit holds positions only up to which `poll` has handed records out, so what the caller has not seen yet is never
  committed. Between two calls of `poll` the caller processes what it got; then it commits.
- Before the partitions go to others, `on_revoked` is called and may commit. A member that was late, or cut off, has
  lost them without being asked: then `on_lost` is called, a commit is refused, and their new owner reads records again.
- `positions` and `membership` belong together, and both change only within `poll`. A membership that is over stays what
  it was, so the coordinator refuses what is committed under it (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID).
- Heartbeats continue whatever the member waits for, so only a process that stands still, a network that is cut, or a
  caller that does not poll for `max_poll_interval_ms` costs it its partitions: it may have stopped.
- `poll` hands out no record once the member knows that it no longer owns their partitions. After a standstill of
  the process for longer than the session it asks first.
- What is committed never goes back: calls of `commit` take turns. A commit carries the leader epoch of the last record,
  so that the next owner notices when the log has other records by then (KIP-320).
- What the coordinator says of a membership that is over does not end the present one.
- A partition is read as soon as its committed offset is known. One that an open transaction may still move makes only
  its own partition wait.

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
from klamm.client.consumer import Consumer, ConsumerRecord
from klamm.client.group_member import (
    MAX_BACKOFF_S,
    MIN_BACKOFF_S,
    FormerMembership,
    GroupMember,
    Membership,
    MustRejoin,
)
from klamm.client.offsets import OffsetAndMetadata
from klamm.client.options import ConsumerOptions, GroupOptions
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition

# How often the group's leader looks whether the group's topics have new partitions (metadata.max.age.ms). While a topic
# is missing it looks with each heartbeat.
METADATA_MAX_AGE_S = 300.0
# How long a member that closes waits for `on_revoked`, and then for the coordinator.
CLOSE_TIMEOUT_S = 5.0

OnChange = Callable[[list[TopicPartition]], Awaitable[None]]


class CommitFailed(KafkaError):
    """Nothing was committed: the group has given the partitions to others, which read the records again."""


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
        # The assigned partitions, and as what this member owns them, or has owned the last ones.
        self._owned: list[TopicPartition] = []
        self._owned_as = replace(self._member.membership)
        self._must_join = True
        self._joining: asyncio.Task[tuple[Membership, list[TopicPartition]]] | None = None
        # Partitions whose committed offset is being looked up, and where each is read that has none.
        self._awaited: dict[TopicPartition, int | None] = {}
        self._looking_up: asyncio.Task[None] | None = None
        self._look_up_error: BaseException | None = None
        self._handed_out_s = -math.inf
        # The caller: whether it is in `poll`, and when it was there last.
        self._is_polling = False
        self._polled_s = self._loop.time()
        # This process: when it was seen to be running, and when it was found to have stood still for a session; and the
        # beginning of the last heartbeat that was answered.
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
        """As what this member owns its partitions, for a transaction that commits their offsets (Java's
        `groupMetadata`).

        It is that of the last assignment until the next one, also when the coordinator has removed the member.
        """
        return replace(self._owned_as)

    async def poll(self, timeout_ms: int, max_records: int | None = None) -> list[ConsumerRecord]:
        """As `Consumer.poll`. Joins the group when that is due, within the same time.

        One call at a time; raises RuntimeError for a second one.
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
        """The next offset of each partition that `poll` will hand out; none of a partition that is to be looked up."""
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
        """Reads the partitions again from the offsets that the group has committed, after an aborted transaction.

        A partition without a committed offset is read from where this member began.
        """
        starts = {each: self._consumer.start(each) for each in self._consumer.assignment}
        starts |= self._awaited
        self._give_up()
        self._awaited = {partition: starts.get(partition) for partition in self._owned}

    async def close(self) -> None:
        """Leaves the group and closes the connections; a static member stays in it until its session expires.

        A poll that waits raises RuntimeError, and so does each later one.
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
        """A step of `close`, given up after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await step

    # -- joining --------------------------------------------------------------------------------------------------

    async def _enter(self, deadline: float) -> bool:
        """Whether this member owns its partitions, as far as it knows. Until the deadline it joins, and asks when it is
        in doubt."""
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
            return  # The generation was over before the caller has polled.
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
        """Reads nothing. What was handed out and is not committed will be handed out again."""
        if self._looking_up is not None:
            self._looking_up.cancel()
            self._looking_up = None
        self._awaited = {}
        self._owned_as = replace(self._owned_as, interrupted_s=self._handed_out_s)
        self._consumer.assign({})

    def _rejoin(self) -> None:
        """The next poll joins the group again, or the one that waits for records."""
        self._must_join = True
        self._consumer.interrupt()

    async def _is_done(self, task: "asyncio.Task[Any]", deadline: float) -> bool:
        """Whether the task is done by the deadline; it continues after that."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(asyncio.shield(task), return_exceptions=True)
        return task.done()

    # -- positions ------------------------------------------------------------------------------------------------

    def _look_up(self) -> None:
        """Looks up the positions of partitions that have none, in the background. Raises an error of that work."""
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
            # A pending join finds out by itself.
            if self._joining is None or self._joining.done():
                self._rejoin()
        else:
            self._confirmed_s = began_s

    async def _count_partitions(self) -> None:
        """Makes the group's leader join again when the group's topics have other partitions than it has assigned."""
        counts = self._member.assigned_by
        if counts is not None and await self._member.partition_counts(list(counts)) != counts:
            self._rejoin()

    def _notice_standstill(self) -> None:
        """A process that stood still for a session may have lost its partitions, however many records it holds."""
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
