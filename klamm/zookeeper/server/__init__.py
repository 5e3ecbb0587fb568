"""The embedded ZooKeeper server: a single node that keeps every write it acknowledged, whatever dies.

How a request travels: `cnxn` cuts the frames and keeps each client's requests in order; `server` judges and
applies a write to the tree at once and appends it to `transaction_log`; every reply and watch event that could show the
write is held back until the log has been synced past it. So requests never wait for the disk one by one (all writes
that arrive during one sync share the next), and nothing that could still be lost is ever seen outside. `snapshots`
are written in the background, and `recovery` is the newest valid snapshot plus the log after it.
"""

from klamm.zookeeper.server.blocks import CorruptDataError
from klamm.zookeeper.server.server import ZooKeeperServer

__all__ = ["CorruptDataError", "ZooKeeperServer"]
