"""Requests about many items at once. One broker is responsible for each item: a partition, a group or a broker.

`fan_out` looks up the responsible brokers, asks all of them at the same time, and asks again about the items that
failed for a transient reason. Its callers define how brokers are looked up (`Route`) and how one broker is asked
(`Ask`).

What must stay true:
- Every item has a result: its broker's answer, or the KafkaError of the last attempt. The error of one item does not
  affect the others.
- The call ends: no attempt begins after the deadline of the client's policy.
- A request that may not be executed twice is not sent again once it was written.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

from klamm.client.cluster import ClusterClient
from klamm.client.retries import RETRIABLE_ERRORS, Attempts, RetryPolicy
from klamm.net.client import Avoided, Connection, Disconnected, NotSent
from klamm.protocol.apis.find_coordinator import FindCoordinatorRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME, TopicPartition

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# The errors with which the controller has not carried out the request.
CONTROLLER_ERRORS = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})
# A broker answers a request that has its own timeout when this is over, so the client waits a little longer.
ANSWER_MARGIN_MS = 2_000


class CoordinatorType(IntEnum):
    """The kind of a coordinator (`FindCoordinatorRequest.CoordinatorType`)."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class Unroutable:
    """No responsible broker is known. If this `is_transient`, a later attempt may find one."""

    error: KafkaError
    is_transient: bool = True


Route = Callable[[Sequence[K], bool], Awaitable[Mapping[K, int | Unroutable]]]
"""Returns the broker ids for these items. If the second argument is True, known brokers are looked up again."""
Ask = Callable[[Connection, Sequence[K]], Awaitable[Mapping[K, T | KafkaError]]]
"""Sends one request about these items and returns the result of each."""


def error_of(code: int, message: str | None = None) -> KafkaError | None:
    """The error of a code in a response, or None."""
    if code == ErrorCode.NONE:
        return None
    known = ErrorCode(code)
    # Newer brokers have codes that klamm does not know.
    return KafkaError(known, message or "" if known == code else f"error {code} of the broker: {message or 'no text'}")


def checked(result: T | KafkaError) -> T:
    """The value of a result. Raises its error."""
    if isinstance(result, KafkaError):
        raise result
    return result


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The numbers of the partitions of each topic, in their order."""
    numbers: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, []).append(number)
    return numbers


def answers(topics: Iterable[Any]) -> Iterator[tuple[TopicPartition, Any]]:
    """The partitions of a response's topics, each with its part of the response."""
    return ((TopicPartition(topic.name, each.partition_index), each) for topic in topics for each in topic.partitions)


async def fan_out(
    client: ClusterClient,
    items: Iterable[K],
    route: "Route[K]",
    ask: "Ask[K, T]",
    *,
    retriable: Collection[ErrorCode] = RETRIABLE_ERRORS,
    repeatable: bool = True,
    retry: RetryPolicy | None = None,
) -> dict[K, T | KafkaError]:
    """The result of each item. Errors in `retriable` are retried, and lost connections if the request is `repeatable`.

    `retry` replaces the client's policy.

    Raises ClientError when no broker could be asked for the responsible brokers, or a broker does not trust this
    client.
    """
    wanted = list(dict.fromkeys(items))
    results: dict[K, T | KafkaError] = {}
    attempts, open_, stale = Attempts(retry or client.retry), wanted, False
    while open_:
        try:
            again = await _attempt(client, await route(open_, stale), ask, results, retriable, repeatable)
        except (NotSent, Disconnected) as error:
            if attempts.are_over or client.is_closed or isinstance(error, Avoided):
                raise
            again = set(open_)
        open_ = [item for item in open_ if item in again]
        if attempts.are_over or client.is_closed:
            break
        if open_:
            await attempts.pause()
            stale = True
    return {item: results[item] for item in wanted}


async def _attempt(
    client: ClusterClient,
    brokers: Mapping[K, int | Unroutable],
    ask: "Ask[K, T]",
    results: dict[K, T | KafkaError],
    retriable: Collection[ErrorCode],
    repeatable: bool,
) -> set[K]:
    """Asks each broker once and stores the results. Returns the items for which another attempt may help."""
    again: set[K] = set()
    by_broker: dict[int, list[K]] = {}
    for item, broker in brokers.items():
        if isinstance(broker, Unroutable):
            results[item] = broker.error
            if broker.is_transient:
                again.add(item)
        else:
            by_broker.setdefault(broker, []).append(item)

    async def ask_broker(broker_id: int, items: list[K]) -> None:
        try:
            connection = await client.connection_to(broker_id)
        except (NotSent, KafkaError) as error:
            note(items, _unreachable(error), not isinstance(error, Avoided))
            return
        try:
            found = await ask(connection, items)
        except NotSent as error:
            note(items, _unreachable(error), True)
        except Disconnected as error:
            note(items, _unreachable(error), repeatable)
        else:
            for item in items:
                result = found.get(item)
                if item not in found:
                    result = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{connection} returned nothing for {item}")
                note([item], result, isinstance(result, KafkaError) and result.code in retriable)

    def note(items: Iterable[K], result: T | KafkaError | None, is_transient: bool) -> None:
        for item in items:
            results[item] = result  # type: ignore[assignment]  # None may be a T
            if is_transient:
                again.add(item)

    await asyncio.gather(*(ask_broker(broker_id, items) for broker_id, items in by_broker.items()))
    return again


