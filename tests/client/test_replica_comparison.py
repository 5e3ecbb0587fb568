"""Comparing batches of replicas, without any cluster."""

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.client.verification.compare import Compared, Difference, DifferenceKind, Differences, Window, compare
from klamm.client.verification.newest_values import CONFIRMATIONS, NewestValues
from klamm.client.verification.partition import Failed, OutOfRange, PartitionCheck, SetAside, merged
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, parse_header, write_header
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import TopicPartition

PARTITION = TopicPartition("t", 0)


def batch(first: int, last: int, *, epoch: int = 0, value: bytes = b"v", keep: Sequence[int] | None = None) -> bytes:
    """A batch of these offsets; compaction has left the records of `keep`."""
    offsets = range(first, last + 1)
    built = build_batch(
        [Record(b"k", value + str(offset).encode(), 1000 + offset, offset=offset) for offset in offsets],
        base_offset=first,
        partition_leader_epoch=epoch,
    )
    if keep is None:
        return bytes(built)
    header = parse_header(built)
    kept = build_batch(
        [Record(b"k", value + str(offset).encode(), 1000 + offset, offset=offset) for offset in keep],
        base_offset=first,
        partition_leader_epoch=epoch,
    )
    made = bytearray(kept)
    write_header(made, 0, parse_header(kept)._replace(last_offset_delta=header.last_offset_delta))
    return bytes(made)


def log(*batches: bytes) -> bytes:
    return b"".join(batches)


def window(records: bytes, high_watermark: int = 1000, *, is_complete: bool = False) -> Window:
    return Window(memoryview(bytearray(records)), high_watermark, is_complete)


def verdict(compared: Compared) -> list[tuple[DifferenceKind, int, int, int]]:
    return [(each.kind, each.first_offset, each.last_offset, each.replica) for each in compared.differences]


WHOLE = log(batch(0, 4), batch(5, 9), batch(10, 19))


def test_equal_replicas_have_no_difference() -> None:
    compared = compare(0, {1: window(WHOLE), 2: window(WHOLE), 3: window(WHOLE)})
    assert (compared.next_offset, compared.differences, compared.batches) == (20, [], 3)
    assert compared.consumed_bytes == dict.fromkeys((1, 2, 3), len(WHOLE))


def test_what_is_not_below_every_high_watermark_is_not_compared() -> None:
    theirs = log(batch(0, 4), batch(5, 9, value=b"uncommitted"))
    compared = compare(0, {1: window(WHOLE, 20), 2: window(theirs, 5)})
    assert (compared.next_offset, compared.differences) == (5, [])


def test_a_window_that_ends_within_a_batch_is_compared_up_to_there() -> None:
    compared = compare(0, {1: window(WHOLE), 2: window(WHOLE[:-1])})
    assert (compared.next_offset, compared.differences) == (10, [])


def test_another_content_has_another_checksum() -> None:
    theirs = log(batch(0, 4), batch(5, 9, value=b"w"), batch(10, 19))
    compared = compare(0, {1: window(WHOLE), 2: window(theirs), 3: window(WHOLE)})
    assert verdict(compared) == [(DifferenceKind.CHECKSUM, 5, 9, 2)]
    assert compared.differences[0].expected == parse_header(batch(5, 9)).crc
    assert compared.next_offset == 20


def test_a_byte_that_the_disk_has_changed_does_not_fit_its_checksum() -> None:
    theirs = bytearray(WHOLE)
    theirs[len(batch(0, 4)) + 70] ^= 1
    compared = compare(0, {1: window(WHOLE), 2: window(bytes(theirs))})
    assert verdict(compared) == [(DifferenceKind.CORRUPT, 5, 9, 2)]
    alone = compare(0, {1: window(bytes(theirs))})
    assert verdict(alone) == [(DifferenceKind.CORRUPT, 5, 9, 1)]
    assert alone.next_offset == 20


