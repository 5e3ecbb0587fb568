"""Answers that go wrong: an error, a delay, silence or a closed connection, for requests that a fault selects.

The dispatcher has a table with a row for each API. While a fault concerns an API, this module replaces the API's row;
otherwise the table is the broker's own, and requests cost nothing more.

| the fault  | before the effect                           | after the effect                                       |
|------------|---------------------------------------------|--------------------------------------------------------|
| fail       | selected items are not served and have the  | the request is served; the error replaces the answers  |
|            | error                                       | of selected items                                      |
| delay      | the request waits, and so do all later ones | the answer waits                                       |
|            | of its connection                           |                                                        |
| drop       | the request has no effect and no answer;    | the request has no answer; its connection answers      |
|            | its connection serves nothing more, and     | nothing more, and closes when the fault ends           |
|            | closes when the fault ends                  |                                                        |
| disconnect | the connection closes; no effect            | the connection closes instead of the answer            |

When several faults could strike one request, all delays strike and add up. The oldest of the other faults strikes. If
it is an error of some items, younger errors strike the remaining items.

What must stay true:
- A Produce request that waits before its effect keeps its place: no later Produce request of its connection overtakes
  it.
- If a fault selects some items of a request, the others are served, and the answer is that of Kafka when only the
  selected items fail.
- `close` ends all waiting, so that a server under faults stops as fast as any other.
- No step grows with the number of items in a request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from types import CoroutineType, GeneratorType
from typing import Any

from klamm.base.slices import CHEAP_SLICE, Slices, Steps, begin, each, in_slices
from klamm.broker.handlers.by_partition import named_partitions
from klamm.broker.request_errors import ITEM_ERRORS, as_kafka_error
from klamm.broker.requests.api import Api, CountedApi
from klamm.broker.requests.dispatcher import Dispatcher
from klamm.broker.requests.registry import Request
from klamm.faults.agent import Agent
from klamm.faults.commands.answers import AnswerFault, DelayAnswers, DisconnectClients, DropAnswers, FailAnswers
from klamm.faults.request_subjects import (
    ONE_BY_ONE,
    Selects,
    fail_metadata,
    fail_offsets,
    groups_of,
    merged,
    names_all_topics,
    names_item,
    transactional_ids_of,
    with_items,
    without,
)
from klamm.faults.tally import Tally
from klamm.net.server.exchange import AnswerOnly, InvalidRequest
from klamm.net.server.server_connection import ServerConnection
from klamm.processes.readiness import CLIENT_ID
from klamm.protocol.apis.fetch import FetchPartition, PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import FINAL_EPOCH, INITIAL_EPOCH, PartitionKey
from klamm.replication.replica_manager import ReplicaManager, Wanted

KINDS = (FailAnswers, DelayAnswers, DropAnswers, DisconnectClients)

# The errors of Fetch that concern the whole request. Kafka returns all other errors by partition.
_OF_FETCH_SESSIONS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


@dataclass(eq=False)
class _Active:
    """An installed fault. Completing the futures in `held` ends the waits of delayed requests. `silent` are the
    connections with a request that gets no answer."""

    fault: AnswerFault
    tally: Tally
    held: dict["asyncio.Future[None]", None] = field(default_factory=dict)
    silent: dict[ServerConnection, None] = field(default_factory=dict)
    is_over: bool = False

    def is_called_by(self, request: Request[Any]) -> Steps[bool]:
        """Whether the request is a call for this fault."""
        fault, key, body = self.fault, request.api.key, request.body
        if request.client_id != fault.client_id and (fault.client_id is not None or request.client_id == CLIENT_ID):
            return False
        if fault.group is not None and fault.group not in groups_of(key, body):
            return False
        if fault.transactional_id is not None and fault.transactional_id not in transactional_ids_of(key, body):
            return False
        # An error of items cannot strike a request without items.
        needs_item = isinstance(fault, FailAnswers) and (key is ApiKey.FETCH or key in ONE_BY_ONE)
        if fault.topic is None and fault.partition is None and not needs_item:
            return True
        return (yield from _names_item(request, self.selects))

    def is_due(self) -> bool:
        """Counts a call; returns whether the fault strikes it unless an older fault does."""
        self.tally.asked()
        fault = self.fault
        if not fault.on_call and fault.probability is None:
            return True
        call = self.tally.turns("calls").take()
        if fault.on_call and call not in fault.on_call:
            return False
        return fault.probability is None or _chance(fault.seed, call) < fault.probability

    def strikes(self, request: Request[Any]) -> bool:
        """Counts a strike, if one is left, and returns whether there was one."""
        if self.fault.times is not None and self.tally.turns("strikes").take() > self.fault.times:
            return False
        names = ("topic", "partition", "group", "transactional_id")
        conditions = {name: value for name in names if (value := getattr(self.fault, name)) is not None}
        self.tally.struck(api=self.fault.api, client_id=request.client_id, **conditions)
        return True

    def selects(self, topic: str, partition: int | None) -> bool:
        wanted = self.fault
        return (wanted.topic is None or topic == wanted.topic) and (
            partition is None or wanted.partition is None or partition == wanted.partition
        )

    def end(self) -> None:
        """Ends all waits and all strikes of the fault."""
        self.is_over = True
        for waiting in self.held:
            _wake(waiting)
        for connection in list(self.silent):
            connection.disconnect("fault: an answer was dropped")


@dataclass(frozen=True, slots=True)
class _Strike:
    """A fault that strikes a request, or the items that `selects` accepts."""

    active: _Active
    selects: Selects

    @property
    def fault(self) -> AnswerFault:
        return self.active.fault

    @property
    def failure(self) -> FailAnswers:
        assert isinstance(self.fault, FailAnswers)
        return self.fault

    @property
    def error(self) -> KafkaError:
        return KafkaError(self.failure.error_code, "an injected fault")


class Answers:
    """The faults of one broker's answers. Call `register` before the agent connects, and `serve` when the broker has
    its dispatcher."""

    def __init__(self) -> None:
        self._active: dict[ApiKey, list[_Active]] = {}
        self._dispatcher: Dispatcher | None = None
        self._rows: dict[ApiKey, CountedApi] = {}
        self._is_closed = False

    def register(self, agent: Agent) -> None:
        """Registers these faults with the agent."""
        for kind in KINDS:
            agent.installs(kind, self.install)

    def serve(self, dispatcher: Dispatcher) -> None:
        """Applies the faults to this dispatcher's requests from now on."""
        self._dispatcher = dispatcher
        for key in self._active:
            self._replace_row(key)

    def install(self, fault: AnswerFault, tally: Tally) -> Callable[[], None]:
        """Begins a fault; returns a function that ends it."""
        active = _Active(fault, tally, is_over=self._is_closed)
        key = fault.api_key
        self._active.setdefault(key, []).append(active)
        self._replace_row(key)

        def end() -> None:
            self._active[key].remove(active)
            if not self._active[key]:
                del self._active[key]
            self._replace_row(key)
            active.end()

        return end

    def close(self) -> None:
        """Ends all waiting: delayed requests continue, silent connections close, and no fault strikes again.
        Idempotent."""
        self._is_closed = True
        for actives in self._active.values():
            for active in actives:
                active.end()

    def _replace_row(self, key: ApiKey) -> None:
        if self._dispatcher is None:
            return
        apis = self._dispatcher.apis
        own = self._rows.setdefault(key, apis[key])
        apis[key] = replace(own, handle=partial(self._handle, own)) if key in self._active else own

    # -- one request ----------------------------------------------------------------------------------------------

    def _handle(self, api: Api, request: Request[Any]) -> Any:
        strikes = begin(_strikes(self._active.get(api.key, ()), request))
        if not isinstance(strikes, list):
            return _handle_later(api, request, strikes)
        return _struck(api, request, strikes) if strikes else api.handle(request)


