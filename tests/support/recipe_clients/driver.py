"""A client in a process of its own, RecipeClient.java or franz/main.go, which are told what to do in lines of words.

    NUMBER producer NAME KEY=VALUE ...            NUMBER consumer NAME TOPICS KEY=VALUE ...
    NUMBER send NAME TOPIC PARTITION VALUE        NUMBER commit NAME
    NUMBER begin NAME                             NUMBER hold NAME
    NUMBER end NAME commit|abort                  NUMBER resume NAME
    NUMBER close NAME

Each line is answered by `= NUMBER ok [OFFSET]` or `= NUMBER failed ERROR TEXT`; a `send` when the record is
acknowledged, all others in order. What happens to consumers:

    @ NAME record TOPIC PARTITION OFFSET TIMESTAMP VALUE
    @ NAME assigned|revoked TOPIC:PARTITION,...
    @ NAME failed ERROR TEXT

Spaces of values are written as `%20`.
"""

import itertools
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from klamm.testing.recipes import contract
from klamm.testing.recipes.contract import TIMEOUT_S, Failed
from support.processes import ManagedProcess

# A call may take longer than the client's own patience.
ANSWER_S = 2 * TIMEOUT_S


class Driver(ManagedProcess):
    """The process, which serves one client object after another."""

    def __init__(self, name: str, command: Sequence[str | Path], directory: Path) -> None:
        self.consumers: dict[str, Consumer] = {}
        self._numbers = itertools.count(1)
        self._answers: dict[str, Future[int]] = {}
        self._lock = threading.Lock()
        super().__init__(name, command, directory / f"{name}.log", stdin=subprocess.PIPE)

    def begin(self, verb: str, *words: str) -> "Future[int]":
        """Sends a line; the future has its answer."""
        answer: Future[int] = Future()
        with self._lock:
            number = str(next(self._numbers))
            self._answers[number] = answer
            assert self.popen.stdin is not None
            self.popen.stdin.write(" ".join((number, verb, *words)) + "\n")
            self.popen.stdin.flush()
        return answer

    def ask(self, verb: str, *words: str) -> int:
        return self.begin(verb, *words).result(ANSWER_S)

    def _take(self, line: str) -> None:
        super()._take(line)
        match line.split():
            case ["=", number, "ok", *offset]:
                self._answers.pop(number).set_result(int(offset[0]) if offset else 0)
            case ["=", number, "failed", error, *text]:
                self._answers.pop(number).set_exception(Failed(error, " ".join(text)))
            case ["@", name, "record", topic, partition, offset, timestamp, value]:
                record = (topic, int(partition), int(offset), int(timestamp), unquote(value))
                self.consumers[name].happened("record", *record)
            case ["@", name, "assigned" | "revoked" as event, *places]:
                pairs = (place.rsplit(":", 1) for place in ",".join(places).split(",") if place)
                self.consumers[name].happened(event, {(topic, int(partition)) for topic, partition in pairs})
            case ["@", name, "failed", error, *text]:
                self.consumers[name].happened("failed", error, " ".join(text))


class Producer(contract.Producer):
    def __init__(self, driver: Driver, name: str, config: dict[str, Any]) -> None:
        self._driver, self._name = driver, name
        driver.ask("producer", name, *_settings(config))

    def send(self, topic: str, value: str, partition: int = 0) -> "Future[int]":
        return self._driver.begin("send", self._name, topic, str(partition), quote(value))

    def begin(self) -> None:
        self._driver.ask("begin", self._name)

    def commit(self) -> None:
        self._driver.ask("end", self._name, "commit")

    def abort(self) -> None:
        self._driver.ask("end", self._name, "abort")

    def close(self) -> None:
        self._driver.ask("close", self._name)


class Consumer(contract.Consumer):
    def __init__(self, driver: Driver, name: str, topics: tuple[str, ...], config: dict[str, Any]) -> None:
        super().__init__()
        self._driver, self._name = driver, name
        self._open = True
        driver.consumers[name] = self
        driver.ask("consumer", name, ",".join(topics), *_settings(config))

    def commit(self) -> None:
        self._driver.ask("commit", self._name)

    def hold(self) -> None:
        self._driver.ask("hold", self._name)

    def resume(self) -> None:
        self._driver.ask("resume", self._name)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._driver.ask("close", self._name)


class Client(contract.Client):
    """A client of a process, connected to one cluster."""

    _numbers = itertools.count(1)

    def __init__(self, bootstrap: str, driver: Driver) -> None:
        super().__init__(bootstrap)
        self._driver = driver

    def _producer(self, config: dict[str, Any]) -> Producer:
        return Producer(self._driver, f"producer-{next(self._numbers)}", self._config(config))

    def _consumer(self, topics: tuple[str, ...], config: dict[str, Any]) -> Consumer:
        return Consumer(self._driver, f"consumer-{next(self._numbers)}", topics, self._config(config))

    def _config(self, config: dict[str, Any]) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, **config}


def _settings(config: dict[str, Any]) -> list[str]:
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in config.items()]
