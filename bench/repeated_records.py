"""Partitions move and brokers die under idempotent librdkafka producers: how often does a record stand twice?

    repeated_records.py                       30 rounds on five klamm brokers
    repeated_records.py --cluster kafka       the same on five brokers of Apache Kafka 2.8.2
    repeated_records.py --schedule elections  leaders change all the time, instead of moves

In each round partitions move to other brokers, and a broker is killed with -9 during each move. A producer
that sends a batch to a new leader before the former leader has answered for the batch before it gets
OUT_OF_ORDER_SEQUENCE_NUMBER or UNKNOWN_PRODUCER_ID. librdkafka then begins a new producer epoch for all its partitions
and sends again what any leader has stored without answering. The run counts those epochs and those records. Exit code 1
when an acknowledged record is lost, or an epoch has a record twice or out of order.
"""

import argparse
import contextlib
import itertools
import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import sides  # noqa: F401  it makes tests/ importable
from rich.console import Console

from klamm.cli.shared.options import ClusterOptions
from klamm.client.admin.elections import elect_leaders
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.client.admin.topics import NewTopic, create_topics
from klamm.client.cluster import ClusterClient
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ElectionType, TopicPartition
from support.durability.brokers import ProcessBrokers, Program
from support.durability.check import check_load
from support.durability.load import IDEMPOTENT, Load
from support.durability.replicas import ProducerEpochs

T = TypeVar("T")

Fault = Literal["kill", "pause"]
Schedule = Literal["moves", "elections"]
FAULTS: dict[str, Sequence[Fault]] = {"kill": ["kill"], "pause": ["pause"], "both": ["kill", "pause"]}
BROKERS, REPLICAS, PARTITIONS = 5, 3, 8
FLIPS = 5
SHIFTS = (3, 1, 4, 0)
TIMEOUT_S = 120.0
PROPERTIES = {"min.insync.replicas": 2, "auto.leader.rebalance.enable": "false"}


@dataclass
class Round:
    acknowledged: int = 0
    new_epochs: int = 0
    repeated: int = 0
    unfinished: int = 0
    problems: tuple[str, ...] = ()

    def __add__(self, other: "Round") -> "Round":
        return Round(
            self.acknowledged + other.acknowledged,
            self.new_epochs + other.new_epochs,
            self.repeated + other.repeated,
            self.unfinished + other.unfinished,
            self.problems + other.problems,
        )

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} records acknowledged, {self.new_epochs} new producer epochs,"
            f" {self.repeated} records twice"
            f"{f', {self.unfinished} moves without an end' if self.unfinished else ''}"
            f"{''.join(f'; PROBLEM: {each}' for each in self.problems)}"
        )


