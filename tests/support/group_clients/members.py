"""Members of consumer groups, hosted by this program: `python members.py librdkafka|kafka-python|aiokafka|klamm`.

Each line of the standard input is a command, `MEMBER VERB ARGUMENTS`:

    m open TOPICS KEY=VALUE ...   a new member; TOPICS are names with commas between, or a pattern that begins with ^;
                                  keys are Kafka's names of consumer properties (commit.on.revoke is this program's own)
    m hold, m go-on               stops polling, and goes on; heartbeats are the client's own affair
    m commit-sync, m commit-async
    m close                       leaves the group, and ends

Each line of the output that begins with @ is what happened to a member: `@ MEMBER EVENT ARGUMENTS`. GroupMembers.java
does the same with Kafka's own client.
"""

import asyncio
import queue
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

POLL_S = 0.05
JOIN_MS = 30_000
COMMIT_ON_REVOKE = "commit.on.revoke"

_out = threading.Lock()


def tell(name: str, event: str, *arguments: object) -> None:
    with _out:
        print("@", name, event, *arguments, flush=True)


def listed(partitions: Iterable[Any]) -> str:
    return ",".join(f"{topic}:{number}" for topic, number in sorted((p.topic, p.partition) for p in partitions)) or "-"


class Member(ABC):
    """One consumer, in a thread of its own."""

    def __init__(self, name: str, topics: str, config: dict[str, str]) -> None:
        self.name, self.topics = name, topics
        self.commits_on_revoke = config.pop(COMMIT_ON_REVOKE, "false") == "true"
        self.config = config
        self.commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.open()
            self._serve()
            self.close()
            tell(self.name, "closed")
        except Exception as error:
            traceback.print_exc()
            tell(self.name, "failed", repr(error).replace("\n", " "))

    def _serve(self) -> None:
        polls = True
        while True:
            if not polls or not self.commands.empty():
                match self.commands.get():
                    case "close":
                        return
                    case "hold":
                        polls = False
                        tell(self.name, "holds")
                    case "go-on":
                        polls = True
                    case "commit-sync":
                        self.say_commit()
                    case "commit-async":
                        self.commit_async()
            if polls:
                for topic, partition, offset, value in self.poll():
                    tell(self.name, "record", topic, partition, offset, value.decode())

    def say_commit(self) -> None:
        """Commits what has been read, and says how that went."""
        try:
            self.commit()
        except Exception as error:
            tell(self.name, "committed-sync", repr(error).replace("\n", " "))
        else:
            tell(self.name, "committed-sync", "ok")

    def say_asynchronous(self, error: object) -> None:
        tell(self.name, "committed-async", "ok" if error is None else repr(error).replace("\n", " "))

    def assigned(self, partitions: Iterable[Any]) -> None:
        tell(self.name, "assigned", listed(partitions))

    def revoked(self, partitions: Iterable[Any]) -> None:
        tell(self.name, "revoked", listed(partitions))

    def lost(self, partitions: Iterable[Any]) -> None:
        tell(self.name, "lost", listed(partitions))

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def poll(self) -> list[tuple[str, int, int, bytes]]: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def commit_async(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Librdkafka(Member):
    """confluent-kafka."""

    def open(self) -> None:
        import confluent_kafka

        config: dict[str, Any] = dict(self.config)
        if age := config.get("metadata.max.age.ms"):
            config["topic.metadata.refresh.interval.ms"] = age
        self.consumer = confluent_kafka.Consumer({**config, "on_commit": lambda error, _: self.say_asynchronous(error)})
        self.consumer.subscribe(
            self.topics.split(","),
            on_assign=lambda _, partitions: self.assigned(partitions),
            on_revoke=lambda _, partitions: self._on_revoke(partitions),
            on_lost=lambda _, partitions: self.lost(partitions),
        )

    def _on_revoke(self, partitions: Iterable[Any]) -> None:
        if self.commits_on_revoke:
            self.say_commit()
        self.revoked(partitions)

    def poll(self) -> list[tuple[str, int, int, bytes]]:
        message = self.consumer.poll(POLL_S)
        if message is None:
            return []
        if message.error() is not None:
            print(self.name, message.error(), flush=True)
            return []
        topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
        assert topic is not None and partition is not None and offset is not None and value is not None
        return [(topic, partition, offset, value)]

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def commit_async(self) -> None:
        self.consumer.commit(asynchronous=True)

    def close(self) -> None:
        self.consumer.close()


class KafkaPython(Member):
    """kafka-python. Its callbacks run in its own thread, where a commit cannot be waited for."""

    def open(self) -> None:
        import kafka
        from kafka.consumer.subscription_state import ConsumerRebalanceListener
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        member = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # a library without annotations
            def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                member.assigned(assigned)

            def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                member.revoked(revoked)

            def on_partitions_lost(self, lost: Iterable[Any]) -> None:
                member.lost(lost)

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
            "cooperative-sticky": CooperativeStickyAssignor,
        }
        self.consumer = kafka.KafkaConsumer(**python_names(self.config, assignors))
        # A poll whose time is over while the group rebalances forgets what it was about to be assigned: whatever a poll
        # finds to do for the group gets its time.
        coordinator = self.consumer._coordinator
        poll = coordinator.poll
        coordinator.poll = lambda timeout_ms=None: poll(timeout_ms=JOIN_MS)
        if self.topics.startswith("^"):
            self.consumer.subscribe(pattern=self.topics, listener=Listener())
        else:
            self.consumer.subscribe(self.topics.split(","), listener=Listener())

    def poll(self) -> list[tuple[str, int, int, bytes]]:
        polled = self.consumer.poll(0)
        if not polled:
            time.sleep(POLL_S / 2)
        return [(r.topic, r.partition, r.offset, r.value) for records in polled.values() for r in records]

    def commit(self) -> None:
        self.consumer.commit()

    def commit_async(self) -> None:
        def committed(_: object, response: object) -> None:
            self.say_asynchronous(response if isinstance(response, Exception) else None)

        self.consumer.commit_async(callback=committed)

    def close(self) -> None:
        self.consumer.close()


