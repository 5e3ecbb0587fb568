"""How long one Produce and one Fetch take, again and again, from a thread of its own.

Each round writes a record of 100 bytes with acks=all and reads it back. A round that meets a fault counts the time
until it has succeeded, retries included.
"""

import asyncio
import time
from collections.abc import Sequence

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.fetching import FetchFrom, fetch_request
from klamm.client.producer.sender import produce_request
from klamm.client.retries import RetryPolicy
from klamm.net.client import Address, ClientError, ConnectionOptions
from klamm.processes.loop_thread import LoopThread
from klamm.protocol.apis.fetch import FetchResponse
from klamm.protocol.apis.produce import ProduceResponse
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import ACKS_ALL, NO_EPOCH, TopicPartition

OPTIONS = ConnectionOptions(client_id="soak-probe", request_timeout_ms=10_000)
PATIENT = RetryPolicy(deadline_ms=120_000)
MAX_BYTES = 1 << 16
VALUE = b"x" * 100


class Probe:
    """Runs from its construction to `finish`. `take` gives the latencies since the last call."""

    def __init__(self, addresses: Sequence[Address], topic: str, interval_s: float) -> None:
        self._addresses, self._topic, self._interval_s = list(addresses), topic, interval_s
        self._latencies_ms: dict[str, list[float]] = {"produce": [], "fetch": []}
        self.failures = 0
        self._stop = False
        self._thread = LoopThread("soak-probe")
        self._running = self._thread.run(self._start())

    def take(self) -> dict[str, list[float]]:
        taken, self._latencies_ms = self._latencies_ms, {"produce": [], "fetch": []}
        return taken

    def finish(self) -> None:
        self._stop = True
        self._thread.run(self._end())
        self._thread.close()

    async def _start(self) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(self._run())

    async def _end(self) -> None:
        await self._running

    async def _run(self) -> None:
        client = ClusterClient(self._addresses, OPTIONS, PATIENT)
        while not self._stop:
            try:
                await self._round(client)
            except (ClientError, KafkaError):
                self.failures += 1
            await asyncio.sleep(self._interval_s)
        await client.close()

    async def _round(self, client: ClusterClient) -> None:
        batch = build_batch([Record(None, VALUE, int(time.time() * 1000))])
        request = produce_request((self._topic, 0), memoryview(batch), acks=ACKS_ALL, timeout_ms=10_000)
        started = time.perf_counter()
        response = await client.send_to_leader(
            self._topic, 0, ApiKey.PRODUCE, lambda _: request, errors_of=_produce_errors
        )
        self._latencies_ms["produce"].append((time.perf_counter() - started) * 1000)
        [topic] = response.responses
        [partition] = topic.partition_responses
        wanted = {TopicPartition(self._topic, 0): FetchFrom(partition.base_offset, NO_EPOCH, MAX_BYTES)}
        read = fetch_request(wanted, max_bytes=MAX_BYTES, max_wait_ms=500)
        started = time.perf_counter()
        await client.send_to_leader(self._topic, 0, ApiKey.FETCH, lambda _: read, errors_of=_fetch_errors)
        self._latencies_ms["fetch"].append((time.perf_counter() - started) * 1000)


def _produce_errors(response: ProduceResponse) -> list[int]:
    return [partition.error_code for topic in response.responses for partition in topic.partition_responses]


def _fetch_errors(response: FetchResponse) -> list[int]:
    return [partition.error_code for topic in response.responses for partition in topic.partitions]
