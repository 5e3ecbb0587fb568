"""Converts texts to dates, timestamps, decimals and bytes, for JSON and CSV.

What must stay true: a text that cannot be converted is reported by its index and never raises.
"""

import base64
import decimal
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.spark.formats import patterns
from klamm.spark.formats.coding import Mask

_EXACT = decimal.Context(prec=2000, rounding=decimal.ROUND_HALF_UP, Emax=10**6, Emin=-(10**6), traps=[])
# The timestamps that Arrow and Spark read alike: no zone but Z, at most six digits of a fraction.
_COMMON_TIMESTAMP = r"^\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?$"
_COMMON_DATE = r"^\d{4}-\d{2}-\d{2}$"
# base64: the characters that are skipped before a group of four, and groups up to a padded one.
_SPACES, _ENDS_WITH_PADDING = re.compile("[\\0- ]+"), re.compile("[^=]+={0,2}|=+")
# Java's BigInteger refuses larger powers of ten, which would have more than 2**31 bits.
_MAX_POWER_OF_TEN = 2**29


class Converter:
    """Converts texts by the settings `dateFormat`, `timestampFormat`, `timestampNTZFormat` and `timeZone`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._zone = settings.get("timeZone", "UTC").strip()
        self._date = _pattern(settings.get("dateFormat"))
        self._timestamp = _pattern(settings.get("timestampFormat"))
        self._local = _pattern(settings.get("timestampNTZFormat"))

    def convert(self, texts: pa.Array, data_type: pa.DataType) -> tuple[pa.Array, Mask | None]:
        """(values, which texts were wrong)."""
        if pa.types.is_timestamp(data_type):
            return self._timestamps(texts, data_type)
        if pa.types.is_date(data_type):
            common = cast_common(texts, data_type, _COMMON_DATE) if self._date is None else None
            return each(texts, data_type, self._days) if common is None else (common, None)
        if pa.types.is_decimal(data_type):
            return each(texts, data_type, lambda text: to_decimal(text, data_type.precision, data_type.scale))
        if pa.types.is_binary(data_type):
            return each(texts, data_type, _from_base64)
        raise ValueError(f"a text cannot become {data_type}")

    def _timestamps(self, texts: pa.Array, data_type: pa.DataType) -> tuple[pa.Array, Mask | None]:
        is_local = data_type.tz is None
        if (self._local if is_local else self._timestamp) is None and (is_local or self._zone in ("UTC", "Z")):
            fast = self._common(texts, data_type, may_end_in_z=not is_local)
            if fast is not None:
                return fast, None
        return each(texts, data_type, self._local_micros if is_local else self._micros)

    @staticmethod
    def _common(texts: pa.Array, data_type: pa.DataType, *, may_end_in_z: bool) -> pa.Array | None:
        """All texts, converted by Arrow's own loops; None if a text is not in the common form."""
        plain = pc.utf8_rtrim(texts, characters="Z") if may_end_in_z else texts
        longer = pc.subtract(pc.binary_length(texts), pc.binary_length(plain))
        if len(texts) and (pc.max(longer).as_py() or 0) > 1:
            return None
        made = cast_common(plain, pa.timestamp("us"), _COMMON_TIMESTAMP)
        return None if made is None else made.cast(pa.int64()).cast(data_type)

    def _micros(self, text: str) -> int | None:
        if self._timestamp is None:
            return patterns.spark_timestamp(text, self._zone)
        found = patterns.by_pattern(self._timestamp, text)
        return None if found is None else patterns.to_utc(found[0] * patterns.DAY_US + found[1], found[2] or self._zone)

    def _local_micros(self, text: str) -> int | None:
        if self._local is None:
            return patterns.spark_local_timestamp(text)
        found = patterns.by_pattern(self._local, text)
        return None if found is None else found[0] * patterns.DAY_US + found[1]

    def _days(self, text: str) -> int | None:
        if self._date is None:
            return patterns.spark_date(text)
        found = patterns.by_pattern(self._date, text)
        return None if found is None else found[0]


