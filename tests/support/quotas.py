"""Quotas for tests of parts that need some."""

from collections.abc import Callable

from klamm.broker.quotas.client_quotas import ClientQuotas
from klamm.config.broker import BrokerConfig


def client_quotas(clock_ms: Callable[[], float] = lambda: 0.0, **properties: str) -> ClientQuotas:
    """The quotas of a broker with these properties; none is set."""
    named = {key.replace("_", "."): value for key, value in properties.items()}
    return ClientQuotas(BrokerConfig.from_properties({"zookeeper.connect": "zk", **named}), clock_ms)
