"""Kafka's names for its own versions, as inter.broker.protocol.version and message.format.version give them."""

from enum import IntEnum

from klamm.config.definition import Validator

# fmt: off
_ALL = (
    "0.8.0", "0.8.1", "0.8.2", "0.9.0", "0.10.0-IV0", "0.10.0-IV1",
    "0.10.1-IV0", "0.10.1-IV1", "0.10.1-IV2", "0.10.2-IV0", "0.11.0-IV0", "0.11.0-IV1", "0.11.0-IV2",
    "1.0-IV0", "1.1-IV0", "2.0-IV0", "2.0-IV1", "2.1-IV0", "2.1-IV1", "2.1-IV2", "2.2-IV0", "2.2-IV1",
    "2.3-IV0", "2.3-IV1",
    "2.4-IV0", "2.4-IV1", "2.5-IV0", "2.6-IV0", "2.7-IV0", "2.7-IV1", "2.7-IV2", "2.8-IV0", "2.8-IV1",
)
# fmt: on


class ApiVersion(IntEnum):
    """A version of the protocol between brokers. Newer versions are greater, so code compares them."""

    V2_4_IV0 = 24
    V2_4_IV1 = 25
    V2_5_IV0 = 26
    V2_6_IV0 = 27
    V2_7_IV0 = 28
    V2_7_IV1 = 29
    V2_7_IV2 = 30
    V2_8_IV0 = 31
    V2_8_IV1 = 32

    def __str__(self) -> str:
        """Kafka's name: "2.8-IV1"."""
        return _ALL[self]

    @staticmethod
    def parse(text: str) -> "ApiVersion":
        """The version named "2.8-IV1", "2.8" (the newest of 2.8) or "2.8.2". Raises ValueError for any other name."""
        name = full_version_name(text)
        if name is None or _ALL.index(name) < ApiVersion.V2_4_IV0:
            raise ValueError(f"{text} is not a version from 2.4 to 2.8")
        return ApiVersion(_ALL.index(name))


def full_version_name(text: str) -> str | None:
    """The full name ("2.8-IV1") that "2.8", "2.8.2" or "2.8-IV1" stands for; None when there is no such version."""
    segments = 3 if text.startswith("0.") else 2
    prefix = ".".join(text.split(".")[:segments])
    if prefix in _ALL:
        return prefix
    matching = [name for name in _ALL if name.partition("-")[0] == prefix]
    return matching[-1] if matching else None


def _supported(text: str) -> bool:
    name = full_version_name(text)
    return name is not None and _ALL.index(name) >= ApiVersion.V2_4_IV0


ANY_VERSION = Validator(
    "the name of a Kafka version from 0.8.0 to 2.8-IV1", lambda text: full_version_name(text) is not None
)
SUPPORTED_VERSION = Validator("the name of a Kafka version from 2.4-IV0 to 2.8-IV1", _supported)
