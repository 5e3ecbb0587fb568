"""How many requests of each API this broker has answered, and how long they took, under Kafka's names (RequestMetrics).

When the response to a request has left, numbers of the network layer are added to a list: three numbers for a request
that did not wait, to a list of its API and version, and ten for other requests. The encoder of a response adds its
error codes to another list. Everything else happens for `TOGETHER` requests at once, or when a metric is read.

| Kafka's name       | in klamm                                                                                 |
|--------------------|------------------------------------------------------------------------------------------|
| RequestQueueTime   | from the arrival of the request to its start, after earlier ones of its connection       |
| LocalTime          | how long its work has held the loop                                                      |
| RemoteTime         | the rest until the response is ready: other brokers, disks, other requests on the loop   |
| ResponseQueueTime  | until the responses to earlier requests of the connection have left                      |
| ResponseSendTime   | until the socket has taken the response                                                  |

What must stay true:
- Counting costs the same for each request, and its memory is bounded: the numbers of `RESERVOIR_SIZE` requests of each
  API and of each of both kinds, at most 520 KB (measured with numbers that share no memory), those of `TOGETHER` more
  of each version, at most 27 KB, and the error codes of `TOGETHER` requests.
- Labels come from the APIs and versions of this broker, never from a client: a request of another version is not
  counted.
- As in Kafka, a request counts when its response has left. A request whose connection ends before does not count.

Source: kafka.network.RequestMetrics.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any

from klamm.base.metrics import QUANTILES, RESERVOIR_SIZE, Distribution, MetricName, Metrics, quantiles_of
from klamm.base.slices import Steps
from klamm.net.server.exchange import MOST_AT_ONCE, NUMBERS_AT_ONCE, Exchange, Measurements
from klamm.protocol import messages
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey

# How many requests are sorted in together.
TOGETHER = MOST_AT_ONCE
# The most error codes that are kept of requests that were never answered.
_MOST_CODES = 10_000
# The numbers of a request that had to wait: the version, and the arguments of `_distributed`.
_WAITED = 10
_MOST_WAITED = _WAITED * (RESERVOIR_SIZE + TOGETHER)

# The distributions of these numbers, in the order of `_distributed`.
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


class VersionStatistics(Measurements):
    """The requests of one version of an API."""

    __slots__ = ("_api", "version")

    def __init__(self, api: "ApiStatistics", version: int, clock_s: Callable[[], float]) -> None:
        super().__init__(clock_s)
        self._api = api
        self.version = version

    def take(self) -> None:
        """Like `Measurements.take`."""
        self._api.sort_in()

    def add(self, exchange: Exchange, left_s: float, sent_s: float) -> None:
        """Like `Measurements.add`."""
        self._api.add(self.version, exchange, left_s, sent_s)

    def forgo(self) -> None:
        """Like `Measurements.forgo`."""
        self._api.forgo()


class ApiStatistics:
    """The requests of one API. `of_version` has a list for each version, from 0 on; `error_codes` are the error codes
    of responses that are not counted yet. `clock_s` is the network layer's `work_clock_s`."""

    __slots__ = (
        "_api_key",
        "_at_once",
        "_errors",
        "_sums",
        "_versions",
        "_waited",
        "_waited_sorted_in",
        "error_codes",
        "of_version",
    )

    def __init__(self, api_key: ApiKey, clock_s: Callable[[], float]) -> None:
        self._api_key = api_key
        versions = range(messages.ADVERTISED_MAX[api_key] + 1)
        self.of_version = tuple(VersionStatistics(self, version, clock_s) for version in versions)
        self.error_codes: list[int] = []
        self._errors: Counter[int] = Counter()
        self._versions: Counter[int] = Counter()
        self._sums = [0.0] * len(_DISTRIBUTIONS)
        # The numbers of the newest requests, in the order of their responses, and how many numbers of requests that had
        # to wait are in the sums.
        self._at_once: list[float] = []
        self._waited: list[float] = []
        self._waited_sorted_in = 0

    def forgo(self) -> None:
        """Call it for a request that will never be added, because its client has disconnected."""
        if len(self.error_codes) > _MOST_CODES:
            self.sort_in()

    def add(self, version: int, exchange: Exchange, left_s: float, sent_s: float) -> None:
        """Like `Measurements.add`, for a request of this version."""
        arrived_s, began_s, ready_s, response = (
            exchange.arrived_s,
            exchange.began_s,
            exchange.ready_s,
            exchange.response,
        )
        throttle_time_ms = 0 if response is None else response.throttle_time_ms
        numbers = self._waited
        numbers += (
            version,
            exchange.size_bytes,
            arrived_s,
            arrived_s + exchange.late_s,
            exchange.spent_s if began_s is None else 0.0,
            ready_s if began_s is None else began_s,
            ready_s,
            left_s,
            sent_s,
            throttle_time_ms,
        )
        if len(numbers) >= _MOST_WAITED:
            self.sort_in()
            del numbers[: _WAITED * TOGETHER]
            self._waited_sorted_in = len(numbers)

    def count_errors(self, response: Any) -> Steps[None]:
        """Counts the error codes of a response that was encoded in steps."""
        return messages.count_errors_steps(self._api_key, response, self._errors)

    @property
    def errors(self) -> dict[int, int]:
        """The number of responses with each error code."""
        self.sort_in()
        return self._errors

    @property
    def versions(self) -> Mapping[int, int]:
        """The number of requests by version."""
        self.sort_in()
        return self._versions

    @property
    def count(self) -> int:
        return sum(self.versions.values())

    def sort_in(self) -> None:
        """Counts the additions to the lists since the last call."""
        newest, old = self._at_once, len(self._at_once)
        for one in self.of_version:
            if one:
                self._versions[one.version] += len(one) // NUMBERS_AT_ONCE
                self._add_up(_as_waited(*_sums(one, NUMBERS_AT_ONCE)))
                if len(newest) > old:
                    one[:] = _in_order(newest[old:], one)
                    del newest[old:]
                newest += one
                one.clear()
        del newest[: -NUMBERS_AT_ONCE * RESERVOIR_SIZE]
        new_waited = self._waited[self._waited_sorted_in :]
        self._waited_sorted_in = len(self._waited)
        if new_waited:
            self._versions.update(map(int, new_waited[::_WAITED]))
            self._add_up(_sums(new_waited, _WAITED)[1:])
        _count(self._errors, self.error_codes)
        self.error_codes.clear()

    def _add_up(self, sums: Sequence[float]) -> None:
        for number, value in enumerate(_distributed(*sums)):
            self._sums[number] += value

    def total(self, number: int) -> float:
        """The sum of the distribution of this number in `_DISTRIBUTIONS`."""
        self.sort_in()
        return self._sums[number]

    def newest(self, number: int) -> list[float]:
        """The values of the newest requests for the distribution of this number in `_DISTRIBUTIONS`."""
        self.sort_in()
        requests = [_as_waited(*request) for request in _requests(self._at_once, NUMBERS_AT_ONCE)]
        if self._waited:
            requests += (request[1:] for request in _requests(self._waited, _WAITED))
            requests.sort(key=_SENT_S)
        return [max(_distributed(*request)[number], 0.0) for request in requests[-RESERVOIR_SIZE:]]


