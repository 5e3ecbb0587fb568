"""What clients feel of the log cleaner: one record at a time, while the cleaner works at full speed and while it rests.

The broker, the client and the cleaner's process share the machine's cores. The table is written before, with
min.cleanable.dirty.ratio=1, which no log exceeds; then the ratio is lowered and the cleaner begins.

    .venv/bin/python bench/beside_cleaner.py --mb 800
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from sides import KlammBroker, KlammZooKeeper

PARTITIONS = 8
KEYS = 100_000
VALUE_BYTES = 1000
ROUND_TRIPS = 4_000
TABLE = {
    "cleanup.policy": "compact",
    "segment.bytes": str(32 << 20),
    "min.cleanable.dirty.ratio": "1",
    "file.delete.delay.ms": "1000",
}
PROPERTIES: dict[str, str | int] = {"log.cleaner.backoff.ms": 200, "offsets.topic.replication.factor": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=800, help="size of the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory:
        print(json.dumps(round_trips(Path(directory), arguments.mb), indent=2))


def round_trips(directory: Path, size_mb: int) -> dict[str, Any]:
    """Latencies in ms, at rest and beside the cleaner."""
    zookeeper = KlammZooKeeper(directory / "zookeeper")
    broker = KlammBroker(directory / "broker", zookeeper.connect, properties=PROPERTIES)
    zookeeper.start()
    try:
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic("table", PARTITIONS, 1, config=TABLE), NewTopic("plain", 1, 1)]
        for future in admin.create_topics(topics).values():
            future.result(30)
        fill(broker.bootstrap, size_mb << 20)
        at_rest = client(broker.bootstrap)
        entry = ConfigEntry("min.cleanable.dirty.ratio", "0.01", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "table", incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(30)
        until(lambda: cleaned(broker) > 0)
        began_s = time.monotonic()
        beside = client(broker.bootstrap)
        still = cleaned(broker) < PARTITIONS
        until(lambda: cleaned(broker) == PARTITIONS)
        return {
            "at rest": at_rest,
            "beside the cleaner": beside,
            "the cleaner worked all the time": still,
            "cleaner MB/s": (PARTITIONS - 1) / PARTITIONS * size_mb / (time.monotonic() - began_s),
            "p99 beside / at rest": beside["p99_ms"] / at_rest["p99_ms"],
        }
    finally:
        broker.kill()
        zookeeper.kill()


def fill(bootstrap: str, size_bytes: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.kbytes": 200_000}
    )
    value = b"." * VALUE_BYTES
    for number in range(size_bytes // VALUE_BYTES):
        while True:
            try:
                producer.produce("table", value, b"key-%d" % (number * 7919 % KEYS), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0


def client(bootstrap: str) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).with_name("client.py")), "roundtrips", "--bootstrap", bootstrap]
    options = ["--topic", "plain", "--count", str(ROUND_TRIPS), "--transport", "socket"]
    found: dict[str, float] = json.loads(
        subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True).stdout
    )
    return found


def cleaned(broker: KlammBroker) -> int:
    """How many partitions of the table were cleaned."""
    path = broker.data_directory / "cleaner-offset-checkpoint"
    return path.read_text().count("table ") if path.exists() else 0


def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        time.sleep(0.05)


if __name__ == "__main__":
    main()
