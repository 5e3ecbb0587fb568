"""The znode tree: what each request does, what it is refused for, which watches fire; against a simple model."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.base.slices import in_one_go
from klamm.zookeeper import keeper_exceptions, messages
from klamm.zookeeper.keeper_exceptions import ZooKeeperError, ZooKeeperErrorCode
from klamm.zookeeper.messages import OPEN_ACL, READ_ACL, Acl, CreateMode, EventType, OpCode, WatcherType
from klamm.zookeeper.server.access_control import Caller, Identity, digest_identity, permits
from klamm.zookeeper.server.nodes import is_valid_path
from klamm.zookeeper.server.records import decode_batch, encode_batch, encode_record
from klamm.zookeeper.server.transactions import CloseSessionTxn, CreateSessionTxn, CreateTxn, DeleteTxn, Txn
from klamm.zookeeper.server.tree import Applied, Capture, Event, MultiFailed, NodeImage, ZnodeTree
from klamm.zookeeper.server.watches import Watches

ME = Caller(7, (Identity("ip", "127.0.0.1"),))
OTHER = Caller(8, (Identity("ip", "10.1.2.3"),))
EPHEMERAL, SEQUENTIAL = CreateMode.EPHEMERAL, CreateMode.PERSISTENT_SEQUENTIAL


def do(tree: ZnodeTree, request: Any, caller: Caller = ME) -> Applied:
    return tree.apply(tree.prepare(request, caller), tree.zxid + 1, 1000 + tree.zxid)


def create(
    tree: ZnodeTree, path: str, data: bytes | None = b"", flags: int = 0, caller: Caller = ME, **rest: Any
) -> str:
    txn = tree.prepare(messages.Create(path, data, flags=flags, **rest), caller)
    assert isinstance(txn, CreateTxn)
    tree.apply(txn, tree.zxid + 1, 1000 + tree.zxid)
    return txn.path


def images(tree: ZnodeTree) -> dict[str, NodeImage]:
    """The whole state of the znodes."""
    capture = tree.capture()
    tree.release_capture()
    return {image.path: image for image in drain(capture, 100)}


def drain(capture: Capture, count: int) -> list[NodeImage]:
    taken: list[NodeImage] = []
    while more := capture.take(count):
        taken += more
    return taken


# -- znodes


def test_a_new_tree_has_what_every_zookeeper_has() -> None:
    tree = ZnodeTree()
    assert len(tree) == 4
    assert tree.get_children("/", ME)[0] == ["zookeeper"]
    assert tree.get_children("/zookeeper", ME)[0] == ["quota", "config"]
    assert tree.stat("/").cversion == -1
    assert tree.stat("/zookeeper/config").aversion == -1
    assert tree.get_acl("/zookeeper/config", ME)[0] == READ_ACL


def test_create_fills_the_stat_and_changes_the_parents() -> None:
    tree = ZnodeTree()
    create(tree, "/a", b"one")
    create(tree, "/a/b")
    stat = tree.stat("/a")
    assert (stat.czxid, stat.mzxid, stat.pzxid) == (1, 1, 2)
    assert (stat.ctime_ms, stat.mtime_ms) == (1000, 1000)
    assert (stat.version, stat.cversion, stat.data_length, stat.num_children) == (0, 1, 3, 1)
    do(tree, messages.Delete("/a/b"))
    stat = tree.stat("/a")
    assert (stat.pzxid, stat.cversion, stat.num_children) == (3, 2, 0)


def test_set_data_changes_version_time_and_length() -> None:
    tree = ZnodeTree()
    create(tree, "/a", b"one")
    applied = do(tree, messages.SetData("/a", b"three", 0))
    stat = tree.stat("/a")
    assert applied.stats == [stat]
    assert (stat.version, stat.mzxid, stat.czxid, stat.mtime_ms, stat.data_length) == (1, 2, 1, 1001, 5)
    do(tree, messages.SetData("/a", None))
    assert tree.get_data("/a", ME) == (None, tree.stat("/a"))


def test_sequence_numbers_count_the_children_ever_created() -> None:
    tree = ZnodeTree()
    create(tree, "/q")
    assert create(tree, "/q/n-", flags=SEQUENTIAL) == "/q/n-0000000000"
    create(tree, "/q/other")
    do(tree, messages.Delete("/q/n-0000000000"))
    assert create(tree, "/q/n-", flags=SEQUENTIAL) == "/q/n-0000000002"
    assert create(tree, "/q/", flags=SEQUENTIAL) == "/q/0000000003"


def test_versions_wrap_as_java_integers() -> None:
    tree = ZnodeTree()
    create(tree, "/a")
    tree._nodes["/a"].version = 2**31 - 1
    assert do(tree, messages.SetData("/a", b"")).stats[0].version == -(2**31)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (messages.Create("/a", b""), keeper_exceptions.NodeExists),
        (messages.Create("/", b""), keeper_exceptions.NodeExists),
        (messages.Create("/no/child", b""), keeper_exceptions.NoNode),
        (messages.Create("no-slash", b""), keeper_exceptions.BadArguments),
        (messages.Create("", b""), keeper_exceptions.BadArguments),
        (messages.Create("/a/", b""), keeper_exceptions.BadArguments),
        (messages.Create("/a/..", b""), keeper_exceptions.BadArguments),
        (messages.Create("/a\0", b""), keeper_exceptions.BadArguments),
        (messages.Create("/x", b"", flags=9), keeper_exceptions.BadArguments),
        (messages.Create("/x", b"", flags=5), keeper_exceptions.Unimplemented),
        (messages.Create("/x", b"", flags=5, op=OpCode.CREATE_TTL, ttl_ms=5), keeper_exceptions.Unimplemented),
        (messages.Create("/x", b"", acl=()), keeper_exceptions.InvalidACL),
        (messages.Create("/x", b"", acl=(Acl(31, "auth", ""),)), keeper_exceptions.InvalidACL),
        (messages.Create("/x", b"", acl=(Acl(31, "moon", "x"),)), keeper_exceptions.InvalidACL),
        (messages.Create("/e/child", b""), keeper_exceptions.NoChildrenForEphemerals),
        (messages.Create("/closed/child", b""), keeper_exceptions.NoAuth),
        (messages.Delete("/no"), keeper_exceptions.NoNode),
        (messages.Delete("/a"), keeper_exceptions.NotEmpty),
        (messages.Delete("/a/b", 3), keeper_exceptions.BadVersion),
        (messages.Delete("/"), keeper_exceptions.BadArguments),
        (messages.Delete("/zookeeper/quota"), keeper_exceptions.BadArguments),
        (messages.Delete("/closed/inside"), keeper_exceptions.NoAuth),
        (messages.SetData("/no", b""), keeper_exceptions.NoNode),
        (messages.SetData("/no/", b""), keeper_exceptions.BadArguments),
        (messages.SetData("/a", b"", 4), keeper_exceptions.BadVersion),
        (messages.SetData("/closed", b""), keeper_exceptions.NoAuth),
        (messages.SetAcl("/no", OPEN_ACL), keeper_exceptions.NoNode),
        (messages.SetAcl("/a", OPEN_ACL, 1), keeper_exceptions.BadVersion),
        (messages.SetAcl("/a", ()), keeper_exceptions.InvalidACL),
        (messages.SetAcl("/closed", OPEN_ACL), keeper_exceptions.NoAuth),
    ],
)
def test_refused_writes_change_nothing(request_: Any, error: type[ZooKeeperError]) -> None:
    tree = ZnodeTree()
    create(tree, "/a")
    create(tree, "/a/b")
    create(tree, "/e", flags=EPHEMERAL)
    create(tree, "/closed")
    create(tree, "/closed/inside")
    do(tree, messages.SetAcl("/closed", READ_ACL))
    before = images(tree)
    with pytest.raises(error):
        tree.prepare(request_, OTHER)
    assert images(tree) == before


@pytest.mark.parametrize("path", ["/", "/a", "/a/b", "/...", "/a/..b", "/.a", "/a b", "/ä", "/￯"])
def test_valid_paths(path: str) -> None:
    assert is_valid_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        "//",
        "/a/",
        "/a//b",
        "/.",
        "/..",
        "/a/./b",
        "/a/../b",
        "/\0",
        "/\x1f",
        "/\x7f",
        "/\ue000",
        "/\ufff0",
        "/😀",
    ],
)
def test_invalid_paths(path: str) -> None:
    assert not is_valid_path(path)


# -- sessions, ephemerals, containers


def test_closing_a_session_deletes_its_ephemerals_in_one_transaction() -> None:
    tree = ZnodeTree()
    tree.apply(CreateSessionTxn(7, 1000, b"secret"), 1, 0)
    create(tree, "/mine", flags=EPHEMERAL)
    create(tree, "/p")
    create(tree, "/p/mine-", flags=CreateMode.EPHEMERAL_SEQUENTIAL)
    create(tree, "/theirs", flags=EPHEMERAL, caller=OTHER)
    assert tree.stat("/mine").ephemeral_owner == 7
    assert tree.ephemeral_count == 3
    applied = tree.apply(CloseSessionTxn(7), tree.zxid + 1, 5)
    assert applied.events == [
        Event(EventType.NODE_DELETED, "/mine"),
        Event(EventType.NODE_DELETED, "/p/mine-0000000000"),
    ]
    assert tree.find("/mine") is None
    assert tree.stat("/p").pzxid == tree.zxid
    assert tree.find("/theirs") is not None
    assert tree.sessions == {}
    assert tree.last_session_id == 7


def test_an_ephemeral_deleted_by_hand_is_no_longer_its_sessions() -> None:
    tree = ZnodeTree()
    create(tree, "/mine", flags=EPHEMERAL)
    do(tree, messages.Delete("/mine"), OTHER)
    assert tree.ephemeral_count == 0


def test_containers_go_when_their_last_child_has_gone() -> None:
    tree = ZnodeTree()
    create(tree, "/box", flags=CreateMode.CONTAINER, op=OpCode.CREATE_CONTAINER)
    assert tree.stat("/box").ephemeral_owner == 0
    assert tree.prepare_delete_container("/box") is None, "it has never had a child"
    create(tree, "/box/thing")
    assert tree.prepare_delete_container("/box") is None
    do(tree, messages.Delete("/box/thing"))
    assert tree.prepare_delete_container("/box") == DeleteTxn("/box")


# -- multi


def test_a_multi_sees_its_own_operations() -> None:
    tree = ZnodeTree()
    create(tree, "/q")
    applied = do(
        tree,
        messages.Multi(
            (
                messages.Create("/q/s", b"", flags=SEQUENTIAL),
                messages.Create("/q/s", b"", flags=SEQUENTIAL),
                messages.SetData("/q", b"x", 0),
                messages.Check("/q", 1),
                messages.Delete("/q/s0000000000"),
                messages.Create("/t", b""),
                messages.Create("/t/u", b""),
                messages.Delete("/t/u"),
                messages.Delete("/t"),
            )
        ),
    )
    assert tree.zxid == 2
    assert tree.get_children("/q", ME)[0] == ["s0000000001"]
    assert [None if stat is None else stat.version for stat in applied.stats] == [0, 0, 1, None, None, 0, 0, None, None]
    assert all(stat.mzxid == 2 for stat in applied.stats if stat is not None)


def test_a_failed_multi_changes_nothing_and_says_which_operation_failed() -> None:
    tree = ZnodeTree()
    create(tree, "/a")
    before = images(tree)
    with pytest.raises(MultiFailed) as failed:
        do(
            tree,
            messages.Multi(
                (
                    messages.Create("/b", b""),
                    messages.SetData("/a", b"x"),
                    messages.Check("/a", 0),
                    messages.Delete("/b"),
                )
            ),
        )
    assert failed.value.codes == [
        ZooKeeperErrorCode.OK,
        ZooKeeperErrorCode.OK,
        ZooKeeperErrorCode.BAD_VERSION,
        ZooKeeperErrorCode.RUNTIME_INCONSISTENCY,
    ]
    assert images(tree) == before
    assert tree.zxid == 1


def test_a_multi_takes_the_acl_of_its_own_creates_into_account() -> None:
    tree = ZnodeTree()
    with pytest.raises(MultiFailed) as failed:
        do(tree, messages.Multi((messages.Create("/a", b"", READ_ACL), messages.Create("/a/b", b""))))
    assert failed.value.codes == [ZooKeeperErrorCode.OK, ZooKeeperErrorCode.NO_AUTH]


# -- access


def test_digest_identity_is_zookeepers() -> None:
    # What DigestAuthenticationProvider prints for these credentials.
    assert digest_identity(b"super:admin") == Identity("digest", "super:xQJmxLMiHGwaqBvst5y6rkB6HQs=")


@pytest.mark.parametrize(
    ("expression", "address", "expected"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.1.0.0/16", "10.1.255.9", True),
        ("10.1.0.0/16", "10.2.0.0", False),
        ("0.0.0.0/0", "1.2.3.4", True),
        ("10.1.2.3", "::1", False),
    ],
)
def test_ip_acls(expression: str, address: str, expected: bool) -> None:
    assert permits((Acl(1, "ip", expression),), 1, (Identity("ip", address),)) is expected


def test_auth_becomes_the_callers_own_identities() -> None:
    tree = ZnodeTree()
    me = Identity("digest", "me:abc=")
    caller = Caller(1, (Identity("ip", "127.0.0.1"), me))
    do(tree, messages.Create("/mine", b"", (Acl(31, "auth", ""), Acl(31, "auth", ""))), caller)
    assert tree.get_acl("/mine", caller)[0] == (Acl(31, "digest", "me:abc="),)
    with pytest.raises(keeper_exceptions.NoAuth):
        tree.get_data("/mine", ME)
    with pytest.raises(keeper_exceptions.NoAuth):
        tree.get_acl("/mine", ME)
    assert tree.get_data("/mine", Caller(2, (Identity("super", ""),)))[0] == b""


def test_digests_are_hidden_from_those_who_may_only_read() -> None:
    tree = ZnodeTree()
    caller = Caller(1, (Identity("digest", "me:abc="),))
    do(tree, messages.Create("/mine", b"", (Acl(31, "auth", ""), Acl(1, "world", "anyone"))), caller)
    assert tree.get_acl("/mine", ME)[0] == (Acl(31, "digest", "me:x"), Acl(1, "world", "anyone"))


# -- watches


def test_data_and_child_watches_fire_once() -> None:
    watches: Watches[str] = Watches()
    watches.add_data("/a", "d")
    watches.add_children("/a", "c")
    watches.add_children("/", "root")
    assert watches.fire([Event(EventType.NODE_CREATED, "/a")]) == [
        ("d", Event(EventType.NODE_CREATED, "/a")),
        ("root", Event(EventType.NODE_CHILDREN_CHANGED, "/")),
    ]
    assert watches.fire([Event(EventType.NODE_DATA_CHANGED, "/a")]) == []
    assert watches.fire([Event(EventType.NODE_CREATED, "/a/b")]) == [
        ("c", Event(EventType.NODE_CHILDREN_CHANGED, "/a"))
    ]
    assert len(watches) == 0


def test_a_deletion_is_told_once_to_a_watcher_of_data_and_children() -> None:
    watches: Watches[str] = Watches()
    watches.add_data("/a", "both")
    watches.add_children("/a", "both")
    watches.add_children("/a", "child only")
    assert watches.fire([Event(EventType.NODE_DELETED, "/a")]) == [
        ("both", Event(EventType.NODE_DELETED, "/a")),
        ("child only", Event(EventType.NODE_DELETED, "/a")),
    ]


def test_a_forgotten_watcher_hears_nothing() -> None:
    watches: Watches[str] = Watches()
    watches.add_data("/a", "x")
    watches.add_children("/a", "x")
    watches.add_data("/a", "y")
    in_one_go(watches.forget("x"))
    assert watches.fire([Event(EventType.NODE_DELETED, "/a")]) == [("y", Event(EventType.NODE_DELETED, "/a"))]


def test_watches_can_be_checked_and_removed_by_kind() -> None:
    watches: Watches[str] = Watches()
    watches.add_data("/a", "x")
    assert not watches.has("/a", WatcherType.CHILDREN, "x")
    assert not watches.remove("/a", WatcherType.CHILDREN, "x")
    assert watches.remove("/a", WatcherType.ANY, "x")
    assert not watches.remove("/a", WatcherType.ANY, "x")


def test_set_watches_tells_what_was_missed_and_sets_the_rest() -> None:
    tree = ZnodeTree()
    for name in ("old", "changed", "appeared", "parent"):
        create(tree, f"/{name}")
    seen = tree.zxid
    do(tree, messages.SetData("/changed", b"new"))
    create(tree, "/parent/child")
    watches: Watches[str] = Watches()
    request = messages.SetWatches(
        seen,
        data=("/old", "/changed", "/gone"),
        exists=("/appeared", "/not yet"),
        children=("/old", "/parent", "/gone"),
    )
    assert in_one_go(watches.set_again(request, tree, "x")) == [
        Event(EventType.NODE_DATA_CHANGED, "/changed"),
        Event(EventType.NODE_DELETED, "/gone"),
        Event(EventType.NODE_CREATED, "/appeared"),
        Event(EventType.NODE_CHILDREN_CHANGED, "/parent"),
        Event(EventType.NODE_DELETED, "/gone"),
    ]
    assert len(watches) == 3


# -- the model


class Model:
    """ZooKeeper's rules for data, versions, children, sequences and sessions, as plainly as possible."""

    def __init__(self) -> None:
        # path -> [data, version, creations of children, owner]
        self.nodes: dict[str, list[Any]] = {"/": [b"", 0, 1, 0]}

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return [p for p in self.nodes if p != "/" and p.startswith(prefix) and "/" not in p[len(prefix) :]]

    def do(self, request: Any, session: int) -> ZooKeeperErrorCode:
        if isinstance(request, messages.Multi):
            saved = {path: list(node) for path, node in self.nodes.items()}
            for operation in request.operations:
                if error := self.do(operation, session):
                    self.nodes = saved
                    return error
            return ZooKeeperErrorCode.OK
        path = request.path
        if isinstance(request, messages.Create):
            parent = self.nodes.get(path.rpartition("/")[0] or "/")
            if parent is None:
                return ZooKeeperErrorCode.NO_NODE
            if request.flags & SEQUENTIAL:
                path = f"{path}{parent[2]:010d}"
            if path in self.nodes:
                return ZooKeeperErrorCode.NODE_EXISTS
            if parent[3]:
                return ZooKeeperErrorCode.NO_CHILDREN_FOR_EPHEMERALS
            parent[2] += 1
            self.nodes[path] = [request.data, 0, 0, session if request.flags & EPHEMERAL else 0]
            return ZooKeeperErrorCode.OK
        node = self.nodes.get(path)
        if node is None:
            return ZooKeeperErrorCode.NO_NODE
        if request.version not in (-1, node[1]):
            return ZooKeeperErrorCode.BAD_VERSION
        if isinstance(request, messages.SetData):
            node[:2] = [request.data, node[1] + 1]
        elif isinstance(request, messages.Delete):
            if self.children(path):
                return ZooKeeperErrorCode.NOT_EMPTY
            del self.nodes[path]
        return ZooKeeperErrorCode.OK

    def close(self, session: int) -> None:
        self.nodes = {path: node for path, node in self.nodes.items() if node[3] != session}


