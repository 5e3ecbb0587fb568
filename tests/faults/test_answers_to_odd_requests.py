"""Every API in every version, with odd values in every field, under faults: the error is in the answer, and no request
stops the broker."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from klamm.faults.answers import Answers
from klamm.faults.commands import DelayAnswers, DisconnectClients, FailAnswers
from klamm.faults.commands.answers import AnswerFault
from klamm.faults.request_subjects import GROUPS, ONE_BY_ONE, PARTITIONED, TOPICS, TRANSACTIONAL_IDS, names_all_topics
from klamm.faults.tally import Tally
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from klamm.protocol.schema import Struct
from klamm.protocol.vocabulary import KNOWN_ISOLATION_LEVELS
from support.odd_requests import Odd, every_version, send_and_receive
from support.one_broker import Client, OneBroker, batch, running, values

ROUNDS = 1
# A code that no handler has by itself.
ERROR = ErrorCode.BROKER_ID_NOT_REGISTERED
# They would end what the test itself does.
LEFT_OUT = (ApiKey.CONTROLLED_SHUTDOWN, ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA)


def codes_in(message: Any) -> set[int]:
    """All error codes of an answer."""
    if isinstance(message, list):
        return set().union(*map(codes_in, message))
    if not isinstance(message, Struct):
        return set()
    found = set()
    for name in type(message).__slots__:
        value = getattr(message, name)
        if name.endswith("error_code"):
            found.add(value)
        else:
            found |= codes_in(value)
    return found


@asynccontextmanager
async def under_faults(tmp_path: Path) -> AsyncIterator[tuple[OneBroker, Client, Client, Answers]]:
    """A broker with two topics, two clients, and the faults of its answers."""
    async with running(
        tmp_path, offsets_topic_num_partitions=1, offsets_topic_replication_factor=1, group_initial_rebalance_delay_ms=0
    ) as (cluster, client):
        await client.create_topic("safe")
        await client.create_topic("a", partitions=2)
        other = await cluster.connect()
        answers = Answers()
        answers.serve(cluster.broker.parts.dispatcher)
        yield cluster, client, other, answers


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("is_narrow", [False, True])
async def test_an_answer_that_is_struck_has_the_error(tmp_path: Path, is_narrow: bool, after: bool) -> None:
    odd = Odd(7)
    requests = [(key, version) for key, version in every_version() if key not in LEFT_OUT]
    async with under_faults(tmp_path) as (cluster, client, other, answers):
        installed = answered = struck = 0
        for number in range(ROUNDS):
            for key, version in requests:
                body = odd.request(key, version)
                conditions: dict[str, Any] = {}
                if is_narrow and key in TOPICS:
                    conditions["topic"] = odd.chance.choice(["a", "safe"])
                    if key in PARTITIONED and odd.chance.random() < 0.5:
                        conditions["partition"] = 0
                elif is_narrow and key in GROUPS:
                    conditions["group"] = odd.member[0]
                elif is_narrow and key in TRANSACTIONAL_IDS:
                    conditions["transactional_id"] = ""
                installed += 1
                tally = Tally(installed, str(tmp_path), lambda *_: None)
                fault = FailAnswers(api=key.message_name, error=ERROR.name, after=after, times=1, **conditions)
                end = answers.install(fault, tally)
                answer = await send_and_receive(other, key, version, body)
                end()
                tally.close()
                assert not cluster.broker.failure.done(), (key, version, body)
                if answer is None:
                    await other.close()
                    other = await cluster.connect()
                elif answer is not True:
                    answered += 1
                    struck += tally.hits
                    codes = codes_in(answer)
                    # Where a whole request fails, an answer about no item may have no place for the error; nor has
                    # an answer about all topics that does not know the topic.
                    fails_one_by_one = key in (*ONE_BY_ONE, ApiKey.FETCH) or (
                        key is ApiKey.OFFSET_FETCH and "topic" in conditions
                    )
                    is_open = key in (ApiKey.METADATA, ApiKey.OFFSET_FETCH) and (
                        names_all_topics(key, version, body) or "partition" in conditions
                    )
                    has_no_place = is_open or (not fails_one_by_one and codes <= {0})
                    if key is ApiKey.FETCH and body.isolation_level not in KNOWN_ISOLATION_LEVELS:
                        continue  # It is refused as a whole, though the fault counts it as struck.
                    has_error = ERROR in codes or (tally.hits == 1 and has_no_place)
                    assert has_error == (tally.hits == 1), (key, version, conditions, body, answer)
                    assert has_error == (tally.hits == 1), (key, version, conditions, body, answer)
            assert (await client.produce("safe", 0, batch(b"%d" % number))).error_code == 0
        assert values((await client.fetch("safe", 0, 0)).records)[-1] == b"%d" % (ROUNDS - 1)
        assert answered > 0.6 * ROUNDS * len(requests)
        assert struck > (0.05 if is_narrow else 0.5) * answered


def random_fault(key: ApiKey, odd: Odd) -> AnswerFault:
    """Any fault of the API that ends; half of them concern a topic or a partition."""
    chance = odd.chance
    fields: dict[str, Any] = {"api": key.message_name, "after": chance.random() < 0.5}
    if key in TOPICS and chance.random() < 0.5:
        fields["topic"] = chance.choice(["a", "safe"])
    if key in PARTITIONED and chance.random() < 0.5:
        fields["partition"] = chance.randrange(2)
    if chance.random() < 0.2:
        return DelayAnswers(delay_ms=chance.randrange(2), **fields)
    if chance.random() < 0.1:
        return DisconnectClients(**fields)
    return FailAnswers(error=chance.choice(["BROKER_ID_NOT_REGISTERED", "FETCH_SESSION_ID_NOT_FOUND"]), **fields)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
async def test_several_faults_of_one_request_stop_no_broker(tmp_path: Path, seed: int) -> None:
    odd = Odd(seed)
    async with under_faults(tmp_path) as (cluster, client, other, answers):
        hits = 0
        for number, (key, version) in enumerate(every_version()):
            if key in LEFT_OUT:
                continue
            tallies = [Tally(3 * number + index, str(tmp_path), lambda *_: None) for index in range(3)]
            ends = [answers.install(random_fault(key, odd), tally) for tally in tallies]
            body = odd.request(key, version)
            answer = await send_and_receive(other, key, version, body)
            for end in ends:
                end()
            hits += sum(tally.hits for tally in tallies)
            assert not cluster.broker.failure.done(), (key, version, body)
            if answer is None:
                await other.close()
                other = await cluster.connect()
        assert (await client.produce("safe", 0, batch(b"v"))).error_code == 0
        assert hits > 100