def cast_common(texts: pa.Array, data_type: pa.DataType, form: str) -> pa.Array | None:
    """All texts, converted by Arrow's own loops; None if a text does not have the form or does not fit the type."""
    try:
        return texts.cast(data_type) if pc.all(pc.match_substring_regex(texts, form)).as_py() else None
    except pa.ArrowInvalid:
        return None


def each(texts: pa.Array, data_type: pa.DataType, convert: Callable[[str], Any | None]) -> tuple[pa.Array, Mask | None]:
    """Converts the texts one by one. A text is wrong if it becomes None or a time out of range. Equal texts are
    converted once."""
    is_number = pa.types.is_timestamp(data_type) or pa.types.is_date(data_type)
    storage = (pa.int64() if pa.types.is_timestamp(data_type) else pa.int32()) if is_number else data_type
    limit = 2 ** (storage.bit_width - 1) if is_number else 0
    known: dict[str, Any] = {}
    values: list[Any] = []
    wrong: list[int] = []
    for index, text in enumerate(texts.to_pylist()):
        if text is None:
            values.append(None)
            continue
        if text not in known:
            found = convert(text)
            known[text] = None if is_number and found is not None and not -limit <= found < limit else found
        values.append(known[text])
        if values[-1] is None:
            wrong.append(index)
    made = pa.array(values, storage)
    return (made.cast(data_type) if is_number else made), mask_of(wrong, len(values))


def mask_of(indexes: Sequence[int], length: int) -> Mask | None:
    if not indexes:
        return None
    mask = np.zeros(length, np.bool_)
    mask[list(indexes)] = True
    return mask


def to_decimal(text: str, precision: int, scale: int) -> decimal.Decimal | None:
    """The number, rounded half up to the scale; None if the text is not a number or the number is too large."""
    # Spark reads decimals by Java's DecimalFormat of Locale.US.
    plain = text.replace(",", "")
    try:
        number = decimal.Decimal(plain) if "_" not in text and text == text.strip() else None
    except decimal.InvalidOperation:
        return None
    if number is None or not number.is_finite():
        return None
    if ("e" in plain or "E" in plain) and not _is_in_javas_range(number, plain, scale):
        return None
    if number and number.adjusted() >= precision - scale:
        return None
    if number and number.adjusted() < -scale - 1:
        return decimal.Decimal(0)
    rounded = number.quantize(decimal.Decimal(1).scaleb(-scale), context=_EXACT)
    fits = rounded.is_finite() and rounded.adjusted() < precision - scale
    return rounded if fits or not rounded else None


def _is_in_javas_range(number: decimal.Decimal, text: str, scale: int) -> bool:
    """Whether Java's BigDecimal, with which Spark reads decimals, can hold the number and set its scale."""
    _, _, exponent = text.lower().partition("e")
    significant = exponent.lstrip("+-0") or "0"
    if len(significant) > len(str(2**31)) or int(significant) >= 2**31:
        return False
    places = -int(number.as_tuple().exponent)
    return places < 2**31 and (not number or places - scale <= _MAX_POWER_OF_TEN)


def _from_base64(text: str) -> bytes | None:
    """Decodes base64 as Jackson does for Spark: groups of four, each with its own padding. Between groups, characters
    up to the space are allowed."""
    found = _usual_base64(text)
    if found is not None:
        return found
    groups = [_usual_base64(each) for part in _SPACES.split(text) for each in _ENDS_WITH_PADDING.findall(part)]
    return b"".join(filter(None, groups)) if None not in groups else None


def _usual_base64(text: str) -> bytes | None:
    """Decodes base64 without characters between the groups, and with padding only at the end."""
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return found if len(text) == 4 * ((len(found) + 2) // 3) else None


def _pattern(text: str | None) -> Any:
    return None if text is None else patterns.pattern(text)
