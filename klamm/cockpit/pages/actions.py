"""`POST /api/actions/plan` and `/api/actions/run`: the three changes that the page can make with `--allow-changes`.

| action              | also in the body   | what                                                      |
|---------------------|--------------------|-----------------------------------------------------------|
| move_controller     |                    | makes the controller resign, so that a new one is elected |
| elect_preferred     | topic, partition   | elects the preferred leader of a partition                |
| cancel_reassignment | topic, partition   | the partition keeps the replicas from before              |

`plan` changes nothing. It returns what will happen, the command that does the same, and a confirmation for `run`.

What must stay true:
- Nothing changes without a confirmation. A confirmation makes its change once; sent again, it gets the same answer.
- If the cluster no longer is as `plan` has shown it, the confirmation changes nothing.
- Without `--allow-changes` no confirmation is given.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from klamm.access.clients import error_line
from klamm.access.controller import move_controller, read_controller
from klamm.base import json_bytes
from klamm.base.words import brokers_text
from klamm.client.admin.elections import elect_leaders
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.client.cluster import ClusterClient
from klamm.cockpit.page_api import BadRequest, Cockpit, error_response, json_response, live_client, with_errors
from klamm.diagnosis.cluster_view import PartitionView, read_cluster
from klamm.diagnosis.election_plans import DEFAULT_MAX_LAG, lagging, preferred_lines, preferred_plan
from klamm.diagnosis.log_ends import replica_ends
from klamm.diagnosis.partition_conditions import cancel_command, controller_command, elect_preferred_command
from klamm.net.client import ClientError
from klamm.net.http import Answer, Handler, Request
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ElectionType, TopicPartition

NOT_ALLOWED: Final = (
    "This page may only look: klamm cockpit was started without --allow-changes. The command that is shown does the"
    " same."
)
MOST_OFFERS: Final = 100
OFFER_S: Final = 300.0
# How long the page waits until a broker knows of an election, and how often it asks.
TOLD_S: Final = 5.0
SECONDS_BETWEEN_LOOKS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """What will happen, the command that does the same, and the change, which returns what was done."""

    what: tuple[str, ...]
    command: str
    change: Callable[[], Awaitable[str]]


@dataclass(slots=True)
class _Offer:
    plan: Plan
    until_s: float
    done: asyncio.Task[str] | None = None


class Offers:
    """The newest confirmations that were given out."""

    def __init__(self) -> None:
        self._offers: dict[str, _Offer] = {}

    def add(self, plan: Plan) -> str:
        while len(self._offers) >= MOST_OFFERS:
            del self._offers[next(iter(self._offers))]
        confirmation = secrets.token_urlsafe(24)
        self._offers[confirmation] = _Offer(plan, asyncio.get_running_loop().time() + OFFER_S)
        return confirmation

    async def run(self, confirmation: str) -> tuple[str, bool]:
        """What was done, and whether an earlier call did it. Raises BadRequest, and the error of the change."""
        offer = self._offers.get(confirmation)
        if offer is None or (offer.done is None and asyncio.get_running_loop().time() > offer.until_s):
            raise BadRequest("The confirmation is not valid, or no longer: look again at what will happen.")
        is_repeated = offer.done is not None
        if offer.done is None:
            offer.done = asyncio.ensure_future(offer.plan.change())
        return await asyncio.shield(offer.done), is_repeated


def routes(cockpit: Cockpit) -> dict[str, Handler]:
    offers = Offers()

    async def plan(request: Request) -> Answer:
        found = await _plan(cockpit, await _body(request))
        confirmation = offers.add(found) if cockpit.allow_changes else None
        return json_response(
            {
                "what": found.what,
                "command": found.command,
                "confirmation": confirmation,
                "why_not": None if cockpit.allow_changes else NOT_ALLOWED,
            }
        )

    async def run(request: Request) -> Answer:
        if not cockpit.allow_changes:
            return error_response(403, NOT_ALLOWED)
        confirmation = (await _body(request)).get("confirmation")
        if not isinstance(confirmation, str):
            raise BadRequest("The body has no text named confirmation.")
        done, is_repeated = await offers.run(confirmation)
        return json_response({"done": done, "is_repeated": is_repeated})

    return {
        "/api/actions/plan": with_errors(plan),
        "/api/actions/run": with_errors(run),
    }


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = json_bytes.decode(request.body)
    except json_bytes.JsonError as error:
        raise BadRequest(f"The body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("The body is not a JSON object.")
    return body


async def _plan(cockpit: Cockpit, body: dict[str, Any]) -> Plan:
    """Raises BadRequest for an action that is not possible."""
    client = live_client(cockpit)
    match body:
        case {"action": "move_controller"}:
            return await _move(cockpit)
        case {"action": "elect_preferred", "topic": str(topic), "partition": int(number)}:
            return await _elect(client, TopicPartition(topic, number), cockpit.brokers_options)
        case {"action": "cancel_reassignment", "topic": str(topic), "partition": int(number)}:
            return await _cancel(cockpit, TopicPartition(topic, number))
    raise BadRequest(
        "The body names no action: move_controller, or elect_preferred or cancel_reassignment with topic and partition."
    )


# -- the actions ------------------------------------------------------------------------------------------------------


async def _move(cockpit: Cockpit) -> Plan:
    znodes = cockpit.source.znodes
    if znodes is None:
        raise BadRequest("The controller is moved through ZooKeeper, which this cluster has not, or cannot be reached.")
    found = await read_controller(znodes)
    if found is None:
        raise BadRequest("The cluster has no controller now: the brokers are electing one.")
    before = found[0]

    async def change() -> str:
        _, after = await move_controller(znodes, before.epoch)
        again = ", again" if after.broker_id == before.broker_id else ""
        return f"The controller is broker {after.broker_id} with epoch {after.epoch}{again}."

    return Plan(
        (
            f"Broker {before.broker_id}, the controller with epoch {before.epoch}, resigns.",
            "The brokers elect a new controller, which may be the same broker. Until it has read all znodes, no leader"
            " is elected, and topics are not created.",
            "Leaders stay where they are: records are produced and consumed meanwhile.",
        ),
        controller_command("move", cockpit.zookeeper_options or cockpit.brokers_options),
        change,
    )


async def _elect(client: ClusterClient, key: TopicPartition, reach: Sequence[str]) -> Plan:
    async def look() -> tuple[PartitionView, tuple[str, ...]]:
        """The partition and the plan's lines. Raises BadRequest when the preferred leader cannot be elected."""
        view = await read_cluster(client, [key.topic], reassignments={})
        partition = view.partitions.get(key)
        ends = {}
        if partition is not None:
            ends = await replica_ends(client, view, {key: {partition.leader, partition.replicas[0]}})
        found = preferred_plan(view, [key], log_ends=ends)
        refused = {**found.refused, **lagging(view, found.due, ends, DEFAULT_MAX_LAG)}
        if key in refused:
            raise BadRequest(refused[key])
        if partition is None or not found.due:
            raise BadRequest(f"The preferred leader leads {key} already.")
        return partition, tuple(preferred_lines(view, found.due, 1))

    shown, lines = await look()

    async def change() -> str:
        before, _ = await look()
        if before.replicas != shown.replicas:
            raise ToolError(f"the replicas of {key} have changed since: nothing was done")
        error = (await elect_leaders(client, ElectionType.PREFERRED, [key]))[key]
        if error is not None:
            raise ToolError(error_line(error))
        await _until_known(client, key, before.leader_epoch)
        return f"Broker {before.replicas[0]} leads {key}."

    what = (*lines, f"No acknowledged record is lost: broker {shown.replicas[0]} is in the ISR.")
    return Plan(what, elect_preferred_command(key, reach), change)