def test_the_leader_epoch_is_compared_although_no_checksum_covers_it() -> None:
    theirs = log(batch(0, 4), batch(5, 9, epoch=3), batch(10, 19))
    compared = compare(0, {1: window(WHOLE), 2: window(theirs)})
    assert verdict(compared) == [(DifferenceKind.LEADER_EPOCH, 5, 9, 2)]
    assert (compared.differences[0].value, compared.differences[0].expected) == (3, 0)


def test_a_batch_that_is_not_there_is_missing() -> None:
    compared = compare(0, {1: window(WHOLE), 2: window(log(batch(0, 4), batch(10, 19)))})
    assert verdict(compared) == [(DifferenceKind.MISSING, 5, 9, 2)]
    compared = compare(0, {1: window(log(batch(0, 4), batch(10, 19))), 2: window(WHOLE)})
    assert verdict(compared) == [(DifferenceKind.MISSING, 5, 9, 1)]
    assert compared.next_offset == 20


def test_a_batch_at_the_end_is_missing_only_if_the_replica_is_known_to_have_no_more() -> None:
    cut = log(batch(0, 4), batch(5, 9))
    compared = compare(0, {1: window(WHOLE, 20), 2: window(cut, 20)})
    assert (verdict(compared), compared.next_offset) == ([], 10)
    compared = compare(10, {1: window(batch(10, 19), 20), 2: window(b"", 20, is_complete=True)})
    assert (verdict(compared), compared.next_offset) == ([(DifferenceKind.MISSING, 10, 19, 2)], 20)


def test_batches_that_end_elsewhere_differ() -> None:
    theirs = log(batch(0, 4), batch(5, 12), batch(13, 19))
    compared = compare(0, {1: window(WHOLE), 2: window(theirs)})
    assert verdict(compared) == [
        (DifferenceKind.BOUNDARIES, 5, 9, 2),
        (DifferenceKind.BOUNDARIES, 10, 12, 2),
        (DifferenceKind.BOUNDARIES, 13, 19, 2),
    ]


def test_a_compacted_replica_may_lack_records_and_batches() -> None:
    theirs = log(batch(0, 4, keep=[1, 4]), batch(10, 19))
    for windows in ({1: window(WHOLE), 2: window(theirs)}, {1: window(theirs), 2: window(WHOLE)}):
        compared = compare(0, windows, is_compacted=True)
        assert (verdict(compared), compared.next_offset, compared.compacted_batches) == ([], 20, 2)


def test_a_record_that_two_compacted_replicas_have_must_be_the_same() -> None:
    theirs = log(batch(0, 4, keep=[1, 4], value=b"w"), batch(5, 9), batch(10, 19))
    compared = compare(0, {1: window(WHOLE), 2: window(theirs)}, is_compacted=True)
    assert verdict(compared) == [(DifferenceKind.RECORDS, 1, 4, 2)]


def test_records_that_cannot_be_decoded_are_corrupt() -> None:
    theirs = bytearray(batch(0, 4))
    write_header(theirs, 0, parse_header(theirs)._replace(record_count=900))
    compared = compare(0, {1: window(batch(0, 4)), 2: window(bytes(theirs))}, is_compacted=True)
    assert verdict(compared) == [(DifferenceKind.CORRUPT, 0, 4, 2)]


def test_bytes_that_are_no_batches_break_their_replica() -> None:
    compared = compare(0, {1: window(WHOLE), 2: window(b"\0" * 100)})
    assert (list(compared.broken), compared.next_offset, compared.differences) == ([2], 0, [])


def test_a_batch_before_the_position_breaks_its_replica() -> None:
    compared = compare(10, {1: window(batch(10, 19)), 2: window(WHOLE)})
    assert compared.broken == {2: "a batch with offsets 0 to 4 comes where offset 10 or a later one belongs"}


