"""The quotas of one request: its usage, and the throttle time of its client.

The broker answers at once, with the throttle time, and mutes the connection for that time (KIP-219). When a client
exceeds several quotas, the longest throttle time counts, and appears in the metrics of that quota.

What must stay true:
- Requests of brokers are never throttled, as in Kafka: the cluster would wait for them.
- A fetch is throttled before its answer is made, because a throttled answer has no records. Records that are not sent
  do not count. A client whose windows are empty gets its records, however many: otherwise a batch that is larger than
  the quota of all windows would never be sent. (Kafka's consumers wait for it for ever.)

Source: kafka.server.KafkaApis, kafka.server.RequestHandlerHelper.
"""

from typing import Any

from klamm.broker.quotas.client_quotas import ClientQuotas
from klamm.broker.quotas.mutation_quota import UNBOUNDED_MUTATIONS, Mutations
from klamm.broker.quotas.sensors import ClientQuota
from klamm.net.stopwatch import Stopwatch


class RequestQuota:
    """The quotas of one request of a client, made while a quota is set."""

    __slots__ = (
        "_changes",
        "_client_id",
        "_is_decided",
        "_is_exempt",
        "_quotas",
        "_taken_s",
        "_user",
        "stopwatch",
        "throttle_time_ms",
    )

    def __init__(self, quotas: ClientQuotas, user: str, client_id: str, stopwatch: Stopwatch | None) -> None:
        self._quotas = quotas
        self._user = user
        self._client_id = client_id
        self.stopwatch = stopwatch
        self._changes = UNBOUNDED_MUTATIONS
        self.throttle_time_ms = 0
        # The part of the stopwatch's time that was recorded.
        self._taken_s = 0.0
        self._is_decided = self._is_exempt = False

    # -- for handlers -------------------------------------------------------------------------------------------------

    def changes(self, *, strict: bool, throttles: bool) -> Mutations:
        """The partitions that the request creates and deletes."""
        changes = self._quotas.controller_mutation.of(self._user, self._client_id, strict=strict)
        if throttles:
            self._changes = changes
        return changes

    def max_fetch_bytes(self) -> float:
        """The size beyond which the answer of a fetch is certainly throttled."""
        return self._quotas.fetch.allowance(self._user, self._client_id)

    def throttles_fetch(self, size_bytes: int) -> bool:
        """Records a consumer's fetch with an answer of this size. If True, the answer must have no records."""
        quotas, now_ms = self._quotas, self._quotas.clock_ms()
        who = self._user, self._client_id
        fetch_ms = request_ms = 0
        is_first = False
        if quotas.fetch.bounds.is_set:
            is_first = quotas.fetch.has_used_nothing(*who, now_ms)
            fetch_ms = quotas.fetch.record(*who, size_bytes, now_ms)
        if self.stopwatch is not None:
            request_ms = quotas.request.record(*who, self._percent(), now_ms)
        self._decide((quotas.fetch, fetch_ms), (quotas.request, request_ms))
        if not self.throttle_time_ms or (is_first and not request_ms):
            return False
        if quotas.fetch.bounds.is_set:
            quotas.fetch.take_back(*who, size_bytes, now_ms)
        return True

    # -- for the dispatcher -------------------------------------------------------------------------------------------

    def answered(self, produced_bytes: int, *, is_acknowledged: bool) -> int:
        """Records the request before its answer is encoded; returns the throttle time. `produced_bytes` is the size of
        a Produce request. As in Kafka, no quota bounds the time of a request without an answer."""
        if self._is_decided:
            return self.throttle_time_ms
        quotas, now_ms = self._quotas, self._quotas.clock_ms()
        produce_ms = request_ms = 0
        if produced_bytes and quotas.produce.bounds.is_set:
            produce_ms = quotas.produce.record(self._user, self._client_id, produced_bytes, now_ms)
        if self.stopwatch is not None and is_acknowledged:
            request_ms = quotas.request.record(self._user, self._client_id, self._percent(), now_ms)
        elif self.stopwatch is not None:
            quotas.record_exempt(self._percent(), now_ms)
        mutation_ms = self._changes.throttle_time_ms()
        self._decide(
            (quotas.produce, produce_ms), (quotas.controller_mutation, mutation_ms), (quotas.request, request_ms)
        )
        return self.throttle_time_ms

    def answered_exempt(self) -> None:
        """Records the time of a request that no quota bounds."""
        self._is_decided = self._is_exempt = True
        self.encoded()

    def encoded(self) -> None:
        """Records the time of the encoding, which counts for the client's next request."""
        if self.stopwatch is None:
            return
        quotas, now_ms = self._quotas, self._quotas.clock_ms()
        if self._is_exempt:
            quotas.record_exempt(self._percent(), now_ms)
        else:
            quotas.request.record(self._user, self._client_id, self._percent(), now_ms)

    def _decide(self, *throttles: tuple[ClientQuota[Any], int]) -> None:
        self._is_decided = True
        for quota, throttle_ms in throttles:
            if throttle_ms > self.throttle_time_ms:
                self.throttle_time_ms, longest = throttle_ms, quota
        if self.throttle_time_ms:
            longest.throttled(self._user, self._client_id, self.throttle_time_ms, self._quotas.clock_ms())

    def _percent(self) -> float:
        """The time since the last call, in percent of a second. The watch runs afterwards."""
        assert self.stopwatch is not None
        before_s, self._taken_s = self._taken_s, self.stopwatch.read_s()
        return (self._taken_s - before_s) * 100
