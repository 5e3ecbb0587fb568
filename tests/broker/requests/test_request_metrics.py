"""What a broker counts of requests: by API and version, errors, sizes and times."""

from pathlib import Path

import pytest

from klamm.base.metrics import RESERVOIR_SIZE, Metrics
from klamm.base.slices import in_one_go
from klamm.broker.handlers import APIS
from klamm.broker.metrics.prometheus_text import DISTRIBUTIONS_PER_SLICE, render
from klamm.broker.requests.request_metrics import TOGETHER, ApiStatistics, RequestStatistics
from klamm.net.server.exchange import MOST_AT_ONCE, NUMBERS_AT_ONCE, Response
from klamm.protocol import messages
from klamm.protocol.apis.api_versions import ApiVersionsRequest
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrPartitionError, LeaderAndIsrResponse, LeaderAndIsrTopicError
from klamm.protocol.apis.produce import ProduceRequest
from klamm.protocol.apis.stop_replica import StopReplicaPartitionError, StopReplicaResponse
from klamm.protocol.messages import ApiKey
from support.exchanges import exchange
from support.fetch_messages import fetch_request, to_fetch
from support.metrics import Values
from support.one_broker import OneBroker, batch, running

REQUESTS = "kafka.network:type=RequestMetrics,name=RequestsPerSec,request={},version={}"
ERRORS = "kafka.network:type=RequestMetrics,name=ErrorsPerSec,request={},error={}"


def no_clock_s() -> float:
    return 0.0


def values(cluster: OneBroker) -> Values:
    endpoint = cluster.broker.parts.metrics_endpoint
    assert endpoint is not None
    return Values.of(endpoint.metrics)


def shown(statistics: RequestStatistics) -> Values:
    metrics = Metrics()
    statistics.register(metrics)
    return Values.of(metrics)


def request_of(
    statistics: ApiStatistics, size_bytes: int, *times_s: float, version: int = 9, throttle_time_ms: int = 0
) -> None:
    """`times_s`: when it arrives, starts, and no longer holds the loop, and is ready, leaves and is sent."""
    received_s, started_s, held_until_s, ready_s, left_s, sent_s = times_s or (0.0,) * 6
    request = exchange(size_bytes, lambda: held_until_s, received_s, started_s)
    request.response = Response([b""], throttle_time_ms)
    request.pause()
    request.ready_s = ready_s
    statistics.of_version[version].add(request, left_s, sent_s)


def answered_at_once(
    statistics: ApiStatistics, size_bytes: int, received_s: float, ready_s: float, version: int = 9
) -> None:
    """A request that waits for nothing, as the network layer counts it."""
    numbers = statistics.of_version[version]
    numbers += (size_bytes, received_s, ready_s)
    if len(numbers) >= NUMBERS_AT_ONCE * MOST_AT_ONCE:
        numbers.take()


def distribution(found: Values, name: str, request: str) -> tuple[float, float, float]:
    """The count, the sum and the median."""
    name, label = f"kafka_network_requestmetrics_{name}", ("request", request)
    median = found.by_name[name, (("quantile", "0.50"), label)]
    return found.by_name[f"{name}_count", (label,)], found.by_name[f"{name}_sum", (label,)], median


def test_times_are_what_lies_between_the_readings_of_the_clock() -> None:
    statistics = RequestStatistics(no_clock_s)
    request_of(statistics[ApiKey.PRODUCE], 100, 1.0, 2.0, 5.0, 9.0, 13.0, 18.0, throttle_time_ms=7)
    found = shown(statistics)
    assert {
        name: distribution(found, name, "Produce")
        for name in (
            *("requestbytes", "requestqueuetimems", "localtimems", "remotetimems", "throttletimems"),
            *("responsequeuetimems", "responsesendtimems", "totaltimems", "messageconversionstimems"),
        )
    } == {
        "requestbytes": (1, 100, 100),
        "requestqueuetimems": (1, 1000, 1000),
        "localtimems": (1, 3000, 3000),
        "remotetimems": (1, 4000, 4000),
        "throttletimems": (1, 7, 7),
        "responsequeuetimems": (1, 4000, 4000),
        "responsesendtimems": (1, 5000, 5000),
        "totaltimems": (1, 17000, 17000),
        "messageconversionstimems": (1, 0, 0),
    }


