import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.storage.segments.checkpoints import (
    format_leader_epoch_checkpoint,
    format_offset_checkpoint,
    parse_leader_epoch_checkpoint,
    parse_offset_checkpoint,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from support.logs import DiskEnvironment

topics = st.text("abcXYZ019._-", min_size=1, max_size=20)
offsets = st.dictionaries(st.tuples(topics, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1))


def test_the_form_is_kafkas():
    content = format_offset_checkpoint({("t", 0): 5, ("a.b-c", 12): 2**62})
    assert content == b"0\n2\nt 0 5\na.b-c 12 4611686018427387904\n"
    assert format_leader_epoch_checkpoint([(0, 0), (7, 12)]) == b"0\n2\n0 0\n7 12\n"


@given(offsets)
def test_offsets_survive(entries):
    assert parse_offset_checkpoint(format_offset_checkpoint(entries), "f") == entries


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), unique_by=lambda e: e[0]))
def test_leader_epochs_survive(entries):
    ascending = list(zip(sorted(e for e, _ in entries), sorted(o for _, o in entries), strict=True))
    assert parse_leader_epoch_checkpoint(format_leader_epoch_checkpoint(ascending), "f") == ascending


@given(offsets, st.data())
def test_a_torn_file_is_noticed(entries, data):
    content = format_offset_checkpoint(entries)
    torn = content[: data.draw(st.integers(1, len(content) - 1))]
    with pytest.raises(KafkaError):
        parse_offset_checkpoint(torn, "f")


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (b"1\n0\n", 1, "version 1"),
        (b"x\n0\n", 1, "not a number"),
        (b"0\n", 2, "missing"),
        (b"0\n-1\n", 2, "not a number"),
        (b"0\n2\nt 0 5\n", 2, "2 entries are announced, 1 are there"),
        (b"0\n1\nt 0\n", 3, "not of the form"),
        (b"0\n2\nt 0 5\nt 0 6\n", 4, "second entry"),
        (b"0\n1\nt 0 5", 3, "ends within a line"),
        (b"0\n1\nt -1 5\n", 3, "not a number"),
        (b"0\n1\nt 0 9223372036854775808\n", 3, "not a number"),
        (b"0\n1\n\xff 0 5\n", 3, "UTF-8"),
        ("0\n1\nt 0 \u0665\n".encode(), 3, "not a number"),
    ],
)
def test_malformed_files_are_named(content, line, what):
    with pytest.raises(KafkaError, match=rf"/d/checkpoint, line {line}: .*{what}") as caught:
        parse_offset_checkpoint(content, "/d/checkpoint")
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("content", [b"0\n2\n3 0\n2 5\n", b"0\n2\n3 5\n4 4\n", b"0\n2\n3 5\n3 6\n"])
def test_epochs_must_ascend(content):
    with pytest.raises(KafkaError, match="line 4: epoch"):
        parse_leader_epoch_checkpoint(content, "f")


@given(st.binary(max_size=60) | st.text("0123456789 \n-t", max_size=40).map(str.encode))
def test_garbage_gets_an_error_or_a_value(content):
    for parse in (parse_offset_checkpoint, parse_leader_epoch_checkpoint):
        try:
            parse(content, "f")
        except KafkaError as error:
            assert error.message.startswith("f, line ")


def test_files():
    file_system = DiskEnvironment().file_system
    assert read_offset_checkpoint(file_system, "/c") == {}
    write_offset_checkpoint(file_system, "/c", {("t", 1): 2})
    assert read_offset_checkpoint(file_system, "/c") == {("t", 1): 2}
    file_system.replace_file("/c", b"")
    assert read_offset_checkpoint(file_system, "/c") == {}
