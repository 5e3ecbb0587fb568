"""What ZooKeeper holds, as a test says it."""

from klamm.znodes.store import KafkaZooKeeper


class KnownZnodes(KafkaZooKeeper):
    """A store without a session. A subclass answers what its test asks; all else fails, for want of a client."""

    def __init__(self) -> None:
        pass