def test_batches_that_go_backwards_are_compared_up_to_there() -> None:
    theirs = log(batch(0, 4), batch(5, 9), batch(0, 4))
    compared = compare(0, {1: window(WHOLE), 2: window(theirs)})
    assert (compared.next_offset, compared.broken, verdict(compared)) == (10, {}, [])


def test_replicas_that_begin_within_a_batch_are_compared_from_its_first_offset_on() -> None:
    compared = compare(7, {1: window(log(batch(5, 9), batch(10, 19))), 2: window(log(batch(5, 9), batch(10, 19)))})
    assert (compared.next_offset, compared.differences) == (20, [])


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """The first and last offset of each batch; with gaps between some, as compaction leaves them."""
    offset, made = 0, []
    for _ in range(draw(st.integers(1, 8))):
        first = offset + draw(st.sampled_from([0, 0, 0, 3]))
        last = first + draw(st.integers(0, 6))
        made.append((first, last))
        offset = last + 1
    return made


def verify(
    replicas: list[bytes], high_watermarks: list[int], seed: int, *, is_compacted: bool = False
) -> PartitionCheck:
    """Runs a check over logs that answer windows of odd sizes, and sometimes fail."""
    chance = random.Random(seed)
    check = PartitionCheck(PARTITION, range(len(replicas)), 0, is_compacted=is_compacted, patience_s=5)
    return read_through(check, replicas, high_watermarks, chance)


def read_through(
    check: PartitionCheck, replicas: list[bytes], high_watermarks: list[int], chance: random.Random
) -> PartitionCheck:
    for now_s in range(400):
        if check.is_done:
            return check
        answers = {}
        for replica in check.active:
            at = start_of(replicas[replica], check.position)
            size_bytes = chance.choice([40, 150, 400, 10_000]) if replica not in check.hungry else 10_000
            taken = replicas[replica][at : at + size_bytes]
            answers[replica] = (
                Failed("closed the connection")
                if chance.random() < 0.1
                else Window(memoryview(taken), high_watermarks[replica])
            )
        check.feed(answers, now_s)
    raise AssertionError("the check does not end")


def start_of(records: bytes, offset: int) -> int:
    at = 0
    with suppress(KafkaError):
        while at < len(records):
            header = parse_header(records, at)
            if header.last_offset >= offset:
                return at
            at += header.size_bytes
    return at


@settings(max_examples=60, deadline=None)
@given(logs(), st.integers(0, 10_000), st.lists(st.integers(1, 8), min_size=3, max_size=3))
def test_equal_replicas_never_differ_however_they_are_read(
    shape: list[tuple[int, int]], seed: int, committed: list[int]
) -> None:
    records = log(*(batch(first, last) for first, last in shape))
    ends = [shape[min(each, len(shape)) - 1][1] + 1 for each in committed]
    check = verify([records] * 3, ends, seed)
    assert not check.differences
    assert check.position == max(ends)
    assert {replica for replica, end in enumerate(ends) if end < max(ends)} <= check.set_aside.keys()


@settings(max_examples=80, deadline=None)
@given(logs(), st.integers(0, 10_000), st.data())
def test_a_planted_difference_is_found_whatever_it_is_and_named_with_its_offsets(
    shape: list[tuple[int, int]], seed: int, data: st.DataObject
) -> None:
    batches = [batch(first, last) for first, last in shape]
    number = data.draw(st.integers(0, len(shape) - 1))
    first, last = shape[number]
    what = data.draw(
        st.sampled_from(
            [DifferenceKind.CHECKSUM, DifferenceKind.LEADER_EPOCH, DifferenceKind.CORRUPT, DifferenceKind.MISSING]
        )
    )
    changed = {
        DifferenceKind.CHECKSUM: batch(first, last, value=b"x"),
        DifferenceKind.LEADER_EPOCH: batch(first, last, epoch=9),
        DifferenceKind.CORRUPT: batches[number][:-1] + bytes([batches[number][-1] ^ 0x55]),
        DifferenceKind.MISSING: b"",
    }[what]
    where = data.draw(st.integers(0, 2))
    replicas = [log(*batches)] * 3
    replicas[where] = log(*batches[:number], changed, *batches[number + 1 :])
    check = verify(replicas, [shape[-1][1] + 1] * 3, seed)
    kinds = {each.kind for each in check.differences.found}
    assert kinds == {what}
    assert {(each.first_offset, each.last_offset) for each in check.differences.found} == {(first, last)}
    # With the first replica, the others are compared.
    named = {each.replica for each in check.differences.found}
    assert named == ({where} if where or what in (DifferenceKind.CORRUPT, DifferenceKind.MISSING) else {1, 2})


