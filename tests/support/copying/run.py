"""Copies that go on while brokers and copiers are killed; then every copy is held against its input.

    run = CopyRun(brokers, directory, [Copy("librdkafka"), Copy("java-2.8")])
    for broker_id in brokers.broker_ids:
        run.kill(broker_id)
    report = run.finish()
    assert report.problems() == []

The input of a copy grows whenever its copiers have come to its end, so that they are at work at every kill.
"""

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME
from support.copying.check import (
    Found,
    Partition,
    Reader,
    committed_offsets,
    differences,
    end_offsets,
    read,
)
from support.copying.copiers import Copier, Copy
from support.durability.brokers import Brokers
from support.durability.replicas import compare_when_equally_long

TRANSACTION_STATE_TOPIC_NAME = "__transaction_state"
TRANSACTION_PARTITIONS = 3
# Three replicas, of which two acknowledge: one broker may be away.
PROPERTIES: dict[str, str | int] = {
    "transaction.state.log.num.partitions": TRANSACTION_PARTITIONS,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "offsets.topic.num.partitions": 3,
    "offsets.topic.replication.factor": 3,
    "min.insync.replicas": 2,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1_000,
}
TIMEOUT_S = 150.0
TICK_S = 0.1
VALUE_PADDING = b" " * 60


@dataclass
class Report:
    """What was copied, and what is wrong with it."""

    lines: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    aborted: dict[str, int] = field(default_factory=dict)

    def problems(self) -> list[str]:
        return self.found


class Worker:
    """One transactional id: its processes, one after another. A process that has copied everything is followed by the
    next, for what the input has got since."""

    def __init__(self, run: "CopyRun", copy: Copy, number: int) -> None:
        self._run, self.copy, self.number = run, copy, number
        self._earlier: list[Copier] = []
        self.expected_to_end = False
        self.done = False
        self.process = self._start()

    def _start(self) -> Copier:
        return Copier(self.copy, self.number, self._run.bootstrap, self._run.directory)

    @property
    def processed(self) -> int:
        return sum(process.processed for process in (*self._earlier, self.process))

    def look(self) -> None:
        """Follows up on a process that has ended."""
        code = self.process.code
        if code is None or self.done:
            return
        if code != 0 and not self.expected_to_end:
            what = f"{self.process.name} ended with exit code {code}:\n{self.process.tail(15)}"
            may_end = self.copy.may_give_up or self.copy.was_fenced(code)
            tell = self._run.note if may_end else self._run.problem
            tell(what)
        if self._run.is_enough(self.copy):
            self.done = True
            return
        self.replace()

    def replace(self) -> None:
        """Starts the next process."""
        self._earlier.append(self.process)
        self.expected_to_end = False
        self.process = self._start()

    def kill(self) -> None:
        """kill -9 for all its processes. Idempotent."""
        for process in (*self._earlier, self.process):
            process.kill()


