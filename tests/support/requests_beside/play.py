"""Sends the requests of a sequence to both programs, one after another, and finds where their answers differ first.

A request goes to both at the same time, and the next one when both have answered. A request that neither answers waits
(JoinGroup, SyncGroup); its answer is compared when it comes. One that only one program answers differs.

What must stay true:
- Ids, epochs, generations, sessions and offsets that a request names are those that its own program has given.
- What a program does a moment later than it says so (markers, configurations, offsets of a transaction) is waited for:
  passing errors are asked again, and reads that differ are repeated. What differs for good differs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import InvalidFrame, encode_request
from support.group_wire import leave
from support.one_broker import Client
from support.requests_beside.answers import (
    CLOSED,
    NO_ANSWER,
    NOTHING,
    PASSING,
    Difference,
    Names,
    error_names,
    first_difference,
    plain,
)
from support.requests_beside.known import Known, explain
from support.requests_beside.step import Json, Step, replaced_at, value_at
from support.requests_beside.stories import GROUPS, PARTITIONS, TIMEOUT_MS, TOPIC, TRANSACTIONAL_IDS, last_look
from support.transaction_requests import PROPERTIES as OF_COORDINATORS
from support.transaction_wire import repeated

PROPERTIES: dict[str, str | int] = OF_COORDINATORS | {
    # Whether an answer has a session is no matter of how many other sequences have one.
    "max.incremental.fetch.session.cache.slots": 100_000,
    "log.segment.delete.delay.ms": 1000,
    "auto.create.topics.enable": "false",
    # Old records stay. Kafka looks once, half a minute after its start, and nothing keeps it from that.
    "log.retention.check.interval.ms": 86_400_000,
    # Nobody loses a session because the machine is busy.
    "zookeeper.session.timeout.ms": 60_000,
}

# How long both programs must be silent for a request to wait: so long, and longer than each takes for a request that
# does not wait. How many times as long one may be silent when the other is not.
WAITING_S, LATE = 0.2, 12
# How long a passing error is asked again, and a read that differs.
PASSING_S, DIFFERS_S, RETRY_S = 5.0, 2.0, 0.02
# What a changed configuration takes until the log knows it.
CONFIGURED_S = 0.1

# A request of these changes nothing, so it can be repeated.
READS = {
    ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.DESCRIBE_CONFIGS, ApiKey.DESCRIBE_GROUPS, ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.FETCH, ApiKey.FIND_COORDINATOR, ApiKey.LIST_GROUPS, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
}  # fmt: skip
ALTERS = {ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS}
MARKS = {ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID, ApiKey.WRITE_TXN_MARKERS}

# The connection on which nothing waits: for the topic, and for looks that are not compared.
HOUSEKEEPING = -1

PULSE = Step(0, ApiKey.DESCRIBE_GROUPS, 0, {"groups": [GROUPS[0]]})

_PROCESS = f"{time.time_ns() // 1000 % 16**6:06x}"
_runs = count()


class Side:
    """One program in one sequence: connections, and what its answers have given."""

    def __init__(self, address: str, prefix: str) -> None:
        self.prefix = prefix
        self.names = Names(prefix)
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._values: dict[str, Any] = {}
        self._clients: dict[int, Client] = {}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    async def ask(self, step: Step, connection: int) -> Any:
        """The answer, as far as it is one."""
        answer = await self._asked(step, connection)
        if step.api is ApiKey.END_TXN and not isinstance(answer, str) and answer.error_code == 0:
            # Its markers are written when it may be repeated.
            await self._asked(step, connection)
        return answer

    async def _asked(self, step: Step, connection: int) -> Any:
        """Asks again after passing errors, for some seconds."""
        deadline_s = asyncio.get_running_loop().time() + PASSING_S
        while True:
            answer = await self._once(step, connection)
            if not is_passing(step, answer) or asyncio.get_running_loop().time() > deadline_s:
                return answer
            await asyncio.sleep(RETRY_S)

    def request(self, step: Step) -> Any:
        return step.message(self.prefix, self._values)

    async def _once(self, step: Step, connection: int) -> Any:
        body = self.request(step)
        try:
            client = self._clients.get(connection) or await self._connect(connection)
            if step.api is ApiKey.PRODUCE and body.acks == 0:
                client.send_raw(b"".join(map(bytes, encode_request(step.api, step.version, 0, "beside", body))))
                await client.ask(ApiKey.API_VERSIONS, 0)
                return NOTHING
            return await client.request(step.api, step.version, body, client_id="beside")
        except (asyncio.IncompleteReadError, ConnectionError):
            if (closed := self._clients.pop(connection, None)) is not None:
                await closed.close()
            return CLOSED
        except InvalidFrame as error:
            return f"an answer that cannot be read: {error}"

    async def _connect(self, connection: int) -> Client:
        client = Client(*await asyncio.open_connection(self._host, self._port))
        self._clients[connection] = client
        return client

    def bind(self, step: Step, answer: Any) -> None:
        """Keeps what the answer has given for the symbols of later steps."""
        if step.binds is None or isinstance(answer, str):
            return
        given: dict[str, Any] = {}
        match step.api:
            case ApiKey.INIT_PRODUCER_ID if answer.error_code == 0:
                given = {"id": answer.producer_id, "epoch": answer.producer_epoch}
            case ApiKey.JOIN_GROUP if answer.error_code == 0:
                given = {"member": answer.member_id, "generation": answer.generation_id}
            case ApiKey.JOIN_GROUP if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                given = {"member": answer.member_id}
            case ApiKey.FETCH if answer.session_id:
                given = {"session": answer.session_id}
            case ApiKey.LIST_OFFSETS:
                offsets = [one.offset for topic in answer.topics for one in topic.partitions if one.offset >= 0]
                given = {"offset": offsets[0]} if offsets else {}
        self._values |= {f"{step.binds}.{kind}": value for kind, value in given.items()}

    async def begin(self) -> None:
        """Makes the topic, and returns when it is led."""
        client = await self._connect(HOUSEKEEPING)
        created = await client.create_topic(self.prefix + TOPIC[1:], PARTITIONS)
        assert created.error_code in (0, ErrorCode.REQUEST_TIMED_OUT), created
        looks = [step for step in last_look() if step.api is ApiKey.LIST_OFFSETS]
        for look in looks:

            async def ask(look: Step = look) -> set[str]:
                return errors(look, await self.ask(look, HOUSEKEEPING))

            await repeated(ask, lambda names: names == {"NONE"})

    async def end(self) -> None:
        """Ends what would end by itself later, and write into logs that others read: memberships, transactions."""
        await self.close()
        client = await self._connect(HOUSEKEEPING)
        for group in (self.prefix + name[1:] for name in GROUPS):
            (described,) = (await client.ask(ApiKey.DESCRIBE_GROUPS, groups=[group])).groups
            for member in described.members:
                await leave(client, member.member_id, group)
        for id_ in TRANSACTIONAL_IDS:
            fields = {"transactional_id": id_, "transaction_timeout_ms": TIMEOUT_MS}
            await self.ask(Step(0, ApiKey.INIT_PRODUCER_ID, 4, fields), HOUSEKEEPING)
        await client.ask(ApiKey.DELETE_TOPICS, 4, topic_names=[self.prefix + TOPIC[1:]], timeout_ms=10_000)
        await self.close()


def is_passing(step: Step, answer: Any) -> bool:
    return bool({error.name for error in PASSING} & errors(step, answer))


def errors(step: Step, answer: Any) -> set[str]:
    """The names of all errors in an answer."""
    return error_names(plain(answer, step.api, step.version, Names("")))


@dataclass
class Outcome:
    """What a sequence has shown: how many requests were compared, and the difference that ended it, if one did."""

    requests: int = 0
    difference: Difference | None = None
    known: list[Known] = field(default_factory=list)


@dataclass
class _Sent:
    number: int
    step: Step
    connection: int
    answers: list[asyncio.Task[Any]]

    def is_answered(self) -> bool:
        return any(answer.done() for answer in self.answers)


class Play:
    """One sequence."""

    def __init__(self, kafka: Side, klamm: Side) -> None:
        self.kafka, self.klamm = kafka, klamm
        self.outcome = Outcome()
        self._waiting: list[_Sent] = []

    async def run(self, steps: Sequence[Step]) -> Outcome:
        for number, step in enumerate([*steps, *last_look()]):
            if await self._play(number, step):
                break
        return self.outcome

    async def _play(self, number: int, step: Step) -> bool:
        """Whether the sequence ends here."""
        busy = {sent.connection for sent in self._waiting}
        connection = next(one for one in count(step.client, 2) if one not in busy)
        answers = [asyncio.create_task(side.ask(step, connection)) for side in self._sides]
        sent = _Sent(number, step, connection, answers)
        await asyncio.wait(answers, timeout=WAITING_S, return_when=asyncio.FIRST_COMPLETED)
        if not sent.is_answered():
            await self._pulse()
        if not sent.is_answered():
            self._waiting.append(sent)
            return False
        if await self._compare(sent):
            return True
        return await self._compare_caused()

    async def _compare_caused(self) -> bool:
        """Compares what was waiting and is answered now."""
        if self._waiting:
            await self._pulse()
        for sent in [sent for sent in self._waiting if sent.is_answered()]:
            self._waiting.remove(sent)
            if await self._compare(sent):
                return True
        return False

    async def _pulse(self) -> None:
        """As long as the brokers take for two requests that do not wait: what they have to answer, they have."""
        for _ in range(2):
            await asyncio.gather(*(side.ask(PULSE, HOUSEKEEPING) for side in self._sides))

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self.kafka, self.klamm

    async def _compare(self, sent: _Sent) -> bool:
        step = sent.step
        for _ in range(LATE):
            if all(answer.done() for answer in sent.answers):
                break
            await asyncio.wait(sent.answers, timeout=WAITING_S)
            await self._pulse()
        answers = [task.result() if task.done() else NO_ANSWER for task in sent.answers]
        self.outcome.requests += 1
        request = self.klamm.request(step)
        deadline_s = asyncio.get_running_loop().time() + DIFFERS_S
        while True:
            names = [side.names.copy() for side in self._sides]
            kafka, klamm = (
                _own(plain(answer, step.api, step.version, of)) for answer, of in zip(answers, names, strict=True)
            )
            difference, known = _judged(sent, request, kafka, klamm)
            if difference is None or not is_read(step) or asyncio.get_running_loop().time() > deadline_s:
                break
            await asyncio.sleep(RETRY_S)
            answers = [await side.ask(step, sent.connection) for side in self._sides]
        for side, answer, of in zip(self._sides, answers, names, strict=True):
            side.names = of
            side.bind(step, answer)
        self.outcome.known += known
        self.outcome.difference = difference
        if difference is not None or any(one.ends for one in known):
            return True
        if step.api in ALTERS:
            await asyncio.sleep(CONFIGURED_S)
        if step.api in MARKS:
            await self._settle()
        return False

    async def _settle(self) -> None:
        """Kafka's coordinator of groups hears of a marker a moment after the marker was answered."""
        for group in GROUPS:
            look = Step(0, ApiKey.OFFSET_FETCH, 7, {"group_id": group, "topics": None, "require_stable": True})
            for _ in range(3):
                unstable = [
                    "UNSTABLE_OFFSET_COMMIT" in errors(look, await side.ask(look, HOUSEKEEPING)) for side in self._sides
                ]
                if unstable[0] == unstable[1]:
                    break
                await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        for sent in self._waiting:
            for task in sent.answers:
                task.cancel()


