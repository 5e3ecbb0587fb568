"""The configuration that a broker runs with now.

A part that uses a config which may change while the broker runs holds the `CurrentConfig`: it reads `current` at each
use, or subscribes. A part all of whose configs need a restart takes the `BrokerConfig` that it is made with.
"""

from collections.abc import Callable

from klamm.config.broker import BrokerConfig

ConfigChanged = Callable[[BrokerConfig, BrokerConfig], None]


class CurrentConfig:
    """`current` is replaced as a whole, so whatever reads it once has values that go together."""

    def __init__(self, config: BrokerConfig) -> None:
        self._current = config
        self._subscribers: list[ConfigChanged] = []

    @property
    def current(self) -> BrokerConfig:
        return self._current

    def subscribe(self, changed: ConfigChanged) -> None:
        """From now on `changed(old, new)` is called when `current` has been replaced, in the order of subscription."""
        self._subscribers.append(changed)

    def replace(self, new: BrokerConfig) -> None:
        """The broker runs with `new` from now on."""
        old, self._current = self._current, new
        for changed in self._subscribers:
            changed(old, new)
