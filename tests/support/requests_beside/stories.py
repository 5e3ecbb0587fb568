"""The grammar: what a seed's clients want, and how it goes wrong.

Some stories, each a sequence of requests as a client sends them, are woven into one another; then single requests come
twice, late, or not at all, and fields are spoiled.

What must stay true:
- Nothing expires while a sequence runs: timeouts are drawn long, or of a length that is refused.
- A sequence changes nothing that another one sees: it uses names of its own, and changes no broker and no default.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from klamm.protocol import messages
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis import ADVERTISED_MAX, ADVERTISED_MIN
from klamm.protocol.schema import NEVER, Field
from support.requests_beside.step import BATCH, BITS, FLAWS, Json, Spoil, Step, places, symbol, value_at

PARTITIONS = 3
TOPIC, UNKNOWN_TOPIC = "~t", "~nope"
OFFSETS_TOPIC = "__consumer_offsets"
GROUPS = ("~g0", "~g1")
TRANSACTIONAL_IDS = ("~x0", "~x1", "~x9")
TIMEOUT_MS = 60_000
LARGEST = 2**63 - 1

# Values of single fields, where any other would wait, expire, or change what others see.
VALUES: dict[str, list[Json]] = {
    "max_wait_ms": [0, -1],
    "min_bytes": [0, 1, -1],
    "session_timeout_ms": [0, -1, 5999, 1_800_000, 1_800_001],
    "rebalance_timeout_ms": [TIMEOUT_MS, 1_800_001],
    "transaction_timeout_ms": [0, -1, 900_000, 900_001, 2**31 - 1],
    "timeout_ms": [0, -1, 30_000],
    "acks": [0, 1, -1, 2, -2],
    "isolation_level": [0, 1, 2, -1],
    "replica_id": [-1, -2, -3, 1],
    "resource_type": [0, 1, 2, 3, 16, 127],
    "resource_name": [TOPIC, UNKNOWN_TOPIC, "", "~a/b"],
    "entity_type": ["client-id", "user", "ip", "group", ""],
    "match_type": [0, 1, 2, 3, -1],
    "config_operation": [0, 1, 2, 3, 4, -1],
    "states_filter": ["Stable", "Empty", "stable", "Nonsense", ""],
    "partition": [0, 1, PARTITIONS, -1],
    "index": [0, 1, PARTITIONS, -1],
    "partition_index": [0, 1, PARTITIONS, -1],
    "max_bytes": [0, 1, 100, 2**31 - 1, -1],
    "partition_max_bytes": [0, 1, 100, 2**31 - 1, -1],
    "key_type": [0, 1, 2, -1],
    "codec": [1, 3, 4],
    "count": [2, 3],
    "flaw": [*FLAWS],
    "timestamp": [-1, 1, 500, 10_000],
    "key": ["k", ""],
    "value": ["", "-2", "-1", "0", "1", "1000", "delete", "compact", "nonsense", "LogAppendTime", "CreateTime"],
    "include_authorized_operations": [False],
    "include_documentation": [False],
}
# Fields that stay as they are: any other value would reach further than the sequence, or is only text.
UNTOUCHED = {"client_id", "protocol_type", "entity_name", "match", "validate_only"}
NAMES: dict[str, list[Json]] = {
    "group_id": [*GROUPS, "~g9", ""],
    "group_name": [*GROUPS, "~g9", ""],
    "groups": [*GROUPS, "~g9", ""],
    "groups_names": [*GROUPS, "~g9", ""],
    "transactional_id": [*TRANSACTIONAL_IDS, ""],
    "name": [TOPIC, UNKNOWN_TOPIC, ""],
    "topic": [TOPIC, UNKNOWN_TOPIC, ""],
    "key": [*GROUPS, "~x0", ""],
}
OTHERS = {
    "id": ["p0", "p1", "p2"], "epoch": ["p0", "p1", "p2"], "member": ["m0", "m1", "m2"],
    "generation": ["m0", "m1", "m2"], "session": ["s0"], "offset": ["start"],
}  # fmt: skip


class Grammar:
    """The steps of one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        # What the next batch of a producer in a partition should begin with.
        self._sequences: dict[tuple[str, int], int] = {}

    def steps(self) -> list[Step]:
        stories = self.chance.choices([story for story, _ in STORIES], [weight for _, weight in STORIES], k=3)
        parts = [[*story(self, number % 2)] for number, story in enumerate(stories[: self.chance.choice([1, 2, 2, 3])])]
        woven: list[Step] = []
        while parts:
            part = self.chance.choice(parts)
            woven += part[: (few := self.chance.choice([1, 1, 2, 4]))]
            del part[:few]
            parts = [part for part in parts if part]
        how_bad = self.chance.choice([0.0, 0.1, 0.2, 0.4])
        return [self._spoiled(step, how_bad) for step in self._disturbed(woven)]

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    def _disturbed(self, steps: list[Step]) -> Iterator[Step]:
        """Some come twice, some later once more, some never, some from the other client."""
        late: list[Step] = []
        for step in steps:
            what = self.chance.random()
            if what < 0.05:
                continue
            yield step
            if what < 0.12:
                yield replace(step, client=1 - step.client)
            elif what < 0.2:
                late.append(step)
            if late and self.chance.random() < 0.15:
                yield late.pop(0)
        yield from late

    def _spoiled(self, step: Step, how_bad: float) -> Step:
        spoils: list[Spoil] = []
        while self.chance.random() < how_bad and len(spoils) < 3:
            found = [*places(messages.request_class(step.api), step.spoiled(), step.version)]
            if not found:
                break
            path, field = self.chance.choice(found)
            value = value_at(step.spoiled(), path)
            other = self._other(path, field, value)
            if other != value:
                spoils.append(Spoil(path, other))
                step = replace(step, spoils=tuple(spoils))
        return step

    def _other(self, path: tuple[str | int, ...], field: Field, value: Json) -> Json:
        chance = self.chance
        name = next(part for part in reversed(path) if isinstance(part, str))
        is_part_of_batch = field.kind == "Records"
        if name in UNTOUCHED:
            return value
        if is_part_of_batch and name == field.name:
            return chance.choice([None, [], [*value, *value] if value else value])
        if field.is_array and path[-1] == field.name:
            if value is None or (field.nullable is not NEVER and chance.random() < 0.4):
                return None
            if isinstance(field.kind, str) and name in VALUES:
                return chance.choices(VALUES[name], k=chance.choice([1, 2]))
            return chance.choice([[], value[:1], value[1:], [*value, *value], [*reversed(value)]])
        if isinstance(value, dict) and "symbol" in value:
            kind = value["symbol"].partition(".")[2]
            other = symbol(chance.choice(OTHERS[kind]), kind)
            if kind == "member":
                return chance.choice([other, "", "nobody"])
            return chance.choice(
                [other, {**value, "plus": 1}, {**value, "plus": -1}, {**value, "plus": 1000}, -1, -2, 0]
            )
        if name in NAMES and isinstance(value, str | None) and not is_part_of_batch:
            return chance.choice(NAMES[name])
        if name in VALUES and field.kind != "Float64":
            return chance.choice(VALUES[name])
        if is_part_of_batch and isinstance(BATCH[name], bool):
            return not value
        if field.kind in BITS or is_part_of_batch:
            half = 1 << (BITS.get(str(field.kind), 32) - 1)
            return chance.choice([(value or 0) + 1, (value or 0) - 1, 0, 1, 2, -1, -1, -2, half - 1])
        match field.kind:
            case "Bool":
                return not value
            case "Float64":
                return chance.choice([1.0, 0.5, 1e9])
            case "String":
                may_be_null = field.nullable is not NEVER and not field.is_array
                return chance.choice(["", "x" * 250, "other", *([None] if may_be_null else [])])
        return value

    # -- requests as clients send them --------------------------------------------------------------------------------

    def step(self, client: int, api: ApiKey, binds: str | None = None, **fields: Json) -> Step:
        low, high = ADVERTISED_MIN[api], ADVERTISED_MAX[api]
        # Older ones have message sets, which klamm refuses.
        low = max(low, 3) if api is ApiKey.PRODUCE else low
        version = high if self.chance.random() < 0.6 else self.chance.randint(low, high)
        return Step(client, api, version, fields, binds)

    def partition(self) -> int:
        return self.chance.choice([0, 0, 0, 1, 2])

    def transaction(self, client: int) -> Iterator[Step]:
        """A transactional producer: some transactions, and maybe its successor."""
        name = self.chance.choice(["p0", "p0", "p1"])
        id_ = self.chance.choice(["~x0", "~x0", "~x1"])
        yield self.init(client, name, id_)
        for _ in range(self.chance.choice([1, 2, 3])):
            yield from self.one_transaction(client, name, id_)
            if self.chance.random() < 0.3:
                yield self.init(client, name, id_, asks=self.chance.random() < 0.5)

    def one_transaction(self, client: int, name: str, id_: str) -> Iterator[Step]:
        who: dict[str, Json] = {"producer_id": symbol(name, "id"), "producer_epoch": symbol(name, "epoch")}
        numbers = self.chance.sample(range(PARTITIONS), self.chance.choice([0, 1, 1, 2]))
        if numbers:
            yield self.step(
                client,
                ApiKey.ADD_PARTITIONS_TO_TXN,
                v3_and_below_transactional_id=id_,
                v3_and_below_producer_id=who["producer_id"],
                v3_and_below_producer_epoch=who["producer_epoch"],
                v3_and_below_topics=[{"name": TOPIC, "partitions": numbers}],
            )
        for number in numbers * self.chance.choice([1, 1, 2]):
            yield self.produce(client, number, name, id_)
        if self.chance.random() < 0.4:
            yield self.fetch(client, self.partition(), 1)
        if self.chance.random() < 0.4:
            group = self.chance.choice(GROUPS)
            yield self.step(client, ApiKey.ADD_OFFSETS_TO_TXN, transactional_id=id_, group_id=group, **who)
            yield self.step(
                client,
                ApiKey.TXN_OFFSET_COMMIT,
                transactional_id=id_,
                group_id=group,
                **who,
                **self.member_of_commit(),
                topics=self.offsets(),
            )
            if self.chance.random() < 0.6:
                yield self.group_request(client, group)
        if self.chance.random() < 0.85:
            committed = self.chance.random() < 0.6
            yield self.step(client, ApiKey.END_TXN, transactional_id=id_, **who, committed=committed)
        if self.chance.random() < 0.4:
            yield self.chance.choice(READS)(self, client)

    def member_of_commit(self) -> dict[str, Json]:
        if self.chance.random() < 0.7:
            return {"generation_id": -1, "member_id": "", "group_instance_id": None}
        member = self.chance.choice(["m0", "m1"])
        return {
            "generation_id": symbol(member, "generation"),
            "member_id": symbol(member, "member"),
            "group_instance_id": None,
        }

    def offsets(self) -> Json:
        return [
            {
                "name": TOPIC,
                "partitions": [
                    {
                        "partition_index": number,
                        "committed_offset": self.chance.randrange(10),
                        "committed_leader_epoch": self.chance.choice([-1, 0]),
                        "committed_metadata": self.chance.choice(["", "note", None]),
                    }
                    for number in self.chance.sample(range(PARTITIONS), self.chance.choice([1, 1, 2]))
                ],
            }
        ]

    def init(self, client: int, name: str, id_: str | None, *, asks: bool = False) -> Step:
        """`asks` for the next epoch of the producer."""
        return self.step(
            client,
            ApiKey.INIT_PRODUCER_ID,
            binds=name,
            transactional_id=id_,
            transaction_timeout_ms=TIMEOUT_MS,
            producer_id=symbol(name, "id") if asks else -1,
            producer_epoch=symbol(name, "epoch") if asks else -1,
        )

    def produce(self, client: int, number: int, name: str | None = None, id_: str | None = None) -> Step:
        batch: dict[str, Json] = {"count": self.chance.choice([1, 1, 2, 3]), "timestamp": self.chance.randrange(1000)}
        if name is not None:
            sequence = self._sequences.get((name, number), 0)
            self._sequences[name, number] = sequence + batch["count"]
            batch |= {
                "producer_id": symbol(name, "id"),
                "producer_epoch": symbol(name, "epoch"),
                "base_sequence": sequence,
                "is_transactional": id_ is not None,
            }
        return self.step(
            client,
            ApiKey.PRODUCE,
            transactional_id=id_,
            acks=self.chance.choice([-1, -1, 1]),
            timeout_ms=30_000,
            topic_data=[{"name": TOPIC, "partition_data": [{"index": number, "records": [batch]}]}],
        )

    def idempotent(self, client: int) -> Iterator[Step]:
        """A producer without transactions, with an epoch of its own or with one that it asks for."""
        name = "p2"
        yield self.init(client, name, None)
        for _ in range(self.chance.choice([2, 3, 5])):
            number = self.partition()
            yield self.produce(client, number, name)
            if self.chance.random() < 0.15:
                yield self.init(client, name, None, asks=True)
                self._sequences.clear()

    def markers(self, client: int) -> Iterator[Step]:
        """A coordinator that writes markers, of a producer that another one has let begin."""
        name, id_ = self.chance.choice(["p0", "p1"]), "~x1"
        yield self.init(client, name, id_)
        for _ in range(self.chance.choice([1, 2, 3])):
            number = self.partition()
            yield self.produce(client, number, name, id_)
            topics = [{"name": TOPIC, "partition_indexes": self.chance.choice([[number], [0, 1, 2]])}]
            if self.chance.random() < 0.3:
                topics.append({"name": OFFSETS_TOPIC, "partition_indexes": [0]})
            yield self.step(
                1 - client,
                ApiKey.WRITE_TXN_MARKERS,
                markers=[
                    {
                        "producer_id": symbol(name, "id"),
                        "producer_epoch": symbol(name, "epoch"),
                        "transaction_result": self.chance.random() < 0.6,
                        "topics": topics,
                        "coordinator_epoch": self.chance.choice([0, 0, 0, 1, 2]),
                    }
                ],
            )
            if self.chance.random() < 0.5:
                yield self.chance.choice(READS)(self, client)

    def writer(self, client: int) -> Iterator[Step]:
        """Produces without a producer id, and somebody reads and deletes."""
        for _ in range(self.chance.choice([2, 3, 4])):
            yield self.produce(client, self.partition())
            yield self.chance.choice(READS)(self, client)
            if self.chance.random() < 0.4:
                yield self.delete_records(client)

    def delete_records(self, client: int) -> Step:
        number, offset = self.partition(), self.chance.choice([0, 1, 2, 3, -1])
        return self.step(
            client,
            ApiKey.DELETE_RECORDS,
            topics=[{"name": TOPIC, "partitions": [{"partition_index": number, "offset": offset}]}],
            timeout_ms=30_000,
        )

    def reader(self, client: int) -> Iterator[Step]:
        """A consumer that looks for its offset and fetches in a session."""
        number = self.partition()
        yield self.list_offsets(client, number, binds="start")
        offset = symbol("start", "offset")
        for epoch in range(self.chance.choice([1, 2, 3])):
            yield self.fetch(client, number, self.chance.randrange(2), offset, session_epoch=epoch)
            yield self.chance.choice(READS)(self, client)

    def fetch(
        self, client: int, number: int, isolation_level: int, offset: Json = 0, *, session_epoch: int = -1
    ) -> Step:
        wanted = {
            "partition": number,
            "current_leader_epoch": self.chance.choice([-1, -1, 0]),
            "fetch_offset": offset,
            "log_start_offset": -1,
            "last_fetched_epoch": -1,
            "partition_max_bytes": 1 << 20,
        }
        step = self.step(
            client,
            ApiKey.FETCH,
            binds="s0" if session_epoch == 0 else None,
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            isolation_level=isolation_level,
            session_id=symbol("s0", "session") if session_epoch > 0 else 0,
            session_epoch=session_epoch,
            topics=[{"topic": TOPIC, "partitions": [wanted]}],
            forgotten_topics_data=[],
            rack_id="",
        )
        return replace(step, version=max(step.version, 7)) if session_epoch >= 0 else step

    def list_offsets(self, client: int, number: int, binds: str | None = None) -> Step:
        timestamp = -2 if binds else self.chance.choice([-1, -1, -2])
        partition = {"partition_index": number, "current_leader_epoch": -1, "timestamp": timestamp}
        return self.step(
            client,
            ApiKey.LIST_OFFSETS,
            binds=binds,
            replica_id=-1,
            isolation_level=self.chance.randrange(2),
            topics=[{"name": TOPIC, "partitions": [partition]}],
        )

    def end_of_epoch(self, client: int) -> Step:
        asked = {
            "partition": self.partition(),
            "current_leader_epoch": self.chance.choice([-1, 0, 1]),
            "leader_epoch": self.chance.choice([0, 0, 1, -1]),
        }
        return self.step(
            client,
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            replica_id=self.chance.choice([-1, -2]),
            topics=[{"topic": TOPIC, "partitions": [asked]}],
        )

    def describe_producers(self, client: int) -> Step:
        return self.step(client, ApiKey.DESCRIBE_PRODUCERS, topics=[{"name": TOPIC, "partition_indexes": [0, 1, 2]}])

    def any_fetch(self, client: int) -> Step:
        offset = self.chance.choice([0, 0, 0, 1, 2, symbol("start", "offset")])
        return self.fetch(client, self.partition(), self.chance.randrange(2), offset)

    def any_list_offsets(self, client: int) -> Step:
        return self.list_offsets(client, self.partition())

    def any_fetch_offsets(self, client: int) -> Step:
        return self.fetch_offsets(client, self.chance.choice(GROUPS))

    # -- groups -------------------------------------------------------------------------------------------------------

    def member(self, client: int) -> Iterator[Step]:
        """Joins, synchronizes, commits, and leaves."""
        name = self.chance.choice(["m0", "m1"])
        group = GROUPS[0]
        instance = self.chance.choice([None, None, None, "i0", "i1"])
        yield self.join(client, group, name, instance, is_new=True)
        for _ in range(self.chance.choice([1, 1, 2, 3])):
            yield self.join(client, group, name, instance)
            yield self.sync(client, group, name, instance)
            for _ in range(self.chance.choice([1, 2, 3])):
                yield self.as_member(client, group, name, instance)
        if self.chance.random() < 0.5:
            yield self.leave(client, group, name, instance)
            yield self.group_request(client, group)

    def join(self, client: int, group: str, name: str, instance: str | None, *, is_new: bool = False) -> Step:
        protocols = [{"name": "range", "metadata": "r"}, {"name": "roundrobin", "metadata": "rr"}]
        return self.step(
            client,
            ApiKey.JOIN_GROUP,
            binds=name,
            group_id=group,
            session_timeout_ms=TIMEOUT_MS,
            rebalance_timeout_ms=TIMEOUT_MS,
            member_id="" if is_new else symbol(name, "member"),
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=self.chance.choice([protocols, protocols[:1]]),
        )

    def sync(self, client: int, group: str, name: str, instance: str | None) -> Step:
        return self.step(
            client,
            ApiKey.SYNC_GROUP,
            group_id=group,
            generation_id=symbol(name, "generation"),
            member_id=symbol(name, "member"),
            group_instance_id=instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                {"member_id": symbol(other, "member"), "assignment": f"for {other}"} for other in ("m0", "m1")
            ],
        )

    def as_member(self, client: int, group: str, name: str, instance: str | None) -> Step:
        who: dict[str, Json] = {"member_id": symbol(name, "member"), "group_instance_id": instance}
        generation = symbol(name, "generation")
        match self.chance.randrange(4):
            case 0 | 1:
                return self.step(client, ApiKey.HEARTBEAT, group_id=group, generation_id=generation, **who)
            case 2:
                return self.step(
                    client,
                    ApiKey.OFFSET_COMMIT,
                    group_id=group,
                    generation_id_or_member_epoch=generation,
                    **who,
                    retention_time_ms=-1,
                    topics=self.offsets(),
                )
        return self.group_request(client, group)

    def leave(self, client: int, group: str, name: str, instance: str | None) -> Step:
        who: dict[str, Json] = {"member_id": symbol(name, "member"), "group_instance_id": instance}
        return self.step(client, ApiKey.LEAVE_GROUP, group_id=group, member_id=symbol(name, "member"), members=[who])

    def stored_offsets(self, client: int) -> Iterator[Step]:
        """A client that is no member, and keeps offsets in a group."""
        group = self.chance.choice(GROUPS)
        for _ in range(self.chance.choice([2, 3, 4])):
            yield self.step(
                client,
                ApiKey.OFFSET_COMMIT,
                group_id=group,
                generation_id_or_member_epoch=-1,
                member_id="",
                group_instance_id=None,
                retention_time_ms=-1,
                topics=self.offsets(),
            )
            yield self.group_request(client, group)

    def group_request(self, client: int, group: str) -> Step:
        match self.chance.randrange(7):
            case 0 | 1:
                return self.fetch_offsets(client, group)
            case 2:
                partitions = [{"partition_index": self.partition()}]
                return self.step(
                    client, ApiKey.OFFSET_DELETE, group_id=group, topics=[{"name": TOPIC, "partitions": partitions}]
                )
            case 3:
                return self.step(client, ApiKey.DELETE_GROUPS, groups_names=self.chance.choice([[group], [*GROUPS]]))
            case 4:
                return self.step(client, ApiKey.LIST_GROUPS, states_filter=[])
            case 5:
                return self.step(client, ApiKey.FIND_COORDINATOR, key=group, key_type=0)
        return self.step(client, ApiKey.DESCRIBE_GROUPS, groups=[group], include_authorized_operations=False)

    def fetch_offsets(self, client: int, group: str) -> Step:
        every = [{"name": TOPIC, "partition_indexes": [0, 1, 2]}]
        step = self.step(
            client,
            ApiKey.OFFSET_FETCH,
            group_id=group,
            topics=self.chance.choice([every, None]),
            require_stable=self.chance.random() < 0.5,
        )
        # Version 1 cannot ask for all.
        return replace(step, version=max(step.version, 2))

    # -- configurations and quotas ------------------------------------------------------------------------------------

    def configs(self, client: int) -> Iterator[Step]:
        """Changes the topic's configuration while others use the topic."""
        names = (
            "retention.ms", "cleanup.policy", "max.message.bytes", "min.insync.replicas", "message.timestamp.type",
            "compression.type", "no.such.key", "leader.replication.throttled.replicas", "delete.retention.ms",
        )  # fmt: skip
        values = {
            "cleanup.policy": ["compact", "delete", "compact,delete"],
            "message.timestamp.type": ["LogAppendTime", "CreateTime"],
            "compression.type": ["gzip", "producer"],
            "leader.replication.throttled.replicas": ["0:0", "*", "0:0,1:0"],
        }
        for _ in range(self.chance.choice([1, 2, 3])):
            chosen = self.chance.sample(names, self.chance.choice([1, 1, 2]))
            configs: list[dict[str, Json]] = [
                {"name": name, "value": self.chance.choice(values.get(name, ["1", "100", "100000000000"]))}
                for name in chosen
            ]
            what: dict[str, Json] = {"validate_only": self.chance.random() < 0.2}
            if self.chance.random() < 0.7:
                for config in configs:
                    config["config_operation"] = self.chance.choice([0, 0, 1, 2, 3])
                api = ApiKey.INCREMENTAL_ALTER_CONFIGS
            else:
                api = ApiKey.ALTER_CONFIGS
            resource = {"resource_type": 2, "resource_name": TOPIC, "configs": configs}
            yield self.step(client, api, resources=[resource], **what)
            yield self.describe_configs(client, self.chance.choice([chosen, None, []]))
            yield self.produce(client, self.partition())

    def describe_configs(self, client: int, names: Json) -> Step:
        resource = {"resource_type": 2, "resource_name": TOPIC, "configuration_keys": names}
        return self.step(
            client, ApiKey.DESCRIBE_CONFIGS, resources=[resource], include_synonyms=self.chance.random() < 0.5
        )

    def quotas(self, client: int) -> Iterator[Step]:
        """Quotas of clients that do not exist."""
        for _ in range(self.chance.choice([1, 2, 3])):
            entity = self.chance.choice(
                [
                    [{"entity_type": "client-id", "entity_name": "~c"}],
                    [{"entity_type": "user", "entity_name": "~u"}],
                    [{"entity_type": "user", "entity_name": "~u"}, {"entity_type": "client-id", "entity_name": "~c"}],
                ]
            )
            keys = ["producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate", "no"]
            ops = [
                {"key": key, "value": self.chance.choice([1000.0, 50.5]), "remove": self.chance.random() < 0.3}
                for key in self.chance.sample(keys, self.chance.choice([1, 1, 2]))
            ]
            yield self.step(
                client,
                ApiKey.ALTER_CLIENT_QUOTAS,
                entries=[{"entity": entity, "ops": ops}],
                validate_only=self.chance.random() < 0.2,
            )
            components = [
                {"entity_type": part["entity_type"], "match_type": 0, "match": part["entity_name"]} for part in entity
            ]
            yield self.step(
                client, ApiKey.DESCRIBE_CLIENT_QUOTAS, components=components, strict=self.chance.random() < 0.5
            )


