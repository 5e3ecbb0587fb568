"""Dates and timestamps in texts, as Spark reads them: its own forms, and patterns of Java's DateTimeFormatter.

What must stay true: a text gives the value that Spark reads, or None. A pattern with an unknown letter is refused.
Importing this module imports nothing heavy, because planning processes check patterns.

Source: org.apache.spark.sql.catalyst.util.SparkDateTimeUtils, TimestampFormatter; java.time.format.DateTimeFormatter.
"""

import datetime
import re
from collections.abc import Callable
from functools import lru_cache
from zoneinfo import ZoneInfo

DAY_US = 86_400_000_000
_LONG_MAX = 2**63 - 1
_LONGEST_ZONE = 100
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_LONG_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
# Java's String.trim, and the control characters that Spark strips too.
_BLANK = "".join(map(chr, range(33))) + "\x7f"


class PatternError(ValueError):
    """A pattern that is not supported."""


def days_since_epoch(year: int, month: int, day: int) -> int | None:
    """The day's number in the proleptic Gregorian calendar; None if the day does not exist."""
    if not 1 <= month <= 12 or day < 1:
        return None
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _MONTH_DAYS[month - 1] + (is_leap and month == 2):
        return None
    shifted = year - (month <= 2)
    era, year_of_era = divmod(shifted, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


# -- zones ------------------------------------------------------------------------------------------------------------

_OFFSET = re.compile(r"([+-])(\d{1,2})(?::(\d{1,2})(?::(\d{2}))?|(\d{2})(\d{2})?)?", re.ASCII)


@lru_cache(maxsize=256)
def zone(text: str) -> "Callable[[int], int] | None":
    """A function from local microseconds to the zone's offset in microseconds; None if the text is not a zone."""
    text = text.strip(_BLANK)
    for prefix in ("", "UTC", "GMT", "UT"):
        if text.startswith(prefix) and (match := _OFFSET.fullmatch(text[len(prefix) :])):
            hours, minutes, seconds = int(match[2]), int(match[3] or match[5] or 0), int(match[4] or match[6] or 0)
            total = hours * 3600 + minutes * 60 + seconds
            if minutes > 59 or seconds > 59 or total > 18 * 3600 or (len(match[2]) == 1 and match[5]):
                return None
            offset_us = (-total if match[1] == "-" else total) * 1_000_000
            return lambda _: offset_us
    if text in ("Z", "UTC", "GMT", "UT"):
        return lambda _: 0
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9~/._+-]+", text):
        return None
    try:
        region = ZoneInfo(text)
    except (ValueError, OSError, KeyError):
        return None
    return lambda local_us: _region_offset(region, local_us)


def _region_offset(region: ZoneInfo, local_us: int) -> int:
    epoch = datetime.datetime(1970, 1, 1)
    local = epoch + datetime.timedelta(microseconds=local_us)
    offset = local.replace(tzinfo=region).utcoffset() or datetime.timedelta()
    # In a gap, Java uses the offset from before the gap, which is that of fold 0.
    return offset // datetime.timedelta(microseconds=1)


# -- Spark's own forms ------------------------------------------------------------------------------------------------

_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_TIMESTAMP = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?(.*))?)?)?",
    re.ASCII | re.DOTALL,
)


def spark_date(text: str) -> int | None:
    """Days since 1970 of a text in Spark's own form, or of a plain number of days, which old versions of Spark
    wrote."""
    for candidate in _candidates(text):
        match = _DATE.fullmatch(candidate)
        if match is not None:
            days = days_since_epoch(int(match[1]), int(match[2] or 1), int(match[3] or 1))
            if days is not None and -(2**31) <= days < 2**31:
                return days
    if re.fullmatch(r"[+-]?\d{1,10}", text, re.ASCII) and -(2**31) <= int(text) < 2**31:
        return int(text)
    return None


def spark_timestamp(text: str, default_zone: str) -> int | None:
    """Microseconds since 1970 of a text in Spark's own form. A text without a zone is in `default_zone`."""
    for candidate in _candidates(text):
        found = _timestamp(candidate)
        if found is not None:
            micros = to_utc(found[0], found[1] or default_zone)
            if micros is not None:
                return micros
    return None


def spark_local_timestamp(text: str) -> int | None:
    """Microseconds of a text in Spark's own form without a zone; None for a text that has a zone."""
    found = _timestamp(text.strip(_BLANK))
    return None if found is None or found[1] else found[0]


def _candidates(text: str) -> tuple[str, ...]:
    """The text, and also without the GMT that Spark 2 wrote before an offset."""
    plain = text.strip(_BLANK)
    return (plain, text.replace("GMT", "").strip(_BLANK)) if "GMT" in text else (plain,)