class AioKafka(Member):
    """aiokafka. Its consumers run in one event loop, which the members' threads wait for."""

    loop: asyncio.AbstractEventLoop | None = None

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        assert AioKafka.loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, AioKafka.loop).result()

    def open(self) -> None:
        self._wait(self._open())

    async def _open(self) -> None:
        import aiokafka
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # a library without annotations
            async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
                if member.commits_on_revoke:
                    await member._say_commit()
                member.revoked(revoked)

            async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
                member.assigned(assigned)

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            # Its state is the class's, so members in one process need one each.
            "sticky": type("Sticky", (StickyPartitionAssignor,), {}),
        }
        self.consumer = aiokafka.AIOKafkaConsumer(**python_names(self.config, assignors))
        if self.topics.startswith("^"):
            self.consumer.subscribe(pattern=self.topics, listener=Listener())
        else:
            self.consumer.subscribe(self.topics.split(","), listener=Listener())
        await self.consumer.start()

    async def _say_commit(self) -> None:
        try:
            await self.consumer.commit()
        except Exception as error:
            tell(self.name, "committed-sync", repr(error).replace("\n", " "))
        else:
            tell(self.name, "committed-sync", "ok")

    def poll(self) -> list[tuple[str, int, int, bytes]]:
        polled = self._wait(self.consumer.getmany(timeout_ms=int(POLL_S * 1000)))
        return [(r.topic, r.partition, r.offset, r.value) for records in polled.values() for r in records]

    def commit(self) -> None:
        self._wait(self.consumer.commit())

    def commit_async(self) -> None:
        raise AssertionError("aiokafka waits for every commit: the table of clients says that it has no other")

    def close(self) -> None:
        self._wait(self.consumer.stop())