@settings(max_examples=60, deadline=None)
@given(
    logs(), st.integers(0, 10_000), st.lists(st.lists(st.booleans(), min_size=60, max_size=60), min_size=3, max_size=3)
)
def test_replicas_that_were_compacted_at_different_times_do_not_differ(
    shape: list[tuple[int, int]], seed: int, kept: list[list[bool]]
) -> None:
    replicas = []
    for keeps in kept:
        batches = []
        for number, (first, last) in enumerate(shape):
            keep = [offset for offset in range(first, last + 1) if keeps[offset % 60]]
            # The last batch is in the active segment, which is not compacted.
            if number == len(shape) - 1:
                keep = list(range(first, last + 1))
            if keep:
                batches.append(batch(first, last, keep=keep))
        replicas.append(log(*batches))
    end = shape[-1][1] + 1
    check = verify(replicas, [end] * 3, seed, is_compacted=True)
    assert (check.differences.found, check.position, check.set_aside) == ([], end, {})


Table = list[tuple[int, bytes, bytes | None]]


def table_log(records: Table, end: int) -> bytes:
    """A batch of each record, and one at the end that all replicas have."""
    built = [
        bytes(build_batch([Record(key, value, 1000, offset=offset)], base_offset=offset))
        for offset, key, value in records
    ]
    return log(*built, batch(end, end))


def compacted(records: Table, point: int, *, drops_tombstones: bool) -> Table:
    """The records when a cleaner has compacted those below `point`."""
    newest = {key: offset for offset, key, _ in records if offset < point}
    return [
        (offset, key, value)
        for offset, key, value in records
        if offset >= point or (newest[key] == offset and (value is not None or not drops_tombstones))
    ]


def lost_values(replicas: list[bytes], end: int, seed: int) -> list[Difference]:
    chance = random.Random(seed)
    check = PartitionCheck(
        PARTITION, range(len(replicas)), 0, is_compacted=True, patience_s=1000, newest=NewestValues()
    )
    read_through(check, replicas, [end] * len(replicas), chance)
    for _ in range(CONFIRMATIONS):
        if check.has_unreplaced_values:
            check.confirm(read_through(check.again(), replicas, [end] * len(replicas), chance))
    check.conclude()
    return check.differences.found


tables = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([b"1", None])), max_size=12).map(
    lambda pairs: [(offset, key, value) for offset, (key, value) in enumerate(pairs)]
)
cleanings = st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=2, max_size=3)


@settings(max_examples=80, deadline=None)
@given(tables, cleanings, st.integers(0, 10_000), st.data())
def test_a_lost_newest_value_is_found_and_nothing_else(
    table: Table, cleaned: list[tuple[int, bool]], seed: int, data: st.DataObject
) -> None:
    end = len(table)
    found = [compacted(table, point, drops_tombstones=drops) for point, drops in cleaned]
    assert lost_values([table_log(each, end) for each in found], end + 1, seed) == []
    newest = {key: (offset, key, value) for offset, key, value in table}
    values = [record for record in newest.values() if record[2] is not None]
    if values:
        lost = data.draw(st.sampled_from(values))
        replica = data.draw(st.integers(0, len(found) - 1))
        found[replica].remove(lost)
        other = 1 if replica == 0 else 0
        replicas = [table_log(each, end) for each in found]
        assert lost_values(replicas, end + 1, seed) == [
            Difference(DifferenceKind.LOST, lost[0], lost[0], replica, other)
        ]


