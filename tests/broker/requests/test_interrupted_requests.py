"""What becomes of a request whose client hangs up before it is answered."""

from pathlib import Path

from klamm.broker.handlers import APIS
from klamm.protocol import messages
from klamm.protocol.apis.offset_commit import OffsetCommitRequest
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.apis.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from klamm.protocol.messages import ApiKey
from support.group_wire import find_coordinator
from support.one_broker import Client, OneBroker, batch, running, until

GROUPS, PARTITIONS = 20, 500

# They only read, or change what they change in one step before they wait.
END_WITH_THEIR_CLIENTS = {
    "API_VERSIONS",
    "DESCRIBE_ACLS",
    "DESCRIBE_CLIENT_QUOTAS",
    "DESCRIBE_CLUSTER",
    "DESCRIBE_CONFIGS",
    "DESCRIBE_GROUPS",
    "DESCRIBE_LOG_DIRS",
    "DESCRIBE_PRODUCERS",
    "DESCRIBE_TRANSACTIONS",
    "FETCH",
    "FIND_COORDINATOR",
    "HEARTBEAT",
    "JOIN_GROUP",
    "LIST_GROUPS",
    "LIST_OFFSETS",
    "LIST_PARTITION_REASSIGNMENTS",
    "LIST_TRANSACTIONS",
    "METADATA",
    "OFFSET_COMMIT",
    "OFFSET_FETCH",
    "OFFSET_FOR_LEADER_EPOCH",
    "SYNC_GROUP",
}
RUN_TO_THEIR_END = {
    "ADD_OFFSETS_TO_TXN",
    "ADD_PARTITIONS_TO_TXN",
    "ALTER_CLIENT_QUOTAS",
    "ALTER_CONFIGS",
    "ALTER_ISR",
    "ALTER_PARTITION_REASSIGNMENTS",
    "ALTER_REPLICA_LOG_DIRS",
    "CONTROLLED_SHUTDOWN",
    "CREATE_ACLS",
    "CREATE_PARTITIONS",
    "CREATE_TOPICS",
    "DELETE_ACLS",
    "DELETE_GROUPS",
    "DELETE_RECORDS",
    "DELETE_TOPICS",
    "ELECT_LEADERS",
    "END_TXN",
    "INCREMENTAL_ALTER_CONFIGS",
    "INIT_PRODUCER_ID",
    "LEADER_AND_ISR",
    "LEAVE_GROUP",
    "OFFSET_DELETE",
    "PRODUCE",
    "STOP_REPLICA",
    "TXN_OFFSET_COMMIT",
    "UPDATE_FEATURES",
    "UPDATE_METADATA",
    "WRITE_TXN_MARKERS",
}


def update_metadata(cluster: OneBroker, leader: int) -> UpdateMetadataRequest:
    """The controller says that this broker leads all partitions of `doomed`, or that they are being deleted."""
    epoch = cluster.controller_epoch
    states = [UpdateMetadataPartitionState(number, epoch, leader, 0, (0,), 0, (0,)) for number in range(PARTITIONS)]
    topics = [UpdateMetadataTopicState("doomed", None, states)]
    return UpdateMetadataRequest(
        controller_id=0, controller_epoch=epoch, broker_epoch=cluster.broker_epoch, topic_states=topics, live_brokers=[]
    )


async def commit(client: Client, group: str) -> None:
    offsets = {("doomed", number): 7 for number in range(PARTITIONS)}
    answer = await client.request(ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest.of(group, offsets))
    assert set(answer.error_codes().values()) == {0}


async def test_an_interrupted_update_metadata_forgets_no_offsets_of_deleted_topics(tmp_path: Path) -> None:
    async with running(tmp_path, offsets_topic_num_partitions=1, offsets_topic_replication_factor=1) as (
        cluster,
        client,
    ):

        def offsets_left() -> int:
            return sum(group.offsets.count for group in cluster.broker.parts.groups.groups())

        await find_coordinator(client)
        assert (await client.request(ApiKey.UPDATE_METADATA, 7, update_metadata(cluster, 0))).error_code == 0
        for number in range(GROUPS):
            await commit(client, f"g{number}")
        assert offsets_left() == 10_000

        controller = await cluster.connect()
        for buffer in messages.encode_request(
            ApiKey.UPDATE_METADATA, 7, 1, "controller", update_metadata(cluster, LEADER_DURING_DELETE)
        ):
            controller.send_raw(bytes(buffer))
        await until(lambda: offsets_left() < 10_000)
        assert offsets_left() > 0
        await controller.close()
        # As the controller does whose connection has ended.
        again = update_metadata(cluster, LEADER_DURING_DELETE)
        assert (await (await cluster.connect()).request(ApiKey.UPDATE_METADATA, 7, again)).error_code == 0
        assert offsets_left() == 0


def test_only_requests_that_leave_nothing_half_done_end_with_their_clients() -> None:
    assert {key.name for key, api in APIS.items() if api.ends_with_client} == END_WITH_THEIR_CLIENTS
    assert {key.name for key, api in APIS.items() if not api.ends_with_client} == RUN_TO_THEIR_END


async def test_a_creation_of_topics_runs_to_its_end_and_nobody_waits_for_their_leaders(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, _):
        create = messages.request_class(ApiKey.CREATE_TOPICS)
        names = [f"t{number}" for number in range(30)]
        topics = [
            create.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
            for name in names
        ]
        body = create(topics=topics, timeout_ms=2**31 - 1, validate_only=False)
        gone = await cluster.connect()
        for buffer in messages.encode_request(ApiKey.CREATE_TOPICS, 7, 1, "gone", body):
            gone.send_raw(bytes(buffer))
        known = cluster.broker.parts.metadata_cache
        await until(lambda: len(known.snapshot.topics) > 0)
        assert len(known.snapshot.topics) < len(names)
        await gone.close()
        await until(lambda: sorted(known.snapshot.topics) == sorted(names))
        (listener,) = cluster.broker.parts.listeners.values()
        await until(lambda: not listener._abandoned)


async def test_a_produce_is_kept_and_its_replicas_are_waited_for_by_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        await cluster.begin_leader_epoch(client, "t", 1, isr=(0, 1), replicas=(0, 1))
        gone = await cluster.connect()
        body = ProduceRequest.of(None, -1, 2**31 - 1, [("t", [(0, batch(b"kept"))])])
        for buffer in messages.encode_request(ApiKey.PRODUCE, 9, 1, "gone", body):
            gone.send_raw(bytes(buffer))
        replicas = cluster.broker.parts.replica_manager
        await until(lambda: len(replicas.produce_purgatory) == 1)
        await gone.close()
        await until(lambda: len(replicas.produce_purgatory) == 0)
        assert replicas.partition("t", 0).log.log_end_offset == 1
