"""All znodes of a simulated ZooKeeper, read from outside."""

from collections.abc import Iterator

from klamm.zookeeper.keeper_exceptions import NoNode
from klamm.zookeeper.messages import Stat
from klamm.zookeeper.server.access_control import Caller
from klamm.zookeeper.server.tree import ZnodeTree

ANYBODY = Caller(0, ())


def all_znodes(tree: ZnodeTree) -> Iterator[tuple[str, bytes | None, Stat]]:
    """All znodes: path, data and stat."""
    paths = ["/"]
    while paths:
        path = paths.pop()
        paths += [f"{path.rstrip('/')}/{name}" for name in sorted(tree.get_children(path, ANYBODY)[0])]
        yield path, *tree.get_data(path, ANYBODY)


def read_znode(tree: ZnodeTree, path: str) -> tuple[bytes | None, int] | None:
    """The data and the version of a znode; None if it does not exist."""
    try:
        data, stat = tree.get_data(path, ANYBODY)
    except NoNode:
        return None
    return data, stat.version


def is_changed_after(zxid: int, tree: ZnodeTree, path: str) -> bool:
    """Whether a transaction after `zxid` has changed the data of the znode, or deleted it."""
    try:
        return tree.get_data(path, ANYBODY)[1].mzxid > zxid
    except NoNode:
        parent = path.rpartition("/")[0] or "/"
        return tree.find(parent) is None or tree.get_data(parent, ANYBODY)[1].pzxid > zxid