def test_a_value_that_is_replaced_while_the_replicas_are_read_is_not_lost() -> None:
    """Between the first reading and the next, the replica that had the old value is compacted."""
    whole: Table = [(0, b"a", b"1"), (1, b"b", b"1"), (2, b"b", b"2")]
    old, new = table_log(whole[:2], 3), table_log(whole[1:2], 3)
    check = PartitionCheck(PARTITION, range(2), 0, is_compacted=True, newest=NewestValues())
    read_through(check, [old, new], [4, 4], random.Random(1))
    assert check.has_unreplaced_values
    check.confirm(read_through(check.again(), [new, new], [4, 4], random.Random(1)))
    assert (check.has_unreplaced_values, check.conclude()) == (False, [])


def test_records_in_transactions_are_not_judged() -> None:
    aborted = bytes(
        build_batch([Record(b"a", b"1", 1000)], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    )
    assert lost_values([log(aborted, batch(1, 1)), batch(1, 1)], 2, 1) == []


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3), st.integers(0, 2**40), st.booleans())
def test_any_bytes_give_a_result(answers: list[bytes], position: int, is_compacted: bool) -> None:
    windows = {number: Window(memoryview(each), 2**62) for number, each in enumerate(answers)}
    compared = compare(position, windows, is_compacted=is_compacted)
    assert compared.next_offset >= position


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255), st.booleans())
def test_no_changed_byte_goes_unnoticed(at: int, change: int, is_compacted: bool) -> None:
    theirs = bytearray(WHOLE)
    theirs[at] ^= change
    # With other offsets, a compacted batch is one that only the other replica still has.
    is_compacted = is_compacted and len(batch(0, 4)) > at >= HEADER_SIZE_BYTES
    check = verify([WHOLE, bytes(theirs)], [20, 20], 1, is_compacted=is_compacted)
    # A length that now reaches behind the end looks like a batch that never comes as a whole.
    assert check.differences or check.set_aside


# -- the check of a partition -----------------------------------------------------------------------------------------


def test_a_check_skips_what_retention_has_removed() -> None:
    check = PartitionCheck(PARTITION, [1, 2], 0)
    check.feed({1: window(WHOLE, 20), 2: OutOfRange(10, 20)}, 0)
    assert (check.position, check.start_offset, check.removed_offsets, check.differences.found) == (10, 10, 0, [])
    check.feed({1: window(batch(10, 19), 20), 2: window(batch(10, 19), 20)}, 0)
    assert check.is_done and check.position == 20
    assert check.size_bytes == 2 * len(batch(10, 19))


def test_offsets_that_retention_removes_during_the_check_are_counted() -> None:
    check = PartitionCheck(PARTITION, [1, 2], 0)
    first = window(batch(0, 4), 20)
    check.feed({1: first, 2: first}, 0)
    check.feed({1: OutOfRange(8, 20), 2: OutOfRange(10, 20)}, 0)
    check.feed({1: window(batch(8, 9), 20)}, 0)
    assert (check.position, check.start_offset, check.removed_offsets) == (10, 0, 5)
    assert check.begins_later == {2: 10}


