"""A connection whose answers a test plays."""

from klamm.net.client import Connection


class PlayedConnection(Connection):
    """There is no socket. A subclass answers in `send`; all else fails, for want of one."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.address = ("nowhere", broker_id)
        self.api_versions = None