paths = st.sampled_from(["/a", "/b", "/a/x", "/a/y", "/a/x/z", "/a/s0000000000", "/a/s0000000001"])
versions = st.sampled_from([-1, -1, 0, 1])
payloads = st.none() | st.binary(max_size=3)
creates = st.builds(
    lambda path, data, flags: messages.Create("/a/s" if flags & SEQUENTIAL else path, data, flags=flags),
    paths,
    payloads,
    st.sampled_from([0, 0, EPHEMERAL, SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL]),
)
single = st.one_of(
    creates,
    creates,
    st.builds(messages.Delete, paths, versions),
    st.builds(messages.SetData, paths, payloads, versions),
)
operations = single | st.builds(messages.Check, paths, versions)
requests = single | st.lists(operations, max_size=4).map(lambda ops: messages.Multi(tuple(ops)))
actions = st.lists(st.tuples(st.sampled_from([7, 8]), requests | st.just("close")), max_size=40)


def perform(tree: ZnodeTree, session: int, action: Any) -> tuple[ZooKeeperErrorCode | int, Txn | None]:
    """Does an action to the tree; the error, or the transaction that was applied."""
    if action == "close":
        txn: Txn = CloseSessionTxn(session)
        tree.apply(txn, tree.zxid + 1, tree.zxid)
        tree.apply(CreateSessionTxn(session, 1, b""), tree.zxid + 1, 0)
        return ZooKeeperErrorCode.OK, txn
    try:
        txn = tree.prepare(action, Caller(session, ()))
    except MultiFailed as failed:
        return next(code for code in failed.codes if code), None
    except ZooKeeperError as error:
        return error.code, None
    tree.apply(txn, tree.zxid + 1, tree.zxid)
    return ZooKeeperErrorCode.OK, txn


