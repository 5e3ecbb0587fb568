"""The listeners of a broker: what they are configured with."""

from types import SimpleNamespace
from typing import Any

import pytest

from klamm.broker.requests.dispatcher import Dispatcher
from klamm.broker.start.listeners import Listeners
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig

MB = 1024 * 1024


@pytest.mark.parametrize(
    ("properties", "budget_bytes"),
    [
        ({}, 256 * MB),
        ({"queued.max.request.bytes": "-1", "socket.request.max.bytes": str(300 * MB)}, 300 * MB),
        ({"queued.max.request.bytes": str(100 * MB)}, 100 * MB),
    ],
)
def test_each_listener_has_the_budget_that_is_configured(properties: dict[str, str], budget_bytes: int) -> None:
    config = BrokerConfig.from_properties(
        {"listeners": "A://:0,B://:1", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"}
        | {"inter.broker.listener.name": "B", "zookeeper.connect": "z", "log.dirs": "/d", **properties}
    )
    parts: Any = SimpleNamespace(work_clock_s=lambda: 0.0)
    services: Any = SimpleNamespace(apis={})
    dispatcher = Dispatcher(services, parts.work_clock_s)
    listeners = Listeners(CurrentConfig(config), parts, dispatcher, parts, parts, parts)
    one, other = (server.request_memory for server in listeners.values())
    assert one is not other
    for memory in (one, other):
        assert sum(part.limit_bytes for part in (memory.small, memory.produces, memory.others)) == budget_bytes
