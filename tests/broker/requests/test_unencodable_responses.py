"""A response that cannot be encoded is a fault of the program: it fails its own request, and names the field.

And the throttle time, which is set on every response that has a field for it, whatever the API.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import klamm.broker.handlers  # noqa: F401  # registers all APIs
from klamm.broker.quotas.bounds import QuotaEntity
from klamm.broker.quotas.client_quotas import ClientQuotas
from klamm.broker.requests.dispatcher import Dispatcher
from klamm.broker.requests.registry import registered
from klamm.net.server.exchange import AnswerOnly, InvalidRequest
from klamm.protocol import messages
from klamm.protocol.apis.fetch import FetchRequest, FetchResponse, PartitionData
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from klamm.protocol.apis.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.apis.metadata import MetadataResponse
from klamm.protocol.apis.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from klamm.protocol.apis.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from klamm.protocol.messages import ApiKey
from klamm.protocol.schema import ZEROS, Field, Struct, fields_of
from klamm.protocol.vocabulary import CONSUMER_REPLICA_ID
from support.exchanges import exchange
from support.fetch_messages import fetch_response
from support.one_broker import running
from support.quotas import client_quotas

APIS = registered()
REQUESTS: dict[ApiKey, Any] = {
    ApiKey.FETCH: FetchRequest(),
    ApiKey.LEADER_AND_ISR: LeaderAndIsrRequest(controller_id=0, controller_epoch=0),
    ApiKey.STOP_REPLICA: StopReplicaRequest(controller_id=0, controller_epoch=0),
    ApiKey.UPDATE_METADATA: UpdateMetadataRequest(controller_id=0, controller_epoch=0),
}
INTEGERS = {"Int8", "Int16", "Uint16", "Int32", "Int64", "BitField"}


def filled(struct_class: type[Struct], version: int) -> Any:
    """A message with one element in each of its arrays."""
    values = {}
    for field in fields_of(struct_class):
        if version in field.versions:
            value = ZEROS[field.kind] if isinstance(field.kind, str) else filled(field.kind, version)
            values[field.name] = [value] if field.is_array else value
        elif field.is_required:
            values[field.name] = field.default
    return struct_class(**values)


def places(message: Any, version: int, path: str = "") -> Iterator[tuple[Any, Field, str]]:
    """Every field of the message and of the structs in it: its struct, the field, its path."""
    for field in fields_of(type(message)):
        if version not in field.versions:
            continue
        yield message, field, path + field.name
        if not isinstance(field.kind, str):
            value = getattr(message, field.name)
            inner = (value[0], f"{path}{field.name}[0].") if field.is_array else (value, f"{path}{field.name}.")
            yield from places(inner[0], version, inner[1])


def wrong_values(field: Field, version: int) -> Iterator[tuple[Any, str, str]]:
    """Values that no wire carries, the path to append, and how the error shows the value."""
    nullable = version in field.nullable or field.is_left_out_as_none
    if field.is_array:
        yield 7, "", "7 is not a list"
        yield [object()], "[0]", "a object"
        if not nullable:
            yield None, "", "null is not a list"
    elif field.kind == "Bool":
        return  # Everything is true or false.
    elif field.kind in INTEGERS:
        yield ({70} if field.kind == "BitField" else 2**63), "", f"does not fit {field.kind}"
        yield "text", "", "a str of length 4 does not fit"
    else:
        yield object(), "", "a object"
        if not nullable and field.kind != "Uuid":
            yield None, "", "null"


def dispatch(key: ApiKey, version: int, response: Any, quotas: ClientQuotas | None = None) -> Any:
    """Dispatches a request of the API to a handler that gives this response."""
    request = REQUESTS.get(key)
    if request is None:
        request = filled(messages.request_class(key), version)
        if hasattr(request, "replica_id"):
            # A consumer's: followers are not throttled.
            request.replica_id = CONSUMER_REPLICA_ID
    frame = b"".join(map(bytes, messages.encode_request(key, version, 1, "client", request)))
    api = replace(APIS[key], handle=lambda request: response)
    services: Any = SimpleNamespace(apis={key: api}, quotas=quotas or client_quotas())
    connection: Any = SimpleNamespace(peer_host="1.2.3.4")
    return Dispatcher(services, count(1).__next__).dispatch(connection, bytearray(frame[4:]), exchange())


@pytest.mark.parametrize("key", APIS, ids=lambda key: key.name)
def test_a_response_with_a_wrong_value_closes_its_connection_and_names_the_field(key: ApiKey, caplog: Any) -> None:
    api = APIS[key]
    response_class = messages.response_class(key)
    for version in range(api.min_version, api.max_version + 1):
        response = filled(response_class, version)
        for struct, field, path in places(response, version):
            right = getattr(struct, field.name)
            for wrong, below, kind in wrong_values(field, version):
                setattr(struct, field.name, wrong)
                caplog.clear()
                with pytest.raises(InvalidRequest, match="its response cannot be encoded"):
                    dispatch(key, version, response)
                [record] = caplog.records
                assert record.levelno == logging.ERROR
                assert f"{response_class.__name__} v{version}: {path}{below}: " in record.message
                assert kind in record.message
            setattr(struct, field.name, right)
        assert dispatch(key, version, response).buffers is not None


@pytest.mark.parametrize(
    ("key", "version", "response", "complaint"),
    [
        (ApiKey.FETCH, 12, FetchResponse(error_code=70_000), "FetchResponse v12"),
        (
            ApiKey.FETCH,
            4,
            fetch_response(("t", [PartitionData(partition_index=0, records=7)])),  # type: ignore[arg-type]
            "FetchResponse v4",
        ),
        (
            ApiKey.LEADER_AND_ISR,
            5,
            LeaderAndIsrResponse(None),  # type: ignore[arg-type]
            "LeaderAndIsrResponse v5: error_code: null does not fit Int16",
        ),
        (
            ApiKey.LEADER_AND_ISR,
            0,
            LeaderAndIsrResponse(0, [LeaderAndIsrTopicError("t", None, [LeaderAndIsrPartitionError(0, 2**15)])]),
            "LeaderAndIsrResponse v0: topics[0].partition_errors[0].error_code: 32768 does not fit Int16",
        ),
        (
            ApiKey.STOP_REPLICA,
            3,
            StopReplicaResponse(0, [StopReplicaPartitionError("t", 2**31, 0)]),
            "StopReplicaResponse v3: partition_errors[0].partition_index: 2147483648 does not fit Int32",
        ),
        (
            ApiKey.UPDATE_METADATA,
            7,
            UpdateMetadataResponse(2**15),
            "UpdateMetadataResponse v7: error_code: 32768 does not fit Int16",
        ),
        (
            ApiKey.STOP_REPLICA,
            0,
            StopReplicaResponse(0, [1]),  # type: ignore[list-item]
            "StopReplicaResponse v0: partition_errors[0]: 1 is not a StopReplicaPartitionError",
        ),
        (
            ApiKey.METADATA,
            9,
            ListGroupsResponse(error_code=0, groups=[]),
            "MetadataResponse v9: it is a ListGroupsResponse",
        ),
    ],
)
def test_controllers_and_mistaken_responses_close_their_connection(
    key: ApiKey, version: int, response: Any, complaint: str, caplog: Any
) -> None:
    with pytest.raises(InvalidRequest, match="its response cannot be encoded"):
        dispatch(key, version, response)
    assert complaint in caplog.text


async def test_a_large_response_with_a_wrong_value_closes_its_connection(caplog: Any) -> None:
    topics = [MetadataResponse.MetadataResponseTopic(error_code=0, name="t", partitions=[]) for _ in range(2_000)]
    topics[-1].error_code = 2**15
    answer = dispatch(ApiKey.METADATA, 9, MetadataResponse(brokers=[], topics=topics))
    assert isinstance(answer, AnswerOnly)
    with pytest.raises(InvalidRequest):
        await answer.answer()
    assert "MetadataResponse v9: topics[1999].error_code: 32768 does not fit Int16" in caplog.text


async def test_a_broker_survives_a_response_that_cannot_be_encoded(tmp_path: Path, caplog: Any) -> None:
    async with running(tmp_path) as (cluster, client):
        other = await cluster.connect()
        apis: Any = cluster.broker.parts.dispatcher.apis
        served = apis[ApiKey.LIST_GROUPS]
        apis[ApiKey.LIST_GROUPS] = replace(
            served, handle=lambda request: ListGroupsResponse(error_code=70_000, groups=[])
        )
        body = ListGroupsRequest(states_filter=[])
        client.send_raw(b"".join(map(bytes, messages.encode_request(ApiKey.LIST_GROUPS, 4, 1, "c", body))))
        assert await client.is_closed()
        assert "ListGroupsResponse v4: error_code: 70000 does not fit Int16" in caplog.text
        assert (await other.ask(ApiKey.METADATA, topics=[])).controller_id == 0
        apis[ApiKey.LIST_GROUPS] = served
        assert (await other.ask(ApiKey.LIST_GROUPS, states_filter=[])).error_code == 0


def throttling_all() -> ClientQuotas:
    """Quotas by which no client has any time for its requests."""
    quotas = client_quotas()
    quotas.configure(QuotaEntity("", None), {"request_percentage": 0})
    return quotas


# The requests of brokers, which are never throttled.
OF_BROKERS = {
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.ALTER_ISR,
}
RESPONSES: dict[ApiKey, Any] = {
    ApiKey.LEADER_AND_ISR: LeaderAndIsrResponse(),
    ApiKey.STOP_REPLICA: StopReplicaResponse(),
    ApiKey.UPDATE_METADATA: UpdateMetadataResponse(),
}


@pytest.mark.parametrize("key", APIS, ids=lambda key: key.name)
def test_throttling_fits_every_api(key: ApiKey) -> None:
    for version in range(APIS[key].min_version, APIS[key].max_version + 1):
        response = RESPONSES.get(key) or filled(messages.response_class(key), version)
        answer = dispatch(key, version, response, throttling_all())
        if key in OF_BROKERS:
            assert answer.throttle_time_ms == 0
            assert getattr(response, "throttle_time_ms", 0) == 0
        else:
            assert answer.throttle_time_ms == 1000
            assert response.throttle_time_ms == 1000


def test_followers_are_not_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REQUESTS, ApiKey.FETCH, FetchRequest(replica_id=3))
    assert dispatch(ApiKey.FETCH, 12, FetchResponse(), throttling_all()).throttle_time_ms == 0


@pytest.mark.parametrize("key", [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.WRITE_TXN_MARKERS])
def test_responses_without_a_field_for_it_are_throttled_in_silence(
    key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker serves these yet."""
    monkeypatch.setitem(APIS, key, replace(APIS[ApiKey.METADATA], key=key, min_version=0, max_version=1))
    response = filled(messages.response_class(key), 1)
    assert not hasattr(response, "throttle_time_ms")
    answer = dispatch(key, 1, response, throttling_all())
    assert answer.throttle_time_ms == 1000 and answer.buffers is not None