def test_replicas_with_older_records_are_compared_without_a_replica_whose_log_begins_later() -> None:
    check = PartitionCheck(PARTITION, [1, 2, 3], 0)
    other = log(batch(0, 4), batch(5, 9, value=b"w"), batch(10, 19))
    (difference,) = check.feed({1: window(WHOLE, 20), 2: window(other, 20), 3: OutOfRange(10, 20)}, 0)
    assert (difference.kind, difference.first_offset, difference.replica) == (DifferenceKind.CHECKSUM, 5, 2)
    assert (check.position, check.to_ask(0)) == (10, [1, 2, 3])
    (difference,) = check.feed(
        {1: window(batch(10, 19), 20), 2: window(batch(10, 19), 20), 3: window(batch(10, 19, value=b"x"), 20)}, 0
    )
    assert (difference.kind, difference.first_offset, difference.replica) == (DifferenceKind.CHECKSUM, 10, 3)
    assert check.is_done and check.is_compared and check.begins_later == {3: 10} and not check.set_aside


def test_a_log_may_begin_within_a_batch_that_others_have_as_a_whole() -> None:
    check = PartitionCheck(PARTITION, [1, 2, 3], 0)
    whole = window(WHOLE, 20)
    check.feed({1: whole, 2: whole, 3: OutOfRange(12, 20)}, 0)
    assert (check.position, check.to_ask(0)) == (10, [1, 2])
    rest = window(batch(10, 19), 20)
    check.feed({1: rest, 2: rest}, 0)
    assert (check.position, check.to_ask(0)) == (12, [1, 2, 3])
    check.feed({1: rest, 2: rest, 3: rest}, 0)
    assert check.is_done and not check.differences and not check.set_aside


def test_a_log_that_begins_behind_all_others_is_set_aside_and_the_others_are_compared() -> None:
    check = PartitionCheck(PARTITION, [1, 2, 3], 0, patience_s=10)
    answers: dict[int, Any] = {1: window(WHOLE, 20), 2: window(WHOLE, 20), 3: OutOfRange(2**62, 2**62)}
    for now_s in (0, 10):
        check.feed(answers, now_s)
    reason = f"its log begins at offset {2**62}, behind the high watermark of the others"
    assert (check.position, check.set_aside) == (20, {3: SetAside(0, reason)})


def test_nobody_waits_for_a_replica_that_lags_and_is_out_of_sync() -> None:
    check = PartitionCheck(PARTITION, [1, 2, 3], 0, in_sync=[1, 2])
    answers = {1: window(WHOLE, 20), 2: window(WHOLE, 20), 3: window(b"", 0)}
    check.feed(answers, 0)
    check.feed({1: answers[1], 2: answers[2]}, 0)
    assert (check.is_done, check.position, list(check.set_aside)) == (True, 20, [3])


def test_a_replica_that_does_not_answer_is_set_aside_and_the_others_go_on() -> None:
    check = PartitionCheck(PARTITION, [1, 2, 3], 0, patience_s=10)
    answers: dict[int, Any] = {1: window(WHOLE, 20), 2: window(WHOLE, 20), 3: Failed("closed the connection")}
    for now_s in (0, 9):
        check.feed(answers, now_s)
        assert check.position == 0
    check.feed(answers, 10)
    assert check.position == 20 and check.is_done and check.is_compared
    assert check.set_aside == {3: SetAside(0, "closed the connection")}


def test_with_one_replica_left_nothing_is_compared() -> None:
    check = PartitionCheck(PARTITION, [1, 2], 0)
    check.feed({1: window(WHOLE, 20), 2: Failed("refused", is_final=True)}, 0)
    assert check.is_done and not check.is_compared


def test_a_replica_that_lags_is_set_aside_with_its_lag() -> None:
    check = PartitionCheck(PARTITION, [1, 2, 3], 0, patience_s=10)
    answers = {1: window(WHOLE, 20), 2: window(WHOLE, 20), 3: window(batch(0, 4), 5)}
    check.feed(answers, 0)
    assert (check.position, check.target) == (5, 20)
    rest = window(WHOLE[len(batch(0, 4)) :], 20)
    for now_s in (0, 10):
        check.feed({1: rest, 2: rest, 3: window(b"", 5)}, now_s)
    check.feed({1: rest, 2: rest}, 10)
    assert check.set_aside == {3: SetAside(5, "its high watermark is 5", is_lag=True)}
    assert (check.position, check.lag_of(3), check.is_done) == (20, 15, True)


