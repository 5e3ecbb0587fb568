"""How many requests of each API this broker has answered, and how long they took, under Kafka's names (RequestMetrics).

A request has a `MeasuredRequest`, the stopwatch of its work. When its response has left, it adds eight numbers to a
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

# The numbers of a request, as `ApiStatistics.add` takes them, and so many requests at a time.
_NUMBERS = 8
_TOGETHER = 64

# What becomes of these numbers, in the order of `ApiStatistics.distribution`.
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
    """The requests of one API. `versions` has the number of requests by version, `errors` that of error codes in the
    responses."""

    __slots__ = ("_newest", "_pending", "_totals", "errors", "versions")

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        self.errors: dict[int, int] = {}
        self._pending: list[float] = []
        self._totals = [0.0] * len(_DISTRIBUTIONS)
        self._newest = [array("d") for _ in _DISTRIBUTIONS]

    @property
    def count(self) -> int:
        return sum(self.versions.values())

    def add(
        self,
        version: int,
        request_bytes: int,
        received_s: float,
        started_s: float,
        held_s: float,
        ready_s: float,
        left_s: float,
        sent_s: float,
        throttle_time_ms: int,
    ) -> None:
        """A request whose response has been sent. `held_s` is how long it has held the loop; the other seconds are
        readings of one clock."""
        self.versions[version] = self.versions.get(version, 0) + 1
        pending = self._pending
        pending += (request_bytes, received_s, started_s, held_s, ready_s, left_s, sent_s, throttle_time_ms)
        if len(pending) >= _NUMBERS * _TOGETHER:
            self._sort_in()

    def _sort_in(self) -> None:
        pending = self._pending
        request_bytes, received, started, held, ready, left, sent, throttled_ms = (
            pending[number::_NUMBERS] for number in range(_NUMBERS)
        )
        pending.clear()
        waits = zip(started, ready, held, strict=True)
        columns = (
            request_bytes,
            _between_ms(received, started),
            [1000 * held_s for held_s in held],
            # The difference of three readings may be less than 0 by a rounding error.
            [max(0.0, 1000 * (ready_s - started_s - held_s)) for started_s, ready_s, held_s in waits],
            throttled_ms,
            _between_ms(ready, left),
            _between_ms(left, sent),
            _between_ms(received, sent),
        )
        for number, column in enumerate(columns):
            self._totals[number] += sum(column)
            newest = self._newest[number]
            newest.extend(column)
            del newest[:-RESERVOIR_SIZE]

    def samples(self, number: int) -> tuple[int, float, Sequence[float]]:
        """The count, the total and the newest of the distribution of this number in `_DISTRIBUTIONS`."""
        if self._pending:
            self._sort_in()
        return self.count, self._totals[number], self._newest[number]


def _between_ms(start_s: Sequence[float], end_s: Sequence[float]) -> list[float]:
    return [1000 * (end - start) for start, end in zip(start_s, end_s, strict=True)]


class MeasuredRequest(Stopwatch):
    """The stopwatch of one request, until its response has been sent. `statistics` is where it counts."""

    __slots__ = ("_version", "statistics")

    def __init__(self, clock_s: Callable[[], float], statistics: ApiStatistics, version: int) -> None:
        super().__init__(clock_s)
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
        self.statistics.add(
            self._version,
            request_bytes,
            received_s,
            self.started_s,
            self.spent_s(ready_s),
            ready_s,
            left_s,
            sent_s,
            throttle_time_ms,
        )


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
