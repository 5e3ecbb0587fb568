"""Rows of a table of tests that `make test` leaves out: what each adds, the others say too."""

from typing import Any

import pytest


def long(*rows: object) -> list[Any]:
    return [pytest.param(row, marks=pytest.mark.long) for row in rows]
