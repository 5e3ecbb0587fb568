"""Groups and offsets in `__consumer_offsets` that nobody who means well wrote, and members who send such bytes: the
coordinator answers everybody, and the broker goes on."""

import asyncio
import struct
from pathlib import Path
from typing import Any

from klamm.base.slices import in_one_go
from klamm.coordinator.groups.group_records import (
    EXPIRING_OFFSET_VALUE_VERSION,
    group_metadata_key,
    offset_commit_key,
)
from klamm.protocol import messages
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.records import (
    ControlRecordType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
)
from klamm.protocol.vocabulary import ACKS_NONE, GROUP_METADATA_TOPIC_NAME
from klamm.storage.log.producer_state import AppendOrigin
from support.group_wire import find_coordinator, join, sync
from support.hostile_bytes import Hostile, seeds
from support.one_broker import Client, OneBroker, running, until

GROUPS = ("a", "b", "c", "d")
# Only Kafka's own tools may write there; they name themselves so.
TOOL = "__admin_client"
DeleteTopic = messages.request_class(ApiKey.OFFSET_DELETE).OffsetDeleteRequestTopic


def text(data: str | None) -> bytes:
    return struct.pack(">h", -1) if data is None else struct.pack(">h", len(data)) + data.encode()


def offset_record(hostile: Hostile, group: str) -> tuple[bytes, bytes]:
    key = offset_commit_key(group, (hostile.chance.choice(["t", "", "no such topic", "."]), hostile.number(32)))
    version = hostile.chance.randrange(4)
    value = struct.pack(">hq", version, hostile.number(64))
    value += struct.pack(">i", hostile.number(32)) if version == 3 else b""
    value += text(hostile.chance.choice(["", "note", "\0" * 5000])) + struct.pack(">q", hostile.number(64))
    return key, value + (struct.pack(">q", hostile.number(64)) if version == EXPIRING_OFFSET_VALUE_VERSION else b"")


def consumer_metadata(hostile: Hostile) -> bytes:
    """A subscription to one topic."""
    good = struct.pack(">hi", hostile.sometimes(0, 16), hostile.sometimes(1, 32)) + text("t") + struct.pack(">i", 0)
    return good if hostile.chance.random() < 0.5 else hostile.mutated(good)


def group_record(hostile: Hostile, group: str) -> tuple[bytes, bytes]:
    chance = hostile.chance
    members = chance.choice([0, 1, 1, 2])
    value = struct.pack(">h", 3) + text(chance.choice(["consumer", "", "connect"]))
    value += struct.pack(">i", hostile.number(32)) + text(chance.choice(["range", "range", None, ""]))
    value += text(chance.choice(["m0", "m1", "nobody", None])) + struct.pack(">q", hostile.number(64))
    value += struct.pack(">i", members)
    for number in range(members):
        value += text(f"m{chance.choice([number, number, 0])}") + text(chance.choice([None, "i", f"i{number}"]))
        value += text("client") + text("/host")
        value += struct.pack(">ii", hostile.sometimes(1000, 32, 0.5), hostile.sometimes(1000, 32, 0.5))
        for data in consumer_metadata(hostile), hostile.data():
            value += struct.pack(">i", len(data)) + data
    return group_metadata_key(group), value


def stored(hostile: Hostile) -> list[Record]:
    """A record of each group, offsets, and whatever else may lie there."""
    made = [group_record(hostile, group) for group in GROUPS]
    made += [offset_record(hostile, hostile.chance.choice(GROUPS)) for _ in range(8)]
    if hostile.chance.random() < 0.5:
        made += [(hostile.mutated(key), value) for key, value in made]
        made += [(key, hostile.mutated(value)) for key, value in made[:12] if hostile.chance.random() < 0.3]
    return [Record(key, value, hostile.sometimes(1000, 64)) for key, value in made]


def write_transaction(cluster: OneBroker, hostile: Hostile, producer_id: int) -> None:
    """Hostile records in a transaction."""
    batch = build_batch(
        stored(hostile), producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    append(cluster, batch)


def end_transaction(cluster: OneBroker, hostile: Hostile, producer_id: int) -> None:
    """A marker in the log that the coordinator may be told of."""
    is_committed = hostile.chance.random() < 0.7
    marker = EndTransactionMarker(ControlRecordType(is_committed), 0)
    offset = append(
        cluster, build_end_transaction_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=1000)
    )
    if hostile.chance.random() < 0.7:
        ended = cluster.broker.parts.group_coordinator.transaction_ended(
            0, producer_id, hostile.sometimes(offset, 64), is_committed=is_committed
        )
        in_one_go(ended)


