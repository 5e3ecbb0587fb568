"""kill -9 for each broker in turn under load, the controller first; then everything acknowledged is looked for.

    report = run(brokers, passes=[Pass(rounds=2, wait_for_isr=True), Pass(rounds=2, wait_for_isr=False)])
    assert not report.problems()

A round kills every broker once, beginning with the controller. A pass that waits starts a killed broker when
its ZooKeeper session has ended, and lets every replica catch up before the next kill. One that does not wait starts it
whether its death has been noticed or not, and kills the next as soon as it serves again, in sync or not.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from support.durability.brokers import Brokers
from support.durability.check import WriterReport, check_load
from support.durability.load import Load
from support.durability.replicas import Comparison, ProducerEpochs, compare_when_equally_long

TOPIC = "killed"
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Pass:
    rounds: int
    wait_for_isr: bool


@dataclass
class Kill:
    """One kill; times in seconds since the load began."""

    broker_id: int
    program: str
    was_controller: bool
    led_partitions: int
    isr_sizes: list[int]
    waited_for_isr: bool
    killed_at_s: float
    started_at_s: float = 0.0
    serves_at_s: float = 0.0
    in_sync_at_s: float | None = None

    def __str__(self) -> str:
        role = "controller " if self.was_controller else ""
        in_sync = "" if self.in_sync_at_s is None else f", all in sync at {self.in_sync_at_s:.1f}"
        return (
            f"killed {role}{self.broker_id} ({self.program}) at {self.killed_at_s:.1f} s, leader of "
            f"{self.led_partitions}, ISR sizes {self.isr_sizes}; serves at {self.serves_at_s:.1f}{in_sync}"
        )


@dataclass
class Report:
    """Everything that a run found. `problems()` is empty when nothing was lost and the replicas are the same."""

    topic: str
    partitions: int
    records_per_s: int
    kills: list[Kill] = field(default_factory=list)
    writers: list[WriterReport] = field(default_factory=list)
    replicas: list[Comparison] = field(default_factory=list)
    out_of_sync: str = ""  # who was, long after the last record

    def problems(self) -> list[str]:
        found = [self.out_of_sync] if self.out_of_sync else []
        found += [problem for writer in self.writers for problem in writer.problems()]
        found += [problem for comparison in self.replicas for problem in comparison.problems()]
        if not any(kill.was_controller for kill in self.kills):
            found.append("the controller was never killed")
        return found

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "problems": self.problems()}

    def lines(self) -> list[str]:
        """For a person."""
        controllers = sum(kill.was_controller for kill in self.kills)
        found = [f"kills: {len(self.kills)}, {controllers} of them the controller"]
        for writer in self.writers:
            found.append(
                f"{writer.writer}: written {writer.written} (per second: at least {writer.written_per_s.minimum}, mean "
                f"{writer.written_per_s.mean:.0f}), acknowledged {writer.acknowledged} (at least "
                f"{writer.acknowledged_per_s.minimum}, mean {writer.acknowledged_per_s.mean:.0f}; longest silence "
                f"{writer.longest_silence_s} s), failed {writer.failed}, stored {writer.stored}, missing "
                f"{writer.missing}, misplaced {writer.misplaced}, duplicates {writer.duplicates}, out of order "
                f"{writer.out_of_order}, repeated in a new epoch {writer.repeated_in_a_new_epoch}"
            )
        size_mb = sum(comparison.size_bytes for comparison in self.replicas) / 1e6
        found.append(
            f"replicas: {len(self.replicas)} partitions, {sum(each.batches for each in self.replicas)} batches, "
            f"{size_mb:.1f} MB compared byte for byte on each of {len(self.replicas[0].ends)} brokers, "
            f"{sum(each.differing for each in self.replicas)} differ"
        )
        return found + [f"PROBLEM: {problem}" for problem in self.problems()]


class Run:
    """A topic with a replica on every broker, under load from `start` to `finish`."""

    def __init__(
        self,
        brokers: Brokers,
        *,
        partitions: int = 6,
        records_per_s: int = 2500,
        down_s: float = 2.0,
        tell: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._brokers, self._down_s, self._tell = brokers, down_s, tell
        self._partitions = partitions
        self.report = Report(TOPIC, partitions, records_per_s)
        create_topic(brokers, TOPIC, partitions)
        self._load = Load(brokers.bootstrap, TOPIC, partitions, records_per_s=records_per_s)

    def passes(self, passes: Sequence[Pass]) -> None:
        for each in passes:
            for _ in range(each.rounds):
                self.round(wait_for_isr=each.wait_for_isr)

    def round(self, *, wait_for_isr: bool) -> None:
        first = self._brokers.wait_for_controller()
        for broker_id in (first, *(other for other in self._brokers.broker_ids if other != first)):
            self.kill(broker_id, wait_for_isr=wait_for_isr)

    def kill(self, broker_id: int, *, wait_for_isr: bool) -> Kill:
        """kill -9, `down_s` of life without it, and its return."""
        brokers, partitions = self._brokers, range(self._partitions)
        kill = Kill(
            broker_id,
            brokers.program(broker_id),
            brokers.controller_id() == broker_id,
            sum(brokers.leader(TOPIC, partition) == broker_id for partition in partitions),
            [len(brokers.isr(TOPIC, partition)) for partition in partitions],
            wait_for_isr,
            self._now(),
        )
        brokers.kill(broker_id)
        self.report.kills.append(kill)
        self._tell(f"broker {broker_id} is dead")
        if wait_for_isr:
            # Else it could be back before anybody has noticed, and in sync only on paper.
            brokers.wait_until_unregistered(broker_id)
        time.sleep(self._down_s)
        kill.started_at_s = self._now()
        self._tell(f"broker {broker_id} starts")
        brokers.start(broker_id)
        kill.serves_at_s = self._now()
        if wait_for_isr:
            self._tell(f"broker {broker_id} catches up")
            brokers.wait_for_full_isr(TOPIC, self._partitions)
            kill.in_sync_at_s = self._now()
        self._tell(str(kill))
        return kill

    def finish(self) -> Report:
        """Ends the load, lets everybody catch up, and looks at everything."""
        self._tell("the last records")
        self._load.finish()
        self._tell("the last ones catch up")
        try:
            self._brokers.wait_for_full_isr(TOPIC, self._partitions, TIMEOUT_S)
        except AssertionError as error:
            self.report.out_of_sync = str(error)  # what the logs hold is to be known all the same
        self._tell("comparing the replicas")
        directories = {broker_id: self._brokers.log_directory(broker_id) for broker_id in self._brokers.broker_ids}
        self.report.replicas = compare_when_equally_long(TOPIC, self._partitions, directories)
        self._tell("reading everything")
        epochs = [ProducerEpochs.read(TOPIC, each, min(directories.items())[1]) for each in range(self._partitions)]
        self.report.writers = check_load(self._brokers.bootstrap, self._load, epochs)
        return self.report

    def _now(self) -> float:
        return round(time.monotonic() - self._load.started_at, 2)


def run(brokers: Brokers, passes: Sequence[Pass], **options: Any) -> Report:
    """The whole of it; options as of `Run`."""
    started = Run(brokers, **options)
    started.passes(passes)
    return started.finish()


def create_topic(brokers: Brokers, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, len(brokers.broker_ids))])[topic].result(TIMEOUT_S)
    brokers.wait_for_full_isr(topic, partitions)
