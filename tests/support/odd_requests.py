"""Well-formed requests with odd values in every field, made at random: for tests of the broker."""

import asyncio
import contextlib
import math
import random
import struct
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from klamm.broker.handlers import APIS
from klamm.protocol import messages
from klamm.protocol.apis.fetch import FetchPartition, FetchRequest
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.messages import ApiKey
from support.fetch_messages import fetch_request
from support.message_oracle import body_of, library_class
from support.one_broker import Client, batch

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
LONGEST = 2**15 - 1
# (group, member, generation)
STRANGER = ("g", "", -1)
BROKER_IDS = ("leader", "leader_id", "broker_id", "isr", "new_isr", "replicas", "id")
TOPICS = ["a", "a", "b", "c.d", "c_d", "", ".", "..", "a/b", "a/partitions", "/", "é", "\0", "x" * 249, "x" * LONGEST]
TEXTS = [*TOPICS, "0", "1", "retention.ms", "cleanup.policy", "-1", "compact", "\n" * LONGEST, "🙂" * (LONGEST // 4)]
COUNTS = [-(2**31), -1, -1, 0, 1, 1, 2, 5, 100_000, 2**31 - 1]
# Short, because the test waits for each answer; that a long one is no trouble is tested below.
TIMEOUTS = [-(2**31), -1, 0, 1, 10]

# Bytes after the end of a request.
SURPLUSES = [b"\0", b"\xff" * 7, bytes(3000)]


class Odd:
    """Makes requests of any API from the schemas of kafka-python's message classes."""

    def __init__(self, seed: int, controller_epoch: int = 0) -> None:
        self.chance = random.Random(seed)
        self.controller_epoch = controller_epoch
        # What a member was told when it joined: its group, id and generation. Most requests speak of one.
        self.members: list[tuple[str, str, int]] = []
        self.member = STRANGER

    def request(self, key: ApiKey, version: int) -> Any:
        self.member = self.chance.choice([STRANGER, *self.members[-2:]])
        if key is ApiKey.PRODUCE:
            return self.produce(version)
        if key is ApiKey.FETCH:
            return self.fetch()
        message_class = library_class(key, "Request")
        body = self.struct(message_class._struct, message_class, version)
        return messages.decode_request(key, version, body_of(body, version), 0)

    def struct(self, schema: Any, data_class: Any, version: int) -> Any:
        fields = [field for field in schema._fields if field.for_version_q(version)]
        return data_class(version=version, **{field.name: self.field(field, version) for field in fields})

    def field(self, field: Any, version: int) -> Any:
        if field.nullable_for_version_q(version) and self.chance.random() < 0.2:
            return None
        if field.name == "protocols" and self.chance.random() < 0.8:
            return [field.data_class(version=version, name="range", metadata=self.chance.randbytes(8))]
        if field.is_struct_array():
            elements = [self.struct(field.array_of, field.data_class, version) for _ in range(self.count())]
            return elements + elements[: self.chance.choice([0, 0, 1])]
        if field.is_array():
            return [self.value(field.name, field.array_of.type_str) for _ in range(self.count())]
        return self.value(field.name, field.type_str)

    def count(self) -> int:
        return self.chance.choice([0, 1, 1, 2, 3])

    def value(self, name: str, kind: str) -> Any:
        if name in ("timeout_ms", "num_partitions", "count"):
            return self.chance.choice(TIMEOUTS if name == "timeout_ms" else COUNTS)
        if name == "controller_epoch":
            # A higher one is a new controller, and the requests of all others are refused.
            return self.chance.choice([self.controller_epoch] * 4 + [self.controller_epoch - 1, -1, -(2**31)])
        if name == "security_protocol":
            return self.chance.randrange(4)
        if name == "broker_epoch":
            return self.chance.choice([-1, -1, -1, 2**63 - 1, 0, -(2**63)])
        if name in ("group_id", "member_id", "generation_id") and self.chance.random() < 0.8:
            return self.member[("group_id", "member_id", "generation_id").index(name)]
        if name == "partition_index" and self.chance.random() < 0.5:
            return 0
        if name == "group_instance_id" and self.chance.random() < 0.8:
            return None
        if name == "rebalance_timeout_ms":
            return self.chance.choice(TIMEOUTS)
        if name == "session_timeout_ms":
            return self.chance.choice([*TIMEOUTS, 1000, 1000, 1000, 1000])
        if name in ("protocol_type", "protocol_name") and self.chance.random() < 0.9:
            return "consumer" if name == "protocol_type" else "range"
        if name in BROKER_IDS and self.chance.random() < 0.7:
            return self.chance.choice([0, 0, 1])
        if kind in BITS:
            return self.integer(BITS[kind])
        if kind == "string":
            return self.chance.choice(TOPICS if name in ("topic", "name", "topic_name", "topic_names") else TEXTS)
        if kind == "uuid":
            return self.chance.choice([None, uuid.UUID(int=self.chance.getrandbits(128) | 1)])
        if kind == "bytes":
            return self.chance.randbytes(self.chance.choice([0, 1, 100]))
        if kind == "float64":
            return self.chance.choice([0.0, -1.0, 1.5, 1e300, math.inf, math.nan])
        assert kind == "bool", kind
        return self.chance.random() < 0.5

    def integer(self, bits: int) -> int:
        limit: int = 2 ** (bits - 1)
        return self.chance.choice([-limit, -limit + 1, -3, -2, -1, 0, 0, 0, 1, 1, 2, 4, limit - 1])

    def produce(self, version: int) -> ProduceRequest:
        chance = self.chance
        topics = [
            (chance.choice(TOPICS), [(self.integer(32), self.records()) for _ in range(self.count())])
            for _ in range(self.count())
        ]
        transactional_id = chance.choice([None, None, None, "", "x" * LONGEST]) if version >= 3 else None
        return ProduceRequest.of(
            transactional_id,
            chance.choice([-1, -1, 0, 1, self.integer(16)]),
            chance.choice(TIMEOUTS),
            topics + topics[: chance.choice([0, 1])],
        )

    def records(self) -> bytearray | None:
        chance = self.chance
        records = batch(b"v" * chance.choice([0, 1, 100]), producer_id=chance.choice([-1, 0, 5]))
        match chance.randrange(6):
            case 0:
                return None
            case 1:
                return bytearray(chance.randbytes(chance.choice([0, 1, 60, 61, 100])))
            case 2:
                records[chance.randrange(len(records))] ^= 1 << chance.randrange(8)
        return records

    def fetch(self) -> FetchRequest:
        chance = self.chance
        topics = [
            (
                chance.choice(TOPICS),
                [
                    FetchPartition(
                        partition=self.integer(32), fetch_offset=self.integer(64), partition_max_bytes=self.integer(32),
                        current_leader_epoch=chance.choice([-1, self.integer(32)]),
                        last_fetched_epoch=chance.choice([-1, self.integer(32)]), log_start_offset=self.integer(64),
                    )
                    for _ in range(self.count())
                ],
            )
            for _ in range(self.count())
        ]  # fmt: skip
        return fetch_request(
            *topics,
            *topics[: chance.choice([0, 1])],
            replica_id=chance.choice([-1, -1, -1, self.integer(32)]),
            max_wait_ms=chance.choice(TIMEOUTS),
            min_bytes=self.integer(32),
            max_bytes=self.integer(32),
            isolation_level=self.integer(8),
            session_id=self.integer(32),
            session_epoch=self.integer(32),
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic=chance.choice(TOPICS), partitions=[self.integer(32)] * self.count())
                for _ in range(self.count())
            ],
            rack_id=chance.choice(TEXTS),
            cluster_id=chance.choice([None, *TEXTS]),
        )


