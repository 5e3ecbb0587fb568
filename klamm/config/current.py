"""A running broker's current configuration.

A part that uses a config that may change while the broker runs holds the `CurrentConfig`: it reads `current` at each
use, or subscribes. A part whose configs all need a restart keeps the `BrokerConfig` that it was made with.
"""

from collections.abc import Callable

from klamm.config.broker import BrokerConfig

ConfigChanged = Callable[[BrokerConfig, BrokerConfig], None]


class CurrentConfig:
    """`current` is replaced as a whole, so the values of one read are consistent."""

    def __init__(self, config: BrokerConfig) -> None:
        self._current = config
        self._subscribers: list[ConfigChanged] = []

    @property
    def current(self) -> BrokerConfig:
        return self._current

    def subscribe(self, changed: ConfigChanged) -> None:
        """Calls `changed(old, new)` after each replacement of `current`, in the order of subscription."""
        self._subscribers.append(changed)

    def replace(self, new: BrokerConfig) -> None:
        """The broker runs with `new` from now on."""
        old, self._current = self._current, new
        for changed in self._subscribers:
            changed(old, new)