def _unreachable(error: Exception) -> KafkaError:
    return error if isinstance(error, KafkaError) else KafkaError(ErrorCode.NETWORK_EXCEPTION, str(error))


# -- the responsible brokers ------------------------------------------------------------------------------------------


def leaders(client: ClusterClient, missing_timeout_ms: int = 0) -> Route[TopicPartition]:
    """Partitions go to their leaders.

    A broker that has just started knows no topics, and a new topic is not known everywhere at once. So a partition only
    counts as missing when all answers during `missing_timeout_ms` lack it.
    """
    loop = asyncio.get_running_loop()
    missing_since_s: dict[TopicPartition, float] = {}

    async def route(partitions: Sequence[TopicPartition], stale: bool) -> dict[TopicPartition, int | Unroutable]:
        topics = dict.fromkeys(topic for topic, _ in partitions)
        if stale or any(_leader(client, partition) is None for partition in partitions):
            await client.refresh_metadata_once(topics, elsewhere=stale)
        found: dict[TopicPartition, int | Unroutable] = {}
        for partition in partitions:
            leader = _leader(client, partition)
            if leader is not None:
                missing_since_s.pop(partition, None)
                found[partition] = leader
                continue
            error, is_transient = _no_leader(client, partition)
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                since_s = missing_since_s.setdefault(partition, loop.time())
                is_transient = loop.time() < since_s + missing_timeout_ms / 1000
            else:
                missing_since_s.pop(partition, None)
            found[partition] = Unroutable(error, is_transient)
        return found

    return route


def _leader(client: ClusterClient, partition: TopicPartition) -> int | None:
    topic = client.metadata.topics.get(partition.topic)
    state = None if topic is None else topic.partitions.get(partition.partition)
    return None if state is None or state.leader < 0 else state.leader


def _no_leader(client: ClusterClient, partition: TopicPartition) -> tuple[KafkaError, bool]:
    topic = client.metadata.topics.get(partition.topic)
    if topic is not None and topic.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        error = KafkaError(ErrorCode(topic.error_code), f"topic {partition.topic}")
        return error, topic.error_code in RETRIABLE_ERRORS
    if topic is None or partition.partition not in topic.partitions:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}"), True
    return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition} has no leader"), True


def coordinators(client: ClusterClient, of: CoordinatorType = CoordinatorType.GROUP) -> Route[str]:
    """Groups or transactional ids go to their coordinators. Each attempt asks another broker, because a broker that is
    cut off may name a former coordinator."""
    any_broker = in_turn(client)
    is_of_groups = of is CoordinatorType.GROUP
    known = client.coordinators if is_of_groups else client.transaction_coordinators

    def what(key: str) -> str:
        return f"the coordinator of {'group' if is_of_groups else 'transactional id'} {key}"

    async def find(connection: Connection, key: str, errors: dict[str, KafkaError]) -> None:
        """Asks a broker for a coordinator, and stores it or the error."""
        request = find_coordinator_request(key, of)
        found = await connection.send(ApiKey.FIND_COORDINATOR, lambda version: request)
        text = what(key)
        if found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            topic = GROUP_METADATA_TOPIC_NAME if is_of_groups else TRANSACTION_STATE_TOPIC_NAME
            text += f": {topic} cannot be created, or no broker leads its partition; the brokers' logs say why"
        if (error := error_of(found.error_code, text)) is None:
            known[key] = found.node_id
        else:
            errors[key] = error

    async def route(keys: Sequence[str], stale: bool) -> dict[str, int | Unroutable]:
        if stale:
            for key in keys:
                known.pop(key, None)
        if stale or not client.metadata.brokers:
            await client.refresh_metadata_once((), elsewhere=stale)
        errors: dict[str, KafkaError] = {}
        unknown = [key for key in keys if key not in known]
        asked = any_broker()
        if unknown and asked is not None:
            connection = await client.connection_to(asked)
            await asyncio.gather(*(find(connection, key, errors) for key in unknown))
        found: dict[str, int | Unroutable] = {}
        for key in keys:
            broker_id = known.get(key)
            if key in errors:
                found[key] = Unroutable(errors[key], errors[key].code in RETRIABLE_ERRORS)
            elif broker_id is not None and broker_id in client.metadata.brokers:
                found[key] = broker_id
            else:
                # The coordinator has died meanwhile, or one of the two asked brokers has older metadata.
                text = what(key) + ("" if broker_id is None else f", {broker_id}")
                found[key] = Unroutable(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text))
        return found

    return route