def _judged(sent: _Sent, request: Any, kafka: Json, klamm: Json) -> tuple[Difference | None, list[Known]]:
    """The first difference without a reason, and those with one that come before it."""
    known: list[Known] = []
    while found := first_difference(kafka, klamm):
        path, _, _ = found
        within = value_at(klamm, path[:-1]) if path else None
        difference = Difference(sent.number, sent.step.api.message_name, *found, within)
        reason = explain(sent.step, request, difference)
        if reason is None:
            return difference, known
        known.append(reason)
        if reason.ends:
            break
        kafka = replaced_at(kafka, difference.path, difference.klamm)
    return None, known


def is_read(step: Step) -> bool:
    """A fetch in a session moves the session on."""
    return step.api in READS and not (step.api is ApiKey.FETCH and step.spoiled()["session_epoch"] != -1)


def _own(answer: Json) -> Json:
    """ListGroups and DescribeClientQuotas have what is of other sequences, too."""
    if not isinstance(answer, dict):
        return answer
    own = dict(answer)
    if "groups" in own:
        own["groups"] = [group for group in own["groups"] if group["group_id"].startswith("~")]
    if "entries" in own:
        own["entries"] = [entry for entry in own["entries"] or () if _is_own(entry)]
    return own


def _is_own(entry: Json) -> bool:
    return all((part["entity_name"] or "").startswith("~") for part in entry["entity"])


class Pair:
    """A broker of each program."""

    def __init__(self, kafka: str, klamm: str) -> None:
        self._addresses = kafka, klamm

    async def begin(self) -> None:
        """Waits until both have coordinators."""
        async with self._playing() as play:
            for key_type in (0, 1):
                find = Step(0, ApiKey.FIND_COORDINATOR, 3, {"key": "~any", "key_type": key_type})
                for side in (play.kafka, play.klamm):
                    while is_passing(find, await side.ask(find, HOUSEKEEPING)):
                        pass

    async def play(self, steps: Sequence[Step]) -> Outcome:
        """Plays the steps with names that no other run has."""
        async with self._playing() as play:
            return await play.run(steps)

    @asynccontextmanager
    async def _playing(self) -> AsyncIterator[Play]:
        prefix = f"{_PROCESS}-{next(_runs):06}-"
        sides = [Side(address, prefix) for address in self._addresses]
        play = Play(*sides)
        try:
            await asyncio.gather(*(side.begin() for side in sides))
            yield play
        finally:
            await play.close()
            await asyncio.gather(*(side.end() for side in sides))