def _timestamp(text: str) -> tuple[int, str] | None:
    """(local microseconds, the zone's name, which may be empty)."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    days = days_since_epoch(int(match[1]), int(match[2] or 1), int(match[3] or 1))
    hour, minute, second = (int(match[group] or 0) for group in (4, 5, 6))
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    return days * DAY_US + _time_us(hour, minute, second, match[7] or ""), match[8] or ""


def to_utc(local_us: int, zone_name: str) -> int | None:
    # `zone` caches its arguments, so long texts are not passed to it.
    found = None if len(zone_name) > _LONGEST_ZONE else zone(zone_name)
    if found is None:
        return None
    try:
        micros = local_us - found(local_us)
    except OverflowError:
        return None
    return micros if -_LONG_MAX <= micros <= _LONG_MAX else None


def _time_us(hour: int, minute: int, second: int, fraction: str) -> int:
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + int(fraction[:6].ljust(6, "0"))


# -- patterns ---------------------------------------------------------------------------------------------------------

_LETTERS = {
    "yyyy": r"(?P<year>\d{4})",
    "yy": r"(?P<short>\d{2})",
    "y": r"(?P<year>\d{1,6})",
    "MMMM": rf"(?P<long>{'|'.join(_LONG_MONTHS)})",
    "MMM": rf"(?P<name>{'|'.join(_MONTHS)})",
    "MM": r"(?P<month>\d{2})",
    "M": r"(?P<month>\d{1,2})",
    "dd": r"(?P<day>\d{2})",
    "d": r"(?P<day>\d{1,2})",
    "HH": r"(?P<hour>\d{2})",
    "H": r"(?P<hour>\d{1,2})",
    "hh": r"(?P<clock>\d{2})",
    "h": r"(?P<clock>\d{1,2})",
    "a": r"(?P<half>[AaPp][Mm])",
    "mm": r"(?P<minute>\d{2})",
    "m": r"(?P<minute>\d{1,2})",
    "ss": r"(?P<second>\d{2})",
    "s": r"(?P<second>\d{1,2})",
    # The number of letters X says how an offset is written.
    "X" * 3: r"(?P<zone>Z|[+-]\d{2}:\d{2})",
    "XX": r"(?P<zone>Z|[+-]\d{4})",
    "X": r"(?P<zone>Z|[+-]\d{2}(?:\d{2})?)",
    "xxx": r"(?P<zone>[+-]\d{2}:\d{2})",
    "xx": r"(?P<zone>[+-]\d{4})",
    "Z": r"(?P<zone>[+-]\d{4})",
    "VV": r"(?P<zone>[A-Za-z0-9~/._+:-]+)",
}
_LETTERS.update({"S" * count: rf"(?P<fraction>\d{{{count}}})" for count in range(1, 10)})
_TOKEN = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|.", re.DOTALL)


@lru_cache(maxsize=64)
def pattern(text: str) -> "re.Pattern[str]":
    """A regular expression for a pattern of DateTimeFormatter. Raises PatternError."""
    made, used = [], set()
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "''":
            made.append("'")
        elif len(token) > 1 and token.startswith("'"):
            made.append(re.escape(token[1:-1].replace("''", "'")))
        elif token.isalpha() and token.isascii():
            expression = _LETTERS.get(token)
            if expression is None:
                raise PatternError(f"has {token}; allowed: {', '.join(_LETTERS)}")
            group = expression[4 : expression.index(">")]
            if group in used:
                raise PatternError(f"has {token}, which sets the {group} a second time")
            used.add(group)
            made.append(expression)
        elif token == "[":
            made.append("(?:")
        elif token == "]":
            made.append(")?")
        elif token in "#{}'":
            raise PatternError(f"has {token}, which is reserved")
        else:
            made.append(re.escape(token))
    if not (used & {"year", "short"} and used & {"month", "name", "long"} and "day" in used):
        raise PatternError("needs year, month and day: y, M and d")
    try:
        return re.compile("".join(made), re.ASCII)
    except re.error:
        raise PatternError("has an optional part that does not end") from None


def by_pattern(expression: "re.Pattern[str]", text: str) -> tuple[int, int, str | None] | None:
    """(days since 1970, microseconds of the day, zone) of a text, None for a text that the pattern does not match."""
    match = expression.fullmatch(text)
    if match is None:
        return None
    found = match.groupdict()
    year = int(found.get("year") or 2000 + int(found.get("short") or 0))
    if found.get("name"):
        month = _MONTHS.index(found["name"]) + 1
    elif found.get("long"):
        month = _LONG_MONTHS.index(found["long"]) + 1
    else:
        month = int(found.get("month") or 1)
    days = days_since_epoch(year, month, int(found.get("day") or 1))
    hour, minute, second = (int(found.get(name) or 0) for name in ("hour", "minute", "second"))
    if found.get("clock"):
        clock = int(found["clock"])
        if not 1 <= clock <= 12:
            return None
        hour = clock % 12 + (12 if (found.get("half") or "AM").upper() == "PM" else 0)
    if days is None or hour > 23 or minute > 59 or second > 59:
        return None
    return days, _time_us(hour, minute, second, found.get("fraction") or ""), found.get("zone")
