"""A consumer whose partitions its group assigns to it.

What must stay true:
- A commit holds positions only up to which `poll` has handed records out, so what the caller has not seen yet is never
  committed. Between two calls of `poll` the caller processes what it got; then it commits.
- Before the partitions go to others, `on_revoked` is called and may commit. A member that was late, or cut off, has
  lost them without being asked: then `on_lost` is called, a commit is refused, and their new owner reads records again.
- A caller that does not poll for `max_poll_interval_ms` loses its partitions: it may have stopped.

Source: org.apache.kafka.clients.consumer.KafkaConsumer; internals.ConsumerCoordinator (eager rebalances).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from klamm.client.cluster import ClusterClient
from klamm.client.consumer import Consumer, ConsumerRecord
from klamm.client.group_member import NO_GENERATION, GroupMember, Membership, MustRejoin
from klamm.client.options import ConsumerOptions, GroupOptions
from klamm.protocol.errors import KafkaError
from klamm.protocol.vocabulary import TopicPartition
from klamm.tasks import start_task

# How often the group's leader looks whether its topics have new partitions (metadata.max.age.ms).
METADATA_MAX_AGE_S = 300.0
# How long a member that closes waits for the coordinator.
CLOSE_TIMEOUT_S = 5.0

OnChange = Callable[[list[TopicPartition]], Awaitable[None]]


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
        self._member = GroupMember(client, group)
        self._consumer = Consumer(client, options)
        self._topics = list(topics)
        self._on_revoked = on_revoked
        self._on_lost = on_lost
        self._on_assigned = on_assigned
        self._joining: asyncio.Task[dict[TopicPartition, int | None]] | None = None
        self._must_join = True
        self._is_polling = False
        self._polled_at_s = asyncio.get_running_loop().time()
        self._failure: BaseException | None = None
        self._heartbeats = start_task(self._send_heartbeats(), self._fail)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this member owns."""
        return self._consumer.assignment

    @property
    def member_id(self) -> str:
        return self._member.membership.member_id

    @property
    def generation_id(self) -> int:
        return self._member.membership.generation_id

    @property
    def membership(self) -> Membership:
        """As what this member commits offsets, for a transaction that does so (Java's `groupMetadata`)."""
        return replace(self._member.membership)

    async def poll(self, timeout_ms: int, max_records: int | None = None) -> list[ConsumerRecord]:
        """As `Consumer.poll`. Joins the group when that is due, within the same time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        self._is_polling = True
        try:
            while True:
                if self._failure is not None:
                    raise self._failure
                if (self._must_join or self._joining is not None) and not await self._join(deadline):
                    return []
                records = await self._consumer.poll_until(deadline, max_records)
                if records or loop.time() >= deadline:
                    return records
        finally:
            self._is_polling = False
            self._polled_at_s = loop.time()

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that `poll` will hand out."""
        return self._consumer.positions()

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commits the positions, or these offsets.

        Raises KafkaError when the group has given the partitions to others, or the commit is not allowed.
        """
        try:
            await self._member.commit(self.positions() if offsets is None else offsets)
        except MustRejoin as error:
            self._rejoin()
            raise KafkaError(
                error.code, "nothing was committed, since the group has rebalanced: the records will be read again"
            ) from None

    async def close(self) -> None:
        """Leaves the group and closes the connections; a static member stays in it until its session expires."""
        self._heartbeats.cancel()
        tasks: list[asyncio.Task[object]] = [self._heartbeats]
        if self._joining is not None:
            self._joining.cancel()
            tasks.append(self._joining)
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._revoke()
                await self._member.leave()
        except TimeoutError:
            pass
        finally:
            await self._consumer.close()
            await self._member.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _join(self, deadline: float) -> bool:
        """Goes on joining until the deadline; whether the member is in the group's current generation."""
        if self._joining is None:
            await self._revoke()
            self._must_join = False
            self._joining = asyncio.create_task(self._join_and_look_up())
        try:
            async with asyncio.timeout_at(deadline):
                positions = await asyncio.shield(self._joining)
        except TimeoutError:
            return False
        except MustRejoin:
            self._joining, self._must_join = None, True
            return False
        except BaseException:
            if self._joining.done():
                self._joining, self._must_join = None, True
            raise
        self._joining = None
        self._consumer.assign(positions)
        await self._on_assigned(list(positions))
        return True

    async def _join_and_look_up(self) -> dict[TopicPartition, int | None]:
        """The owned partitions, and where the group has got to in each."""
        owned = await self._member.join(self._topics)
        committed = await self._member.committed(owned)
        return {partition: committed.get(partition) for partition in owned}

    async def _revoke(self) -> None:
        revoked = self._consumer.assignment
        if revoked:
            is_lost = self.generation_id == NO_GENERATION
            try:
                await (self._on_lost if is_lost else self._on_revoked)(revoked)
            finally:
                self._consumer.assign({})

    async def _send_heartbeats(self) -> None:
        loop = asyncio.get_running_loop()
        options = self._member.options
        looked_at_s = loop.time()
        while True:
            await asyncio.sleep(options.heartbeat_interval_ms / 1000)
            if self._must_join or self._joining is not None or not self.member_id:
                continue
            if not self._is_polling and loop.time() - self._polled_at_s > options.max_poll_interval_ms / 1000:
                await self._member.leave()
                self._rejoin()
                continue
            try:
                await self._member.heartbeat()
                if loop.time() - looked_at_s >= METADATA_MAX_AGE_S:
                    looked_at_s = loop.time()
                    counts = self._member.assigned_by
                    if counts is not None and await self._member.partition_counts(self._topics) != counts:
                        self._rejoin()
            except MustRejoin:
                self._rejoin()

    def _rejoin(self) -> None:
        """The next poll joins the group again, or the one that waits for records."""
        self._must_join = True
        self._consumer.interrupt()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._consumer.interrupt()