def with_sessions() -> ZnodeTree:
    tree = ZnodeTree()
    for session in (7, 8):
        tree.apply(CreateSessionTxn(session, 1, b""), tree.zxid + 1, 0)
    return tree


@given(actions)
def test_the_tree_does_what_the_model_does(script: list[tuple[int, Any]]) -> None:
    tree, model = with_sessions(), Model()
    for session, action in script:
        error, _ = perform(tree, session, action)
        if action == "close":
            model.close(session)
        else:
            assert error == model.do(action, session), action
        for path, (data, version, creations, owner) in model.nodes.items():
            stat = tree.stat(path)
            children = model.children(path)
            assert tree.get_data(path, ME)[0] == data
            assert (stat.version, stat.ephemeral_owner) == (version, owner)
            if path != "/":
                assert (stat.num_children, stat.cversion) == (len(children), 2 * creations - len(children))
        assert len(tree) == len(model.nodes) + 3
        assert tree.data_size_bytes == sum(len(image.path) + len(image.data or b"") for image in images(tree).values())


@given(actions)
def test_the_transactions_alone_make_the_same_tree(script: list[tuple[int, Any]]) -> None:
    tree = ZnodeTree()
    records: list[bytes] = []
    original_apply = tree.apply

    def recording_apply(txn: Txn, zxid: int, time_ms: int) -> Applied:
        records.append(encode_record(time_ms, txn))
        return original_apply(txn, zxid, time_ms)

    tree.apply = recording_apply
    for session in (7, 8):
        tree.apply(CreateSessionTxn(session, 1, b""), tree.zxid + 1, 0)
    for session, action in script:
        perform(tree, session, action)
    again = ZnodeTree()
    for zxid, time_ms, txn in decode_batch(encode_batch(1, records)):
        again.apply(txn, zxid, time_ms)
    assert images(again) == images(tree)
    assert (again.zxid, again.sessions, again.last_session_id) == (tree.zxid, tree.sessions, tree.last_session_id)
    assert again.data_size_bytes == tree.data_size_bytes


