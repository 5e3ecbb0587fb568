"""All znodes of a simulated ZooKeeper, read from outside."""

from collections.abc import Iterator

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


def lost_znodes(before: ZnodeTree, finished_zxid: int, after: ZnodeTree) -> Iterator[str]:
    """What a tree lacks although the one before had it.

    The one before has all transactions up to `finished_zxid`, and maybe some changes of the next. The other may lack
    those after its own zxid, or have the next one whole.
    """
    for path, data, stat in all_znodes(before):
        now = after.find(path)
        if now is not None and now.czxid > finished_zxid:
            continue
        if stat.mzxid <= after.zxid and not _may_be(now, stat, after, path, data, finished_zxid):
            found = None if now is None else (after.get_data(path, ANYBODY)[0], now.version)
            was = f"{path} was {data!r} in version {stat.version} at zxid {stat.mzxid}"
            yield f"{was}; a ZooKeeper that has started at zxid {after.zxid} has {found}"
        if now is not None and stat.pzxid <= after.zxid:
            names, names_now = (set(tree.get_children(path, ANYBODY)[0]) for tree in (before, after))
            if len(names ^ names_now) > now.cversion - stat.cversion:
                had = f"{path} had the children {sorted(names)} at zxid {stat.pzxid}"
                yield f"{had}; a ZooKeeper that has started at zxid {after.zxid} has {sorted(names_now)}"


def _may_be(now: Stat | None, stat: Stat, after: ZnodeTree, path: str, data: bytes | None, finished_zxid: int) -> bool:
    if now is None:
        # That only so many children are gone as were deleted is seen at the parent.
        return after.zxid > finished_zxid
    if (now.czxid, now.ephemeral_owner) != (stat.czxid, stat.ephemeral_owner):
        return False
    return now.mzxid > finished_zxid or (
        (now.mzxid, now.version) == (stat.mzxid, stat.version) and after.get_data(path, ANYBODY)[0] == data
    )
