"""A source of the cockpit's pages that is neither a cluster nor a recording."""

from collections.abc import Mapping
from typing import Any

from klamm.tools.cockpit.source import Subscription


class FixedSource:
    """Shows `document` as Now. `publish` sends an event to all subscribers."""

    client = None
    znodes = None

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document
        self.subscriptions: dict[Subscription, None] = {}

    async def now(self) -> Mapping[str, Any]:
        return self.document

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        self.subscriptions[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self.subscriptions.pop(subscription, None)

    def publish(self, event: str, data: bytes) -> None:
        for subscription in self.subscriptions:
            subscription.put(event, data)

    async def close(self) -> None:
        for subscription in self.subscriptions:
            subscription.close()
