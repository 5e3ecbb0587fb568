"""The seeds of a test that draws its histories: `make test` plays the first of them, `make interop` all."""

from typing import Any

import pytest


def seeds(short: int, whole: int) -> list[Any]:
    """Values for `parametrize`: the seeds from `short` on are marked `long`."""
    return [*range(short), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(short, whole))]
