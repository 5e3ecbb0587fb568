import pytest

from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.small_slices import small_slices
from klamm.simulation.machine.world import World
from klamm.simulation.witnesses.state_checker import StateChecker
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment
from klamm.zookeeper.messages import OPEN_ACL
from klamm.zookeeper.server.transactions import CreateTxn, DeleteTxn, MultiTxn, SetDataTxn
from klamm.zookeeper.server.tree import ZnodeTree

STATE = "/brokers/topics/t/partitions/0/state"
FIRST = LeaderAndIsr(leader=1, leader_epoch=3, isr=(1, 2, 0), controller_epoch=2)


class Server:
    """A tree and the checker that is told of its transactions."""

    def __init__(self):
        self.tree = ZnodeTree()
        self.txns = []
        self.checker = StateChecker()
        self.checker.recovered(self.tree)
        for path in ("/brokers", "/brokers/topics"):
            self.create(path, None)
        self.create("/controller_epoch", b"1")
        self.set("/controller_epoch", b"2")
        self.create("/brokers/topics/t", TopicAssignment({0: (0, 1, 2)}).encode())
        for path in ("/brokers/topics/t/partitions", "/brokers/topics/t/partitions/0"):
            self.create(path, None)

    def create(self, path, data):
        self.apply(self.creation(path, data))

    def creation(self, path, data):
        parent = self.tree.stat(path.rpartition("/")[0] or "/")
        return CreateTxn(path, data, OPEN_ACL, 0, (parent.cversion + parent.num_children) // 2 + 1)

    def set(self, path, data):
        self.apply(SetDataTxn(path, data, 0))

    def forget(self, count):
        """ZooKeeper starts again without its last transactions."""
        del self.txns[-count:]
        self.restart()

    def restart(self):
        self.tree = ZnodeTree()
        for txn in self.txns:
            self.tree.apply(txn, self.tree.zxid + 1, 0)
        self.checker.recovered(self.tree)

    def die_within(self, txn, steps):
        """ZooKeeper dies when it has made so many of the transaction's changes, and starts again."""
        with small_slices():
            applying = self.tree.apply_steps(txn, self.tree.zxid + 1, 0)
            for _ in range(steps):
                next(applying)
        self.txns.append(txn)
        self.restart()

    def apply(self, txn, session_id=None):
        self.txns.append(txn)
        self.tree.apply(txn, self.tree.zxid + 1, 0)
        self.checker.changed(self.tree, repr(txn), session_id)

    def register(self, broker_id):
        path = f"/brokers/ids/{broker_id}"
        if self.checker.exists(path):
            self.apply(DeleteTxn(path))
        self.create(path, b"")

    def elect(self, session_id):
        if self.checker.exists("/controller"):
            self.apply(DeleteTxn("/controller"))
        self.apply(MultiTxn((CreateTxn("/controller", b"", OPEN_ACL, session_id, 0),)), session_id)


@pytest.fixture
def server():
    server = Server()
    server.create(STATE, FIRST.encode())
    return server


@pytest.mark.parametrize(
    "state",
    [
        LeaderAndIsr(1, 3, (1,), 2),
        LeaderAndIsr(2, 4, (2, 0), 2),
        LeaderAndIsr(-1, 4, (1, 2, 0), 2),
        LeaderAndIsr(1, 4, (1, 2, 0), 2),
    ],
)
def test_what_controllers_do(server, state):
    server.set(STATE, state.encode())
    assert server.checker.partition("t", 0) == state
    assert server.checker.leader_of("t", 0, 3) == 1
    assert server.checker.leader_of("t", 0, 4) == (
        state.leader if state.leader_epoch == 4 and state.leader >= 0 else None
    )


@pytest.mark.parametrize(
    "state, broken",
    [
        (LeaderAndIsr(1, 4, (), 2), "the ISR is empty, or has a replica twice"),
        (LeaderAndIsr(1, 4, (1, 1), 2), "the ISR is empty, or has a replica twice"),
        (LeaderAndIsr(1, 4, (1, 7), 2), "not a subset of the replicas"),
        (LeaderAndIsr(0, 4, (1, 2), 2), "the leader is not in sync"),
        (LeaderAndIsr(1, 2, (1, 2), 2), "an epoch went back"),
        (LeaderAndIsr(1, 4, (1, 2), 1), "an epoch went back"),
        (LeaderAndIsr(2, 3, (1, 2), 2), "another leader has the same epoch"),
        (LeaderAndIsr(-1, 3, (1, 2), 2), "another leader has the same epoch"),
        (LeaderAndIsr(1, 4, (1, 2), 3), "no controller with this epoch"),
    ],
)
def test_what_no_controller_may_do(server, state, broken):
    with pytest.raises(SimulationFailure, match=broken):
        server.set(STATE, state.encode())


def test_a_replica_that_was_not_in_sync_may_not_lead(server):
    server.set(STATE, LeaderAndIsr(1, 3, (1, 2), 2).encode())
    with pytest.raises(SimulationFailure, match="was not in sync"):
        server.set(STATE, LeaderAndIsr(0, 4, (0,), 2).encode())


@pytest.mark.parametrize("leader", [1, -1])
def test_nobody_but_the_leader_takes_a_replica_in(server, leader):
    server.set(STATE, LeaderAndIsr(1, 3, (1, 2), 2).encode())
    server.set(STATE, LeaderAndIsr(1, 3, (1, 2, 0), 2).encode())
    server.set(STATE, LeaderAndIsr(1, 3, (1, 2), 2).encode())
    with pytest.raises(SimulationFailure, match="joined the ISR without its leader"):
        server.set(STATE, LeaderAndIsr(leader, 4, (1, 2, 0), 2).encode())


def test_transactions_of_several_operations_are_looked_into(server):
    with pytest.raises(SimulationFailure, match="an epoch went back"):
        server.apply(MultiTxn((SetDataTxn(STATE, LeaderAndIsr(1, 0, (1,), 2).encode(), 0),)))


def test_a_controller_of_the_past_writes_nothing(server):
    server.create("/admin", None)
    for path in ("/admin/delete_topics", "/admin/delete_topics/t"):
        server.create(path, None)
    deletions = [DeleteTxn("/admin/delete_topics/t"), DeleteTxn(STATE)]
    election = SetDataTxn(STATE, LeaderAndIsr(2, 4, (2,), 2).encode(), 0)
    server.elect(1)
    server.elect(2)
    for txn in (MultiTxn((election,)), *deletions):
        with pytest.raises(SimulationFailure, match="session 0x1, in which a former controller was elected, writes"):
            server.apply(txn, 1)
        if txn is deletions[1]:
            server.create(STATE, FIRST.encode())
    # As a leader before 2.7 it may change an ISR; and it may be elected again. Operators are no controllers.
    server.apply(SetDataTxn(STATE, LeaderAndIsr(2, 4, (2,), 2).encode(), 0), 2)
    server.apply(SetDataTxn(STATE, LeaderAndIsr(2, 4, (2, 1), 2).encode(), 0), 1)
    server.elect(1)
    server.apply(SetDataTxn(STATE, LeaderAndIsr(1, 5, (1, 2), 2).encode(), 0), 1)
    server.apply(DeleteTxn(STATE), 7)


def test_an_election_that_is_forgotten_ends_no_office(server):
    server.elect(1)
    server.elect(2)
    # ZooKeeper dies, and has not kept the end of the first office nor the second election.
    server.forget(2)
    server.apply(SetDataTxn(STATE, LeaderAndIsr(2, 4, (2,), 2).encode(), 0), 1)
    server.elect(2)
    server.forget(1)
    # The first office has ended, and the second has not begun.
    server.elect(1)
    server.apply(DeleteTxn(STATE), 1)


def test_a_mark_for_deletion_goes_with_its_topic(server):
    mark = "/admin/delete_topics/t"
    for path in ("/admin", "/admin/delete_topics", mark):
        server.create(path, None)
    with pytest.raises(SimulationFailure, match="topic t loses its mark for deletion before it is deleted"):
        server.apply(DeleteTxn(mark))
    # The mark of a topic that was not there says nothing of the next one.
    server.create("/admin/delete_topics/u", None)
    server.create("/brokers/topics/u", None)
    server.apply(DeleteTxn("/admin/delete_topics/u"))
    server.create("/admin/delete_topics/u", None)
    server.apply(MultiTxn((DeleteTxn("/admin/delete_topics/u"), DeleteTxn("/brokers/topics/u"))))


def test_a_replica_that_has_bounced_leaves_the_isr(server):
    for path in ("/brokers/ids",):
        server.create(path, None)
    for broker_id in (0, 1, 2):
        server.register(broker_id)
    server.set(STATE, LeaderAndIsr(1, 3, (1, 2), 2).encode())
    # The first registration of each counts like any other, and 0 has left since.
    assert server.checker.bounced() == []
    server.register(2)
    assert server.checker.bounced() == [(("t", 0), 2)]
    server.set(STATE, LeaderAndIsr(1, 4, (1, 2), 2).encode())
    assert server.checker.bounced() == [(("t", 0), 2)]
    server.set(STATE, LeaderAndIsr(1, 4, (1,), 2).encode())
    assert server.checker.bounced() == []
    # Of several that have bounced, or are gone, one stays.
    server.set(STATE, LeaderAndIsr(1, 4, (1, 2), 2).encode())
    server.register(2)
    assert server.checker.bounced() != []
    server.apply(DeleteTxn("/brokers/ids/1"))
    assert server.checker.bounced() == []
    server.register(0)
    assert server.checker.bounced() == []


@pytest.mark.parametrize("is_other_process", [False, True])
def test_a_leader_that_goes_on_leading_in_another_session_has_not_bounced(server, is_other_process):
    server.create("/brokers/ids", None)
    for broker_id in (1, 2):
        server.checker.begins(broker_id)
        server.register(broker_id)
    server.set(STATE, LeaderAndIsr(1, 3, (1, 2), 2).encode())
    server.apply(DeleteTxn("/brokers/ids/1"))
    if is_other_process:
        server.checker.begins(1)
    server.apply(CreateTxn("/brokers/ids/1", b"", OPEN_ACL, 7, 0))
    grown = SetDataTxn(STATE, LeaderAndIsr(1, 3, (1, 2, 0), 2).encode(), 0)
    shrunk = SetDataTxn(STATE, LeaderAndIsr(1, 3, (1, 2), 2).encode(), 0)
    server.apply(grown, session_id=8)
    assert server.checker.bounced() == [(("t", 0), 1)]
    server.apply(shrunk, session_id=7)
    assert server.checker.bounced() == ([(("t", 0), 1)] if is_other_process else [])


def test_the_epoch_of_controllers_goes_up_by_one(server):
    server.set("/controller_epoch", b"3")
    for epoch in (b"2", b"5"):
        with pytest.raises(SimulationFailure, match="the controller's epoch went from 3"):
            server.set("/controller_epoch", epoch)


@pytest.mark.parametrize("state", [LeaderAndIsr(2, 4, (1, 2, 0), 2), LeaderAndIsr(1, 4, (1, 2, 0), 2)])
def test_a_controller_whose_epoch_is_over_elects_nobody(server, state):
    server.set("/controller_epoch", b"3")
    with pytest.raises(SimulationFailure, match="the epoch of this controller is over"):
        server.set(STATE, state.encode())


def test_a_leader_of_an_older_protocol_writes_the_isr_with_the_controller_epoch_that_it_knows(server):
    server.set("/controller_epoch", b"3")
    server.set(STATE, LeaderAndIsr(1, 3, (1, 2), 2).encode())
    assert server.checker.partition("t", 0).isr == (1, 2)


def test_a_topic_made_again_begins_again(server):
    server.apply(DeleteTxn(STATE))
    assert server.checker.partitions() == {}
    server.create(STATE, LeaderAndIsr(0, 0, (0,), 2).encode())
    assert server.checker.leader_of("t", 0, 0) == 0
    assert server.checker.leader_of("t", 0, 3) is None


def test_a_server_may_forget_what_it_never_showed(server):
    forgotten = Server()
    forgotten.create(STATE, FIRST.encode())
    server.set(STATE, LeaderAndIsr(2, 4, (2,), 2).encode())
    server.checker.recovered(forgotten.tree)
    assert server.checker.partition("t", 0) == FIRST
    assert server.checker.leader_of("t", 0, 4) is None
    forgotten.checker = server.checker
    forgotten.set(STATE, LeaderAndIsr(0, 4, (0,), 2).encode())
    assert server.checker.leader_of("t", 0, 4) == 0


def test_a_server_that_starts_again_knows_what_its_last_transactions_have_not_changed(server):
    lost = Server()
    lost.create("/other", None)
    lost.create("/another", None)
    with pytest.raises(SimulationFailure, match=r"0 had the children \['state'\] at .*; a ZooKeeper that .* has \[\]"):
        server.checker.recovered(lost.tree)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_server_that_dies_within_a_transaction_has_applied_it_when_it_starts_again(server, steps):
    server.create("/brokers/ids", None)
    server.register(1)
    server.create("/gone", None)
    server.die_within(
        MultiTxn(
            (
                DeleteTxn("/gone"),
                SetDataTxn(STATE, LeaderAndIsr(2, 4, (2, 1), 2).encode(), 1),
                SetDataTxn("/brokers/topics/t", TopicAssignment({0: (2, 1)}).encode(), 1),
            )
        ),
        steps,
    )
    assert server.checker.leader_of("t", 0, 4) == 2


def test_a_transaction_within_which_the_server_died_is_checked(server):
    wrong = MultiTxn((SetDataTxn("/brokers", b"", 1), SetDataTxn(STATE, LeaderAndIsr(2, 3, (2, 1), 2).encode(), 1)))
    with pytest.raises(SimulationFailure, match="another leader has the same epoch"):
        server.die_within(wrong, 1)


def test_a_broker_registered_in_a_transaction_within_which_the_server_died_has_bounced(server):
    server.create("/brokers/ids", None)
    server.register(1)
    assert (("t", 0), 2) not in server.checker.bounced()
    server.die_within(MultiTxn((server.creation("/brokers/ids/2", b""), SetDataTxn("/brokers", b"", 1))), 1)
    assert (("t", 0), 2) in server.checker.bounced()


def test_what_a_transaction_within_which_the_server_died_has_not_changed_is_there(server):
    server.create("/other", b"old")
    lost = Server()
    lost.create(STATE, FIRST.encode())
    lost.create("/other", b"new")
    lost.create("/another", None)
    with pytest.raises(SimulationFailure, match="/other was b'old'"):
        server.checker.recovered(lost.tree)


@pytest.mark.parametrize(
    ("acknowledged", "instead", "found"),
    [
        (CreateTxn("/p/kept", b"", OPEN_ACL, 0, 3), MultiTxn(()), r"/p had the children .*'kept'\] .* has \['early'\]"),
        (CreateTxn("/p/e", b"", OPEN_ACL, 7, 3), CreateTxn("/p/e", b"", OPEN_ACL, 8, 3), "/p/e was b'' in version 0"),
        (DeleteTxn("/p/early"), MultiTxn(()), r"/p had the children \[\] at .* has \['early'\]"),
        (SetDataTxn("/p", b"new", 1), MultiTxn(()), r"/p was b'new' in version 1 .* has \(b'', 0\)"),
        (
            MultiTxn((DeleteTxn("/p/early"), CreateTxn("/p/early", b"", OPEN_ACL, 0, 3))),
            MultiTxn(()),
            r"/p had the children \['early'\] at",
        ),
    ],
)
def test_a_transaction_within_which_the_server_died_excuses_no_loss(server, acknowledged, instead, found):
    for path in ("/p", "/p/early", "/p/gone"):
        server.create(path, b"")
    server.apply(acknowledged)
    applied = server.txns[:]
    server.txns[-1] = instead
    deletion = MultiTxn((DeleteTxn("/p/gone"), SetDataTxn("/brokers", b"", 1)))
    with pytest.raises(SimulationFailure, match=found):
        server.die_within(deletion, 1)
    server.txns = [*applied, deletion]
    server.restart()


def test_the_controller_epoch_of_a_transaction_within_which_the_server_died_is_checked(server):
    with pytest.raises(SimulationFailure, match="the controller's epoch went from 2 to 4"):
        server.die_within(MultiTxn((SetDataTxn("/controller_epoch", b"4", 2), SetDataTxn("/brokers", b"", 1))), 1)


def test_the_mark_that_a_transaction_takes_within_which_the_server_died_is_missed(server):
    for path in ("/admin", "/admin/delete_topics", "/admin/delete_topics/t"):
        server.create(path, None)
    with pytest.raises(SimulationFailure, match="topic t loses its mark for deletion before it is deleted"):
        server.die_within(MultiTxn((DeleteTxn("/admin/delete_topics/t"), SetDataTxn("/brokers", b"", 1))), 1)


def test_a_configuration_set_within_a_transaction_in_which_the_server_died_counts(server):
    for path in ("/config", "/config/topics"):
        server.create(path, None)
    config = b'{"version":1,"config":{"unclean.leader.election.enable":"true"}}'
    server.die_within(MultiTxn((server.creation("/config/topics/t", config), SetDataTxn("/brokers", b"", 1))), 1)
    assert server.checker.allows_unclean("t")


def test_the_checker_of_a_cluster_knows_the_processes_of_brokers(monkeypatch):
    world = World(1)
    begun = []
    monkeypatch.setattr(StateChecker, "begins", lambda _, broker_id: begun.append(broker_id))

    async def scenario():
        cluster = SimulatedCluster(world, brokers=1)
        await cluster.start()
        broker = cluster.brokers[0]
        broker.kill()
        broker.start()
        await broker.until_up()
        await cluster.close()

    world.run(scenario(), time_limit_s=600)
    assert begun == [0, 0]
