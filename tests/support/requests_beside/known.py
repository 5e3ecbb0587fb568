"""Differences that stand: what each is, who is right, and where that is written.

A sequence ends at a difference after which the two programs are in different states.
"""

from collections.abc import Callable
from dataclasses import dataclass

from support.requests_beside.answers import Difference
from support.requests_beside.step import Json, Step


@dataclass(frozen=True)
class Known:
    """A difference that is explained. `fits` gets the step, both answers as JSON, and where they differ first."""

    name: str
    reason: str
    fits: Callable[[Step, Json, Json, Difference], bool]
    ends: bool = True


KNOWN: list[Known] = []


def explain(step: Step, kafka: Json, klamm: Json, difference: Difference) -> Known | None:
    return next((known for known in KNOWN if known.fits(step, kafka, klamm, difference)), None)
