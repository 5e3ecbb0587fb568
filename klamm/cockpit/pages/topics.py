"""`/api/topics`: the topics with records and sizes, or with `topic=` one topic's partitions with their leaders, ISRs,
offsets and sizes. `filter` is a part of the topics' names; `from` is the number of the first row.

What must stay true: a request asks the brokers for the offsets and sizes of a bounded number of partitions. The list
comes from the map of partitions, so that no request reads the metadata of all topics again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Container, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from klamm.access.clients import error_line
from klamm.client.admin.log_dirs import describe_log_dirs
from klamm.client.admin.reassignments import PartitionReassignment
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import ListedOffset, list_offsets
from klamm.cockpit.page_api import PATIENCE, Cockpit, json_response, live_client, moving_of, number, with_errors
from klamm.cockpit.partition_facts import ONCE
from klamm.cockpit.partition_map import PartitionMap
from klamm.diagnosis.cluster_view import PartitionView, read_cluster
from klamm.diagnosis.partition_health import is_short, is_unavailable, is_under_replicated
from klamm.net.http import Answer, Handler, Request
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import (
    EARLIEST_TIMESTAMP,
    INTERNAL_TOPICS,
    LATEST_TIMESTAMP,
    TopicPartition,
)

# A list has at most this many topics, or partitions of one topic.
MOST_SHOWN: Final = 100
# A list asks for the offsets and sizes of this many partitions, of all its topics together.
MOST_PARTITIONS: Final = 5_000
# A rate is measured over at least this time.
RATE_OVER_S: Final = 2.0


def routes(cockpit: Cockpit) -> dict[str, Handler]:
    rates = Rates()

    async def topics(request: Request) -> Answer:
        client, first = live_client(cockpit), number(request, "from", 0)
        topic = request.parameters.get("topic")
        if topic is not None:
            return json_response(await _topic(client, topic, first, await moving_of(cockpit)))
        found = (await cockpit.source.map(is_known=True)).snapshot()
        return json_response(await _list(client, found, request.parameters.get("filter", ""), first, rates))

    return {"/api/topics": with_errors(topics)}


class Rates:
    """How fast the end offsets of topics grow between looks. The topics with the newest looks are kept."""

    def __init__(self) -> None:
        self._looks: OrderedDict[str, tuple[float, int, float | None]] = OrderedDict()

    def look(self, topic: str, at_s: float, ends: int) -> float | None:
        """Records per second since an earlier look; None at the first look. `ends` is the sum of the end offsets."""
        last_s, last_ends, rate = self._looks.get(topic, (at_s, ends, None))
        if at_s - last_s >= RATE_OVER_S and ends >= last_ends:
            rate = round((ends - last_ends) / (at_s - last_s), 1)
        elif topic in self._looks and ends >= last_ends:
            return rate
        self._looks[topic] = (at_s, ends, rate)
        self._looks.move_to_end(topic)
        if len(self._looks) > 10 * MOST_SHOWN:
            self._looks.popitem(last=False)
        return rate


class Selected(NamedTuple):
    """The topics whose names contain a text: their totals, and the topics of one page with their partitions."""

    totals: dict[str, int]
    shown: dict[str, dict[int, PartitionView]]


def selected(found: PartitionMap, part: str, first: int) -> Selected:
    """Looks at every partition of the cluster: call it in a thread, on a `snapshot`."""
    totals = dict.fromkeys(("topics", "internal", "partitions", "replicas", "offline", "under_replicated"), 0)
    shown: dict[str, dict[int, PartitionView]] = {}
    for name, partitions in found.topics():
        if part not in name or not partitions:
            continue
        if first <= totals["topics"] < first + MOST_SHOWN:
            shown[name] = partitions
        totals["topics"] += 1
        totals["internal"] += name in INTERNAL_TOPICS
        totals["partitions"] += len(partitions)
        for each in partitions.values():
            totals["replicas"] += len(each.origin)
            totals["offline"] += is_unavailable(each, found.live)
            totals["under_replicated"] += is_short(each, found.live)
    return Selected(totals, shown)


async def _list(client: ClusterClient, found: PartitionMap, part: str, first: int, rates: Rates) -> dict[str, Any]:
    totals, shown = await asyncio.to_thread(selected, found, part, first)
    views = {TopicPartition(name, number): each for name, some in shown.items() for number, each in some.items()}
    keys = list(views)[:MOST_PARTITIONS]
    led = [key for key in keys if views[key].leader in found.live]
    starts, ends, sizes = await asyncio.gather(
        list_offsets(client, dict.fromkeys(led, EARLIEST_TIMESTAMP), retry=ONCE),
        list_offsets(client, dict.fromkeys(led, LATEST_TIMESTAMP), retry=ONCE),
        _sizes(client, {key: views[key] for key in keys}, found.live),
    )
    at_s = asyncio.get_running_loop().time()

    def numbers(name: str, partitions: Mapping[int, PartitionView]) -> dict[str, Any]:
        """A number is null if it is unknown for one of the partitions."""
        mine = [TopicPartition(name, each) for each in partitions]
        first_offsets = [_offset(starts[key]) if key in starts else None for key in mine]
        end_offsets = [_offset(ends[key]) if key in ends else None for key in mine]
        known = [(a, b) for a, b in zip(first_offsets, end_offsets, strict=True) if a is not None and b is not None]
        is_whole = len(known) == len(mine)
        return {
            "records": sum(b - a for a, b in known) if is_whole else None,
            "records_per_s": rates.look(name, at_s, sum(b for _, b in known)) if is_whole else None,
            "size_bytes": sum(_size(sizes[key], views[key].leader) for key in mine)
            if all(key in sizes for key in mine)
            else None,
        }

    return {
        "count": totals["topics"],
        "totals": totals,
        "topics": [
            {
                "topic": name,
                "partitions": len(partitions),
                "replication_factor": max(len(each.origin) for each in partitions.values()),
                "offline": sum(is_unavailable(each, found.live) for each in partitions.values()),
                "under_replicated": sum(is_short(each, found.live) for each in partitions.values()),
                "is_internal": name in INTERNAL_TOPICS,
                **numbers(name, partitions),
            }
            for name, partitions in shown.items()
        ],
    }


def _size(sizes: Mapping[str, int], leader: int) -> int:
    """The size of the leader's log, or of the largest log if the leader's size is unknown."""
    return sizes.get(str(leader), max(sizes.values(), default=0))


async def _topic(
    client: ClusterClient, topic: str, first: int, moving: Mapping[TopicPartition, PartitionReassignment]
) -> dict[str, Any]:
    view = await read_cluster(client, [topic], reassignments=moving)
    partitions = view.of_topics().get(topic)
    if partitions is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
    shown = dict(islice(partitions.items(), first, first + MOST_SHOWN))
    keys = [TopicPartition(topic, number) for number in shown]
    starts, ends, sizes = await asyncio.gather(
        list_offsets(client, dict.fromkeys(keys, EARLIEST_TIMESTAMP), retry=PATIENCE),
        list_offsets(client, dict.fromkeys(keys, LATEST_TIMESTAMP), retry=PATIENCE),
        _sizes(client, {key: view.partitions[key] for key in keys}, view.brokers),
    )
    return {
        "topic": topic,
        "topic_id": None if topic not in view.topic_ids else str(view.topic_ids[topic]),
        "count": len(partitions),
        "partitions": [
            {
                "partition": key.partition,
                **_placed(shown[key.partition]),
                "start_offset": _offset(starts[key]),
                "end_offset": _offset(ends[key]),
                "why_not": error_line(found) if isinstance(found := ends[key], KafkaError) else None,
                "sizes": sizes.get(key, {}),
            }
            for key in keys
        ],
    }


def _placed(partition: PartitionView) -> dict[str, Any]:
    return {
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
        "is_under_replicated": is_under_replicated(partition),
        "isr": partition.isr,
        "offline": partition.offline,
    }


def _offset(found: ListedOffset | KafkaError) -> int | None:
    return None if isinstance(found, KafkaError) else found.offset


async def _sizes(
    client: ClusterClient, partitions: Mapping[TopicPartition, PartitionView], live: Container[int]
) -> Mapping[TopicPartition, dict[str, int]]:
    """The size of each replica in bytes, by broker, without brokers that do not answer."""
    brokers = {broker_id for each in partitions.values() for broker_id in each.replicas if broker_id in live}
    sizes: dict[TopicPartition, dict[str, int]] = {}
    for broker_id, found in (await describe_log_dirs(client, sorted(brokers), partitions, retry=ONCE)).items():
        for directory in () if isinstance(found, KafkaError) else found.values():
            for key, replica in directory.replicas.items():
                if not replica.is_future:
                    sizes.setdefault(key, {})[str(broker_id)] = replica.size_bytes
    return sizes
