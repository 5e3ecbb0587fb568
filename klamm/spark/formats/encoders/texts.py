"""Converts columns of plain values to text like Spark's JSON and CSV writers, without an object for each row.

What must stay true: a null stays null. The text is the one that Spark writes, except that a floating point number has
the fewest digits that identify it (Java before 19 sometimes writes one more).

Source: org.apache.spark.sql.catalyst.json.JacksonGenerator, org.apache.spark.sql.catalyst.csv.UnivocityGenerator,
java.lang.Double.toString.
"""

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[Any]

# Java writes numbers from 10^-3 to 10^7 without an exponent.
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e7
_LAST_DAY_OF_YEAR_9999 = 2_932_896
_SECONDS = "%Y-%m-%dT%H:%M:%S"
# From 2037 on, Arrow ignores summer time, because the zone then only has a rule for it.
_RULES_FROM_MS = 2_114_380_800_000
# The calendar, weekdays included, repeats after 400 years.
_400_YEARS_MS = 146_097 * 86_400_000


def is_plain(data_type: pa.DataType) -> bool:
    """Whether `plain` supports the type."""
    checks: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_date32,
        pa.types.is_timestamp,
        pa.types.is_string,
        pa.types.is_large_string,
    )
    return any(check(data_type) for check in checks)


def plain(array: pa.Array, time_zone: str | None) -> pa.Array:
    """The text of each value. Timestamps are in `time_zone`, by default in the zone of their type, the session's."""
    if pa.types.is_floating(array.type):
        return _floats(array)
    if pa.types.is_date32(array.type):
        return _dates(array)
    if pa.types.is_timestamp(array.type):
        return _timestamps(array, time_zone)
    return array.cast(pa.string())


def _floats(array: pa.Array) -> pa.Array:
    name = _java_float if pa.types.is_float32(array.type) else _java_double
    values = array.to_numpy(zero_copy_only=False)
    whole = _whole_numbers(array, values)
    if whole is not None:
        return whole
    known: dict[float, str] = {}
    texts = []
    for value in array.to_pylist():
        text = None if value is None else known.get(value)
        if text is None and value is not None:
            text = name(value)
            # Zero equals minus zero.
            if value:
                known[value] = text
        texts.append(text)
    return pa.array(texts, pa.string())


def _whole_numbers(array: pa.Array, values: Numbers) -> pa.Array | None:
    """The texts if all values are whole numbers below 10^7, which is common; otherwise None."""
    if array.null_count:
        values = np.nan_to_num(pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False), nan=0.5)
    with np.errstate(invalid="ignore"):
        if not bool(np.all((np.abs(values) < _PLAIN_TO) & (np.trunc(values) == values) & ~_minus_zero(values))):
            return None
    texts = pc.binary_join_element_wise(pa.array(values.astype(np.int64)).cast(pa.string()), ".0", "")
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


def _minus_zero(values: Numbers) -> npt.NDArray[np.bool_]:
    return np.asarray((values == 0) & np.signbit(values))


def _java_double(value: float) -> str:
    text = repr(value)
    return text if _PLAIN_FROM <= abs(value) < _PLAIN_TO else _with_exponent(value, text)


def _java_float(value: float) -> str:
    if _PLAIN_FROM <= abs(value) < _PLAIN_TO:
        return np.format_float_positional(np.float32(value), trim="0")
    return _with_exponent(value, np.format_float_scientific(np.float32(value), trim="0"))


def _with_exponent(value: float, shortest: str) -> str:
    """A number with an exponent as Java writes it, from the shortest text that identifies the number."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign, digits, exponent = _digits(shortest)
    if value == 0:
        return f"{sign}0.0"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _digits(text: str) -> tuple[str, str, int]:
    """Sign, digits without zeros at the ends, and the exponent of the first digit."""
    sign = "-" if text.startswith("-") else ""
    mantissa, _, power = text.removeprefix("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    all_digits = whole + fraction
    digits = all_digits.lstrip("0")
    exponent = len(whole) - 1 - (len(all_digits) - len(digits)) + int(power or 0)
    return sign, digits.rstrip("0") or "0", exponent


def _dates(array: pa.Array) -> pa.Array:
    texts = array.cast(pa.string())
    days = array.cast(pa.int32())
    late = pc.greater(days, _LAST_DAY_OF_YEAR_9999)
    return pc.if_else(late, pc.binary_join_element_wise("+", texts, ""), texts)


def _timestamps(array: pa.Array, time_zone: str | None) -> pa.Array:
    """ISO 8601, truncated to milliseconds, with the offset of the zone if the type has a zone."""
    zone = None if array.type.tz is None else time_zone or array.type.tz
    instants = pc.floor_temporal(array.cast(pa.timestamp("us", zone)), unit="millisecond").cast(
        pa.timestamp("ms", zone)
    )
    texts = pc.strftime(instants, format=_SECONDS + ("" if zone is None else "%Ez"))
    if zone is not None:
        beyond = pc.fill_null(pc.greater_equal(instants.cast(pa.int64()), _RULES_FROM_MS), False)
        if pc.any(beyond).as_py() and (rules := _rules(zone)) is not None:
            texts = pc.replace_with_mask(texts, beyond, _by_rules(instants.filter(beyond).cast(pa.int64()), rules))
        texts = pc.replace_substring_regex(texts, r"\+00:00$", "Z")
    late = pc.match_substring_regex(texts, r"^\d{5}")
    return pc.if_else(late, pc.binary_join_element_wise("+", texts, ""), texts)


def _rules(zone: str) -> ZoneInfo | None:
    """Python's object for the zone; None for an offset, which has no rules."""
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        return None


def _by_rules(instants_ms: pa.Array, zone: ZoneInfo) -> pa.Array:
    offsets = []
    for instant_ms in instants_ms.to_pylist():
        same_ms = _RULES_FROM_MS + (instant_ms - _RULES_FROM_MS) % _400_YEARS_MS
        offset = datetime.fromtimestamp(same_ms / 1000, zone).utcoffset()
        offsets.append(0 if offset is None else int(offset.total_seconds()))
    local_ms = pc.add(instants_ms, pa.array([offset * 1000 for offset in offsets], pa.int64()))
    ends = [f"{'-' if offset < 0 else '+'}{abs(offset) // 3600:02}:{abs(offset) // 60 % 60:02}" for offset in offsets]
    texts = pc.strftime(local_ms.cast(pa.timestamp("ms")), format=_SECONDS)
    return pc.binary_join_element_wise(texts, pa.array(ends, pa.string()), "")
