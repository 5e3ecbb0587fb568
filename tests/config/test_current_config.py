"""The configuration that a broker runs with now, and the parts that hear of a change."""

from functools import partial

from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig


def config(min_insync_replicas: int) -> BrokerConfig:
    return BrokerConfig.from_properties({"zookeeper.connect": "zk", "min.insync.replicas": str(min_insync_replicas)})


def test_subscribers_hear_of_each_replacement_in_the_order_of_subscription_and_find_the_new_one() -> None:
    one, two, three = config(1), config(2), config(3)
    current = CurrentConfig(one)
    heard: list[tuple[str, int, int, int]] = []

    def hear(name: str, old: BrokerConfig, new: BrokerConfig) -> None:
        heard.append((name, old.min_insync_replicas, new.min_insync_replicas, current.current.min_insync_replicas))

    for name in ("first", "second"):
        current.subscribe(partial(hear, name))
    assert (current.current, heard) == (one, [])
    current.replace(two)
    current.replace(three)
    assert heard == [("first", 1, 2, 2), ("second", 1, 2, 2), ("first", 2, 3, 3), ("second", 2, 3, 3)]