async def _until_known(client: ClusterClient, key: TopicPartition, before_epoch: int) -> None:
    """Returns when one broker knows of the election, so that the page does not show the former leader.

    The controller answers before the other brokers know of the election. One broker is enough, because the client keeps
    the newest metadata. A timeout is no error: the election is done.
    """
    with contextlib.suppress(TimeoutError, ClientError, KafkaError):
        async with asyncio.timeout(TOLD_S):
            while True:
                partition = (await read_cluster(client, [key.topic], reassignments={})).partitions.get(key)
                if partition is None or partition.leader_epoch > before_epoch:
                    return
                await asyncio.sleep(SECONDS_BETWEEN_LOOKS)


async def _cancel(cockpit: Cockpit, key: TopicPartition) -> Plan:
    client, reach = live_client(cockpit), cockpit.brokers_options

    async def look() -> PartitionView:
        partition = (await read_cluster(client, [key.topic])).partitions.get(key)
        if partition is None or not partition.is_reassigning:
            raise BadRequest(f"No reassignment of {key} is in progress.")
        return partition

    shown = await look()

    async def change() -> str:
        now = await look()
        if (now.adding, now.removing) != (shown.adding, shown.removing):
            raise ToolError(f"another reassignment of {key} is in progress meanwhile: nothing was done")
        error = (await alter_partition_reassignments(client, {key: None}))[key]
        if cockpit.source.reassignments is not None:
            cockpit.source.reassignments.forget()
        if error is not None:
            raise ToolError(error_line(error))
        return f"The reassignment of {key} is cancelled: it stays on {brokers_text(shown.origin)}."

    what = [f"{key} stays on {brokers_text(shown.origin)}."]
    if shown.adding:
        what.append(
            f"What {brokers_text(shown.adding)} {'has' if len(shown.adding) == 1 else 'have'} copied is deleted."
        )
    return Plan(tuple(what), cancel_command(key, shown, reach), change)
