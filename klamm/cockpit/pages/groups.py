"""`/api/groups`: all groups, or with `group=` one group with its members, their assignment and the lag of each
partition. `/api/transactions`: all transactional ids, or with `id=` one id with the partitions that it writes to."""

from dataclasses import asdict
from typing import Any, Final

from klamm.client.admin.groups import describe_groups, list_groups
from klamm.client.admin.transaction_admin import describe_transactions, list_transactions
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import list_consumer_group_offsets, list_offsets
from klamm.client.fan_out import checked
from klamm.cockpit.page_api import PATIENCE, Cockpit, json_response, live_client, with_errors
from klamm.diagnosis.groups import members_value, partition_rows, state_value
from klamm.net.http import Answer, Handler, Request
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import LATEST_TIMESTAMP

MOST_GROUPS: Final = 1_000
MOST_PARTITIONS: Final = 5_000
DEAD: Final = "Dead"


def routes(cockpit: Cockpit) -> dict[str, Handler]:
    async def groups(request: Request) -> Answer:
        client = live_client(cockpit)
        group = request.parameters.get("group")
        if group is not None:
            return json_response(await _group(client, group))
        found = await list_groups(client)
        return json_response({"count": len(found), "groups": [asdict(each) for each in found[:MOST_GROUPS]]})

    async def transactions(request: Request) -> Answer:
        client = live_client(cockpit)
        transactional_id = request.parameters.get("id")
        if transactional_id is not None:
            described = checked((await describe_transactions(client, [transactional_id]))[transactional_id])
            return json_response({**asdict(described), "partitions": [each._asdict() for each in described.partitions]})
        listed = await list_transactions(client)
        return json_response({"count": len(listed), "transactions": [asdict(each) for each in listed[:MOST_GROUPS]]})

    return {"/api/groups": with_errors(groups), "/api/transactions": with_errors(transactions)}


async def _group(client: ClusterClient, name: str) -> dict[str, Any]:
    group = checked((await describe_groups(client, [name]))[name])
    if group.state == DEAD:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name} does not exist")
    committed = checked((await list_consumer_group_offsets(client, [name], retry=PATIENCE))[name])
    keys = sorted({*committed, *(key for member in group.members for key in member.assignment)})[:MOST_PARTITIONS]
    ends = await list_offsets(client, dict.fromkeys(keys, LATEST_TIMESTAMP), retry=PATIENCE)
    rows = partition_rows(
        group,
        {key: each.offset for key, each in committed.items()},
        {key: each.offset for key, each in ends.items() if not isinstance(each, KafkaError)},
    )[:MOST_PARTITIONS]
    return {
        **state_value(group),
        "protocol_type": group.protocol_type,
        "lag": sum(max(row.lag, 0) for row in rows if row.lag is not None),
        "members": members_value(group)["members"],
        "partitions": [asdict(row) for row in rows],
    }
