"""What `klamm status` learns from brokers that refuse, or that do not answer."""

from collections.abc import Mapping
from typing import Any

import pytest

from klamm.diagnosis import cluster_facts
from klamm.diagnosis.cluster_facts import KLAMM_KEY, ClusterFacts, read_facts
from klamm.diagnosis.health import diagnose
from klamm.diagnosis.partition_health import MIN_ISR
from klamm.net.client import ConnectionOptions
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.describe_configs import DescribeConfigsResponse
from klamm.protocol.apis.describe_log_dirs import DescribeLogDirsResponse
from klamm.protocol.apis.list_partition_reassignments import ListPartitionReassignmentsResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import ConfigResourceType
from support.scripted_cluster import HANG_UP, ScriptedCluster


def listed(error: ErrorCode = ErrorCode.NONE) -> tuple[ApiKey, Any]:
    answer = ListPartitionReassignmentsResponse(error_code=error, error_message=None, topics=[])
    return ApiKey.LIST_PARTITION_REASSIGNMENTS, answer


def configs(
    of_broker: Mapping[str, str] | ErrorCode, of_topic: Mapping[str, str] | ErrorCode
) -> list[tuple[ApiKey, Any]]:
    """The answers about a broker and about topics, in whatever order they are asked for."""
    row = DescribeConfigsResponse.DescribeConfigsResult

    def answer(request: Any) -> DescribeConfigsResponse:
        [resource] = request.resources
        found = of_topic if resource.resource_type == ConfigResourceType.TOPIC else of_broker
        values = {} if isinstance(found, ErrorCode) else found
        result = row(
            error_code=found if isinstance(found, ErrorCode) else ErrorCode.NONE,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[
                row.DescribeConfigsResourceResult(name=name, value=value, read_only=False, is_sensitive=False)
                for name, value in values.items()
            ],
        )
        return DescribeConfigsResponse(results=[result])

    return [(ApiKey.DESCRIBE_CONFIGS, answer)] * 2


DIRECTORIES = (
    ApiKey.DESCRIBE_LOG_DIRS,
    DescribeLogDirsResponse(
        results=[DescribeLogDirsResponse.DescribeLogDirsResult(error_code=0, log_dir="/data", topics=[])]
    ),
)


async def facts(*answers: tuple[ApiKey, Any], brokers: int = 1) -> ClusterFacts:
    async with ScriptedCluster(*answers, topics={"t": [0]}, brokers=brokers) as cluster:
        return await read_facts(cluster.client(deadline_ms=200))


async def test_one_look_has_all_that_the_brokers_say() -> None:
    found = await facts(listed(), *configs({KLAMM_KEY: "0"}, {MIN_ISR: "1"}), DIRECTORIES)
    assert (found.brokers[0].software, found.brokers[0].error, found.brokers[0].log_dirs[0].path) == (
        "klamm",
        None,
        "/data",
    )
    assert found.min_isr == {"t": 1}
    assert found.missing == [1]


async def test_the_configs_of_many_topics_are_asked_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_facts, "TOPICS_AT_ONCE", 1)
    answers = [listed(), *configs({}, {MIN_ISR: "2"}), *configs({}, {MIN_ISR: "2"}), DIRECTORIES]
    async with ScriptedCluster(*answers, topics={"t": [0], "u": [0], "v": [0]}, brokers=1) as cluster:
        found = await read_facts(cluster.client(deadline_ms=200))
    assert found.min_isr == {"t": 2, "u": 2, "v": 2}


async def test_what_a_client_may_not_see_is_no_fault_of_the_cluster() -> None:
    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    found = await facts(listed(denied), *configs(denied, {MIN_ISR: "1"}), DIRECTORIES)
    assert found.forbidden == ("reassignments", "configs of brokers")
    assert found.controller_error is None and found.brokers[0].error is None
    assert not {"silent_brokers", "silent_controller"} & {each.kind for each in diagnose(found)}


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (ErrorCode.UNKNOWN_SERVER_ERROR, {"unread_configs"}),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, {"forbidden"}),
        # The topic exists, so the broker that was asked is behind.
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {"unread_configs"}),
    ],
)
async def test_unread_configs_of_topics_are_told_apart_from_those_that_a_client_may_not_see(
    error: ErrorCode, kinds: set[str]
) -> None:
    found = await facts(listed(), *configs({KLAMM_KEY: "0"}, error), DIRECTORIES)
    assert {each.kind for each in diagnose(found) if each.is_unknown} == kinds
    assert (found.topics_error or "").startswith("topic t: ") is ("unread_configs" in kinds)


async def test_a_topic_that_is_deleted_meanwhile_has_no_configs_to_read() -> None:
    async with ScriptedCluster(topics={"t": [0]}, brokers=1) as cluster:
        answer = configs({KLAMM_KEY: "0"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)[0][1]

        def deleted(request: Any) -> Any:
            cluster.topics.clear()
            return answer(request)

        cluster.answers += [listed(), DIRECTORIES, *[(ApiKey.DESCRIBE_CONFIGS, deleted)] * 2]
        found = await read_facts(cluster.client(deadline_ms=200))
    assert (found.topics_error, found.forbidden) == (None, ())


async def test_a_broker_that_hangs_up_is_a_finding() -> None:
    refused = [(ApiKey.DESCRIBE_LOG_DIRS, HANG_UP)] * 4
    found = await facts(listed(), *configs({}, {}), *refused)
    assert found.brokers[0].error is not None
    assert "silent_brokers" in {each.kind for each in diagnose(found)}


async def test_a_controller_that_hangs_is_a_finding_and_is_waited_for_once() -> None:
    silent = (ApiKey.LIST_PARTITION_REASSIGNMENTS, lambda _: None)
    answers = [silent, silent, *configs({}, {MIN_ISR: "1"}), DIRECTORIES]
    async with ScriptedCluster(*answers, topics={"t": [0]}, brokers=1) as cluster:
        client = cluster.client(options=ConnectionOptions(request_timeout_ms=1_500))
        found = await read_facts(client)
        assert [api for api, _ in cluster.asked].count(ApiKey.LIST_PARTITION_REASSIGNMENTS) == 1
    assert found.controller_error == "REQUEST_TIMED_OUT (7): controller 0 does not answer within 1500 ms"
    assert (found.min_isr, found.brokers[0].error) == ({"t": 1}, None)
