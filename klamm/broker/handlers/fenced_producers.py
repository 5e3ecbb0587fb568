"""The error for a fenced producer, which older clients do not know (KIP-588)."""

from typing import Any

from klamm.broker.requests.registry import Request
from klamm.protocol.error_codes import ErrorCode


def code_for(request: Request[Any], code: ErrorCode, first_version_with_producer_fenced: int) -> ErrorCode:
    """The code for the version of the request: earlier versions have INVALID_PRODUCER_EPOCH for PRODUCER_FENCED."""
    if code is ErrorCode.PRODUCER_FENCED and request.version < first_version_with_producer_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