@settings(max_examples=60)
@given(actions, actions, st.randoms(use_true_random=False))
def test_a_capture_is_the_tree_of_its_moment(before: Any, after: Any, chance: random.Random) -> None:
    tree = with_sessions()
    for session, action in before:
        perform(tree, session, action)
    expected, zxid, sessions = images(tree), tree.zxid, dict(tree.sessions)
    capture = tree.capture()
    taken: list[NodeImage] = []
    for session, action in after:
        perform(tree, session, action)
        if chance.random() < 0.3:
            taken += capture.take(1)
    taken += drain(capture, 2)
    tree.release_capture()
    assert {image.path: image for image in taken} == expected
    assert len(taken) == len(expected)
    restored = ZnodeTree.restore(capture.zxid, capture.last_session_id, capture.sessions, taken)
    assert images(restored) == expected
    assert (restored.zxid, restored.sessions) == (zxid, sessions)
    assert restored.ephemeral_count == sum(1 for image in expected.values() if image.ephemeral_owner > 0)


def test_children_come_back_in_the_order_of_their_creation() -> None:
    tree = ZnodeTree()
    for name in ("c", "a", "b"):
        create(tree, f"/{name}")
    capture = tree.capture()
    restored = ZnodeTree.restore(capture.zxid, 0, {}, drain(capture, 2))
    assert restored.get_children("/", ME)[0] == ["zookeeper", "c", "a", "b"]


def test_images_that_make_no_tree_are_refused() -> None:
    tree = ZnodeTree()
    create(tree, "/a")
    create(tree, "/a/b")
    all_images = images(tree)
    for missing in ("/a", "/", "/zookeeper/config"):
        with pytest.raises(ValueError, match=r"no parent|is missing"):
            ZnodeTree.restore(2, 0, {}, [image for path, image in all_images.items() if path != missing])


def test_zxids_may_not_skip() -> None:
    tree = ZnodeTree()
    with pytest.raises(ValueError, match="cannot follow"):
        tree.apply(CreateSessionTxn(1, 1, b""), 2, 0)