def append(cluster: OneBroker, batch: bytearray) -> int:
    appended = cluster.broker.parts.replica_manager.append_records(
        GROUP_METADATA_TOPIC_NAME, 0, memoryview(batch), ACKS_NONE, AppendOrigin.COORDINATOR
    )
    assert appended.error_code == 0
    return appended.base_offset


async def ask_everything(client: Client, hostile: Hostile) -> None:
    """Of a coordinator that has just read such groups."""
    listed = (await client.ask(ApiKey.LIST_GROUPS, states_filter=[])).groups
    described = await client.ask(ApiKey.DESCRIBE_GROUPS, groups=[*GROUPS, *(group.group_id for group in listed[:50])])
    for group in described.groups:
        for member in group.members:
            await client.ask(
                ApiKey.HEARTBEAT,
                group_id=group.group_id,
                generation_id=hostile.number(32),
                member_id=member.member_id,
                group_instance_id=None,
            )
    for group in GROUPS:
        await client.ask(ApiKey.OFFSET_FETCH, group_id=group, topics=None, require_stable=False)
        topics = [DeleteTopic(name="t", partitions=[])]
        await client.ask(ApiKey.OFFSET_DELETE, group_id=group, topics=topics)


async def take_part(client: Client, hostile: Hostile, group: str) -> None:
    """As a member whose metadata and assignments are such bytes."""
    options: dict[str, Any] = {
        "protocols": [("range", consumer_metadata(hostile)), ("", hostile.data())],
        "session_timeout_ms": 6000,
    }
    options |= {"rebalance_timeout_ms": hostile.chance.choice([-1, 0, 1, 5])}
    joined = await join(client, group, **options)
    joined = await join(client, group, joined.member_id, **options)
    if joined.error_code == 0 and joined.leader == joined.member_id:
        await sync(client, joined, {joined.member_id: hostile.data(), "nobody": hostile.data()}, group)
    await client.ask(ApiKey.DESCRIBE_GROUPS, groups=[group])


async def test_groups_of_hostile_records(tmp_path: Path) -> None:
    async def play(cluster: OneBroker, client: Client, seed: int) -> None:
        hostile = Hostile(seed)
        body = ProduceRequest.of(None, 1, 1000, [(GROUP_METADATA_TOPIC_NAME, [(0, build_batch(stored(hostile)))])])
        (answer,) = (await client.request(ApiKey.PRODUCE, 9, body, client_id=TOOL)).responses[0].partition_responses
        assert answer.error_code == 0, answer
        producer_ids = [1000 * seed + number for number in range(3)]
        for producer_id in producer_ids:
            write_transaction(cluster, hostile, producer_id)
        end_transaction(cluster, hostile, producer_ids[0])
        # A leader that has followed another meanwhile reads the partition anew.
        await cluster.begin_leader_epoch(
            client, GROUP_METADATA_TOPIC_NAME, 2 * seed + 1000, leader=1, isr=(1,), replicas=(0, 1)
        )
        await cluster.begin_leader_epoch(client, GROUP_METADATA_TOPIC_NAME, 2 * seed + 1001)
        end_transaction(cluster, hostile, producer_ids[1])
        await until(lambda: not cluster.broker.parts.groups.is_loading)
        await ask_everything(client, hostile)
        for group in GROUPS:
            await asyncio.wait_for(take_part(client, hostile, group), 120)
        end_transaction(cluster, hostile, producer_ids[2])
        for group in GROUPS:
            await client.ask(ApiKey.OFFSET_FETCH, group_id=group, topics=None, require_stable=True)
        await client.ask(ApiKey.DELETE_GROUPS, groups_names=list(GROUPS))

    async with running(
        tmp_path,
        limit_s=7200,
        offsets_topic_num_partitions=1,
        offsets_topic_replication_factor=1,
        group_initial_rebalance_delay_ms=0,
        group_min_session_timeout_ms=1,
    ) as (cluster, client):
        await find_coordinator(client)
        for seed in seeds(8):
            try:
                await play(cluster, client, seed)
                assert not cluster.broker.failure.done(), cluster.broker.failure
            except BaseException as error:
                error.add_note(f"seed {seed}; {cluster.broker.failure}")
                raise
