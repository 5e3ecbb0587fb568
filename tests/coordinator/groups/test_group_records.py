"""The bytes of __consumer_offsets: known ones in all versions, round trips, garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.slices import in_one_go
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import Group, GroupState, Member
from klamm.coordinator.groups.group_records import (
    GroupKey,
    OffsetKey,
    OffsetKeyReader,
    UnknownKey,
    group_metadata_key,
    group_metadata_value,
    offset_commit_key,
    offset_commit_value,
    read_group_value,
    read_key,
    read_offset_value,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
# Kafka writes -1 for none.
TIMESTAMP = st.none() | st.integers(0, 2**63 - 1)


def group_of(*members: Member, protocol: str | None = "range", leader: str | None = None) -> Group:
    return in_one_go(Group.load_steps("g", 7, "consumer" if members else "", protocol, leader, 99, members))


def member(member_id: str, instance_id: str | None = None, subscription: bytes = b"sub") -> Member:
    return Member(member_id, instance_id, "client", "/1.2.3.4", 300_000, 10_000, "consumer", [("range", subscription)])


def described(group: Group) -> tuple:
    """All that a record says of a group."""
    return (
        group.group_id,
        group.state,
        group.generation_id,
        group.protocol_type,
        group.protocol_name,
        group.leader_id,
        group.state_timestamp_ms,
        [tuple(value for name, value in vars(one).items() if name != "is_new") for one in group.members.values()],
    )


def test_keys():
    assert offset_commit_key("gr", ("top", 5)) == b"\x00\x01\x00\x02gr\x00\x03top\x00\x00\x00\x05"
    assert group_metadata_key("grüße") == b"\x00\x02\x00\x07gr\xc3\xbc\xc3\x9fe"
    assert read_key(b"\x00\x00\x00\x02gr\x00\x03top\x00\x00\x00\x05") == OffsetKey("gr", ("top", 5))
    assert read_key(b"\x00\x01\x00\x02gr\x00\x03top\x00\x00\x00\x05") == OffsetKey("gr", ("top", 5))
    assert read_key(b"\x00\x02\x00\x02gr") == GroupKey("gr")
    assert read_key(b"\x00\x09anything") == UnknownKey(9)


def test_offset_values():
    plain = OffsetAndMetadata(258, 7, "", 1_000)
    assert offset_commit_value(plain).hex() == "0003000000000000010200000007000000000000000003e8"
    noted = OffsetAndMetadata(1, -1, "né", 2)
    assert offset_commit_value(noted).hex() == "00030000000000000001ffffffff00036ec3a90000000000000002"
    expiring = OffsetAndMetadata(1, 7, "", 2, 3)
    assert offset_commit_value(expiring).hex() == "00010000000000000001000000000000000000020000000000000003"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("000000000000000000010001780000000000000002", OffsetAndMetadata(1, -1, "x", 2)),
        ("0001000000000000000100017800000000000000020000000000000003", OffsetAndMetadata(1, -1, "x", 2, 3)),
        ("0001000000000000000100000000000000000002ffffffffffffffff", OffsetAndMetadata(1, -1, "", 2)),
        ("0002000000000000000100000000000000000002", OffsetAndMetadata(1, -1, "", 2)),
        ("00030000000000000001000000040001780000000000000002", OffsetAndMetadata(1, 4, "x", 2)),
        # As long as the most frequent value is, but another one.
        ("000200000000000000010004787878780000000000000002", OffsetAndMetadata(1, -1, "xxxx", 2)),
    ],
)
def test_offset_values_of_all_versions_are_read(data, expected):
    assert read_offset_value(bytes.fromhex(data)) == expected


def test_group_value():
    group = group_of(member("m", "i"), leader="m")
    assert group_metadata_value(group, {"m": b"\x01\x02"}) == (
        b"\x00\x03\x00\x08consumer\x00\x00\x00\x07\x00\x05range\x00\x01m\x00\x00\x00\x00\x00\x00\x00\x63\x00\x00\x00\x01"
        b"\x00\x01m\x00\x01i\x00\x06client\x00\x08/1.2.3.4\x00\x04\x93\xe0\x00\x00\x27\x10"
        b"\x00\x00\x00\x03sub\x00\x00\x00\x02\x01\x02"
    )
    empty = Group("g", GroupState.EMPTY, None)
    empty.generation_id = 8
    assert group_metadata_value(empty, {}).hex() == "0003000000000008ffffffffffffffffffffffff00000000"


@pytest.mark.parametrize(
    ("version", "state_time", "instance", "rebalance", "expected"),
    [
        (0, "", "", "", (None, None, 10_000)),
        (1, "", "", "000493e0", (None, None, 300_000)),
        (2, "0000000000000063", "", "000493e0", (99, None, 300_000)),
        (3, "0000000000000063", "000169", "000493e0", (99, "i", 300_000)),
        (3, "ffffffffffffffff", "ffff", "000493e0", (None, None, 300_000)),
    ],
)
def test_group_values_of_all_versions_are_read(version, state_time, instance, rebalance, expected):
    data = bytes.fromhex(
        f"{version:04x}"
        + "0008636f6e73756d6572" "00000007" "000572616e6765" "00016d"
        + f"{state_time}00000001"
        + f"00016d{instance}0006636c69656e74" "00082f312e322e332e34"
        + f"{rebalance}00002710" "00000003737562" "000000020102"
    )  # fmt: skip
    group = read_group_value("g", data)
    one = group.members["m"]
    assert (group.state_timestamp_ms, one.group_instance_id, one.rebalance_timeout_ms) == expected
    assert (group.state, group.generation_id, group.protocol_name, group.leader_id) == ("Stable", 7, "range", "m")
    assert (one.session_timeout_ms, one.client_host, one.assignment) == (10_000, "/1.2.3.4", b"\x01\x02")
    assert one.metadata("range") == b"sub"


@given(TEXT, TEXT, INT32)
def test_offset_keys_come_back(group_id, topic, number):
    partition = (topic, number)
    key = offset_commit_key(group_id, partition)
    assert read_key(key) == (group_id, partition)
    reader = OffsetKeyReader()
    assert reader.read(key) == reader.read(key) == (group_id, partition)
    assert reader.read(offset_commit_key(group_id, ("other", 1))) == (group_id, ("other", 1))
    assert reader.read(offset_commit_key(group_id + "x", partition)) == (group_id + "x", partition)


@given(INT64, INT32, TEXT, INT64, TIMESTAMP)
def test_offset_values_come_back(offset, leader_epoch, metadata, commit_ms, expire_ms):
    value = OffsetAndMetadata(offset, leader_epoch, metadata, commit_ms, expire_ms)
    # The version with an expire timestamp has no leader epoch.
    expected = value if expire_ms is None else value._replace(leader_epoch=-1)
    assert read_offset_value(offset_commit_value(value)) == expected


@given(
    st.lists(st.tuples(TEXT, st.none() | TEXT, st.binary(max_size=9), st.binary(max_size=9)), unique_by=lambda m: m[0])
)
def test_groups_come_back(members):
    group = group_of(*(member(name, instance, metadata) for name, instance, metadata, _ in members))
    assignments = {name: assignment for name, _, _, assignment in members}
    back = read_group_value("g", group_metadata_value(group, assignments))
    assert {name: one.assignment for name, one in back.members.items()} == assignments
    for one in group.members.values():
        one.assignment = assignments[one.member_id]
    assert described(back) == described(group)


def test_a_member_without_an_assignment_is_not_written():
    with pytest.raises(LookupError):
        group_metadata_value(group_of(member("a"), member("b")), {"a": b""})


def test_too_long_text_is_not_written():
    with pytest.raises(ValueError, match="40000 bytes, allowed are 32767"):
        group_metadata_key("x" * 40_000)


VALID = [
    offset_commit_key("group", ("topic", 3)),
    group_metadata_key("group"),
    offset_commit_value(OffsetAndMetadata(5, 2, "note", 1)),
    offset_commit_value(OffsetAndMetadata(5, 2, "", 1)),
    group_metadata_value(group_of(member("a", "i"), member("b")), {"a": b"x", "b": b""}),
]
READERS = [read_key, OffsetKeyReader().read, read_offset_value, lambda data: read_group_value("g", data)]


@pytest.mark.parametrize("read", READERS)
@given(
    data=st.binary(max_size=80)
    | st.builds(
        lambda base, at, byte, cut: (base[: at % len(base)] + bytes([byte]) + base[at % len(base) + 1 :])[:cut],
        st.sampled_from(VALID),
        st.integers(0, 200),
        st.integers(0, 255),
        st.integers(0, 200),
    )
)
def test_garbage_is_a_value_error_that_says_what_is_wrong(read, data):
    try:
        read(data)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize("size", range(len(VALID[4])))
def test_no_part_of_a_group_is_a_group(size):
    with pytest.raises(ValueError, match=r"\w"):
        read_group_value("g", VALID[4][:size])


@pytest.mark.parametrize(
    ("read", "data", "reason"),
    [
        (read_key, b"", "ends too early"),
        (read_key, b"\xff\xff", "a key of version -1"),
        (read_key, b"\x00\x02\x00\x01\xff", "not UTF-8"),
        (OffsetKeyReader().read, group_metadata_key("g"), "not the key of an offset"),
        (read_offset_value, b"\x00\x04" + bytes(30), "a value of version 4, known are 0 to 3"),
        (READERS[3], b"\x00\x04" + bytes(30), "a value of version 4, known are 0 to 3"),
        (READERS[3], bytes.fromhex("0003000000000008ffffffff000000000000000000000001"), "no protocol"),
        (READERS[3], bytes.fromhex("0003000000000008ffffffff0000000000000000ffffffff"), "count of -1"),
    ],
)
def test_what_is_wrong_is_said(read, data, reason):
    with pytest.raises(ValueError, match=reason):
        read(data)


def test_a_member_that_is_there_twice():
    data = group_metadata_value(group_of(member("a"), member("b")), {"a": b"", "b": b""})
    with pytest.raises(ValueError, match="twice"):
        read_group_value("g", data.replace(b"\x00\x01b", b"\x00\x01a"))
