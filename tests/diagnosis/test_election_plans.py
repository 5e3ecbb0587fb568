"""Which partitions `klamm elect` elects, and what an unclean election loses."""

import pytest

from klamm.diagnosis.cluster_view import BrokerView, ClusterView, PartitionView
from klamm.diagnosis.election_plans import (
    MISSING,
    PreferredPlan,
    Scope,
    batches,
    grown_losses,
    lagging,
    leaderless,
    parse_partitions,
    preferred_lines,
    preferred_plan,
    unclean_lines,
    unclean_plan,
    unsettled,
    without_live_leader,
)
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition

P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))


def view(*partitions: str, live: str = "123", offline: tuple[int, ...] = ()) -> ClusterView:
    """Partitions of t as "leader replicas isr [epoch]", with "-" for no leader and "." for an empty ISR; brokers have
    one digit each."""
    found = {}
    for number, text in enumerate(partitions):
        leader, replicas, isr, *epoch = text.split()
        found[TopicPartition("t", number)] = PartitionView(
            -1 if leader == "-" else int(leader),
            int(epoch[0]) if epoch else 5,
            tuple(map(int, replicas)),
            tuple(map(int, isr.strip("."))),
            offline=offline,
        )
    return ClusterView({int(each): BrokerView(int(each), ("h", 9092)) for each in live}, found)


# -- the partitions ---------------------------------------------------------------------------------------------------


def test_partitions_of_a_file() -> None:
    text = '{"partitions": [{"topic": "t", "partition": 1}, {"topic": "t", "partition": 0}], "version": 1}'
    assert parse_partitions(text) == [P0, P1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "Replica election data is not JSON"),
        (b"\xff\xfe", "Replica election data is not JSON"),
        ("[]", 'missing "partitions" field'),
        ("{}", 'missing "partitions" field'),
        ('{"partitions": []}', "Replica election data is empty"),
        ('{"partitions": [{"topic": "t"}]}', r'has {"topic": "t"}, which is not {"topic": "t", "partition": 0}'),
        ('{"partitions": [{"topic": "t", "partition": true}]}', "which is not"),
        (
            '{"partitions": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 0}]}',
            "contains duplicate partitions: t-0",
        ),
    ],
)
def test_a_file_that_is_wrong(text: str | bytes, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        parse_partitions(text)


def test_the_scope_of_a_command() -> None:
    cluster = view("1 12 12", "2 21 21")
    assert (Scope().topics, Scope().of(cluster)) == (None, [P0, P1])
    assert (Scope("t").topics, Scope("t").of(cluster)) == (["t"], [P0, P1])
    named = Scope(partitions=[P1, P3])
    assert (named.topics, named.of(cluster), named.is_open) == (["t"], [P1, P3], False)
    with pytest.raises(ToolError, match="Topic 'u' does not exist"):
        Scope("u").of(cluster)


# -- preferred leaders ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "live", "offline", "plan"),
    [
        ("1 12 12", "12", (), PreferredPlan(not_needed=[P0])),
        ("2 12 12", "12", (), PreferredPlan([P0])),
        ("- 12 12", "1", (), PreferredPlan([P0])),
        (
            "2 12 2",
            "2",
            (),
            PreferredPlan(refused={P0: "PREFERRED_LEADER_NOT_AVAILABLE: the ISR is 2; broker 1 is not live"}),
        ),
        (
            "2 12 2",
            "12",
            (),
            PreferredPlan(
                refused={P0: "PREFERRED_LEADER_NOT_AVAILABLE: the ISR is 2; broker 1 is live, but not in the ISR"}
            ),
        ),
        (
            "2 12 12",
            "2",
            (),
            PreferredPlan(refused={P0: "PREFERRED_LEADER_NOT_AVAILABLE: the ISR is 1,2; broker 1 is not live"}),
        ),
        (
            "2 12 12",
            "12",
            (1,),
            PreferredPlan(
                refused={
                    P0: "PREFERRED_LEADER_NOT_AVAILABLE: the ISR is 1,2; broker 1 is live, but its replica is offline:"
                    " its log directory has failed, or the controller has not used the replica since the broker came"
                    " back"
                }
            ),
        ),
    ],
)
def test_only_a_live_preferred_replica_in_the_isr_is_elected(
    partition: str, live: str, offline: tuple[int, ...], plan: PreferredPlan
) -> None:
    assert preferred_plan(view(partition, live=live, offline=offline), [P0]) == plan


