"""The notation of messages: what a class of it does, and what its errors say."""

from __future__ import annotations

import pytest

from klamm.protocol.compiler import decoders, encoders
from klamm.protocol.primitives import InvalidFrame
from klamm.protocol.schema import SMALL, Int32, Request, Response, String, Struct, Versions, field, fields_of


class OrderRequest(Request["OrderResponse"], api=0, versions="1-3", flexible="3+", size=SMALL):
    class Item(Struct):
        name: String
        count: Int32 = 1
        note: String | None = field("2+", default="-", nullable="3+")

    items: list[Item]
    tables: list[Int32] = field("1-2", default=[])
    hall: String | None = field("3+", default=None, tag=4)


class OrderResponse(Response):
    pass


Item = OrderRequest.Item


def decoded(version: int, body: bytes) -> object:
    return decoders.compile_decoder(OrderRequest, version, version >= 3, 100)(body, 0)


def encoded(version: int, message: OrderRequest) -> bytes:
    return b"".join(encoders.compile_encoder(OrderRequest, version, version >= 3)(message))


def test_every_version_has_its_own_layout() -> None:
    order = OrderRequest(items=[Item(name="tea", count=2, note="hot")], tables=[7], hall="b")
    assert encoded(1, order) == b"\0\0\0\1\0\3tea\0\0\0\2\0\0\0\1\0\0\0\7"
    assert encoded(2, order) == b"\0\0\0\1\0\3tea\0\0\0\2\0\3hot\0\0\0\1\0\0\0\7"
    assert encoded(3, order) == b"\2\4tea\0\0\0\2\4hot\0\1\4\2\2b"


def test_a_field_that_a_version_lacks_reads_as_its_default() -> None:
    assert decoded(1, b"\0\0\0\1\0\3tea\0\0\0\2\0\0\0\0") == OrderRequest(
        items=[Item(name="tea", count=2, note="-")], tables=[], hall=None
    )
    assert decoded(3, b"\1\0") == OrderRequest(items=[])


def test_default_lists_are_not_shared() -> None:
    first, second = OrderRequest(items=[]), OrderRequest(items=[])
    first.tables.append(1)
    assert second.tables == []
    assert decoded(3, b"\1\0") == second


def test_fields_are_given_by_name() -> None:
    with pytest.raises(TypeError, match=r"Item.__init__\(\) got an unexpected keyword argument 'colour'"):
        Item(name="tea", colour="green")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Item(name="tea").colour = "green"  # type: ignore[attr-defined]


def test_a_field_without_a_default_must_be_given() -> None:
    """mypy says so where it knows the class; where it does not, the constructor does."""
    with pytest.raises(TypeError, match=r"Item.__init__\(\) missing 1 required keyword-only argument: 'name'"):
        Item(count=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'items'"):
        OrderRequest()  # type: ignore[call-arg]
    assert Item(name="tea") == Item(name="tea", count=1, note="-")


def test_structs_say_what_is_in_them_and_are_compared_by_it() -> None:
    assert repr(Item(name="tea")) == "Item(name='tea', count=1, note='-')"
    assert Item(name="tea") == Item(name="tea", count=1) != Item(name="tea", count=2)
    assert Item(name="tea") != ("tea", 1, "-")


@pytest.mark.parametrize(
    ("version", "body", "complaint"),
    [
        (1, b"\0\0\0\2\0\3tea\0\0\0\2\0\3te", r"items\[1\]\.name: a length of 3, but 2 bytes are left at byte 15"),
        (1, b"\0\0\0\1\0\3tea\0\0\0\0\0\0", r"1 bytes are left|ends within"),
        (2, b"\0\0\0\1\0\3tea\0\0\0\2\xff\xff", r"items\[0\]\.note: null where text is required"),
        (3, b"\2\4tea\0\0\0\2\0\0\1\4\3\2b\0", "hall: a tagged field of 3 bytes, not 2 at byte"),
        (3, b"\2\4tea\0\0\0\2\3\xc3\x28\0\0", r"items\[0\]\.note: text that is not UTF-8"),
        (3, b"\2\4tea\0\0\0\2\0\2", r"items\[0\]\.tagged fields: 2 elements, but 0 bytes are left"),
    ],
)
def test_the_error_names_the_field(version: int, body: bytes, complaint: str) -> None:
    with pytest.raises(InvalidFrame, match=complaint):
        decoded(version, body)


def test_a_type_that_does_not_exist_is_named() -> None:
    class Wrong(Struct):
        total: Money  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match="Wrong: no type Money"):
        fields_of(Wrong)


def test_ranges_of_versions() -> None:
    assert list(Versions("2")) == [2] and list(Versions("1-3")) == [1, 2, 3]
    assert 30_000 in Versions("4+") and 3 not in Versions("4+")
    assert str(Versions("1-3")) == "1 to 3"
