"""The check of copies can fail: each thing that may not happen to a copied record is found and named."""

import pytest

from support.copying.check import differences

SOURCE = [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("copy", "found"),
    [
        pytest.param([b"0", b"1", b"2", b"3"], [], id="the same"),
        pytest.param([b"0", b"1", b"3"], ["1 missing: [b'2']"], id="a record is missing"),
        pytest.param([b"0", b"1", b"2"], ["1 missing: [b'3']"], id="the last record is missing"),
        pytest.param([], ["4 missing: [b'0', b'1', b'2', b'3']"], id="nothing is copied"),
        pytest.param([b"0", b"1", b"1", b"2", b"3"], ["1 more than once: [b'1']"], id="a record is there twice"),
        pytest.param([b"0", b"1", b"2", b"3", b"0"], ["1 more than once: [b'0']"], id="a record comes again later"),
        pytest.param([b"0", b"1", b"9", b"2", b"3"], ["1 not in the input: [b'9']"], id="a record is from elsewhere"),
        pytest.param(
            [b"0", b"2", b"1", b"3"], ["out of order from record 1: [b'2', b'1', b'3']"], id="two are swapped"
        ),
        pytest.param(
            [b"0", b"2", b"2"], ["2 missing: [b'1', b'3']", "1 more than once: [b'2']"], id="several things are wrong"
        ),
    ],
)
def test_what_is_wrong_with_a_copy_is_named(copy: list[bytes], found: list[str]) -> None:
    assert differences(SOURCE, copy) == found