async def send_and_receive(client: Client, key: ApiKey, version: int, body: Any, surplus: bytes = b"") -> Any:
    """Sends the request, with surplus bytes after its end, and an ApiVersions after it: both are answered, in order
    (what the request was answered, or True), or the connection closes (None)."""
    request = b"".join(map(bytes, messages.encode_request(key, version, 1, None, body)))[4:] + surplus
    after = messages.encode_request(ApiKey.API_VERSIONS, 0, 2, None, messages.request_class(ApiKey.API_VERSIONS)())
    client.send_raw(b"".join(map(bytes, [struct.pack(">i", len(request)), request, *after])))
    answer: Any = True if key is ApiKey.PRODUCE and body.acks == 0 else None
    try:
        if answer is None:
            frame = await client.receive()
            assert frame[:4] == struct.pack(">i", 1)
            answer = messages.decode_response(key, version, frame)
        assert (await client.receive())[:4] == struct.pack(">i", 2)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return answer


def every_version() -> list[tuple[ApiKey, int]]:
    return [(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)]


async def refused_surplus(
    connect: Callable[[], Awaitable[Client]], requests: Iterable[tuple[ApiKey, int]]
) -> list[tuple[ApiKey, int, bytes]]:
    """The requests (API, version) that a broker answers, but not with these bytes after their end."""
    odd, refused = Odd(1), []
    client = await connect()
    for key, version in requests:
        while True:
            body = odd.request(key, version)
            # Kafka leaves some odd values without an answer.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    if await send_and_receive(client, key, version, body):
                        break
            await client.close()
            client = await connect()
        for surplus in SURPLUSES:
            if not await send_and_receive(client, key, version, body, surplus):
                refused.append((key, version, surplus))
                client = await connect()
    return refused
