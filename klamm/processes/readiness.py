"""Whether a cluster is ready from its clients' view: every broker's answer to a Metadata request decides."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack

from klamm.client.metadata import ClusterMetadata, metadata_of
from klamm.net.client import Address, ClientError, Connection, ConnectionOptions, connect
from klamm.protocol.vocabulary import NO_LEADER

# The client id of the cluster's own requests, which faults never strike.
CLIENT_ID = "klamm-cluster"

ASK_EVERY_S = 0.01
ANSWER_TIMEOUT_MS = 2_000

# Describes what is still missing in a broker's answer; "" means the answer is complete.
Check = Callable[[ClusterMetadata], str]
# Raises an error when a broker has died, which ends the wait.
CheckAlive = Callable[[], None]


class NotReady(Exception):
    """The cluster was not ready in time; the message says what each broker does not know yet."""


async def wait_until_ready(brokers: Mapping[int, Address], timeout_s: float, check_alive: CheckAlive) -> int:
    """Returns the controller's id once every one of these brokers knows all of them, and the same controller.

    Brokers learn both only from the active controller. Raises NotReady, and what `check_alive` raises.
    """
    answers = await wait_for_metadata(
        brokers, (), lambda answer: _knows_cluster(answer, brokers), timeout_s, check_alive
    )
    return int(answers[min(answers)].controller_id)


async def wait_for_topic(brokers: Mapping[int, Address], topic: str, timeout_s: float, check_alive: CheckAlive) -> None:
    """Returns once every one of these brokers knows a leader of each partition of the topic. Raises NotReady."""
    await wait_for_metadata(brokers, (topic,), lambda answer: _knows_leaders(answer, topic), timeout_s, check_alive)


async def wait_for_no_topic(
    brokers: Mapping[int, Address], topic: str, timeout_s: float, check_alive: CheckAlive
) -> None:
    """Returns once no broker knows the topic. Raises NotReady."""
    await wait_for_metadata(brokers, (topic,), lambda answer: _forgot(answer, topic), timeout_s, check_alive)


async def wait_for_metadata(
    brokers: Mapping[int, Address],
    topics: Sequence[str],
    check: Check,
    timeout_s: float,
    check_alive: CheckAlive,
) -> dict[int, ClusterMetadata]:
    """Asks every broker until `check` finds all answers complete, and returns the last answer of each broker."""
    deadline = time.monotonic() + timeout_s
    states = {}
    async with AsyncExitStack() as connections:
        asking = [_Asked(broker_id, address, topics) for broker_id, address in brokers.items()]
        for asked in asking:
            connections.callback(asked.close)
        while True:
            answers = dict(zip(brokers, await asyncio.gather(*(asked.ask() for asked in asking)), strict=True))
            states = {
                broker_id: answer if isinstance(answer, str) else check(answer) for broker_id, answer in answers.items()
            }
            known = {broker_id: answer for broker_id, answer in answers.items() if not isinstance(answer, str)}
            controllers = {answer.controller_id for answer in known.values()}
            if not any(states.values()) and len(controllers) <= 1:
                return known
            if time.monotonic() > deadline:
                missing = _sentences(states) or f"the brokers know different controllers: {sorted(controllers)}"
                raise NotReady(f"not ready after {timeout_s:g} s: {missing}")
            check_alive()
            await asyncio.sleep(ASK_EVERY_S)


class _Asked:
    """One broker, and the connection to it while there is one."""

    def __init__(self, broker_id: int, address: Address, topics: Sequence[str]) -> None:
        self._address, self._topics = address, topics
        self._connection: Connection | None = None

    async def ask(self) -> ClusterMetadata | str:
        """The broker's answer, or a string with the reason why there is no answer."""
        options = ConnectionOptions(
            CLIENT_ID, connect_timeout_ms=ANSWER_TIMEOUT_MS, request_timeout_ms=ANSWER_TIMEOUT_MS
        )
        try:
            if self._connection is None or not self._connection.connected:
                self._connection = await connect(*self._address, options)
            return await metadata_of(self._connection, self._topics)
        except ClientError as error:
            return str(error)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _knows_cluster(answer: ClusterMetadata, brokers: Iterable[int]) -> str:
    if missing := sorted(set(brokers) - answer.brokers.keys()):
        return f"it does not know of {_named(missing)}"
    return "" if answer.controller_id in answer.brokers else "it knows no controller"


def _knows_leaders(answer: ClusterMetadata, topic: str) -> str:
    described = answer.topics.get(topic)
    if described is None or not described.partitions:
        return f"it does not know topic {topic}"
    leaderless = [number for number, partition in described.partitions.items() if partition.leader == NO_LEADER]
    return f"it knows no leader of {topic}-{leaderless[0]}" if leaderless else ""


def _forgot(answer: ClusterMetadata, topic: str) -> str:
    described = answer.topics.get(topic)
    return f"it still knows topic {topic}" if described is not None and described.partitions else ""


def _named(broker_ids: Sequence[int]) -> str:
    return ("broker " if len(broker_ids) == 1 else "brokers ") + ", ".join(map(str, broker_ids))


def _sentences(states: Mapping[int, str]) -> str:
    return "; ".join(f"broker {broker_id}: {state}" for broker_id, state in states.items() if state)
