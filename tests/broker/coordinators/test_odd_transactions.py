"""Well-formed requests of transactional producers with odd values: other producers' transactions are as they were, and
what the requests have left in the logs can be read again.

As `test_odd_requests.py`, with values that a coordinator knows: ids, producer ids and epochs that were given out.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from klamm.broker.handlers import APIS
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.messages import ApiKey
from support.group_wire import find_coordinator
from support.odd_requests import Odd, send_and_receive
from support.one_broker import Client, running
from support.transaction_wire import ONE_COORDINATOR, Producer, repeated, transactional

ROUNDS = 30
OF_TRANSACTIONS = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_COMMIT,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_DELETE,
    ApiKey.DELETE_RECORDS,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
)
IDS = ("tx", "tx", "other", "", "x" * 2**15)
# The names of fields, without what the versions up to 3 have before them.
OF_PRODUCERS = ("transactional_id", "producer_id", "producer_epoch")


class OddProducers(Odd):
    """Most requests speak of a producer that the coordinator knows."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.producers: list[tuple[str, int, int]] = []

    def request(self, key: ApiKey, version: int) -> Any:
        chance = self.chance
        self.producer = chance.choice(self.producers[-3:] or [(chance.choice(IDS)[:-1], 5, 0)])
        return super().request(key, version)

    def value(self, name: str, kind: str) -> Any:
        own = name.removeprefix("v3_and_below_")
        if own == "transactional_id":
            known = self.producer[0] if self.chance.random() < 0.8 else self.chance.choice(IDS)
            return known[: 2**15 - 1]
        if own in OF_PRODUCERS and self.chance.random() < 0.8:
            return self.producer[OF_PRODUCERS.index(own)]
        if own == "producer_id":
            # A marker with the id of another producer ends its transaction: only brokers may write them.
            return self.chance.choice([-(2**63), -2, -1, 99, 2**63 - 1])
        if own == "group_id":
            return self.chance.choice(["g", "g", "", "x" * (2**15 - 1)])
        if own == "transaction_timeout_ms":
            return self.chance.choice([-(2**31), -1, 0, 1, 100, 60_000, 900_000, 900_001, 2**31 - 1])
        if own in ("name", "topic") and self.chance.random() < 0.8:
            return self.chance.choice(["a", "a", "__consumer_offsets", "__transaction_state"])
        if own in ("partitions", "partition_indexes") and self.chance.random() < 0.8:
            return self.chance.choice([0, 1])
        if own in ("producer_epoch", "coordinator_epoch"):
            return self.chance.choice([-(2**15), -1, 0, 1, 2**15 - 2, 2**15 - 1])
        return super().value(name, kind)

    def records(self) -> bytearray | None:
        _, producer_id, epoch = self.producer
        if self.chance.random() < 0.3 or not (producer_id >= 0 <= epoch):
            return super().records()
        return transactional(b"odd", producer_id=producer_id, epoch=epoch, sequence=self.chance.choice([0, 1, 2]))


async def values_of(client: Client) -> tuple[int, int]:
    """The last stable offset and the high watermark of the topic that only one producer writes to."""
    fetched = await client.fetch("safe", 0, 0, isolation_level=1)
    return fetched.last_stable_offset, fetched.high_watermark


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
async def test_odd_values_from_transactional_producers(tmp_path: Path, seed: int) -> None:
    properties: dict[str, Any] = ONE_COORDINATOR | {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 50}
    async with running(tmp_path, **properties, auto_create_topics_enable="false") as (cluster, client):
        for topic, partitions in ("safe", 1), ("a", 2):
            await client.create_topic(topic, partitions=partitions)
        await find_coordinator(client)
        safe = await Producer.begin(client, "safe")
        odd = OddProducers(seed)
        requests = [
            (key, version)
            for key in OF_TRANSACTIONS
            for version in range(APIS[key].min_version, APIS[key].max_version + 1)
        ]
        other = await cluster.connect()
        codes: Counter[tuple[ApiKey, int]] = Counter()
        for number in range(ROUNDS):
            odd.chance.shuffle(requests)
            assert await safe.add(("safe", 0)) == {("safe", 0): 0}
            assert (await safe.produce(b"%d" % number, topic="safe", sequence=number)).error_code == 0
            for key, version in requests:
                body = odd.request(key, version)
                answer = await send_and_receive(other, key, version, body)
                assert not cluster.broker.failure.done(), (key, version, body)
                if answer is None:
                    await other.close()
                    other = await cluster.connect()
                    continue
                codes[key, getattr(answer, "error_code", 0)] += 1
                if key is ApiKey.INIT_PRODUCER_ID and answer.error_code == 0 and body.transactional_id is not None:
                    odd.producers.append((body.transactional_id, answer.producer_id, answer.producer_epoch))
            assert await safe.end(commits=True) == 0
        assert await repeated(lambda: values_of(client), lambda found: found[0] == found[1]) == (2 * ROUNDS, 2 * ROUNDS)
        # The requests did what they say, too.
        for key in ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN:
            assert codes[key, ErrorCode.NONE] > 0, codes
        await cluster.restart_broker()
        safe.client = client = await cluster.connect()
        assert await values_of(client) == (2 * ROUNDS, 2 * ROUNDS)
        assert await safe.add(("safe", 0)) == {("safe", 0): 0}
        assert (await safe.produce(b"last", topic="safe", sequence=ROUNDS)).error_code == 0
        assert await safe.end(commits=True) == 0
        # Nothing is left open but what its producer may still end.
        await repeated(lambda: values_of(client), lambda found: found == (2 * ROUNDS + 2, 2 * ROUNDS + 2))