def _strikes(actives: Sequence[_Active], request: Request[Any]) -> Steps[list[_Strike]]:
    """The faults that strike the request, oldest first. The request is a call for each fault that selects it."""
    strikes: list[_Strike] = []
    decisive: list[_Strike] = []
    for active in tuple(actives):
        if not (yield from active.is_called_by(request)) or active.is_over or not active.is_due():
            continue
        is_delay = isinstance(active.fault, DelayAnswers)
        strike = _Strike(active, _not_struck(active, tuple(decisive)))
        if decisive and not is_delay and not (yield from _leave_items(decisive, strike, request)):
            continue
        if not active.is_over and active.strikes(request):
            strikes.append(strike)
            if not is_delay:
                decisive.append(strike)
    return strikes


def _not_struck(active: _Active, older: Sequence[_Strike]) -> Selects:
    """Selects the items of the fault that no older fault strikes."""
    if not older:
        return active.selects
    return lambda topic, partition: (
        active.selects(topic, partition) and not any(strike.active.selects(topic, partition) for strike in older)
    )


def _leave_items(older: Sequence[_Strike], strike: _Strike, request: Request[Any]) -> Steps[bool]:
    """Whether all of these strikes are errors of items, and the older strikes leave an item to this strike."""
    if not all(_is_of_items(request, one.fault) for one in (*older, strike)):
        return False
    return (yield from _names_item(request, strike.selects))


