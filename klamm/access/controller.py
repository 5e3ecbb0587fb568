"""Finds the controller, reads its status and moves it, through ZooKeeper and the controller's HTTP port."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from klamm.access.http_reading import HTTP_TIMEOUT_S, WrongAnswer, http_address, read_body, read_lines
from klamm.access.zookeeper import open_znodes
from klamm.base.words import address_text
from klamm.processes.tool_errors import ToolError

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.znodes.store import KafkaZooKeeper


ELECTION_TIMEOUT_S = 30.0


LOOK_EVERY_S = 0.2


@dataclass(frozen=True)
class ControllerAddress:
    """The controller as ZooKeeper knows it. `port` is None when the controller serves no status over HTTP.

    A controller that is not registered has died or lost its session, although /controller still names it. `addresses`
    holds host:port of each live broker's first listener, by broker id.
    """

    broker_id: int
    epoch: int
    since_ms: int
    host: str
    port: int | None
    registered: bool = True
    addresses: Mapping[int, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The base URL of the controller's status; callers append a path."""
        return f"http://{address_text(self.host, self.port or 0)}"


class NotKlamm(ToolError):
    """The program at the controller's status port is not klamm; Apache Kafka has its JMX there, for example."""


async def zookeeper_of_brokers(client: "ClusterClient") -> str:
    """The zookeeper.connect of a broker that answers.

    Raises KafkaError when no broker answers, and ToolError when no broker is known or it has no zookeeper.connect.
    """
    from klamm.client.admin.configs import ConfigResource, describe_configs
    from klamm.client.retries import RetryPolicy
    from klamm.protocol.error_codes import KafkaError
    from klamm.protocol.vocabulary import ConfigResourceType

    await client.refresh_metadata(())
    failures: list[KafkaError] = []
    for broker_id in client.brokers_to_ask():
        resource = ConfigResource(ConfigResourceType.BROKER, str(broker_id))
        # A broker that hangs or has just died is not asked again: another one may answer.
        found = (await describe_configs(client, [resource], ["zookeeper.connect"], retry=RetryPolicy(0)))[resource]
        if isinstance(found, KafkaError):
            failures.append(found)
            continue
        address = found.get("zookeeper.connect")
        if address is None or not address.value:
            raise ToolError(f"broker {broker_id} has no zookeeper.connect: this command is for clusters with ZooKeeper")
        return address.value
    raise failures[0] if failures else ToolError("the cluster's metadata names no live broker")


def find_controller(connect: str, timeout_s: float | None = None) -> ControllerAddress | None:
    """The current controller of the cluster at this ZooKeeper, or None. Raises ToolError, also when ZooKeeper does not
    answer within `timeout_s`."""
    import asyncio

    try:
        return asyncio.run(asyncio.wait_for(_find_controller(connect), timeout_s))
    except TimeoutError as error:
        raise ToolError(f"ZooKeeper at {connect} does not answer within {timeout_s} s") from error


async def _find_controller(connect: str) -> ControllerAddress | None:
    async with open_znodes(connect) as store:
        found = await read_controller(store)
        return None if found is None else found[0]


def _require_controller(address: ControllerAddress | None) -> ControllerAddress:
    if address is None:
        raise ToolError("the cluster has no controller now")
    return address


async def read_controller(store: "KafkaZooKeeper") -> tuple[ControllerAddress, int] | None:
    """The controller, and the version of /controller_epoch at its election."""
    from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, Controller, decode_controller_epoch
    from klamm.zookeeper.keeper_exceptions import NoNode

    data, found = b"", b""
    while True:
        before = found
        try:
            found, epoch = await store.client.get(CONTROLLER_EPOCH_PATH)
            if found == before:
                break  # The epoch did not change, so everything read in between belongs to it.
            data, _ = await store.client.get(CONTROLLER_PATH)
        except NoNode:
            return None
    controller = Controller.decode(data)
    live = await store.live_brokers()
    broker = live.get(controller.broker_id)
    host, port = "", None
    if broker is not None:
        host, port = http_address(broker.registration)
    number = decode_controller_epoch(found)
    address = ControllerAddress(
        controller.broker_id,
        number,
        controller.timestamp_ms,
        host,
        port,
        registered=broker is not None,
        addresses={each: _first_address(found.registration.endpoints) for each, found in sorted(live.items())},
    )
    return address, epoch.version


def _first_address(endpoints: Sequence[Any]) -> str:
    """The host:port of the first listener; brokers before Kafka 0.9 register no listeners."""
    if not endpoints:
        return "unknown"
    host = endpoints[0].host
    return f"[{host}]:{endpoints[0].port}" if ":" in host else f"{host}:{endpoints[0].port}"


async def move_controller(
    store: "KafkaZooKeeper", epoch: int | None = None
) -> tuple[ControllerAddress, ControllerAddress]:
    """Makes the controller resign; returns the old and the new controller. Raises ToolError.

    With `epoch`, only the controller of this epoch resigns; a later controller stays.
    """
    import asyncio

    from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH
    from klamm.zookeeper.keeper_exceptions import BadVersion, NoNode
    from klamm.zookeeper.messages import Check, Delete

    found = await read_controller(store)
    before = _require_controller(None if found is None else found[0])
    assert found is not None
    if epoch is not None and before.epoch != epoch:
        raise ToolError(f"the controller is now broker {before.broker_id} with epoch {before.epoch}")
    # If the old controller resigns by itself first, the check of the version protects its successor.
    with contextlib.suppress(NoNode, BadVersion):
        await store.client.multi([Check(CONTROLLER_EPOCH_PATH, found[1]), Delete(CONTROLLER_PATH)])
    deadline = time.monotonic() + ELECTION_TIMEOUT_S
    while True:
        found = await read_controller(store)
        if found is not None and found[0].epoch > before.epoch:
            return before, found[0]
        if time.monotonic() > deadline:
            raise ToolError(f"no controller was elected within {ELECTION_TIMEOUT_S:g} s")
        await asyncio.sleep(LOOK_EVERY_S)


def _lines(address: ControllerAddress, path: str, timeout_s: float = HTTP_TIMEOUT_S) -> Iterator[bytes]:
    try:
        yield from read_lines(f"{address.url}{path}", f"broker {address.broker_id}", timeout_s)
    except WrongAnswer as error:
        raise _not_klamm(address) from error


def read_events(address: ControllerAddress, timeout_s: float = HTTP_TIMEOUT_S) -> list[dict[str, Any]]:
    """The newest records of a broker that is or was the controller. Raises ToolError, and NotKlamm."""
    return [_object(address, line) for line in _lines(address, "/controller/events", timeout_s)]


def read_status(address: ControllerAddress, timeout_s: float = HTTP_TIMEOUT_S) -> dict[str, Any]:
    """The controller's status. Raises ToolError, and NotKlamm."""
    try:
        return _object(address, read_body(f"{address.url}/controller", f"broker {address.broker_id}", timeout_s))
    except WrongAnswer as error:
        raise _not_klamm(address) from error


def _object(address: ControllerAddress, text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _not_klamm(address)
    return found


def _not_klamm(address: ControllerAddress) -> NotKlamm:
    return NotKlamm(f"port {address.port} of broker {address.broker_id} is not klamm's status port")
