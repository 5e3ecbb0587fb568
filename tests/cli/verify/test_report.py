"""What `klamm verify replicas` prints, from values."""

from klamm.cli.verify.report import Outcome, Report, difference_line, lag_line, report_json, summary_lines
from klamm.client.verification.compare import Difference, DifferenceKind
from klamm.client.verification.partition import PartitionCheck, SetAside
from klamm.protocol.vocabulary import TopicPartition


def checked(number: int, *differences: Difference, replicas: tuple[int, ...] = (1, 2, 3)) -> PartitionCheck:
    """A partition that was verified from offset 0 to 20."""
    check = PartitionCheck(TopicPartition("t", number), replicas, 0, target=20)
    check.position, check.batches, check.size_bytes = 20, 4, 3 * 1024
    check.high_watermarks = dict.fromkeys(replicas, 20)
    for difference in differences:
        check.differences.add(difference)
    return check


def test_the_lines_of_differences() -> None:
    lines = {
        Difference(
            DifferenceKind.MISSING, 5, 9, 2, 1
        ): "partition t-0: replica 2 has no batch for offsets 5 to 9, replica 1 has",
        Difference(
            DifferenceKind.BOUNDARIES, 5, 9, 2, 1, 12, 9
        ): "partition t-0: replica 1's offset 9 doesn't match replica 2's offset 12",
        Difference(
            DifferenceKind.LEADER_EPOCH, 5, 9, 2, 1, 3, 4
        ): "partition t-0 has unmatched leader epoch at offset 9; replica 1's epoch 4; replica 2's epoch 3",
        Difference(
            DifferenceKind.CHECKSUM, 5, 9, 2, 1, 77, 88
        ): "partition t-0 has unmatched checksum at offset 9; replica 1's checksum 88; replica 2's checksum 77",
        Difference(
            DifferenceKind.RECORDS, 5, 5, 2, 1
        ): "partition t-0: replica 2 has other records than replica 1 within offset 5",
        Difference(
            DifferenceKind.CORRUPT, 5, 9, 2, 2, 77, 88
        ): "partition t-0: replica 2 has a corrupt batch at offsets 5 to 9; its checksum is 77, and says 88",
        Difference(
            DifferenceKind.CORRUPT, 5, 9, 2, 2
        ): "partition t-0: replica 2 has records that cannot be read at offsets 5 to 9",
    }
    for difference, line in lines.items():
        assert difference_line(checked(0), difference) == line


def test_the_summary_of_equal_replicas_is_two_lines() -> None:
    assert list(summary_lines(Report([checked(0), checked(1)]))) == [
        "Verified 2 partitions on 6 replicas: 8 batches, 6.0 KB read.",
        "All replicas are equal.",
    ]


def test_the_summary_names_each_difference_and_says_the_same_of_many_partitions_once() -> None:
    checks = [checked(number) for number in range(7)]
    for check in checks:
        check.set_aside[3] = SetAside(0, "broker 3 is not in the cluster")
    report = Report(
        [
            *checks,
            checked(
                8, Difference(DifferenceKind.MISSING, 5, 9, 2, 1), Difference(DifferenceKind.CHECKSUM, 15, 19, 3, 1)
            ),
        ]
    )
    assert list(summary_lines(report)) == [
        "t-0, t-1, t-2, t-3, t-4 and 2 more: replica 3 was not verified: broker 3 is not in the cluster",
        "t-8: 2 batches differ; replica 2 has no batch for offsets 5 to 9, replica 3 has another checksum at offsets"
        " 15 to 19",
        "Verified 8 partitions on 17 replicas: 32 batches, 24.0 KB read.",
        "1 partition differs, 7 partitions were verified only in part.",
    ]
    assert report.outcome is Outcome.DIFFERENT
    verdicts = [each["verdict"] for each in report_json(report)["partitions"]]
    assert verdicts == ["partly-equal"] * 7 + ["different"]


def test_a_partition_with_one_answer_left_or_none_could_not_be_verified() -> None:
    alone, silent, gone = checked(0), checked(1), checked(2)
    for replica in (2, 3):
        alone.put_aside(replica, "refused")
    silent.give_up("no offset to begin at is known")
    gone.forget("the topic was deleted")
    report = Report([alone, silent, gone], [("u", "the brokers answer TOPIC_AUTHORIZATION_FAILED (29) for topic u")])
    *_, skipped, verified, verdict = summary_lines(report)
    assert skipped == "the brokers answer TOPIC_AUTHORIZATION_FAILED (29) for topic u"
    assert verified == "Verified 0 partitions on 0 replicas: 0 batches, 0 bytes read."
    assert verdict == "0 partitions differ, 3 partitions could not be verified, 1 topic could not be verified."
    assert [each["verdict"] for each in report_json(report)["partitions"]] == ["unverified", "unverified", "gone"]
    for each in (report, Report([gone]), Report([checked(0)], report.skipped), Report([])):
        assert each.outcome is Outcome.UNVERIFIED
        assert (report_json(each)["outcome"], report_json(each)["is_fine"]) == ("unverified", False)


def test_a_replica_that_lags_is_verified_only_in_part() -> None:
    check = checked(0, replicas=(1, 2))
    check.high_watermarks[2] = 15
    check.set_aside[2] = SetAside(15, "its high watermark is 15", is_lag=True)
    report = Report([check])
    assert list(summary_lines(report)) == [
        "t-0: replica 2 was verified only to offset 15: it is 5 offsets behind",
        "Verified 1 partition on 2 replicas: 4 batches, 3.0 KB read.",
        "The greatest lag is 5 offsets: replica 2 of t-0.",
        "0 partitions differ, 1 partition was verified only in part.",
    ]
    greatest = {"topic": "t", "partition": 0, "replica": 2, "lag": 5}
    assert report_json(report)["greatest_lag"] == greatest
    assert report_json(Report([checked(0)]))["greatest_lag"] is None
    assert report.outcome is Outcome.UNVERIFIED
    assert lag_line([check]) == "max lag is 0 for partition t-0 at offset 20 among 1 partitions"