READS: list[Callable[[Grammar, int], Step]] = [
    Grammar.any_fetch, Grammar.any_fetch, Grammar.any_list_offsets, Grammar.end_of_epoch, Grammar.describe_producers,
    Grammar.any_fetch_offsets,
]  # fmt: skip
STORIES: list[tuple[Callable[[Grammar, int], Iterator[Step]], int]] = [
    (Grammar.transaction, 6),
    (Grammar.member, 6),
    (Grammar.markers, 3),
    (Grammar.idempotent, 3),
    (Grammar.stored_offsets, 3),
    (Grammar.writer, 2),
    (Grammar.reader, 2),
    (Grammar.configs, 2),
    (Grammar.quotas, 1),
]


def last_look() -> list[Step]:
    """What both programs have at the end of each sequence, however it went."""
    grammar = Grammar(0)
    topic: dict[str, Any] = {"name": TOPIC}
    looks = [
        Step(0, ApiKey.DESCRIBE_GROUPS, 5, {"groups": [*GROUPS], "include_authorized_operations": False}),
        Step(0, ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [topic | {"partition_indexes": [*range(PARTITIONS)]}]}),
        *(
            Step(0, ApiKey.OFFSET_FETCH, 7, {"group_id": group, "topics": None, "require_stable": stable})
            for group in GROUPS
            for stable in (True, False)
        ),
    ]
    for number in range(PARTITIONS):
        for isolation_level in (0, 1):
            looks.append(replace(grammar.list_offsets(0, number, "start"), version=6))
            looks.append(replace(grammar.fetch(0, number, isolation_level, symbol("start", "offset")), version=12))
            latest = topic | {"partitions": [{"partition_index": number, "current_leader_epoch": -1, "timestamp": -1}]}
            fields = {"replica_id": -1, "isolation_level": isolation_level, "topics": [latest]}
            looks.append(Step(0, ApiKey.LIST_OFFSETS, 6, fields))
    return looks
