"""Records of __consumer_offsets: Kafka reads what klamm writes, and klamm reads all that Kafka has ever written."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from klamm.base.slices import in_one_go
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import Group, GroupState, Member
from klamm.coordinator.groups.group_metadata_manager import partition_for
from klamm.coordinator.groups.group_records import (
    group_metadata_key,
    group_metadata_value,
    offset_commit_key,
    offset_commit_value,
    read_group_value,
    read_key,
    read_offset_value,
)
from support.oracles import java_tool

ORACLE = Path(__file__).with_name("ConsumerOffsets.java")

PARTITION = ("tröpfchen", 5)
OFFSETS = {
    "plain": OffsetAndMetadata(258, 7, "", 1_700_000_000_000),
    "noted": OffsetAndMetadata(2**63 - 1, -1, "nötig \U0001f600", 0),
    "expiring": OffsetAndMetadata(3, -1, "", 1_000, 2_000),
}


def static_member(member_id: str, instance_id: str | None, subscription: bytes, assignment: bytes) -> Member:
    protocols = [("range", subscription)]
    return Member(member_id, instance_id, "client", "/1.2.3.4", 300_000, 10_000, "consumer", protocols, assignment)


GROUPS = {
    "stable": in_one_go(
        Group.load_steps("größe", 7, "consumer", "range", "m", 99, [static_member("m", "inst", b"\0\1sub", b"\1\2")])
    ),
    "dynamic": in_one_go(
        Group.load_steps("g", 2**31 - 1, "connect", "range", "m", None, [static_member("m", None, b"", b"")])
    ),
    "several": in_one_go(
        Group.load_steps(
            "g",
            1,
            "consumer",
            "range",
            "a",
            1,
            [static_member(name, name, name.encode(), b"") for name in ("a", "b", "c")],
        )
    ),
    "empty": in_one_go(Group.load_steps("g", 8, "consumer", None, None, 99, [])),
    "only commits": Group("g", GroupState.EMPTY, 12),
}


class Verdict(NamedTuple):
    """What Kafka prints of a record, and how it writes it: under the version of inter.broker.protocol.version."""

    printed: str
    written: dict[str, bytes]
    oldest: tuple[bytes, bytes] | None


@pytest.fixture(scope="module")
def verdicts(kafka_jars: Path) -> dict[str, Verdict]:
    """By the name of the record."""
    names, lines = [], []
    for name, offset in OFFSETS.items():
        names.append(name)
        lines.append((offset_commit_key("größe", PARTITION), offset_commit_value(offset)))
    for name, group in GROUPS.items():
        names.append(name)
        lines.append((group_metadata_key(group.group_id), group_metadata_value(group, assignments(group))))
    output = oracle(kafka_jars, [f"{key.hex()} {value.hex()}" for key, value in lines])
    return dict(zip(names, map(verdict, output.removesuffix("\n\n").split("\n\n")), strict=True))


def oracle(jars: Path, lines: Sequence[str], *arguments: str) -> str:
    return java_tool(jars, str(ORACLE), *arguments, stdin="".join(f"{line}\n" for line in lines).encode()).decode()


def verdict(text: str) -> Verdict:
    printed, *lines = text.splitlines()
    written: dict[str, bytes] = {}
    oldest = None
    for line in lines:
        what, *data = line.split()
        if what == "oldest":
            oldest = bytes.fromhex(data[0]), bytes.fromhex(data[1])
        else:
            written[what] = bytes.fromhex(data[0])
    return Verdict(printed, written, oldest)


def assignments(group: Group) -> dict[str, bytes]:
    return {member.member_id: member.assignment for member in group.members.values()}


def said(group: Group) -> tuple:
    members = {
        one.member_id: (
            one.group_instance_id,
            one.client_id,
            one.client_host,
            one.rebalance_timeout_ms,
            one.session_timeout_ms,
            one.protocol_type,
            list(one.protocols),
            one.assignment,
        )
        for one in group.members.values()
    }
    state = (group.state, group.generation_id, group.protocol_type, group.protocol_name, group.leader_id)
    return (*state, group.state_timestamp_ms, members)


def test_kafka_prints_our_offsets(verdicts):
    assert {name: verdicts[name].printed for name in OFFSETS} == {
        "plain": "[größe,tröpfchen,5]::OffsetAndMetadata(offset=258, leaderEpoch=Optional[7], metadata=, "
        "commitTimestamp=1700000000000, expireTimestamp=None)",
        "noted": "[größe,tröpfchen,5]::OffsetAndMetadata(offset=9223372036854775807, leaderEpoch=Optional.empty, "
        "metadata=nötig \U0001f600, commitTimestamp=0, expireTimestamp=None)",
        "expiring": "[größe,tröpfchen,5]::OffsetAndMetadata(offset=3, leaderEpoch=Optional.empty, metadata=, "
        "commitTimestamp=1000, expireTimestamp=Some(2000))",
    }


def test_kafka_prints_our_groups(verdicts):
    assert verdicts["stable"].printed == (
        "größe::GroupMetadata(groupId=größe, generation=7, protocolType=Some(consumer), currentState=Stable, "
        "members=HashMap(m -> MemberMetadata(memberId=m, groupInstanceId=Some(inst), clientId=client, "
        "clientHost=/1.2.3.4, sessionTimeoutMs=10000, rebalanceTimeoutMs=300000, supportedProtocols=List(range), )))"
    )
    assert "groupInstanceId=None" in verdicts["dynamic"].printed
    assert verdicts["several"].printed.count("MemberMetadata(") == 3
    assert verdicts["empty"].printed == (
        "g::GroupMetadata(groupId=g, generation=8, protocolType=Some(consumer), currentState=Empty, members=HashMap())"
    )
    assert "generation=0, protocolType=None, currentState=Empty" in verdicts["only commits"].printed


@pytest.mark.parametrize("version", ["2.4", "2.8"])
def test_kafka_writes_the_same_bytes(verdicts, version):
    for name, offset in OFFSETS.items():
        written = verdicts[name].written
        assert written["key"] == offset_commit_key("größe", PARTITION)
        assert written[version] == offset_commit_value(offset), name
    # Kafka does not keep its members in order.
    for name, group in GROUPS.items():
        written = verdicts[name].written
        assert written["key"] == group_metadata_key(group.group_id)
        if name != "several":
            assert written[version] == group_metadata_value(group, assignments(group)), name


def test_we_read_all_versions_of_offsets(verdicts):
    for name, offset in OFFSETS.items():
        _, written, oldest = verdicts[name]
        assert oldest is not None
        values = {data[1]: data for version, data in written.items() if version != "key"} | {0: oldest[1]}
        assert sorted(values) == ([0, 1] if name == "expiring" else [0, 1, 2, 3])
        for version, data in values.items():
            expected = offset._replace(leader_epoch=offset.leader_epoch if version == 3 else -1)
            if version == 0:
                expected = expected._replace(expire_timestamp_ms=None)
            assert read_offset_value(data) == expected, (name, version)
        assert read_key(oldest[0]) == read_key(written["key"]) == ("größe", PARTITION)


def test_we_read_all_versions_of_groups(verdicts):
    for name, group in GROUPS.items():
        written = verdicts[name].written
        values = {data[1]: data for version, data in written.items() if version != "key"}
        assert sorted(values) == [0, 1, 2, 3]
        assert said(read_group_value(group.group_id, values[3])) == said(group), name
        for version in (0, 1, 2):
            back = read_group_value(group.group_id, values[version])
            assert back.state_timestamp_ms == (group.state_timestamp_ms if version == 2 else None)
            # What the older versions do not say.
            back.state_timestamp_ms = group.state_timestamp_ms
            for member_id, member in back.members.items():
                assert member.group_instance_id is None
                member.group_instance_id = group.members[member_id].group_instance_id
                assert member.rebalance_timeout_ms == (10_000 if version == 0 else 300_000)
                member.rebalance_timeout_ms = 300_000
            assert said(back) == said(group), (name, version)


@pytest.mark.long
def test_groups_belong_to_the_same_partitions(kafka_jars):
    group_ids = ["", "a", "größe", "\U0001f600\ud7ff", "polygenelubricants", *(f"group-{i}" * 3 for i in range(200))]
    expected = [int(line) for line in oracle(kafka_jars, group_ids, "partitions").split()]
    assert [partition_for(group_id, 50) for group_id in group_ids] == expected
    assert len(set(expected)) > 40
