"""How many requests of each API this broker has answered, and how long they took, under Kafka's names (RequestMetrics).

A request has a `MeasuredRequest`, the stopwatch of its work. When its response has left, it adds nine numbers to a
list; everything else happens for 64 requests together, or when a metric is read.

| Kafka's name       | in klamm                                                                                 |
|--------------------|------------------------------------------------------------------------------------------|
| RequestQueueTime   | from the arrival of the request to its start, after earlier ones of its connection       |
| LocalTime          | how long its work has held the loop                                                      |
| RemoteTime         | the rest until the response is ready: other brokers, disks, other requests on the loop   |
| ResponseQueueTime  | until the responses to earlier requests of the connection have left                      |
| ResponseSendTime   | until the socket has taken the response                                                  |

What must stay true:
- Counting costs the same for each request, and its memory is bounded: `RESERVOIR_SIZE` samples of each API.
- Labels come from what this broker serves, never from a client: a request of another version is not counted.
- As in Kafka, a request counts when its response has left, and one whose connection ends before that does not.

Source: kafka.network.RequestMetrics.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from klamm.broker.quotas.request_quota import Stopwatch
from klamm.metrics import QUANTILES, RESERVOIR_SIZE, Distribution, MetricName, Metrics, quantiles_of
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages import ApiKey

# The numbers of a request: its version, and those that `_distributed` takes. So many requests are sorted in together.
NUMBERS = 9
TOGETHER = 64

# What becomes of these numbers, in the order of `_distributed`.
_DISTRIBUTIONS = (
    ("RequestBytes", "Sizes of requests."),
    ("RequestQueueTimeMs", "Until a request starts, after earlier ones of its connection."),
    ("LocalTimeMs", "How long the work for a request holds the loop."),
    ("RemoteTimeMs", "How long a request waits for others: brokers, disks, other requests on the loop."),
    ("ThrottleTimeMs", "For how long clients are throttled by quotas."),
    ("ResponseQueueTimeMs", "How long a response waits for the responses to earlier requests."),
    ("ResponseSendTimeMs", "Until the socket has taken a response."),
    ("TotalTimeMs", "From the arrival of a request until the socket has taken its response."),
)
# klamm converts no records for old clients, and keeps batches closed.
_ZEROS = (
    ("MessageConversionsTimeMs", "Time for the conversion of records: 0."),
    ("TemporaryMemoryBytes", "Memory for the conversion of records: 0."),
)
FETCH_CONSUMER, FETCH_FOLLOWER = "FetchConsumer", "FetchFollower"


class _Samples:
    """A `Distribution` as of now."""

    __slots__ = ("_newest", "count", "total")

    def __init__(self, count: int, total: float, newest: Sequence[float]) -> None:
        self.count = count
        self.total = total
        self._newest = newest

    def quantiles(self, wanted: Sequence[float] = QUANTILES) -> list[float]:
        return quantiles_of(self._newest, wanted)


class ApiStatistics:
    """The requests of one API. `pending` has the numbers of the newest requests, one after another; whoever adds some
    calls `sort_in` after `TOGETHER` of them. `errors` has how often each error code was in a response."""

    __slots__ = ("_newest", "_sums", "_versions", "errors", "pending")

    def __init__(self) -> None:
        self.errors: dict[int, int] = {}
        self.pending: list[float] = []
        self._versions: dict[int, int] = {}
        self._sums = [0.0] * len(_DISTRIBUTIONS)
        # As in `pending`, of the newest `RESERVOIR_SIZE` requests.
        self._newest = array("d")

    @property
    def versions(self) -> dict[int, int]:
        """The number of requests by version."""
        self.sort_in()
        return self._versions

    @property
    def count(self) -> int:
        return sum(self.versions.values())

    def sort_in(self) -> None:
        pending = self.pending
        if not pending:
            return
        for version in pending[::NUMBERS]:
            self._versions[int(version)] = self._versions.get(int(version), 0) + 1
        sums = [sum(pending[number::NUMBERS]) for number in range(1, NUMBERS)]
        for number, value in enumerate(_distributed(*sums)):
            self._sums[number] += value
        self._newest.extend(pending)
        del self._newest[: -NUMBERS * RESERVOIR_SIZE]
        pending.clear()

    def samples(self, number: int) -> tuple[int, float, Sequence[float]]:
        """The count, the sum and the newest values of the distribution of this number in `_DISTRIBUTIONS`."""
        count = self.count
        columns = (self._newest[column::NUMBERS] for column in range(1, NUMBERS))
        newest = [max(_distributed(*request)[number], 0.0) for request in zip(*columns, strict=True)]
        return count, self._sums[number], newest


def _distributed(
    request_bytes: float,
    received_s: float,
    started_s: float,
    held_s: float,
    ready_s: float,
    left_s: float,
    sent_s: float,
    throttle_time_ms: float,
) -> tuple[float, ...]:
    """The values for `_DISTRIBUTIONS` of one request, or the sums of many from the sums of their numbers. A difference
    may be less than 0 by a rounding error."""
    return (
        request_bytes,
        1000 * (started_s - received_s),
        1000 * held_s,
        1000 * (ready_s - started_s - held_s),
        throttle_time_ms,
        1000 * (left_s - ready_s),
        1000 * (sent_s - left_s),
        1000 * (sent_s - received_s),
    )


class MeasuredRequest(Stopwatch):
    """The stopwatch of one request, until its response has been sent. `statistics` is where it counts."""

    __slots__ = ("_version", "statistics")

    def __init__(self, clock_s: Callable[[], float], statistics: ApiStatistics, version: int) -> None:
        # Not through `super`, which costs as much again.
        self._clock_s = clock_s
        self._spent_s = self._taken_s = 0.0
        self.started_s = self._began_s = clock_s()
        self.statistics = statistics
        self._version = version

    def sent(
        self,
        request_bytes: int,
        received_s: float,
        ready_s: float,
        left_s: float,
        sent_s: float,
        throttle_time_ms: int,
    ) -> None:
        """The request of this size arrived, and its response was ready, left and was taken by the socket at these
        readings of the stopwatch's clock."""
        began_s = self._began_s
        held_s = self._spent_s if began_s is None else self._spent_s + ready_s - began_s
        statistics = self.statistics
        pending = statistics.pending
        pending += (
            self._version,
            request_bytes,
            received_s,
            self.started_s,
            held_s,
            ready_s,
            left_s,
            sent_s,
            throttle_time_ms,
        )
        if len(pending) >= NUMBERS * TOGETHER:
            statistics.sort_in()


