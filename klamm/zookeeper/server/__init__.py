"""The embedded ZooKeeper server: a single node that keeps every acknowledged write, even if the machine crashes.

How a request travels: `cnxn` cuts the frames and keeps each client's requests in order. `server` checks a write,
appends it to `transaction_log` and applies it to the tree at once. Every reply and watch event that could show the
write is held back until the log has been synced past it. So requests never wait for the disk one by one (all writes
that arrive during one sync share the next), and no client sees a write that could still be lost. `snapshots` are
written in the background; recovery reads the newest valid snapshot and replays the log after it.
"""

from klamm.zookeeper.server.blocks import CorruptDataError
from klamm.zookeeper.server.server import ZooKeeperServer

__all__ = ["CorruptDataError", "ZooKeeperServer"]