async def _handle_later(api: Api, request: Request[Any], finding: Awaitable[list[_Strike]]) -> Any:
    strikes = await finding
    return await (_struck(api, request, strikes) if strikes else _settled(api.handle(request)))


async def _struck(api: Api, request: Request[Any], strikes: list[_Strike]) -> Any:
    """The dispatcher starts no later Produce request of the connection before this coroutine ends."""
    before = [strike for strike in strikes if not strike.fault.after]
    after = [strike for strike in strikes if strike.fault.after]
    await _wait(before)
    for strike in before:
        if isinstance(strike.fault, DropAnswers | DisconnectClients):
            return _without_answer(strike, request)
    try:
        if api.key is ApiKey.FETCH and (reads := [one for one in strikes if _is_of_items(request, one.fault)]):
            result = await _settled(api.handle(_with_failing_reads(request, reads)))
        else:
            result = await _failed_before(api, request, _failures(before))
    except ITEM_ERRORS as error:
        if not after:
            raise
        result = await _settled(api.error_response(request, as_kafka_error(error)))
    return AnswerOnly(partial(_strike_after, api, request, result, after)) if after else result


async def _strike_after(api: Api, request: Request[Any], result: Any, after: list[_Strike]) -> Any:
    try:
        result = await _final(result)
    except ITEM_ERRORS as error:
        result = await _settled(api.error_response(request, as_kafka_error(error)))
    await _wait(after)
    for strike in after:
        if isinstance(strike.fault, DropAnswers | DisconnectClients):
            return _without_answer(strike, request)
    # If a fetch does not fail as a whole, its reads have added the errors already.
    if api.key is not ApiKey.FETCH or not all(_is_of_items(request, one.fault) for one in _failures(after)):
        for strike in _failures(after):
            result = await _failed_after(api, request, strike, result)
    return result


def _without_answer(strike: _Strike, request: Request[Any]) -> AnswerOnly[Any]:
    connection = request.connection
    if isinstance(strike.fault, DisconnectClients):
        raise InvalidRequest(f"fault: {request.api.key.message_name} disconnects")
    if not strike.fault.after:
        connection.hold_followers()
    return AnswerOnly(partial(_be_silent, strike.active, connection))


async def _be_silent(active: _Active, connection: ServerConnection) -> None:
    """Lasts until the connection or the fault ends: the connection's end cancels the task."""
    if active.is_over:
        raise InvalidRequest("fault: an answer was dropped")
    active.silent[connection] = None
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        active.silent.pop(connection, None)


async def _wait(struck: Sequence[_Strike]) -> None:
    """Waits for all delays. Removing a fault ends its delay."""
    for strike in struck:
        if isinstance(strike.fault, DelayAnswers) and not strike.active.is_over:
            await _pause(strike.active, strike.fault.delay_ms)


