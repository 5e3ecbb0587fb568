"""Clients that fetch much and read nothing: the broker's memory stays within its budget, and others go on."""

import asyncio
import socket
from pathlib import Path

import pytest

from klamm.protocol import messages
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.testing import Cluster
from support.fetch_messages import fetch_request, result_of, to_fetch
from support.one_broker import batch, fetch_frame, running, until, values

MB = 1024 * 1024
VALUE = bytes(950_000)
BATCHES = 57


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def no_reader(address: tuple[str, int]) -> socket.socket:
    """A client that has asked for all there is, in 82 bytes, and does not read it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(address)
    frame = fetch_frame()
    assert len(frame) < 83
    client.sendall(frame)
    return client


def receive_all(client: socket.socket) -> None:
    left_bytes = int.from_bytes(client.recv(4, socket.MSG_WAITALL))
    while left_bytes:
        left_bytes -= len(client.recv(left_bytes))


def request_bytes(api_key: ApiKey, version: int, body: object) -> bytes:
    return b"".join(map(bytes, messages.encode_request(api_key, version, 1, "c", body)))


class Honest:
    """A client that reads its answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, 20)

    def exchange(self, api_key: ApiKey, version: int, body: object) -> object:
        self.socket.sendall(request_bytes(api_key, version, body))
        return messages.decode_response(api_key, version, self._receive(int.from_bytes(self._receive(4))))

    def _receive(self, size_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < size_bytes:
            data += self.socket.recv(min(size_bytes - len(data), MB)) or pytest.fail("the broker has hung up")
        return bytes(data)

    def produce(self, value: bytes) -> int:
        """With acks=all."""
        body = ProduceRequest.of(None, -1, 20_000, [("t", [(0, batch(value))])])
        result = self.exchange(ApiKey.PRODUCE, 9, body).responses[0].partition_responses[0]
        assert result.error_code == ErrorCode.NONE
        return int(result.base_offset)

    def consume_all(self, count: int) -> int:
        """Reads that many records of that size; how many fetches it took."""
        offset = fetches = 0
        while offset < count:
            wants = ("t", [to_fetch(0, offset, 64 * MB)])
            answer = self.exchange(ApiKey.FETCH, 12, fetch_request(wants, max_wait_ms=500, max_bytes=64 * MB))
            offset += len(values(result_of(answer).records))
            fetches += 1
        return fetches


def test_ten_clients_that_do_not_read_what_they_fetch_take_no_more_than_the_budget(tmp_path: Path) -> None:
    budget_bytes = 32 * MB
    properties = {"klamm.queued.max.response.bytes": budget_bytes, "message.max.bytes": 1_100_000}
    with Cluster(brokers=2, properties=properties) as cluster:
        cluster.create_topic("t", partitions=1, replication_factor=2, configs={"min.insync.replicas": "2"})
        leader = cluster.broker(cluster.leader("t", 0))
        address = (leader.host, leader.port)
        honest = Honest(address)
        for _ in range(BATCHES):
            honest.produce(VALUE)
        honest.consume_all(BATCHES)
        before_bytes = resident_bytes(leader.pid)
        hoarders = [no_reader(address) for _ in range(10)]
        # Ten times 54 MB have been asked for. What others do meanwhile is done: the follower's fetches, too.
        for number in range(5):
            assert honest.produce(b"%d" % number) == BATCHES + number
        fetches = honest.consume_all(BATCHES)
        grown_bytes = resident_bytes(leader.pid) - before_bytes
        # What the budget does not count: a batch that is larger than a share, and what the allocator keeps.
        assert grown_bytes < budget_bytes + 16 * MB
        assert fetches <= BATCHES
        for hoarder in hoarders:
            hoarder.close()


async def test_the_budget_is_whole_again_when_clients_hang_up_or_read(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        for _ in range(8):
            assert (await client.produce("t", 0, batch(bytes(500_000)))).error_code == ErrorCode.NONE
        memory = cluster.broker.parts.response_memory
        loop = asyncio.get_running_loop()
        address = cluster.broker.endpoints["PLAINTEXT"]
        hoarders = [await loop.run_in_executor(None, no_reader, address) for _ in range(4)]
        await until(lambda: len(memory._untaken) == 4)
        assert memory.held_bytes > 4_000_000
        hoarders[0].close()
        await until(lambda: len(memory._untaken) == 3)
        hoarders[1].close()
        await until(lambda: len(memory._untaken) == 2)
        await loop.run_in_executor(None, receive_all, hoarders[2])
        await until(lambda: len(memory._untaken) == 1)
        # A consumer that hangs up while it waits for room leaves nothing behind either.
        memory.budget_bytes = MB
        waiting = await cluster.connect()
        waiting.send_raw(fetch_frame())
        await until(lambda: len(memory._waiters) == 1)
        await waiting.close()
        await until(lambda: not memory._waiters)
        # The last one stands still, and is not waited for.
        assert len((await client.fetch("t", 0, 0)).records or b"") == 0
        await until(lambda: memory.held_bytes == 0)
        assert memory._untaken == {}
        assert values((await client.fetch("t", 0, 7)).records) == [bytes(500_000)]
        assert memory.held_bytes == 0
        for hoarder in hoarders:
            hoarder.close()


async def test_responses_of_many_partitions_count_while_they_are_encoded(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        for _ in range(2):
            assert (await client.produce("t", 0, batch(bytes(500_000)))).error_code == ErrorCode.NONE
        memory = cluster.broker.parts.response_memory
        memory.budget_bytes = 4 * MB
        granted = []
        share = memory.share

        async def noted_share(*, is_follower: bool) -> int:
            granted.append(await share(is_follower=is_follower))
            return granted[-1]

        memory.share = noted_share
        # The last ones do not exist, which takes as long to say.
        wants = ("t", [to_fetch(number, 0, MB) for number in range(600)])
        body = fetch_request(wants, max_wait_ms=0, max_bytes=MB)
        clients = [await cluster.connect() for _ in range(20)]
        answers = await asyncio.gather(*(one.request(ApiKey.FETCH, 12, body) for one in clients))
        assert [len(answer.responses[0].partitions) for answer in answers] == [600] * 20
        # Each gets an eighth of what the others leave, so that all together never get more than there is.
        assert len(granted) == 20
        assert granted != [granted[0]] * 20
        assert memory.held_bytes == 0
