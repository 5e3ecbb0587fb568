"""Recordings of clusters that random things happen to, and of one failover."""

import random
from collections.abc import Sequence
from pathlib import Path

from klamm.faults.commands.network import CutLinks
from klamm.faults.entries import FaultInstalled, FaultRemoved, ServerEnded, ServerStarted
from klamm.recording.entries import Json, history_entry, znode_entry
from klamm.recording.writer import RecordingWriter
from klamm.znodes.brokers import BrokerRegistration, Endpoint, broker_path
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, Controller, encode_controller_epoch
from klamm.znodes.requests import delete_topic_path
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment, partition_state_path, topic_path
from klamm.znodes.watch import Znode

BEGAN_MS = 1_700_000_000_000


class RandomCluster:
    """Znode versions of a cluster that random things happen to, and what its state must be."""

    def __init__(self, seed: int, topics: int = 4) -> None:
        self.rng = random.Random(seed)
        self.topic_names = [f"t{number}" for number in range(topics)]
        self.zxid = 0
        self.znodes: dict[str, Znode] = {}
        self.epoch = 0

    def put(self, path: str, data: bytes) -> Json:
        self.zxid += 1
        before = self.znodes.get(path)
        czxid, version = (self.zxid, 0) if before is None else (before.czxid, before.version + 1)
        self.znodes[path] = Znode(path, data, czxid, self.zxid, version)
        return znode_entry(self.znodes[path])

    def drop(self, path: str) -> Json | None:
        return None if self.znodes.pop(path, None) is None else znode_entry(Znode(path, None))

    def step(self) -> list[Json]:
        rng = self.rng
        topic = rng.choice(self.topic_names)
        replicas: dict[int, Sequence[int]] = {
            number: tuple(rng.sample(range(6), 3)) for number in range(rng.randint(1, 5))
        }
        broker = rng.randrange(6)
        match rng.randrange(9):
            case 0:
                registration = BrokerRegistration(broker, (Endpoint("PLAINTEXT", "h", 9092 + broker),), rack="r")
                return [self.put(broker_path(broker), registration.encode())]
            case 1:
                return list(filter(None, [self.drop(broker_path(broker))]))
            case 2:
                self.epoch += 1
                epoch = self.put(CONTROLLER_EPOCH_PATH, encode_controller_epoch(self.epoch))
                return [epoch, self.put(CONTROLLER_PATH, Controller(broker, 0).encode())]
            case 3:
                return list(filter(None, [self.drop(CONTROLLER_PATH)]))
            case 4:
                known = self.znodes.get(topic_path(topic))
                if known is not None and known.data is not None:
                    old = TopicAssignment.decode(topic, known.data).partitions
                    replicas = {number: replicas.get(number, old[number]) for number in old} | replicas
                adding = {number: (5,) for number in replicas if rng.random() < 0.2}
                return [self.put(topic_path(topic), TopicAssignment(replicas, None, adding).encode())]
            case 5 if rng.random() < 0.3:
                deletion = self.put(delete_topic_path(topic), b"")
                gone = [path for path in self.znodes if path.startswith(f"{topic_path(topic)}/")]
                dropped = [self.drop(path) for path in (*gone, topic_path(topic), delete_topic_path(topic))]
                return [deletion, *filter(None, dropped)]
            case 6:
                return [history_entry(rng.choice([ServerStarted(broker), ServerEnded(broker, "killed")]))]
            case 7:
                fault = FaultInstalled(broker, CutLinks(one=(0,), other=(1,)))
                return [history_entry(rng.choice([fault, FaultRemoved(broker, 1, 1)]))]
        if (known := self.znodes.get(topic_path(topic))) is None or known.data is None:
            return []
        assigned = TopicAssignment.decode(topic, known.data).partitions
        number = rng.choice(list(assigned))
        isr = tuple(rng.sample(assigned[number], rng.randint(1, 3)))
        state = LeaderAndIsr(rng.choice([-1, *isr]), rng.randrange(100), isr, self.epoch)
        return [self.put(partition_state_path(topic, number), state.encode())]


def record(path: Path, cluster: RandomCluster, count: int) -> list[Json]:
    """Writes a recording of so many entries; returns them."""
    entries: list[Json] = []
    with open(path, "wb") as file:
        written = RecordingWriter(file, "test", "a test", BEGAN_MS)
        while len(entries) < count:
            for entry in cluster.step():
                entries.append(entry)
                written.add(entry, BEGAN_MS + len(entries) // 3)
        written.flush()
    return entries


def write_failover(path: Path) -> dict[str, int]:
    """Broker 1 leads t-0, dies, and broker 2 leads; the numbers of the entries by what happens."""
    numbers = {}
    with open(path, "wb") as file:
        written = RecordingWriter(file, "test", "a failover", BEGAN_MS)
        for what, after_ms, znode, data in (
            ("1 registers", 10, broker_path(1), registration(1)),
            ("2 registers", 20, broker_path(2), registration(2)),
            ("epoch", 30, CONTROLLER_EPOCH_PATH, encode_controller_epoch(1)),
            ("election", 30, CONTROLLER_PATH, Controller(2, BEGAN_MS).encode()),
            ("topic", 40, topic_path("t"), TopicAssignment({0: (1, 2)}).encode()),
            ("1 leads", 50, partition_state_path("t", 0), LeaderAndIsr(1, 0, (1, 2), 1).encode()),
            ("1 dies", 5_000, broker_path(1), None),
            ("no leader", 5_010, partition_state_path("t", 0), LeaderAndIsr(-1, 1, (1,), 1).encode()),
            ("2 leads", 5_020, partition_state_path("t", 0), LeaderAndIsr(2, 2, (2,), 1).encode()),
        ):
            numbers[what] = written.entries
            number = written.entries
            written.add(znode_entry(Znode(znode, data, number, number, number)), BEGAN_MS + after_ms)
        written.add(
            {
                "kind": "partition",
                "sequence": 5,
                "time_ms": BEGAN_MS + 5_021,
                "controller": 2,
                "epoch": 1,
                "topic": "t",
                "partition": 0,
                "from": "OfflinePartition",
                "to": "OnlinePartition",
                "leader": 2,
                "leader_epoch": 2,
                "isr": [2],
                "failed": False,
                "why": "",
                "event": "BrokerChange",
            },
            BEGAN_MS + 5_021,
        )
        written.flush()
    return numbers


def registration(broker_id: int) -> bytes:
    return BrokerRegistration(broker_id, (Endpoint("PLAINTEXT", "here", 9090 + broker_id),)).encode()