_READY_S, _SENT_S = itemgetter(2), itemgetter(7)


def _requests(numbers: Sequence[float], width: int) -> Iterator[tuple[float, ...]]:
    """The numbers of one request after another, `width` of each."""
    return zip(*(numbers[column::width] for column in range(width)), strict=True)


def _sums(numbers: Sequence[float], width: int) -> list[float]:
    return [sum(numbers[column::width]) for column in range(width)]


def _in_order(some: list[float], others: Sequence[float]) -> list[float]:
    """The requests of both lists, which did not wait, in the order of their responses."""
    both = sorted(_requests([*some, *others], NUMBERS_AT_ONCE), key=_READY_S)
    return list(chain.from_iterable(both))


def _count(counts: Counter[int], values: Sequence[int]) -> None:
    """Like `Counter.update`, which takes five times as long if all values are equal."""
    if values and values.count(values[0]) == len(values):
        counts[values[0]] += len(values)
    else:
        counts.update(values)


def _as_waited(request_bytes: float, received_s: float, ready_s: float) -> tuple[float, ...]:
    """All numbers of a request that started as it arrived, held the loop until its response was ready, and whose
    response the socket took at once; or their sums from the sums of these."""
    return (request_bytes, received_s, received_s, 0, received_s, ready_s, ready_s, ready_s, 0)


