"""The programs that copy: Kafka's TransactionalMessageCopier, and the same for librdkafka, franz-go and klamm's client.

Each program takes the same options, prints its progress as lines of JSON, and ends with exit code 0 when it has copied
what stood in the input as it began.
"""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.copying.klamm_copier import FENCED
from support.go_programs import built
from support.oracles import java_command, kafka4_jars, kafka_jars
from support.processes import ManagedProcess

HERE = Path(__file__).parent
JAVA_COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
JAVA_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# Longer than a client waits for the answer of a broker that is killed (30 s), so that no living copier's transaction
# is timed out; as in the tests of Apache Kafka.
TRANSACTION_TIMEOUT_MS = 40_000


CLIENTS: dict[str, Callable[[], list[str]]] = {
    "librdkafka": lambda: [sys.executable, str(HERE / "librdkafka_copier.py")],
    "klamm": lambda: [sys.executable, str(HERE / "klamm_copier.py")],
    "franz-go": lambda: [str(built(HERE / "franz", "franz-copier"))],
    "java-2.8": lambda: java_command(kafka_jars(), JAVA_COPIER, options=JAVA_OPTIONS),
    "java-4.3": lambda: java_command(kafka4_jars(), JAVA_COPIER, options=JAVA_OPTIONS),
}


@dataclass(frozen=True)
class Copy:
    """A topic that is copied to another by copiers of one client, one for each partition; in group mode the group
    shares the partitions out among them."""

    client: str
    partitions: int = 1
    group_mode: bool = False
    # Every third transaction, by chance, is aborted by its copier; those in Python always abort a process's second.
    random_aborts: bool = True
    transaction_size: int = 20
    name: str = ""

    @property
    def input(self) -> str:
        return f"input-{self.name or self.client}"

    @property
    def output(self) -> str:
        return f"output-{self.name or self.client}"

    @property
    def group(self) -> str:
        return f"group-{self.name or self.client}"

    def transactional_id(self, number: int) -> str:
        return f"copier-{self.name or self.client}-{number}"

    @property
    def may_give_up(self) -> bool:
        """Clients that end for good when brokers die at a bad moment; another process with the same id follows.

        franz-go does so after the error of a connection. librdkafka sends nothing while it aborts, not even batches
        that were on their way to a dead leader: the abort then takes as long as the transaction's timeout, and the
        producer is fenced.
        """
        return self.client in ("franz-go", "librdkafka")

    def was_fenced(self, code: int) -> bool:
        """Whether a process ended because a coordinator died between the record of a new epoch and its answer: the
        next one cannot tell the producer, which asks again, from a zombie. Kafka's log does not have what it takes."""
        return self.client == "klamm" and code == FENCED

    def arguments(self, bootstrap: str, number: int) -> list[str]:
        """The options of its copier with this number."""
        arguments = {
            "--broker-list": bootstrap,
            "--input-topic": self.input,
            "--input-partition": number,
            "--output-topic": self.output,
            "--consumer-group": self.group,
            "--transactional-id": self.transactional_id(number),
            "--transaction-size": self.transaction_size,
            "--transaction-timeout": TRANSACTION_TIMEOUT_MS,
        }
        flags = ["--use-group-metadata"]
        flags += ["--group-mode"] if self.group_mode else []
        flags += ["--enable-random-aborts"] if self.random_aborts else []
        return [*(str(part) for pair in arguments.items() for part in pair), *flags]


class Copier(ManagedProcess):
    """One process that copies."""

    def __init__(self, copy: Copy, number: int, bootstrap: str, directory: Path, *options: str) -> None:
        self.copy, self.number = copy, number
        self.status: dict[str, Any] = {}
        program: Sequence[str] = CLIENTS[copy.client]()
        name = copy.transactional_id(number)
        super().__init__(name, [*program, *copy.arguments(bootstrap, number), *options], directory / f"{name}.log")

    def _take(self, line: str) -> None:
        super()._take(line)
        # A client's own messages may stand before or behind it, or in it.
        if found := re.search(r"\{[^{}]*\}", line):
            with contextlib.suppress(json.JSONDecodeError):
                self.status = json.loads(found.group())

    @property
    def processed(self) -> int:
        """How many records the process has copied in transactions that it committed."""
        return int(self.status.get("totalProcessed", 0))

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.popen.poll()
