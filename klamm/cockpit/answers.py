"""What the modules of `pages` share: what they are given, and how they answer."""

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from klamm.cockpit.controller_records import ControllerRecords
from klamm.cockpit.exact import encoded_json
from klamm.cockpit.partitions import PartitionMap
from klamm.cockpit.source import Source
from klamm.net.http import JSON, Answer


@dataclass(frozen=True)
class Cockpit:
    """What the pages get: where they read from, and whether they may change anything.

    `brokers_options` and `zookeeper_options` are the words by which a command of klamm reaches the same cluster.
    `state_change_logs` is a directory with state-change logs of the brokers. `records` are those of controllers.
    """

    source: Source
    allow_changes: bool = False
    brokers_options: tuple[str, ...] = ()
    zookeeper_options: tuple[str, ...] = ()
    state_change_logs: Path | None = None
    records: ControllerRecords = field(default_factory=ControllerRecords)


def json_response(value: Any, status: int = 200) -> Answer:
    """A JSON answer; see `encoded_json`."""
    return Answer(status, encoded_json(value), JSON)


def map_response(found: PartitionMap) -> Answer:
    """A map of partitions: one line of JSON (`PartitionMap.head`) and then a byte for each partition and broker, row by
    row. Takes some thirty milliseconds for a megabyte: callers use a thread, and a `snapshot`."""
    body = gzip.compress(orjson.dumps(found.head()) + b"\n" + bytes(found.cells), 1)
    return Answer(200, body, "application/octet-stream", {"Content-Encoding": "gzip"})


def error_response(status: int, why: str) -> Answer:
    """{"error": why}: what was wrong, and what is allowed."""
    return json_response({"error": why}, status)