async def _pause(active: _Active, delay_ms: int) -> None:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()
    timer = loop.call_later(delay_ms / 1000, _wake, waiting)
    active.held[waiting] = None
    try:
        await waiting
    finally:
        timer.cancel()
        del active.held[waiting]


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _chance(seed: int, call: int) -> float:
    """A number in [0, 1), which is the same on all servers for the same seed and call."""
    return int.from_bytes(blake2b(f"{seed}:{call}".encode(), digest_size=6).digest()) / 2**48


# -- errors -----------------------------------------------------------------------------------------------------------


def _failures(strikes: Sequence[_Strike]) -> list[_Strike]:
    return [strike for strike in strikes if isinstance(strike.fault, FailAnswers)]


def _is_of_items(request: Request[Any], fault: AnswerFault) -> bool:
    """Whether the fault is an error of items of the answer; otherwise it concerns the whole request."""
    if not isinstance(fault, FailAnswers):
        return False
    if request.api.key is ApiKey.FETCH:
        return fault.error_code not in _OF_FETCH_SESSIONS
    return request.api.key in ONE_BY_ONE or _is_marked(request, fault)


async def _failed_before(api: Api, request: Request[Any], failures: Sequence[_Strike]) -> Any:
    """The result of a request whose selected items are not served. May be an AnswerOnly, like a handler's."""
    refused: list[tuple[_Strike, Request[Any]]] = []
    marks = [strike for strike in failures if _is_marked(request, strike.failure)]
    served = request
    error: KafkaError | None = None
    for strike in failures:
        if strike in marks:
            continue
        if api.key not in ONE_BY_ONE:
            raise strike.error
        selected = await in_slices(with_items(api.key, served.body, strike.selects))
        rest = await in_slices(with_items(api.key, served.body, without(strike.selects)))
        if rest is None and api.key is not ApiKey.METADATA:
            error = strike.error  # of all that is left
            break
        refused.append((strike, replace(served, body=selected)))
        served = _without_topics(served) if rest is None else replace(served, body=rest)
    try:
        if error is not None:
            raise error
        result = await _settled(api.handle(served))
    except ITEM_ERRORS as cause:
        if marks:
            raise marks[0].error from None
        if not refused:
            raise
        result = await _settled(api.error_response(served, as_kafka_error(cause)))
    if not refused and not marks:
        return result
    finish = partial(_with_all_failures, api, request, result, refused, marks)
    return AnswerOnly(finish) if isinstance(result, AnswerOnly) else await finish()


def _without_topics(request: Request[Any]) -> Request[Any]:
    """A Metadata request without topics: Kafka's answer has the brokers even if all topics fail."""
    body = copy(request.body)
    body.topics = []
    # In version 0 an empty list stands for all topics.
    return replace(request, body=body, version=max(request.version, 1))


async def _with_all_failures(
    api: Api,
    request: Request[Any],
    result: Any,
    refused: Sequence[tuple[_Strike, Request[Any]]],
    marks: Sequence[_Strike],
) -> Any:
    result = await _final(result)
    for strike, selected in refused:
        result = await _with_failures(api, selected, strike, result)
    for strike in reversed(marks):
        result = await _failed_after(api, request, strike, result)
    return result


async def _failed_after(api: Api, request: Request[Any], strike: _Strike, result: Any) -> Any:
    """The answer, with the error in its selected items."""
    key, fault = api.key, strike.failure
    if _is_marked(request, fault):
        if key is ApiKey.OFFSET_FETCH:
            marking = fail_offsets(result, strike.selects, fault.error_code)
        else:
            marking = fail_metadata(result, strike.active.selects, fault.error_code, partition=fault.partition)
        return await in_slices(marking)
    selected = await in_slices(with_items(key, request.body, strike.selects)) if key in ONE_BY_ONE else None
    if selected is None:
        raise strike.error
    return await _with_failures(api, replace(request, body=selected), strike, result)


async def _with_failures(api: Api, selected: Request[Any], strike: _Strike, result: Any) -> Any:
    result = await _final(result)
    failed = await _settled(api.error_response(selected, strike.error))
    return await in_slices(merged(api.key, result, failed, strike.selects))


