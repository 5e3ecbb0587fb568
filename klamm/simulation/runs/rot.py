"""Bit rot: a bit of one replica's log changes. The log stays damaged until an operator removes it.

What must stay true: other replicas have the records. So only one log is rotten at a time, and the cluster is whole when
it begins.
"""

import asyncio
import contextlib
import random
from collections.abc import Sequence

from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.record_batch import CRC_COVERS_FROM, iterate_batches
from klamm.protocol.vocabulary import INTERNAL_TOPICS, PartitionKey
from klamm.simulation.cluster.cluster import SimulatedBroker
from klamm.simulation.machine.disk import SimulatedFileSystem
from klamm.simulation.machine.process import Process
from klamm.simulation.runs.ground import PATIENCE_S, Ground
from klamm.simulation.workloads.clients import ROTTING_TOPICS, TOPIC
from klamm.simulation.workloads.group_workload import GroupMember
from klamm.storage.segments.segment import LOG_SUFFIX

# The share of coordinators' logs among the logs that rot: a coordinator loads its state only from its own log.
SHARE_OF_COORDINATORS = 0.4
# How long a broker works with a rotten log. Shorter than the lag that drops a follower out of the ISR (5 s): a leader
# that is alone in the ISR would acknowledge records that are lost when its rotten log is removed.
ROTTEN_S = (0.0, 0.5, 3.0)
# After this time the followers have all records that were committed before.
SECONDS_OF_SILENCE = 0.5


