"""No step holds the loop for long, however much a request names: decoding, the handler and encoding pause in between.

A step is measured in opcodes, because time differs from run to run. Slices are as small as they can be, so work that
does not pause stands out in a request of some hundred elements.
"""

import asyncio
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.broker.handlers import APIS, altered_resources
from klamm.broker.requests.dispatcher import Dispatcher
from klamm.broker.requests.fetch_session import MAX_SESSION_PARTITIONS
from klamm.broker.topics.topic_admin import MAX_NEW_PARTITIONS
from klamm.faults.answers import Answers
from klamm.faults.commands import FailAnswers
from klamm.faults.request_subjects import ONE_BY_ONE, PARTITIONED
from klamm.faults.tally import Tally
from klamm.net.server.exchange import AnswerOnly, Response
from klamm.protocol import messages
from klamm.protocol.apis.create_partitions import CreatePartitionsRequest
from klamm.protocol.apis.create_topics import CreateTopicsRequest
from klamm.protocol.compiler import counters, writing
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.simulation.machine.small_slices import small_slices
from support.exchanges import exchange
from support.fetch_messages import fetch_request, to_fetch
from support.filled_requests import CASES, ELEMENTS, TOPIC, Filling, frame_of
from support.group_wire import find_coordinator
from support.one_broker import Client, running, until
from support.opcodes import MAX_OPCODES, Steps, counted_steps
from support.quotas import client_quotas
from support.transaction_wire import Producer

# Those of a step without elements, which come in addition.
FIXED_OPCODES = 2_500
# A request with more is refused before any work.
MAX_CONFIGS = altered_resources.MAX_CONFIGS
MAX_ELEMENTS = {
    (ApiKey.ALTER_CONFIGS, "configs"): MAX_CONFIGS,
    (ApiKey.INCREMENTAL_ALTER_CONFIGS, "configs"): MAX_CONFIGS,
}

# So many that describing a topic, which takes as long for one with a single partition, does not count.
NEW_PARTITIONS = 2_000

LONG_NAME = 16_000
LONG_NAMES = 8

# Some of them lie in each phase of a request: decoding, the handler, encoding.
TURNS_UNTIL_HANG_UP = (1, 2, 4, 8, 50, 250)


async def answered(client: Client, frame: bytes) -> None:
    client.send_raw(frame)
    (size,) = struct.unpack(">i", await client.reader.readexactly(4))
    await client.reader.readexactly(size)


def max_opcodes(key: ApiKey, path: tuple[str, ...]) -> float:
    """For a step of a request with `ELEMENTS` in the array, so that it stays short with as many as are allowed."""
    size = messages.request_class(key).api.size
    most = MAX_ELEMENTS.get((key, path[-1]), messages.MAX_ELEMENTS[size])
    return MAX_OPCODES * ELEMENTS / most + FIXED_OPCODES