def test_a_partition_that_does_not_exist_is_refused() -> None:
    assert preferred_plan(view("1 12 12"), [P3]) == PreferredPlan(refused={P3: MISSING})


def test_how_far_a_replica_that_is_out_of_sync_is_behind() -> None:
    refused = preferred_plan(view("2 12 2"), [P0], log_ends={P0: {1: 70, 2: 100}}).refused
    assert refused == {P0: "PREFERRED_LEADER_NOT_AVAILABLE: the ISR is 2; broker 1 is 30 records behind the leader"}


def test_a_preferred_replica_whose_broker_hangs_is_not_elected() -> None:
    cluster = view("2 12 12")
    refused = "PREFERRED_LEADER_NOT_AVAILABLE: broker 1 does not answer: no answer"
    assert preferred_plan(cluster, [P0], log_ends={P0: {1: SILENT, 2: 100}}) == PreferredPlan(refused={P0: refused})
    forbidden = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert preferred_plan(cluster, [P0], log_ends={P0: {1: forbidden}}) == PreferredPlan([P0])


def test_a_preferred_replica_that_lags_waits() -> None:
    ends = {P0: {1: 89, 2: 100}, P1: {1: 90, 2: 100}, P2: {2: 100}}
    behind = lagging(view("2 12 12", "2 12 12", "2 12 12"), [P0, P1, P2], ends, 10)
    assert behind == {P0: "broker 1 is 11 records behind the leader, and --max-lag allows 10"}


@pytest.mark.parametrize(
    ("now", "waits"),
    [
        ("1 123 123 6", None),
        # Another election followed.
        ("3 123 123 7", None),
        ("2 123 123 5", "is still led by broker 2"),
        ("- 123 123 6", "has no leader"),
        ("1 123 12 6", "had the ISR 1,2,3 and has 1,2: broker 3 is live, but not in the ISR"),
        # A reassignment has removed broker 3.
        ("1 12 12 6", None),
    ],
)
def test_a_batch_has_settled_when_leaders_are_new_and_isrs_are_as_before(now: str, waits: str | None) -> None:
    assert unsettled(view("2 123 123 5"), view(now), [P0]) == ({} if waits is None else {P0: waits})


def test_a_topic_that_is_deleted_meanwhile_has_settled() -> None:
    assert unsettled(view("2 12 12"), view(), [P0]) == {}
    assert without_live_leader([P0], view()) == {}
    assert without_live_leader([P0, P1, P2], view("1 12 1", "- 12 1", "9 92 9")) == {
        P1: "has no live leader",
        P2: "has no live leader",
    }


def test_batches() -> None:
    assert list(batches([P0, P1, P2], 2)) == [[P0, P1], [P2]]
    assert list(batches([], 2)) == []


def test_a_plan_is_shown_in_lines() -> None:
    cluster = view("2 12 12", "2 21 12", "- 31 31")
    assert list(preferred_lines(cluster, [P0, P2], 1)) == [
        "t-0: leader 2 -> 1",
        "t-2: leader none -> 3",
        "Broker 1 leads 0 -> 1 partitions of these topics",
        "Broker 2 leads 2 -> 1 partitions of these topics",
        "Broker 3 leads 0 -> 1 partitions of these topics",
        "2 partitions in 2 batches; each waits until the one before has settled",
    ]
    many = view(*["2 12 12"] * 25)
    lines = list(preferred_lines(many, list(many.partitions), 100))
    assert lines[20:] == [
        "... and 5 more partitions",
        "Broker 1 leads 0 -> 25 partitions of these topics",
        "Broker 2 leads 25 -> 0 partitions of these topics",
    ]


# -- unclean elections ------------------------------------------------------------------------------------------------

