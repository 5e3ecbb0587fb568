"""Records: what is in one, how it reads, and that old ones make room."""

from klamm.controller.state_change_log import NO_REPLICA, StateChange, StateChangeLog
from klamm.controller.states import PartitionState, ReplicaState
from klamm.znodes.topics import LeaderAndIsr

T0 = ("t", 0)


def test_the_newest_changes_are_kept_with_their_times() -> None:
    times = iter((10, 20, 30))
    log = StateChangeLog(lambda: next(times), capacity=2)
    state = LeaderAndIsr(2, 7, (2, 1), 5)
    log.record(5, T0, NO_REPLICA, PartitionState.NON_EXISTENT, PartitionState.NEW)
    log.record(5, T0, NO_REPLICA, PartitionState.NEW, PartitionState.ONLINE, state)
    log.record(6, T0, 3, ReplicaState.NON_EXISTENT, ReplicaState.NEW, None, "it is the leader already")
    online, refused = log.changes()
    assert online == StateChange(20, 5, T0, NO_REPLICA, PartitionState.NEW, PartitionState.ONLINE, state, "")
    assert str(online) == "[epoch 5] t-0 NEW -> ONLINE, leader 2 epoch 7 isr 2,1"
    assert refused.time_ms == 30
    assert str(refused) == "[epoch 6] replica 3 of t-0 NON_EXISTENT -> NEW: it is the leader already"