def test_quantiles_are_of_the_newest_requests_and_sums_of_all() -> None:
    statistics = ApiStatistics(ApiKey.PRODUCE, no_clock_s)
    for size in range(3 * RESERVOIR_SIZE + TOGETHER // 2):
        request_of(statistics, size)
    assert (statistics.count, statistics.total(0)) == (size + 1, size * (size + 1) / 2)
    assert statistics.newest(0) == list(range(size + 1 - RESERVOIR_SIZE, size + 1))


def test_requests_that_waited_and_others_are_counted_together() -> None:
    statistics = RequestStatistics(no_clock_s)
    produces = statistics[ApiKey.PRODUCE]
    for number in range(1, RESERVOIR_SIZE + TOGETHER):
        answered_at_once(produces, 10, 2.0 * number, 2.0 * number + 0.5)
        if number % 4 == 0:
            request_of(produces, 20, *(2.0 * number + second for second in (0.0, 0.0, 0.25, 0.5, 1.0, 1.0)))
        if number % 1_000 == 0:
            assert produces.versions == {9: number * 5 // 4}
    found = shown(statistics)
    waited = number // 4
    assert distribution(found, "requestbytes", "Produce") == (number + waited, 10 * number + 20 * waited, 10)
    assert distribution(found, "localtimems", "Produce") == (number + waited, 500 * number + 250 * waited, 500)
    assert distribution(found, "totaltimems", "Produce") == (number + waited, 500 * number + 1000 * waited, 500)
    # The newest are those of both kinds that were sent last.
    sizes = produces.newest(0)
    assert len(sizes) == RESERVOIR_SIZE
    assert sizes.count(20) == len(
        [count for count in range(number * 5 // 4 - RESERVOIR_SIZE, number * 5 // 4) if count % 5 == 4]
    )


def test_a_step_of_a_scrape_makes_quantiles_of_few_apis(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics, made = RequestStatistics(no_clock_s), 0
    keys = [key for key in APIS if key is not ApiKey.FETCH]
    for key in keys:
        request_of(statistics[key], 10, version=0)
    metrics = Metrics()
    statistics.register(metrics)
    newest = ApiStatistics.newest

    def counted(self: ApiStatistics, number: int) -> list[float]:
        nonlocal made
        made += 1
        return newest(self, number)

    monkeypatch.setattr(ApiStatistics, "newest", counted)
    in_steps = []
    for _ in render(metrics):
        in_steps.append(made)
        made = 0
    # FetchConsumer, FetchFollower, and both together.
    assert sum(in_steps) + made == 8 * (len(keys) + 4)
    assert max(in_steps) <= DISTRIBUTIONS_PER_SLICE + 1


def test_fetches_of_followers_and_consumers_are_apart_and_together() -> None:
    statistics = RequestStatistics(no_clock_s)
    request_of(statistics[ApiKey.FETCH], 10, version=11)
    for _ in range(2):
        request_of(statistics.follower_fetches, 30, version=12)
    statistics.follower_fetches.errors[3] = 1
    found = shown(statistics)
    for request, expected in (("FetchConsumer", (1, 10, 10)), ("FetchFollower", (2, 60, 30)), ("Fetch", (3, 70, 30))):
        assert distribution(found, "requestbytes", request) == expected
    assert found[REQUESTS.format("FetchFollower", 12)] == found[REQUESTS.format("Fetch", 12)] == 2
    assert found[ERRORS.format("Fetch", "UNKNOWN_TOPIC_OR_PARTITION")] == 1


def test_a_request_that_has_waited_keeps_its_times_where_it_counts_elsewhere() -> None:
    statistics = RequestStatistics(no_clock_s)
    request = exchange(10, lambda: 5.0, 1.0, 2.0)
    request.pause()
    request.is_measured_by(statistics.follower_fetches.of_version[12])
    request.ready_s = 6.0
    request.measurements.add(request, 6.0, 6.0)
    found = shown(statistics)
    assert distribution(found, "requestqueuetimems", "FetchFollower") == (1, 1000, 1000)
    assert distribution(found, "localtimems", "FetchFollower") == (1, 3000, 3000)
    assert distribution(found, "totaltimems", "FetchFollower") == (1, 5000, 5000)


def test_the_error_codes_of_controllers_requests_are_counted() -> None:
    counts: dict[int, int] = {}
    topics = [LeaderAndIsrTopicError("t", None, [LeaderAndIsrPartitionError(0, 0), LeaderAndIsrPartitionError(1, 56)])]
    messages.error_counter(ApiKey.LEADER_AND_ISR)(LeaderAndIsrResponse(0, topics), counts)
    messages.error_counter(ApiKey.STOP_REPLICA)(
        StopReplicaResponse(11, [StopReplicaPartitionError("t", 0, 56)]), counts
    )
    assert counts == {0: 2, 11: 1, 56: 2}


def test_counting_in_steps_counts_the_same() -> None:
    response_class = messages.response_class(ApiKey.PRODUCE)
    topic = response_class.TopicProduceResponse
    partitions = [topic.PartitionProduceResponse(index=number, error_code=number % 3) for number in range(20_000)]
    response = response_class(responses=[topic(name="t", partition_responses=partitions)])
    at_once: dict[int, int] = {}
    in_steps: dict[int, int] = {}
    messages.error_counter(ApiKey.PRODUCE)(response, at_once)
    in_one_go(messages.count_errors_steps(ApiKey.PRODUCE, response, in_steps))
    assert at_once == in_steps == {0: 6667, 1: 6667, 2: 6666}


def test_requests_that_waited_for_nothing_take_bounded_memory() -> None:
    statistics = ApiStatistics(ApiKey.PRODUCE, no_clock_s)
    longest = count = 0
    for count in range(1, 5 * RESERVOIR_SIZE):
        statistics.error_codes.append(3 if count % 4 == 0 else 0)
        answered_at_once(statistics, count, 1.0 * count, count + 0.5, version=8 + count % 2)
        held = len(statistics._at_once) + sum(map(len, statistics.of_version))
        assert bool(statistics.error_codes) == any(statistics.of_version)
        longest = max(longest, held)
    assert longest <= NUMBERS_AT_ONCE * (RESERVOIR_SIZE + 2 * MOST_AT_ONCE)
    assert statistics.versions == {8: count // 2, 9: (count + 1) // 2}
    assert statistics.errors == {0: count - count // 4, 3: count // 4}
    assert (statistics.count, statistics.total(0)) == (count, count * (count + 1) / 2)
    assert statistics.newest(0) == list(range(count + 1 - RESERVOIR_SIZE, count + 1))
    assert set(statistics.newest(2)) == {500.0}


def test_the_error_codes_of_clients_that_have_gone_take_bounded_memory() -> None:
    statistics = ApiStatistics(ApiKey.PRODUCE, no_clock_s)
    for _ in range(100):
        statistics.error_codes += [3] * 500
        statistics.forgo()
        assert len(statistics.error_codes) <= 10_500
    assert (statistics.errors, statistics.count) == ({3: 50_000}, 0)


def test_the_error_codes_of_followers_fetches_take_bounded_memory() -> None:
    """Their responses are encoded as those of consumers, who may not fetch at all."""
    statistics = RequestStatistics(no_clock_s)
    codes = statistics[ApiKey.FETCH].error_codes
    for _ in range(3 * RESERVOIR_SIZE):
        codes.append(3)
        request_of(statistics.follower_fetches, 30, version=12)
    assert len(codes) <= RESERVOIR_SIZE + TOGETHER
    assert shown(statistics)[ERRORS.format("Fetch", "UNKNOWN_TOPIC_OR_PARTITION")] == 3 * RESERVOIR_SIZE


async def test_a_thousand_client_ids_and_hang_ups_leave_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.create_topic("t", 1)
        await client.request(ApiKey.PRODUCE, 9, ProduceRequest.of(None, 1, 1000, [("t", [(0, batch(b"a"))])]))
        before = len(values(cluster).by_name)
        for number in range(1000):
            body = ProduceRequest.of(None, 1, 1000, [("t", [(0, batch(b"a"))])])
            await client.request(ApiKey.PRODUCE, 9, body, client_id=f'x{number}"\n\\')
        found = values(cluster)
        assert len(found.by_name) == before
        assert found[ERRORS.format("Produce", "NONE")] == found[REQUESTS.format("Produce", 9)] == 1001


async def test_the_requests_of_a_client(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.create_topic("t", 1)
        for _ in range(3):
            assert (await client.produce("t", 0, batch(b"a"))).error_code == 0
        assert (await client.produce("t", 1, batch(b"a"))).error_code == 3
        await client.request(ApiKey.FETCH, 12, fetch_request(("t", [to_fetch(0, 0, 1000)]), min_bytes=1))
        found = values(cluster)
        assert distribution(found, "totaltimems", "Produce")[0] == 4
        assert found[ERRORS.format("Produce", "NONE")] == 3
        assert found[ERRORS.format("Produce", "UNKNOWN_TOPIC_OR_PARTITION")] == 1
        assert found[REQUESTS.format("FetchConsumer", 12)] == 1
        assert distribution(found, "totaltimems", "FetchFollower")[0] == 0


async def test_the_time_that_a_fetch_waits_is_remote(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.create_topic("t", 1)
        fetch = fetch_request(("t", [to_fetch(0, 0, 1000)]), max_wait_ms=300, min_bytes=1)
        await client.request(ApiKey.FETCH, 12, fetch)
        found = values(cluster)
        remote_ms, total_ms = (
            distribution(found, name, "FetchConsumer")[1] for name in ("remotetimems", "totaltimems")
        )
        assert total_ms >= remote_ms >= 290


async def test_clients_cannot_make_labels(tmp_path: Path) -> None:
    async with running(tmp_path, klamm_metrics_port=0) as (cluster, client):
        await client.request(ApiKey.API_VERSIONS, 3, ApiVersionsRequest(client_software_name="a"), client_id="x1")
        before = len(values(cluster).by_name)
        for version in (100, 30_000):
            other = await cluster.connect()
            other.send_raw(b"\0\0\0\x0d\0\x12" + version.to_bytes(2) + bytes(4) + b"\0\x02x2\0")
            await other.receive()
        for topic in ("no-such-1", "no-such-2"):
            await client.produce(topic, 0, batch(b"a"))
        found = values(cluster)
        new = {labels for _, labels in found.by_name if any(value.startswith("no-such") for _, value in labels)}
        assert not new
        assert len(found.by_name) - before < 100
