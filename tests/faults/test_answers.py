"""Faults of answers at a real broker in this process: each API's error where Kafka puts it, and what has had effect."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.handlers import APIS
from klamm.faults.answers import Answers
from klamm.faults.commands.answers import AnswerFault, DelayAnswers, DisconnectClients, DropAnswers, FailAnswers
from klamm.faults.request_subjects import API_KEYS
from klamm.faults.tally import Tally
from klamm.processes.readiness import CLIENT_ID
from klamm.protocol import messages
from klamm.protocol.apis.fetch import FetchRequest
from klamm.protocol.apis.metadata import MetadataRequest
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from support.fetch_messages import fetch_request, to_fetch
from support.one_broker import Client, batch, running, until, values

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Injected:
    """The faults of a broker in this process, counted as in a cluster of one."""

    def __init__(self, cluster: Any, directory: Path) -> None:
        self._directory = directory
        self.answers = Answers()
        self.answers.serve(cluster.broker.parts.dispatcher)
        self.struck: list[dict[str, Any]] = []
        self.tallies: list[Tally] = []
        cluster._stack.callback(self._close)

    def _close(self) -> None:
        for tally in self.tallies:
            tally.close()

    def add(self, fault: AnswerFault) -> Callable[[], None]:
        number = len(self.tallies) + 1
        tally = Tally(
            number,
            str(self._directory),
            lambda tally, details: self.struck.append({"fault": tally.number, **details}),
        )
        self.tallies.append(tally)
        return self.answers.install(fault, tally)


def codes_of(response: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, one.index): one.error_code for topic in response.responses for one in topic.partition_responses
    }


async def produce(client: Client, *partitions: tuple[str, int], version: int = 9) -> dict[tuple[str, int], int]:
    topics: dict[str, list[tuple[int, Any]]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append((number, batch(b"a")))
    body = ProduceRequest.of(None, -1, 10_000, topics.items())
    return codes_of(await client.request(ApiKey.PRODUCE, version, body))


async def end_offset(client: Client, topic: str, number: int) -> int:
    return (await client.fetch(topic, number, 0)).high_watermark


async def metadata(client: Client, *names: str) -> Any:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return await client.request(ApiKey.METADATA, 9, MetadataRequest(topics=topics))


# -- which requests are struck


@pytest.mark.parametrize(
    ("conditions", "struck"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"times": 1}, [1]),
        ({"times": 2}, [1, 2]),
        ({"on_call": (3,)}, [3]),
        ({"on_call": (2, 4)}, [2, 4]),
        ({"on_call": (2, 4), "times": 1}, [2]),
        ({"probability": 0.0}, []),
        ({"probability": 1.0, "times": 3}, [1, 2, 3]),
        ({"client_id": "test"}, [1, 2, 3, 4, 5]),
        ({"client_id": "other"}, []),
        ({"topic": "t"}, [1, 2, 3, 4, 5]),
        ({"topic": "u"}, []),
        ({"topic": "t", "partition": 1}, []),
        ({"partition": 0, "on_call": (5,)}, [5]),
        ({"transactional_id": "x"}, []),
    ],
)
async def test_a_fault_strikes_the_calls_that_it_names(
    tmp_path: Path, conditions: dict[str, Any], struck: list[int]
) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        faults = Injected(cluster, tmp_path)
        faults.add(FailAnswers(api="Produce", error="NOT_LEADER_OR_FOLLOWER", **conditions))
        codes = [(await produce(client, ("t", 0)))["t", 0] for _ in range(5)]
        assert [number for number, code in enumerate(codes, 1) if code == NOT_LEADER] == struck
        assert faults.tallies[0].hits == len(struck)
        assert await end_offset(client, "t", 0) == 5 - len(struck)


@pytest.mark.parametrize(("named", "calls"), [(None, 1), (CLIENT_ID, 1), ("test", 0)])
async def test_the_clusters_own_requests_are_no_calls_unless_they_are_named(
    tmp_path: Path, named: str | None, calls: int
) -> None:
    async with running(tmp_path) as (cluster, client):
        faults = Injected(cluster, tmp_path)
        faults.add(DisconnectClients(api="Metadata", client_id=named, after=True, on_call=(2,)))
        own = CLIENT_ID if named != "test" else "another"
        await client.request(ApiKey.METADATA, 9, MetadataRequest(topics=[]), client_id=own)
        if named is None:
            await metadata(client, "t")
        assert faults.tallies[0].calls == calls


async def test_the_same_seed_strikes_the_same_calls(tmp_path: Path) -> None:
    async def struck(seed: int, name: str) -> list[int]:
        (tmp_path / name).mkdir()
        faults = Injected(cluster, tmp_path / name)
        remove = faults.add(FailAnswers(api="Produce", error="REQUEST_TIMED_OUT", probability=0.3, seed=seed))
        codes = [(await produce(client, ("t", 0)))["t", 0] for _ in range(40)]
        remove()
        return [number for number, code in enumerate(codes) if code]

    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        first = await struck(7, "a")
        assert first == await struck(7, "b")
        assert first != await struck(8, "c")
        assert 4 < len(first) < 22


async def test_a_fault_that_is_removed_strikes_nothing_and_leaves_the_broker_s_own_table(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        own = dict(cluster.broker.parts.dispatcher.apis)
        faults = Injected(cluster, tmp_path)
        removes = [faults.add(FailAnswers(api="Produce", error="REQUEST_TIMED_OUT")) for _ in range(2)]
        assert cluster.broker.parts.dispatcher.apis != own
        for remove in removes:
            remove()
        assert cluster.broker.parts.dispatcher.apis == own
        assert await produce(client, ("t", 0)) == {("t", 0): 0}


# -- errors where Kafka puts them


async def test_the_other_partitions_of_a_produce_are_appended(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=2)
        await client.create_topic("u")
        faults = Injected(cluster, tmp_path)
        faults.add(FailAnswers(api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic="t", partition=1))
        codes = await produce(client, ("t", 0), ("t", 1), ("u", 0))
        assert codes == {("t", 0): 0, ("t", 1): NOT_LEADER, ("u", 0): 0}
        assert [await end_offset(client, *one) for one in (("t", 0), ("t", 1), ("u", 0))] == [1, 0, 1]
        assert faults.struck == [{"fault": 1, "api": "Produce", "client_id": "test", "topic": "t", "partition": 1}]


async def test_an_append_whose_answer_is_an_error_has_happened(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=2)
        Injected(cluster, tmp_path).add(
            FailAnswers(api="Produce", error="NOT_ENOUGH_REPLICAS_AFTER_APPEND", partition=1, after=True)
        )
        codes = await produce(client, ("t", 0), ("t", 1))
        assert codes == {("t", 0): 0, ("t", 1): ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND}
        assert [await end_offset(client, "t", number) for number in (0, 1)] == [1, 1]


async def test_a_produce_without_acknowledgement_that_fails_is_disconnected(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        Injected(cluster, tmp_path).add(FailAnswers(api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic="t"))
        body = ProduceRequest.of(None, 0, 1000, [("t", [(0, batch(b"a"))])])
        client.send_raw(b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, 99, "c", body))))
        assert await client.is_closed()
        assert await end_offset(await cluster.connect(), "t", 0) == 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("version", [4, 12])
async def test_an_error_of_fetch_stands_in_its_partitions(tmp_path: Path, version: int, after: bool) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=2)
        await produce(client, ("t", 0), ("t", 1))
        Injected(cluster, tmp_path).add(
            FailAnswers(api="Fetch", error="OFFSET_OUT_OF_RANGE", topic="t", partition=1, after=after)
        )
        body = fetch_request(("t", [to_fetch(0, 0, 1 << 20), to_fetch(1, 0, 1 << 20)]), max_wait_ms=0, min_bytes=1)
        response = await client.request(ApiKey.FETCH, version, body)
        assert response.error_code == 0
        answers = {one.partition_index: one for one in response.responses[0].partitions}
        assert (answers[0].error_code, values(answers[0].records)) == (0, [b"a"])
        assert (answers[1].error_code, values(answers[1].records)) == (ErrorCode.OFFSET_OUT_OF_RANGE, [])


async def test_an_incremental_fetch_that_does_not_name_the_partition_fails_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        await client.create_topic("u")
        named = [("t", [to_fetch(0, 0, 1 << 20)]), ("u", [to_fetch(0, 0, 1 << 20)])]
        first = await client.request(ApiKey.FETCH, 12, fetch_request(*named, max_wait_ms=0, session_epoch=0))
        faults = Injected(cluster, tmp_path)
        faults.add(FailAnswers(api="Fetch", error="NOT_LEADER_OR_FOLLOWER", topic="t", times=1))

        async def incremental(epoch: int, max_wait_ms: int) -> dict[str, int]:
            body = FetchRequest(
                session_id=first.session_id, session_epoch=epoch, max_wait_ms=max_wait_ms, min_bytes=1, topics=[]
            )
            response = await client.request(ApiKey.FETCH, 12, body)
            return {topic.topic: topic.partitions[0].error_code for topic in response.responses}

        assert await incremental(1, 60_000) == {"t": NOT_LEADER}
        # Its high watermark counts as never sent.
        assert await incremental(2, 0) == {"t": 0}
        assert faults.tallies[0].calls == 2


async def test_an_error_of_a_fetch_session_concerns_the_whole_fetch(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        Injected(cluster, tmp_path).add(FailAnswers(api="Fetch", error="FETCH_SESSION_ID_NOT_FOUND"))
        response = await client.request(ApiKey.FETCH, 12, fetch_request(("t", [to_fetch(0, 0, 100)]), max_wait_ms=0))
        assert (response.error_code, response.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])


async def test_metadata_that_fails_still_names_the_brokers_and_creates_no_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=2)
        await client.create_topic("u")
        faults = Injected(cluster, tmp_path)
        remove = faults.add(FailAnswers(api="Metadata", error="LEADER_NOT_AVAILABLE"))
        for response in (
            await metadata(client, "t", "new"),
            await client.request(ApiKey.METADATA, 0, MetadataRequest(topics=[])),
        ):
            assert len(response.brokers) == 1
            assert {topic.error_code for topic in response.topics} == {ErrorCode.LEADER_NOT_AVAILABLE}
            assert [topic.partitions for topic in response.topics] == [[], []]
        only_brokers = await metadata(client)
        assert (len(only_brokers.brokers), only_brokers.topics, faults.tallies[0].calls) == (1, [], 2)
        remove()
        assert "new" not in cluster.broker.parts.metadata_cache.snapshot.topics
        faults.add(FailAnswers(api="Metadata", error="LEADER_NOT_AVAILABLE", topic="t", partition=1))
        response = await metadata(client, "t", "u")
        found = {topic.name: topic for topic in response.topics}
        assert (found["t"].error_code, found["u"].error_code) == (0, 0)
        assert {one.partition_index: (one.error_code, one.leader_id) for one in found["t"].partitions} == {
            0: (0, 0),
            1: (ErrorCode.LEADER_NOT_AVAILABLE, -1),
        }


@pytest.mark.parametrize("version", [0, 1])
async def test_metadata_whose_only_topic_fails_names_no_other(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        await client.create_topic("u")
        Injected(cluster, tmp_path).add(FailAnswers(api="Metadata", error="LEADER_NOT_AVAILABLE", topic="t"))
        topics = [MetadataRequest.MetadataRequestTopic(name="t")]
        response = await client.request(ApiKey.METADATA, version, MetadataRequest(topics=topics))
        assert [(topic.name, topic.error_code) for topic in response.topics] == [("t", ErrorCode.LEADER_NOT_AVAILABLE)]


async def test_of_a_produce_without_acknowledgement_the_other_partitions_are_appended(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=2)
        Injected(cluster, tmp_path).add(FailAnswers(api="Produce", error="NOT_LEADER_OR_FOLLOWER", partition=0))
        body = ProduceRequest.of(None, 0, 1000, [("t", [(0, batch(b"a")), (1, batch(b"a"))])])
        client.send_raw(b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, 99, "c", body))))
        assert await client.is_closed()
        other = await cluster.connect()
        assert [await end_offset(other, "t", number) for number in (0, 1)] == [0, 1]


async def test_a_topic_is_not_created_and_another_of_the_request_is(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        Injected(cluster, tmp_path).add(FailAnswers(api="CreateTopics", error="POLICY_VIOLATION", topic="t"))
        assert (await client.create_topic("t")).error_code == ErrorCode.POLICY_VIOLATION
        assert (await client.create_topic("u")).error_code == 0
        assert {topic.name for topic in (await metadata(client, "u")).topics} == {"u"}


async def test_an_error_of_offset_fetch_stands_in_a_partition_if_one_is_named(tmp_path: Path) -> None:
    async with running(tmp_path, offsets_topic_replication_factor=1, offsets_topic_num_partitions=1) as (
        cluster,
        client,
    ):
        await client.create_topic("t", partitions=2)
        request = messages.request_class(ApiKey.OFFSET_FETCH)
        topics = [request.OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
        await until_coordinator(client)
        faults = Injected(cluster, tmp_path)
        remove = faults.add(FailAnswers(api="OffsetFetch", error="UNSTABLE_OFFSET_COMMIT", partition=1, group="g"))
        response = await client.ask(ApiKey.OFFSET_FETCH, 7, group_id="g", topics=topics, require_stable=True)
        codes = {one.partition_index: one.error_code for one in response.topics[0].partitions}
        assert (response.error_code, codes) == (0, {0: 0, 1: ErrorCode.UNSTABLE_OFFSET_COMMIT})
        other = await client.ask(ApiKey.OFFSET_FETCH, 7, group_id="h", topics=topics, require_stable=True)
        assert {one.error_code for one in other.topics[0].partitions} == {0}
        remove()
        faults.add(FailAnswers(api="OffsetFetch", error="NOT_COORDINATOR", group="g"))
        response = await client.ask(ApiKey.OFFSET_FETCH, 7, group_id="g", topics=topics, require_stable=True)
        assert response.error_code == ErrorCode.NOT_COORDINATOR


async def until_coordinator(client: Client) -> None:
    for _ in range(1_000):
        found = await client.ask(ApiKey.FIND_COORDINATOR, 3, key="g", key_type=0)
        if found.error_code == 0:
            heartbeat = await client.ask(ApiKey.HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m")
            if heartbeat.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                return
        await asyncio.sleep(0.01)
    raise AssertionError("no coordinator")


# -- delays, silence, closed connections


async def test_a_delayed_produce_keeps_its_place(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        faults = Injected(cluster, tmp_path)
        remove = faults.add(DelayAnswers(api="Produce", delay_ms=3_600_000, times=1))
        for number, value in enumerate((b"first", b"second")):
            body = ProduceRequest.of(None, -1, 10_000, [("t", [(0, batch(value))])])
            client.send_raw(b"".join(map(bytes, messages.encode_request(ApiKey.PRODUCE, 9, number, "c", body))))
        other = await cluster.connect()
        await until(lambda: faults.tallies[0].hits == 1)
        assert await end_offset(other, "t", 0) == 0
        remove()
        for _ in range(2):
            await client.receive()
        assert values((await other.fetch("t", 0, 0)).records) == [b"first", b"second"]


async def test_a_delay_after_the_effect_holds_back_only_the_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        faults = Injected(cluster, tmp_path)
        remove = faults.add(DelayAnswers(api="Produce", delay_ms=3_600_000, after=True))
        producing = asyncio.ensure_future(produce(client, ("t", 0)))
        await until(lambda: faults.tallies[0].hits == 1)
        assert await end_offset(await cluster.connect(), "t", 0) == 1
        assert not producing.done()
        remove()
        assert await producing == {("t", 0): 0}


async def test_a_delay_ends_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        Injected(cluster, tmp_path).add(DelayAnswers(api="Produce", delay_ms=80))
        begun_s = asyncio.get_running_loop().time()
        assert await produce(client, ("t", 0)) == {("t", 0): 0}
        assert asyncio.get_running_loop().time() - begun_s > 0.075


@pytest.mark.parametrize(("after", "appended"), [(False, 0), (True, 1)])
async def test_a_dropped_produce_has_no_answer_and_nothing_after_it_has_one(
    tmp_path: Path, after: bool, appended: int
) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        faults = Injected(cluster, tmp_path)
        faults.add(DropAnswers(api="Produce", times=1, after=after))
        producing = [asyncio.ensure_future(produce(client, ("t", 0)))]
        await until(lambda: faults.tallies[0].hits == 1)
        other = await cluster.connect()
        assert await end_offset(other, "t", 0) == appended
        assert await produce(other, ("t", 0)) == {("t", 0): 0}
        assert not producing[0].done()
        faults.answers.close()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await producing[0]


async def test_a_silent_connection_closes_when_the_fault_is_removed(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        faults = Injected(cluster, tmp_path)
        remove = faults.add(DropAnswers(api="Produce"))
        producing = asyncio.ensure_future(produce(client, ("t", 0)))
        await until(lambda: faults.tallies[0].hits == 1)
        remove()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await producing
        assert await produce(await cluster.connect(), ("t", 0)) == {("t", 0): 0}


async def test_a_fault_that_is_installed_while_the_broker_stops_does_not_strike(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        faults = Injected(cluster, tmp_path)
        faults.answers.close()
        faults.add(DropAnswers(api="Produce"))
        assert await produce(client, ("t", 0)) == {("t", 0): 0}


async def test_a_client_that_leaves_a_silent_connection_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        faults = Injected(cluster, tmp_path)
        faults.add(DropAnswers(api="Produce", times=1))
        producing = asyncio.ensure_future(produce(client, ("t", 0)))
        (active,) = faults.answers._active[ApiKey.PRODUCE]
        await until(lambda: bool(active.silent))
        await client.close()
        await until(lambda: not active.silent)
        producing.cancel()


@pytest.mark.parametrize(("after", "appended"), [(False, 0), (True, 1)])
async def test_a_disconnected_produce_has_had_its_effect_only_after_it(
    tmp_path: Path, after: bool, appended: int
) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        Injected(cluster, tmp_path).add(DisconnectClients(api="Produce", after=after))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await produce(client, ("t", 0))
        assert await end_offset(await cluster.connect(), "t", 0) == appended


async def test_of_several_faults_delays_add_up_and_the_oldest_other_decides(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        faults = Injected(cluster, tmp_path)
        faults.add(DelayAnswers(api="Produce", delay_ms=40))
        faults.add(FailAnswers(api="Produce", error="REQUEST_TIMED_OUT"))
        faults.add(DelayAnswers(api="Produce", delay_ms=40))
        faults.add(DisconnectClients(api="Produce"))
        begun_s = asyncio.get_running_loop().time()
        assert await produce(client, ("t", 0)) == {("t", 0): ErrorCode.REQUEST_TIMED_OUT}
        assert asyncio.get_running_loop().time() - begun_s > 0.075


async def test_faults_of_different_items_of_one_request_all_strike(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=4)
        faults = Injected(cluster, tmp_path)
        for number, error, after in (
            (0, "INVALID_RECORD", False),
            (1, "CORRUPT_MESSAGE", False),
            (2, "INVALID_TIMESTAMP", True),
        ):
            faults.add(FailAnswers(api="Produce", error=error, partition=number, after=after))
        codes = await produce(client, *(("t", number) for number in range(4)))
        assert codes == {
            ("t", 0): ErrorCode.INVALID_RECORD,
            ("t", 1): ErrorCode.CORRUPT_MESSAGE,
            ("t", 2): ErrorCode.INVALID_TIMESTAMP,
            ("t", 3): 0,
        }
        assert [await end_offset(client, "t", number) for number in range(4)] == [0, 0, 1, 1]
        assert [tally.hits for tally in faults.tallies] == [1, 1, 1]


async def test_faults_of_different_partitions_of_one_fetch_all_strike(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t", partitions=3)
        await produce(client, *(("t", number) for number in range(3)))
        faults = Injected(cluster, tmp_path)
        faults.add(FailAnswers(api="Fetch", error="OFFSET_OUT_OF_RANGE", partition=0))
        faults.add(FailAnswers(api="Fetch", error="UNKNOWN_LEADER_EPOCH", partition=1, after=True))
        faults.add(FailAnswers(api="Fetch", error="CORRUPT_MESSAGE", partition=1, times=1))
        request = fetch_request(("t", [to_fetch(number, 0, 100) for number in range(3)]), max_wait_ms=0)
        response = await client.request(ApiKey.FETCH, 12, request)
        codes = {one.partition_index: one.error_code for one in response.responses[0].partitions}
        assert codes == {0: ErrorCode.OFFSET_OUT_OF_RANGE, 1: ErrorCode.UNKNOWN_LEADER_EPOCH, 2: 0}
        assert [tally.hits for tally in faults.tallies] == [1, 1, 0]


async def test_a_fault_that_does_not_decide_has_not_struck(tmp_path: Path) -> None:
    async with running(tmp_path) as (cluster, client):
        await client.create_topic("t")
        faults = Injected(cluster, tmp_path)
        for error in ("INVALID_RECORD", "CORRUPT_MESSAGE"):
            faults.add(FailAnswers(api="Produce", error=error, times=1))
        faults.add(DropAnswers(api="Produce", on_call=(1,)))
        codes = [(await produce(client, ("t", 0)))["t", 0] for _ in range(3)]
        assert codes == [ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE, 0]
        assert [(tally.calls, tally.hits) for tally in faults.tallies] == [(3, 1), (3, 1), (3, 0)]


# -- the names


def test_the_names_of_the_apis_are_those_that_a_broker_serves() -> None:
    assert set(API_KEYS.values()) == set(APIS)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"api": "Prodce"}, "answers.fail: api='Prodce' is not served; allowed: Produce, "),
        ({"api": "PRODUCE"}, "answers.fail: api='PRODUCE' is not served; allowed: Produce, "),
        ({"error": "NOT_LEADER"}, "answers.fail: there is no error 'NOT_LEADER'; allowed: NOT_LEADER_OR_FOLLOWER, "),
        ({"error": "NONE"}, "answers.fail: there is no error 'NONE'; allowed: "),
        ({"times": 0}, "answers.fail: times=0 is not allowed; allowed: at least 1"),
        ({"on_call": (0,)}, "answers.fail: on_call=(0,) is not allowed; allowed: numbers of calls, from 1"),
        ({"probability": 1.5}, "answers.fail: probability=1.5 is not allowed; allowed: from 0 to 1"),
        ({"partition": -1}, "answers.fail: partition=-1 is not allowed; allowed: at least 0"),
        ({"group": "g"}, "answers.fail: Produce names no group; these APIs do: OffsetCommit, "),
        ({"api": "Heartbeat", "topic": "t"}, "answers.fail: Heartbeat names no topic; these APIs do: Produce, "),
        ({"api": "CreateTopics", "partition": 1}, "answers.fail: CreateTopics names no partition; these APIs do: "),
    ],
)
def test_a_wrong_name_or_number_is_refused_with_what_is_allowed(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as refused:
        FailAnswers(**{"api": "Produce", "error": "REQUEST_TIMED_OUT"} | fields)
    assert str(refused.value).startswith(complaint)


def test_a_report_shows_the_line_that_injects_the_fault_again() -> None:
    fault = FailAnswers(api="Produce", error="REQUEST_TIMED_OUT", topic="t", on_call=(3,))
    assert fault.python() == "c.fail(api='Produce', topic='t', on_call=(3,), error='REQUEST_TIMED_OUT')"
    assert DelayAnswers(api="Fetch", delay_ms=5).python() == "c.delay(api='Fetch', delay_ms=5)"
    assert DropAnswers(api="Fetch", after=True).python() == "c.drop(api='Fetch', after=True)"
    assert DisconnectClients(api="Fetch").python() == "c.disconnect(api='Fetch')"