class RequestStatistics:
    """The requests of a broker, by API. `follower_fetches` are counted apart from those of consumers."""

    def __init__(self) -> None:
        self._by_api: dict[ApiKey, ApiStatistics] = {}
        self.follower_fetches = ApiStatistics()

    def of(self, api_key: ApiKey) -> ApiStatistics:
        """For a request of an API that is served; for a fetch, if it is a consumer's."""
        found = self._by_api.get(api_key)
        if found is None:
            found = self._by_api[api_key] = ApiStatistics()
        return found

    def _by_name(self) -> dict[str, list[ApiStatistics]]:
        """By the names in Kafka's metrics."""
        names = {key.message_name: [found] for key, found in self._by_api.items()}
        fetches = {FETCH_CONSUMER: [self.of(ApiKey.FETCH)], FETCH_FOLLOWER: [self.follower_fetches]}
        return {**names, **fetches, ApiKey.FETCH.message_name: [*fetches[FETCH_CONSUMER], *fetches[FETCH_FOLLOWER]]}

    def _distributions(self, number: int) -> Mapping[str, Distribution]:
        return {name: _merged(some, number) for name, some in self._by_name().items()}

    def _zeros(self) -> Mapping[str, Distribution]:
        by_name = self._by_name()
        names = [key.message_name for key in (ApiKey.PRODUCE, ApiKey.FETCH)]
        return {name: _Samples(sum(one.count for one in by_name.get(name, ())), 0.0, ()) for name in names}

    def _requests(self) -> Iterator[tuple[tuple[str, str], int]]:
        for name, some in self._by_name().items():
            versions: dict[int, int] = {}
            for one in some:
                for version, count in one.versions.items():
                    versions[version] = versions.get(version, 0) + count
            for version, count in versions.items():
                yield (name, str(version)), count

    def _errors(self) -> Iterator[tuple[tuple[str, str], int]]:
        for name, some in self._by_name().items():
            if name in (FETCH_CONSUMER, FETCH_FOLLOWER):
                continue  # As in Kafka.
            errors: dict[str, int] = {}
            for one in some:
                for code, count in one.errors.items():
                    error = ErrorCode(code).name
                    errors[error] = errors.get(error, 0) + count
            for error, count in errors.items():
                yield (name, error), count

    def register(self, metrics: Metrics) -> None:
        group, type_ = "kafka.network", "RequestMetrics"
        metrics.tagged_meters(
            MetricName(group, type_, "RequestsPerSec"), "Requests answered.", ("request", "version"), self._requests
        )
        metrics.tagged_meters(
            MetricName(group, type_, "ErrorsPerSec"),
            "Error codes in responses; NONE for what has succeeded.",
            ("request", "error"),
            self._errors,
        )
        for number, (name, documentation) in enumerate(_DISTRIBUTIONS):
            metrics.histograms(
                MetricName(group, type_, name), documentation, "request", partial(self._distributions, number)
            )
        for name, documentation in _ZEROS:
            metrics.histograms(MetricName(group, type_, name), documentation, "request", self._zeros)


def _merged(some: Sequence[ApiStatistics], number: int) -> Distribution:
    count, total, newest = some[0].samples(number)
    for one in some[1:]:
        more = one.samples(number)
        count, total, newest = count + more[0], total + more[1], [*newest, *more[2]]
    return _Samples(count, total, newest)
