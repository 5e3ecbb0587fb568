"""Keys and values of records as the text that kafka-dump-log prints for them. Pure.

What must stay true: arbitrary bytes give a text or a ValueError with the reason.

Source: kafka.serializer.Decoder, GroupMetadataManager.formatRecordKeyAndValue, TransactionLog.formatRecordKeyAndValue.
"""

import json
import struct
from collections.abc import Callable, Mapping
from typing import Final

from klamm.coordinator.groups.group import Member
from klamm.coordinator.groups.group_records import (
    GroupKey,
    OffsetKey,
    UnknownKey,
    read_group_value,
    read_key,
    read_offset_value,
)
from klamm.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, decode_assignment
from klamm.protocol.primitives import (
    read_compact_string,
    read_int32_array,
    read_length,
    read_string,
    skip_tagged_fields,
)

# version, producer id, producer epoch, time-out, state.
_TRANSACTION: Final = struct.Struct(">hqhib")
# The text of a key, and of a value; None for a null key or value.
Text = tuple[str | None, str | None]
Decode = Callable[[bytes | None, bytes | None], Text]

DELETED: Final = "<DELETE>"
_TRANSACTION_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


def _number(form: str) -> Callable[[bytes], str]:
    layout = struct.Struct(form)

    def decode(data: bytes) -> str:
        if len(data) < layout.size:
            raise ValueError(f"{len(data)} bytes are no number of {layout.size} bytes")
        return str(layout.unpack_from(data)[0])

    return decode


DECODERS: Final[Mapping[str, Callable[[bytes], str]]] = {
    "kafka.serializer.StringDecoder": lambda data: data.decode(errors="replace"),
    "kafka.serializer.IntegerDecoder": _number(">i"),
    "kafka.serializer.LongDecoder": _number(">q"),
    # Kafka prints the address of the array.
    "kafka.serializer.DefaultDecoder": bytes.hex,
}


def of_classes(key_class: str, value_class: str) -> Decode:
    """The decoder of ordinary records, by the names of Kafka's classes."""
    key_text, value_text = DECODERS[key_class], DECODERS[value_class]
    return lambda key, value: (
        None if key is None else key_text(key),
        None if value is None else value_text(value),
    )


# -- __consumer_offsets -----------------------------------------------------------------------------------------------


def offsets(key: bytes | None, value: bytes | None) -> Text:
    """A record of `__consumer_offsets`."""
    if key is None:
        raise ValueError("a record of __consumer_offsets without a key")
    parsed = read_key(key)
    match parsed:
        case OffsetKey(group_id, (topic, partition)):
            return f"offset_commit::group={group_id},partition={topic}-{partition}", _committed(value)
        case GroupKey(group_id):
            return f"group_metadata::group={group_id}", _group(group_id, value)
        case UnknownKey(version):
            # Later versions of Kafka have more kinds of records, such as those of the new consumer protocol.
            return f"unknown::version={version},key={key[2:].hex()}", DELETED if value is None else value.hex()


def _committed(value: bytes | None) -> str:
    if value is None:
        return DELETED
    committed = read_offset_value(value)
    return f"offset={committed.offset}" + (f",metadata={committed.metadata}" if committed.metadata else "")


def _group(group_id: str, value: bytes | None) -> str:
    if value is None:
        return DELETED
    group = read_group_value(group_id, value)
    is_consumers = group.protocol_type == CONSUMER_PROTOCOL_TYPE
    members = ",".join(f"{member.member_id}={_assignment(member, is_consumers)}" for member in group.members.values())
    shown = {
        "protocolType": group.protocol_type or "",
        "protocol": group.protocol_name,
        "generationId": group.generation_id,
        "assignment": f"{{{members}}}",
    }
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


def _assignment(member: Member, is_consumers: bool) -> str:
    if not is_consumers:
        return _hex(member.assignment)
    partitions = decode_assignment(member.assignment)
    return f"[{', '.join(f'{topic}-{number}' for topic, number in partitions)}]"


def _hex(data: bytes) -> str:
    """As Kafka prints it: without leading zeros."""
    return f"{int.from_bytes(data):X}" if data else ""


# -- __transaction_state ----------------------------------------------------------------------------------------------


def transactions(key: bytes | None, value: bytes | None) -> Text:
    """A record of `__transaction_state`."""
    try:
        if key is None or struct.unpack_from(">h", key)[0] != 0:
            raise ValueError("not the key of a transaction")
        name = f"transaction_metadata::transactionalId={read_string(key, 2)[0]}"
        return name, DELETED if value is None else _transaction(value)
    except (struct.error, IndexError):
        raise ValueError("the record ends too early") from None


def _transaction(value: bytes) -> str:
    """A value of version 0, or of version 1, which Kafka 4 writes."""
    version, producer_id, epoch, timeout_ms, status = _TRANSACTION.unpack_from(value)
    if version not in (0, 1) or not 0 <= status < len(_TRANSACTION_STATES):
        raise ValueError(f"a transaction of version {version} in state {status}")
    is_flexible = version == 1
    position, partitions = _TRANSACTION.size, []
    # Both versions may have null in place of an empty list.
    if is_flexible:
        count, position = read_length(value, position)
    else:
        (count,), position = struct.unpack_from(">i", value, position), position + 4
    elements = [len(value)]
    for _ in range(count):
        topic, position = read_compact_string(value, position) if is_flexible else read_string(value, position)
        numbers, position = read_int32_array(value, position, is_flexible, elements)
        partitions += [f"{topic}-{number}" for number in numbers]
        if is_flexible:
            position = skip_tagged_fields(value, position, elements)
    updated_ms, _started_ms = struct.unpack_from(">qq", value, position)
    return (
        f"producerId:{producer_id},producerEpoch:{epoch},state={_TRANSACTION_STATES[status]},"
        f"partitions=[{','.join(partitions)}],txnLastUpdateTimestamp={updated_ms},txnTimeoutMs={timeout_ms}"
    )