def compile_codecs(key: ApiKey) -> None:
    """Otherwise a step that needs one first would count its compilation."""
    version = APIS[key].max_version
    messages._request_decoder(key, version)
    messages._request_decoder_in_steps(key, version)
    messages._response_encoder(key, version)
    messages._response_encoder_in_steps(key, version)
    messages._request_encoder(key, version)  # The controller is a client.
    messages._request_encoder_in_steps(key, version)
    messages._response_decoder(key, version)
    messages._response_decoder_in_steps(key, version)
    messages.error_counter(key)
    messages._error_counter_in_steps(key)
    for message_class in (messages.request_class(key), messages.response_class(key)):
        counters.is_large(Filling().message(message_class, version, ()))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All work in slices and steps pauses as soon as it can."""
    codecs = (
        messages._request_decoder_in_steps,
        messages._request_encoder_in_steps,
        messages._response_decoder_in_steps,
        messages._response_encoder_in_steps,
        messages._error_counter_in_steps,
    )
    monkeypatch.setitem(writing.HELPERS, "STEP", 64)
    monkeypatch.setattr("klamm.broker.requests.dispatcher.LARGE_FRAME_BYTES", 512)
    monkeypatch.setattr(counters, "LARGE_ELEMENTS", 50)
    monkeypatch.setattr(counters, "_COUNTERS", {})
    for codec in codecs:
        codec.cache_clear()
    with small_slices():
        for key in APIS:
            compile_codecs(key)
        yield
    for codec in codecs:
        codec.cache_clear()


async def test_no_step_grows_with_the_request(tmp_path: Path, small_steps: None) -> None:
    too_long = []

    properties: dict[str, Any] = {"offsets_topic_num_partitions": 1, "offsets_topic_replication_factor": 1}
    properties["zookeeper_session_timeout_ms"] = 60_000  # counting makes steps slow
    async with running(tmp_path, auto_create_topics_enable=False, **properties) as (_, client):
        await client.create_topic(TOPIC)
        await find_coordinator(client, "g")
        # The first append to a log loads its indexes, however much it appends.
        await answered(client, frame_of(ApiKey.OFFSET_COMMIT, ("topics",)))
        for key, path in CASES:
            frame = frame_of(key, path)
            with counted_steps() as steps:
                await answered(client, frame)
            if steps.opcodes > max_opcodes(key, path):
                too_long.append(f"{key.name} {'.'.join(path)}: {steps.opcodes} opcodes, most in {steps.function}")
    assert not too_long, "\n".join(too_long)


async def test_no_step_grows_with_a_fetch_session(tmp_path: Path, small_steps: None) -> None:
    """Its requests name nothing."""
    properties: dict[str, Any] = {"offsets_topic_num_partitions": 1, "zookeeper_session_timeout_ms": 60_000}
    async with running(tmp_path, **properties) as (_, client):
        begin = fetch_request((TOPIC, [to_fetch(number) for number in range(ELEMENTS)]), session_epoch=0, max_wait_ms=0)
        begun = await client.request(ApiKey.FETCH, 12, begin)
        go_on = fetch_request(session_id=begun.session_id, session_epoch=1, max_wait_ms=0)
        with counted_steps() as steps:
            answer = await client.request(ApiKey.FETCH, 12, go_on)
        assert len(answer.responses[0].partitions) == ELEMENTS
        most = MAX_OPCODES * ELEMENTS / MAX_SESSION_PARTITIONS + FIXED_OPCODES
        assert steps.opcodes <= most, f"{steps.opcodes} opcodes, most in {steps.function}"


async def test_no_step_grows_with_the_number_of_new_partitions(tmp_path: Path, small_steps: None) -> None:
    """A request may ask for very many in a few bytes, of one topic or of many together."""
    too_long = []
    properties: dict[str, Any] = {"offsets_topic_num_partitions": 1, "zookeeper_session_timeout_ms": 60_000}
    async with running(tmp_path, auto_create_topics_enable=False, **properties) as (_, client):
        await client.create_topic(TOPIC)
        growing = CreatePartitionsRequest.CreatePartitionsTopic(name=TOPIC, count=1 + NEW_PARTITIONS, assignments=None)
        requests = {
            "one topic": create_topics(1),
            "ten topics": create_topics(10),
            "more": CreatePartitionsRequest(topics=[growing], timeout_ms=0, validate_only=True),
        }
        for name, request in requests.items():
            key = ApiKey(request.api.key)
            with counted_steps() as steps:
                answer = await client.request(key, APIS[key].max_version, request)
            results = answer.results if name == "more" else answer.topics
            assert {result.error_code for result in results} == {ErrorCode.NONE}
            most = MAX_OPCODES * NEW_PARTITIONS / MAX_NEW_PARTITIONS + FIXED_OPCODES
            if steps.opcodes > most:
                too_long.append(f"{name}: {steps.opcodes} opcodes, most in {steps.function}")
    assert not too_long, "\n".join(too_long)


def create_topics(topic_count: int) -> CreateTopicsRequest:
    """Topics that have `NEW_PARTITIONS` partitions together."""
    topics = [
        CreateTopicsRequest.CreatableTopic(
            name=f"new-{number}",
            num_partitions=NEW_PARTITIONS // topic_count,
            replication_factor=1,
            assignments=[],
            configs=[],
        )
        for number in range(topic_count)
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=0, validate_only=True)


class LongNames(Filling):
    """Each name is nearly as long as a request can hold in its first versions."""

    def _element(self, kind: Any, version: int, path: tuple[str, ...], index: int) -> Any:
        element = super()._element(kind, version, path, index)
        return element.ljust(LONG_NAME, "x") if kind == "String" else element


async def test_no_step_grows_with_the_length_of_names(tmp_path: Path) -> None:
    """With usual slices, which would have many names."""
    too_long = []
    for key in APIS:
        compile_codecs(key)
    ids = dict.fromkeys(("group_id", "key", "member_id", "group_instance_id"), "x" * LONG_NAME)
    properties: dict[str, Any] = {"offsets_topic_num_partitions": 1, "offsets_topic_replication_factor": 1}
    properties |= {"transaction_state_log_num_partitions": 1, "transaction_state_log_replication_factor": 1}
    properties |= {"transaction_state_log_min_isr": 1}
    properties["zookeeper_session_timeout_ms"] = 60_000  # counting makes steps slow
    async with running(tmp_path, auto_create_topics_enable=False, **properties) as (_, client):
        await find_coordinator(client, "g")
        await Producer.begin(client, "t")
        for key, path in CASES:
            with counted_steps() as steps:
                await answered(client, frame_of(key, path, LongNames(LONG_NAMES, **ids)))
            if steps.opcodes > MAX_OPCODES:
                too_long.append(f"{key.name} {'.'.join(path)}: {steps.opcodes} opcodes, most in {steps.function}")
    assert not too_long, "\n".join(too_long)


# Where the errors of a fault stand in items: the longest lists.
STRUCK = [
    (key, path)
    for key, path in CASES
    if key in (*ONE_BY_ONE, ApiKey.FETCH, ApiKey.OFFSET_FETCH)
    and path[0] != "forgotten_topics_data"
    and path[-1] in (("partitions", "partition_data", "partition_indexes") if key in PARTITIONED else ("topics",))
]


@pytest.mark.long
async def test_no_step_grows_with_a_request_that_faults_strike(tmp_path: Path, small_steps: None) -> None:
    too_long = []
    properties: dict[str, Any] = {"offsets_topic_num_partitions": 1, "offsets_topic_replication_factor": 1}
    properties["zookeeper_session_timeout_ms"] = 60_000  # counting makes steps slow
    async with running(tmp_path, auto_create_topics_enable=False, **properties) as (cluster, client):
        await client.create_topic(TOPIC)
        await find_coordinator(client, "g")
        answers = Answers()
        answers.serve(cluster.broker.parts.dispatcher)
        numbers = count(1)
        for key, path in STRUCK:
            frame = frame_of(key, path)
            made = partial(FailAnswers, api=key.message_name, error="INVALID_REQUEST")
            names = f"name-{ELEMENTS - 1}", f"name-{ELEMENTS - 2}"
            faults = [made(after=index % 2 == 1, topic=name) for index, name in enumerate(names)]
            if key in PARTITIONED:
                numbered = enumerate((ELEMENTS - 1, ELEMENTS - 2))
                faults += [made(after=index % 2 == 1, partition=number) for index, number in numbered]
            tallies = [Tally(next(numbers), str(tmp_path), lambda *_: None) for _ in faults]
            removes = [answers.install(fault, tally) for fault, tally in zip(faults, tallies, strict=True)]
            with counted_steps() as steps:
                await answered(client, frame)
            for remove in removes:
                remove()
            assert any(tally.hits for tally in tallies), f"{key.name} {path}"
            if steps.opcodes > max_opcodes(key, path):
                too_long.append(f"{key.name} {'.'.join(path)}: {steps.opcodes} opcodes, most in {steps.function}")
    assert not too_long, "\n".join(too_long)


async def test_a_client_may_hang_up_at_any_step_of_any_request(tmp_path: Path, small_steps: None) -> None:
    properties: dict[str, Any] = {"offsets_topic_num_partitions": 1, "offsets_topic_replication_factor": 1}
    async with running(tmp_path, auto_create_topics_enable=False, **properties) as (cluster, client):
        await client.create_topic(TOPIC)
        await find_coordinator(client, "g")
        (listener,) = cluster.broker.parts.listeners.values()
        others = listener.connection_count
        for key, path in CASES:
            frame = frame_of(key, path)
            for turns in TURNS_UNTIL_HANG_UP:
                leaving = await cluster.connect()
                leaving.send_raw(frame)
                for _ in range(turns):
                    await asyncio.sleep(0)
                await leaving.close()
                await until(lambda: listener.connection_count == others and not listener._abandoned)
            assert not cluster.broker.failure.done(), f"{key.name} {path}: {cluster.broker.failure.result()!r}"


def refuse(request: Any) -> None:
    raise KafkaError(ErrorCode.NOT_CONTROLLER)


def steps_of_refusal(key: ApiKey, path: tuple[str, ...]) -> Steps:
    """Answers a request whose handler refuses it, without a broker."""
    services: Any = SimpleNamespace(apis={key: replace(APIS[key], handle=refuse)}, quotas=client_quotas())
    nothing = lambda: None  # noqa: E731
    connection: Any = SimpleNamespace(
        peer_host="1.2.3.4",
        hold_followers=lambda: nothing,
        frame_release=lambda: nothing,
    )
    dispatcher, frame, steps = Dispatcher(services, lambda: 0.0), bytearray(frame_of(key, path)[4:]), Steps()
    with steps.step():
        answer: Any = dispatcher.dispatch(connection, frame, exchange())
    while not isinstance(answer, Response):
        working = answer.answer() if isinstance(answer, AnswerOnly) else answer
        try:
            while True:
                with steps.step():
                    working.send(None)
        except StopIteration as end:
            answer = end.value
    return steps


def test_no_step_grows_with_a_request_that_is_refused(small_steps: None) -> None:
    too_long = []
    for key, path in CASES:
        steps = steps_of_refusal(key, path)
        if steps.opcodes > max_opcodes(key, path):
            too_long.append(f"{key.name} {'.'.join(path)}: {steps.opcodes} opcodes, most in {steps.function}")
    assert not too_long, "\n".join(too_long)