def _is_marked(request: Request[Any], fault: FailAnswers) -> bool:
    """Whether the error is written into the answer because the request cannot be split: the request does not name the
    items, or names them less finely than its answer. Such requests change nothing."""
    key = request.api.key
    if key is ApiKey.OFFSET_FETCH:
        return fault.topic is not None or fault.partition is not None
    return key is ApiKey.METADATA and (
        fault.partition is not None or names_all_topics(key, request.version, request.body)
    )


# -- Fetch: the session has the partitions ----------------------------------------------------------------------------


def _names_item(request: Request[Any], selects: Selects) -> Steps[bool]:
    """Whether the request is about a selected item."""
    if request.api.key is not ApiKey.FETCH:
        return (yield from names_item(request.api.key, request.version, request.body, selects))
    slices = Slices(CHEAP_SLICE)
    for topic, number in (yield from _fetched(request)):
        if selects(topic, number):
            return True
        if slices.spend():
            yield
    return False


def _fetched(request: Request[Any]) -> Steps[Sequence[PartitionKey]]:
    """The partitions of a fetch request: those that it names, and those of its session. Empty if the session does not
    exist: the request is then refused as a whole."""
    body = request.body
    named = yield from named_partitions((topic.topic, map(_number_of, topic.partitions)) for topic in body.topics)
    if body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        return named
    session = request.services.fetch_sessions.partitions_of(body.session_id, body.session_epoch)
    if not session:
        return ()
    forgotten = yield from named_partitions((topic.topic, topic.partitions) for topic in body.forgotten_topics_data)
    if forgotten:
        session = yield from _without(session, frozenset(forgotten))
    return (*named, *session)


def _number_of(partition: FetchPartition) -> int:
    return partition.partition


def _without(partitions: Sequence[PartitionKey], forgotten: Collection[PartitionKey]) -> Steps[list[PartitionKey]]:
    left = []
    slices = Slices(CHEAP_SLICE)
    for key in partitions:
        if key not in forgotten:
            left.append(key)
        if slices.spend():
            yield
    return left


class _FailingReads:
    """A ReplicaManager whose reads of some partitions fail, so that the fetch session has the errors."""

    def __init__(self, manager: ReplicaManager, strikes: Sequence[_Strike]) -> None:
        self._manager = manager
        self._strikes = strikes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    async def fetch(self, wanted: Sequence[Wanted], *, max_wait_ms: int, **options: Any) -> list[PartitionData]:
        served: list[Wanted] = []
        failing: dict[int, _Strike] = {}
        async for index, (topic, want) in each(enumerate(wanted), CHEAP_SLICE):
            strike = next((one for one in self._strikes if one.selects(topic, want.partition)), None)
            if strike is not None:
                failing[index] = strike
            if strike is None or strike.fault.after:
                served.append((topic, want))
        # As in Kafka, a partition with an error ends the wait.
        results = iter(await self._manager.fetch(served, max_wait_ms=0 if failing else max_wait_ms, **options))
        answers = []
        async for index, (_, want) in each(enumerate(wanted), CHEAP_SLICE):
            strike = failing.get(index)
            if strike is None or strike.fault.after:
                result = next(results)
            if strike is not None:
                result = PartitionData(partition_index=want.partition, error_code=strike.error.code)
            answers.append(result)
        return answers


def _with_failing_reads(request: Request[Any], strikes: Sequence[_Strike]) -> Request[Any]:
    manager: Any = _FailingReads(request.services.replica_manager, strikes)
    return replace(request, services=replace(request.services, replica_manager=manager))


# -- what handlers return ---------------------------------------------------------------------------------------------


async def _settled(result: Any) -> Any:
    """The value of a handler's steps or coroutine: an answer, None, or an AnswerOnly."""
    if isinstance(result, GeneratorType):
        return await in_slices(result)
    if isinstance(result, CoroutineType):
        return await result
    return result


async def _final(result: Any) -> Any:
    """The answer, after all waiting."""
    while isinstance(result, AnswerOnly):
        result = await result.answer()
    return result