class CopyRun:
    """Copies at work from the beginning to `finish`; `records` is by how much each partition of an input grows.

    `transaction_partitions` is the number of partitions of `__transaction_state`, as the brokers were told."""

    def __init__(
        self,
        brokers: Brokers,
        directory: Path,
        copies: Sequence[Copy],
        *,
        records: int = 1_000,
        transaction_partitions: int = TRANSACTION_PARTITIONS,
        tell: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.brokers, self.bootstrap, self.directory = brokers, brokers.bootstrap, directory
        self.copies, self._records, self._tell = list(copies), records, tell
        self._transaction_partitions = transaction_partitions
        self.started_at = time.monotonic()
        self.events: list[str] = []
        self._problems: list[str] = []
        self._enough = threading.Event()
        self._lock = threading.Lock()
        self._sources: dict[Partition, list[bytes]] = {}
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0})
        for copy in self.copies:
            self._create(copy)
            self._feed(copy)
        self._reader = Reader(self.bootstrap, self._outputs(), committed=True)
        self.workers: list[Worker] = []
        self._at_work = threading.Event()
        self._ended = threading.Event()
        # Processes die with the thread that has started them.
        self._thread = threading.Thread(target=self._supervise, name="copiers", daemon=True)
        self._thread.start()
        self._at_work.wait(TIMEOUT_S)
        self.wait_for_progress()

    def _supervise(self) -> None:
        try:
            for copy in self.copies:
                for number in range(copy.partitions):
                    self.workers.append(Worker(self, copy, number))
            self._at_work.set()
            while not self._ended.wait(TICK_S):
                with self._lock:
                    for worker in self.workers:
                        worker.look()
        except BaseException as error:
            self.problem(f"the copiers' supervision: {error!r}")
        finally:
            self._at_work.set()
            for worker in self.workers:
                worker.kill()

    def problem(self, what: str) -> None:
        self.note(f"PROBLEM: {what}")
        self._problems.append(what)

    def note(self, what: str) -> None:
        line = f"{time.monotonic() - self.started_at:.1f} s: {what}"
        self.events.append(line)
        self._tell(line)

    # -- the input --------------------------------------------------------------------------------------------------

    def _create(self, copy: Copy) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        factor = min(3, len(self.brokers.broker_ids))
        topics = [NewTopic(topic, copy.partitions, factor) for topic in (copy.input, copy.output)]
        for created in admin.create_topics(topics).values():
            created.result(TIMEOUT_S)
        for topic in (copy.input, copy.output):
            self.brokers.wait_for_full_isr(topic, copy.partitions)

    def _feed(self, copy: Copy) -> None:
        results: list[object] = []
        for number in range(copy.partitions):
            source = self._sources.setdefault((copy.input, number), [])
            for sequence in range(len(source), len(source) + self._records):
                value = f"{copy.input}-{number}:{sequence}".encode() + VALUE_PADDING
                self._producer.produce(
                    copy.input,
                    value,
                    partition=number,
                    on_delivery=lambda error, _: results.append(error),
                )
                source.append(value)
        assert self._producer.flush(TIMEOUT_S) == 0
        assert not any(results), results

    def is_enough(self, copy: Copy) -> bool:
        """Whether a copy that has lost a copier needs another one; makes the input longer when it is copied whole."""
        inputs = [(copy.input, number) for number in range(copy.partitions)]
        at = committed_offsets(self.bootstrap, copy.group, inputs)
        if any(at[partition] < len(self._sources[partition]) for partition in inputs):
            return False
        if self._enough.is_set():
            return True
        self._feed(copy)
        return False

    def _outputs(self) -> list[Partition]:
        return [(copy.output, number) for copy in self.copies for number in range(copy.partitions)]

    # -- what happens meanwhile ---------------------------------------------------------------------------------------

    def processed(self) -> dict[str, int]:
        """How many records each copy has committed, as its copiers say."""
        return {
            copy.output: sum(worker.processed for worker in self.workers if worker.copy is copy) for copy in self.copies
        }

    def wait_for_progress(self, transactions: int = 3) -> None:
        """Waits until every copy has committed so many more transactions."""
        before = self.processed()
        wanted = {copy.output: before[copy.output] + transactions * copy.transaction_size for copy in self.copies}
        self._until(
            lambda: all(count >= wanted[name] for name, count in self.processed().items()),
            "not every copy has committed another transaction",
        )

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            self._fail_early()
            if time.monotonic() > deadline:
                self.end()
                tails = [f"-- {worker.process.name}\n{worker.process.tail(10)}" for worker in self.workers]
                raise AssertionError("\n".join([*self.events, f"{otherwise} within {TIMEOUT_S} s", *tails]))
            time.sleep(TICK_S)

    def _fail_early(self) -> None:
        if self._problems:
            self.end()
            raise AssertionError("\n".join(self.events))

    def kill(self, broker_id: int, *, wait_for_isr: bool = True) -> None:
        """kill -9; every copy goes on without the broker; the broker comes back."""
        self._down(broker_id, self.brokers.kill, "killed", wait_for_isr=wait_for_isr)

    def bounce(self, broker_id: int) -> None:
        """An orderly end, and a start."""
        self._down(broker_id, self.brokers.stop, "stopped", wait_for_isr=True)

    def _down(self, broker_id: int, end: Callable[[int], None], how: str, *, wait_for_isr: bool) -> None:
        brokers = self.brokers
        led = self.led_by(broker_id)
        end(broker_id)
        self.note(f"{how} broker {broker_id} ({brokers.program(broker_id)}), leader of {led}")
        self.wait_for_progress()
        self.note(f"every copy went on without broker {broker_id}")
        brokers.start(broker_id)
        if wait_for_isr:
            self.wait_for_isr()
        self.wait_for_progress()
        self.note(f"every copy went on after the return of broker {broker_id}")

    def kill_all(self) -> None:
        """kill -9 for every broker, and their return."""
        for broker_id in self.brokers.broker_ids:
            self.brokers.kill(broker_id)
        self.note("killed every broker")
        for broker_id in self.brokers.broker_ids:
            self.brokers.start(broker_id)
        self.wait_for_isr()
        self.wait_for_progress()
        self.note("every copy went on after the return of every broker")

    def led_by(self, broker_id: int) -> dict[str, int]:
        """How many partitions of each topic that matters the broker leads."""
        led = {}
        for topic, partitions in self._topics().items():
            led[topic] = sum(self.brokers.leader(topic, number) == broker_id for number in range(partitions))
        return led

    def _topics(self) -> dict[str, int]:
        outputs = {copy.output: copy.partitions for copy in self.copies}
        return {**outputs, TRANSACTION_STATE_TOPIC_NAME: self._transaction_partitions, GROUP_METADATA_TOPIC_NAME: 3}

    def wait_for_isr(self) -> None:
        for topic, partitions in self._topics().items():
            self.brokers.wait_for_full_isr(topic, partitions)

    def kill_copiers(self) -> None:
        """kill -9 for every copier, in the middle of what it does; the next one with its id takes over."""
        with self._lock:
            for worker in self.workers:
                worker.expected_to_end = True
                worker.process.kill()
        self.note("killed every copier")
        self.wait_for_progress()

    def stop_copiers(self) -> None:
        """SIGTERM for every copier."""
        with self._lock:
            for worker in self.workers:
                worker.expected_to_end = True
                worker.process.stop()
        self.note("stopped every copier")
        self.wait_for_progress()

    def take_over(self) -> None:
        """Every copier stands still while another one with its id takes over; then it awakes, and must be fenced."""
        # One that has not begun would fence its successor instead.
        self._until(lambda: all(worker.process.status for worker in self.workers), "a copier did not begin")
        with self._lock:
            sleepers = [worker.process for worker in self.workers]
            for worker in self.workers:
                worker.process.signal_group(signal.SIGSTOP)
                worker.replace()
        self.note("every copier stands still")
        self.wait_for_progress()
        for process in sleepers:
            process.signal_group(signal.SIGCONT)
        for process in sleepers:
            code = process.wait(TIMEOUT_S)
            self.note(f"{process.name} awoke and ended with exit code {code}")
            if code == 0 and process.status.get("remaining", 0) > 0:
                self.problem(f"{process.name} was not fenced:\n{process.tail(15)}")
        self.wait_for_progress()

    def pause_copiers(self, seconds: float) -> int:
        """One copier after another stands still, mostly for longer than its session and shorter than its transactions
        may be open; then it goes on. Returns how many did."""
        chance, pauses, until = random.Random(), 0, time.monotonic() + seconds
        while time.monotonic() < until:
            with self._lock:
                process = chance.choice(self.workers).process
            process.signal_group(signal.SIGSTOP)
            time.sleep(chance.choice((0.5, 2.5, 4.0, 6.0)))
            process.signal_group(signal.SIGCONT)
            time.sleep(chance.uniform(0, 2))
            pauses += 1
        self.note(f"{pauses} times a copier stood still")
        self.wait_for_progress()
        return pauses

    def oversleep(self) -> None:
        """Every copier stands still until the brokers have aborted its transaction; then it awakes, or its successor
        goes on."""
        with self._lock:
            sleepers = [worker.process for worker in self.workers]
            for worker in self.workers:
                worker.expected_to_end = True
                worker.process.signal_group(signal.SIGSTOP)
        self.note("every copier stands still in its transaction")
        self._until(lambda: self._unstable() == [], "transactions were not aborted")
        self.note("the brokers have aborted the transactions")
        for process in sleepers:
            process.signal_group(signal.SIGCONT)
        self.wait_for_progress()

    def _unstable(self) -> list[str]:
        """The outputs with an open transaction."""
        stable = end_offsets(self.bootstrap, self._outputs(), committed=True)
        ends = end_offsets(self.bootstrap, self._outputs(), committed=False)
        return [
            f"{partition}: the last stable offset is {stable[partition]} and the high watermark {end}"
            for partition, end in ends.items()
            if stable[partition] != end
        ]

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> Report:
        """Lets the copiers copy what is left, and looks at everything."""
        self._enough.set()
        self._until(lambda: all(worker.done for worker in self.workers), "not every copier has ended")
        self.end()
        self.note("every copier has ended")
        report = Report(self.events, self._problems)
        report.found += self._unstable()
        self._reader.wait_for(end_offsets(self.bootstrap, self._outputs(), committed=True))
        meanwhile = self._reader.finish()
        report.found += self._reader.problems
        afterwards = read(self.bootstrap, self._outputs(), committed=True)
        everything = read(self.bootstrap, self._outputs(), committed=False)
        for copy in self.copies:
            self._check(copy, report, {"meanwhile": meanwhile, "afterwards": afterwards}, everything)
        self.wait_for_isr()
        report.found += self._compare_replicas()
        return report

    def _check(self, copy: Copy, report: Report, readings: dict[str, Found], everything: Found) -> None:
        count = aborted = 0
        for number in range(copy.partitions):
            source = self._sources[copy.input, number]
            for when, found in readings.items():
                records = found[copy.output, number]
                problems = differences(source, [record.value for record in records])
                report.found += [f"{copy.output}-{number}, read {when}: {problem}" for problem in problems]
            if readings["meanwhile"][copy.output, number] != readings["afterwards"][copy.output, number]:
                report.found.append(f"{copy.output}-{number}: the offsets read meanwhile are others afterwards")
            count += len(source)
            aborted += len(everything[copy.output, number]) - len(readings["afterwards"][copy.output, number])
        report.aborted[copy.client] = report.aborted.get(copy.client, 0) + aborted
        report.lines.append(
            f"{copy.output}: {count} records in {copy.partitions} partitions, and {aborted} of aborted transactions"
        )

    def _compare_replicas(self) -> list[str]:
        directories = {broker_id: self.brokers.log_directory(broker_id) for broker_id in self.brokers.broker_ids}
        topics = self._topics()
        del topics[GROUP_METADATA_TOPIC_NAME]
        comparisons = itertools.chain.from_iterable(
            compare_when_equally_long(topic, partitions, directories) for topic, partitions in topics.items()
        )
        return [problem for comparison in comparisons for problem in comparison.problems()]

    def end(self) -> None:
        """Ends every copier and the supervision. Idempotent."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> "CopyRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
