"""How far followers are behind, on demand: `/api/lags?topic=&first=&count=` for a topic's partitions, with reasons, and
`/api/lags/map?piece=` for a piece of the map of partitions (map_lags.py)."""

from collections.abc import Mapping
from typing import Any, Final

from klamm.access.clients import error_line
from klamm.base.visible import visible
from klamm.cockpit.map_lags import MapLags
from klamm.cockpit.page_api import MAX_INT32, Cockpit, json_response, live_client, number, text, with_errors
from klamm.diagnosis.cluster_view import PartitionView, read_cluster
from klamm.diagnosis.log_ends import replica_ends
from klamm.net.http import JSON, Answer, Handler, Request
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition

# About the number of rows on a screen.
MOST_PARTITIONS: Final = 200


def routes(cockpit: Cockpit) -> dict[str, Handler]:
    async def lags(request: Request) -> Answer:
        client, topic = live_client(cockpit), text(request, "topic")
        first = number(request, "first", 0, most=MAX_INT32)
        count = number(request, "count", MOST_PARTITIONS, least=1, most=MOST_PARTITIONS)
        view = await read_cluster(client, [topic], reassignments={})
        if not view.partitions:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
        shown = {key: each for key, each in view.partitions.items() if first <= key.partition < first + count}
        ends = await replica_ends(client, view, {key: each.replicas for key, each in shown.items()})
        return json_response(
            {"topic": topic, "partitions": [_lags(key, each, ends.get(key, {})) for key, each in shown.items()]}
        )

    map_lags = MapLags()

    async def of_map(request: Request) -> Answer:
        client, piece = live_client(cockpit), number(request, "piece", most=MAX_INT32)
        answer = await map_lags.read(client, await cockpit.source.map(is_known=True), piece)
        return Answer(200, answer, JSON)

    return {"/api/lags": with_errors(lags), "/api/lags/map": with_errors(of_map)}


def _lags(key: TopicPartition, partition: PartitionView, ends: Mapping[int, int | KafkaError]) -> dict[str, Any]:
    """`lags` has [broker, records behind the leader's log end] for each follower, null where a log end is unknown;
    `why_not` then has [broker, reason]."""
    known = {broker_id: end for broker_id, end in ends.items() if isinstance(end, int)}
    end = known.get(partition.leader)
    followers = [each for each in partition.replicas if each != partition.leader]
    return {
        "partition": key.partition,
        "leader": partition.leader,
        "end": end,
        "lags": [
            [each, max(0, end - known[each]) if end is not None and each in known else None] for each in followers
        ],
        "why_not": [[each, _why_not(ends.get(each))] for each in partition.replicas if each not in known],
    }


def _why_not(found: int | KafkaError | None) -> str:
    return visible(error_line(found)) if isinstance(found, KafkaError) else "The broker is not alive."