class Moves:
    """Topics whose partitions have three neighbouring brokers each: `to(n)` moves all by n brokers."""

    def __init__(self, brokers: ProcessBrokers, topics: Sequence[str], down_s: float, chance: random.Random) -> None:
        self._brokers, self._topics, self._down_s, self._chance = brokers, topics, down_s, chance

    def targets(self, shift: int) -> dict[TopicPartition, list[int]]:
        return {
            TopicPartition(topic, number): [(first + number + shift + each) % BROKERS for each in range(REPLICAS)]
            for first, topic in enumerate(self._topics)
            for number in range(PARTITIONS)
        }

    def create(self, shift: int) -> None:
        assignments: dict[str, dict[int, Sequence[int]]] = {topic: {} for topic in self._topics}
        for (topic, partition), replicas in self.targets(shift).items():
            assignments[topic][partition] = replicas
        topics = [NewTopic(topic, replica_assignment=replicas) for topic, replicas in assignments.items()]
        results = self._ask(lambda client: create_topics(client, topics))
        assert not any(isinstance(each, KafkaError) for each in results.values()), results
        assert self.wait(shift), "the topics were not created"

    def _ask(self, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
        return ClusterOptions(self._brokers.bootstrap).call(work)

    def to(self, shift: int) -> None:
        self._alter(self.targets(shift))

    def _alter(self, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        left = dict(targets)
        while left:
            results = self._ask(partial(alter_partition_reassignments, replicas=left))
            left = {key: left[key] for key, error in results.items() if not _is_accepted(error)}
            assert not left or time.monotonic() < deadline, results
            time.sleep(0.2 * bool(left))

    def wait(self, shift: int) -> bool:
        """Whether the move has come to its end: Kafka 2.8.2 can leave a replica out of the ISR for good."""
        try:
            self._wait(shift)
        except AssertionError:
            return False
        return True

    def _wait(self, shift: int) -> None:
        for (topic, partition), replicas in self.targets(shift).items():
            self._brokers.until(
                lambda topic=topic, partition=partition, replicas=replicas: (
                    self._brokers.replicas(topic, partition) == replicas
                    and sorted(self._brokers.isr(topic, partition)) == sorted(replicas)
                ),
                f"{topic}-{partition} is not on {replicas}",
            )

    def run(self, schedule: Schedule, kinds: Sequence[Fault], moves: int) -> int:
        """Returns how many moves had no end."""
        for shift in itertools.islice(itertools.cycle(SHIFTS), moves):
            self.to(shift)
            if schedule == "moves":
                time.sleep(self._chance.random())
                with self._fault(kinds):
                    pass
            elif self.wait(shift):
                self._flip(shift)
                with self._fault(kinds):
                    self._flip(shift)
                self._flip(shift)
                self.to(shift)
            if not self.wait(shift):
                return 1
        return 0

    def _flip(self, shift: int) -> None:
        """Gives all partitions other leaders at once, again and again."""
        for number in range(1, FLIPS + 1):
            turn = number % REPLICAS
            self._alter({key: replicas[turn:] + replicas[:turn] for key, replicas in self.targets(shift).items()})
            self._ask(partial(elect_leaders, election_type=ElectionType.PREFERRED, partitions=self.targets(shift)))
            time.sleep(self._chance.random())

    @contextlib.contextmanager
    def _fault(self, kinds: Sequence[Fault]) -> Iterator[None]:
        """Kills or pauses a broker, until its ZooKeeper session has ended and the block has."""
        broker, kind = self._chance.choice(list(self._brokers.broker_ids)), self._chance.choice(kinds)
        if kind == "kill":
            self._brokers.kill(broker)
        else:
            self._brokers.pause(broker)
        yield
        self._brokers.wait_until_unregistered(broker)
        time.sleep(self._down_s)
        if kind == "kill":
            self._brokers.start(broker)
        else:
            self._brokers.resume(broker)


def _is_accepted(error: KafkaError | None) -> bool:
    if error is not None and error.code != ErrorCode.INVALID_REPLICA_ASSIGNMENT:
        raise error
    return error is None


def one_round(
    brokers: ProcessBrokers,
    topics: Sequence[str],
    records_per_s: int,
    down_s: float,
    schedule: Schedule,
    kinds: Sequence[Fault],
    number_of_moves: int,
    chance: random.Random,
) -> Round:
    moves = Moves(brokers, topics, down_s, chance)
    moves.create(SHIFTS[-1])
    loads = [
        Load(brokers.bootstrap, topic, PARTITIONS, records_per_s=records_per_s, writers=[IDEMPOTENT])
        for topic in topics
    ]
    time.sleep(1)
    found = Round(unfinished=moves.run(schedule, kinds, number_of_moves))
    for load in loads:
        load.finish()
        epochs = [
            ProducerEpochs.read(load.topic, each, brokers.log_directory(brokers.leader(load.topic, each)))
            for each in range(PARTITIONS)
        ]
        [report] = check_load(brokers.bootstrap, load, epochs)
        new_epochs = len({epoch for each in epochs for epoch in each.epochs}) - 1
        found += Round(
            report.acknowledged, new_epochs, report.repeated_in_a_new_epoch, problems=tuple(report.problems())
        )
    return found


@contextlib.contextmanager
def cluster(program: Program, directory: Path) -> Iterator[ProcessBrokers]:
    with ProcessBrokers.running(directory, [program] * BROKERS, PROPERTIES) as brokers:
        yield brokers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", choices=["klamm", "kafka"], default="klamm")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--producers", type=int, default=4, help="idempotent producers, each with a topic (default 4)")
    parser.add_argument("--rate", type=int, default=800, help="records a second of each producer (default 800)")
    parser.add_argument("--down", type=float, default=1.0, help="seconds until a killed broker starts (default 1)")
    parser.add_argument("--faults", choices=list(FAULTS), default="kill", help="kill -9, SIGSTOP, or one or the other")
    parser.add_argument("--schedule", choices=["moves", "elections"], default="moves")
    parser.add_argument("--moves", type=int, default=4, help="moves in a round, each with a fault (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="decides which brokers are killed, and when (default 0)")
    parser.add_argument("--json", type=Path, help="also write each round to this file")
    arguments = parser.parse_args()
    console, chance = Console(), random.Random(arguments.seed)
    logging.getLogger("kazoo").setLevel(logging.ERROR)  # that a server is not up yet is no news
    rounds: list[Round] = []
    for number in range(arguments.rounds):
        topics = [f"repeated-{number}-{each}" for each in range(arguments.producers)]
        with (
            tempfile.TemporaryDirectory(prefix="klamm-repeated-") as directory,
            cluster(arguments.cluster, Path(directory)) as brokers,
        ):
            rounds.append(
                one_round(
                    brokers,
                    topics,
                    arguments.rate,
                    arguments.down,
                    arguments.schedule,
                    FAULTS[arguments.faults],
                    arguments.moves,
                    chance,
                )
            )
        console.print(f"round {number + 1}: {rounds[-1]}", highlight=False, soft_wrap=True)
    twice = sum(each.repeated > 0 for each in rounds)
    console.print(
        f"{arguments.cluster}: {sum(rounds, Round())}; {twice} of {len(rounds)} rounds have a record twice",
        highlight=False,
        soft_wrap=True,
    )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in rounds], indent=1) + "\n")
    sys.exit(1 if any(each.problems for each in rounds) else 0)


if __name__ == "__main__":
    main()
