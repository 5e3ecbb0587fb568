"""Members of groups that are paused past their session, and a thousand that come at once. All are processes, or speak
to one."""

import asyncio
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from klamm.processes.helper import Helper
from klamm.protocol.error_codes import ErrorCode
from klamm.testing.cluster import Cluster
from support import group_wire as wire
from support.committed_offsets import check_no_commit_goes_back, logged_commits
from support.one_broker import Client
from support.processes import ManagedProcess

TIMEOUT_S = 120
SESSION_TIMEOUT_MS = 6_000
OFFSETS_PARTITIONS = 3
PROPERTIES = {"offsets.topic.num.partitions": OFFSETS_PARTITIONS}
MEMBERS = 1000

# Commits after each record, and tells what it was given and what became of each commit.
CONSUMER = f"""
import json, sys
from confluent_kafka import Consumer, KafkaException

def tell(**event):
    print(json.dumps(event), flush=True)

consumer = Consumer({{
    "bootstrap.servers": sys.argv[1], "group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "earliest",
    "session.timeout.ms": {SESSION_TIMEOUT_MS}, "heartbeat.interval.ms": 500,
}})
consumer.subscribe(["t"], on_assign=lambda _, partitions: tell(assigned=[one.partition for one in partitions]))
while True:
    message = consumer.poll(0.1)
    if message is None or message.error():
        continue
    try:
        consumer.commit(message, asynchronous=False)
        tell(committed=message.partition(), offset=message.offset() + 1)
    except KafkaException as error:
        tell(refused=message.partition(), error=error.args[0].name())
"""


class ConsumerProcess(ManagedProcess):
    def __init__(self, name: str, bootstrap: str, directory: Path) -> None:
        super().__init__(name, [sys.executable, "-c", CONSUMER, bootstrap], directory / f"{name}.log")

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What it has told of one kind, oldest first."""
        told = (json.loads(line) for line in self.output().splitlines() if line.startswith("{"))
        return [event for event in told if kind in event]

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.signal_group(signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal_group(signal.SIGCONT)


def until(is_so: Callable[[], object], *processes: ManagedProcess) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, "\n\n".join(process.tail() for process in processes)
        time.sleep(0.05)


@contextmanager
def records(cluster: Cluster, topic: str) -> Iterator[None]:
    """A new topic of two partitions, to which records come all the time."""
    cluster.create_topic(topic, 2)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    is_over = threading.Event()

    def produce() -> None:
        while not is_over.wait(0.01):
            for partition in range(2):
                producer.produce(topic, b"record", partition=partition)
            producer.poll(0)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_member_that_is_paused_past_its_session_commits_nothing_afterwards(
    klamm_helper: Helper, tmp_path: Path
) -> None:
    with Cluster(brokers=1, properties=PROPERTIES, helper=klamm_helper) as cluster, records(cluster, "t"):
        members = [ConsumerProcess(name, cluster.bootstrap, tmp_path) for name in ("first", "second")]
        first, second = members
        try:
            # Each has one of the two partitions, and works.
            until(lambda: all(member.events("committed") for member in members), *members)
            until(lambda: all(len(member.events("assigned")[-1]["assigned"]) == 1 for member in members), *members)
            (taken,) = first.events("assigned")[-1]["assigned"]
            with first.paused():
                until(lambda: second.events("committed")[-1]["committed"] == taken, *members)
            # It comes back as somebody new; what it still wanted to commit was refused.
            assignments = len(first.events("assigned"))
            until(lambda: len(first.events("assigned")) > assignments, *members)
            rejoined = len(first.events("committed"))
            until(lambda: len(first.events("committed")) > rejoined, *members)
            assert {event["error"] for event in first.events("refused")} <= {
                "UNKNOWN_MEMBER_ID",
                "ILLEGAL_GENERATION",
                "REBALANCE_IN_PROGRESS",
            }
        finally:
            for member in members:
                member.kill()
        logged = logged_commits(cluster.bootstrap, "g", OFFSETS_PARTITIONS)
        check_no_commit_goes_back(logged)
        # Killed, and nobody left the group: who comes now goes on where they were.
        last = {number: offsets[-1] for (_, number), offsets in logged.items()}
        third = ConsumerProcess("third", cluster.bootstrap, tmp_path)
        try:
            until(lambda: {event["committed"] for event in third.events("committed")} == {0, 1}, third)
            begins = {event["committed"]: event["offset"] for event in reversed(third.events("committed"))}
            assert begins == {number: offset + 1 for number, offset in last.items()}
        finally:
            third.kill()


class Member:
    """Joins until it has an assignment, again whenever the group rebalances."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._id = ""
        self.joined: Any = None
        self.assignment = b""

    async def become_stable(self) -> None:
        while True:
            joined = await wire.join(
                self._client, "g", self._id, session_timeout_ms=60_000, rebalance_timeout_ms=60_000
            )
            self._id, self.joined = joined.member_id, joined
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                continue
            assert joined.error_code == ErrorCode.NONE, joined
            assigned = {one.member_id: b"%d" % place for place, one in enumerate(joined.members)}
            synced = await wire.sync(self._client, joined, assigned)
            if synced.error_code == ErrorCode.NONE:
                self.assignment = synced.assignment
                return
            assert synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS

    async def is_in_place(self) -> bool:
        return await wire.heartbeat(self._client, self.joined) == ErrorCode.NONE

    async def leave(self) -> None:
        left = await wire.leave(self._client, self._id)
        assert left.members[0].error_code == ErrorCode.NONE


async def test_a_thousand_members_come_at_once() -> None:
    """Nobody waits for others to come (group.initial.rebalance.delay.ms is 0): so they rebalance while they come."""

    async def play(host: str, port: int) -> None:
        async def connect() -> Client:
            return Client(*await asyncio.open_connection(host, port))

        clients = [await connect() for _ in range(MEMBERS)]
        members = [Member(client) for client in clients]
        assert (await wire.find_coordinator(clients[0])).error_code == ErrorCode.NONE
        await wire.committed(clients[0])
        began = time.monotonic()
        await asyncio.gather(*(member.become_stable() for member in members))
        while late := [member for member in members if not await member.is_in_place()]:
            await asyncio.gather(*(member.become_stable() for member in late))
        print(f"{MEMBERS} members in generation {members[0].joined.generation_id}: {time.monotonic() - began:.2f} s")
        assert len({member.joined.generation_id for member in members}) == 1
        assert sorted(int(member.assignment) for member in members) == list(range(MEMBERS))
        await asyncio.gather(*(member.leave() for member in members))
        assert await wire.state(clients[0]) == "Empty"
        for client in clients:
            await client.close()

    with Cluster(brokers=1, properties=PROPERTIES) as cluster:
        broker = cluster.broker(0)
        await play(broker.host, broker.port)
