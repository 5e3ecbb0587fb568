"""The ZooKeeper client: one session, kept alive over as many connections as necessary.

`session` is the session and its states, `operations` its operations, `connection` one TCP connection.
"""

from klamm.zookeeper.client.operations import ZooKeeperClient, retrying
from klamm.zookeeper.client.session import State

__all__ = ["State", "ZooKeeperClient", "retrying"]
