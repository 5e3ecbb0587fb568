"""A broker of its own process whose limit of open files is far below the number of its partitions."""

import contextlib
import os
import resource
import socket
from pathlib import Path

from klamm.protocol import messages
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.testing import Broker, Cluster
from support.one_broker import batch

PARTITIONS = 400
LIMIT = 256
# A quarter of the descriptors is kept for files that are open for a moment.
TAKEN = LIMIT - LIMIT // 4
# A few of those may be open just now, and the logs try now and then whether there is room again.
A_MOMENT = 10
CONNECTIONS = 80


def connect(broker: Broker) -> socket.socket:
    return socket.create_connection((broker.host, broker.port), 20)


def produce_to_each(client: socket.socket, value: bytes) -> list[tuple[int, int]]:
    """(error code, base offset) of a record in each partition."""
    body = ProduceRequest.of(None, -1, 10_000, [("t", [(number, batch(value)) for number in range(PARTITIONS)])])
    client.sendall(b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, 1, "c", body))))
    size = int.from_bytes(client.recv(4, socket.MSG_WAITALL))
    answer = messages.decode_response(ApiKey.PRODUCE, 9, client.recv(size, socket.MSG_WAITALL))
    found = sorted(answer.responses[0].partition_responses, key=lambda partition: partition.index)
    return [(partition.error_code, partition.base_offset) for partition in found]


def test_a_broker_with_few_descriptors_serves_many_partitions_and_connections(tmp_path: Path) -> None:
    """Before, the broker refused records for want of descriptors as soon as 192 logs were open."""
    with Cluster(brokers=1) as cluster, contextlib.ExitStack() as stack:
        cluster.create_topic("t", partitions=PARTITIONS, replication_factor=1)
        broker = cluster.broker(0)
        assert broker.pid is not None
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        client = stack.enter_context(connect(broker))
        for offset in range(2):
            assert produce_to_each(client, b"%d" % offset) == [(ErrorCode.NONE, offset)] * PARTITIONS
            assert len(os.listdir(f"/proc/{broker.pid}/fd")) <= TAKEN + A_MOMENT
        # All are accepted: logs are closed for them, and opened again for the next records.
        crowd = [stack.enter_context(connect(broker)) for _ in range(CONNECTIONS)]
        assert produce_to_each(crowd[-1], b"2") == [(ErrorCode.NONE, 2)] * PARTITIONS
        assert len(os.listdir(f"/proc/{broker.pid}/fd")) <= TAKEN + A_MOMENT
        assert broker.running
