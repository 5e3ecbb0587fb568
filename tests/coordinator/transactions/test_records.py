"""The records of `__transaction_state`: Kafka's bytes, and bytes that are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.coordinator.transactions.records import (
    UnknownKeyVersion,
    read_transaction_key,
    read_transaction_value,
    transaction_key,
    transaction_value,
)
from klamm.coordinator.transactions.states import TransactionState
from klamm.coordinator.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata
from klamm.protocol.primitives import MAX_STRING_BYTES

# What Apache Kafka 2.8.2 has written to __transaction_state for the producers of librdkafka: (key, value).
TXN = "0000000674786e2dc3bc"
SLOW = "00000004736c6f77"
KAFKA_2_8_2 = [
    (TXN, "00000000000000000000000000004e2000ffffffff000001a205685961ffffffffffffffff"),
    (TXN, "00000000000000000000000000004e2001000000010001740000000100000001000001a205685984000001a205685984"),
    (TXN, "00000000000000000000000000004e2002000000010001740000000100000001000001a205685999000001a205685984"),
    (TXN, "00000000000000000000000000004e200400000000000001a20568599d000001a205685984"),
    (
        TXN,
        "00000000000000000000000000004e20030000000200067a757269636800000003000000010000000200000000000174"
        "0000000100000000000001a205685d95000001a205685d8a",
    ),
    (TXN, "00000000000000000000000000004e200500000000000001a205685d95000001a205685d8a"),
    (SLOW, "00000000000000000001000000000bb801000000010001740000000100000000000001a2056861bc000001a2056861bc"),
    (SLOW, "00000000000000000001000100000bb803000000010001740000000100000000000001a20568710f000001a2056861bc"),
    (TXN, "00000000000000000000000100004e2000ffffffff000001a205687f15ffffffffffffffff"),
]
STATES = TransactionState
EXPECTED = [
    ("txn-ü", 0, 0, 20_000, STATES.EMPTY, [], 0x1A205685961, -1),
    ("txn-ü", 0, 0, 20_000, STATES.ONGOING, [("t", 1)], 0x1A205685984, 0x1A205685984),
    ("txn-ü", 0, 0, 20_000, STATES.PREPARE_COMMIT, [("t", 1)], 0x1A205685999, 0x1A205685984),
    ("txn-ü", 0, 0, 20_000, STATES.COMPLETE_COMMIT, [], 0x1A20568599D, 0x1A205685984),
    (
        *("txn-ü", 0, 0, 20_000, STATES.PREPARE_ABORT),
        [("zurich", 1), ("zurich", 2), ("zurich", 0), ("t", 0)],
        *(0x1A205685D95, 0x1A205685D8A),
    ),
    ("txn-ü", 0, 0, 20_000, STATES.COMPLETE_ABORT, [], 0x1A205685D95, 0x1A205685D8A),
    ("slow", 1, 0, 3_000, STATES.ONGOING, [("t", 0)], 0x1A2056861BC, 0x1A2056861BC),
    # It was overdue, and is aborted in the next epoch.
    ("slow", 1, 1, 3_000, STATES.PREPARE_ABORT, [("t", 0)], 0x1A20568710F, 0x1A2056861BC),
    ("txn-ü", 0, 1, 20_000, STATES.EMPTY, [], 0x1A205687F15, -1),
]


@pytest.mark.parametrize(("record", "expected"), list(zip(KAFKA_2_8_2, EXPECTED, strict=True)))
def test_records_of_kafka_are_read_and_written_byte_by_byte(
    record: tuple[str, str], expected: tuple[str, int, int, int, TransactionState, list[tuple[str, int]], int, int]
) -> None:
    key, value = map(bytes.fromhex, record)
    transactional_id, producer_id, epoch, timeout_ms, state, partitions, updated_ms, started_ms = expected
    metadata = read_transaction_value(value)
    assert read_transaction_key(key) == transactional_id
    assert metadata == TransactionMetadata(
        ProducerIdAndEpoch(producer_id, epoch), timeout_ms, state, dict.fromkeys(partitions), updated_ms, started_ms
    )
    assert list(metadata.partitions) == partitions
    assert transaction_key(transactional_id) == key
    assert transaction_value(metadata) == value


# What Apache Kafka 4.3 has written: a commit in two partitions.
KAFKA_4_3 = [
    "00010000000000000000000000004e200000000001a2056a2a38ffffffffffffffff0100080000000000000000",
    "00010000000000000000000000004e200102027403000000010000000000000001a2056a2adc000001a2056a2adc0100080000000000000000",
    "00010000000000000000000000004e200202027403000000010000000000000001a2056a2b09000001a2056a2adc0100080000000000000000",
    "00010000000000000000000000004e200401000001a2056a2b0c000001a2056a2adc0100080000000000000000",
]


def test_values_of_later_versions_of_kafka_are_read() -> None:
    both = [("t", 1), ("t", 0)]
    begun_ms = 0x1A2056A2ADC
    assert [read_transaction_value(bytes.fromhex(value)) for value in KAFKA_4_3] == [
        TransactionMetadata(ProducerIdAndEpoch(0, 0), 20_000, state, dict.fromkeys(added), updated_ms, started_ms)
        for state, added, updated_ms, started_ms in [
            (STATES.EMPTY, [], 0x1A2056A2A38, -1),
            (STATES.ONGOING, both, begun_ms, begun_ms),
            (STATES.PREPARE_COMMIT, both, 0x1A2056A2B09, begun_ms),
            (STATES.COMPLETE_COMMIT, [], 0x1A2056A2B0C, begun_ms),
        ]
    ]


texts = st.text(max_size=20)
partitions = st.dictionaries(st.tuples(texts, st.integers(-(2**31), 2**31 - 1)), st.none(), max_size=8)
metadata_of_any_kind = st.builds(
    TransactionMetadata,
    st.builds(ProducerIdAndEpoch, st.integers(-(2**63), 2**63 - 1), st.integers(-(2**15), 2**15 - 1)),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from(sorted(set(TransactionState) - {TransactionState.EMPTY})),
    partitions,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    last_producer=st.none(),
)


@given(transactional_id=texts, metadata=metadata_of_any_kind)
def test_what_is_written_is_read(transactional_id: str, metadata: TransactionMetadata) -> None:
    assert read_transaction_key(transaction_key(transactional_id)) == transactional_id
    assert read_transaction_value(transaction_value(metadata)) == metadata


@given(data=st.binary(max_size=100))
def test_bytes_of_any_kind_are_a_record_or_a_value_error(data: bytes) -> None:
    for read in (read_transaction_key, read_transaction_value):
        for version in (b"", b"\0\0", b"\0\1"):
            try:
                read(version + data)
            except ValueError as error:
                assert str(error)


@given(
    record=st.sampled_from(KAFKA_2_8_2), position=st.integers(0, 200), byte=st.integers(0, 255), end=st.integers(0, 200)
)
def test_a_damaged_value_is_a_record_or_a_value_error(
    record: tuple[str, str], position: int, byte: int, end: int
) -> None:
    data = bytearray.fromhex(record[1])
    data[position % len(data)] = byte
    try:
        read_transaction_value(bytes(data[: end or None]))
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "the record ends too early at byte 0"),
        ("0002", "a value of version 2, known are 0 to 1 at byte 0"),
        ("ffff", "a value of version -1, known are 0 to 1 at byte 0"),
        ("00000000000000000000000000004e2000", "the record ends too early at byte 17"),
        # Kafka keeps these two states in memory only.
        ("00000000000000000000000000004e2006", "a transaction in state 6, known are 0 to 5 at byte 16"),
        ("00000000000000000000000000004e2007", "a transaction in state 7, known are 0 to 5 at byte 16"),
        ("00000000000000000000000000004e20ff", "a transaction in state -1, known are 0 to 5 at byte 16"),
        ("00000000000000000000000000004e20017fffffff0000", "2147483647 elements, but 2 bytes are left at byte 21"),
        ("00000000000000000000000000004e2001fffffffe0000", "-2 elements, but 2 bytes are left at byte 21"),
        ("00000000000000000000000000004e2001000000010001747fffffff00", "2147483647 elements, but 1 bytes are left"),
    ],
)
def test_a_broken_value_says_why(value: str, reason: str) -> None:
    with pytest.raises(ValueError) as raised:
        read_transaction_value(bytes.fromhex(value))
    assert reason in str(raised.value)


def test_a_key_of_another_version_is_of_another_kind() -> None:
    for version in (b"\x00\x01", b"\x7f\xff", b"\xff\xff"):
        with pytest.raises(UnknownKeyVersion):
            read_transaction_key(version + b"\x00\x01a")


def test_a_transactional_id_has_the_length_that_a_record_can_hold() -> None:
    longest = "ü" * (MAX_STRING_BYTES // 2)
    assert read_transaction_key(transaction_key(longest)) == longest
    with pytest.raises(ValueError, match="allowed are 32767"):
        transaction_key(longest + "ü")


def test_bytes_after_the_end_are_ignored() -> None:
    key, value = map(bytes.fromhex, KAFKA_2_8_2[1])
    assert read_transaction_key(key + b"more") == "txn-ü"
    assert read_transaction_value(value + b"more") == read_transaction_value(value)