class Rot:
    """Lets logs of one cluster rot, and silences the members of its group for it."""

    def __init__(self, ground: Ground, members: Sequence[GroupMember]) -> None:
        self._ground = ground
        self._cluster = ground.cluster
        self._administrator = ground.administrator
        self._members = members

    @property
    def _random(self) -> random.Random:
        return self._ground.random

    async def rot_replica(self) -> None:
        """One bit of one replica's log changes, in a cluster that is whole. The broker works with the log, also after a
        restart. Then an operator stops the broker and removes the log, and the broker copies it again from the leader.

        Runs while no other fault is active.
        """
        if not await self._ground.is_whole():
            return
        # The topic is chosen first, because some topics have many more segments than others.
        topics = [each for each in ROTTING_TOPICS if each in self._cluster.state.topics()]
        internal = [each for each in topics if each in INTERNAL_TOPICS]
        topic = self._random.choice(internal if internal and self._random.random() < SHARE_OF_COORDINATORS else topics)
        if topic in INTERNAL_TOPICS:
            rotten = await self._rot_coordinators_log(topic)
        else:
            rotten = await self._rot_log(topic)
        if rotten is None:
            return
        key, broker = rotten
        if self._random.random() < 0.5:
            await self._stop_or_kill(broker)
            broker.start()
            if self._random.random() < 0.5:
                await self._ground.passed(lambda: broker.broker_id in self._cluster.isr(*key))
                await self._lead(broker, key)
            await self._ground.outage(ROTTEN_S)
        await self._stop_or_kill(broker)
        if await self._until_out_of_isr(broker, key):
            operator = _operator(broker)
            for directory in sorted({path.rpartition("/")[0] for path in _log_files(broker, key)}):
                self._ground.world.trace.add("faults", "removed", broker.node.name, directory)
                operator.remove_tree(directory)
        broker.has_rotten_log = False
        broker.start()

    async def _until_out_of_isr(self, broker: SimulatedBroker, key: PartitionKey) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._cluster.until(lambda: broker.broker_id not in self._cluster.isr(*key))
                return True
        return False

    async def _rot_log(self, topic: str) -> tuple[PartitionKey, SimulatedBroker] | None:
        """Rots a log of a topic that producers write. If its broker leads, another broker may be told to copy that
        log."""
        broker = self._ground.broker()
        keys = [(topic, number) for number in self._cluster.state.replicas(topic)]
        files = {path: key for key in keys for path, size_bytes in _log_files(broker, key).items() if size_bytes}
        if not files:
            return None
        path = self._random.choice(list(files))
        key = files[path]
        free = [each for each in self._cluster.brokers if each not in self._ground.replicas(key)]
        is_leader = self._cluster.leader(*key) == broker.broker_id
        is_copied = bool(free) and "." not in path.split("/")[-2] and is_leader
        if is_copied or topic != TOPIC:
            position = self._random.choice(self._random.choice(_checked_bytes(broker, path)))
        else:
            position = self._random.randrange(broker.node.disk.sizes()[path])
        self._rot(broker, path, position)
        if is_copied:
            # A broker that replaces a follower fetches the whole log. The leader must not pass the damaged batch on.
            followers = [each for each in self._ground.replicas(key) if each != broker.broker_id]
            wanted = [broker.broker_id, *followers[1:], self._random.choice(free)]
            self._administrator.begin(lambda: self._administrator.reassign(key, wanted))
        elif not is_leader and self._random.random() < 0.5:
            await self._lead(broker, key)
        await self._ground.outage(ROTTEN_S[-1:] if is_copied else ROTTEN_S)
        return key, broker

    async def _rot_coordinators_log(self, topic: str) -> tuple[PartitionKey, SimulatedBroker] | None:
        """Rots a log of a broker that then becomes the coordinator and loads the log. Mostly no member of a group
        commits meanwhile, so that the newest records in the log are the ones that count."""
        sizes = {}
        for number in self._cluster.state.replicas(topic):
            for follower in self._ground.replicas((topic, number)):
                if follower != self._cluster.leader(topic, number):
                    sizes[number, follower] = sum(_log_files(self._cluster.brokers[follower], (topic, number)).values())
        if not any(sizes.values()):
            return None
        # Most records are in few partitions.
        ((number, follower),) = self._random.choices(list(sizes), list(sizes.values()))
        key, broker = (topic, number), self._cluster.brokers[follower]
        is_newest = self._random.random() < 0.8
        silenced = [each for each in self._members if each.node.process.alive] if is_newest else []
        for member in silenced:
            member.kill()
        if silenced:
            await asyncio.sleep(SECONDS_OF_SILENCE)
        files = [path for path, size_bytes in _log_files(broker, key).items() if size_bytes]
        path = max(files, key=lambda each: each.rpartition("/")[2]) if is_newest else self._random.choice(files)
        checked = _checked_bytes(broker, path)
        self._rot(broker, path, self._random.choice(checked[-1] if is_newest else self._random.choice(checked)))
        await self._lead(broker, key)
        for member in silenced:
            member.start()
        await self._ground.outage(ROTTEN_S[1:])
        return key, broker

    def _rot(self, broker: SimulatedBroker, path: str, position: int) -> None:
        broker.node.disk.rot(path, position, self._random.randrange(8))
        broker.has_rotten_log = True

    async def _stop_or_kill(self, broker: SimulatedBroker) -> None:
        if self._random.random() < 0.5:
            await broker.stop()
        else:
            broker.kill()

    async def _lead(self, broker: SimulatedBroker, key: PartitionKey) -> None:
        """Makes the broker the partition's leader by a preferred leader election, and waits a moment for it."""
        others = [each for each in self._ground.replicas(key) if each != broker.broker_id]
        self._administrator.begin(lambda: self._administrator.lead(key, [broker.broker_id, *others]))
        await self._ground.passed(lambda: self._cluster.leader(*key) == broker.broker_id)


def _operator(broker: SimulatedBroker) -> SimulatedFileSystem:
    """The broker's files, as a program other than the broker sees them."""
    return SimulatedFileSystem(broker.node.disk, Process("operator", broker.node.name))


def _log_files(broker: SimulatedBroker, key: PartitionKey) -> dict[str, int]:
    """The segments of a partition on a broker and their sizes, including directories that are to be deleted."""
    return {
        path: size_bytes
        for path, size_bytes in broker.node.disk.sizes().items()
        if path.endswith(LOG_SUFFIX) and path.split("/")[-2].partition(".")[0] == f"{key[0]}-{key[1]}"
    }


def _checked_bytes(broker: SimulatedBroker, path: str) -> list[range]:
    """The bytes of each batch that its checksum covers. The first byte for a file without batches."""
    covered = []
    with contextlib.suppress(KafkaError):  # A preallocated file ends with zeros.
        for position, header in iterate_batches(_operator(broker).read_file(path), allow_partial_end=True):
            covered.append(range(position + CRC_COVERS_FROM, position + header.size_bytes))
    return covered or [range(1)]
