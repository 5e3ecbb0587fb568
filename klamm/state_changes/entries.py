"""Entries of state-change.log: where they begin, which partitions they name, and what they say. Pure.

An entry is a line that begins with a time, and the lines behind it up to the next such line (a stack trace, for
example). Kafka's versions write partitions in different forms; klamm writes those of 2.8.

| form                                | written by                                             |
|-------------------------------------|--------------------------------------------------------|
| `[topic,0]`                         | 0.8 to 0.11                                            |
| `(topic,0)`                         | 0.8.0, and 2.8 with KRaft, which prints more behind it |
| `topic-0`                           | 1.0 and later                                          |
| `topicName='topic', partitionIndex=0` | 2.2 and later, for the content of requests             |

What must stay true: times are compared as text (`yyyy-MM-dd HH:mm:ss,SSS`), as the brokers wrote them.
"""

import re
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import NamedTuple

FORM = "yyyy-MM-dd HH:mm:ss,SSS"
TIME_SIZE = len(FORM)
EARLIEST = b"0000-00-00 00:00:00,000"
# Behind every time.
END_OF_TIME = b"~"

_TIME = rb"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]{3}"
# Log4j's layouts put the time first, in brackets or without.
BEGINNING = re.compile(rb"\[?" + _TIME)
BEGINNING_OF_LINE = re.compile(rb"\n\[?" + _TIME)
_MOST_DIGITS = len("-2147483648")
_FORMAT = "%Y-%m-%d %H:%M:%S"


def earlier(time: bytes, by_ms: int) -> bytes:
    """The time `by_ms` before `time`. A text of another form, such as `END_OF_TIME`, stays as it is."""
    try:
        moment = datetime.strptime(time[:-4].decode(), _FORMAT) + timedelta(milliseconds=int(time[-3:]) - by_ms)
    except (ValueError, OverflowError):
        return time
    return f"{moment:{_FORMAT}},{moment.microsecond // 1000:03}".encode()


# -- which partitions an entry names ----------------------------------------------------------------------------------

Selector = Callable[[bytes, int, int], bool]
"""Whether the bytes between two positions name a wanted partition."""


def names(topic: str, partitions: Collection[int]) -> Selector:
    """A selector for partitions of a topic; without `partitions` for all of them."""
    name = re.escape(topic.encode())
    number = rb"(?:%s)" % b"|".join(b"%d" % each for each in sorted(partitions)) if partitions else rb"[0-9]+"
    # Names may contain dots and dashes. A dot behind a partition ends the sentence, because a number ends the name.
    pattern = re.compile(
        rb"(?<![\w.-])%(name)b-%(number)b(?!\.*[\w-])"
        rb"|[\[(]%(name)b, ?%(number)b[\]),]"
        rb"|topicName='%(name)b', partitionIndex=%(number)b[,)]" % {b"name": name, b"number": number}
    )
    return lambda text, begin, end: pattern.search(text, begin, end) is not None


_NAMED = re.compile(
    rb"[\[(](?P<old>[\w.-]+), ?(?P<old_number>[0-9]+)[\]),]"
    rb"|topicName='(?P<field>[\w.-]+)', partitionIndex=(?P<field_number>[0-9]+)"
    rb"|\b(?:[Pp]artition|[Ll]eader|Follower) (?P<new>[\w.-]+)-(?P<new_number>[0-9]+)(?!\.*[\w-])"
)


def first_partition(text: bytes) -> tuple[str, int] | None:
    """The first partition that the entry names."""
    match = _NAMED.search(text)
    if match is None:
        return None
    for form in ("old", "field", "new"):
        if match[form] is not None:
            number = _int32(match[f"{form}_number"])
            return None if number is None else (match[form].decode(), number)
    return None