def test_a_replica_that_lags_was_compared_as_far_as_it_goes() -> None:
    check = PartitionCheck(PARTITION, [1, 2], 0, patience_s=0)
    check.feed({1: window(WHOLE, 20), 2: window(batch(0, 4), 5)}, 0)
    check.feed({1: window(WHOLE[len(batch(0, 4)) :], 20), 2: window(b"", 5)}, 0)
    assert check.is_compared and check.active != [1, 2]


def test_a_replica_whose_log_has_become_shorter_is_set_aside() -> None:
    check = PartitionCheck(PARTITION, [1, 2], 10, patience_s=10)
    for now_s in (0, 10):
        check.feed({1: window(batch(10, 19), 20), 2: OutOfRange(0, 7)}, now_s)
    assert check.set_aside == {2: SetAside(10, "its log ends at offset 7, before offset 10")}


def test_a_check_that_follows_takes_replicas_in_again() -> None:
    check = PartitionCheck(PARTITION, [1, 2], 0, follows=True)
    check.feed({1: window(WHOLE, 20), 2: Failed("refused", is_final=True)}, 0)
    assert (check.position, check.active, check.is_done) == (20, [1], False)
    assert (check.to_ask(29), check.to_ask(30)) == ([1], [1, 2])
    empty = window(b"", 20)
    check.feed({1: empty, 2: Failed("refused", is_final=True)}, 30)
    assert (check.active, check.to_ask(59), check.to_ask(60)) == ([1], [1], [1, 2])
    assert check.set_aside == {2: SetAside(0, "refused")}
    check.feed({1: empty, 2: empty}, 60)
    assert (check.active, check.set_aside) == ([1, 2], {})


def test_differences_one_after_another_are_one() -> None:
    found = Differences(most=2)

    def missing(first: int, last: int, replica: int = 2) -> Difference:
        return Difference(DifferenceKind.MISSING, first, last, replica, 1)

    assert [
        found.add(missing(0, 4)),
        found.add(missing(5, 9)),
        found.add(missing(20, 29)),
        found.add(missing(40, 49)),
    ] == [
        True,
        False,
        True,
        False,
    ]
    assert found.found == [Difference(DifferenceKind.MISSING, 0, 9, 2, 1, count=2), missing(20, 29)]
    assert found.batches == 4


def test_compressed_records_of_compacted_replicas_are_compared() -> None:
    records = [Record(b"k", b"v" * 100, 1, offset=offset) for offset in (0, 1)]
    ours = bytes(build_batch(records, codec=CompressionType.GZIP))
    theirs = bytes(build_batch(records, codec=CompressionType.ZSTD))
    assert compare(0, {1: window(ours), 2: window(theirs)}, is_compacted=True).differences == []
    assert verdict(compare(0, {1: window(ours), 2: window(theirs)})) == [(DifferenceKind.CHECKSUM, 0, 1, 2)]


def test_a_batch_that_is_compared_in_two_ranges_differs_once() -> None:
    theirs = log(batch(0, 4), batch(5, 9, value=b"w"), batch(10, 19, value=b"w"))
    checks = []
    for start, end in ((12, 20), (0, 7), (7, 12)):
        check = PartitionCheck(PARTITION, [1, 2], start, target=end)
        at = start_of(WHOLE, start)
        check.feed({1: window(WHOLE[at:], 20), 2: window(theirs[at:], 20)}, 0)
        checks.append(check)
    whole = merged(checks)
    assert (whole.start_offset, whole.position, whole.target) == (0, 20, 20)
    (difference,) = whole.differences.found
    assert (difference.first_offset, difference.last_offset, difference.count) == (5, 19, 2)
    assert whole.differences.batches == 2