DEAD = "broker 1 is not live"
UNKNOWN = f"the loss is unknown: {DEAD}, and what only it has is lost"
STORAGE = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
SILENT = KafkaError(ErrorCode.NETWORK_EXCEPTION, "no answer")


@pytest.mark.parametrize(
    ("log_ends", "committed", "line"),
    [
        ({2: 90, 3: 90}, None, f"2, whose log ends at offset 90; {UNKNOWN}"),
        (
            {2: 90, 3: 120},
            None,
            "2, whose log ends at offset 90; at least 30 records are lost: the log of broker 3 goes further;"
            f" {DEAD}, and what only it has is lost too",
        ),
        (
            {2: 90, 3: 120},
            (150, "g"),
            "2, whose log ends at offset 90; at least 60 records are lost: group g has committed a later offset;"
            f" {DEAD}, and what only it has is lost too",
        ),
        # The ISR's log can be asked: its broker is live, and the controller does not know yet.
        (
            {1: 100, 2: 90, 3: 90},
            None,
            "2, whose log ends at offset 90; 10 records are lost: the log of broker 1 goes further",
        ),
        ({1: 90, 2: 90}, None, "2, whose log ends at offset 90; no loss is known"),
        ({2: SILENT}, (150, "g"), f"2, whose log ends at an unknown offset; {UNKNOWN}"),
        # The log directory of broker 2 is offline.
        ({2: STORAGE, 3: 80}, None, f"3, whose log ends at offset 80; {UNKNOWN}"),
    ],
)
def test_the_loss_of_an_unclean_election(
    log_ends: dict[int, int | KafkaError], committed: tuple[int, str] | None, line: str
) -> None:
    commits = {} if committed is None else {P0: committed}
    plan = unclean_plan(view("- 123 1", live="23"), [P0], {P0: log_ends}, commits)
    assert list(unclean_lines(plan)) == [f"t-0: leader none -> {line}"]


def test_without_an_isr_any_replica_may_have_more() -> None:
    plan = unclean_plan(view("- 213 .", live="23"), [P0], {P0: {2: 90, 3: 90}})
    assert list(unclean_lines(plan)) == [f"t-0: leader none -> 2, whose log ends at offset 90; {UNKNOWN}"]


def test_a_replica_of_the_isr_that_is_back_loses_nothing() -> None:
    plan = unclean_plan(view("- 213 1"), [P0], {P0: {1: 100, 2: 90, 3: 90}})
    assert list(unclean_lines(plan)) == [
        "t-0: leader none -> 1, whose log ends at offset 100; no record is lost, as it is in the ISR"
    ]


def test_only_partitions_without_a_live_leader_need_an_unclean_election() -> None:
    # Broker 1, which led two of them, is not live.
    assert leaderless(view("1 12 12", "- 12 1", "- 1 1", "2 12 2", live="2"), [P0, P1, P2, P3]) == [P0, P1, P2]
    plan = unclean_plan(view("2 12 12", "- 12 1", "- 1 1", live="2"), [P0, P1, P2, P3])
    assert (plan.not_needed, list(plan.due)) == ([P0], [P1])
    assert plan.refused == {P2: f"ELIGIBLE_LEADERS_NOT_AVAILABLE: no replica can lead: {DEAD}", P3: MISSING}


def test_a_loss_that_grows_while_the_operator_reads_the_plan_is_noticed() -> None:
    shown = unclean_plan(view("- 123 1", live="23"), [P0], {P0: {2: 90, 3: 80}})
    assert grown_losses(shown, shown) == {}
    other = unclean_plan(view("- 123 1", live="3"), [P0], {P0: {3: 80}}, {P0: (90, "readers")})
    assert "10 records are lost: group readers has committed a later offset" in grown_losses(shown, other)[P0]
    assert grown_losses(shown, unclean_plan(view("- 123 1", live="23"), [P0])).keys() == {P0}, "the end is unknown now"
    assert grown_losses(shown, unclean_plan(view("- 123 1"), [P0], {P0: {1: 100, 2: 90, 3: 80}})) == {}, "a clean one"
    assert grown_losses(shown, unclean_plan(view("1 123 1"), [P0])) == {}, "nothing is due"