def _distributed(
    request_bytes: float,
    received_s: float,
    started_s: float,
    spent_s: float,
    began_s: float,
    ready_s: float,
    left_s: float,
    sent_s: float,
    throttle_time_ms: float,
) -> tuple[float, ...]:
    """The values for `_DISTRIBUTIONS` of one request, or the sums of many from the sums of their numbers. A difference
    may be less than 0 by a rounding error."""
    held_s = spent_s + ready_s - began_s
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


class RequestStatistics(dict[ApiKey, ApiStatistics]):
    """The requests of a broker by API; only used APIs are shown. `follower_fetches` are counted apart from consumers'
    fetches."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        super().__init__()
        self._clock_s = clock_s
        self.follower_fetches = ApiStatistics(ApiKey.FETCH, clock_s)
        # Encoders add the codes of all fetches to one list, so either kind of fetch must empty it.
        self.follower_fetches.error_codes = self[ApiKey.FETCH].error_codes

    def __missing__(self, api_key: ApiKey) -> ApiStatistics:
        self[api_key] = found = ApiStatistics(api_key, self._clock_s)
        return found

    def _by_name(self) -> dict[str, list[ApiStatistics]]:
        """By the names in Kafka's metrics."""
        names = {key.message_name: [found] for key, found in self.items() if found.count}
        fetches = {FETCH_CONSUMER: [self[ApiKey.FETCH]], FETCH_FOLLOWER: [self.follower_fetches]}
        return {**names, **fetches, ApiKey.FETCH.message_name: [*fetches[FETCH_CONSUMER], *fetches[FETCH_FOLLOWER]]}

    def _distributions(self, number: int) -> Mapping[str, Distribution]:
        return {name: _Merged(some, number) for name, some in self._by_name().items()}

    def _zeros(self) -> Mapping[str, Distribution]:
        by_name = self._by_name()
        names = [key.message_name for key in (ApiKey.PRODUCE, ApiKey.FETCH)]
        return {name: _Merged(by_name.get(name, ()), None) for name in names}

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
        metrics.meters(
            MetricName(group, type_, "RequestsPerSec"), "Requests answered.", ("request", "version"), self._requests
        )
        metrics.meters(
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


class _Merged:
    """The `Distribution` of this number in `_DISTRIBUTIONS`, for the requests of some APIs together, or of zeros if
    `number` is None. Quantiles are computed on demand: those of all APIs at once would hold the loop."""

    __slots__ = ("_number", "_some")

    def __init__(self, some: Sequence[ApiStatistics], number: int | None) -> None:
        self._some = some
        self._number = number

    @property
    def count(self) -> int:
        return sum(one.count for one in self._some)

    @property
    def total(self) -> float:
        return 0.0 if self._number is None else sum(one.total(self._number) for one in self._some)

    def quantiles(self, wanted: Sequence[float] = QUANTILES) -> list[float]:
        """Like `Distribution.quantiles`."""
        number = self._number
        return quantiles_of(() if number is None else [v for one in self._some for v in one.newest(number)], wanted)
