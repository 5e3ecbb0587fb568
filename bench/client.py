"""The client of every measurement: one process per measurement, the same for both programs, its result as JSON.

    client.py produce --bootstrap A --topic T --count N --size-bytes B
    client.py consume --bootstrap A --topic T --count N
    client.py roundtrips --bootstrap A --topic T --count N --transport librdkafka|socket
    client.py paced --bootstrap A --topic T --interval-ms N

librdkafka runs with its defaults except where a comment says why not.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka

from klamm.protocol.record.records import Record, build_batch

PAYLOAD_SEED = 20
MAX_QUEUED = 200_000


def produce(bootstrap: str, topic: str, count: int, size_bytes: int) -> dict[str, Any]:
    """Writes `count` records to partition 0 with acks=all; the clock stops at the last acknowledgement."""
    # The queue is bounded below and not by librdkafka's error, so that no time goes into refused records.
    limits = {"queue.buffering.max.messages": 2 * MAX_QUEUED}
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", **limits})
    producer.list_topics(topic, timeout=30)
    chunk = [{"value": payload(size_bytes)}] * 1000
    start, cpu, ticks = time.perf_counter(), time.process_time(), thread_ticks()
    sent = 0
    while sent < count:
        while len(producer) > MAX_QUEUED:
            producer.poll(0.001)
        sent += producer.produce_batch(topic, chunk[: count - sent], partition=0)
    if producer.flush(120):
        raise SystemExit("records were not acknowledged within 120 s")
    elapsed = time.perf_counter() - start
    result = {"seconds": elapsed, "client_cpu_seconds": time.process_time() - cpu, **busiest_thread(ticks, elapsed)}
    stored = watermark(bootstrap, topic)
    if stored != count:
        raise SystemExit(f"{count} records were written, but the log has {stored}")
    return result


def consume(bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    """Reads `count` records from the start of partition 0; the clock runs from the first to the last of them."""
    # By default librdkafka rests for a second when its queue is full: that would be measured instead of the broker.
    # No commits: groups are no part of this.
    config = {"group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 1}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, **config})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    first = consumer.consume(1, timeout=30)
    received, received_bytes = len(first), 0
    start, cpu, ticks = time.perf_counter(), time.process_time(), thread_ticks()
    while received < count:
        messages = consumer.consume(min(10_000, count - received), timeout=30)
        if not messages:
            raise SystemExit(f"only {received} of {count} records came")
        received += len(messages)
        received_bytes += sum(map(len, messages))
    elapsed = time.perf_counter() - start
    result = {"seconds": elapsed, "bytes": received_bytes, "client_cpu_seconds": time.process_time() - cpu}
    result |= busiest_thread(ticks, elapsed)
    consumer.close()
    return result


def roundtrips(bootstrap: str, topic: str, count: int, transport: str) -> dict[str, Any]:
    """Writes `count` records of 100 B, each when the one before is acknowledged; latencies in milliseconds."""
    once = {"librdkafka": librdkafka_roundtrip, "socket": socket_roundtrip}[transport](bootstrap, topic)
    for _ in range(min(500, count)):
        once()
    latencies = []
    for _ in range(count):
        start = time.perf_counter()
        once()
        latencies.append((time.perf_counter() - start) * 1000)
    percentiles = statistics.quantiles(latencies, n=100)
    return {"p50_ms": percentiles[49], "p99_ms": percentiles[98], "max_ms": max(latencies)}


def paced(bootstrap: str, topic: str, interval_ms: int) -> list[tuple[float, float]]:
    """Writes a record of 100 B every `interval_ms`, but never two at a time, until stdin ends.

    When each was due, by the clock that all processes share (perf_counter), and its latency since then in milliseconds:
    so one that is late makes those late that it keeps waiting.
    """
    once = socket_roundtrip(bootstrap, topic)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    samples = []
    due = time.perf_counter()
    while not ended.is_set():
        time.sleep(max(0.0, due - time.perf_counter()))
        once()
        samples.append((due, (time.perf_counter() - due) * 1000))
        due += interval_ms / 1000
    return samples


def librdkafka_roundtrip(bootstrap: str, topic: str) -> Callable[[], None]:
    # Without linger: nothing follows that could be waited for.
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    value = payload(100)

    def once() -> None:
        producer.produce(topic, value, partition=0)
        if producer.flush(30):
            raise SystemExit("a record was not acknowledged within 30 s")

    return once


def socket_roundtrip(bootstrap: str, topic: str) -> Callable[[], None]:
    """Produce v7 by hand: what the broker alone takes, without a client's threads."""
    connection = socket.create_connection(leader(bootstrap, topic))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    batch = bytes(build_batch([Record(None, payload(100), int(time.time() * 1000))]))
    name = topic.encode()
    header = struct.pack(">hhih5s", 0, 7, 1, 5, b"bench")
    body = struct.pack(">hhii", -1, -1, 30_000, 1) + struct.pack(f">h{len(name)}s", len(name), name)
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    frame = struct.pack(">i", len(header) + len(body)) + header + body
    # correlation id, one topic, its name, one partition, its index: then the error code.
    error_at = 4 + 4 + 4 + 2 + len(name) + 4 + 4

    def once() -> None:
        connection.sendall(frame)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
            received = connection.recv(65536)
            if not received:
                raise SystemExit("the broker closed the connection")
            answer += received
        (error,) = struct.unpack_from(">h", answer, error_at)
        if error:
            raise SystemExit(f"Produce was answered with error {error}")

    return once


def leader(bootstrap: str, topic: str) -> tuple[str, int]:
    """Host and port of the broker that leads partition 0."""
    metadata = confluent_kafka.Producer({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30)
    broker = metadata.brokers[metadata.topics[topic].partitions[0].leader]
    return broker.host, broker.port


def payload(size_bytes: int) -> bytes:
    """The same bytes in every run; they do not compress."""
    import random

    return random.Random(PAYLOAD_SEED).randbytes(size_bytes)


def watermark(bootstrap: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    high: int = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=30)[1]
    consumer.close()
    return high


def busiest_thread(before: dict[str, int], elapsed: float) -> dict[str, float]:
    """The share of a core that this process's busiest thread had: near 1, the client itself is the limit.

    `before`: the threads' ticks when the clock started.
    """
    ticks = [now - before.get(thread, 0) for thread, now in thread_ticks().items()]
    return {"busiest_thread_share": max(ticks) / os.sysconf("SC_CLK_TCK") / elapsed}


def thread_ticks() -> dict[str, int]:
    """User and system time of each thread of this process, in clock ticks."""
    ticks = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            ticks[task.name] = sum(map(int, (task / "stat").read_text().rsplit(")")[1].split()[11:13]))
    return ticks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["produce", "consume", "roundtrips", "paced"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int)
    parser.add_argument("--interval-ms", type=int, default=5)
    parser.add_argument("--size-bytes", type=int, default=1024)
    parser.add_argument("--transport", choices=["librdkafka", "socket"], default="librdkafka")
    arguments = parser.parse_args()
    common = (arguments.bootstrap, arguments.topic, arguments.count)
    result: Any
    if arguments.what == "paced":
        result = paced(arguments.bootstrap, arguments.topic, arguments.interval_ms)
    elif arguments.what == "produce":
        result = produce(*common, arguments.size_bytes)
    elif arguments.what == "consume":
        result = consume(*common)
    else:
        result = roundtrips(*common, arguments.transport)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