def find_coordinator_request(key: str, of: CoordinatorType = CoordinatorType.GROUP) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key=key, key_type=of)


def in_turn(client: ClusterClient) -> Callable[[], int | None]:
    """Returns another broker at each call, brokers with an open connection first; None when no broker is known."""
    turns = itertools.count()

    def any_broker() -> int | None:
        known = client.brokers_to_ask()
        return known[next(turns) % len(known)] if known else None

    return any_broker


async def ask_every_broker(client: ClusterClient, ask: Callable[[int], Awaitable[T]]) -> dict[int, T | KafkaError]:
    """The result of `ask(broker_id)` for each live broker, by broker id, or why it has not answered.

    When a broker dies, other brokers take over its groups and transactions. So all brokers are asked again when one is
    lost or not ready. Raises KafkaError and ClientError for a permanent error, or when no broker is known.
    """

    async def asked(broker_id: int) -> tuple[T | KafkaError, bool]:
        """The result, and whether to ask again."""
        try:
            return await ask(broker_id), False
        except (NotSent, Disconnected) as error:
            return _unreachable(error), not isinstance(error, Avoided)
        except KafkaError as error:
            if error.code not in {*RETRIABLE_ERRORS, ErrorCode.BROKER_NOT_AVAILABLE}:
                raise
            return error, True

    attempts = Attempts(client.retry)
    while True:
        try:
            await client.refresh_metadata_once(())
        except (NotSent, Disconnected) as error:
            if attempts.are_over or client.is_closed or isinstance(error, Avoided):
                raise
        else:
            broker_ids = sorted(client.metadata.brokers)
            answers = await asyncio.gather(*map(asked, broker_ids))
            if not any(again for _, again in answers) or attempts.are_over or client.is_closed:
                return {broker_id: answer for broker_id, (answer, _) in zip(broker_ids, answers, strict=True)}
        await attempts.pause()


def brokers(client: ClusterClient) -> Route[int]:
    """Broker ids go to these brokers."""
    return of_brokers(client, int)


def of_brokers(client: ClusterClient, broker_of: Callable[[K], int]) -> Route[K]:
    """Each item, such as a replica, names its broker.

    A broker that is not in the cluster is an error at once: the caller decides whether to wait for it. Two brokers must
    lack it, because a broker that has just started knows only some of the other brokers.
    """

    async def route(items: Sequence[K], stale: bool) -> dict[K, int | Unroutable]:
        responsible: dict[K, int | Unroutable] = {item: broker_of(item) for item in items}
        wanted = set(responsible.values())
        if stale or not wanted <= client.metadata.brokers.keys():
            await client.refresh_metadata_once(())
        if not wanted <= client.metadata.brokers.keys():
            await client.refresh_metadata_once((), elsewhere=True)
        for item, broker_id in responsible.items():
            if broker_id not in client.metadata.brokers:
                responsible[item] = _not_in_cluster(client, broker_id)
        return responsible

    return route


def _not_in_cluster(client: ClusterClient, broker_id: object) -> Unroutable:
    live = client.metadata.brokers
    known = f"live are {', '.join(map(str, sorted(live)))}" if live else "no live broker is known"
    text = f"broker {broker_id} is not in the cluster; {known}"
    return Unroutable(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, text), is_transient=not live)


def controller(client: ClusterClient) -> Route[K]:
    """Every item goes to the active controller."""

    async def route(items: Sequence[K], stale: bool) -> dict[K, int | Unroutable]:
        if stale or client.metadata.controller_id not in client.metadata.brokers:
            await client.refresh_metadata_once((), elsewhere=stale)
        controller_id = client.metadata.controller_id
        if controller_id not in client.metadata.brokers:
            unroutable = Unroutable(KafkaError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller"))
            return dict.fromkeys(items, unroutable)
        return dict.fromkeys(items, controller_id)

    return route


async def ask_controller(
    client: ClusterClient,
    items: Iterable[K],
    ask: "Ask[K, T]",
    *,
    retriable: Collection[ErrorCode] = CONTROLLER_ERRORS,
    repeatable: bool = False,
) -> dict[K, T | KafkaError]:
    """`fan_out` to the controller, for requests that change the cluster."""
    return await fan_out(client, items, controller(client), ask, retriable=retriable, repeatable=repeatable)