class Klamm(Member):
    """klamm's own. It commits when it is told to, so "automatically" is what its application does here."""

    def _call(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        from klamm.client import threads

        return threads.call(self.options, work)

    def open(self) -> None:
        from klamm.client.options import ClientOptions
        from klamm.client.properties import parse_addresses

        config = self.config
        self.options = ClientOptions(
            parse_addresses("bootstrap.servers", config["bootstrap.servers"]), client_id=config["client.id"]
        )
        self.commits_lazily = config["enable.auto.commit"] == "true"
        self._call(self._open)

    async def _open(self, client: Any) -> None:
        from klamm.client.consumer.group_consumer import GroupConsumer
        from klamm.client.options import ConsumerOptions, GroupOptions, OffsetReset

        async def on_revoked(partitions: list[Any]) -> None:
            if self.commits_lazily:
                await self.consumer.commit()
            if self.commits_on_revoke:
                await self._say_commit()
            self.revoked(partitions)

        async def on_assigned(partitions: list[Any]) -> None:
            self.assigned(partitions)

        async def on_lost(partitions: list[Any]) -> None:
            self.lost(partitions)

        group = GroupOptions(
            self.config["group.id"],
            session_timeout_ms=int(self.config["session.timeout.ms"]),
            heartbeat_interval_ms=int(self.config["heartbeat.interval.ms"]),
            assignors=tuple(self.config["partition.assignment.strategy"].split(",")),
        )
        reset = OffsetReset(self.config["auto.offset.reset"])
        self.consumer = GroupConsumer(
            client,
            group,
            self.topics.split(","),
            ConsumerOptions(auto_offset_reset=reset),
            on_revoked=on_revoked,
            on_lost=on_lost,
            on_assigned=on_assigned,
        )

    async def _say_commit(self) -> None:
        try:
            await self.consumer.commit()
        except Exception as error:
            tell(self.name, "committed-sync", repr(error).replace("\n", " "))
        else:
            tell(self.name, "committed-sync", "ok")

    def poll(self) -> list[tuple[str, int, int, bytes]]:
        records = self._call(lambda _: self.consumer.poll(int(POLL_S * 1000)))
        return [(record.topic, record.partition, record.offset, record.value) for record in records]

    def commit(self) -> None:
        self._call(lambda _: self.consumer.commit())

    def commit_async(self) -> None:
        raise AssertionError("klamm's member waits for every commit")

    def close(self) -> None:
        self._call(lambda _: self.consumer.close())


def python_names(config: dict[str, str], assignors: dict[str, Any]) -> dict[str, Any]:
    """Kafka's properties as the keyword arguments of the libraries that are written in Python."""
    arguments: dict[str, Any] = {}
    for key, value in config.items():
        name = key.replace(".", "_")
        if value in ("true", "false"):
            arguments[name] = value == "true"
        elif value.isdigit() and name.endswith("_ms"):
            arguments[name] = int(value)
        elif name == "partition_assignment_strategy":
            arguments[name] = [assignors[assignor] for assignor in value.split(",")]
        else:
            arguments[name] = value
    return arguments


CLIENTS: dict[str, Callable[[str, str, dict[str, str]], Member]] = {
    "librdkafka": Librdkafka,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
    "klamm": Klamm,
}


def main() -> None:
    client = CLIENTS[sys.argv[1]]
    if client is AioKafka:
        AioKafka.loop = asyncio.new_event_loop()
        threading.Thread(target=AioKafka.loop.run_forever, daemon=True).start()
    members: dict[str, Member] = {}
    for line in sys.stdin:
        name, verb, *arguments = line.split()
        if verb == "open":
            topics, *settings = arguments
            members[name] = client(name, topics, dict(setting.split("=", 1) for setting in settings))
        else:
            members[name].commands.put(verb)


if __name__ == "__main__":
    main()