# -- what an entry says -----------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """The content of an entry; None where it does not say. `is_controller` tells by which part of the broker it was
    written; `text` is the message without time, level and logger."""

    time: str
    level: str | None
    broker: int | None
    is_controller: bool
    controller_epoch: int | None
    leader: int | None
    leader_epoch: int | None
    isr: list[int] | None
    replica: int | None
    from_state: str | None
    to_state: str | None
    text: str


_LAYOUT = re.compile(rb"\[?%b\]? *(?:\[?(TRACE|DEBUG|INFO|WARN|ERROR|FATAL)\]? +)?" % _TIME)
_LOGGER = re.compile(rb" \((?:state\.change\.logger|[\w.$]+)\)$")
_WRITER = re.compile(rb"\[?(?P<part>Controller|Broker)(?: id=| )(?P<id>[0-9]+)(?:,? epoch[= ](?P<epoch>[0-9]+))?\]?:?")
_CONTROLLER_EPOCH = re.compile(
    rb"controller [0-9]+ (?:with correlation id [0-9]+ )?epoch ([0-9]+)|[Cc]ontrollerEpoch[:=]([0-9]+)"
)
_LEADER = re.compile(rb"[ (]leader=(-?[0-9]+)|\(Leader:(-?[0-9]+)|with leader (-?[0-9]+)|new leader (-?[0-9]+)")
_STARTS_AS_LEADER = re.compile(rb"\bLeader [\w.-]+-[0-9]+ .*?starts at")
_LEADER_EPOCH = re.compile(rb"leaderEpoch=(-?[0-9]+)|LeaderEpoch:(-?[0-9]+)|at leader epoch (-?[0-9]+)")
_ISR = re.compile(rb"isr=(?:List\(|\[)([0-9, ]*)|ISR:([0-9,]*)|\bISR \[([0-9,]*)\]")
_REPLICA = re.compile(rb"\breplica ([0-9]+) ")
_STATES = re.compile(rb"from (\w+(?:Partition|Replica|Started|Successful|Ineligible)) to (\w+)")


def parse(entry: bytes) -> Said:
    """What an entry says."""
    at = int(entry[:1] == b"[")
    layout = _LAYOUT.match(entry)
    message = entry[layout.end() :] if layout else entry
    first_line, newline, rest = message.partition(b"\n")
    message = _LOGGER.sub(b"", first_line) + newline + rest
    writer = _WRITER.search(first_line)
    states = _STATES.search(message)
    broker = _int32(writer["id"]) if writer else None
    leader = _number(_LEADER, message)
    if leader is None and _STARTS_AS_LEADER.search(message):
        leader = broker
    epoch = _int32(writer["epoch"]) if writer and writer["epoch"] else _number(_CONTROLLER_EPOCH, message)
    return Said(
        time=entry[at : at + TIME_SIZE].decode(errors="replace"),
        level=layout[1].decode() if layout and layout[1] else None,
        broker=broker,
        is_controller=writer is not None and writer["part"] == b"Controller",
        controller_epoch=epoch,
        leader=leader,
        leader_epoch=_number(_LEADER_EPOCH, message),
        isr=_isr(message),
        replica=_number(_REPLICA, message),
        from_state=states[1].decode() if states else None,
        to_state=states[2].decode() if states else None,
        text=message.decode(errors="replace"),
    )


def _number(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    match = pattern.search(text)
    return None if match is None or match.lastindex is None else _int32(match[match.lastindex])


def _isr(text: bytes) -> list[int] | None:
    match = _ISR.search(text)
    if match is None or match.lastindex is None:
        return None
    numbers = [_int32(each) for each in match[match.lastindex].replace(b" ", b"").split(b",") if each]
    return None if None in numbers else [number for number in numbers if number is not None]


def _int32(digits: bytes) -> int | None:
    """The number; None for one that is no id or epoch of Kafka, all of which have 32 bits."""
    if len(digits) > _MOST_DIGITS:
        return None
    number = int(digits)
    return number if -(2**31) <= number < 2**31 else None
